/* Expected attention: were the queries to come normally distributed, as those
 * of the prompt are, an entry's expected weight would be the exponential of
 *
 *     k . mean / sqrt(d) + k . cov . k / (2 d)
 *
 * normalised over the entries after the sinks, averaged over the group, and
 * counted by the norm of the value (kvpress, ExpectedAttentionPress). Mean and
 * covariance are rotated to positions to come by whoever fills the view. */
#include <math.h>

#include "base/lanes.h"
#include "cache/policy/policy_internal.h"

/* Of the entries of a block. */
static void expected_logits(const double *block, const double *mean,
                            const double *cov, uint32_t d, double out[LANES])
{
    double first[LANES], second[LANES] = {0};
    lanes_dot_f64(block, mean, d, first);
    for (uint32_t i = 0; i < d; i++) {
        const double *k = block + (size_t)i * LANES;
        const double *c = cov + (size_t)i * d;
        double row[LANES]; /* half of it: a covariance is symmetric */
        lanes_dot_f64(block, c, i, row);
        for (uint32_t e = 0; e < LANES; e++)
            second[e] += k[e] * (2 * row[e] + c[i] * k[e]);
    }
    for (uint32_t e = 0; e < LANES; e++)
        out[e] = first[e] / sqrt(d) + second[e] / (2.0 * d);
}

/* What one list is scored with. */
struct work {
    double *logit, *weight; /* [n] */
    double *mean, *cov;     /* [d], [d][d] of a query head */
    double *keys;           /* of a block of lanes */
};

static bool make_room(struct work *w, struct arena *a, uint32_t n, uint32_t d)
{
    w->logit = arena_array(a, n, sizeof(double));
    w->weight = arena_array(a, n, sizeof(double));
    w->mean = arena_array(a, d, sizeof(double));
    w->cov = arena_array(a, (size_t)d * d, sizeof(double));
    w->keys = arena_array(a, (size_t)LANES * d, sizeof(double));
    return w->logit && w->weight && w->mean && w->cov && w->keys;
}

/* A block of the keys from entry `from` on; behind the last is anything. */
static void read_keys(const struct policy_list *l, uint32_t from, uint32_t d,
                      double *keys)
{
    for (uint32_t e = from; e < l->n && e < from + LANES; e++)
        for (uint32_t i = 0; i < d; i++)
            keys[lanes_at(e - from, d, i)] = (double)l->key[(size_t)e * d + i];
}

static void widen(double *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (double)from[i];
}

/* Logits of query head g, of all entries. */
static void find_logits(struct work *w, const struct policy_list *l, uint32_t g,
                        uint32_t d)
{
    double block[LANES];
    widen(w->mean, l->future_mean + (size_t)g * d, d);
    widen(w->cov, l->future_cov + (size_t)g * d * d, (size_t)d * d);
    for (uint32_t e = 0; e < l->n; e++) {
        if (e % LANES == 0) {
            read_keys(l, e, d, w->keys);
            expected_logits(w->keys, w->mean, w->cov, d, block);
        }
        w->logit[e] = block[e % LANES];
    }
}

/* Adds one query head's weights of the entries [from, n). */
static void add_weights(struct work *w, uint32_t from, uint32_t n)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t e = from; e < n; e++)
        max = w->logit[e] > max ? w->logit[e] : max;
    for (uint32_t e = from; e < n; e++)
        sum += w->logit[e] = exp(w->logit[e] - max);
    for (uint32_t e = from; e < n; e++)
        w->weight[e] += w->logit[e] / sum;
}

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        float *mine = out + l->first;
        struct work w;
        uint32_t from = 0;
        if (!make_room(&w, a, l->n, v->head_dim))
            return ERR_NOMEM;
        while (from < l->n && (uint32_t)l->pos[from] < p->n_sinks)
            from++;
        for (uint32_t g = 0; g < v->group; g++) {
            find_logits(&w, l, g, v->head_dim);
            add_weights(&w, from, l->n);
        }
        float best = 0;
        for (uint32_t e = from; e < l->n; e++) {
            mine[e] =
                (float)(w.weight[e] / v->group * (double)l->value_norm[e]);
            best = mine[e] > best ? mine[e] : best;
        }
        for (uint32_t e = 0; e < from; e++)
            mine[e] = best;
    }
    return OK;
}

const struct policy policy_expected_attention = {
    .name = "expected-attention",
    .needs = POLICY_FUTURE | POLICY_KEYS | POLICY_VALUE_NORMS,
    .defaults = {.n_sinks = POLICY_SINKS, .n_recent = POLICY_RECENT},
    .score = score};
