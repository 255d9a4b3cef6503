/* R-KV (arXiv 2505.24133): important entries that are not redundant.
 *
 *     imp   = maxpool(mean over the last W queries of softmax over the prefix
 *             of the group's largest logit)
 *     C     = cosines of the keys; 0 on the diagonal, and for each key r at
 *             the last key with C[r][.] > 0.5 (at key 0 where there is none),
 *             so that the latest of several duplicates is spared
 *     red   = softmax over all keys of the mean over r of C[r][.]
 *     score = w * imp - (1 - w) * red
 *
 * C is symmetric, so the sum of its column j before the zeros is the product
 * of key j with the sum of all keys (each of length 1). Only the zeros must
 * be looked for, from the last key back: no n x n matrix. */
#include <math.h>

#include "cache/policy/policy_internal.h"

enum { WINDOW = 8, POOL = 7 };

static const double DUPLICATE = 0.5;

static double dot(const double *x, const double *y, uint32_t d)
{
    double sum = 0;
    for (uint32_t i = 0; i < d; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Keys of length 1 into unit[n][d]; a key of zeros stays. */
static void directions(const struct policy_list *l, uint32_t d, double *unit)
{
    for (uint32_t e = 0; e < l->n; e++) {
        double *u = unit + (size_t)e * d;
        for (uint32_t i = 0; i < d; i++)
            u[i] = (double)l->key[(size_t)e * d + i];
        double norm = sqrt(dot(u, u, d));
        for (uint32_t i = 0; i < d && norm > 0; i++)
            u[i] /= norm;
    }
}

/* Column sums of C without the zeros for duplicates. */
static void similarity(const double *unit, uint32_t n, uint32_t d, double *all,
                       double *sum)
{
    for (uint32_t i = 0; i < d; i++)
        all[i] = 0;
    for (uint32_t e = 0; e < n; e++)
        for (uint32_t i = 0; i < d; i++)
            all[i] += unit[(size_t)e * d + i];
    for (uint32_t e = 0; e < n; e++) {
        const double *u = unit + (size_t)e * d;
        sum[e] = dot(u, all, d) - dot(u, u, d);
    }
}

static void spare_latest_duplicates(const double *unit, uint32_t n, uint32_t d,
                                    double *sum)
{
    for (uint32_t r = 0; r < n; r++) {
        const double *u = unit + (size_t)r * d;
        uint32_t c = n - 1;
        while (c > 0 &&
               (c == r || dot(u, unit + (size_t)c * d, d) <= DUPLICATE))
            c--;
        if (c != r)
            sum[c] -= dot(u, unit + (size_t)c * d, d);
    }
}

/* x becomes softmax(x * scale). */
static void softmax(double *x, uint32_t n, double scale)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = x[i] * scale > max ? x[i] * scale : max;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i] * scale - max);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* Adds the importance of the first n entries, not pooled yet. */
static void add_importance(const struct policy_view *v,
                           const struct policy_list *l, uint32_t n_window,
                           uint32_t n, double *row, float *imp)
{
    for (uint32_t r = v->n_window - n_window; r < v->n_window; r++) {
        for (uint32_t e = 0; e < n; e++)
            row[e] = (double)l->peak[(size_t)r * l->n + e];
        softmax(row, n, 1);
        for (uint32_t e = 0; e < n; e++)
            imp[e] += (float)(row[e] / n_window);
    }
}

static enum err score_list(const struct policy_view *v,
                           const struct policy_params *p,
                           const struct policy_list *l, struct arena *a,
                           float *out)
{
    uint32_t d = v->head_dim, W = policy_window(v, p);
    uint32_t n = policy_prefix(v, l, W);
    double *unit = arena_array(a, (size_t)l->n * d, sizeof(*unit));
    double *red = arena_array(a, l->n, sizeof(*red));
    double *row = arena_array(a, (size_t)l->n + d, sizeof(*row));
    float *imp = arena_array(a, l->n, sizeof(*imp));
    if (!unit || !red || !row || !imp)
        return ERR_NOMEM;
    directions(l, d, unit);
    similarity(unit, l->n, d, row, red);
    spare_latest_duplicates(unit, l->n, d, red);
    softmax(red, l->n, 1.0 / l->n);
    add_importance(v, l, W, n, row, imp);
    policy_pool(p, imp, n, out);
    for (uint32_t e = 0; e < n; e++) {
        double w = (double)p->importance;
        out[e] = (float)(w * (double)out[e] - (1 - w) * red[e]);
    }
    policy_fill_rest(out, n, l->n);
    return OK;
}

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    enum err rc = OK;
    for (uint32_t h = 0; h < v->n_kv_heads && rc == OK; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        if (l->n > 0)
            rc = score_list(v, p, l, a, out + l->first);
    }
    return rc;
}

const struct policy policy_rkv = {.name = "r-kv",
                                  .needs = POLICY_PEAK | POLICY_KEYS,
                                  .at_decode = true,
                                  .defaults = {.n_sinks = POLICY_SINKS,
                                               .n_recent = POLICY_RECENT,
                                               .n_window = WINDOW,
                                               .n_pool = POOL,
                                               .importance = 0.07f},
                                  .score = score,
                                  .recent = policy_window};
