#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/dtype.h"

/* Bytes of a block from what is in it: half-precision scales, 4-bit nibbles,
 * fifth bits, six-bit sub-block scales. */
static void block_sizes_follow_from_their_parts(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        const char *name;
        uint32_t elems, bytes;
    } row[] = {
        {DTYPE_F32, "F32", 1, 4},
        {DTYPE_F16, "F16", 1, 2},
        {DTYPE_BF16, "BF16", 1, 2},
        {DTYPE_Q8_0, "Q8_0", 32, 2 + 32},
        {DTYPE_Q4_0, "Q4_0", 32, 2 + 32 / 2},
        {DTYPE_Q4_1, "Q4_1", 32, 2 + 2 + 32 / 2},
        {DTYPE_Q5_0, "Q5_0", 32, 2 + 32 / 8 + 32 / 2},
        {DTYPE_Q5_1, "Q5_1", 32, 2 + 2 + 32 / 8 + 32 / 2},
        {DTYPE_Q4_K, "Q4_K", 256, 2 + 2 + 16 * 6 / 8 + 256 / 2},
        {DTYPE_Q5_K, "Q5_K", 256, 2 + 2 + 16 * 6 / 8 + 256 / 8 + 256 / 2},
        {DTYPE_Q6_K, "Q6_K", 256, 256 / 2 + 256 / 4 + 16 + 2},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const struct dtype_info *info = dtype_info(row[i].type);
        assert_non_null(info);
        assert_string_equal(info->name, row[i].name);
        assert_int_equal(info->block_elems, row[i].elems);
        assert_int_equal(info->block_bytes, row[i].bytes);
        assert_string_equal(dtype_name(row[i].type), row[i].name);
    }
}

static void other_types_have_a_name_but_no_layout(void **state)
{
    (void)state;
    static const uint32_t none[] = {4, 5, 9, 10, 17, 24, 29, 31, 39, 40, 1000};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_null(dtype_info(none[i]));
    assert_string_equal(dtype_name(17), "IQ2_XS");
    assert_string_equal(dtype_name(10), "Q2_K");
    assert_string_equal(dtype_name(4), "unknown");
    assert_string_equal(dtype_name(UINT32_MAX), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_sizes_follow_from_their_parts),
        cmocka_unit_test(other_types_have_a_name_but_no_layout),
    };
    return cmocka_run_group_tests_name("base/dtype", tests, NULL, NULL);
}
