#include "tests/unit/cache/policy/view_check.h"

#include "cache/score.h"

static float *scores_of(const char *name, const struct made *m, uint32_t B)
{
    const struct policy *policy = policy_find(name);
    assert_non_null(policy);
    struct policy_params p = policy->defaults;
    p.n_entries = B;
    float *score = calloc(m->view.n_entries + 1, sizeof(*score));
    assert_non_null(score);
    assert_int_equal(policy_score(policy, &m->view, &p, NULL, score), OK);
    return score;
}

static void retention_is_age_times_log_beta(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 2, 2, 50, 1);
    float *a = scores_of("trimkv", &m, 20), *b = scores_of("dbtrimkv", &m, 20);
    assert_memory_equal(a, b, m.view.n_entries * sizeof(*a));
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t e = 0; e < 50; e++) {
            /* The newest is 2 old. */
            double want = (51.0 - e) * (double)m.list[i].log_beta[e];
            assert_true(a[m.list[i].first + e] == (float)want);
        }
    free(a);
    free(b);
    made_fini(&m);
}

/* docs/design, methods 4: {0..3} and the last B - 4. */
static void streaming_keeps_sinks_and_the_end(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 1, 1, 100, 1);
    const struct policy *policy = policy_find("streamingllm");
    struct policy_params p = policy->defaults;
    uint8_t keep[100];
    p.n_entries = 30;
    assert_int_equal(policy_keep(policy, &m.view, &p, NULL, keep), OK);
    for (uint32_t e = 0; e < 100; e++)
        assert_int_equal(keep[e], e < 4 || e >= 74);
    made_fini(&m);
}

/* Directions (1,0), (0,1), (-1,0), (0,1): their sum is (0,2), so the cosines
 * are 0, 1, 0, 1, whatever the lengths are. */
static void keydiff_prefers_keys_off_the_mean_direction(void **state)
{
    (void)state;
    struct made m;
    const float key[8] = {3, 0, 0, 5, -7, 0, 0, 0.5f};
    const float norm[4] = {3, 5, 7, 0.5f};
    made_init(&m, 1, 1, 4, 1);
    m.view.head_dim = 2;
    m.list[0].key = key;
    m.list[0].key_norm = norm;
    float *s = scores_of("keydiff", &m, 2);
    assert_true(s[0] == 0 && s[1] == -1 && s[2] == 0 && s[3] == -1);
    free(s);
    s = scores_of("knorm", &m, 2);
    assert_true(s[0] == -3 && s[1] == -5 && s[2] == -7 && s[3] == -0.5f);
    free(s);
    made_fini(&m);
}

static void random_is_uniform_and_differs_by_seed_layer_and_head(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 2, 2, 1000, 1);
    const struct policy *policy = policy_find("random");
    struct policy_params p = policy->defaults;
    float *a = scores_of("random", &m, 500), *b = scores_of("random", &m, 500);
    assert_memory_equal(a, b, m.view.n_entries * sizeof(*a));
    p.n_entries = 500;
    p.seed = 2;
    assert_int_equal(policy_score(policy, &m.view, &p, NULL, b), OK);
    double mean = 0, seeds = 0, heads = 0, layers = 0;
    for (uint32_t e = 0; e < 1000; e++) {
        mean += (double)a[e] / 1000;
        seeds += a[e] == b[e];
        heads += a[e] == a[1000 + e];
        layers += a[e] == a[2000 + e];
    }
    /* Five standard errors of 1000 uniform numbers. */
    assert_true(fabs(mean - 0.5) < 5 * 0.2887 / sqrt(1000));
    assert_true(seeds < 3 && heads < 3 && layers < 3);
    free(a);
    free(b);
    made_fini(&m);
}

/* docs/design, methods 4: the lines of both examples, and the excess of the
 * first taken off the last layers. */
