/* H2O (arXiv 2306.14048): heavy hitters, by the attention that an entry got
 * from all queries so far, and as many of the most recent. */
#include "cache/policy/policy_internal.h"

static uint32_t half(const struct policy_view *v, const struct policy_params *p)
{
    (void)v;
    return p->n_entries / 2;
}

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    (void)p;
    (void)a;
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        for (uint32_t e = 0; e < l->n; e++)
            out[l->first + e] = l->column[e] / (float)v->group;
    }
    return OK;
}

const struct policy policy_h2o = {
    .name = "h2o",
    .needs = POLICY_COLUMNS,
    .defaults = {.n_sinks = POLICY_SINKS, .n_recent = POLICY_RECENT},
    .score = score,
    .recent = half};
