#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/kv_layout.h"

/* Marks the bytes of one part; a byte that two parts claim is a fault. */
static void claim(unsigned char *used, size_t size, size_t at, size_t n)
{
    assert_true(at + n <= size);
    for (size_t i = at; i < at + n; i++)
        assert_int_equal(used[i]++, 0);
}

static void the_parts_of_a_block_neither_overlap_nor_leave_it(void **state)
{
    (void)state;
    static const enum kv_type types[] = {KV_F16, KV_Q8_0, KV_F32};
    static const uint32_t bytes[] = {2, 1, 4};
    for (int t = 0; t < 3; t++)
        for (uint32_t dim = 8; dim <= 256; dim += 8) {
            struct kv_layout l;
            kv_layout_init(&l, types[t], dim);
            assert_int_equal(l.elem_bytes, bytes[t]);
            assert_int_equal(l.data_bytes % KV_ALIGN, 0);
            unsigned char *used = calloc(1, l.data_bytes);
            size_t side = (size_t)KV_UNIT * dim * bytes[t];
            size_t sum = 2 * side + KV_UNIT * 4;
            claim(used, l.data_bytes, l.k, side);
            claim(used, l.data_bytes, l.v, side);
            claim(used, l.data_bytes, l.bias, KV_UNIT * 4);
            if (types[t] == KV_Q8_0) {
                claim(used, l.data_bytes, l.k_scale, KV_UNIT * 4);
                claim(used, l.data_bytes, l.v_scale, KV_UNIT * 4);
                sum += 2 * KV_UNIT * 4;
            } else {
                assert_int_equal(l.k_scale, 0);
                assert_int_equal(l.v_scale, 0);
            }
            assert_int_equal(l.bias % 4, 0);
            assert_true(l.data_bytes - sum < KV_ALIGN);
            free(used);
        }
}

static void every_key_element_has_a_place_of_its_own(void **state)
{
    (void)state;
    struct kv_layout l;
    kv_layout_init(&l, KV_F16, 80);
    bool seen[KV_UNIT * 80] = {false};
    for (uint32_t e = 0; e < KV_UNIT; e++)
        for (uint32_t i = 0; i < 80; i++) {
            size_t at = kv_key_index(&l, e, i);
            assert_true(at < KV_UNIT * 80);
            assert_false(seen[at]);
            seen[at] = true;
            /* The next entry of the same eight is the next element. */
            if (e % KV_LANES > 0)
                assert_int_equal(at, kv_key_index(&l, e - 1, i) + 1);
        }
}

static void bookkeeping_costs_twenty_bytes_an_entry_with_the_bias(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct kv_meta) + KV_UNIT * sizeof(float),
                     20 * KV_UNIT);
    assert_string_equal(kv_type_name(KV_F16), "f16");
    assert_string_equal(kv_type_name(KV_Q8_0), "q8_0");
    assert_string_equal(kv_type_name(KV_F32), "f32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_a_block_neither_overlap_nor_leave_it),
        cmocka_unit_test(every_key_element_has_a_place_of_its_own),
        cmocka_unit_test(bookkeeping_costs_twenty_bytes_an_entry_with_the_bias),
    };
    return cmocka_run_group_tests_name("base/kv_layout", tests, NULL, NULL);
}