static void pyramids_fall_linearly_and_stay_in_the_budget(void **state)
{
    (void)state;
    const struct policy *policy = policy_find("pyramidkv");
    struct policy_list list[30] = {{0}};
    struct policy_view v = {.n_layers = 30,
                            .n_kv_heads = 1,
                            .n_seen = 4096,
                            .n_window = 32,
                            .list = list};
    struct policy_params p = policy->defaults;
    for (uint32_t i = 0; i < 30; i++)
        list[i].n = 4096;
    p.n_entries = 512;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 30; i++) {
        uint32_t c = policy_capacity(policy, &v, &p, i);
        /* Upstream's 968 - 31 i, or less where the excess is taken, but not
         * below the line from 936 to 24, plus 32. */
        assert_true(c <= 968 - 31 * i && c + 912.0 * i / 29 > 967);
        sum += c;
    }
    assert_int_equal(policy_capacity(policy, &v, &p, 0), 968);
    assert_int_equal(policy_capacity(policy, &v, &p, 29), 24 + 32);
    assert_int_equal(sum, 15360);
    v.n_layers = 24;
    p.n_entries = 1024;
    for (uint32_t i = 0; i < 24; i++)
        assert_int_equal(policy_capacity(policy, &v, &p, i),
                         1935 - 82 * i + 32);
}

static void pyramids_of_short_prompts_are_cut_or_flat(void **state)
{
    (void)state;
    const struct policy *policy = policy_find("pyramidkv");
    struct policy_list list[30] = {{0}};
    struct policy_view v = {
        .n_layers = 30, .n_kv_heads = 1, .n_window = 32, .list = list};
    struct policy_params p = policy->defaults;
    p.n_entries = 512;
    /* base 480: below 960 entries plain SnapKV. */
    for (uint32_t i = 0; i < 30; i++)
        list[i].n = v.n_seen = 959;
    assert_int_equal(policy_capacity(policy, &v, &p, 0), 512);
    assert_int_equal(policy_capacity(policy, &v, &p, 29), 512);
    /* hi = 936 does not fit: the first layer keeps all 965, hi = 933. */
    for (uint32_t i = 0; i < 30; i++)
        list[i].n = v.n_seen = 965;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 30; i++)
        sum += policy_capacity(policy, &v, &p, i);
    assert_int_equal(policy_capacity(policy, &v, &p, 0), 965);
    assert_int_equal(policy_capacity(policy, &v, &p, 29), 27 + 32);
    assert_int_equal(sum, 30 * 512);
}

/* One layer, two heads, group 2, six entries; the rows of two queries. */
static const float ROWS[2][12] = {
    {0.4f, 0, 0.2f, 0.8f, 0.6f, 0, 0.2f, 0, 0, 0.2f, 0.6f, 1.0f},
    {0, 2.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0.4f, 1.6f}};

static void six_entries(struct made *m)
{
    made_init(m, 1, 2, 6, 1);
    m->view.group = 2;
    m->view.n_window = 2;
    m->list[0].window = ROWS[0];
    m->list[1].window = ROWS[1];
}

static void assert_scores(const float *score, const double *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (fabs((double)score[i] - want[i]) > 1e-6)
            fail_msg("score %u: %g, not %g", i, (double)score[i], want[i]);
}

/* Sums over rows: .6 0 .2 1.0 and 0 2 0 0 in the prefix of 4; means over 2
 * rows and 2 heads of the group a quarter of that; then pooled over 3. */
static void snapkv_pools_the_mean_attention_of_its_window(void **state)
{
    (void)state;
    struct made m;
    six_entries(&m);
    float score[12];
    const struct policy *policy = policy_find("snapkv");
    struct policy_params p = policy->defaults;
    p.n_entries = 5;
    p.n_pool = 3;
    assert_int_equal(policy_score(policy, &m.view, &p, NULL, score), OK);
    const double max[12] = {.15, .15, .25, .25, .25, .25,
                            .5,  .5,  .5,  0,   .5,  .5};
    assert_scores(score, max, 12);
    p.pooling = POLICY_POOL_MEAN; /* zeros beyond the ends count */
    assert_int_equal(policy_score(policy, &m.view, &p, NULL, score), OK);
    const double mean[12] = {.15 / 3, .2 / 3, .3 / 3, .3 / 3, .3 / 3, .3 / 3,
                             .5 / 3,  .5 / 3, .5 / 3, 0,      .5 / 3, .5 / 3};
    assert_scores(score, mean, 12);
    made_fini(&m);
}

