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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retention_is_age_times_log_beta),
        cmocka_unit_test(streaming_keeps_sinks_and_the_end),
        cmocka_unit_test(keydiff_prefers_keys_off_the_mean_direction),
        cmocka_unit_test(random_is_uniform_and_differs_by_seed_layer_and_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
