#include "cache/table.h"

#include <assert.h>
#include <stdlib.h>

#include "cache/entry.h"

static size_t n_lists(const struct table *t)
{
    return (size_t)t->n_layers * t->n_kv_heads;
}

enum err table_new(struct table **out, struct pool *pool, uint32_t n_layers,
                   uint32_t n_kv_heads, uint32_t max_entries)
{
    struct table *t = calloc(1, sizeof(*t));
    if (!t)
        return ERR_NOMEM;
    t->pool = pool;
    t->n_layers = n_layers;
    t->n_kv_heads = n_kv_heads;
    t->max_units = table_units_of(max_entries);
    size_t n = n_lists(t), max_units = t->max_units;
    t->list = calloc(n + 1, sizeof(*t->list));
    /* One more than needed, so that an empty table is no special case. */
    unit_id *ids = NULL;
    if (n <= SIZE_MAX / sizeof(*ids) / (max_units + 1))
        ids = malloc((n * max_units + 1) * sizeof(*ids));
    if (!t->list || !ids) {
        free(ids);
        free(t->list);
        free(t);
        return ERR_NOMEM;
    }
    t->ids = ids;
    for (size_t i = 0; i < n; i++) {
        t->list[i].unit = ids + i * max_units;
        t->list[i].in_order = true;
    }
    *out = t;
    return OK;
}

void table_free(struct table *t)
{
    if (!t)
        return;
    /* From the end, so that a group of units is whole again when its first
     * one is looked for next. */
    for (size_t i = 0; i < n_lists(t); i++)
        for (uint32_t u = t->list[i].n_units; u-- > 0;)
            pool_unref(t->pool, t->list[i].unit[u]);
    free(t->ids);
    free(t->list);
    free(t);
}

struct kv_list *table_list(const struct table *t, uint32_t layer, uint32_t head)
{
    assert(layer < t->n_layers && head < t->n_kv_heads);
    return &t->list[(size_t)layer * t->n_kv_heads + head];
}

static bool must_copy_tail(const struct table *t, const struct kv_list *l)
{
    return l->len % KV_UNIT != 0 &&
           pool_refs(t->pool, l->unit[l->n_units - 1]) > 1;
}

uint64_t table_units_needed(const struct table *t, uint32_t n)
{
    uint64_t sum = 0;
    if (n == 0)
        return 0;
    for (size_t i = 0; i < n_lists(t); i++) {
        const struct kv_list *l = &t->list[i];
        sum += table_units_of(l->len + n) - l->n_units + must_copy_tail(t, l);
    }
    return sum;
}

uint64_t table_units_for(uint32_t n, uint32_t n_tokens)
{
    return (uint64_t)n * table_units_of(n_tokens);
}

uint32_t table_own_unit(struct table *t, struct kv_list *l, uint32_t i)
{
    unit_id from = l->unit[i];
    if (pool_refs(t->pool, from) == 1)
        return 0;
    unit_id to = pool_take(t->pool, i > 0 ? l->unit[i - 1] : POOL_NO_UNIT);
    entry_copy_unit(t->pool, to, from);
    l->unit[i] = to;
    pool_unref(t->pool, from);
    return 1;
}

/* True if an entry at `pos` would come after all that are there. */
static bool continues(const struct table *t, const struct kv_list *l,
                      int32_t pos)
{
    if (l->len == 0)
        return true;
    uint32_t last = l->len - 1;
    const struct kv_meta *m = pool_meta(t->pool, l->unit[last / KV_UNIT]);
    return l->in_order && m->pos[last % KV_UNIT] < pos;
}

static void append_entries(struct table *t, struct kv_list *l, uint32_t n,
                           int32_t pos, int32_t rope_pos)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = l->len % KV_UNIT;
        if (slot == 0) {
            unit_id after =
                l->n_units > 0 ? l->unit[l->n_units - 1] : POOL_NO_UNIT;
            l->unit[l->n_units++] = pool_take(t->pool, after);
        }
        struct kv_meta *meta = pool_meta(t->pool, l->unit[l->n_units - 1]);
        meta->log_beta[slot] = 0.0f;
        meta->standing[slot] = 0.0f;
        meta->pos[slot] = pos + (int32_t)i;
        meta->rope_pos[slot] = rope_pos + (int32_t)i;
        l->len++;
    }
}

uint64_t table_append(struct table *t, uint32_t n, int32_t pos,
                      int32_t rope_pos)
{
    uint32_t before = pool_stats(t->pool).reserved;
    if (n == 0)
        return 0;
    for (size_t i = 0; i < n_lists(t); i++) {
        struct kv_list *l = &t->list[i];
        assert(n <= t->max_units * (uint64_t)KV_UNIT - l->len);
        l->in_order = continues(t, l, pos);
        if (must_copy_tail(t, l))
            (void)table_own_unit(t, l, l->n_units - 1);
        append_entries(t, l, n, pos, rope_pos);
    }
    return before - pool_stats(t->pool).reserved;
}

uint64_t table_n_units(const struct table *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n_lists(t); i++)
        sum += t->list[i].n_units;
    return sum;
}

uint64_t table_n_private_units(const struct table *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n_lists(t); i++)
        for (uint32_t u = 0; u < t->list[i].n_units; u++)
            sum += pool_refs(t->pool, t->list[i].unit[u]) == 1;
    return sum;
}

uint64_t table_n_entries(const struct table *t)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n_lists(t); i++)
        sum += t->list[i].len;
    return sum;
}

uint32_t table_max_len(const struct table *t)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n_lists(t); i++)
        most = t->list[i].len > most ? t->list[i].len : most;
    return most;
}