/* B = 3 leaves room for a window of 1: the last row, over 5 entries. */
static void a_window_is_at_most_half_of_the_budget(void **state)
{
    (void)state;
    struct made m;
    six_entries(&m);
    float score[12];
    const struct policy *policy = policy_find("snapkv");
    struct policy_params p = policy->defaults;
    p.n_entries = 3;
    p.n_pool = 1;
    assert_int_equal(policy_score(policy, &m.view, &p, NULL, score), OK);
    const double want[12] = {.1, 0, 0, .1, .3, .3, 0, 0, 0, 0, .2, .2};
    assert_scores(score, want, 12);
    made_fini(&m);
}

/* Sums times norms: .6 0 .4 1 2.4 2; pooled over 5 with zeros beyond. */
static void selkv_counts_attention_by_the_norm_of_the_value(void **state)
{
    (void)state;
    struct made m;
    const float norm[6] = {1, 1, 2, 1, 2, 2};
    float score[12];
    six_entries(&m);
    m.list[0].value_norm = m.list[1].value_norm = norm;
    const struct policy *policy = policy_find("selkv-window");
    struct policy_params p = policy->defaults;
    p.n_entries = 3; /* does not cut the window: it is not kept */
    assert_int_equal(policy_score(policy, &m.view, &p, NULL, score), OK);
    const double want[6] = {.2, .4, .88, 1.16, 1.16, 1.08};
    assert_scores(score, want, 6);
    made_fini(&m);
}

static void tova_asks_the_last_query_in_all_heads(void **state)
{
    (void)state;
    struct made m;
    six_entries(&m);
    float *s = scores_of("tova", &m, 3);
    const double want[12] = {.05, 0, 0, .05, .25, .65,
                             .05, 0, 0, .05, .25, .65};
    assert_scores(s, want, 12);
    free(s);
    made_fini(&m);
}

/* Heavy hitters 5, 9 and 6, and half of the budget for the newest. */
static void h2o_keeps_heavy_hitters_and_as_many_recent(void **state)
{
    (void)state;
    struct made m;
    float column[20] = {0};
    uint8_t keep[20];
    made_init(&m, 1, 1, 20, 1);
    column[5] = 3;
    column[9] = 2;
    column[6] = 1;
    column[7] = 0.5f;
    m.list[0].column = column;
    const struct policy *policy = policy_find("h2o");
    struct policy_params p = policy->defaults;
    p.n_entries = 6;
    p.n_sinks = p.n_recent = 0;
    assert_int_equal(policy_keep(policy, &m.view, &p, NULL, keep), OK);
    for (uint32_t e = 0; e < 20; e++)
        assert_int_equal(keep[e], e == 5 || e == 9 || e == 6 || e >= 17);
    made_fini(&m);
}

/* Keys 1, 3 and 6 are one direction, the others are at right angles. Nothing
 * is more important than anything else, so redundancy decides; the last of
 * the duplicates is spared: what 1 and 3 say of it does not count. Columns
 * of C: 6 has 0, 1 and 3 have the cosine of one each (6 spares 3 of its own,
 * and 1 is not spared by anyone). */
static void r_kv_spares_the_latest_of_duplicates(void **state)
{
    (void)state;
    struct made m;
    float key[8 * 8] = {0}, peak[2 * 8] = {0}, score[8];
    made_init(&m, 1, 1, 8, 1);
    for (uint32_t e = 0; e < 8; e++)
        key[8 * e + (e == 3 || e == 6 ? 1 : e)] = (float)(1 + e);
    m.list[0].key = key;
    m.list[0].peak = peak;
    m.view.n_window = 1;
    const struct policy *policy = policy_find("r-kv");
    struct policy_params p = policy->defaults;
    p.n_entries = 4;
    assert_int_equal(policy_score(policy, &m.view, &p, NULL, score), OK);
    /* red = softmax of column sums / 8: 1 has 2 (from 3 and 6), 3 has 1 (from
     * 1; 6 zeroes it), 6 has 0 (1 and 3 zero it), others 0. */
    double sum = exp(2 / 8.0) + exp(1 / 8.0) + 6, w = (double)0.07f;
    const double column[8] = {0, 2, 0, 1, 0, 0, 0, 0};
    double want[8];
    for (uint32_t e = 0; e < 8; e++)
        want[e] = w / 7 - (1 - w) * exp(column[e] / 8) / sum;
    want[7] = want[6]; /* the window: the best of the others */
    assert_scores(score, want, 8);
    made_fini(&m);
}

