/* WeightedKV (ICASSP 2025): the key of an entry j that leaves is dropped, its
 * value goes to the next entry t that stays, weighted by mean attention (that
 * of all prompt rows that could see the entry, by their number):
 *
 *     v_t' = (m_t v_t + sum_j m_j v_j) / (m_t + sum_j m_j)
 *
 * The method takes entries out one at a time. Doing it at once is the same
 * where t's weight grows by what it takes in; whether the authors let it grow
 * is not said. Where nothing that may change follows, j is dropped. No bias. */
#include <string.h>

#include "merge/fate_internal.h"

static size_t scratch_bytes(uint32_t n, uint32_t head_dim)
{
    (void)n;
    (void)head_dim;
    return 0;
}

static float mean_attention(const struct fate_list *l, uint32_t i)
{
    float m = l->column[i] / (float)((int64_t)l->n_seen - l->pos[i]);
    return m > 0.0f ? m : 0.0f;
}

/* Merges those of [from, t) that leave into entry t. */
static void take_in(const struct fate_list *l, uint32_t from, uint32_t t,
                    struct fate_result *out)
{
    float sum = mean_attention(l, t);
    for (uint32_t j = from; j < t; j++)
        if (l->state[j] == FATE_LEAVES)
            sum += mean_attention(l, j);
    float *to = out->value + (size_t)t * l->head_dim;
    const float *own = fate_value(l, t);
    memcpy(to, own, l->head_dim * sizeof(*to));
    for (uint32_t j = from; j < t; j++) {
        if (l->state[j] != FATE_LEAVES)
            continue;
        float m = mean_attention(l, j);
        float w = m > 0.0f ? m / sum : 0.0f;
        for (uint32_t d = 0; d < l->head_dim; d++)
            to[d] += w * (fate_value(l, j)[d] - own[d]);
        fate_count_taken(&out->counts, w);
        if (w > 0.0f)
            out->changed[t] = FATE_NEW_VALUE;
    }
    out->counts.hosts += out->changed[t] != 0;
}

static void run(const struct fate_list *l, const struct merge_options *o,
                struct fate_result *out, void *scratch)
{
    (void)o;
    (void)scratch;
    fate_count_leaving(l, &out->counts);
    uint32_t from = 0;
    for (uint32_t t = 0; t < l->n; t++)
        if (l->state[t] == FATE_STAYS) {
            take_in(l, from, t, out);
            from = t + 1;
        }
}

const struct fate fate_weightedkv = {.name = "weightedkv",
                                     .needs = FATE_VALUES | FATE_COLUMN,
                                     .scratch_bytes = scratch_bytes,
                                     .run = run};
