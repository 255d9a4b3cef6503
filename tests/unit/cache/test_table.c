#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/compact.h"
#include "cache/table.h"

enum { LAYERS = 2, HEADS = 3, LISTS = LAYERS * HEADS, MAX_TOKENS = 200 };

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

/* Takes the entries at positions from, from + step, ... below `to` out of all
 * lists. */
static void evict(struct table *t, int32_t from, int32_t to, int32_t step)
{
    uint16_t gone[1000] = {0};
    for (uint32_t l = 0; l < LISTS; l++)
        for (uint32_t i = 0; i < t->list[l].len; i++) {
            int32_t p = pos_of(t, l, i);
            if (p >= from && p < to && (p - from) % step == 0)
                gone[t->list[l].unit[i / KV_UNIT]] |=
                    (uint16_t)(1u << i % KV_UNIT);
        }
    (void)compact_table(t, gone);
}

/* Positions may have holes: 0 to 39 and 60 to 99 here. */
static void a_cut_of_a_list_in_order_takes_no_units(void **state)
{
    (void)state;
    struct pool *p = pool_of(1000);
    struct table *a = table_of(p), *b = NULL;
    append(a, 60);
    evict(a, 40, 60, 1); /* moves nothing */
    assert_true(a->list[0].in_order);
    uint32_t need = (uint32_t)table_units_needed(a, 40);
    assert_int_equal(pool_reserve(p, need), OK);
    assert_int_equal(table_append(a, 40, 60, 60), need);
    assert_true(a->list[0].in_order);
    assert_int_equal(table_n_entries_below(a, 40), LISTS * 40);
    assert_int_equal(table_n_entries_below(a, 50), LISTS * 40);
    assert_int_equal(table_n_entries_below(a, 61), LISTS * 41);
    assert_int_equal(table_fork_units(a, 63), 0);
    assert_int_equal(table_fork(&b, a, 63, MAX_TOKENS), OK);
    assert_int_equal(b->list[0].len, 43);
    assert_int_equal(pos_of(b, 5, 42), 62);
    assert_int_equal(table_truncate_units(a, 55), 0);
    assert_int_equal(table_truncate(a, 55), 0);
    assert_int_equal(a->list[0].len, 40);
    assert_int_equal(pool_stats(p).used, 3 * LISTS);
    table_free(a);
    table_free(b);
    assert_int_equal(pool_stats(p).used, 0);
    pool_free(p);
}

/* Of 64 entries every fourth of the first 32 goes; 56 to 63 fill the holes.
 * Below 50 units 2 is whole, and 24 entries are left in units 0 and 1, and 2
 * in unit 3. */
static void a_fork_of_a_ragged_table_shares_whole_units(void **state)
{
    (void)state;
    struct pool *p = pool_of(1000);
    struct table *a = table_of(p), *b = NULL;
    append(a, 64);
    for (uint32_t l = 0; l < LISTS; l++)
        for (uint32_t i = 0; i < 64; i++)
            *entry(a, l, i) = (float)i;
    evict(a, 0, 32, 4);
    assert_false(a->list[0].in_order);
    assert_int_equal(a->list[0].len, 56);
    assert_int_equal(pos_of(a, 0, 4), 57);
    /* All of it is wanted: nothing is copied, a part of a tail neither. */
    assert_int_equal(table_fork_units(a, 64), 0);
    assert_int_equal(table_fork_units(a, 50), 2 * LISTS);
    assert_int_equal(pool_reserve(p, 2 * LISTS), OK);
    assert_int_equal(table_fork(&b, a, 50, MAX_TOKENS), OK);
    assert_int_equal(pool_stats(p).reserved, 0);
    for (uint32_t l = 0; l < LISTS; l++) {
        assert_int_equal(b->list[l].len, 42);
        assert_int_equal(b->list[l].unit[0], a->list[l].unit[2]);
        uint32_t seen = 0;
        for (uint32_t i = 0; i < 42; i++) {
            int32_t pos = pos_of(b, l, i);
            assert_true(pos < 50 && (pos >= 32 || pos % 4 != 0));
            assert_true(*entry(b, l, i) == (float)pos);
            seen += (uint32_t)pos;
        }
        assert_int_equal(seen, 49 * 50 / 2 - 4 * 7 * 8 / 2);
    }
    table_free(a);
    table_free(b);
    assert_int_equal(pool_stats(p).used, 0);
    pool_free(p);
}

