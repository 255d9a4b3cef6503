/* CaM (ICML 2024), the batch form: an entry i that leaves gives its value in
 * equal parts to the next n_next entries that stay (fewer at the end of the
 * list: the parts are larger), or with some probability to none of them:
 *
 *     p = clamp(c_i / mean(c over those entries), 0, 1),  b ~ Bernoulli(p)
 *     v_t' = v_t + sum_i b_i v_i / n_i
 *
 * c is the attention of all prompt rows. The method was made for one token a
 * step, and the sum is not normalised: many at once let values grow, which is
 * the method's own and is kept. All entries of an admission are new, so all
 * that leave take part. One random number is drawn for each entry that
 * leaves, in order of position, from a generator of the list's own. No bias. */
#include <string.h>

#include "base/rng.h"
#include "merge/fate_internal.h"

static size_t scratch_bytes(uint32_t n, uint32_t head_dim)
{
    (void)head_dim;
    return n * sizeof(uint32_t);
}

/* The entries after i that may take part: at most n_next, their indices into
 * next[]. Returns how many. */
static uint32_t followers(const struct fate_list *l, uint32_t i,
                          uint32_t n_next, uint32_t *next)
{
    uint32_t n = 0;
    for (uint32_t t = i + 1; t < l->n && n < n_next; t++)
        if (l->state[t] == FATE_STAYS)
            next[n++] = t;
    return n;
}

static float probability(const struct fate_list *l, uint32_t i,
                         const uint32_t *next, uint32_t n)
{
    float sum = 0.0f, own = l->column[i];
    for (uint32_t k = 0; k < n; k++)
        sum += l->column[next[k]];
    float mean = sum / (float)n;
    if (!(own > 0.0f))
        return 0.0f;
    return own >= mean ? 1.0f : own / mean;
}

static void give(const struct fate_list *l, uint32_t i, uint32_t t, float part,
                 struct fate_result *out)
{
    float *to = out->value + (size_t)t * l->head_dim;
    if (!out->changed[t]) {
        memcpy(to, fate_value(l, t), l->head_dim * sizeof(*to));
        out->changed[t] = FATE_NEW_VALUE;
        out->counts.hosts++;
    }
    for (uint32_t d = 0; d < l->head_dim; d++)
        to[d] += fate_value(l, i)[d] * part;
}

static void run(const struct fate_list *l, const struct merge_options *o,
                struct fate_result *out, void *scratch)
{
    struct rng r;
    uint32_t *next = scratch;
    rng_seed(&r, o->seed + l->id);
    fate_count_leaving(l, &out->counts);
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->state[i] != FATE_LEAVES)
            continue;
        float draw = rng_float(&r);
        uint32_t n = followers(l, i, o->n_next, next);
        if (n == 0)
            continue;
        bool takes_part = draw < probability(l, i, next, n);
        fate_count_taken(&out->counts, takes_part ? 1.0f : 0.0f);
        for (uint32_t k = 0; takes_part && k < n; k++)
            give(l, i, next[k], 1.0f / (float)n, out);
    }
}

const struct fate fate_cam = {.name = "cam",
                              .needs = FATE_VALUES | FATE_COLUMN,
                              .scratch_bytes = scratch_bytes,
                              .run = run};
