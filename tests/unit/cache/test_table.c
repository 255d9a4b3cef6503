#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/table.h"

enum { LAYERS = 2, HEADS = 3, LISTS = LAYERS * HEADS, MAX_TOKENS = 200 };

static uint32_t rand_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

static struct pool *pool_of(uint32_t n_units)
{
    struct kv_layout l;
    struct pool *p = NULL;
    kv_layout_init(&l, KV_F32, 64);
    assert_int_equal(pool_new(&p, &l, pool_unit_bytes(&l) * n_units, NULL), OK);
    return p;
}

static struct table *table_of(struct pool *p)
{
    struct table *t = NULL;
    assert_int_equal(table_new(&t, p, LAYERS, HEADS, MAX_TOKENS), OK);
    return t;
}

/* The V row of an entry is what the tests write their pattern into. */
static float *entry(const struct table *t, uint32_t list, uint32_t i)
{
    const struct kv_list *l = &t->list[list];
    const struct kv_layout *y = pool_layout(t->pool);
    assert_true(i < l->len);
    uint8_t *d = pool_data(t->pool, l->unit[i / KV_UNIT]);
    return (float *)(void *)(d + y->v) + (size_t)(i % KV_UNIT) * y->head_dim;
}

static int32_t pos_of(const struct table *t, uint32_t list, uint32_t i)
{
    unit_id u = t->list[list].unit[i / KV_UNIT];
    return pool_meta(t->pool, u)->pos[i % KV_UNIT];
}

static int32_t rope_pos_of(const struct table *t, uint32_t list, uint32_t i)
{
    unit_id u = t->list[list].unit[i / KV_UNIT];
    return pool_meta(t->pool, u)->rope_pos[i % KV_UNIT];
}

static void append(struct table *t, uint32_t n)
{
    uint64_t need = table_units_needed(t, n);
    assert_int_equal(pool_reserve(t->pool, (uint32_t)need), OK);
    int32_t pos = (int32_t)t->list[0].len;
    assert_int_equal(table_append(t, n, pos, pos), need);
    assert_int_equal(pool_stats(t->pool).reserved, 0);
}

static void an_append_takes_the_units_it_said(void **state)
{
    (void)state;
    struct pool *p = pool_of(1000);
    struct table *t = table_of(p);
    assert_int_equal(table_units_needed(t, 0), 0);
    assert_int_equal(table_units_needed(t, 1), LISTS);
    assert_int_equal(table_units_needed(t, 17), 2 * LISTS);
    assert_int_equal(table_units_for(LISTS, 17), 2 * LISTS);
    append(t, 16);
    assert_int_equal(pool_stats(p).used, LISTS);
    append(t, 1);
    assert_int_equal(pool_stats(p).used, 2 * LISTS);
    append(t, 15);
    assert_int_equal(pool_stats(p).used, 2 * LISTS);
    append(t, MAX_TOKENS - 32);
    assert_int_equal(table_n_entries(t), LISTS * MAX_TOKENS);
    for (uint32_t l = 0; l < LISTS; l++)
        for (uint32_t i = 0; i < MAX_TOKENS; i++)
            assert_int_equal(pos_of(t, l, i), i);
    assert_ptr_equal(table_list(t, 1, 2), &t->list[5]);
    table_free(t);
    table_free(NULL);
    assert_int_equal(pool_stats(p).used, 0);
    pool_free(p);
}

static void a_shared_tail_is_copied_by_whoever_writes_first(void **state)
{
    (void)state;
    struct pool *p = pool_of(1000);
    struct table *a = table_of(p), *b = NULL;
    append(a, 20);
    *entry(a, 0, 19) = 19.0f;
    assert_int_equal(table_fork(&b, a, 20, MAX_TOKENS), OK);
    assert_int_equal(pool_stats(p).used, 2 * LISTS);
    assert_int_equal(table_n_private_units(a), 0);
    assert_int_equal(table_units_needed(b, 1), LISTS);
    append(b, 1);
    *entry(b, 0, 20) = -1.0f;
    assert_float_equal(*entry(b, 0, 19), 19.0f, 0);
    assert_int_equal(pos_of(b, 0, 19), 19);
    /* The other's tail is private again: it writes in place. */
    assert_int_equal(table_units_needed(a, 1), 0);
    append(a, 1);
    *entry(a, 0, 20) = 1.0f;
    assert_float_equal(*entry(b, 0, 20), -1.0f, 0);
    assert_int_equal(pool_stats(p).used, 3 * LISTS);
    assert_int_equal(table_n_private_units(a), LISTS);
    table_free(a);
    assert_int_equal(table_n_private_units(b), 2 * LISTS);
    table_free(b);
    pool_free(p);
}

