/* StreamingLLM (arXiv 2309.17453): the first positions and the last ones.
 * Keys keep the rotation of their true positions. */
#include "cache/policy/policy_internal.h"

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    (void)p;
    (void)a;
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        for (uint32_t i = 0; i < l->n; i++)
            out[l->first + i] = (float)l->pos[i];
    }
    return OK;
}

const struct policy policy_streamingllm = {
    .name = "streamingllm",
    .at_decode = true,
    .defaults = {.n_sinks = POLICY_SINKS, .n_recent = POLICY_RECENT},
    .score = score};
