#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/kernels/quant.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { GOLDEN_BYTES_MAX = 1 << 20 };

static bool same_number(float a, float b)
{
    return (isnan(a) && isnan(b)) || quant_f32_bits(a) == quant_f32_bits(b);
}

/* Reads one record of the golden file; false at its end. */
static bool check_record(FILE *f, uint32_t *type)
{
    uint32_t head[2];
    if (fread(head, sizeof(head), 1, f) != 1)
        return false;
    *type = head[0];
    const struct dtype_info *info = dtype_info(head[0]);
    assert_non_null(info);
    size_t n = (size_t)head[1] * info->block_elems;
    size_t bytes = (size_t)head[1] * info->block_bytes;
    assert_in_range(n * sizeof(float), 1, GOLDEN_BYTES_MAX);
    /* One byte in front, so that nothing is aligned. */
    uint8_t *raw = malloc(bytes + 1);
    float *want = malloc(n * sizeof(*want)), *got = malloc(n * sizeof(*got));
    assert_true(raw != NULL && want != NULL && got != NULL);
    assert_int_equal(fread(raw + 1, 1, bytes, f), bytes);
    assert_int_equal(fread(want, sizeof(*want), n, f), n);
    quant_dequantize((enum dtype)head[0], raw + 1, got, n);
    for (size_t i = 0; i < n; i++) {
        if (!same_number(got[i], want[i]))
            fail_msg("%s element %zu: got %a, want %a", info->name, i,
                     (double)got[i], (double)want[i]);
    }
    free(raw);
    free(want);
    free(got);
    return true;
}

static void every_type_equals_the_python_dequantiser_bit_for_bit(void **state)
{
    (void)state;
    static const uint32_t all[] = {
        DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1,
        DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
    FILE *f = fopen("tests/golden/quant/blocks.bin", "rb");
    assert_non_null(f);
    uint32_t type = 0, seen = 0;
    while (check_record(f, &type))
        seen |= (uint32_t)1 << type;
    fclose(f);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        assert_true((seen >> all[i]) & 1);
}

static void dequantising_in_pieces_gives_the_same_as_at_once(void **state)
{
    (void)state;
    uint8_t raw[4 * 18];
    float at_once[128], pieces[128];
    for (size_t i = 0; i < sizeof(raw); i++)
        raw[i] = (uint8_t)(i * 37 % 61);
    quant_dequantize(DTYPE_Q4_0, raw, at_once, 128);
    quant_dequantize(DTYPE_Q4_0, raw, pieces, 32);
    quant_dequantize(DTYPE_Q4_0, raw + 18, pieces + 32, 96);
    assert_memory_equal(at_once, pieces, sizeof(pieces));
    quant_dequantize(DTYPE_Q4_0, NULL, NULL, 0);
}

/* The value of a finite f16 by the definition of IEEE 754, in double. */
static double f16_value(uint16_t h)
{
    int e = (h >> 10) & 31;
    double significand = (h & 0x3FF) + (e > 0 ? 1024.0 : 0.0);
    double v = ldexp(significand, (e > 0 ? e : 1) - 25);
    return (h & 0x8000) != 0 ? -v : v;
}

static void all_f16_patterns_have_the_value_of_the_definition(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= 0xFFFF; i++) {
        uint16_t h = (uint16_t)i;
        float x = quant_f16_to_f32(h);
        assert_int_equal(signbit(x) != 0, h >> 15);
        if ((h & 0x7C00) != 0x7C00) {
            assert_true((double)x == f16_value(h));
            assert_int_equal(quant_f32_to_f16(x), h);
        } else if ((h & 0x3FF) == 0) {
            assert_true(isinf(x));
            assert_int_equal(quant_f32_to_f16(x), h);
        } else {
            assert_true(isnan(x));
            assert_int_equal(quant_f32_to_f16(x), h | 0x200);
        }
    }
}

/* Between two neighbours a < b the middle goes to the even one, and what is
 * next to the middle to the nearer one; this meets every border there is. */
static void f32_to_f16_rounds_to_nearest_even_everywhere(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7C00; h++) {
        double a = f16_value(h);
        double b = h < 0x7BFF ? f16_value((uint16_t)(h + 1)) : 65536.0;
        float middle = (float)((a + b) / 2);
        assert_true((double)middle == (a + b) / 2);
        uint16_t up = (uint16_t)(h + 1), even = h % 2 == 0 ? h : up;
        assert_int_equal(quant_f32_to_f16(middle), even);
        assert_int_equal(quant_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(quant_f32_to_f16(nextafterf(middle, INFINITY)), up);
        assert_int_equal(quant_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(quant_f32_to_f16(-nextafterf(middle, 0)), h | 0x8000);
    }
    assert_int_equal(quant_f32_to_f16(3.4e38f), 0x7C00);
    assert_int_equal(quant_f32_to_f16(-INFINITY), 0xFC00);
    assert_int_equal(quant_f32_to_f16(1e-45f), 0);
    assert_int_equal(quant_f32_to_f16(-0.0f), 0x8000);
}

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) static uint16_t hardware_f16(float x)
{
    return (uint16_t)_cvtss_sh(x, 0);
}

__attribute__((target("f16c"))) static uint32_t hardware_f32_bits(uint16_t h)
{
    return quant_f32_bits(_cvtsh_ss(h));
}
#endif

static void the_f16_conversions_equal_the_hardware(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        for (uint32_t i = 0; i <= 0xFFFF; i++)
            assert_int_equal(quant_f32_bits(quant_f16_to_f32((uint16_t)i)),
                             hardware_f32_bits((uint16_t)i));
        uint64_t seed = 1;
        for (int i = 0; i < 2000000; i++) {
            float x = quant_f32_from_bits((uint32_t)next_random(&seed));
            if (quant_f32_to_f16(x) != hardware_f16(x))
                fail_msg("%a", (double)x);
        }
        return;
    }
#endif
    skip();
}

static void bf16_is_the_upper_half_rounded_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= 0xFFFF; i++) {
        uint16_t b = (uint16_t)i;
        float x = quant_bf16_to_f32(b);
        assert_int_equal(quant_f32_bits(x), i << 16);
        bool is_nan = (b & 0x7FFF) > 0x7F80;
        assert_int_equal(quant_f32_to_bf16(x), is_nan ? b | 0x40 : b);
        if ((b & 0x7FFF) >= 0x7F80)
            continue;
        /* In bits, since the middle above the largest has no float. */
        uint16_t up = (uint16_t)(b + 1), even = b % 2 == 0 ? b : up;
        float below = quant_f32_from_bits(i << 16 | 0x7FFF);
        float middle = quant_f32_from_bits(i << 16 | 0x8000);
        float above = quant_f32_from_bits(i << 16 | 0x8001);
        assert_int_equal(quant_f32_to_bf16(below), b);
        assert_int_equal(quant_f32_to_bf16(middle), even);
        assert_int_equal(quant_f32_to_bf16(above), up);
    }
    /* A NaN whose payload is all in the lower half must not become infinite.
     */
    float nan_low = quant_f32_from_bits(0x7F800001);
    assert_int_equal(quant_f32_to_bf16(nan_low), 0x7FC0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_equals_the_python_dequantiser_bit_for_bit),
        cmocka_unit_test(dequantising_in_pieces_gives_the_same_as_at_once),
        cmocka_unit_test(all_f16_patterns_have_the_value_of_the_definition),
        cmocka_unit_test(f32_to_f16_rounds_to_nearest_even_everywhere),
        cmocka_unit_test(the_f16_conversions_equal_the_hardware),
        cmocka_unit_test(bf16_is_the_upper_half_rounded_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
