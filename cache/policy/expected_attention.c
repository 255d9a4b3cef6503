/* Expected attention: were the queries to come normally distributed, as those
 * of the prompt are, an entry's expected weight would be the exponential of
 *
 *     k . mean / sqrt(d) + k . cov . k / (2 d)
 *
 * normalised over the entries after the sinks, averaged over the group, and
 * counted by the norm of the value (kvpress, ExpectedAttentionPress). Mean and
 * covariance are rotated to positions to come by whoever fills the view. */
#include <math.h>

#include "cache/policy/policy_internal.h"

static double expected_logit(const float *k, const float *mean,
                             const float *cov, uint32_t d)
{
    double first = 0, second = 0;
    for (uint32_t i = 0; i < d; i++) {
        const float *c = cov + (size_t)i * d;
        double row = 0; /* half of it: a covariance is symmetric */
        for (uint32_t j = 0; j < i; j++)
            row += (double)c[j] * (double)k[j];
        first += (double)k[i] * (double)mean[i];
        second += (double)k[i] * (2 * row + (double)c[i] * (double)k[i]);
    }
    return first / sqrt(d) + second / (2.0 * d);
}

/* Adds one query head's weights of the entries from `from` on. */
static void add_weights(const struct policy_view *v,
                        const struct policy_list *l, uint32_t g, uint32_t from,
                        double *logit, double *weight)
{
    uint32_t d = v->head_dim;
    double max = -INFINITY, sum = 0;
    for (uint32_t e = from; e < l->n; e++) {
        logit[e] = expected_logit(l->key + (size_t)e * d,
                                  l->future_mean + (size_t)g * d,
                                  l->future_cov + (size_t)g * d * d, d);
        max = logit[e] > max ? logit[e] : max;
    }
    for (uint32_t e = from; e < l->n; e++)
        sum += logit[e] = exp(logit[e] - max);
    for (uint32_t e = from; e < l->n; e++)
        weight[e] += logit[e] / sum;
}

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        float *mine = out + l->first;
        double *logit = arena_array(a, l->n, sizeof(*logit));
        double *weight = arena_array(a, l->n, sizeof(*weight));
        uint32_t from = 0;
        if (!logit || !weight)
            return ERR_NOMEM;
        while (from < l->n && (uint32_t)l->pos[from] < p->n_sinks)
            from++;
        for (uint32_t g = 0; g < v->group; g++)
            add_weights(v, l, g, from, logit, weight);
        float best = 0;
        for (uint32_t e = from; e < l->n; e++) {
            mine[e] = (float)(weight[e] / v->group * (double)l->value_norm[e]);
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
