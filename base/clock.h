/* clock.h - the two clocks of the program.
 *
 * Time is a parameter wherever a result depends on it: only the outermost
 * code (main loop, HTTP layer, log) asks a clock, and passes the value down.
 *
 * Threads: any; nothing is kept.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Microseconds since some fixed point in the past. Never goes back, counts no
 * leap seconds; only differences mean anything. */
int64_t clock_us(void);

/* Seconds and microseconds since 1970-01-01 UTC. May jump when the host's
 * clock is set; for `created` fields and log lines only. */
int64_t clock_wall_s(void);
int64_t clock_wall_us(void);

#endif
