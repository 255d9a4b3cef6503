/* Views against what is in the cache, and policies over them against kept
 * sets that kvpress and numpy computed from the same tokens
 * (tests/tools/make_policy_golden.py). */
#include <math.h>

#include "tests/unit/runtime/model/model_check.h"

#include "base/rng.h"
#include "cache/compact.h"
#include "runtime/kernels/quant.h"
#include "runtime/model/view.h"

enum { N = 200, W = 32, EVERYTHING = 0xff };

/* Parameters where they are not the policy's defaults: in the order of the
 * masks in the golden file. */
static const struct golden_case {
    const char *policy;
    uint32_t n_entries;
    bool bare; /* as kvpress: nothing protected but the method's own */
    uint32_t n_pool;
    enum policy_pooling pooling;
    bool per_head; /* selkv-window */
    uint32_t n_whole;
} CASES[] = {
    {"snapkv", 70, true, 5, POLICY_POOL_MEAN, false, 0},
    {"tova", 50, true, 0, 0, false, 0},
    {"keydiff", 50, true, 0, 0, false, 0},
    {"knorm", 50, true, 0, 0, false, 0},
    {"streamingllm", 50, false, 0, 0, false, 0},
    {"expected-attention", 50, true, 0, 0, false, 0},
    {"snapkv", 70, false, 0, 0, false, 0},
    {"adakv", 70, false, 0, 0, false, 0},
    {"pyramidkv", 120, false, 0, 0, false, 0},
    {"h2o", 50, false, 0, 0, false, 0},
    {"r-kv", 50, false, 0, 0, false, 0},
    {"selkv-window", 50, false, 0, 0, true, 0},
    {"selkv-window", 50, false, 0, 0, false, 0},
    {"fastv", 120, false, 0, 0, false, 1},
};

enum { N_CASES = sizeof(CASES) / sizeof(CASES[0]) };

struct bench {
    struct golden golden;
    struct rig rig;
    struct table *table;
    struct probe *probe;
    struct view *view;
};

static void bench_open(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    golden_open(&b->golden, "tests/golden/policy/qwen3-gqa2-128.golden");
    rig_open_reference(&b->rig, "tests/golden/model/tiny/qwen3-gqa2-128.gguf",
                       N);
    struct probe_options p = {.n_window = W,
                              .parts =
                                  PROBE_BAND | PROBE_COLUMNS | PROBE_FUTURE,
                              .max_tokens = N,
                              .n_skip = 4};
    b->table = rig_table(&b->rig);
    assert_int_equal(probe_new(&b->probe, b->rig.model, &p, NULL), OK);
    assert_int_equal(view_new(&b->view, b->rig.model), OK);
    int32_t *tokens = golden_copy(&b->golden, "tokens", "i32");
    rig_feed_probe(&b->rig, b->table, b->probe, tokens, N, 64);
    free(tokens);
}

static void bench_close(struct bench *b)
{
    view_free(b->view);
    probe_free(b->probe);
    table_free(b->table);
    rig_close(&b->rig);
    golden_close(&b->golden);
}

static void fill(struct bench *b, uint32_t needs)
{
    assert_int_equal(view_fill(b->view, b->table, b->probe, N, needs), OK);
}

static void check_near(const struct golden *g, const char *name, uint32_t list,
                       const float *got, int64_t n)
{
    float *want = golden_copy(g, name, "f32");
    int64_t per_list = golden_find(g, name, "f32")->n / 4;
    assert_int_equal(per_list, n);
    for (int64_t i = 0; i < n; i++) {
        double w = (double)want[list * n + i], x = (double)got[i];
        bool same =
            isinf(w) ? isinf(x) && x < 0 : fabs(x - w) < 2e-5 * (1 + fabs(w));
        if (!same)
            fail_msg("%s of list %u at %d: %g, not %g", name, list, (int)i, x,
                     w);
    }
    free(want);
}

