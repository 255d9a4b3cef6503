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

#include "base/lanes.h"
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

/* Keys of length 1, in blocks of lanes; a key of zeros stays. u: [d] scratch,
 * here and below. */
static void directions(const struct policy_list *l, uint32_t d, double *lanes,
                       double *u)
{
    for (uint32_t e = 0; e < l->n; e++) {
        for (uint32_t i = 0; i < d; i++)
            u[i] = (double)l->key[(size_t)e * d + i];
        double norm = sqrt(dot(u, u, d));
        for (uint32_t i = 0; i < d; i++)
            lanes[lanes_at(e, d, i)] = norm > 0 ? u[i] / norm : u[i];
    }
}

static void direction(const double *lanes, uint32_t e, uint32_t d, double *u)
{
    for (uint32_t i = 0; i < d; i++)
        u[i] = lanes[lanes_at(e, d, i)];
}

/* Column sums of C without the zeros for duplicates. */
static void similarity(const double *lanes, uint32_t n, uint32_t d, double *u,
                       double *all, double *sum)
{
    for (uint32_t i = 0; i < d; i++)
        all[i] = 0;
    for (uint32_t e = 0; e < n; e++) {
        direction(lanes, e, d, u);
        for (uint32_t i = 0; i < d; i++)
            all[i] += u[i];
    }
    for (uint32_t e = 0; e < n; e++) {
        direction(lanes, e, d, u);
        sum[e] = dot(u, all, d) - dot(u, u, d);
    }
}

/* The last key that is a duplicate of key r; 0 where there is none. Its cosine
 * with r into *cosine. */
static uint32_t latest_duplicate(const double *lanes, uint32_t n, uint32_t d,
                                 uint32_t r, double *u, double *cosine)
{
    double c[LANES] = {0};
    direction(lanes, r, d, u);
    for (uint32_t e = n; e-- > 0;) {
        uint32_t k = e % LANES;
        if (k == LANES - 1 || e == n - 1) /* another block */
            lanes_dot_f64(lanes + lanes_at(e - k, d, 0), u, d, c);
        *cosine = c[k];
        if (e != r && c[k] > DUPLICATE)
            return e;
    }
    return 0;
}

static void spare_latest_duplicates(const double *lanes, uint32_t n, uint32_t d,
                                    double *u, double *sum)
{
    for (uint32_t r = 0; r < n; r++) {
        double cosine = 0;
        uint32_t c = latest_duplicate(lanes, n, d, r, u, &cosine);
        if (c != r)
            sum[c] -= cosine;
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
    double *lanes =
        arena_array(a, lanes_blocks(l->n) * LANES * d, sizeof(*lanes));
    double *u = arena_array(a, d, sizeof(*u));
    double *red = arena_array(a, l->n, sizeof(*red));
    double *row = arena_array(a, (size_t)l->n + d, sizeof(*row));
    float *imp = arena_array(a, l->n, sizeof(*imp));
    if (!lanes || !u || !red || !row || !imp)
        return ERR_NOMEM;
    directions(l, d, lanes, u);
    similarity(lanes, l->n, d, u, row, red);
    spare_latest_duplicates(lanes, l->n, d, u, red);
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
