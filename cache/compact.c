#include "cache/compact.h"

#include <assert.h>

#include "cache/entry.h"

/* Which entries go: by mask, or from a position on. */
struct leavers {
    const uint16_t *gone; /* NULL: by position */
    uint32_t pos;
    compact_moved_fn moved; /* NULL: nobody wants to know */
    void *user;
};

/* Bits of the entries of unit u of a list that go. */
static uint32_t mask_of(const struct table *t, const struct kv_list *l,
                        const struct leavers *who, uint32_t u)
{
    if (!who->gone)
        return table_slots_from(t, l, u, who->pos);
    uint32_t mask = who->gone[l->unit[u]], left = l->len - u * KV_UNIT;
    if (mask == 0 || pool_refs(t->pool, l->unit[u]) != 1)
        return 0;
    return left < KV_UNIT ? mask & ((1u << left) - 1) : mask;
}

static uint32_t close_gaps(struct table *t, struct kv_list *l,
                           const struct leavers *who)
{
    uint32_t n = 0;
    for (uint32_t u = 0; u * KV_UNIT < l->len; u++)
        n += (uint32_t)__builtin_popcount(mask_of(t, l, who, u));
    uint32_t len = l->len - n, src = len;
    for (uint32_t u = 0; n > 0 && u * KV_UNIT < len; u++) {
        uint32_t mask = mask_of(t, l, who, u);
        for (; mask != 0; mask &= mask - 1) {
            uint32_t slot = (uint32_t)__builtin_ctz(mask);
            if (u * KV_UNIT + slot >= len)
                break;
            /* As many kept entries are at or above the new length as holes
             * are below it, so this ends inside the list. */
            while (mask_of(t, l, who, src / KV_UNIT) >> (src % KV_UNIT) & 1)
                src++;
            assert(pool_refs(t->pool, l->unit[u]) == 1);
            entry_copy(t->pool, l->unit[u], slot, l->unit[src / KV_UNIT],
                       src % KV_UNIT);
            if (who->moved)
                who->moved(who->user, u * KV_UNIT + slot, src);
            l->in_order = false;
            src++;
        }
    }
    l->len = len;
    l->in_order = l->in_order || len == 0;
    return n;
}

uint32_t compact_move(struct table *t, uint32_t i_list, const uint16_t *gone)
{
    return compact_move_told(t, i_list, gone, NULL, NULL);
}

uint32_t compact_move_told(struct table *t, uint32_t i_list,
                           const uint16_t *gone, compact_moved_fn moved,
                           void *user)
{
    struct leavers who = {.gone = gone, .moved = moved, .user = user};
    return close_gaps(t, &t->list[i_list], &who);
}

uint32_t compact_move_from(struct table *t, uint32_t i_list, uint32_t pos)
{
    struct leavers who = {.pos = pos};
    return close_gaps(t, &t->list[i_list], &who);
}

uint32_t compact_release(struct table *t, uint32_t i_list)
{
    struct kv_list *l = &t->list[i_list];
    uint32_t keep = table_units_of(l->len), n = l->n_units - keep;
    /* From the end, so that a group is whole again when its first unit is
     * looked for next. */
    while (l->n_units > keep)
        pool_unref(t->pool, l->unit[--l->n_units]);
    return n;
}

uint64_t compact_table(struct table *t, const uint16_t *gone)
{
    uint64_t n = 0;
    uint32_t n_lists = t->n_layers * t->n_kv_heads;
    for (uint32_t i = 0; i < n_lists; i++) {
        n += compact_move(t, i, gone);
        (void)compact_release(t, i);
    }
    return n;
}