static void attention_is_that_of_another_implementation(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b);
    fill(&b, EVERYTHING);
    const struct policy_view *v = view_get(b.view);
    assert_int_equal(v->n_window, W);
    assert_int_equal(v->n_entries, 4 * N);
    uint32_t d = v->head_dim, G = v->group;
    for (uint32_t i = 0; i < 4; i++) {
        const struct policy_list *l = &v->list[i];
        check_near(&b.golden, "window", i, l->window, W * N);
        check_near(&b.golden, "peak", i, l->peak, W * N);
        check_near(&b.golden, "column", i, l->column, N);
        check_near(&b.golden, "mean", i, l->future_mean, G * d);
        float band[N * PROBE_BUCKET],
            *want = golden_copy(&b.golden, "band", "f32");
        for (uint32_t k = 0; k < N * PROBE_BUCKET; k++) {
            band[k] = quant_f16_to_f32(probe_band(b.probe, i)[k]);
            double w = (double)want[i * N * PROBE_BUCKET + k];
            assert_true(fabs((double)band[k] - w) < 1e-3 * w + 1e-6);
        }
        free(want);
    }
    bench_close(&b);
}

static struct policy_params params_of(const struct golden_case *c,
                                      const struct policy *policy)
{
    struct policy_params p = policy->defaults;
    p.n_entries = c->n_entries;
    if (c->bare) {
        /* kvpress's expected attention spares the sinks, others nothing. */
        p.n_sinks = strcmp(c->policy, "expected-attention") == 0 ? 4 : 0;
        p.n_recent = strcmp(c->policy, "tova") == 0;
    }
    if (c->n_pool) {
        p.n_pool = c->n_pool;
        p.pooling = c->pooling;
    }
    if (c->per_head)
        p.spread = POLICY_PER_HEAD;
    if (c->n_whole) {
        p.n_whole = c->n_whole;
        p.n_recent = 16;
    }
    return p;
}

static void kept_sets_are_those_of_other_implementations(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b);
    int32_t *masks = golden_copy(&b.golden, "masks", "i32");
    assert_int_equal(golden_find(&b.golden, "masks", "i32")->n,
                     N_CASES * 4 * N);
    for (uint32_t i = 0; i < N_CASES; i++) {
        const struct policy *policy = policy_find(CASES[i].policy);
        struct policy_params p = params_of(&CASES[i], policy);
        uint8_t keep[4 * N];
        assert_int_equal(
            policy_check(policy, view_offers(b.probe), false, NULL), OK);
        fill(&b, policy->needs);
        assert_int_equal(
            policy_keep(policy, view_get(b.view), &p, b.rig.workers, keep), OK);
        for (uint32_t e = 0; e < 4 * N; e++)
            if (keep[e] != masks[i * 4 * N + e])
                fail_msg("case %u, %s: list %u position %u %s", i, policy->name,
                         e / N, e % N, keep[e] ? "kept" : "lost");
    }
    free(masks);
    bench_close(&b);
}

/* A server fills a view with one layer at a time. */
static void layer_by_layer_the_scores_are_the_same(void **state)
{
    (void)state;
    struct bench b;
    struct view *part = NULL;
    float whole[4 * N], score[4 * N];
    bench_open(&b);
    assert_int_equal(view_new(&part, b.rig.model), OK);
    fill(&b, EVERYTHING);
    const struct policy_view *v = view_get(b.view), *w = view_get(part);
    for (uint32_t k = 0; policy_at(k); k++) {
        const struct policy *policy = policy_at(k);
        struct policy_params p = policy->defaults;
        uint32_t n_window = p.n_window > 0 ? p.n_window : 1;
        p.n_entries = 50;
        assert_int_equal(policy_score(policy, v, &p, NULL, whole), OK);
        for (uint32_t l = 0; l < v->n_layers; l++) {
            const uint32_t layer[2] = {l, policy_looks_at(policy, v, &p, l)};
            const struct view_source from = {.table = b.table,
                                             .probe = b.probe,
                                             .n_seen = N,
                                             .needs = policy->needs,
                                             .n_window = n_window};
            assert_int_equal(view_fill_layers(part, &from, layer), OK);
            assert_int_equal(w->n_entries, (layer[0] == layer[1] ? 2 : 4) * N);
            assert_int_equal(policy_score_layer(policy, w, &p, l, score), OK);
            for (uint32_t h = 0; h < v->n_kv_heads; h++) {
                uint32_t i = l * v->n_kv_heads + h;
                assert_memory_equal(score + w->list[i].first,
                                    whole + v->list[i].first,
                                    N * sizeof(*score));
            }
        }
    }
    view_free(part);
    bench_close(&b);
}

