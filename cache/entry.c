#include "cache/entry.h"

#include <assert.h>
#include <string.h>

/* Elements of a key lie KV_LANES apart: those of its neighbours in between. */
static void copy_key(uint8_t *to, const uint8_t *from,
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

static void copy_float(uint8_t *to, const uint8_t *from, uint32_t at,
                       uint32_t dst, uint32_t src)
{
    memcpy(to + at + dst * sizeof(float), from + at + src * sizeof(float),
           sizeof(float));
}

void entry_copy(const struct pool *p, unit_id to, uint32_t dst, unit_id from,
                uint32_t src)
{
    const struct kv_layout *y = pool_layout(p);
    uint8_t *d = pool_data(p, to);
    const uint8_t *s = pool_data(p, from);
    size_t row = (size_t)y->head_dim * y->elem_bytes;
    if (to == from && dst == src)
        return;
    assert(!kv_is_deferred(pool_meta(p, from), src));
    copy_key(d + y->k + kv_key_index(y, dst, 0) * y->elem_bytes,
             s + y->k + kv_key_index(y, src, 0) * y->elem_bytes, y);
    memcpy(d + y->v + dst * row, s + y->v + src * row, row);
    if (y->type == KV_Q8_0) {
        copy_float(d, s, y->k_scale, dst, src);
        copy_float(d, s, y->v_scale, dst, src);
    }
    copy_float(d, s, y->bias, dst, src);

    struct kv_meta *dm = pool_meta(p, to);
    const struct kv_meta *sm = pool_meta(p, from);
    dm->log_beta[dst] = sm->log_beta[src];
    dm->standing[dst] = sm->standing[src];
    dm->pos[dst] = sm->pos[src];
    dm->rope_pos[dst] = sm->rope_pos[src];
}

void entry_copy_unit(const struct pool *p, unit_id to, unit_id from)
{
    for (uint32_t i = 0; i < KV_UNIT; i++)
        assert(!kv_is_deferred(pool_meta(p, from), i));
    memcpy(pool_data(p, to), pool_data(p, from), pool_layout(p)->data_bytes);
    *pool_meta(p, to) = *pool_meta(p, from);
}
