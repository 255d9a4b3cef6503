#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"

/* The published sequences of both generators. */
static void the_numbers_are_those_of_the_published_generators(void **state)
{
    (void)state;
    static const uint64_t split[] = {6457827717110365317u, 3203168211198807973u,
                                     9817491932198370423u, 4593380528125082431u,
                                     16408922859458223821u};
    static const uint64_t xo[] = {11520u,
                                  0u,
                                  1509978240u,
                                  1215971899390074240u,
                                  1216172134540287360u,
                                  607988272756665600u,
                                  16172922978634559625u,
                                  8476171486693032832u,
                                  10595114339597558777u,
                                  2904607092377533576u};
    uint64_t seed = 1234567;
    for (int i = 0; i < 5; i++)
        assert_true(rng_splitmix(&seed) == split[i]);
    struct rng r = {{1, 2, 3, 4}};
    for (int i = 0; i < 10; i++)
        assert_true(rng_next(&r) == xo[i]);
}

static void fractions_stay_below_one_and_are_even(void **state)
{
    (void)state;
    enum { N = 1000000 };
    struct rng r;
    double sum = 0, squares = 0;
    rng_seed(&r, 0);
    for (int i = 0; i < N; i++) {
        float f = rng_float(&r);
        double d = rng_double(&r);
        assert_true(f >= 0 && f < 1 && d >= 0 && d < 1);
        sum += (double)f + d;
        squares += d * d;
    }
    /* Ten standard deviations of a uniform mean and second moment. */
    assert_true(sum / (2.0 * N) > 0.498 && sum / (2.0 * N) < 0.502);
    assert_true(squares / N > 0.330 && squares / N < 0.337);
    assert_true((float)(UINT64_MAX >> 40) * 0x1p-24f < 1.0f);
}

static void below_is_even_over_a_range_that_does_not_divide(void **state)
{
    (void)state;
    int seen[7] = {0};
    struct rng r;
    rng_seed(&r, 42);
    for (int i = 0; i < 70000; i++)
        seen[rng_below(&r, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_in_range(seen[i], 9000, 11000);
    /* Two thirds of 2^64: without drawing again, the lower half of the range
     * would come twice as often. */
    uint64_t n = UINT64_MAX / 3 * 2;
    int low = 0;
    for (int i = 0; i < 10000; i++)
        low += rng_below(&r, n) < n / 2;
    assert_in_range(low, 4700, 5300);
    assert_true(rng_below(&r, 1) == 0);
}

static void the_same_seed_gives_the_same_numbers(void **state)
{
    (void)state;
    struct rng a, b, c;
    rng_seed(&a, 9);
    rng_seed(&b, 9);
    rng_seed(&c, 10);
    int same = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t x = rng_next(&a);
        assert_true(x == rng_next(&b));
        same += x == rng_next(&c);
    }
    assert_int_equal(same, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_numbers_are_those_of_the_published_generators),
        cmocka_unit_test(fractions_stay_below_one_and_are_even),
        cmocka_unit_test(below_is_even_over_a_range_that_does_not_divide),
        cmocka_unit_test(the_same_seed_gives_the_same_numbers),
    };
    return cmocka_run_group_tests_name("base/rng", tests, NULL, NULL);
}
