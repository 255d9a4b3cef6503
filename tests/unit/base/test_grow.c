#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "base/grow.h"

static void elements_stay_while_the_array_grows(void **state)
{
    (void)state;
    uint64_t *a = NULL;
    size_t cap = 0, moves = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        size_t before = cap;
        uint64_t *p = grow_array(a, &cap, (size_t)i + 1, sizeof(uint64_t));
        assert_non_null(p);
        a = p;
        assert_true(cap > i);
        if (cap != before) {
            moves++;
            assert_true(cap >= 2 * before);
        }
        a[i] = i * i;
    }
    /* Doubling: about log2(100000) moves, not 100,000. */
    assert_true(moves < 20);
    for (uint64_t i = 0; i < 100000; i++)
        assert_true(a[i] == i * i);
    free(a);
}

static void a_size_that_overflows_is_refused_and_nothing_changes(void **state)
{
    (void)state;
    size_t cap = 0;
    int *a = grow_array(NULL, &cap, 3, sizeof(int));
    assert_non_null(a);
    size_t before = cap;
    a[2] = 7;
    assert_null(grow_array(a, &cap, SIZE_MAX, sizeof(int)));
    assert_null(grow_array(a, &cap, SIZE_MAX / 2, 8));
    assert_int_equal(cap, before);
    assert_int_equal(a[2], 7);
    assert_ptr_equal(grow_array(a, &cap, 1, sizeof(int)), a);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_stay_while_the_array_grows),
        cmocka_unit_test(a_size_that_overflows_is_refused_and_nothing_changes),
    };
    return cmocka_run_group_tests_name("base/grow", tests, NULL, NULL);
}
