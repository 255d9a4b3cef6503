#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <time.h>

#include "base/clock.h"

static void the_monotonic_clock_never_goes_back(void **state)
{
    (void)state;
    int64_t last = clock_us();
    for (int i = 0; i < 100000; i++) {
        int64_t now = clock_us();
        assert_true(now >= last);
        last = now;
    }
}

static void a_pause_of_20_ms_is_measured_as_that(void **state)
{
    (void)state;
    struct timespec pause = {0, 20 * 1000 * 1000};
    int64_t start = clock_us();
    nanosleep(&pause, NULL);
    int64_t took = clock_us() - start;
    assert_true(took >= 20000 && took < 10000000);
}

static void wall_time_is_that_of_the_system(void **state)
{
    (void)state;
    int64_t before = time(NULL) - 1;
    int64_t s = clock_wall_s(), us = clock_wall_us();
    int64_t after = time(NULL) + 1;
    assert_true(s >= before && s <= after);
    assert_true(us / 1000000 >= before && us / 1000000 <= after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_monotonic_clock_never_goes_back),
        cmocka_unit_test(a_pause_of_20_ms_is_measured_as_that),
        cmocka_unit_test(wall_time_is_that_of_the_system),
    };
    return cmocka_run_group_tests_name("base/clock", tests, NULL, NULL);
}
