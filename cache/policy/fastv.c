/* What FastV (arXiv 2403.06764) is without images: the first layers keep
 * everything, later ones what the last query attended to in the last of the
 * first, on the average over heads. The method drops the hidden states of the
 * others during prefill, so that later layers never see them; here only their
 * cache entries go, after it. The first layers count: at equal bytes the
 * later ones get less than B. */
#include "cache/policy/policy_internal.h"

enum { WHOLE = 2 };

/* The layer whose attention ranks. */
static uint32_t ranking_layer(const struct policy_view *v,
                              const struct policy_params *p, uint32_t layer)
{
    (void)layer;
    uint32_t n = p->n_whole < v->n_layers ? p->n_whole : v->n_layers;
    return n > 0 ? n - 1 : 0;
}

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    return policy_last_query(v, ranking_layer(v, p, layer), layer, a, out);
}

/* Where the budget does not even hold the first layers whole, every layer
 * gets B. */
static uint32_t capacity(const struct policy_view *v,
                         const struct policy_params *p, uint32_t layer)
{
    uint32_t n = v->n_seen, L = v->n_layers, K = p->n_whole;
    uint64_t all = (uint64_t)L * p->n_entries, whole = (uint64_t)K * n;
    if (n <= p->n_entries || K >= L || all < whole + (L - K))
        return p->n_entries;
    if (layer < K)
        return n;
    uint64_t left = all - whole;
    return (uint32_t)(left / (L - K)) + (layer - K < left % (L - K));
}

const struct policy policy_fastv = {.name = "fastv",
                                    .needs = POLICY_WINDOW,
                                    .defaults = {.n_sinks = POLICY_SINKS,
                                                 .n_recent = POLICY_RECENT,
                                                 .n_whole = WHOLE},
                                    .score = score,
                                    .looks_at = ranking_layer,
                                    .capacity = capacity};