/* One query head, d = 2, entries after one sink. Logits by hand:
 * k.mean / sqrt 2 + k.cov.k / 4. */
static void expected_attention_reckons_with_mean_and_variance(void **state)
{
    (void)state;
    struct made m;
    const float key[6] = {9, 9, 1, 0, 0, 2}, mean[2] = {0.5f, -1},
                cov[4] = {2, 0.25f, 0.25f, 1}, norm[3] = {5, 3, 4};
    float score[3];
    made_init(&m, 1, 1, 3, 1);
    m.view.group = 1;
    m.view.head_dim = 2;
    m.list[0].key = key;
    m.list[0].future_mean = mean;
    m.list[0].future_cov = cov;
    m.list[0].value_norm = norm;
    const struct policy *policy = policy_find("expected-attention");
    struct policy_params p = policy->defaults;
    p.n_entries = 2;
    p.n_sinks = 1;
    assert_int_equal(policy_score(policy, &m.view, &p, NULL, score), OK);
    double a = exp(0.5 / sqrt(2) + 2 / 4.0), b = exp(-2 / sqrt(2) + 4 / 4.0);
    const double want[3] = {3 * a / (a + b), 3 * a / (a + b), 4 * b / (a + b)};
    assert_true(want[1] > want[2]);
    assert_scores(score, want, 3);
    made_fini(&m);
}

static void fastv_keeps_the_first_layers_whole_at_equal_bytes(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 5, 2, 100, 1);
    const struct policy *policy = policy_find("fastv");
    struct policy_params p = policy->defaults;
    const uint32_t want[5] = {100, 100, 34, 33, 33};
    p.n_entries = 60;
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(policy_capacity(policy, &m.view, &p, i), want[i]);
    p.n_entries = 40; /* 200 entries are the first two layers alone */
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(policy_capacity(policy, &m.view, &p, i), 40);
    float *s = scores_of("fastv", &m, 60);
    for (uint32_t e = 0; e < 100; e++) { /* ranked by the second layer */
        double mass = 0;
        for (uint32_t h = 0; h < 2; h++)
            mass += (double)m.list[2 + h].window[39 * 100 + e];
        for (uint32_t i = 0; i < 10; i++)
            assert_true(fabs((double)s[m.list[i].first + e] - mass / 6) < 1e-6);
    }
    free(s);
    made_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retention_is_age_times_log_beta),
        cmocka_unit_test(streaming_keeps_sinks_and_the_end),
        cmocka_unit_test(keydiff_prefers_keys_off_the_mean_direction),
        cmocka_unit_test(random_is_uniform_and_differs_by_seed_layer_and_head),
        cmocka_unit_test(pyramids_fall_linearly_and_stay_in_the_budget),
        cmocka_unit_test(pyramids_of_short_prompts_are_cut_or_flat),
        cmocka_unit_test(snapkv_pools_the_mean_attention_of_its_window),
        cmocka_unit_test(a_window_is_at_most_half_of_the_budget),
        cmocka_unit_test(selkv_counts_attention_by_the_norm_of_the_value),
        cmocka_unit_test(tova_asks_the_last_query_in_all_heads),
        cmocka_unit_test(h2o_keeps_heavy_hitters_and_as_many_recent),
        cmocka_unit_test(r_kv_spares_the_latest_of_duplicates),
        cmocka_unit_test(expected_attention_reckons_with_mean_and_variance),
        cmocka_unit_test(fastv_keeps_the_first_layers_whole_at_equal_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
