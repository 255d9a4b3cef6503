#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cache/score.h"

/* The values of docs/design 1.2, given with six decimals. */
static void golden_values_of_the_look_ahead_come_out(void **state)
{
    (void)state;
    assert_true(fabs(score_of(100, -0.01f, 32) - 2.314995) < 1e-6);
    assert_true(fabs(score_of(100, -1e-4f, 32) - 3.454186) < 1e-6);
    assert_true(score_of(100, -0.01f, 1) == 100 * (double)-0.01f);
    assert_true(score_of(7, 0.0f, 1) == 0);
    assert_true(fabs(score_of(100, 0.0f, 32) - log(32)) < 1e-15);
    assert_true(score_of(2, -INFINITY, 1) == -INFINITY);
    assert_true(score_of(2, -INFINITY, 8) == -INFINITY);
}

/* The sum itself, term by term, in long double. */
static void look_ahead_is_the_log_of_the_summed_retention(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 1);
    for (int i = 0; i < 20000; i++) {
        float l = -(float)pow(10, -13 + 15 * rng_double(&r));
        double age = (double)(2 + rng_below(&r, 300));
        uint32_t n = 2 + (uint32_t)rng_below(&r, 100);
        long double sum = 0;
        for (uint32_t k = 0; k < n; k++)
            sum += expl((long double)k * (long double)l);
        long double want = (long double)age * (long double)l + logl(sum);
        double got = score_of(age, l, n);
        /* Near log_beta = 0 both logarithms are about -28, so a few of their
         * last bits are what remains; nearer still the limit is taken, which
         * leaves out (n - 1) / 2 * log_beta. */
        long double most = 2e-14L * (1 + fabsl(want));
        if ((double)l > -1e-12)
            most += (long double)n * 0.5e-12L;
        if (fabsl((long double)got - want) > most)
            fail_msg("age %g, log_beta %g, n %u: %.17g, not %.17Lg", age,
                     (double)l, n, got, want);
    }
}

static void log1mexp_loses_no_digits_at_either_end(void **state)
{
    (void)state;
    for (double e = -300; e < 2.8; e += 0.01) {
        double x = -pow(10, e);
        long double want = x > -1e-3 ? logl(-expm1l((long double)x))
                                     : log1pl(-expl((long double)x));
        if (x > -1e-3 || x < -1) /* each where it is exact by itself */
            assert_true(fabsl((long double)score_log1mexp(x) - want) <=
                        4e-16L * fabsl(want));
        else
            assert_true(fabsl((long double)score_log1mexp(x) - want) <=
                        4e-15L * fabsl(want));
    }
    assert_true(score_log1mexp(0) == -INFINITY);
    assert_true(score_log1mexp(-INFINITY) == 0);
}

static void weight_and_idle_time_are_one_offset(void **state)
{
    (void)state;
    assert_true(score_offset(1, 0, 0) == 0);
    assert_true(score_offset(1, 0, 1000000) == 0);
    assert_true(fabs(score_offset(1000, 0, 5) - 6.907755278982137) < 1e-14);
    assert_true(fabs(score_offset(0.001, 0, 5) + 6.907755278982137) < 1e-14);
    assert_true(fabs(score_offset(1, 0.05, 3000) + 0.15) < 1e-15);
    assert_true(fabs(score_offset(2, 0.5, 1000) - (log(2) - 0.5)) < 1e-15);
    /* One rounding, at the end: a float sum would lose the small part. */
    assert_true(score_effective(16777216.0, 1.5) == 16777218.0f);
    assert_true(score_effective(1e-8, -1) == (float)(1e-8 - 1));
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static void keys_stand_in_the_order_of_the_floats(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 2);
    static const float edge[] = {-INFINITY, -3.4e38f, -1,     -1e-45f,
                                 -0.0f,     0.0f,     1e-45f, 1.18e-38f,
                                 3.4e38f,   INFINITY};
    enum { N_EDGE = sizeof(edge) / sizeof(edge[0]) };
    for (int i = 0; i < 200000; i++) {
        float a = i % 3 == 0 ? edge[rng_below(&r, N_EDGE)]
                             : float_of((uint32_t)rng_next(&r));
        float b = i % 5 == 0 ? edge[rng_below(&r, N_EDGE)]
                             : float_of((uint32_t)rng_next(&r));
        if (isnan(a) || isnan(b))
            continue;
        assert_int_equal(a < b, score_key(a) < score_key(b));
        assert_int_equal(a == b, score_key(a) == score_key(b));
        assert_true(score_key(a) > 0 && score_key(a) <= SCORE_KEY_MAX);
    }
    assert_int_equal(score_key(INFINITY), SCORE_KEY_MAX);
}

static void no_number_ranks_below_every_number(void **state)
{
    (void)state;
    assert_int_equal(score_key(NAN), 0);
    assert_int_equal(score_key(-NAN), 0);
    assert_int_equal(score_key(float_of(0x7f800001)), 0);
    assert_int_equal(score_key(float_of(0xffffffff)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_values_of_the_look_ahead_come_out),
        cmocka_unit_test(look_ahead_is_the_log_of_the_summed_retention),
        cmocka_unit_test(log1mexp_loses_no_digits_at_either_end),
        cmocka_unit_test(weight_and_idle_time_are_one_offset),
        cmocka_unit_test(keys_stand_in_the_order_of_the_floats),
        cmocka_unit_test(no_number_ranks_below_every_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
