#include "runtime/text/jinja_value.h"

#include <string.h>

#include "runtime/text/jinja_str.h"

enum { INDEX_FROM = 8, LIST_MIN = 8 };

enum err jinja_seq_new(struct jinja_run *r, size_t n, enum jinja_seq_kind kind,
                       struct jinja_seq **out)
{
    struct jinja_seq *s;
    TRY(jinja_alloc(r, &s, 1, sizeof(*s)));
    TRY(jinja_alloc(r, &s->items, n, sizeof(*s->items)));
    s->kind = kind;
    s->n = n;
    *out = s;
    return OK;
}

enum err jinja_list_add(struct jinja_run *r, struct jinja_list *l,
                        struct jval v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? LIST_MIN : 2 * l->cap;
        struct jval *items;
        TRY(jinja_alloc(r, &items, cap, sizeof(*items)));
        if (l->n > 0)
            memcpy(items, l->items, l->n * sizeof(*items));
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return jinja_step(r, 1);
}

enum err jinja_list_done(struct jinja_run *r, const struct jinja_list *l,
                         enum jinja_seq_kind kind, jinja_origin origin,
                         struct jval *out)
{
    struct jinja_seq *s;
    TRY(jinja_alloc(r, &s, 1, sizeof(*s)));
    *s = (struct jinja_seq){.kind = kind, .n = l->n, .items = l->items};
    *out = jinja_of_seq(s, origin);
    return OK;
}

enum err jinja_list_once(struct jinja_run *r, const struct jinja_list *l,
                         struct jval *out)
{
    struct jinja_iter *it;
    TRY(jinja_alloc(r, &it, 1, sizeof(*it)));
    TRY(jinja_list_done(r, l, JINJA_LIST, false, &it->over));
    *out = (struct jval){.type = JINJA_ITER, .iter = it};
    return OK;
}

/* --- Objects --- */

enum err jinja_dict_new(struct jinja_run *r, size_t expected,
                        struct jinja_dict **out)
{
    struct jinja_dict *d;
    TRY(jinja_alloc(r, &d, 1, sizeof(*d)));
    TRY(jinja_alloc(r, &d->entries, expected, sizeof(*d->entries)));
    d->cap = expected;
    *out = d;
    return OK;
}

/* FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/), 64 bits. */
static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const unsigned char *bytes = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 0x100000001B3u;
    return h;
}

/* Equal keys have equal hashes: 1, 1.0 and true are one key. */
static enum err hash(struct jinja_run *r, const struct jval *v, uint64_t *h)
{
    double d;
    switch ((enum jinja_type)v->type) {
    case JINJA_STR:
        TRY(jinja_step(r, v->s.n / 64));
        *h = mix(*h, v->s.p, v->s.n);
        return OK;
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
        d = jinja_number(v) + 0.0;
        *h = mix(*h, &d, sizeof(d));
        return OK;
    case JINJA_NONE:
    case JINJA_UNDEFINED:
        return OK;
    case JINJA_SEQ:
        if (v->seq->kind != JINJA_TUPLE)
            break;
        TRY(jinja_enter(r));
        for (size_t i = 0; i < v->seq->n; i++) {
            TRY(jinja_step(r, 1));
            TRY(hash(r, &v->seq->items[i], h));
        }
        r->depth--;
        return OK;
    default:
        break;
    }
    return jinja_fail(r, "a value of type '%s' cannot be a key",
                      jinja_type_name(v));
}

/* The slot of an index that holds the key, or the free one for it. */
static enum err find_slot(struct jinja_run *r, const struct jinja_dict *d,
                          const struct jval *key, size_t *slot)
{
    uint64_t h = 0xCBF29CE484222325u;
    TRY(hash(r, key, &h));
    size_t i = (size_t)(h ^ h >> 32) & (d->index_cap - 1);
    for (;; i = (i + 1) & (d->index_cap - 1)) {
        bool same = false;
        if (d->index[i] != 0)
            TRY(jinja_equal(r, &d->entries[d->index[i] - 1].key, key, &same));
        if (same || d->index[i] == 0) {
            *slot = i;
            return OK;
        }
    }
}

static enum err find_entry(struct jinja_run *r, const struct jinja_dict *d,
                           const struct jval *key, size_t *out)
{
    *out = SIZE_MAX;
    if (d->index_cap != 0) {
        size_t slot;
        TRY(find_slot(r, d, key, &slot));
        if (d->index[slot] != 0)
            *out = d->index[slot] - 1;
        return OK;
    }
    uint64_t ignored = 0;
    if (key->type != JINJA_STR)
        TRY(hash(r, key, &ignored)); /* refuses what cannot be a key */
    for (size_t i = 0; i < d->n; i++) {
        bool same;
        TRY(jinja_equal(r, &d->entries[i].key, key, &same));
        if (same) {
            *out = i;
            return OK;
        }
    }
    return OK;
}