/* The same table, shared whole. Below 44 there are 36: gaps close in units 0
 * and 1, which are copied; unit 2 keeps its first 4 and stays shared, though
 * some of what goes is in it. */
static void a_rollback_never_writes_what_others_use(void **state)
{
    (void)state;
    struct pool *p = pool_of(1000);
    struct table *a = table_of(p), *b = NULL;
    append(a, 64);
    evict(a, 0, 32, 4);
    assert_int_equal(table_truncate_units(a, 44), 0);
    assert_int_equal(table_fork(&b, a, 64, MAX_TOKENS), OK);
    assert_int_equal(table_truncate_units(a, 44), 2 * LISTS);
    assert_int_equal(pool_reserve(p, 2 * LISTS), OK);
    assert_int_equal(table_truncate(a, 44), 2 * LISTS);
    for (uint32_t l = 0; l < LISTS; l++) {
        assert_int_equal(a->list[l].len, 36);
        assert_int_equal(b->list[l].len, 56);
        assert_int_equal(a->list[l].unit[2], b->list[l].unit[2]);
        for (uint32_t i = 0; i < 36; i++)
            assert_true(pos_of(a, l, i) < 44);
        for (uint32_t i = 0; i < 56; i++)
            assert_int_equal(pos_of(b, l, i),
                             i < 32 && i % 4 == 0 ? 56 + i / 4 : i);
    }
    table_free(a);
    table_free(b);
    assert_int_equal(pool_stats(p).used, 0);
    pool_free(p);
}

static void order_ends_and_begins_again(void **state)
{
    (void)state;
    struct pool *p = pool_of(1000);
    struct table *t = table_of(p), *b = NULL;
    assert_int_equal(pool_reserve(p, LISTS), OK);
    (void)table_append(t, 4, 50, 50);
    assert_true(t->list[0].in_order);
    (void)table_append(t, 4, 10, 10);
    assert_false(t->list[0].in_order);
    assert_int_equal(table_n_entries_below(t, 12), 2 * LISTS);
    assert_int_equal(table_fork(&b, t, 0, MAX_TOKENS), OK);
    assert_true(b->list[0].in_order);
    evict(t, 0, 100, 1);
    assert_int_equal(table_n_entries(t), 0);
    assert_true(t->list[0].in_order);
    table_free(t);
    table_free(b);
    pool_free(p);
}

static void units_and_lengths_are_those_of_the_lists(void **state)
{
    (void)state;
    struct pool *p = pool_of(1000);
    struct table *t = table_of(p);
    assert_int_equal(table_max_len(t), 0);
    append(t, 24);
    assert_int_equal(table_n_units(t), 2 * LISTS);
    uint16_t gone[1000] = {0};
    gone[t->list[3].unit[0]] = 0x00ff;
    assert_int_equal(compact_table(t, gone), 8);
    assert_int_equal(table_max_len(t), 24);
    assert_int_equal(t->list[3].n_units, 1);
    assert_int_equal(table_n_entries(t), 24 * LISTS - 8);
    assert_int_equal(table_n_entries_below(t, 8), 8 * LISTS - 8);
    assert_int_equal(table_n_units(t), 2 * LISTS - 1);
    table_free(t);
    pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_append_takes_the_units_it_said),
        cmocka_unit_test(a_shared_tail_is_copied_by_whoever_writes_first),
        cmocka_unit_test(a_reservation_left_over_is_the_callers),
        cmocka_unit_test(a_cut_of_a_list_in_order_takes_no_units),
        cmocka_unit_test(a_fork_of_a_ragged_table_shares_whole_units),
        cmocka_unit_test(a_rollback_never_writes_what_others_use),
        cmocka_unit_test(order_ends_and_begins_again),
        cmocka_unit_test(units_and_lengths_are_those_of_the_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
