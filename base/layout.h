/* layout.h - one block of memory that is laid out in pieces.
 *
 * The same code counts and lays out: it runs with base NULL first, which says
 * how many bytes there must be, and then with the block. Each piece begins at
 * a multiple of LAYOUT_ALIGN from the base. Owns nothing. Threads: the
 * caller's.
 */
#ifndef BASE_LAYOUT_H
#define BASE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum { LAYOUT_ALIGN = 64 }; /* a cache line */

struct layout {
    uint8_t *base; /* NULL: only count */
    uint64_t bytes;
};

/* n items of `size` bytes, which together must not overflow; NULL when only
 * counting. A piece of no items is no pointer to read from. */
static inline void *layout_cut(struct layout *l, uint64_t n, uint64_t size)
{
    void *at = l->base ? l->base + l->bytes : NULL;
    l->bytes += (n * size + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
    return at;
}

#endif
