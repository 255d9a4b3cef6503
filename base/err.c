#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static void make_printable(char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        int len = utf8_decode(s + i, n - i, NULL);
        if (len > 1) {
            i += (size_t)len;
            continue;
        }
        unsigned char c = (unsigned char)s[i];
        if (len < 1 || c < 0x20 || c == 0x7F)
            s[i] = '?';
        i++;
    }
}

enum err err_set(struct errmsg *m, enum err code, const char *fmt, ...)
{
    if (m == NULL)
        return code;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(m->text, sizeof(m->text), fmt, ap);
    va_end(ap);
    if (n < 0)
        m->text[0] = '\0';
    if (n >= (int)sizeof(m->text)) {
        size_t end = sizeof(m->text) - sizeof("...");
        while (end > 0 && ((unsigned char)m->text[end] & 0xC0) == 0x80)
            end--;
        memcpy(m->text + end, "...", sizeof("..."));
    }
    make_printable(m->text);
    return code;
}

const char *err_name(enum err code)
{
    switch (code) {
    case OK:
        return "ok";
    case ERR_INVAL:
        return "invalid";
    case ERR_NOTFOUND:
        return "not found";
    case ERR_CONFLICT:
        return "conflict";
    case ERR_BUSY:
        return "busy";
    case ERR_BUDGET:
        return "no room";
    case ERR_NOMEM:
        return "out of memory";
    case ERR_IO:
        return "input/output";
    case ERR_UNSUPPORTED:
        return "unsupported";
    case ERR_CANCELLED:
        return "cancelled";
    case ERR_DEVICE:
        return "device";
    case ERR_INTERNAL:
        return "internal";
    }
    return "unknown";
}
