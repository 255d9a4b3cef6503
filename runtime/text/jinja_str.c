#include "runtime/text/jinja_str.h"

#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"

enum { ROOM_MIN = 64, SPANS_MIN = 4, BYTES_PER_STEP = 64 };

/* --- Characters --- */

size_t jinja_char(const char *s, size_t n, uint32_t *cp)
{
    int len = utf8_decode(s, n, cp);
    if (len > 0)
        return (size_t)len;
    *cp = UTF8_REPLACEMENT;
    return 1;
}

size_t jinja_char_before(const char *s, size_t end, uint32_t *cp)
{
    for (size_t len = 1; len <= UTF8_MAX_BYTES && len <= end; len++) {
        if (((unsigned char)s[end - len] & 0xC0) == 0x80)
            continue;
        if (utf8_decode(s + end - len, len, cp) == (int)len)
            return len;
        break;
    }
    *cp = UTF8_REPLACEMENT;
    return 1;
}

size_t jinja_count_chars(const char *s, size_t n)
{
    size_t count = 0;
    uint32_t cp;
    for (size_t i = 0; i < n; count++)
        i += (unsigned char)s[i] < 0x80 ? 1 : jinja_char(s + i, n - i, &cp);
    return count;
}

size_t jinja_char_offset(const char *s, size_t n, size_t chars)
{
    size_t i = 0;
    uint32_t cp;
    for (; i < n && chars > 0; chars--)
        i += jinja_char(s + i, n - i, &cp);
    return i;
}

