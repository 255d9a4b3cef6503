#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/engine/stats.h"

/* A value on a bound belongs to that bucket ("le": less or equal). */
static void a_value_is_counted_in_the_first_bucket_that_holds_it(void **state)
{
    (void)state;
    struct engine_stats s;
    stats_init(&s);
    struct engine_histogram *h = &s.request_seconds;
    stats_observe(h, 0.3);
    stats_observe(h, 0.31);
    stats_observe(h, 7680.0);
    stats_observe(h, 7680.5);
    stats_observe_us(h, 500000);
    stats_observe_us(h, -5);
    assert_int_equal(h->n, 21);
    assert_int_equal(h->count[0], 2);
    assert_int_equal(h->count[1], 2);
    assert_int_equal(h->count[20], 1);
    assert_int_equal(h->count[21], 1);
    assert_true(h->sum > 15361.6 && h->sum < 15361.62);
}

static void bounds_rise_and_fit(void **state)
{
    (void)state;
    struct engine_stats s;
    stats_init(&s);
    const struct engine_histogram *all[] = {
        &s.first_token_seconds, &s.inter_token_seconds, &s.request_seconds,
        &s.queue_seconds, &s.step_seconds};
    static const double first[] = {0.001, 0.01, 0.3, 0.3, 0.01};
    static const double last[] = {2560, 80, 7680, 7680, 80};
    for (int i = 0; i < 5; i++) {
        assert_true(all[i]->n > 0 && all[i]->n <= ENGINE_BUCKETS_MAX);
        assert_true(all[i]->le[0] == first[i]);
        assert_true(all[i]->le[all[i]->n - 1] == last[i]);
        for (uint32_t k = 1; k < all[i]->n; k++)
            assert_true(all[i]->le[k] > all[i]->le[k - 1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_counted_in_the_first_bucket_that_holds_it),
        cmocka_unit_test(bounds_rise_and_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
