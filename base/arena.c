#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_FIRST = 4 * 1024, CHUNK_MAX = 256 * 1024 };

struct arena_chunk {
    struct arena_chunk *older;
    alignas(ARENA_ALIGN) char bytes[];
};

void arena_init(struct arena *a, size_t limit_bytes)
{
    *a = (struct arena){.limit = limit_bytes};
}

void arena_fini(struct arena *a)
{
    while (a->chunks != NULL) {
        struct arena_chunk *c = a->chunks;
        a->chunks = c->older;
        free(c);
    }
    arena_init(a, a->limit);
}

/* Chunks grow with what was taken so far, so that a large arena is few chunks
 * and a small one wastes little; near the limit only what is needed. */
static size_t chunk_size(const struct arena *a, size_t need)
{
    size_t size = a->taken < CHUNK_FIRST ? CHUNK_FIRST : a->taken;
    if (size > CHUNK_MAX)
        size = CHUNK_MAX;
    if (size > a->limit - a->taken)
        size = a->limit - a->taken;
    return size < need ? need : size;
}

static int grow(struct arena *a, size_t n)
{
    size_t head = offsetof(struct arena_chunk, bytes);
    size_t room = a->limit - a->taken;
    if (room < head || n > room - head)
        return 0;
    size_t size = chunk_size(a, n + head);
    struct arena_chunk *c = calloc(1, size);
    if (c == NULL)
        return 0;
    c->older = a->chunks;
    a->chunks = c;
    a->taken += size;
    a->next = c->bytes;
    a->end = (char *)c + size;
    return 1;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > SIZE_MAX - ARENA_ALIGN)
        return NULL;
    n = (n + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (n == 0)
        n = ARENA_ALIGN;
    if (n > (size_t)(a->end - a->next) && !grow(a, n))
        return NULL;
    void *p = a->next;
    a->next += n;
    return p;
}

void *arena_array(struct arena *a, size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / size)
        return NULL;
    return arena_alloc(a, count * size);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
    if (p != NULL && n > 0)
        memcpy(p, s, n);
    return p;
}
