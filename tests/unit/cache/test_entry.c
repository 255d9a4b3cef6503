#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cache/entry.h"

enum { DIM = 24, BYTES_MAX = 8192 };

/* The bytes of a slot in a data block, in the order of the description in
 * base/kv_layout.h. Returns how many. */
static uint32_t bytes_of(const struct kv_layout *y, uint32_t slot, uint32_t *at)
{
    uint32_t n = 0, w = y->elem_bytes;
    for (uint32_t i = 0; i < DIM * w; i++) {
        uint32_t d = i / w;
        at[n++] = y->k + ((slot / 8 * DIM + d) * 8 + slot % 8) * w + i % w;
        at[n++] = y->v + slot * DIM * w + i;
    }
    for (uint32_t i = 0; i < 4; i++) {
        at[n++] = y->bias + slot * 4 + i;
        if (y->type != KV_Q8_0)
            continue;
        at[n++] = y->k_scale + slot * 4 + i;
        at[n++] = y->v_scale + slot * 4 + i;
    }
    return n;
}

static void fill(struct pool *p, unit_id u, struct rng *r)
{
    struct kv_meta *m = pool_meta(p, u);
    for (uint32_t i = 0; i < pool_layout(p)->data_bytes; i++)
        pool_data(p, u)[i] = (uint8_t)rng_next(r);
    for (uint32_t i = 0; i < KV_UNIT; i++) {
        m->log_beta[i] = -rng_float(r);
        m->standing[i] = -rng_float(r);
        m->pos[i] = (int32_t)rng_below(r, 1u << 30);
        m->rope_pos[i] = (int32_t)rng_below(r, 1u << 30);
    }
}

static void one_copy(struct pool *p, unit_id to, unit_id from, struct rng *r)
{
    const struct kv_layout *y = pool_layout(p);
    uint32_t dst = (uint32_t)rng_below(r, 16), src = (uint32_t)rng_below(r, 16);
    uint32_t in[BYTES_MAX], out[BYTES_MAX];
    uint8_t want[BYTES_MAX], was[BYTES_MAX];
    assert_true(y->data_bytes <= BYTES_MAX);
    fill(p, from, r);
    fill(p, to, r);
    memcpy(was, pool_data(p, from), y->data_bytes);
    memcpy(want, pool_data(p, to), y->data_bytes);
    struct kv_meta meta = *pool_meta(p, to), of = *pool_meta(p, from);
    uint32_t n = bytes_of(y, src, in);
    assert_int_equal(bytes_of(y, dst, out), n);
    for (uint32_t i = 0; i < n; i++)
        want[out[i]] = was[in[i]];
    meta.log_beta[dst] = of.log_beta[src];
    meta.standing[dst] = of.standing[src];
    meta.pos[dst] = of.pos[src];
    meta.rope_pos[dst] = of.rope_pos[src];
    entry_copy(p, to, dst, from, src);
    assert_memory_equal(pool_data(p, to), want, y->data_bytes);
    assert_memory_equal(pool_meta(p, to), &meta, sizeof(meta));
}

static void an_entry_is_copied_whole_and_nothing_else(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 2);
    for (int type = KV_F16; type <= KV_F32; type++) {
        struct kv_layout l;
        struct pool *p = NULL;
        kv_layout_init(&l, (enum kv_type)type, DIM);
        assert_int_equal(pool_new(&p, &l, 2 * pool_unit_bytes(&l), NULL), OK);
        assert_int_equal(pool_reserve(p, 2), OK);
        unit_id a = pool_take(p, POOL_NO_UNIT), b = pool_take(p, a);
        for (int i = 0; i < 200; i++) {
            one_copy(p, a, b, &r);
            one_copy(p, a, a, &r);
        }
        fill(p, a, &r);
        entry_copy_unit(p, b, a);
        assert_memory_equal(pool_data(p, b), pool_data(p, a), l.data_bytes);
        assert_memory_equal(pool_meta(p, b), pool_meta(p, a),
                            sizeof(struct kv_meta));
        pool_unref(p, a);
        pool_unref(p, b);
        pool_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_entry_is_copied_whole_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
