/* Forks and rollbacks: what a table holds below a position. */
#include <assert.h>

#include "cache/compact.h"
#include "cache/entry.h"
#include "cache/table.h"

enum { UNITS_AHEAD = 8 };

static uint32_t n_lists(const struct table *t)
{
    return t->n_layers * t->n_kv_heads;
}

static uint32_t slots_of(const struct kv_list *l, uint32_t i)
{
    uint32_t left = l->len - i * KV_UNIT;
    return left < KV_UNIT ? (1u << left) - 1 : UINT16_MAX;
}

/* Positions lie scattered: without this each unit costs a miss. */
static void fetch_ahead(const struct table *t, const struct kv_list *l,
                        uint32_t i)
{
    if (i + UNITS_AHEAD < l->n_units)
        __builtin_prefetch(pool_meta(t->pool, l->unit[i + UNITS_AHEAD])->pos);
}

uint32_t table_slots_from(const struct table *t, const struct kv_list *l,
                          uint32_t i, uint32_t pos)
{
    const struct kv_meta *m = pool_meta(t->pool, l->unit[i]);
    uint32_t mask = 0;
    fetch_ahead(t, l, i);
    for (uint32_t e = 0; e < KV_UNIT; e++)
        mask |= (uint32_t)((uint32_t)m->pos[e] >= pos) << e;
    return mask & slots_of(l, i);
}

/* Entries of a list in order at positions below pos. */
static uint32_t search(const struct table *t, const struct kv_list *l,
                       uint32_t pos)
{
    uint32_t from = 0, to = l->len;
    while (from < to) {
        uint32_t i = from + (to - from) / 2;
        const struct kv_meta *m = pool_meta(t->pool, l->unit[i / KV_UNIT]);
        if ((uint32_t)m->pos[i % KV_UNIT] < pos)
            from = i + 1;
        else
            to = i;
    }
    return from;
}

static uint32_t n_below(const struct table *t, const struct kv_list *l,
                        uint32_t pos)
{
    if (l->in_order)
        return search(t, l, pos);
    uint32_t n = l->len;
    for (uint32_t u = 0; u < l->n_units; u++)
        n -= (uint32_t)__builtin_popcount(table_slots_from(t, l, u, pos));
    return n;
}

uint64_t table_n_entries_below(const struct table *t, uint32_t pos)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_lists(t); i++)
        sum += n_below(t, &t->list[i], pos);
    return sum;
}

/* ------------------------------------------------------------------ fork */

/* What a fork makes of a list: whole units to share, in order, and the rest,
 * which is shared too where it is the start of one unit. */
struct split {
    uint32_t n_whole;   /* full units of which all entries are wanted */
    uint32_t n_rest;    /* wanted entries of other units */
    uint32_t rest_unit; /* the first that holds some */
    bool is_start;      /* it holds them all, from its first slot on */
};

static uint32_t wanted(const struct table *t, const struct kv_list *l,
                       uint32_t i, uint32_t pos)
{
    return slots_of(l, i) & ~table_slots_from(t, l, i, pos);
}

static struct split split_of(const struct table *t, const struct kv_list *l,
                             uint32_t pos)
{
    struct split s = {.is_start = true};
    bool is_all = pos == TABLE_ALL;
    if (l->in_order || is_all) {
        uint32_t n = is_all ? l->len : search(t, l, pos);
        s.n_whole = s.rest_unit = n / KV_UNIT;
        s.n_rest = n % KV_UNIT;
        return s;
    }
    for (uint32_t u = 0; u < l->n_units; u++) {
        uint32_t mask = wanted(t, l, u, pos);
        if (mask == UINT16_MAX) {
            s.n_whole++;
        } else if (mask != 0) {
            s.is_start = s.n_rest == 0 && (mask & (mask + 1)) == 0;
            s.rest_unit = s.n_rest == 0 ? u : s.rest_unit;
            s.n_rest += (uint32_t)__builtin_popcount(mask);
        }
    }
    return s;
}

static uint32_t n_copies(const struct split *s)
{
    return s->is_start ? 0 : table_units_of(s->n_rest);
}

