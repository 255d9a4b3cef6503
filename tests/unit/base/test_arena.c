#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

static void pieces_are_zeroed_aligned_and_never_overlap(void **state)
{
    (void)state;
    enum { PIECES = 3000 };
    static unsigned char *piece[PIECES];
    static size_t size[PIECES];
    struct arena a;
    struct rng r;
    rng_seed(&r, 1);
    arena_init(&a, 64 << 20);
    for (int i = 0; i < PIECES; i++) {
        size[i] = (size_t)rng_below(&r, i % 100 == 0 ? 300000 : 200);
        piece[i] = arena_alloc(&a, size[i]);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % ARENA_ALIGN, 0);
        for (size_t k = 0; k < size[i]; k++)
            assert_int_equal(piece[i][k], 0);
        if (size[i] > 0)
            memset(piece[i], i % 251, size[i]);
    }
    for (int i = 0; i < PIECES; i++)
        for (size_t k = 0; k < size[i]; k++)
            assert_int_equal(piece[i][k], i % 251);
    arena_fini(&a);
    assert_int_equal(a.taken, 0);
}

static void the_limit_counts_all_that_is_taken(void **state)
{
    (void)state;
    enum { LIMIT = 100000 };
    struct arena a;
    arena_init(&a, LIMIT);
    size_t got = 0;
    while (arena_alloc(&a, 100) != NULL) {
        got += 100;
        assert_true(a.taken <= LIMIT);
    }
    /* Headers and rounding may cost a little, no more. */
    assert_true(got > LIMIT * 8 / 10);
    assert_null(arena_alloc(&a, LIMIT));
    arena_fini(&a);
    assert_non_null(arena_alloc(&a, LIMIT / 2));
    assert_null(arena_alloc(&a, LIMIT / 2));
    arena_fini(&a);
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, SIZE_MAX);
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_array(&a, SIZE_MAX / 4, 8));
    assert_null(arena_strndup(&a, "", SIZE_MAX));
    assert_non_null(arena_array(&a, 10, 8));
    assert_non_null(arena_array(&a, 10, 0));
    arena_fini(&a);
    struct arena none = {0};
    assert_null(arena_alloc(&none, 1));
    arena_fini(&none);
}

static void a_copied_string_ends_in_a_nul(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 10000);
    assert_string_equal(arena_strndup(&a, "abcdef", 3), "abc");
    assert_string_equal(arena_strndup(&a, "", 0), "");
    arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zeroed_aligned_and_never_overlap),
        cmocka_unit_test(the_limit_counts_all_that_is_taken),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(a_copied_string_ends_in_a_nul),
    };
    return cmocka_run_group_tests_name("base/arena", tests, NULL, NULL);
}