static enum err build_index(struct jinja_run *r, struct jinja_dict *d)
{
    size_t cap = 4 * INDEX_FROM;
    while (cap < 4 * d->n)
        cap *= 2;
    if (d->n > UINT32_MAX / 8)
        return jinja_fail(r, "an object has too many keys");
    TRY(jinja_alloc(r, &d->index, cap, sizeof(*d->index)));
    d->index_cap = cap;
    for (size_t i = 0; i < d->n; i++) {
        size_t slot;
        TRY(find_slot(r, d, &d->entries[i].key, &slot));
        d->index[slot] = (uint32_t)(i + 1);
    }
    return OK;
}

enum err jinja_dict_put(struct jinja_run *r, struct jinja_dict *d,
                        const struct jval *key, const struct jval *value)
{
    size_t at;
    TRY(find_entry(r, d, key, &at));
    if (at != SIZE_MAX) {
        d->entries[at].value = *value;
        return OK;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap < INDEX_FROM ? INDEX_FROM : 2 * d->cap;
        struct jinja_entry *entries;
        TRY(jinja_alloc(r, &entries, cap, sizeof(*entries)));
        if (d->n > 0)
            memcpy(entries, d->entries, d->n * sizeof(*entries));
        d->entries = entries;
        d->cap = cap;
    }
    d->entries[d->n++] = (struct jinja_entry){*key, *value};
    if (d->n > INDEX_FROM && d->n * 2 > d->index_cap)
        return build_index(r, d);
    if (d->index_cap != 0) {
        size_t slot;
        TRY(find_slot(r, d, key, &slot));
        d->index[slot] = (uint32_t)d->n;
    }
    return OK;
}

enum err jinja_dict_get(struct jinja_run *r, const struct jinja_dict *d,
                        const struct jval *key, const struct jval **out)
{
    size_t at;
    TRY(find_entry(r, d, key, &at));
    *out = at != SIZE_MAX ? &d->entries[at].value : NULL;
    return OK;
}

enum err jinja_dict_get_text(struct jinja_run *r, const struct jinja_dict *d,
                             const char *key, size_t n, const struct jval **out)
{
    struct jval k = jinja_text("");
    k.s.p = key;
    k.s.n = n;
    return jinja_dict_get(r, d, &k, out);
}

/* --- Going through --- */

enum err jinja_iter_init(struct jinja_run *r, struct jval v,
                         struct jinja_iter *it)
{
    *it = (struct jinja_iter){.over = v};
    switch ((enum jinja_type)v.type) {
    case JINJA_UNDEFINED:
    case JINJA_STR:
    case JINJA_SEQ:
    case JINJA_DICT:
    case JINJA_ITER:
        return OK;
    default:
        return jinja_fail(r, "'%s' object is not iterable",
                          jinja_type_name(&v));
    }
}

enum err jinja_iter_next(struct jinja_run *r, struct jinja_iter *it,
                         struct jval *out, bool *has)
{
    const struct jval *v = &it->over;
    uint32_t cp;
    size_t from = it->pos;
    TRY(jinja_step(r, 1));
    *has = false;
    switch ((enum jinja_type)v->type) {
    case JINJA_ITER:
        return jinja_iter_next(r, v->iter, out, has);
    case JINJA_SEQ:
        *has = it->pos < v->seq->n;
        if (*has)
            *out = v->seq->items[it->pos++];
        return OK;
    case JINJA_DICT:
        *has = it->pos < v->dict->n;
        if (*has)
            *out = v->dict->entries[it->pos++].key;
        return OK;
    case JINJA_STR:
        *has = it->pos < v->s.n;
        if (!*has)
            return OK;
        it->pos += jinja_char(v->s.p + from, v->s.n - from, &cp);
        return jinja_str_part(r, v, from, it->pos, out);
    default:
        return OK;
    }
}

enum err jinja_collect(struct jinja_run *r, struct jval v,
                       struct jinja_list *out)
{
    struct jinja_iter it;
    struct jval item;
    bool has;
    *out = (struct jinja_list){0};
    TRY(jinja_iter_init(r, v, &it));
    for (;;) {
        TRY(jinja_iter_next(r, &it, &item, &has));
        if (!has)
            return OK;
        TRY(jinja_list_add(r, out, item));
    }
}

/* --- Slices --- */

static enum err bound(struct jinja_run *r, const struct jval *v,
                      int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (v->type == JINJA_MISSING || v->type == JINJA_NONE)
        return OK;
    if (!jinja_is_int(v))
        return jinja_fail(r, "slice bounds must be integers, not '%s'",
                          jinja_type_name(v));
    *out = jinja_integer(v);
    return OK;
}

static int64_t clamp(int64_t i, int64_t n, int64_t lo, int64_t hi)
{
    if (i < 0)
        i = i < -n ? lo : i + n;
    return i < lo ? lo : i > hi ? hi : i;
}

/* Where the slice starts, its step and how many items it has
 * (PySlice_AdjustIndices in CPython). */
