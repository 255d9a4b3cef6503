#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/pool.h"

static uint32_t rand_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

static struct pool *pool_of(uint32_t n_units, enum kv_type type)
{
    struct kv_layout l;
    struct pool *p = NULL;
    struct errmsg m;
    kv_layout_init(&l, type, 64);
    assert_int_equal(pool_new(&p, &l, pool_unit_bytes(&l) * n_units, &m), OK);
    assert_int_equal(pool_stats(p).n_units, n_units);
    return p;
}

static void a_budget_counts_all_a_unit_costs(void **state)
{
    (void)state;
    struct kv_layout l;
    struct errmsg m;
    struct pool *p = NULL;
    kv_layout_init(&l, KV_F16, 64);
    /* K and V of 16 entries, 20 bytes an entry, and some bookkeeping. */
    assert_true(pool_unit_bytes(&l) >= 16 * (2 * 64 * 2 + 20) + 4);
    assert_true(pool_unit_bytes(&l) <= 16 * (2 * 64 * 2 + 20) + 16);
    assert_int_equal(pool_new(&p, &l, pool_unit_bytes(&l) - 1, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "does not hold one unit"));
    assert_int_equal(pool_new(&p, &l, UINT64_MAX, &m), ERR_INVAL);
    assert_int_equal(pool_new(&p, &l, 3 * pool_unit_bytes(&l) - 1, &m), OK);
    assert_int_equal(pool_stats(p).n_units, 2);
    assert_int_equal(pool_stats(p).unit_bytes, pool_unit_bytes(&l));
    pool_free(p);
    pool_free(NULL);
}

static void a_list_alone_grows_in_one_run(void **state)
{
    (void)state;
    struct pool *p = pool_of(64, KV_F16);
    unit_id last = POOL_NO_UNIT, first = 0;
    assert_int_equal(pool_reserve(p, 64), OK);
    for (uint32_t i = 0; i < 64; i++) {
        unit_id u = pool_take(p, last);
        if (i == 0)
            first = u;
        assert_int_equal(u, first + i);
        last = u;
    }
    assert_int_equal(pool_reserve(p, 1), ERR_BUDGET);
    for (uint32_t i = 0; i < 64; i++)
        pool_unref(p, first + i);
    pool_free(p);
}

static void lists_that_grow_together_get_groups_of_four(void **state)
{
    (void)state;
    enum { LISTS = 5, LEN = 8 };
    struct pool *p = pool_of(LISTS * LEN, KV_Q8_0);
    unit_id u[LISTS][LEN];
    assert_int_equal(pool_reserve(p, LISTS * LEN), OK);
    for (int i = 0; i < LEN; i++)
        for (int l = 0; l < LISTS; l++)
            u[l][i] = pool_take(p, i > 0 ? u[l][i - 1] : POOL_NO_UNIT);
    for (int l = 0; l < LISTS; l++)
        for (int i = 0; i < LEN; i++) {
            if (i % 4 == 0)
                assert_int_equal(u[l][i] % 4, 0);
            else
                assert_int_equal(u[l][i], u[l][i - 1] + 1);
        }
    for (int l = 0; l < LISTS; l++)
        for (int i = 0; i < LEN; i++)
            pool_unref(p, u[l][i]);
    pool_free(p);
}

static void data_blocks_are_aligned_zero_and_apart(void **state)
{
    (void)state;
    enum { N = 40 };
    struct pool *p = pool_of(N, KV_F32);
    size_t bytes = pool_layout(p)->data_bytes;
    assert_int_equal(pool_reserve(p, N), OK);
    for (uint32_t i = 0; i < N; i++) {
        unit_id u = pool_take(p, POOL_NO_UNIT);
        uint8_t *d = pool_data(p, u);
        assert_int_equal((uintptr_t)d % KV_ALIGN, 0);
        for (size_t b = 0; b < bytes; b++)
            assert_int_equal(d[b], 0);
        memset(d, (int)u + 1, bytes);
        memset(pool_meta(p, u), (int)u + 101, sizeof(struct kv_meta));
    }
    for (uint32_t u = 0; u < N; u++) {
        const uint8_t *d = pool_data(p, u);
        const uint8_t *meta = (const uint8_t *)pool_meta(p, u);
        for (size_t b = 0; b < bytes; b++)
            assert_int_equal(d[b], u + 1);
        for (size_t b = 0; b < sizeof(struct kv_meta); b++)
            assert_int_equal(meta[b], u + 101);
        pool_unref(p, u);
    }
    pool_free(p);
}

