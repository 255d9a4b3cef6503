/* arena.h - memory that ends all at once, with a limit.
 *
 * One request (or one template run, one parse) allocates from its arena and
 * frees nothing by itself; arena_fini() ends everything. The limit counts
 * what is taken from the host, so input chosen by a client can never make an
 * arena grow beyond it.
 *
 * Threads: one at a time.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks; /* newest first; owned */
    char *next, *end;           /* what is left of the newest chunk */
    size_t taken;               /* bytes taken from the host */
    size_t limit;
};

enum { ARENA_ALIGN = 16 };

/* Takes nothing from the host yet. */
void arena_init(struct arena *a, size_t limit_bytes);
void arena_fini(struct arena *a); /* also of a zeroed one */

/* Zeroed memory for n bytes, aligned to ARENA_ALIGN; NULL where the limit
 * would be passed or the host has no memory. n == 0 gives a valid pointer. */
void *arena_alloc(struct arena *a, size_t n);

/* arena_alloc() of count * size that also fails when the product overflows. */
void *arena_array(struct arena *a, size_t count, size_t size);

/* A copy of s[0..n) with a NUL after it; NULL as above. */
char *arena_strndup(struct arena *a, const char *s, size_t n);

#endif
