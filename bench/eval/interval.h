/* interval.h - the mean of a sample and how sure it is.
 *
 * The percentile bootstrap: the sample is drawn again, with replacement, many
 * times, and the middle 95% of the means of those draws is the interval
 * (Efron 1979). For a difference of two policies the sample is that of the
 * differences, document by document, so that what documents have in common
 * cancels.
 *
 * Threads: any; nothing is kept.
 */
#ifndef BENCH_EVAL_INTERVAL_H
#define BENCH_EVAL_INTERVAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    INTERVAL_DRAWS = 10000,
    /* Fewer documents say nothing beyond doubt: too often do all of so few
     * lie on one side, and then every draw does. */
    INTERVAL_SURE = 8
};

struct interval {
    double mean, lo, hi;
};

/* A sample of n >= 1 documents. They may come from n_tasks tasks (n is a
 * multiple), one after the other with as many documents each: every draw then
 * has as many of each task as the sample, for what differs between tasks is no
 * matter of chance. The same seed draws the same documents, whatever the
 * numbers. */
struct interval_sample {
    size_t n, n_tasks;
    uint64_t seed;
};

/* Of x[0..n): one number a document. ERR_NOMEM. */
MUST_CHECK enum err interval_of(struct interval *out, const double *x,
                                const struct interval_sample *s);

/* Of the quotient of two sums, of a[0..n) and b[0..n), over the same draws of
 * documents; b adds up to something else than zero. A draw in which it does not
 * says nothing and counts as the whole sample does. */
MUST_CHECK enum err interval_of_ratio(struct interval *out, const double *a,
                                      const double *b,
                                      const struct interval_sample *s);

#endif