enum { UNITS = 203, STEPS = 200000 };

/* What the pool must agree with: counts of references and one number. */
struct plain {
    uint32_t refs[UNITS];
    uint32_t used, reserved, used_max;
};

static void take_one(struct pool *p, struct plain *x, uint64_t *seed)
{
    unit_id after = POOL_NO_UNIT;
    uint32_t any = rand_below(seed, UNITS);
    if (x->refs[any] > 0)
        after = any;
    unit_id u = pool_take(p, after);
    assert_true(u < UNITS);
    assert_int_equal(x->refs[u], 0);
    /* The neighbour inside a group comes first whenever it is free. */
    if (after != POOL_NO_UNIT && after % 4 != 3 && after + 1 < UNITS &&
        x->refs[after + 1] == 0)
        assert_int_equal(u, after + 1);
    x->refs[u] = 1;
    x->reserved--;
    x->used++;
    if (x->used > x->used_max)
        x->used_max = x->used;
}

static void random_call(struct pool *p, struct plain *x, uint64_t *seed)
{
    uint32_t n = rand_below(seed, 12), u = rand_below(seed, UNITS);
    switch (rand_below(seed, 6)) {
    case 0:
        if (x->used + x->reserved + n <= UNITS) {
            assert_int_equal(pool_reserve(p, n), OK);
            x->reserved += n;
        } else {
            assert_int_equal(pool_reserve(p, n), ERR_BUDGET);
        }
        break;
    case 1:
        n = n < x->reserved ? n : x->reserved;
        pool_unreserve(p, n);
        x->reserved -= n;
        break;
    case 2:
    case 3:
        for (; n > 0 && x->reserved > 0; n--)
            take_one(p, x, seed);
        break;
    case 4:
        if (x->refs[u] > 0) {
            pool_ref(p, u);
            x->refs[u]++;
        }
        break;
    default:
        for (; n > 0; n--, u = rand_below(seed, UNITS)) {
            if (x->refs[u] == 0)
                continue;
            pool_unref(p, u);
            x->used -= --x->refs[u] == 0;
        }
    }
}

static void check_private(const struct pool *p, const struct plain *x)
{
    uint64_t bits[UNITS / 64 + 1];
    memset(bits, 0xff, sizeof(bits));
    pool_private_units(p, bits);
    for (uint32_t u = 0; u < sizeof(bits) * 8; u++)
        assert_int_equal(bits[u / 64] >> (u % 64) & 1,
                         u < UNITS && x->refs[u] == 1);
}

static void random_calls_agree_with_a_plain_model(void **state)
{
    (void)state;
    struct pool *p = pool_of(UNITS, KV_F16);
    struct plain x = {0};
    uint64_t seed = 7;
    for (int step = 0; step < STEPS; step++) {
        random_call(p, &x, &seed);
        struct pool_stats s = pool_stats(p);
        assert_int_equal(s.used, x.used);
        assert_int_equal(s.reserved, x.reserved);
        assert_int_equal(s.used_max, x.used_max);
        assert_true(s.used + s.reserved <= s.n_units);
        uint32_t u = rand_below(&seed, UNITS);
        assert_int_equal(pool_refs(p, u), x.refs[u]);
        if (step % 50 == 0)
            check_private(p, &x);
    }
    pool_unreserve(p, x.reserved);
    for (uint32_t u = 0; u < UNITS; u++)
        for (; x.refs[u] > 0; x.refs[u]--)
            pool_unref(p, u);
    /* Everything is free again, whatever the history. */
    assert_int_equal(pool_reserve(p, UNITS), OK);
    for (uint32_t i = 0; i < UNITS; i++)
        pool_take(p, POOL_NO_UNIT);
    for (uint32_t u = 0; u < UNITS; u++) {
        assert_int_equal(pool_refs(p, u), 1);
        pool_unref(p, u);
    }
    pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_counts_all_a_unit_costs),
        cmocka_unit_test(a_list_alone_grows_in_one_run),
        cmocka_unit_test(lists_that_grow_together_get_groups_of_four),
        cmocka_unit_test(data_blocks_are_aligned_zero_and_apart),
        cmocka_unit_test(random_calls_agree_with_a_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
