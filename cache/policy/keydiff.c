/* KeyDiff (arXiv 2504.15364): keys that point away from the mean direction of
 * all keys stay. With a = mean of k / |k|: score = -cos(k, a). */
#include <math.h>

#include "cache/policy/policy_internal.h"

static double length(const float *x, uint32_t d)
{
    double sum = 0;
    for (uint32_t i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* The sum of the directions: its length is of no consequence to a cosine. */
static void add_directions(double *anchor, const struct policy_list *l,
                           uint32_t d)
{
    for (uint32_t e = 0; e < l->n; e++) {
        const float *k = l->key + (size_t)e * d;
        double norm = length(k, d);
        for (uint32_t i = 0; i < d && norm > 0; i++)
            anchor[i] += (double)k[i] / norm;
    }
}

static double cosine(const float *k, const double *anchor, uint32_t d)
{
    double dot = 0, kk = 0, aa = 0;
    for (uint32_t i = 0; i < d; i++) {
        dot += (double)k[i] * anchor[i];
        kk += (double)k[i] * (double)k[i];
        aa += anchor[i] * anchor[i];
    }
    return kk > 0 && aa > 0 ? dot / sqrt(kk * aa) : 0;
}

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    uint32_t d = v->head_dim;
    (void)p;
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        double *anchor = arena_array(a, d, sizeof(*anchor));
        if (!anchor)
            return ERR_NOMEM;
        add_directions(anchor, l, d);
        for (uint32_t e = 0; e < l->n; e++)
            out[l->first + e] =
                (float)-cosine(l->key + (size_t)e * d, anchor, d);
    }
    return OK;
}

const struct policy policy_keydiff = {
    .name = "keydiff",
    .needs = POLICY_KEYS,
    .at_decode = true,
    .defaults = {.n_sinks = POLICY_SINKS, .n_recent = POLICY_RECENT},
    .score = score};
