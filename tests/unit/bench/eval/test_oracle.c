/* What the oracle foresees, against the attention that a probe of all queries
 * (PROBE_COLUMNS) sums up while the same tokens pass. */
#include <math.h>

#include "tests/unit/bench/eval/rig.h"

#include "bench/eval/fork.h"
#include "bench/eval/oracle.h"

enum { SEEN = 100, ASKED = 41, QUESTIONS = 2, STATES = 2 };

struct setup {
    struct rig r;
    struct pool *pool;
    struct scoring *s;
    struct oracle *o;
    struct probe *probe;
    struct table *table;
    uint32_t n_lists, n_vocab;
    int32_t prompt[SEEN], question[QUESTIONS][ASKED];
};

static void draw(const struct setup *x, int32_t *out, int n, uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, seed);
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)rng_below(&rng, x->n_vocab);
}

static void setup_init(struct setup *x)
{
    struct kv_layout l;
    struct errmsg m = {""};
    rig_open(&x->r, 2);
    const struct model_info *i = model_info(x->r.model);
    x->n_lists = i->n_layers * i->n_kv_heads;
    x->n_vocab = i->n_vocab;
    kv_layout_init(&l, KV_F16, i->head_dim);
    assert_int_equal(pool_new(&x->pool, &l, 64 << 20, &m), OK);
    assert_int_equal(scoring_new(&x->s, x->r.model, x->r.workers, ASKED, &m),
                     OK);
    const struct oracle_size size = {.model = x->r.model,
                                     .workers = x->r.workers,
                                     .max_tokens = SEEN,
                                     .n_states = STATES};
    assert_int_equal(oracle_new(&x->o, &size, &m), OK);
    const struct probe_options columns = {
        .n_window = 1, .parts = PROBE_COLUMNS, .max_tokens = SEEN + ASKED};
    assert_int_equal(probe_new(&x->probe, x->r.model, &columns, &m), OK);
    assert_int_equal(
        table_new(&x->table, x->pool, i->n_layers, i->n_kv_heads, SEEN + ASKED),
        OK);
    draw(x, x->prompt, SEEN, 1);
    for (int q = 0; q < QUESTIONS; q++)
        draw(x, x->question[q], ASKED, 2 + (uint64_t)q);
    const struct scoring_run run = {
        .table = x->table, .probe = x->probe, .ids = x->prompt, .n = SEEN};
    assert_int_equal(scoring_feed(x->s, &run), OK);
}

static void setup_fini(struct setup *x)
{
    table_free(x->table);
    probe_free(x->probe);
    oracle_free(x->o);
    scoring_free(x->s);
    pool_free(x->pool);
    rig_close(&x->r);
}

/* A question on a fork of the cache, whose last id is not fed. */
static struct scoring_run question(const struct setup *x, int q,
                                   struct table **fork)
{
    assert_int_equal(fork_shared(fork, x->table, SEEN + ASKED), OK);
    return (struct scoring_run){.table = *fork,
                                .ids = x->question[q],
                                .n = ASKED,
                                .first = 30,
                                .pos = SEEN};
}

static void watch(struct setup *x, uint32_t i_state, int q)
{
    struct table *fork = NULL;
    const struct scoring_run run = question(x, q, &fork);
    assert_int_equal(oracle_watch(x->o, i_state, x->s, &run), OK);
    table_free(fork);
}

/* Adds what the question looked at to sum[n_lists][SEEN]. */
static void add_columns(struct setup *x, int q, double *sum)
{
    struct table *fork = NULL;
    struct scoring_run run = question(x, q, &fork);
    run.n--;
    run.probe = x->probe;
    for (uint32_t i = 0; i < x->n_lists; i++)
        for (int p = 0; p < SEEN; p++)
            sum[i * SEEN + (uint32_t)p] -=
                (double)probe_columns(x->probe, i)[p];
    assert_int_equal(scoring_feed(x->s, &run), OK);
    for (uint32_t i = 0; i < x->n_lists; i++)
        for (int p = 0; p < SEEN; p++)
            sum[i * SEEN + (uint32_t)p] +=
                (double)probe_columns(x->probe, i)[p];
    table_free(fork);
}

static void it_sums_what_will_be_looked_at(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x);
    double *sum = calloc((size_t)x.n_lists * SEEN, sizeof(*sum));
    assert_non_null(sum);
    for (int q = 0; q < QUESTIONS; q++) {
        add_columns(&x, q, sum);
        watch(&x, 1, q);
    }
    const float *mass = oracle_masses(x.o, 1), *none = oracle_masses(x.o, 0);
    double least = INFINITY;
    for (uint32_t i = 0; i < x.n_lists * SEEN; i++) {
        assert_true(fabs((double)mass[i] - sum[i]) < 1e-4 * (1 + sum[i]));
        assert_true(none[i] == 0);
        least = fmin(least, (double)mass[i]);
    }
    assert_true(least > 0);
    oracle_reset(x.o);
    for (uint32_t i = 0; i < x.n_lists * SEEN; i++)
        assert_true(mass[i] == 0);
    free(sum);
    setup_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_sums_what_will_be_looked_at)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
