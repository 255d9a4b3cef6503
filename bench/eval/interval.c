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

/* The document that stands in the place of document i in a draw: one of its
 * task. */
static size_t draw_for(size_t i, const struct interval_sample *s,
                       struct rng *rng)
{
    size_t each = s->n / s->n_tasks;
    return i / each * each + rng_below(rng, each);
}

enum err interval_of(struct interval *out, const double *x,
                     const struct interval_sample *s)
{
    double *draw = malloc(INTERVAL_DRAWS * sizeof(*draw));
    struct rng rng;
    assert(s->n > 0 && s->n % s->n_tasks == 0);
    if (draw == NULL)
        return ERR_NOMEM;
    rng_seed(&rng, s->seed);
    for (size_t d = 0; d < INTERVAL_DRAWS; d++) {
        double sum = 0;
        for (size_t i = 0; i < s->n; i++)
            sum += x[draw_for(i, s, &rng)];
        draw[d] = sum / (double)s->n;
    }
    out->mean = sum_of(x, s->n) / (double)s->n;
    cut(out, draw);
    free(draw);
    return OK;
}

enum err interval_of_ratio(struct interval *out, const double *a,
                           const double *b, const struct interval_sample *s)
{
    double *draw = malloc(INTERVAL_DRAWS * sizeof(*draw));
    struct rng rng;
    assert(s->n > 0 && s->n % s->n_tasks == 0 && sum_of(b, s->n) != 0);
    if (draw == NULL)
        return ERR_NOMEM;
    rng_seed(&rng, s->seed);
    out->mean = sum_of(a, s->n) / sum_of(b, s->n);
    for (size_t d = 0; d < INTERVAL_DRAWS; d++) {
        double sum_a = 0, sum_b = 0;
        for (size_t i = 0; i < s->n; i++) {
            size_t k = draw_for(i, s, &rng);
            sum_a += a[k];
            sum_b += b[k];
        }
        draw[d] = sum_b != 0 ? sum_a / sum_b : out->mean;
    }
    cut(out, draw);
    free(draw);
    return OK;
}
