#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "merge/blend.h"
#include "merge/compensation.h"
#include "merge/vector.h"

enum { D = 64 };

static void fill(struct rng *r, float *x, float size)
{
    for (int i = 0; i < D; i++)
        x[i] = (rng_float(r) - 0.5f) * size;
}

static double plain_dot(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < D; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void sums_agree_with_double_precision(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 1);
    for (int round = 0; round < 500; round++) {
        float a[D], b[D], diff[D];
        fill(&r, a, 3.0f);
        fill(&r, b, 2.0f);
        for (int i = 0; i < D; i++)
            diff[i] = a[i] - b[i];
        double aa = plain_dot(a, a), bb = plain_dot(b, b);
        double ab = plain_dot(a, b);
        assert_true(fabs((double)vector_dot(a, b, D) - ab) < 1e-4);
        assert_true(fabs((double)vector_norm(a, D) - sqrt(aa)) < 1e-5);
        assert_true(fabs((double)vector_distance2(a, b, D) -
                         plain_dot(diff, diff)) < 1e-3);
        assert_true(fabs((double)vector_cosine(a, b, D) - ab / sqrt(aa * bb)) <
                    1e-5);
    }
}

static void what_has_no_direction_has_cosine_zero(void **state)
{
    (void)state;
    float a[8] = {1, 2}, zero[8] = {0}, tiny[8] = {1e-30f},
          huge[8] = {1e30f, 1e30f}, bad[8] = {NAN};
    assert_true(vector_cosine(a, zero, 8) == 0);
    assert_true(vector_cosine(zero, zero, 8) == 0);
    assert_true(vector_cosine(a, tiny, 8) == 0);
    assert_true(vector_cosine(a, huge, 8) == 0);
    assert_true(vector_cosine(a, bad, 8) == 0);
    assert_true(vector_cosine(a, a, 8) > 0.999999f);
}

static void the_gate_opens_for_like_values_only(void **state)
{
    (void)state;
    const float a[8] = {1, 0}, b[8] = {0.8f, 0.6f}, c[8] = {0, 1},
                d[8] = {-1, 0};
    const struct blend_pair even = {1, 1, 0};
    assert_true(fabsf(blend_gate(a, b, 8, &even) - 0.8f) < 1e-6f);
    assert_true(blend_gate(a, c, 8, &even) == 0);
    assert_true(blend_gate(a, d, 8, &even) == 0);
    assert_true(fabsf(blend_gate(a, a, 8, &even) - 1.0f) < 1e-6f);
}

static void the_guard_asks_for_the_hosts_mass(void **state)
{
    (void)state;
    const float v[8] = {1, 2, 3};
    struct blend_pair p = {0.5f, 0.5f, 1.0f};
    assert_true(blend_gate(v, v, 8, &p) > 0);
    p.guest_mass = 0.51f;
    assert_true(blend_gate(v, v, 8, &p) == 0);
    p.min_mass = 0.9f;
    assert_true(blend_gate(v, v, 8, &p) > 0);
    p.min_mass = 0.0f;
    p.host_mass = 0.0f;
    assert_true(blend_gate(v, v, 8, &p) > 0);
}

static void masses_are_finite_and_hosts_have_some(void **state)
{
    (void)state;
    assert_true(blend_guest_mass(-1.0f) == 0 && blend_guest_mass(NAN) == 0);
    assert_true(blend_guest_mass(INFINITY) == 0);
    assert_true(blend_guest_mass(2.0f) == 2.0f);
    assert_true(blend_host_mass(0.0f) == 1e-8f);
    assert_true(blend_host_mass(2.0f) == 2.0f);
}

static void a_guest_with_the_same_value_changes_no_bit(void **state)
{
    (void)state;
    struct rng r;
    float v[D], out[D];
    rng_seed(&r, 2);
    fill(&r, v, 7.0f);
    memcpy(out, v, sizeof(v));
    for (int i = 0; i < 9; i++)
        blend_add(out, v, v, rng_float(&r), D);
    assert_memory_equal(out, v, sizeof(v));
}

static void the_bias_is_alpha_log_r(void **state)
{
    (void)state;
    struct merge_options o = merge_options_default();
    float r = compensation_ratio(0.6f, 0.16f);
    assert_true(fabsf(r - 1.266667f) < 1e-6f);
    assert_true(fabsf(compensation_bias(0, r, &o) - 0.118194f) < 1e-6f);
    o.alpha = 1.0f;
    assert_true(fabsf(compensation_bias(0, r, &o) - 0.236389f) < 1e-6f);
    o.alpha = 0.0f;
    assert_true(compensation_bias(0, r, &o) == 0);
    o.max_ratio = INFINITY;
    assert_true(compensation_bias(0, r, &o) == 0);
    assert_true(compensation_bias(0.25f, r, &o) == 0.25f);
}

static void a_second_bias_adds_to_the_first(void **state)
{
    (void)state;
    struct merge_options o = merge_options_default();
    o.alpha = 1.0f;
    o.max_ratio = INFINITY;
    float b = compensation_bias(0, 2.0f, &o);
    b = compensation_bias(b, 3.0f, &o);
    assert_true(fabs((double)b - log(6)) < 1e-6);
    assert_true(compensation_bias(b, 1.0f, &o) == b);
}

static void the_guard_bounds_the_total(void **state)
{
    (void)state;
    struct merge_options o = merge_options_default(); /* R <= 4, alpha 0.5 */
    float most = (float)(0.5 * log(4));
    assert_true(compensation_bias(0, 1e6f, &o) == most);
    float b = compensation_bias(0, 3.0f, &o);
    assert_true(compensation_bias(b, 2.0f, &o) == most);
    /* A bias that is larger already neither grows nor shrinks. */
    assert_true(compensation_bias(2.0f, 2.0f, &o) == 2.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_agree_with_double_precision),
        cmocka_unit_test(what_has_no_direction_has_cosine_zero),
        cmocka_unit_test(the_gate_opens_for_like_values_only),
        cmocka_unit_test(the_guard_asks_for_the_hosts_mass),
        cmocka_unit_test(masses_are_finite_and_hosts_have_some),
        cmocka_unit_test(a_guest_with_the_same_value_changes_no_bit),
        cmocka_unit_test(the_bias_is_alpha_log_r),
        cmocka_unit_test(a_second_bias_adds_to_the_first),
        cmocka_unit_test(the_guard_bounds_the_total),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
