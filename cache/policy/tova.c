/* TOVA (arXiv 2401.06104): what the last query attends to, on the average over
 * all heads of a layer; so all heads keep the same positions. */
#include "cache/policy/policy_internal.h"

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    (void)p;
    return policy_last_query(v, layer, layer, a, out);
}

const struct policy policy_tova = {
    .name = "tova",
    .needs = POLICY_WINDOW,
    .at_decode = true,
    .defaults = {.n_sinks = POLICY_SINKS, .n_recent = POLICY_RECENT},
    .score = score};
