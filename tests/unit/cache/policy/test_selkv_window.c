/* The first two stages of SelKV: importance, and what stays of a layer and of
 * its heads, against numpy (tests/tools/make_merge_golden.py). */
#include "tests/unit/cache/policy/view_check.h"

#include "tests/support/golden.h"

enum { N_MAX = 300, HEADS = 3 };

static void check_kept(const struct policy_view *v, struct policy_params p,
                       const int32_t *want, uint32_t stride)
{
    const struct policy *policy = policy_find("selkv-window");
    uint8_t kept[HEADS * N_MAX];
    assert_int_equal(policy_keep(policy, v, &p, NULL, kept), OK);
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < v->list[h].n; i++)
            assert_int_equal(kept[v->list[h].first + i], want[h * stride + i]);
}

static void importance_and_kept_sets_are_those_of_numpy(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "tests/golden/merge/stages.golden");
    const struct golden_array *w = golden_find(&g, "window", "f32");
    uint32_t n_rows = (uint32_t)w->dim[1], n = (uint32_t)w->dim[2];
    int32_t *shape = golden_copy(&g, "shape", "i32"), pos[N_MAX];
    float *window = golden_copy(&g, "window", "f32");
    float *norm = golden_copy(&g, "norm", "f32"), score[HEADS * N_MAX];
    double *want = golden_copy(&g, "importance", "f64");
    int32_t *per_head = golden_copy(&g, "per_head", "i32");
    int32_t *layer = golden_copy(&g, "layer", "i32");
    struct policy_list list[HEADS];
    assert_true(n <= N_MAX && w->dim[0] == HEADS);
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)i;
    for (uint32_t h = 0; h < HEADS; h++)
        list[h] =
            (struct policy_list){.n = n,
                                 .first = (uint64_t)h * n,
                                 .pos = pos,
                                 .value_norm = norm + (size_t)h * n,
                                 .window = window + (size_t)h * n_rows * n};
    const struct policy_view v = {.n_layers = 1,
                                  .n_kv_heads = HEADS,
                                  .group = 1,
                                  .n_seen = n,
                                  .n_window = n_rows,
                                  .list = list,
                                  .n_entries = (uint64_t)HEADS * n};
    const struct policy *policy = policy_find("selkv-window");
    struct policy_params p = policy->defaults;
    p.n_entries = (uint32_t)shape[0];
    p.n_sinks = (uint32_t)shape[1];
    p.n_recent = (uint32_t)shape[2];
    assert_int_equal(policy_score(policy, &v, &p, NULL, score), OK);
    for (uint32_t i = 0; i < HEADS * n; i++)
        assert_true(fabs((double)score[i] - want[i]) < 1e-5);
    check_kept(&v, p, layer, 0); /* one set for all heads */
    p.spread = POLICY_PER_HEAD;
    check_kept(&v, p, per_head, n);
    free(shape), free(window), free(norm), free(want);
    free(per_head), free(layer);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(importance_and_kept_sets_are_those_of_numpy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
