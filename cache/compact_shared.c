#include "cache/compact.h"

#include <assert.h>

#include "cache/entry.h"

/* The units that all users share, in the order of the first one's list, and
 * what is chosen of them. */
struct group {
    struct table *const *user;
    uint32_t n_users, i_list;
    const uint16_t *gone;
    uint32_t n_units, n_kept; /* n_kept: a multiple of KV_UNIT in the end */
    /* Chosen entries from this position on stay. */
    int64_t stays_from;
};

/* True for a list that holds a unit to its end, most likely at `at`. */
static bool holds(const struct kv_list *l, unit_id u, uint32_t at)
{
    uint32_t n_full = l->len / KV_UNIT;
    if (at < n_full && l->unit[at] == u)
        return true;
    for (uint32_t i = 0; i < n_full; i++)
        if (l->unit[i] == u)
            return true;
    return false;
}

/* True if all users and nobody else refer to unit i of the first one's list,
 * and see it whole. */
static bool is_common(const struct group *g, uint32_t i)
{
    unit_id u = g->user[0]->list[g->i_list].unit[i];
    if (pool_refs(g->user[0]->pool, u) != g->n_users)
        return false;
    for (uint32_t k = 0; k < g->n_users; k++)
        if (!holds(&g->user[k]->list[g->i_list], u, i))
            return false;
    return true;
}

static bool leaves(const struct group *g, unit_id u, uint32_t slot)
{
    const struct kv_meta *m = pool_meta(g->user[0]->pool, u);
    return g->gone[u] >> slot & 1 && m->pos[slot] < g->stays_from;
}

/* Puts x into top[0..n), which ascends and loses its lowest. */
static void insert(int32_t *top, uint32_t n, int32_t x)
{
    if (n == 0 || x <= top[0])
        return;
    uint32_t i = 0;
    for (; i + 1 < n && top[i + 1] < x; i++)
        top[i] = top[i + 1];
    top[i] = x;
}

/* Lets the newest of the chosen entries stay that fill the last unit. */
static void fill_up(struct group *g)
{
    const struct kv_list *l = &g->user[0]->list[g->i_list];
    uint32_t n = (KV_UNIT - g->n_kept % KV_UNIT) % KV_UNIT;
    int32_t top[KV_UNIT];
    for (uint32_t i = 0; i < KV_UNIT; i++)
        top[i] = -1;
    for (uint32_t i = 0; n > 0 && i < l->n_units; i++) {
        unit_id u = l->unit[i];
        const struct kv_meta *m = pool_meta(g->user[0]->pool, u);
        uint32_t mask = is_common(g, i) ? g->gone[u] : 0;
        for (; mask != 0; mask &= mask - 1)
            insert(top, n, m->pos[__builtin_ctz(mask)]);
    }
    g->n_kept += n;
    g->stays_from = n > 0 ? top[0] : INT64_MAX;
}

static void count(struct group *g)
{
    const struct kv_list *l = &g->user[0]->list[g->i_list];
    for (uint32_t i = 0; i < l->n_units; i++) {
        if (!is_common(g, i))
            continue;
        uint16_t gone = g->gone[l->unit[i]];
        g->n_units++;
        g->n_kept += KV_UNIT - (uint32_t)__builtin_popcount(gone);
    }
    fill_up(g);
}

static uint32_t next_common(const struct group *g, uint32_t i)
{
    const struct kv_list *l = &g->user[0]->list[g->i_list];
    while (i < l->n_units && !is_common(g, i))
        i++;
    return i;
}

/* Moves what stays to the front of the group, in order, and marks the units
 * behind by a position that no entry has. */
static void gather(const struct group *g)
{
    const struct kv_list *l = &g->user[0]->list[g->i_list];
    struct pool *p = g->user[0]->pool;
    uint32_t dst = next_common(g, 0), slot = 0;
    for (uint32_t src = dst; src < l->n_units; src = next_common(g, src + 1)) {
        for (uint32_t e = 0; e < KV_UNIT; e++) {
            if (leaves(g, l->unit[src], e))
                continue;
            entry_copy(p, l->unit[dst], slot, l->unit[src], e);
            if (++slot == KV_UNIT) {
                slot = 0;
                dst = next_common(g, dst + 1);
            }
        }
    }
    assert(slot == 0);
    for (; dst < l->n_units; dst = next_common(g, dst + 1))
        pool_meta(p, l->unit[dst])->pos[0] = -1;
}

static bool ascends(const struct table *t, const struct kv_list *l)
{
    int32_t last = -1;
    for (uint32_t i = 0; i < l->len; i++) {
        const struct kv_meta *m = pool_meta(t->pool, l->unit[i / KV_UNIT]);
        if (m->pos[i % KV_UNIT] <= last)
            return false;
        last = m->pos[i % KV_UNIT];
    }
    return true;
}

/* Takes the marked units, of which there are n_marked, out of a user's list. */
static void drop_marked(struct table *t, struct kv_list *l, uint32_t n_marked)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n_units; i++) {
        unit_id u = l->unit[i];
        if (pool_meta(t->pool, u)->pos[0] == -1)
            pool_unref(t->pool, u);
        else
            l->unit[n++] = u;
    }
    assert(l->n_units - n == n_marked);
    l->len -= n_marked * KV_UNIT;
    l->n_units = n;
    l->in_order = ascends(t, l);
}

struct compact_freed compact_shared(struct table *const *user, uint32_t n_users,
                                    uint32_t i_list, const uint16_t *gone)
{
    struct group g = {
        .user = user, .n_users = n_users, .i_list = i_list, .gone = gone};
    count(&g);
    uint32_t n_new = g.n_kept / KV_UNIT;
    if (n_new >= g.n_units)
        return (struct compact_freed){0};
    gather(&g);
    for (uint32_t i = 0; i < n_users; i++)
        drop_marked(user[i], &user[i]->list[i_list], g.n_units - n_new);
    return (struct compact_freed){.units = g.n_units - n_new,
                                  .entries = g.n_units * KV_UNIT - g.n_kept};
}
