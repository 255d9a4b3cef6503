#include "base/json_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

struct scan {
    char *text;
    size_t n, pos;
    int depth;
    size_t n_values; /* an upper bound: commas and opening brackets */
    bool has_long;
    struct errmsg *m;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_number_char(char c)
{
    return is_digit(c) || c == '-' || c == '+' || c == '.' || c == 'e' ||
           c == 'E';
}

static size_t number_len(const char *text, size_t n, size_t pos)
{
    size_t len = 0;
    while (pos + len < n && is_number_char(text[pos + len]))
        len++;
    return len;
}

static const char *skip_digits(const char *p)
{
    while (is_digit(*p))
        p++;
    return p;
}

/* RFC 8259 section 6. The text ends in a NUL, so reading stops by itself. */
static bool is_number(const char *p, const char *end)
{
    if (*p == '-')
        p++;
    if (!is_digit(*p))
        return false;
    p = *p == '0' ? p + 1 : skip_digits(p);
    if (*p == '.') {
        if (!is_digit(p[1]))
            return false;
        p = skip_digits(p + 1);
    }
    if (*p == 'e' || *p == 'E') {
        p += p[1] == '+' || p[1] == '-' ? 2 : 1;
        if (!is_digit(*p))
            return false;
        p = skip_digits(p);
    }
    return p == end;
}

static enum err scan_number(struct scan *s)
{
    char *p = s->text + s->pos;
    size_t len = number_len(s->text, s->n, s->pos);
    int shown = len < 40 ? (int)len : 40;
    if (!is_number(p, p + len))
        return err_set(s->m, ERR_INVAL, "'%.*s' at byte %zu is not a number",
                       shown, p, s->pos);
    if (len >= JSON_EXACT_DIGITS)
        s->has_long = true;
    bool may_overflow =
        len > 300 || memchr(p, 'e', len) != NULL || memchr(p, 'E', len) != NULL;
    if (may_overflow || len > JSON_NUMBER_MAX) {
        double v = strtod(p, NULL);
        if (!isfinite(v))
            return err_set(s->m, ERR_INVAL,
                           "the number '%.*s' at byte %zu is too large", shown,
                           p, s->pos);
        if (len > JSON_NUMBER_MAX) {
            char digits[JSON_NUMBER_MAX];
            int k = snprintf(digits, sizeof(digits), "%.17g", v);
            memset(p, ' ', len);
            memcpy(p, digits, (size_t)k);
        }
    }
    s->pos += len;
    return OK;
}

/* The four hexadecimal digits at p as a number; -1 where they are not. */
static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d;
        if (is_digit(c))
            d = c - '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            d = (c | 32) - 'a' + 10;
        else
            return -1;
        v = v * 16 + d;
    }
    return v;
}

static bool is_high(int unit)
{
    return unit >= 0xD800 && unit < 0xDC00;
}

static bool is_low(int unit)
{
    return unit >= 0xDC00 && unit < 0xE000;
}

/* At a backslash and 'u'. A surrogate without its partner is mended; bad
 * digits are left to the parser. */
static enum err scan_unicode_escape(struct scan *s)
{
    char *p = s->text + s->pos;
    int unit = hex4(p + 2);
    if (unit < 0) {
        s->pos += 2;
        return OK;
    }
    if (unit == 0)
        return err_set(s->m, ERR_INVAL,
                       "the escape \\u0000 at byte %zu is not accepted",
                       s->pos);
    if (is_high(unit) && p[6] == '\\' && p[7] == 'u' && is_low(hex4(p + 8))) {
        s->pos += 12;
        return OK;
    }
    if (is_high(unit) || is_low(unit))
        memcpy(p + 2, "fffd", 4);
    s->pos += 6;
    return OK;
}

static enum err scan_string(struct scan *s)
{
    size_t start = s->pos++;
    while (s->pos < s->n) {
        char c = s->text[s->pos];
        if (c == '"') {
            s->pos++;
            return OK;
        }
        if (c != '\\') {
            s->pos++;
            continue;
        }
        if (s->text[s->pos + 1] != 'u') {
            s->pos += 2;
            continue;
        }
        enum err rc = scan_unicode_escape(s);
        if (rc != OK)
            return rc;
    }
    return err_set(s->m, ERR_INVAL, "the string at byte %zu does not end",
                   start);
}

static enum err scan_bracket(struct scan *s, char c)
{
    s->pos++;
    if (c == '}' || c == ']') {
        s->depth--;
        return OK;
    }
    s->n_values++;
    if (c != ',' && ++s->depth > JSON_DEPTH_MAX)
        return err_set(s->m, ERR_INVAL,
                       "more than %d levels of nesting at byte %zu",
                       JSON_DEPTH_MAX, s->pos - 1);
    if (s->n_values > JSON_VALUES_MAX)
        return err_set(s->m, ERR_INVAL, "more than %d values at byte %zu",
                       JSON_VALUES_MAX, s->pos - 1);
    return OK;
}

static enum err check_utf8(const char *text, size_t n, struct errmsg *m)
{
    for (size_t i = 0; i < n;) {
        int len = utf8_decode(text + i, n - i, NULL);
        if (len <= 0)
            return err_set(m, ERR_INVAL, "invalid UTF-8 at byte %zu", i);
        if (text[i] == '\0')
            return err_set(m, ERR_INVAL, "a NUL at byte %zu", i);
        i += (size_t)len;
    }
    return OK;
}

enum err json_scan(char *text, size_t n, bool *has_long, struct errmsg *m)
{
    struct scan s = {.text = text, .n = n, .m = m};
    enum err rc = check_utf8(text, n, m);
    while (rc == OK && s.pos < n) {
        char c = text[s.pos];
        if (c == '"')
            rc = scan_string(&s);
        else if (c == '-' || is_digit(c))
            rc = scan_number(&s);
        else if (c != '\0' && strchr("{}[],", c) != NULL)
            rc = scan_bracket(&s, c);
        else
            s.pos++;
    }
    if (rc == OK && s.depth > 0)
        rc = err_set(m, ERR_INVAL,
                     "the JSON text ends too early, with %d brackets open",
                     s.depth);
    *has_long = s.has_long;
    return rc;
}

size_t json_next_number(const char *text, size_t n, size_t *pos)
{
    size_t i = *pos;
    while (i < n && text[i] != '-' && !is_digit(text[i])) {
        if (text[i++] != '"')
            continue;
        while (i < n && text[i] != '"')
            i += text[i] == '\\' ? 2 : 1;
        i++;
    }
    *pos = i;
    return i < n ? number_len(text, n, i) : 0;
}
