/* metrics_text.h - the exposition format: text 0.0.4, or OpenMetrics 1.0,
 * which differs in the names of counters' families and in its last line.
 *
 * Threads: one at a time.
 */
#ifndef SERVER_METRICS_TEXT_H
#define SERVER_METRICS_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "runtime/engine/engine.h"

struct metrics_text {
    struct buf *out;
    bool openmetrics;
};

enum metrics_kind { METRICS_GAUGE, METRICS_COUNTER, METRICS_HISTOGRAM };

struct metrics_label {
    const char *name, *value; /* name NULL: the end of a list */
};

/* HELP and TYPE. name has no _total: 0.0.4 wants it there, OpenMetrics does
 * not. help is plain text on one line. */
MUST_CHECK enum err metrics_text_family(struct metrics_text *t,
                                        const char *name,
                                        enum metrics_kind kind,
                                        const char *help);

/* The name of a sample and its labels; values are escaped. */
MUST_CHECK enum err metrics_text_labels(struct metrics_text *t,
                                        const char *name,
                                        const struct metrics_label *labels);
/* The value and the end of the line. */
MUST_CHECK enum err metrics_text_uint(struct metrics_text *t, uint64_t v);

/* The same for a number that need not be finite. */
MUST_CHECK enum err metrics_text_real(struct metrics_text *t, double v);

/* A whole family. */
MUST_CHECK enum err metrics_text_histogram(struct metrics_text *t,
                                           const char *name, const char *help,
                                           const struct engine_histogram *h);

/* "# EOF" where the format wants it. */
MUST_CHECK enum err metrics_text_end(struct metrics_text *t);

#endif
