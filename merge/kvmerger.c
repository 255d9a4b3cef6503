/* KVMerger (arXiv 2407.08454) as a fate. A list falls into sets: neighbours
 * belong to one while the cosine of their keys is above min_cosine. Inside a
 * set the pivot is the entry that stays and has the largest attention of all
 * prompt rows (the later one on a tie); the entries of the set that leave are
 * folded into it with Gaussian weights:
 *
 *     g_e = exp(-|k_p - k_e|^2 / (2 s^2)),   w_e = g_e / (1 + sum g)
 *     k_p' = sum w k,  v_p' = sum w v        (the pivot has g = 1)
 *
 * s^2 is the mean of |k_p - k_e|^2 over those that leave: the paper defines s
 * by the g themselves. Sets in which nothing stays are dropped; the other
 * entries of a set that stay are left alone. In the paper the sets decide
 * what stays; here the ranking has. No bias. */
#include <math.h>
#include <string.h>

#include "merge/fate_internal.h"
#include "merge/vector.h"

static size_t scratch_bytes(uint32_t n, uint32_t head_dim)
{
    (void)head_dim;
    return n * sizeof(float);
}

static uint32_t set_end(const struct fate_list *l, uint32_t from, float least)
{
    uint32_t i = from + 1;
    while (i < l->n && vector_cosine(fate_key(l, i - 1), fate_key(l, i),
                                     l->head_dim) > least)
        i++;
    return i;
}

/* `to` where nothing stays in the set [from, to) that may change. */
static uint32_t pivot_of(const struct fate_list *l, uint32_t from, uint32_t to)
{
    uint32_t best = to;
    for (uint32_t i = to; i-- > from;)
        if (l->state[i] == FATE_STAYS &&
            (best == to || l->column[i] > l->column[best]))
            best = i;
    return best;
}

/* g[e - from] of those that leave; returns their sum. */
static float weigh(const struct fate_list *l, uint32_t from, uint32_t to,
                   uint32_t pivot, float *g)
{
    float spread = 0.0f, sum = 0.0f;
    uint32_t n = 0;
    for (uint32_t e = from; e < to; e++) {
        if (l->state[e] != FATE_LEAVES)
            continue;
        g[e - from] =
            vector_distance2(fate_key(l, pivot), fate_key(l, e), l->head_dim);
        spread += g[e - from];
        n++;
    }
    spread = n > 0 ? spread / (float)n : 0.0f;
    for (uint32_t e = from; e < to; e++) {
        if (l->state[e] != FATE_LEAVES)
            continue;
        float x = spread > 0.0f ? g[e - from] / (2.0f * spread) : 0.0f;
        g[e - from] = (float)exp(-(double)x);
        sum += g[e - from];
    }
    return sum;
}

static void fold(float *to, const float *pivot, const float *x, float weight,
                 uint32_t n)
{
    for (uint32_t d = 0; d < n; d++)
        to[d] += weight * (x[d] - pivot[d]);
}

static void merge_set(const struct fate_list *l, uint32_t from, uint32_t to,
                      struct fate_result *out, float *g)
{
    uint32_t p = pivot_of(l, from, to), d = l->head_dim;
    if (p == to)
        return;
    float sum = weigh(l, from, to, p, g);
    float *key = out->key + (size_t)p * d, *value = out->value + (size_t)p * d;
    memcpy(key, fate_key(l, p), d * sizeof(*key));
    memcpy(value, fate_value(l, p), d * sizeof(*value));
    for (uint32_t e = from; e < to; e++) {
        if (l->state[e] != FATE_LEAVES)
            continue;
        float w = g[e - from] / (1.0f + sum);
        fold(key, fate_key(l, p), fate_key(l, e), w, d);
        fold(value, fate_value(l, p), fate_value(l, e), w, d);
        fate_count_taken(&out->counts, 1.0f);
        out->changed[p] = FATE_NEW_KEY | FATE_NEW_VALUE;
    }
    out->counts.hosts += out->changed[p] != 0;
}

static void run(const struct fate_list *l, const struct merge_options *o,
                struct fate_result *out, void *scratch)
{
    fate_count_leaving(l, &out->counts);
    for (uint32_t from = 0, to; from < l->n; from = to) {
        to = set_end(l, from, o->min_cosine);
        merge_set(l, from, to, out, scratch);
    }
}

const struct fate fate_kvmerger = {.name = "kvmerger",
                                   .needs =
                                       FATE_VALUES | FATE_KEYS | FATE_COLUMN,
                                   .new_keys = true,
                                   .scratch_bytes = scratch_bytes,
                                   .run = run};
