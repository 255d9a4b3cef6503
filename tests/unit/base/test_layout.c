#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/layout.h"

static void lay_out(struct layout *l, uint8_t *piece[3])
{
    piece[0] = layout_cut(l, 3, 1);
    piece[1] = layout_cut(l, 0, 8);
    piece[2] = layout_cut(l, 10, 8);
}

static void the_count_is_what_the_pieces_take(void **state)
{
    (void)state;
    uint8_t block[1024], *piece[3];
    struct layout l = {0};
    lay_out(&l, piece);
    assert_int_equal(l.bytes, 64 + 128);
    for (int i = 0; i < 3; i++)
        assert_null(piece[i]);
    l = (struct layout){.base = block};
    lay_out(&l, piece);
    assert_int_equal(l.bytes, 64 + 128);
    assert_ptr_equal(piece[0], block);
    assert_ptr_equal(piece[2], block + 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_count_is_what_the_pieces_take),
    };
    return cmocka_run_group_tests_name("base/layout", tests, NULL, NULL);
}
