/* metrics.h - GET /metrics: the server's counters and the engine's, as text.
 *
 * Names are a contract (docs/design, interface). There is one tenant yet, and
 * its name is "default"; keys of clients never show.
 *
 * Threads: counting by any, rendering by any.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "server/route.h"

struct server;

enum metrics_outcome {
    METRICS_OK,
    METRICS_CANCELLED,
    METRICS_REJECTED, /* 429, 503 */
    METRICS_BAD_REQUEST,
    METRICS_ERROR,
    METRICS_OUTCOMES
};

enum metrics_rejection {
    METRICS_REJECTED_PREPARE, /* the queue before the engine is full */
    METRICS_REJECTED_CONTEXT, /* too long a prompt, known while reading it */
    METRICS_REJECTIONS
};

struct metrics { /* a zeroed one is valid */
    atomic_uint_least64_t requests[ROUTE_COUNT][METRICS_OUTCOMES];
    atomic_uint_least64_t rejections[METRICS_REJECTIONS];
};

void metrics_count(struct metrics *m, enum route_id route,
                   enum metrics_outcome outcome);
void metrics_count_rejection(struct metrics *m, enum metrics_rejection why);
const char *metrics_outcome_name(enum metrics_outcome outcome);

/* Does this Accept header (NULL: none) prefer OpenMetrics? */
bool metrics_wants_openmetrics(const char *accept);
const char *metrics_content_type(bool openmetrics);

MUST_CHECK enum err metrics_render(struct server *s, bool openmetrics,
                                   struct buf *out);

#endif
