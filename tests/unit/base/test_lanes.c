#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/lanes.h"
#include "base/rng.h"

enum { D = 37, VECTORS = 19, BLOCKS = 3 };

static double draw(struct rng *r)
{
    return (double)(rng_float(r) - 0.5f) * (1 << rng_below(r, 20));
}

static void every_sum_has_the_bits_that_it_has_alone(void **state)
{
    (void)state;
    static double block[BLOCKS * LANES * D], x[D], all[LANES];
    static float block_f[BLOCKS * LANES * D], x_f[D], all_f[LANES];
    struct rng r;
    rng_seed(&r, 3);
    for (size_t i = 0; i < BLOCKS * LANES * D; i++)
        block_f[i] = (float)(block[i] = draw(&r));
    for (size_t i = 0; i < D; i++)
        x_f[i] = (float)(x[i] = draw(&r));
    for (size_t n = 0; n <= D; n++) {
        for (size_t e = 0; e < BLOCKS * LANES; e++) {
            double sum = 0;
            float sum_f = 0;
            size_t at = lanes_at(e / LANES * LANES, D, 0);
            for (size_t i = 0; i < n; i++) {
                sum += x[i] * block[lanes_at(e, D, i)];
                sum_f += x_f[i] * block_f[lanes_at(e, D, i)];
            }
            lanes_dot_f64(block + at, x, n, all);
            lanes_dot_f32(block_f + at, x_f, n, all_f);
            assert_memory_equal(&all[e % LANES], &sum, sizeof(sum));
            assert_memory_equal(&all_f[e % LANES], &sum_f, sizeof(sum_f));
        }
    }
}

static void every_number_has_a_place_of_its_own(void **state)
{
    (void)state;
    static uint8_t taken[BLOCKS * LANES * D];
    assert_int_equal(lanes_blocks(VECTORS), BLOCKS);
    assert_int_equal(lanes_blocks(LANES), 1);
    assert_int_equal(lanes_blocks(0), 0);
    for (size_t e = 0; e < BLOCKS * LANES; e++)
        for (size_t i = 0; i < D; i++)
            assert_int_equal(taken[lanes_at(e, D, i)]++, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sum_has_the_bits_that_it_has_alone),
        cmocka_unit_test(every_number_has_a_place_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