static enum err slice_plan(struct jinja_run *r, const struct jval b[3],
                           size_t length, int64_t *start, int64_t *step,
                           size_t *count)
{
    int64_t n = (int64_t)length, stop;
    TRY(bound(r, &b[2], 1, step));
    if (*step == 0)
        return jinja_fail(r, "slice step cannot be zero");
    bool down = *step < 0;
    TRY(bound(r, &b[0], down ? n : 0, start));
    TRY(bound(r, &b[1], down ? INT64_MIN : n, &stop));
    int64_t lo = down ? -1 : 0, hi = down ? n - 1 : n;
    *start = clamp(*start, n, lo, hi);
    stop = clamp(stop, n, lo, hi);
    int64_t size = *step < -n - 1 ? n + 1 : *step > n ? n + 1 : *step;
    if (size < 0)
        size = -size;
    *step = down ? -size : size;
    int64_t dist = down ? *start - stop : stop - *start;
    *count = dist > 0 ? (size_t)((dist - 1) / size + 1) : 0;
    return OK;
}

static enum err slice_str(struct jinja_run *r, const struct jval *v,
                          const struct jval b[3], struct jval *out)
{
    const char *s = v->s.p;
    int64_t start, step;
    size_t count, length = jinja_count_chars(s, v->s.n);
    TRY(jinja_step(r, v->s.n / 16));
    TRY(slice_plan(r, b, length, &start, &step, &count));
    if (count == 0)
        return jinja_str_part(r, v, 0, 0, out);
    size_t at = jinja_char_offset(s, v->s.n, (size_t)start);
    if (step == 1) {
        size_t len = jinja_char_offset(s + at, v->s.n - at, count);
        return jinja_str_part(r, v, at, at + len, out);
    }
    struct jinja_sb sb = {.r = r};
    uint32_t cp;
    for (size_t i = 0; i < count; i++) {
        size_t len = jinja_char(s + at, v->s.n - at, &cp);
        TRY(jinja_sb_put_part(&sb, v, at, at + len));
        TRY(jinja_step(r, 1));
        for (int64_t k = 0; i + 1 < count && k < step; k++)
            at += jinja_char(s + at, v->s.n - at, &cp);
        for (int64_t k = 0; i + 1 < count && k > step; k--)
            at -= jinja_char_before(s, at, &cp);
    }
    TRY(jinja_sb_done(&sb, out));
    out->is_markup = v->is_markup;
    return OK;
}

enum err jinja_slice(struct jinja_run *r, const struct jval *v,
                     const struct jval b[3], struct jval *out)
{
    if (v->type == JINJA_STR)
        return slice_str(r, v, b, out);
    int64_t start, step;
    size_t count;
    struct jinja_seq *seq;
    TRY(slice_plan(r, b, v->seq->n, &start, &step, &count));
    TRY(jinja_step(r, count / 4));
    TRY(jinja_seq_new(r, count, v->seq->kind, &seq));
    for (size_t i = 0; i < count; i++)
        seq->items[i] = v->seq->items[start + (int64_t)i * step];
    seq->start = v->seq->start + start * v->seq->step;
    seq->step = v->seq->step * step;
    seq->stop = seq->start + (int64_t)count * seq->step;
    *out = jinja_of_seq(seq, v->origin);
    return OK;
}

/* --- Sorting --- */

struct sort {
    struct jinja_run *r;
    const struct jval *keys;
    bool reverse;
};

/* Merges order[lo, mid) and order[mid, hi); equal keys keep their order, also
 * when it is reversed, as Python's sort does. */
static enum err merge(const struct sort *s, size_t *order, size_t *tmp,
                      size_t lo, size_t mid, size_t hi)
{
    size_t i = lo, j = mid, k = lo;
    while (i < mid && j < hi) {
        int c;
        TRY(jinja_order(s->r, &s->keys[order[j]], &s->keys[order[i]], "<", &c));
        bool second = s->reverse ? c > 0 : c < 0;
        tmp[k++] = second ? order[j++] : order[i++];
    }
    while (i < mid)
        tmp[k++] = order[i++];
    while (j < hi)
        tmp[k++] = order[j++];
    memcpy(order + lo, tmp + lo, (hi - lo) * sizeof(*order));
    return OK;
}

enum err jinja_sort(struct jinja_run *r, struct jval *items, struct jval *keys,
                    size_t n, bool reverse)
{
    size_t *order, *tmp;
    struct jval *sorted;
    struct sort s = {r, keys, reverse};
    TRY(jinja_alloc(r, &order, n, sizeof(*order)));
    TRY(jinja_alloc(r, &tmp, n, sizeof(*tmp)));
    TRY(jinja_alloc(r, &sorted, n, sizeof(*sorted)));
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t w = 1; w < n; w *= 2)
        for (size_t lo = 0; lo + w < n; lo += 2 * w)
            TRY(merge(&s, order, tmp, lo, lo + w,
                      lo + 2 * w < n ? lo + 2 * w : n));
    for (size_t i = 0; i < n; i++)
        sorted[i] = items[order[i]];
    if (n > 0)
        memcpy(items, sorted, n * sizeof(*items));
    return OK;
}