bool jinja_is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) ||
           cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool jinja_is_word(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || cp == '_' ||
               ((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z');
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return true;
    default:
        return false;
    }
}

bool jinja_is_printable(uint32_t cp)
{
    if (cp == ' ')
        return true;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

/* --- Building --- */

static enum err reserve(struct jinja_sb *b, size_t more)
{
    TRY(jinja_step(b->r, more / BYTES_PER_STEP));
    if (b->max != 0 && more > b->max - b->n)
        return jinja_fail(b->r, "the output is longer than %zu bytes", b->max);
    if (b->cap - b->n >= more)
        return OK;
    size_t cap = b->n + more < ROOM_MIN ? ROOM_MIN : 2 * (b->n + more);
    char *p;
    TRY(jinja_alloc(b->r, &p, cap, 1));
    if (b->n > 0)
        memcpy(p, b->p, b->n);
    b->p = p;
    b->cap = cap;
    return OK;
}

/* Says where the bytes from the end of the last span to `end` come from. */
static enum err mark(struct jinja_sb *b, size_t end, jinja_origin origin)
{
    struct jinja_span *last = b->n_spans > 0 ? b->spans + b->n_spans - 1 : NULL;
    if (last != NULL && last->origin == origin) {
        last->end = end;
        return OK;
    }
    if (b->n_spans == b->cap_spans) {
        size_t cap = b->cap_spans == 0 ? SPANS_MIN : 2 * b->cap_spans;
        struct jinja_span *spans;
        TRY(jinja_alloc(b->r, &spans, cap, sizeof(*spans)));
        if (b->n_spans > 0)
            memcpy(spans, b->spans, b->n_spans * sizeof(*spans));
        b->spans = spans;
        b->cap_spans = cap;
    }
    b->spans[b->n_spans++] = (struct jinja_span){end, origin};
    return OK;
}

enum err jinja_sb_put(struct jinja_sb *b, const char *s, size_t n,
                      jinja_origin origin)
{
    if (n == 0)
        return OK;
    TRY(reserve(b, n));
    TRY(mark(b, b->n + n, origin));
    memcpy(b->p + b->n, s, n);
    b->n += n;
    return OK;
}

enum err jinja_sb_puts(struct jinja_sb *b, const char *s, jinja_origin origin)
{
    return jinja_sb_put(b, s, strlen(s), origin);
}

enum err jinja_sb_put_char(struct jinja_sb *b, uint32_t cp, jinja_origin origin)
{
    char utf8[UTF8_MAX_BYTES];
    size_t n = (size_t)utf8_encode(cp, utf8);
    return jinja_sb_put(b, utf8, n, origin);
}

static size_t n_spans(const struct jval *v)
{
    return v->s.extra != NULL ? v->s.extra->n_spans : 0;
}

/* The first span that ends behind `at`. */
static size_t span_at(const struct jval *v, size_t at)
{
    const struct jinja_span *spans = v->s.extra->spans;
    size_t lo = 0, hi = n_spans(v);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (spans[mid].end > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

jinja_origin jinja_str_origin(const struct jval *v, size_t at)
{
    if (n_spans(v) == 0)
        return v->origin;
    size_t i = span_at(v, at);
    return i < n_spans(v) ? v->s.extra->spans[i].origin : JINJA_FROM_INPUT;
}

enum err jinja_sb_put_part(struct jinja_sb *b, const struct jval *v,
                           size_t from, size_t to)
{
    if (from >= to)
        return OK;
    if (n_spans(v) == 0)
        return jinja_sb_put(b, v->s.p + from, to - from, v->origin);
    for (size_t i = span_at(v, from); from < to; i++) {
        const struct jinja_span *span = v->s.extra->spans + i;
        size_t end = span->end < to ? span->end : to;
        TRY(jinja_sb_put(b, v->s.p + from, end - from, span->origin));
        from = end;
    }
    return OK;
}

enum err jinja_sb_done(struct jinja_sb *b, struct jval *out)
{
    *out = (struct jval){.type = JINJA_STR};
    out->s.p = b->p != NULL ? b->p : "";
    out->s.n = b->n;
    for (size_t i = 0; i < b->n_spans; i++)
        out->origin |= b->spans[i].origin;
    if (b->n == 0)
        return OK;
    struct jinja_extra *extra;
    struct jinja_room *room;
    TRY(jinja_alloc(b->r, &extra, 1, sizeof(*extra)));
    TRY(jinja_alloc(b->r, &room, 1, sizeof(*room)));
    *room = (struct jinja_room){b->p, b->n, b->cap};
    extra->room = room;
    if (b->n_spans > 1) {
        extra->spans = b->spans;
        extra->n_spans = b->n_spans;
    }
    out->s.extra = extra;
    return OK;
}

enum err jinja_str_part(struct jinja_run *r, const struct jval *v, size_t from,
                        size_t to, struct jval *out)
{
    struct jval part = *v;
    if (from > to)
        from = to;
    part.s.p += from;
    part.s.n = to - from;
    part.s.extra = NULL;
    if (n_spans(v) > 0 && to > from) {
        const struct jinja_span *spans = v->s.extra->spans;
        size_t first = span_at(v, from), last = span_at(v, to - 1);
        part.origin = spans[first].origin;
        if (first != last) {
            struct jinja_extra *extra;
            struct jinja_span *own;
            size_t n = last - first + 1;
            TRY(jinja_step(r, n));
            TRY(jinja_alloc(r, &extra, 1, sizeof(*extra)));
            TRY(jinja_alloc(r, &own, n, sizeof(*own)));
            for (size_t i = 0; i < n; i++) {
                own[i] = spans[first + i];
                own[i].end -= from;
                part.origin |= own[i].origin;
            }
            own[n - 1].end = to - from;
            extra->spans = own;
            extra->n_spans = n;
            part.s.extra = extra;
        }
    }
    *out = part;
    return OK;
}

/* A builder that goes on behind `a` where that is possible. */
static enum err resume(struct jinja_run *r, const struct jval *a, size_t more,
                       struct jinja_sb *b)
{
    *b = (struct jinja_sb){.r = r};
    struct jinja_room *room = a->s.extra != NULL ? a->s.extra->room : NULL;
    if (room == NULL || a->s.n == 0 ||
        a->s.p + a->s.n != room->p + room->used ||
        room->cap - room->used < more) {
        TRY(reserve(b, a->s.n + more));
        return jinja_sb_put_part(b, a, 0, a->s.n);
    }
    size_t before = (size_t)(a->s.p - room->p);
    b->p = room->p + before;
    b->n = a->s.n;
    b->cap = room->cap - before;
    if (n_spans(a) == 0)
        return mark(b, b->n, a->origin);
    for (size_t i = 0; i < n_spans(a); i++)
        TRY(mark(b, a->s.extra->spans[i].end, a->s.extra->spans[i].origin));
    return jinja_step(r, n_spans(a) / BYTES_PER_STEP);
}

enum err jinja_str_concat(struct jinja_run *r, const struct jval *a,
                          const struct jval *b, struct jval *out)
{
    struct jinja_sb sb;
    struct jval whole;
    TRY(resume(r, a, b->s.n, &sb));
    TRY(jinja_sb_put_part(&sb, b, 0, b->s.n));
    TRY(jinja_sb_done(&sb, &whole));
    /* From here on `a` may no longer write behind itself. */
    if (a->s.extra != NULL && a->s.extra->room != NULL &&
        sb.p >= a->s.extra->room->p &&
        sb.p < a->s.extra->room->p + a->s.extra->room->cap)
        a->s.extra->room->used = a->s.extra->room->cap;
    *out = whole;
    return OK;
}

/* --- Searching --- */

size_t jinja_find(const struct jval *s, size_t from, size_t to,
                  const struct jval *needle)
{
    if (from > to || needle->s.n > to - from)
        return SIZE_MAX;
    if (needle->s.n == 0)
        return from;
    const char *at = memmem(s->s.p + from, to - from, needle->s.p, needle->s.n);
    return at != NULL ? (size_t)(at - s->s.p) : SIZE_MAX;
}

enum err jinja_rfind(struct jinja_run *r, const struct jval *s, size_t from,
                     size_t to, const struct jval *needle, size_t *out)
{
    *out = SIZE_MAX;
    if (from > to || needle->s.n > to - from)
        return OK;
    if (needle->s.n == 0) {
        *out = to;
        return OK;
    }
    /* Forwards, because memmem is linear and a comparison at every place from
     * behind is not; a needle that overlaps itself pays for its length. */
    for (size_t at = from; (at = jinja_find(s, at, to, needle)) != SIZE_MAX;
         at++) {
        *out = at;
        TRY(jinja_step(r, 1 + needle->s.n / 8));
    }
    return OK;
}
