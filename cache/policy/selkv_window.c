/* The selection of SelKV (arXiv 2607.16213), docs/design 2: what the last W
 * queries attend to, counted by the norm of its value (VATP, arXiv 2406.12335)
 * and smoothed over neighbours. The heads of a layer keep the same positions,
 * the union of what each would keep, trimmed by mean score;
 * POLICY_PER_HEAD gives each head its own. Unlike SnapKV it looks through
 * queries whose entries it does not protect. */
#include "cache/policy/policy_internal.h"

enum { WINDOW = 32, POOL = 5 };

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    uint32_t W = p->n_window < v->n_window ? p->n_window : v->n_window;
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        float *mass = arena_array(a, l->n, sizeof(*mass));
        if (!mass)
            return ERR_NOMEM;
        policy_window_sum(v, l, W, l->n, mass);
        for (uint32_t e = 0; e < l->n; e++)
            mass[e] *= l->value_norm[e];
        policy_pool(p, mass, l->n, out + l->first);
    }
    return OK;
}

const struct policy policy_selkv_window = {
    .name = "selkv-window",
    .needs = POLICY_WINDOW | POLICY_VALUE_NORMS,
    .at_decode = true,
    .defaults = {.n_sinks = POLICY_SINKS,
                 .n_recent = POLICY_RECENT,
                 .n_window = WINDOW,
                 .n_pool = POOL,
                 .pooling = POLICY_POOL_MEAN,
                 .spread = POLICY_PER_LAYER},
    .score = score};