uint64_t table_fork_units(const struct table *src, uint32_t pos)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_lists(src); i++) {
        struct split s = split_of(src, &src->list[i], pos);
        sum += n_copies(&s);
    }
    return sum;
}

static void share_unit(struct table *t, struct kv_list *to, unit_id u)
{
    pool_ref(t->pool, u);
    to->unit[to->n_units++] = u;
}

static void copy_to_end(struct table *t, struct kv_list *to, unit_id from,
                        uint32_t slot)
{
    if (to->len % KV_UNIT == 0) {
        unit_id after =
            to->n_units > 0 ? to->unit[to->n_units - 1] : POOL_NO_UNIT;
        to->unit[to->n_units++] = pool_take(t->pool, after);
    }
    entry_copy(t->pool, to->unit[to->n_units - 1], to->len % KV_UNIT, from,
               slot);
    to->len++;
}

static void fork_list(struct table *t, struct kv_list *to,
                      const struct table *src, const struct kv_list *from,
                      uint32_t pos)
{
    struct split s = split_of(src, from, pos);
    assert(s.n_whole * (uint64_t)KV_UNIT + s.n_rest <=
           t->max_units * (uint64_t)KV_UNIT);
    to->in_order = from->in_order || s.n_whole + s.n_rest == 0;
    for (uint32_t u = 0; to->n_units < s.n_whole; u++)
        if (from->in_order || pos == TABLE_ALL ||
            wanted(src, from, u, pos) == UINT16_MAX)
            share_unit(t, to, from->unit[u]);
    to->len = s.n_whole * KV_UNIT;
    if (s.n_rest > 0 && s.is_start) {
        share_unit(t, to, from->unit[s.rest_unit]);
        to->len += s.n_rest;
        return;
    }
    for (uint32_t u = s.rest_unit; s.n_rest > 0 && u < from->n_units; u++) {
        uint32_t mask = wanted(src, from, u, pos);
        for (; mask != UINT16_MAX && mask != 0; mask &= mask - 1)
            copy_to_end(t, to, from->unit[u], (uint32_t)__builtin_ctz(mask));
    }
}

enum err table_fork(struct table **out, const struct table *src, uint32_t pos,
                    uint32_t max_entries)
{
    struct table *t = NULL;
    enum err rc =
        table_new(&t, src->pool, src->n_layers, src->n_kv_heads, max_entries);
    if (rc != OK)
        return rc;
    for (uint32_t i = 0; i < n_lists(t); i++)
        fork_list(t, &t->list[i], src, &src->list[i], pos);
    *out = t;
    return OK;
}

/* -------------------------------------------------------------- rollback */

/* True if unit i is below the new length `len` and has a gap there. */
static bool has_gap(const struct table *t, const struct kv_list *l, uint32_t i,
                    uint32_t pos, uint32_t len)
{
    uint32_t left = len - i * KV_UNIT, mask = table_slots_from(t, l, i, pos);
    return (left < KV_UNIT ? mask & ((1u << left) - 1) : mask) != 0;
}

uint64_t table_truncate_units(const struct table *t, uint32_t pos)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_lists(t); i++) {
        const struct kv_list *l = &t->list[i];
        if (l->in_order)
            continue;
        uint32_t len = n_below(t, l, pos);
        for (uint32_t u = 0; u * KV_UNIT < len; u++)
            sum += pool_refs(t->pool, l->unit[u]) > 1 &&
                   has_gap(t, l, u, pos, len);
    }
    return sum;
}

uint64_t table_truncate(struct table *t, uint32_t pos)
{
    uint64_t taken = 0;
    for (uint32_t i = 0; i < n_lists(t); i++) {
        struct kv_list *l = &t->list[i];
        uint32_t len = n_below(t, l, pos);
        for (uint32_t u = 0; !l->in_order && u * KV_UNIT < len; u++)
            if (has_gap(t, l, u, pos, len))
                taken += table_own_unit(t, l, u);
        if (l->in_order)
            l->len = len;
        else
            (void)compact_move_from(t, i, pos);
        (void)compact_release(t, i);
    }
    return taken;
}
