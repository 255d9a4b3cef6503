/* Fates over the cache of a tiny model, chosen and merged as an evaluation does
 * it, against numpy (tests/tools/make_fate_golden.py). */
#include <math.h>

#include "tests/unit/runtime/model/model_check.h"

#include "bench/eval/choose.h"
#include "bench/eval/fork.h"
#include "bench/eval/merging.h"

enum { N = 200, W = 32, KEPT = 50, LISTS = 4, STEP = 8, D_MAX = 128 };

static const char *const NAMES[] = {
    "selkv-window+merge",      "selkv-window+merge:min-mass=0:max-ratio=0",
    "selkv-window+lookm",      "selkv-window+kvmerger",
    "selkv-window+weightedkv", "selkv-window+cam"};
static const char *const FATES[] = {"selkv",    "unguarded",  "lookm",
                                    "kvmerger", "weightedkv", "cam"};
enum { N_FATES = 6 };

struct bench {
    struct golden golden;
    struct rig rig;
    struct table *table;
    struct probe *probe;
    struct chooser *chooser;
};

static void bench_open(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    golden_open(&b->golden, "tests/golden/eval/fates.golden");
    rig_open_reference(&b->rig, "tests/golden/model/tiny/qwen3-gqa2-128.gguf",
                       N);
    struct probe_options p = {.n_window = W,
                              .parts = merging_parts(FATE_BAND | FATE_COLUMN),
                              .max_tokens = N};
    b->table = rig_table(&b->rig);
    assert_int_equal(probe_new(&b->probe, b->rig.model, &p, NULL), OK);
    struct chooser_size size = {.pool = b->rig.pool,
                                .workers = b->rig.workers,
                                .model = b->rig.model,
                                .max_tokens = N,
                                .n_looks = 1};
    assert_int_equal(chooser_new(&b->chooser, &size, NULL), OK);
    int32_t *tokens = golden_copy(&b->golden, "tokens", "i32");
    rig_feed_probe(&b->rig, b->table, b->probe, tokens, N, 50);
    free(tokens);
    const struct chooser_subject of = {
        .table = b->table, .probe = b->probe, .n_seen = N};
    assert_int_equal(
        chooser_look(b->chooser, 0, &of, policy_find("selkv-window")->needs),
        OK);
}

static void bench_close(struct bench *b)
{
    chooser_free(b->chooser);
    probe_free(b->probe);
    table_free(b->table);
    rig_close(&b->rig);
    golden_close(&b->golden);
}

/* One array of the golden file; NULL: it has none of that name. */
struct wanted {
    float *x; /* owned */
};

static struct wanted wanted_of(const struct bench *b, const char *fate,
                               const char *what)
{
    char name[32];
    snprintf(name, sizeof(name), "%s.%s", fate, what);
    for (int i = 0; i < b->golden.n_arrays; i++)
        if (strcmp(b->golden.array[i].name, name) == 0)
            return (struct wanted){golden_copy(&b->golden, name, "f32")};
    return (struct wanted){NULL};
}

static void check_vector(const char *what, const char *fate, const float *got,
                         const float *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (fabs((double)got[i * STEP] - (double)want[i]) >
            1e-4 * (1 + fabs((double)want[i])))
            fail_msg("%s of %s: %g, not %g", what, fate, (double)got[i * STEP],
                     (double)want[i]);
}

static double bias_at(const struct bench *b, const struct table *t, uint32_t i,
                      uint32_t slot)
{
    float bias;
    memcpy(&bias,
           pool_data(b->rig.pool, t->list[i].unit[slot / KV_UNIT]) +
               pool_layout(b->rig.pool)->bias + slot % KV_UNIT * sizeof(bias),
           sizeof(bias));
    return (double)bias;
}

/* Entry k of list i of what is left, by position. */
static void check_entry(const struct bench *b, const struct table *t,
                        uint32_t i, uint32_t slot, uint32_t k, const char *fate)
{
    uint32_t d = model_info(b->rig.model)->head_dim, n = d / STEP;
    const struct kv_layout *y = pool_layout(b->rig.pool);
    const uint8_t *unit =
        pool_data(b->rig.pool, t->list[i].unit[slot / KV_UNIT]);
    struct wanted value = wanted_of(b, fate, "value"),
                  key = wanted_of(b, fate, "key"),
                  bias = wanted_of(b, fate, "bias");
    float v[D_MAX], x[D_MAX];
    size_t at = (size_t)i * KEPT + k;
    ops_reference.kv_load(y, unit, slot % KV_UNIT, x, v);
    check_vector("a value", fate, v, value.x + at * n, n);
    if (key.x != NULL)
        check_vector("a key", fate, x, key.x + at * n, n);
    double want = bias.x != NULL ? (double)bias.x[at] : 0;
    assert_true(fabs(bias_at(b, t, i, slot) - want) < 1e-4);
    free(value.x);
    free(key.x);
    free(bias.x);
}

