#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_FIRST = 64 };

void buf_fini(struct buf *b)
{
    free(b->data);
    b->data = NULL;
    b->len = b->cap = 0;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data != NULL)
        b->data[0] = '\0';
}

enum err buf_reserve(struct buf *b, size_t more)
{
    if (more > SIZE_MAX / 2 - b->len)
        return ERR_NOMEM;
    size_t need = b->len + more;
    if (b->max != 0 && need > b->max)
        return ERR_BUDGET;
    if (b->data != NULL && need < b->cap)
        return OK;
    size_t cap = b->cap < BUF_FIRST ? BUF_FIRST : b->cap;
    while (cap <= need)
        cap *= 2;
    char *data = realloc(b->data, cap);
    if (data == NULL)
        return ERR_NOMEM;
    data[b->len] = '\0';
    b->data = data;
    b->cap = cap;
    return OK;
}

enum err buf_append(struct buf *b, const void *data, size_t n)
{
    enum err rc = buf_reserve(b, n);
    if (rc != OK)
        return rc;
    if (n > 0)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
    return OK;
}

enum err buf_puts(struct buf *b, const char *s)
{
    return buf_append(b, s, strlen(s));
}

enum err buf_putc(struct buf *b, char c)
{
    return buf_append(b, &c, 1);
}

enum err buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    enum err rc = n < 0 ? ERR_INVAL : buf_reserve(b, (size_t)n);
    if (rc == OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return rc;
}

char *buf_take(struct buf *b)
{
    if (b->data == NULL && buf_reserve(b, 0) != OK)
        return NULL;
    char *data = b->data;
    b->data = NULL;
    b->len = b->cap = 0;
    return data;
}
