/* buf.h - a growable byte string.
 *
 * Owns its bytes. data is always terminated by a NUL that len does not count,
 * so it can be printed; it may hold NULs itself. A zeroed struct buf is a
 * valid empty one (data is then NULL until the first append).
 *
 * Threads: one at a time.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>

#include "base/err.h"

struct buf {
    char *data;
    size_t len;
    size_t cap;
    size_t max; /* 0: unlimited; else an append beyond it is ERR_BUDGET */
};

void buf_fini(struct buf *b);  /* frees; leaves a valid empty buf */
void buf_clear(struct buf *b); /* len = 0, keeps the memory */

/* All of these: ERR_NOMEM or ERR_BUDGET leave the content as it was. */
MUST_CHECK enum err buf_reserve(struct buf *b, size_t more);
MUST_CHECK enum err buf_append(struct buf *b, const void *data, size_t n);
MUST_CHECK enum err buf_puts(struct buf *b, const char *s);
MUST_CHECK enum err buf_putc(struct buf *b, char c);
MUST_CHECK enum err buf_printf(struct buf *b, const char *fmt, ...)
    PRINTF_LIKE(2, 3);

/* The caller now owns the bytes (free() them; NULL only when out of memory);
 * b is empty again. */
char *buf_take(struct buf *b);

#endif
