#include "base/utf8.h"

static bool is_cont(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

/* What the first byte promises: length, and the range its second byte must
 * lie in (Unicode 15, table 3-7). Length 0: no character starts like this. */
static int lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80)
        return 1;
    if (c < 0xC2)
        return 0;
    if (c < 0xE0)
        return 2;
    if (c < 0xF0) {
        if (c == 0xE0)
            *lo = 0xA0;
        if (c == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (c > 0xF4)
        return 0;
    if (c == 0xF0)
        *lo = 0x90;
    if (c == 0xF4)
        *hi = 0x8F;
    return 4;
}

/* Bytes of s that form a well-formed beginning of the character; equal to its
 * length when it is whole. *len is what the first byte promises. */
static int well_formed(const char *s, size_t n, int *len)
{
    unsigned char lo, hi;
    *len = lead((unsigned char)s[0], &lo, &hi);
    if (*len <= 1)
        return *len;
    int i = 1;
    while (i < *len && (size_t)i < n) {
        unsigned char c = (unsigned char)s[i];
        bool ok = i == 1 ? c >= lo && c <= hi : is_cont(c);
        if (!ok)
            break;
        i++;
    }
    return i;
}

int utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    if (n == 0)
        return -1;
    int len;
    int got = well_formed(s, n, &len);
    if (len == 0)
        return 0;
    if (got < len)
        return (size_t)got == n ? -1 : 0;
    if (cp != NULL) {
        unsigned char first = (unsigned char)s[0];
        uint32_t c = len == 1 ? first : first & (0x7Fu >> len);
        for (int i = 1; i < len; i++)
            c = c << 6 | ((unsigned char)s[i] & 0x3F);
        *cp = c;
    }
    return len;
}

int utf8_encode(uint32_t cp, char out[UTF8_MAX_BYTES])
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        cp = UTF8_REPLACEMENT;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (char)((0xF00u >> len & 0xFF) | cp);
    return len;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        int len = utf8_decode(s + i, n - i, NULL);
        if (len <= 0)
            break;
        i += (size_t)len;
    }
    return i;
}

bool utf8_is_valid(const char *s, size_t n)
{
    return utf8_valid_prefix(s, n) == n;
}

enum err utf8_check(const char *s, size_t n, struct errmsg *m)
{
    size_t n_valid = utf8_valid_prefix(s, n);
    return n_valid == n
               ? OK
               : err_set(m, ERR_INVAL, "it is not UTF-8 at byte %zu", n_valid);
}

size_t utf8_complete_prefix(const char *s, size_t n)
{
    size_t back = n < UTF8_MAX_BYTES ? n : UTF8_MAX_BYTES;
    for (size_t k = 1; k <= back; k++) {
        if (is_cont((unsigned char)s[n - k]))
            continue;
        return utf8_decode(s + n - k, k, NULL) == -1 ? n - k : n;
    }
    return n;
}

enum err utf8_append_repaired(struct buf *out, const char *s, size_t n)
{
    size_t done = 0; /* s[done..i) is valid and not yet written */
    for (size_t i = 0; i < n;) {
        int len;
        int got = well_formed(s + i, n - i, &len);
        if (len > 0 && got == len) {
            i += (size_t)len;
            continue;
        }
        enum err rc = buf_append(out, s + done, i - done);
        if (rc == OK)
            rc = buf_append(out, "\xEF\xBF\xBD", 3);
        if (rc != OK)
            return rc;
        i += got > 0 ? (size_t)got : 1;
        done = i;
    }
    return buf_append(out, s + done, n - done);
}
