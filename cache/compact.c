#include "cache/compact.h"

#include <string.h>

/* Bits of the entries of unit u of a list that go. */
static uint32_t mask_of(const struct table *t, const struct kv_list *l,
                        const uint16_t *gone, uint32_t u)
{
    uint32_t mask = gone[l->unit[u]], left = l->len - u * KV_UNIT;
    if (mask == 0 || pool_refs(t->pool, l->unit[u]) != 1)
        return 0;
    return left < KV_UNIT ? mask & ((1u << left) - 1) : mask;
}

/* Elements of a key lie KV_LANES apart: those of its neighbours in between. */
static void move_key(uint8_t *to, const uint8_t *from,
                     const struct kv_layout *y)
{
    size_t step = (size_t)KV_LANES * y->elem_bytes;
    for (uint32_t i = 0; i < y->head_dim; i++, to += step, from += step) {
        if (y->elem_bytes == 2)
            memcpy(to, from, 2);
        else if (y->elem_bytes == 1)
            *to = *from;
        else
            memcpy(to, from, 4);
    }
}

static void move_float(uint8_t *to, const uint8_t *from, uint32_t at,
                       uint32_t dst, uint32_t src)
{
    memcpy(to + at + dst * sizeof(float), from + at + src * sizeof(float),
           sizeof(float));
}

static void move_entry(const struct table *t, const struct kv_list *l,
                       uint32_t dst, uint32_t src)
{
    const struct kv_layout *y = pool_layout(t->pool);
    unit_id to = l->unit[dst / KV_UNIT], from = l->unit[src / KV_UNIT];
    uint8_t *d = pool_data(t->pool, to);
    const uint8_t *s = pool_data(t->pool, from);
    size_t row = (size_t)y->head_dim * y->elem_bytes;
    dst %= KV_UNIT;
    src %= KV_UNIT;

    move_key(d + y->k + kv_key_index(y, dst, 0) * y->elem_bytes,
             s + y->k + kv_key_index(y, src, 0) * y->elem_bytes, y);
    memcpy(d + y->v + dst * row, s + y->v + src * row, row);
    if (y->type == KV_Q8_0) {
        move_float(d, s, y->k_scale, dst, src);
        move_float(d, s, y->v_scale, dst, src);
    }
    move_float(d, s, y->bias, dst, src);

    struct kv_meta *dm = pool_meta(t->pool, to);
    const struct kv_meta *sm = pool_meta(t->pool, from);
    dm->log_beta[dst] = sm->log_beta[src];
    dm->pos[dst] = sm->pos[src];
    dm->rope_pos[dst] = sm->rope_pos[src];
}

uint32_t compact_move(struct table *t, uint32_t i_list, const uint16_t *gone)
{
    struct kv_list *l = &t->list[i_list];
    uint32_t n = 0;
    for (uint32_t u = 0; u * KV_UNIT < l->len; u++)
        n += (uint32_t)__builtin_popcount(mask_of(t, l, gone, u));
    uint32_t len = l->len - n, src = len;
    for (uint32_t u = 0; n > 0 && u * KV_UNIT < len; u++) {
        uint32_t mask = mask_of(t, l, gone, u);
        for (; mask != 0; mask &= mask - 1) {
            uint32_t dst = u * KV_UNIT + (uint32_t)__builtin_ctz(mask);
            if (dst >= len)
                break;
            /* As many kept entries are at or above the new length as holes
             * are below it, so this ends inside the list. */
            while (mask_of(t, l, gone, src / KV_UNIT) >> (src % KV_UNIT) & 1)
                src++;
            move_entry(t, l, dst, src++);
        }
    }
    l->len = len;
    return n;
}

uint32_t compact_release(struct table *t, uint32_t i_list)
{
    struct kv_list *l = &t->list[i_list];
    uint32_t keep = l->len / KV_UNIT + (l->len % KV_UNIT != 0);
    uint32_t n = l->n_units - keep;
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
