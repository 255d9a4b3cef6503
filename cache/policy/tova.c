/* TOVA (arXiv 2401.06104): what the last query attends to, on the average over
 * all heads of a layer; so all heads keep the same positions. */
#include "cache/policy/policy_internal.h"

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    double *mass = arena_array(a, v->n_seen, sizeof(*mass));
    float n_heads = (float)(v->n_kv_heads * v->group);
    (void)p;
    if (!mass)
        return ERR_NOMEM;
    /* By position, since after other policies the lists may differ. */
    for (uint32_t h = 0; h < v->n_kv_heads && v->n_window > 0; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        const float *last = l->window + (size_t)(v->n_window - 1) * l->n;
        for (uint32_t e = 0; e < l->n; e++)
            mass[l->pos[e]] += (double)last[e];
    }
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        for (uint32_t e = 0; e < l->n; e++)
            out[l->first + e] = (float)mass[l->pos[e]] / n_heads;
    }
    return OK;
}

const struct policy policy_tova = {
    .name = "tova",
    .needs = POLICY_WINDOW,
    .at_decode = true,
    .defaults = {.n_sinks = POLICY_SINKS, .n_recent = POLICY_RECENT},
    .score = score};
