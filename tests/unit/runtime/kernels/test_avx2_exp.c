#include "kernels_check.h"

#include "runtime/kernels/avx2_exp.h"

static float exp_of(float x)
{
    float lanes[8] = {0, x, 1, 2, 3, 4, 5, 6};
    _mm256_storeu_ps(lanes, avx2_exp(_mm256_loadu_ps(lanes)));
    return lanes[1];
}

static int no_avx2(void)
{
    if (ops_avx2() != NULL)
        return 0;
    fputs("SKIPPED: this CPU or OS cannot run avx2\n", stderr);
    return 1;
}

/* A unit in the last place is at most 2^-23 of the value. */
static void every_normal_result_is_within_two_units_of_libm(void **state)
{
    (void)state;
    if (no_avx2())
        return;
    double worst = 0;
    for (int i = -87300; i <= 88700; i++) {
        float x = (float)i * 0.001f + (float)(i % 17) * 1e-5f;
        double want = exp((double)x);
        double e = fabs((double)exp_of(x) - want) / want;
        worst = e > worst ? e : worst;
    }
    assert_true(worst < 2 * 0x1p-23);
    for (int i = -2000; i <= 2000; i++) {
        float x = (float)i * 1e-5f;
        double want = exp((double)x);
        assert_true(fabs((double)exp_of(x) - want) < 0x1p-23 * want);
    }
}

static void subnormal_results_fade_out_and_end_in_zero(void **state)
{
    (void)state;
    if (no_avx2())
        return;
    for (float x = -87.3f; x > -103.0f; x -= 0.01f)
        assert_true(fabs((double)exp_of(x) - exp((double)x)) <
                    2e-7 * exp((double)x) + 1.5e-45);
    assert_true(exp_of(-104.0f) == 0.0f);
    assert_true(exp_of(-1e30f) == 0.0f);
    assert_true(exp_of(-INFINITY) == 0.0f);
}

static void ends_of_the_range_and_nan(void **state)
{
    (void)state;
    if (no_avx2())
        return;
    assert_true(exp_of(0.0f) == 1.0f);
    assert_true(exp_of(-0.0f) == 1.0f);
    assert_true(isfinite(exp_of(88.7f)));
    assert_true(exp_of(88.8f) == INFINITY);
    assert_true(exp_of(1e30f) == INFINITY);
    assert_true(exp_of(INFINITY) == INFINITY);
    assert_true(isnan(exp_of(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_normal_result_is_within_two_units_of_libm),
        cmocka_unit_test(subnormal_results_fade_out_and_end_in_zero),
        cmocka_unit_test(ends_of_the_range_and_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
