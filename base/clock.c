#include "base/clock.h"

#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec t = {0, 0};
    clock_gettime(id, &t); /* cannot fail for these two clocks */
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t clock_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

int64_t clock_wall_s(void)
{
    return clock_wall_us() / 1000000;
}