/* Compacts the table by random masks, so that lists differ and are in no
 * order, and views it: everything is found under its position. */
static void a_compacted_cache_is_seen_in_order(void **state)
{
    (void)state;
    struct bench b;
    struct rng rng;
    uint8_t keep[4 * N];
    bench_open(&b);
    rng_seed(&rng, 3);
    uint16_t *gone = calloc(pool_stats(b.rig.pool).n_units, sizeof(*gone));
    struct view *whole = NULL;
    assert_non_null(gone);
    assert_int_equal(view_new(&whole, b.rig.model), OK);
    assert_int_equal(view_fill(whole, b.table, b.probe, N, EVERYTHING), OK);
    for (uint32_t e = 0; e < 4 * N; e++)
        keep[e] = rng_below(&rng, 3 + e / N) > 0;
    view_gone(whole, b.table, keep, gone);
    compact_table(b.table, gone);
    fill(&b, EVERYTHING);
    const struct policy_view *v = view_get(b.view), *o = view_get(whole);
    uint32_t moved = 0, d = v->head_dim;
    for (uint32_t i = 0; i < 4; i++) {
        const struct policy_list *x = &v->list[i], *y = &o->list[i];
        uint32_t n = 0;
        for (uint32_t e = 0; e < N; e++) {
            if (!keep[i * N + e])
                continue;
            assert_true(n < x->n && x->pos[n] == (int32_t)e);
            moved += view_slot(b.view)[x->first + n] != n;
            assert_memory_equal(x->key + n * d, y->key + e * d,
                                d * sizeof(float));
            assert_true(x->key_norm[n] == y->key_norm[e] &&
                        x->value_norm[n] == y->value_norm[e] &&
                        x->column[n] == y->column[e]);
            for (uint32_t r = 0; r < W; r++)
                assert_true(x->peak[r * x->n + n] == y->peak[r * N + e]);
            n++;
        }
        assert_int_equal(n, x->n);
    }
    assert_true(moved > 100);
    free(gone);
    view_free(whole);
    bench_close(&b);
}

static void what_no_probe_saw_is_refused(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b);
    assert_int_equal(view_offers(NULL) & (POLICY_WINDOW | POLICY_PEAK |
                                          POLICY_COLUMNS | POLICY_FUTURE),
                     0);
    assert_int_equal(view_fill(b.view, b.table, NULL, N, POLICY_WINDOW),
                     ERR_INVAL);
    assert_int_equal(view_get(b.view)->n_entries, 0);
    assert_int_equal(view_fill(b.view, b.table, NULL, N, POLICY_KEYS), OK);
    const struct policy_list *l = &view_get(b.view)->list[3];
    float key[128];
    ops_reference.kv_load(pool_layout(b.rig.pool),
                          pool_data(b.rig.pool, b.table->list[3].unit[1]), 2,
                          key, NULL);
    assert_memory_equal(l->key + 18 * 128, key, sizeof(key));
    assert_null(l->window);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_that_of_another_implementation),
        cmocka_unit_test(kept_sets_are_those_of_other_implementations),
        cmocka_unit_test(layer_by_layer_the_scores_are_the_same),
        cmocka_unit_test(a_compacted_cache_is_seen_in_order),
        cmocka_unit_test(what_no_probe_saw_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
