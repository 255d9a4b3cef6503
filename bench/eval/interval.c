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

/* Sorts the draws' values and cuts off both ends. */
static void cut(struct interval *out, double *draw)
{
    qsort(draw, INTERVAL_DRAWS, sizeof(*draw), by_value);
    out->lo = draw[OUTSIDE];
    out->hi = draw[INTERVAL_DRAWS - 1 - OUTSIDE];
}

static double sum_of(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

enum err interval_of(struct interval *out, const double *x, size_t n,
                     uint64_t seed)
{
    double *draw = malloc(INTERVAL_DRAWS * sizeof(*draw));
    struct rng rng;
    assert(n > 0);
    if (draw == NULL)
        return ERR_NOMEM;
    rng_seed(&rng, seed);
    for (size_t d = 0; d < INTERVAL_DRAWS; d++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += x[rng_below(&rng, n)];
        draw[d] = sum / (double)n;
    }
    out->mean = sum_of(x, n) / (double)n;
    cut(out, draw);
    free(draw);
    return OK;
}

enum err interval_of_ratio(struct interval *out, const double *a,
                           const double *b, size_t n, uint64_t seed)
{
    double *draw = malloc(INTERVAL_DRAWS * sizeof(*draw));
    struct rng rng;
    assert(n > 0 && sum_of(b, n) != 0);
    if (draw == NULL)
        return ERR_NOMEM;
    rng_seed(&rng, seed);
    out->mean = sum_of(a, n) / sum_of(b, n);
    for (size_t d = 0; d < INTERVAL_DRAWS; d++) {
        double sum_a = 0, sum_b = 0;
        for (size_t i = 0; i < n; i++) {
            size_t k = rng_below(&rng, n);
            sum_a += a[k];
            sum_b += b[k];
        }
        draw[d] = sum_b != 0 ? sum_a / sum_b : out->mean;
    }
    cut(out, draw);
    free(draw);
    return OK;
}
