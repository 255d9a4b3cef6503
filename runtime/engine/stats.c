#include "runtime/engine/stats.h"

#include <string.h>

/* The bounds are those of vLLM's metrics of the same meaning, so that its
 * dashboards can be pointed at this server (vllm/v1/metrics/loggers.py:
 * time_to_first_token, time_per_output_token / inter_token_latency, and the
 * request latency buckets, which the queue time uses too). A step is what
 * lies between two tokens of an answer, so it has the buckets of that. */
static const double FIRST_TOKEN[] = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
    1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
static const double INTER_TOKEN[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                     0.3,  0.4,   0.5,  0.75,  1.0, 2.5,  5.0,
                                     7.5,  10.0,  20.0, 40.0,  80.0};
static const double REQUEST[] = {
    0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

/* A pass must not be felt: most bounds lie below a step's time. No other
 * server has this metric, nor the next. */
static const double EVICT[] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005,
                               0.01,   0.02,   0.05,   0.1,   0.2,   0.5};
static const double SHARE[] = {0.05, 0.1, 0.2, 0.3, 0.4,  0.5,
                               0.6,  0.7, 0.8, 0.9, 0.95, 0.999};

#define BOUNDS(h, a) set_bounds(h, a, sizeof(a) / sizeof((a)[0]))

static void set_bounds(struct engine_histogram *h, const double *le, size_t n)
{
    h->le = le;
    h->n = (uint32_t)n;
}

void stats_init(struct engine_stats *s)
{
    memset(s, 0, sizeof(*s));
    BOUNDS(&s->first_token_seconds, FIRST_TOKEN);
    BOUNDS(&s->inter_token_seconds, INTER_TOKEN);
    BOUNDS(&s->step_seconds, INTER_TOKEN);
    BOUNDS(&s->request_seconds, REQUEST);
    BOUNDS(&s->queue_seconds, REQUEST);
    BOUNDS(&s->evict_seconds, EVICT);
    BOUNDS(&s->merge_seconds, EVICT);
    BOUNDS(&s->retained_share, SHARE);
}

void stats_observe(struct engine_histogram *h, double value)
{
    uint32_t i = 0;
    while (i < h->n && value > h->le[i])
        i++;
    h->count[i]++;
    h->sum += value;
}

void stats_observe_us(struct engine_histogram *h, int64_t us)
{
    stats_observe(h, us > 0 ? (double)us / 1e6 : 0.0);
}
