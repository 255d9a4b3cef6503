/* Scores against plain formulas over logits that the model gave one token at a
 * time. */
#include "tests/unit/bench/eval/rig.h"

#include "bench/eval/scoring.h"

enum { IDS = 150, MAX_SCORED = 200 };

struct setup {
    struct rig r;
    struct pool *pool;
    struct scoring *s;
    uint32_t n_vocab;
    int32_t ids[IDS];
};

static void setup_init(struct setup *x)
{
    struct kv_layout l;
    struct errmsg m = {""};
    rig_open(&x->r, 2);
    const struct model_info *i = model_info(x->r.model);
    x->n_vocab = i->n_vocab;
    kv_layout_init(&l, KV_F16, i->head_dim);
    assert_int_equal(pool_new(&x->pool, &l, 64 << 20, &m), OK);
    assert_int_equal(
        scoring_new(&x->s, x->r.model, x->r.workers, MAX_SCORED, &m), OK);
    struct rng rng;
    rng_seed(&rng, 9);
    for (int k = 0; k < IDS; k++)
        x->ids[k] = (int32_t)rng_below(&rng, x->n_vocab);
}

static void setup_fini(struct setup *x)
{
    scoring_free(x->s);
    pool_free(x->pool);
    rig_close(&x->r);
}

static struct table *new_table(const struct setup *x)
{
    struct table *t = NULL;
    const struct model_info *i = model_info(x->r.model);
    assert_int_equal(
        table_new(&t, x->pool, i->n_layers, i->n_kv_heads, RIG_TOKENS), OK);
    return t;
}

static enum err feed(const struct setup *x, struct table *t, const int32_t *ids,
                     uint32_t n)
{
    struct scoring_run run = {.table = t, .ids = ids, .n = n};
    return scoring_feed(x->s, &run);
}

/* Logits of every id, one step a token: [n][n_vocab]; free() them. */
static float *plain_logits(const struct setup *x, struct table *t,
                           const int32_t *ids, uint32_t n, uint32_t pos)
{
    float *logits = malloc(sizeof(float) * n * x->n_vocab);
    assert_non_null(logits);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t need = table_units_needed(t, 1);
        uint32_t row = 0;
        assert_int_equal(pool_reserve(x->pool, (uint32_t)need), OK);
        assert_int_equal(
            table_append(t, 1, (int32_t)(pos + i), (int32_t)(pos + i)), need);
        struct model_run run = {.table = t, .n_rows = 1, .pos = pos + i};
        struct model_batch b = {.n_rows = 1,
                                .tokens = ids + i,
                                .n_runs = 1,
                                .runs = &run,
                                .n_logits = 1,
                                .logit_rows = &row,
                                .logits = logits + (size_t)i * x->n_vocab};
        model_step(x->r.model, &b);
    }
    return logits;
}

/* log of the probability of v. */
static double log_p(const float *x, uint32_t n, uint32_t v)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - x[v]);
    return -log(sum);
}

static uint32_t largest(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* Checks a row against logits q and, of the reference, p. */
static void check_row(const struct scored *s, const float *q, const float *p,
                      uint32_t n, int32_t token)
{
    double kl = 0;
    for (uint32_t v = 0; v < n; v++) {
        double lp = log_p(p, n, v);
        kl += exp(lp) * (lp - log_p(q, n, v));
    }
    assert_true(fabs(s->nll + log_p(q, n, (uint32_t)token)) < 1e-5);
    assert_true(fabs(s->kl - kl) < 1e-5);
    assert_int_equal(s->agree, largest(q, n) == largest(p, n));
    assert_int_equal(s->top1, largest(q, n) == (uint32_t)token);
}

/* More logits than a step has room for, and three runs at once. */
static void scores_are_those_of_single_steps(void **state)
{
    (void)state;
    struct setup x;
    struct scored scored[MAX_SCORED];
    static const uint32_t n[] = {IDS - 30, 12, 40}, first[] = {3, 11, 1};
    struct scoring_run run[3];
    struct table *t[3];
    setup_init(&x);
    for (int k = 0; k < 3; k++) {
        t[k] = new_table(&x);
        assert_int_equal(feed(&x, t[k], x.ids + 5 * k, 20 + (uint32_t)k), OK);
        run[k] = (struct scoring_run){.table = t[k],
                                      .ids = x.ids + 30 + 10 * k,
                                      .n = n[k],
                                      .first = first[k],
                                      .pos = 20 + (uint32_t)k};
    }
    assert_int_equal(scoring_score(x.s, run, 3, true, scored), OK);
    const struct scored *s = scored;
    for (int k = 0; k < 3; k++) {
        struct table *plain = new_table(&x);
        float *prompt =
            plain_logits(&x, plain, x.ids + 5 * k, 20 + (uint32_t)k, 0);
        float *q =
            plain_logits(&x, plain, run[k].ids, run[k].n - 1, 20 + (uint32_t)k);
        assert_int_equal(table_n_entries(t[k]), table_n_entries(plain));
        for (uint32_t i = run[k].first; i < run[k].n; i++, s++) {
            const float *row = q + (size_t)(i - 1) * x.n_vocab;
            check_row(s, row, row, x.n_vocab, run[k].ids[i]);
            assert_true(s->kl == 0 && s->agree);
        }
        free(prompt);
        free(q);
        table_free(plain);
        table_free(t[k]);
    }
    setup_fini(&x);
}

/* The reference is another cache: here one with another prompt. */
static void divergence_is_from_the_reference(void **state)
{
    (void)state;
    struct setup x;
    struct scored scored[MAX_SCORED];
    struct table *t[2], *plain[2];
    float *logits[2];
    bool any_differs = false;
    setup_init(&x);
    for (int k = 0; k < 2; k++) {
        struct scoring_run run = {
            .ids = x.ids + 60, .n = 80, .first = 2, .pos = 25};
        run.table = t[k] = new_table(&x);
        plain[k] = new_table(&x);
        assert_int_equal(feed(&x, t[k], x.ids + 30 * k, 25), OK);
        assert_int_equal(scoring_score(x.s, &run, 1, k == 0, scored), OK);
        free(plain_logits(&x, plain[k], x.ids + 30 * k, 25, 0));
        logits[k] = plain_logits(&x, plain[k], run.ids, 79, 25);
    }
    for (uint32_t i = 0; i < 78; i++) {
        const float *p = logits[0] + (size_t)(i + 1) * x.n_vocab;
        const float *q = logits[1] + (size_t)(i + 1) * x.n_vocab;
        check_row(&scored[i], q, p, x.n_vocab, x.ids[60 + 2 + i]);
        any_differs = any_differs || scored[i].kl > 1e-3;
    }
    assert_true(any_differs);
    for (int k = 0; k < 2; k++) {
        free(logits[k]);
        table_free(t[k]);
        table_free(plain[k]);
    }
    setup_fini(&x);
}

static void a_full_pool_is_told(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x);
    uint32_t all = pool_stats(x.pool).n_units;
    struct table *t = new_table(&x);
    assert_int_equal(pool_reserve(x.pool, all), OK);
    assert_int_equal(feed(&x, t, x.ids, 10), ERR_BUDGET);
    pool_unreserve(x.pool, all);
    assert_int_equal(feed(&x, t, x.ids, 10), OK);
    assert_int_equal(pool_stats(x.pool).reserved, 0);
    table_free(t);
    setup_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_those_of_single_steps),
        cmocka_unit_test(divergence_is_from_the_reference),
        cmocka_unit_test(a_full_pool_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
