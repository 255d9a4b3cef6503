/* Memory is held in units of 16 entries, and what counts is how full they are
 * after eviction: at least 85% at 512 entries a list, 70% at 100. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cache/compact.h"
#include "cache/table.h"

enum { SESSIONS = 6, LAYERS = 6, HEADS = 3, LISTS = LAYERS * HEADS, STEP = 40 };

struct world {
    struct pool *pool;
    struct table *t[SESSIONS];
    uint32_t keep[SESSIONS][LISTS]; /* of each list, around the mean */
    uint16_t *gone;
    struct rng rng;
};

/* By chance, until a list has no more than it may keep. */
static void let_go(struct world *w, int s)
{
    memset(w->gone, 0, pool_stats(w->pool).n_units * sizeof(*w->gone));
    for (int i = 0; i < LISTS; i++) {
        const struct kv_list *l = &w->t[s]->list[i];
        uint32_t left = l->len;
        while (left > w->keep[s][i]) {
            uint32_t e = (uint32_t)rng_below(&w->rng, l->len);
            uint16_t bit = (uint16_t)(1U << e % KV_UNIT);
            left -= (w->gone[l->unit[e / KV_UNIT]] & bit) == 0;
            w->gone[l->unit[e / KV_UNIT]] |= bit;
        }
    }
    (void)compact_table(w->t[s], w->gone);
}

static void grow(struct world *w, int s, int32_t pos)
{
    uint64_t need = table_units_needed(w->t[s], STEP);
    assert_int_equal(pool_reserve(w->pool, (uint32_t)need), OK);
    (void)table_append(w->t[s], STEP, pos, pos);
}

/* The share of the held slots that have entries, after eight times as many
 * have come as stay. */
static double fill_at(uint32_t mean)
{
    struct world w;
    struct kv_layout y;
    uint64_t entries = 0, slots = 0;
    rng_seed(&w.rng, mean);
    kv_layout_init(&y, KV_F16, 8);
    uint64_t units =
        (uint64_t)SESSIONS * LISTS * (2 * mean + STEP + 2 * KV_UNIT) / KV_UNIT;
    assert_int_equal(pool_new(&w.pool, &y, units * pool_unit_bytes(&y), NULL),
                     OK);
    w.gone = malloc(pool_stats(w.pool).n_units * sizeof(*w.gone));
    assert_non_null(w.gone);
    for (int s = 0; s < SESSIONS; s++) {
        assert_int_equal(
            table_new(&w.t[s], w.pool, LAYERS, HEADS, 2 * mean + STEP), OK);
        for (int i = 0; i < LISTS; i++)
            w.keep[s][i] = (uint32_t)(mean * (0.1 + 1.8 * rng_double(&w.rng)));
    }
    for (uint32_t pos = 0; pos < 8 * mean; pos += STEP)
        for (int s = 0; s < SESSIONS; s++) {
            grow(&w, s, (int32_t)pos);
            let_go(&w, s);
        }
    for (int s = 0; s < SESSIONS; s++) {
        entries += table_n_entries(w.t[s]);
        slots += table_n_units(w.t[s]) * KV_UNIT;
        table_free(w.t[s]);
    }
    assert_true(entries > SESSIONS * LISTS * mean * 9 / 10);
    free(w.gone);
    pool_free(w.pool);
    return (double)entries / (double)slots;
}

static void units_stay_full_as_entries_leave(void **state)
{
    (void)state;
    assert_true(fill_at(512) >= 0.85);
    assert_true(fill_at(100) >= 0.70);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_stay_full_as_entries_leave)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
