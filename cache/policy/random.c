/* A control: a uniformly random rest beside sinks and recent positions. A
 * method that is no better than this has learned nothing. */
#include "base/rng.h"
#include "cache/policy/policy_internal.h"

/* Of the entry, not of the order of calls: it ranks alike before and after
 * others have left. */
static float draw(uint64_t seed, uint32_t layer, uint32_t head, int32_t pos)
{
    uint64_t state = seed;
    state = rng_splitmix(&state) ^ ((uint64_t)layer << 32 | head);
    state = rng_splitmix(&state) ^ (uint32_t)pos;
    return (float)(rng_splitmix(&state) >> 40) * 0x1p-24f;
}

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    (void)a;
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        for (uint32_t i = 0; i < l->n; i++)
            out[l->first + i] = draw(p->seed, layer, h, l->pos[i]);
    }
    return OK;
}

const struct policy policy_random = {
    .name = "random",
    .at_decode = true,
    .defaults = {.n_sinks = POLICY_SINKS, .n_recent = POLICY_RECENT, .seed = 1},
    .score = score};
