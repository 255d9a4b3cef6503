#include "runtime/text/nfc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/grow.h"
#include "base/utf8.h"

enum {
    FIRST_NOT_TRIVIAL = 0x300, /* the first character that can combine */
    DECOMPOSED_MAX = 32,       /* utf8proc wants room; canonical needs 4 */
    SHORT_RUN = 24             /* marks in a row that are sorted in place */
};

struct range {
    int32_t lo, hi;
};

/* Marks and parts of compositions that the reference does not know. */
static const struct range unknown_to_reference[] = {
    {0x5C8, 0x5C9},     {0x7FD, 0x7FD},     {0x897, 0x89F},
    {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1AF0},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x105C9, 0x105C9}, {0x105D2, 0x105D2}, {0x105DA, 0x105DA},
    {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11382, 0x11385},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x11391},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C8},
    {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x1611E, 0x1611E}, {0x16121, 0x16129}, {0x1612F, 0x1612F},
    {0x16D63, 0x16D63}, {0x16D67, 0x16D6A}, {0x16FF0, 0x16FF1},
    {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C},
    {0x1D25F, 0x1D25F}, {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3},
    {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
};

/* Characters that neither move, nor change, nor join what is before or behind
 * them. U+11A7 is one by the standard: it lies one below the first trailing
 * consonant of Hangul, and versions of utf8proc take it for that and lose it.
 */
static bool stands_alone(int32_t c)
{
    enum { HANGUL_T_BASE = 0x11A7 };
    if (c == HANGUL_T_BASE)
        return true;
    size_t lo = 0;
    size_t hi = sizeof(unknown_to_reference) / sizeof(struct range);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c < unknown_to_reference[mid].lo)
            hi = mid;
        else if (c > unknown_to_reference[mid].hi)
            lo = mid + 1;
        else
            return true;
    }
    return false;
}

bool nfc_is_trivial(const char *s, size_t n)
{
    /* U+0300 is CC 80: everything from there on has a first byte >= CC. */
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= 0xCC)
            return false;
    return true;
}

/* Characters that wait for what follows them, decomposed. */
struct pending {
    utf8proc_int32_t *c;
    size_t n, cap;
};

static unsigned class_of(utf8proc_int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

static void insertion_sort(utf8proc_int32_t *c, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        utf8proc_int32_t x = c[i];
        unsigned cc = class_of(x);
        size_t k = i;
        for (; k > 0 && class_of(c[k - 1]) > cc; k--)
            c[k] = c[k - 1];
        c[k] = x;
    }
}

/* Stable counting sort by class, for runs that only an attack is made of. */
static void counting_sort(utf8proc_int32_t *c, utf8proc_int32_t *tmp, size_t n)
{
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++)
        at[class_of(c[i]) + 1]++;
    for (size_t k = 1; k < 257; k++)
        at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++)
        tmp[at[class_of(c[i])]++] = c[i];
    memcpy(c, tmp, n * sizeof(*c));
}

/* Sorts each run of marks (class > 0) by class: canonical ordering. The upper
 * half of p's room, made here, is the sort's scratch. */
static enum err order_marks(struct pending *p)
{
    for (size_t i = 0; i < p->n;) {
        if (class_of(p->c[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < p->n && class_of(p->c[end]) != 0)
            end++;
        if (end - i <= SHORT_RUN) {
            insertion_sort(p->c + i, end - i);
        } else {
            void *c =
                grow_array(p->c, &p->cap, p->n + (end - i), sizeof(*p->c));
            if (c == NULL)
                return ERR_NOMEM;
            p->c = c;
            counting_sort(p->c + i, p->c + p->n, end - i);
        }
        i = end;
    }
    return OK;
}

static enum err flush(struct pending *p, struct buf *out)
{
    if (p->n == 0)
        return OK;
    enum err rc = order_marks(p);
    if (rc != OK)
        return rc;
    utf8proc_ssize_t len = utf8proc_normalize_utf32(
        p->c, (utf8proc_ssize_t)p->n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (len < 0)
        return ERR_INTERNAL;
    for (utf8proc_ssize_t i = 0; i < len && rc == OK; i++) {
        char bytes[UTF8_MAX_BYTES];
        int k = utf8_encode((uint32_t)p->c[i], bytes);
        rc = buf_append(out, bytes, (size_t)k);
    }
    p->n = 0;
    return rc;
}

static enum err push_decomposed(struct pending *p, int32_t cp)
{
    void *c = grow_array(p->c, &p->cap, p->n + DECOMPOSED_MAX, sizeof(*p->c));
    if (c == NULL)
        return ERR_NOMEM;
    p->c = c;
    int boundclass = 0;
    utf8proc_ssize_t k = utf8proc_decompose_char(
        cp, p->c + p->n, DECOMPOSED_MAX, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        &boundclass);
    if (k < 0 || k > DECOMPOSED_MAX)
        return ERR_INTERNAL;
    p->n += (size_t)k;
    return OK;
}

/* A character below U+0300 is a starter that joins nothing before it, and so
 * is one that stands alone: what is pending is complete then. The former may
 * combine with what follows, the latter may not. */
static enum err take_char(struct pending *p, int32_t cp, const char *bytes,
                          size_t len, struct buf *out)
{
    bool alone = stands_alone(cp);
    enum err rc = OK;
    if (cp < FIRST_NOT_TRIVIAL || alone)
        rc = flush(p, out);
    if (rc == OK)
        rc = alone ? buf_append(out, bytes, len) : push_decomposed(p, cp);
    return rc;
}

enum err nfc_append(struct buf *out, const char *s, size_t n)
{
    struct pending p = {0};
    enum err rc = buf_reserve(out, n);
    for (size_t i = 0; i < n && rc == OK;) {
        /* Text below U+0300 up to the character before the next one above
         * it is copied as it is. */
        size_t k = i;
        size_t last = i;
        while (k < n && (unsigned char)s[k] < 0xCC) {
            if (((unsigned char)s[k] & 0xC0) != 0x80)
                last = k;
            k++;
        }
        if (k == n)
            last = n;
        if (last > i) {
            rc = flush(&p, out);
            if (rc == OK)
                rc = buf_append(out, s + i, last - i);
            i = last;
            continue;
        }
        uint32_t cp = 0;
        int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0)
            rc = ERR_INVAL;
        else
            rc = take_char(&p, (int32_t)cp, s + i, (size_t)len, out);
        i += len > 0 ? (size_t)len : 1;
    }
    if (rc == OK)
        rc = flush(&p, out);
    free(p.c);
    return rc;
}
