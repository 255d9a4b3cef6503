/* LOOK-M (arXiv 2406.18139), the pivot form: an entry e that leaves goes to
 * the entry i that stays, of the whole list, whose key is most similar to its
 * own by cosine (the later one on a tie). Halfway between the two lies what e
 * contributes, and i becomes the mean of itself and its contributions:
 *
 *     k_i' = mean(k_i, (k_e + k_i) / 2 ...),  v_i' the same
 *
 * Keys that carry RoPE are averaged here, as the authors do; no bias. */
#include <string.h>

#include "merge/fate_internal.h"
#include "merge/vector.h"

static size_t scratch_bytes(uint32_t n, uint32_t head_dim)
{
    (void)head_dim;
    return n * (sizeof(float) + sizeof(uint32_t));
}

/* The most similar entry that may change; l->n where there is none. */
static uint32_t target_of(const struct fate_list *l, const float *norm,
                          uint32_t e)
{
    uint32_t best = l->n;
    float top = -2.0f; /* below any cosine */
    for (uint32_t i = l->n; i-- > 0;) {
        if (l->state[i] != FATE_STAYS)
            continue;
        float dot = vector_dot(fate_key(l, e), fate_key(l, i), l->head_dim);
        float c = vector_cosine_of(dot, norm[e], norm[i]);
        if (c > top) {
            best = i;
            top = c;
        }
    }
    return best;
}

static void add_half(float *sum, const float *guest, const float *host,
                     uint32_t n)
{
    for (uint32_t d = 0; d < n; d++)
        sum[d] += (guest[d] + host[d]) * 0.5f;
}

static void take_in(const struct fate_list *l, struct fate_result *out,
                    uint32_t i, uint32_t e)
{
    uint32_t d = l->head_dim;
    float *key = out->key + (size_t)i * d, *value = out->value + (size_t)i * d;
    if (!out->changed[i]) {
        memcpy(key, fate_key(l, i), d * sizeof(*key));
        memcpy(value, fate_value(l, i), d * sizeof(*value));
        out->changed[i] = FATE_NEW_KEY | FATE_NEW_VALUE;
        out->counts.hosts++;
    }
    add_half(key, fate_key(l, e), fate_key(l, i), d);
    add_half(value, fate_value(l, e), fate_value(l, i), d);
}

static void run(const struct fate_list *l, const struct merge_options *o,
                struct fate_result *out, void *scratch)
{
    (void)o;
    float *norm = scratch;
    uint32_t *n_guests = (uint32_t *)(norm + l->n);
    fate_count_leaving(l, &out->counts);
    for (uint32_t i = 0; i < l->n; i++) {
        norm[i] = vector_norm(fate_key(l, i), l->head_dim);
        n_guests[i] = 0;
    }
    for (uint32_t e = 0; e < l->n; e++) {
        if (l->state[e] != FATE_LEAVES)
            continue;
        uint32_t i = target_of(l, norm, e);
        if (i == l->n)
            return; /* nothing stays that may change */
        take_in(l, out, i, e);
        n_guests[i]++;
        fate_count_taken(&out->counts, 1.0f);
    }
    for (size_t i = 0; i < l->n; i++)
        for (size_t d = 0; n_guests[i] && d < l->head_dim; d++) {
            out->key[i * l->head_dim + d] /= (float)(n_guests[i] + 1);
            out->value[i * l->head_dim + d] /= (float)(n_guests[i] + 1);
        }
}

const struct fate fate_lookm = {.name = "lookm",
                                .needs = FATE_VALUES | FATE_KEYS,
                                .new_keys = true,
                                .scratch_bytes = scratch_bytes,
                                .run = run};
