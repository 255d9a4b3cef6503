/* stats.h - the histograms of the engine and their buckets.
 *
 * Threads: one at a time; the engine publishes copies.
 */
#ifndef RUNTIME_ENGINE_STATS_H
#define RUNTIME_ENGINE_STATS_H

#include <stdint.h>

#include "runtime/engine/engine.h"

/* Empty histograms with their bounds; all counters zero. */
void stats_init(struct engine_stats *s);

/* Counts a value in the first bucket whose bound is not below it, as
 * Prometheus does. */
void stats_observe(struct engine_histogram *h, double value);

/* The same for a time span in microseconds, recorded in seconds. */
void stats_observe_us(struct engine_histogram *h, int64_t us);

#endif
