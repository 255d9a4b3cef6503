#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/rng.h"
#include "runtime/engine/stop.h"

/* The rule in its plainest form: the first byte at which some stop string is
 * complete decides; of those complete there the longest is cut off. SIZE_MAX:
 * no stop string is in the text. */
static size_t cut_of(const char *text, size_t n, const char *const *stop,
                     const size_t *len, uint32_t n_stops)
{
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (uint32_t i = 0; i < n_stops; i++) {
            if (len[i] <= end && len[i] > longest &&
                memcmp(text + end - len[i], stop[i], len[i]) == 0)
                longest = len[i];
        }
        if (longest > 0)
            return end - longest;
    }
    return SIZE_MAX;
}

/* The longest tail of the text that could still become a stop string. */
static size_t held_of(const char *text, size_t n, const char *const *stop,
                      const size_t *len, uint32_t n_stops)
{
    for (size_t k = n; k > 0; k--) {
        for (uint32_t i = 0; i < n_stops; i++) {
            if (k < len[i] && memcmp(text + n - k, stop[i], k) == 0)
                return k;
        }
    }
    return 0;
}

static void compare(struct rng *r, const char *text, size_t n,
                    const char *const *stop, const size_t *len,
                    uint32_t n_stops)
{
    struct stop s;
    struct buf out = {0};
    size_t at = 0, cut = cut_of(text, n, stop, len, n_stops);
    assert_int_equal(stop_init(&s, stop, len, n_stops), OK);
    while (at < n && !s.matched) {
        size_t piece = rng_below(r, 6);
        if (piece > n - at)
            piece = n - at;
        assert_int_equal(stop_push(&s, text + at, piece, &out), OK);
        at += piece;
        /* Nothing is held without need. */
        if (!s.matched)
            assert_int_equal(out.len,
                             at - held_of(text, at, stop, len, n_stops));
    }
    assert_int_equal(s.matched, cut != SIZE_MAX);
    if (!s.matched)
        assert_int_equal(stop_flush(&s, &out), OK);
    assert_int_equal(out.len, s.matched ? cut : n);
    if (out.len > 0)
        assert_memory_equal(out.data, text, out.len);
    stop_fini(&s);
    buf_fini(&out);
}

/* Few letters, so that matches, overlaps and near misses are common. */
static void pieces_of_any_size_give_the_cut_of_the_whole_text(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 1);
    for (int round = 0; round < 50000; round++) {
        char text[60], pool[GEN_STOPS_MAX][12];
        const char *stop[GEN_STOPS_MAX];
        size_t len[GEN_STOPS_MAX], n = rng_below(&r, sizeof(text));
        uint32_t n_stops = (uint32_t)rng_below(&r, GEN_STOPS_MAX + 1);
        uint64_t letters = 1 + rng_below(&r, 3);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rng_below(&r, letters));
        for (uint32_t i = 0; i < n_stops; i++) {
            len[i] = 1 + rng_below(&r, sizeof(pool[i]));
            stop[i] = pool[i];
            for (size_t k = 0; k < len[i]; k++)
                pool[i][k] = (char)('a' + rng_below(&r, letters));
        }
        compare(&r, text, n, stop, len, n_stops);
    }
}

static void the_match_that_is_complete_first_wins(void **state)
{
    (void)state;
    const char *const stop[] = {"abcd", "bc"};
    const size_t len[] = {4, 2};
    struct stop s;
    struct buf out = {0};
    assert_int_equal(stop_init(&s, stop, len, 2), OK);
    assert_int_equal(stop_push(&s, "xabcd", 5, &out), OK);
    assert_true(s.matched);
    assert_string_equal(out.data, "xa");
    stop_fini(&s);
    buf_fini(&out);
}

static void a_stop_of_the_greatest_length_works(void **state)
{
    (void)state;
    static char text[GEN_STOP_BYTES_MAX + 1];
    memset(text, 'a', sizeof(text));
    text[GEN_STOP_BYTES_MAX] = 'b';
    const char *const stop[] = {text + 1}; /* 4095 times a, then b */
    const size_t len[] = {GEN_STOP_BYTES_MAX};
    struct stop s;
    struct buf out = {0};
    assert_int_equal(stop_init(&s, stop, len, 1), OK);
    for (size_t i = 0; i < sizeof(text); i++)
        assert_int_equal(stop_push(&s, text + i, 1, &out), OK);
    assert_true(s.matched);
    assert_int_equal(out.len, 1);
    stop_fini(&s);
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_any_size_give_the_cut_of_the_whole_text),
        cmocka_unit_test(the_match_that_is_complete_first_wins),
        cmocka_unit_test(a_stop_of_the_greatest_length_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
