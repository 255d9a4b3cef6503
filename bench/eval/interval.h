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

enum { INTERVAL_DRAWS = 10000 };

struct interval {
    double mean, lo, hi;
};

/* Of x[0..n), n >= 1: one number a document. The same seed and n draw the same
 * documents, whatever the numbers. ERR_NOMEM. */
MUST_CHECK enum err interval_of(struct interval *out, const double *x, size_t n,
                                uint64_t seed);

/* Of the quotient of two sums, of a[0..n) and b[0..n), over the same draws of
 * documents; b adds up to something else than zero. A draw in which it does not
 * says nothing and counts as the whole sample does. */
MUST_CHECK enum err interval_of_ratio(struct interval *out, const double *a,
                                      const double *b, size_t n, uint64_t seed);

#endif
