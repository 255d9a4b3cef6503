#include "base/grow.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

enum { GROW_FIRST = 16 };

void *grow_array(void *p, size_t *cap, size_t need, size_t elem)
{
    assert(need > 0 && elem > 0);
    if (p != NULL && need <= *cap)
        return p;
    size_t room = *cap < GROW_FIRST ? GROW_FIRST : *cap;
    while (room < need) {
        if (room > SIZE_MAX / 2)
            return NULL;
        room *= 2;
    }
    if (room > SIZE_MAX / elem)
        return NULL;
    void *moved = realloc(p, room * elem);
    if (moved != NULL)
        *cap = room;
    return moved;
}
