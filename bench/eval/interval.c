#include "bench/eval/interval.h"

#include <assert.h>
#include <stdlib.h>

#include "base/rng.h"

/* Draws outside each end of the middle 95%. */
enum { OUTSIDE = INTERVAL_DRAWS / 40 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum err interval_of(struct interval *out, const double *x, size_t n,
                     uint64_t seed)
{
    double sum = 0, *mean = malloc(INTERVAL_DRAWS * sizeof(*mean));
    struct rng rng;
    assert(n > 0);
    if (mean == NULL)
        return ERR_NOMEM;
    rng_seed(&rng, seed);
    for (size_t d = 0; d < INTERVAL_DRAWS; d++) {
        double drawn = 0;
        for (size_t i = 0; i < n; i++)
            drawn += x[rng_below(&rng, n)];
        mean[d] = drawn / (double)n;
    }
    qsort(mean, INTERVAL_DRAWS, sizeof(*mean), by_value);
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    *out = (struct interval){.mean = sum / (double)n,
                             .lo = mean[OUTSIDE],
                             .hi = mean[INTERVAL_DRAWS - 1 - OUTSIDE]};
    free(mean);
    return OK;
}