/* The place of each position in the list, or -1. */
static void places(const struct bench *b, const struct kv_list *l,
                   int32_t slot[N])
{
    for (uint32_t p = 0; p < N; p++)
        slot[p] = -1;
    for (uint32_t e = 0; e < l->len; e++) {
        const struct kv_meta *m = pool_meta(b->rig.pool, l->unit[e / KV_UNIT]);
        slot[m->pos[e % KV_UNIT]] = (int32_t)e;
    }
}

static void check_table(const struct bench *b, const struct table *t,
                        const char *fate)
{
    int32_t *masks = golden_copy(&b->golden, "masks", "i32"), slot[N];
    for (uint32_t i = 0; i < LISTS; i++) {
        uint32_t k = 0;
        assert_int_equal(t->list[i].len, KEPT);
        places(b, &t->list[i], slot);
        for (uint32_t p = 0; p < N; p++) {
            assert_int_equal(slot[p] >= 0, masks[i * N + p]);
            if (slot[p] >= 0)
                check_entry(b, t, i, (uint32_t)slot[p], k++, fate);
        }
    }
    free(masks);
}

static void merged_caches_are_those_of_another_implementation(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b);
    int32_t *counts = golden_copy(&b.golden, "counts", "i32");
    for (int f = 0; f < N_FATES; f++) {
        struct choice c = {.n_sinks = 4, .n_recent = 16};
        struct merge_counts got = {0};
        struct table *copy = NULL;
        struct errmsg m = {""};
        assert_int_equal(choice_find(&c, NAMES[f], UINT32_MAX, &m), OK);
        assert_int_equal(fork_deep(&copy, b.table, N), OK);
        assert_int_equal(chooser_apply(b.chooser, &c, KEPT, copy, &got, &m),
                         OK);
        assert_int_equal(got.evicted, counts[2 * f]);
        assert_int_equal(got.routed, counts[2 * f + 1]);
        check_table(&b, copy, FATES[f]);
        table_free(copy);
    }
    free(counts);
    bench_close(&b);
}

/* A set for each layer: the bias of a token is that of its mean R. */
static void a_layer_can_have_one_ratio(void **state)
{
    (void)state;
    enum { HEADS = 2 };
    const double alpha = 0.5;
    struct bench b;
    struct merge_counts got = {0};
    struct table *copy = NULL;
    struct errmsg m = {""};
    struct choice c = {.n_sinks = 4, .n_recent = 16};
    int32_t slot[N];
    uint32_t n_unlike = 0;
    bench_open(&b);
    struct wanted alone = wanted_of(&b, "unguarded", "bias");
    assert_int_equal(
        choice_find(&c, "selkv-window+merge:min-mass=0:max-ratio=0:mean-ratio",
                    UINT32_MAX, &m),
        OK);
    assert_int_equal(fork_deep(&copy, b.table, N), OK);
    assert_int_equal(chooser_apply(b.chooser, &c, KEPT, copy, &got, &m), OK);
    for (uint32_t i = 0; i < LISTS; i++) {
        uint32_t k = 0, layer = i / HEADS * HEADS;
        places(&b, &copy->list[i], slot);
        for (uint32_t p = 0; p < N; p++) {
            double ratio = 0;
            if (slot[p] < 0)
                continue;
            for (uint32_t h = layer; h < layer + HEADS; h++)
                ratio += exp((double)alone.x[h * KEPT + k] / alpha) / HEADS;
            n_unlike +=
                alone.x[layer * KEPT + k] != alone.x[(layer + 1) * KEPT + k];
            k++;
            assert_true(fabs(bias_at(&b, copy, i, (uint32_t)slot[p]) -
                             alpha * log(ratio)) < 1e-4);
        }
        assert_int_equal(k, KEPT);
    }
    assert_true(n_unlike > 10);
    free(alone.x);
    table_free(copy);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_caches_are_those_of_another_implementation),
        cmocka_unit_test(a_layer_can_have_one_ratio)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