static void a_reservation_left_over_is_the_callers(void **state)
{
    (void)state;
    struct pool *p = pool_of(1000);
    struct table *a = table_of(p), *b = NULL;
    append(a, 8);
    assert_int_equal(table_fork(&b, a, 8, MAX_TOKENS), OK);
    uint64_t need = table_units_needed(a, 1) + table_units_needed(b, 1);
    assert_int_equal(need, 2 * LISTS);
    assert_int_equal(pool_reserve(p, (uint32_t)need), OK);
    uint64_t took = table_append(a, 1, 8, 8) + table_append(b, 1, 8, 8);
    assert_int_equal(took, LISTS);
    pool_unreserve(p, (uint32_t)(need - took));
    table_free(a);
    table_free(b);
    pool_free(p);
}

/* Random tables against plain arrays: every entry of every list of every
 * table holds what was written through that table, whatever others do. */
enum { TABLES = 6, UNITS = 220, STEPS = 20000 };

struct plain {
    struct table *t;
    uint32_t len;
    float value[LISTS][MAX_TOKENS];
};

static void check(const struct plain *x)
{
    for (uint32_t l = 0; l < LISTS; l++) {
        assert_int_equal(x->t->list[l].len, x->len);
        assert_int_equal(x->t->list[l].n_units, (x->len + 15) / 16);
        for (uint32_t i = 0; i < x->len; i++) {
            assert_true(*entry(x->t, l, i) == x->value[l][i]);
            assert_int_equal(pos_of(x->t, l, i), i);
            assert_int_equal(rope_pos_of(x->t, l, i), i + 7);
        }
    }
}

/* Distinct units over all tables, counted from the tables themselves. */
static uint32_t distinct_units(const struct plain *x)
{
    uint8_t seen[UNITS] = {0};
    uint32_t n = 0;
    for (int i = 0; i < TABLES; i++)
        for (uint32_t l = 0; x[i].t && l < LISTS; l++)
            for (uint32_t u = 0; u < x[i].t->list[l].n_units; u++) {
                unit_id id = x[i].t->list[l].unit[u];
                n += !seen[id];
                seen[id] = 1;
            }
    return n;
}

static void grow(struct plain *x, struct pool *p, uint64_t *seed)
{
    uint32_t n = rand_below(seed, 24);
    if (n > MAX_TOKENS - x->len)
        n = MAX_TOKENS - x->len;
    uint64_t need = table_units_needed(x->t, n);
    struct pool_stats s = pool_stats(p);
    if (pool_reserve(p, (uint32_t)need) != OK) {
        assert_true(need > s.n_units - s.used);
        return;
    }
    assert_int_equal(
        table_append(x->t, n, (int32_t)x->len, (int32_t)x->len + 7), need);
    for (uint32_t l = 0; l < LISTS; l++)
        for (uint32_t i = x->len; i < x->len + n; i++) {
            x->value[l][i] = (float)rand_below(seed, 1u << 24);
            *entry(x->t, l, i) = x->value[l][i];
        }
    x->len += n;
}

static void random_step(struct plain *x, struct pool *p, uint64_t *seed)
{
    struct plain *a = &x[rand_below(seed, TABLES)];
    struct plain *b = &x[rand_below(seed, TABLES)];
    uint32_t n = a->len ? rand_below(seed, a->len + 1) : 0;
    if (!a->t) {
        a->t = table_of(p);
        a->len = 0;
        return;
    }
    switch (rand_below(seed, 8)) {
    case 0:
        if (a == b)
            break;
        table_free(b->t);
        *b = *a;
        b->len = n;
        assert_int_equal(table_fork(&b->t, a->t, n, MAX_TOKENS), OK);
        break;
    case 1:
        table_truncate(a->t, n);
        a->len = n;
        break;
    case 2:
        table_free(a->t);
        a->t = NULL;
        break;
    default:
        grow(a, p, seed);
    }
}

static void random_calls_agree_with_plain_arrays(void **state)
{
    (void)state;
    static const struct plain none;
    struct pool *p = pool_of(UNITS);
    struct plain *x = calloc(TABLES, sizeof(*x));
    uint64_t seed = 3;
    assert_non_null(x);
    for (int i = 0; i < TABLES; i++)
        x[i] = none;
    for (int step = 0; step < STEPS; step++) {
        random_step(x, p, &seed);
        struct pool_stats s = pool_stats(p);
        assert_int_equal(s.reserved, 0);
        assert_int_equal(s.used, distinct_units(x));
        if (step % 16 == 0)
            for (int i = 0; i < TABLES; i++)
                if (x[i].t)
                    check(&x[i]);
    }
    for (int i = 0; i < TABLES; i++) {
        uint32_t before = pool_stats(p).used;
        uint64_t gives = x[i].t ? table_n_private_units(x[i].t) : 0;
        table_free(x[i].t);
        x[i].t = NULL;
        assert_int_equal(pool_stats(p).used, before - gives);
    }
    assert_int_equal(pool_stats(p).used, 0);
    pool_free(p);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_append_takes_the_units_it_said),
        cmocka_unit_test(a_shared_tail_is_copied_by_whoever_writes_first),
        cmocka_unit_test(a_reservation_left_over_is_the_callers),
        cmocka_unit_test(random_calls_agree_with_plain_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
