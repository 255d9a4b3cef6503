/* LOOK-M (arXiv 2406.18139), the pivot form: an entry e that leaves goes to
 * the entry i that stays, of the whole list, whose key is most similar to its
 * own by cosine (the later one on a tie). Halfway between the two lies what e
 * contributes, and i becomes the mean of itself and its contributions:
 *
 *     k_i' = mean(k_i, (k_e + k_i) / 2 ...),  v_i' the same
 *
 * Keys that carry RoPE are averaged here, as the authors do; no bias. */
#include <math.h>
#include <string.h>

#include "base/lanes.h"
#include "base/layout.h"
#include "merge/fate_internal.h"
#include "merge/vector.h"

/* Entries that take in others, and their keys of length 1 in blocks of
 * lanes. */
struct hosts {
    uint32_t n;
    uint32_t *entry;    /* [n] */
    uint32_t *n_guests; /* [n] */
    float *lanes;
};

static void lay_out(struct hosts *h, struct layout *room, uint32_t n,
                    uint32_t head_dim)
{
    h->entry = layout_cut(room, n, sizeof(*h->entry));
    h->n_guests = layout_cut(room, n, sizeof(*h->n_guests));
    h->lanes =
        layout_cut(room, lanes_blocks(n) * LANES * head_dim, sizeof(*h->lanes));
}

static size_t scratch_bytes(uint32_t n, uint32_t head_dim)
{
    struct hosts h;
    struct layout room = {0};
    lay_out(&h, &room, n, head_dim);
    return room.bytes;
}

/* What a key is multiplied with to have length 1; 0 where it has no
 * direction. */
static float shortening(const float *key, uint32_t d)
{
    float norm = vector_norm(key, d);
    return norm > 0.0f && isfinite(norm) ? 1.0f / norm : 0.0f;
}

static void find_hosts(const struct fate_list *l, struct hosts *h)
{
    uint32_t d = l->head_dim;
    h->n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->state[i] != FATE_STAYS)
            continue;
        float by = shortening(fate_key(l, i), d);
        for (uint32_t k = 0; k < d; k++)
            h->lanes[lanes_at(h->n, d, k)] =
                by > 0.0f ? fate_key(l, i)[k] * by : 0.0f;
        h->n_guests[h->n] = 0;
        h->entry[h->n++] = i;
    }
}

/* The most similar host, the last one of several: its number. */
static uint32_t host_of(const struct hosts *h, const float *key, uint32_t d)
{
    uint32_t best = h->n - 1;
    float top = -INFINITY, c[LANES];
    if (!(shortening(key, d) > 0.0f))
        return best;
    for (uint32_t i = 0; i < h->n; i++) {
        if (i % LANES == 0)
            lanes_dot_f32(h->lanes + lanes_at(i, d, 0), key, d, c);
        if (c[i % LANES] >= top) {
            best = i;
            top = c[i % LANES];
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

static void divide(float *x, float by, uint32_t n)
{
    for (uint32_t d = 0; d < n; d++)
        x[d] /= by;
}

static void run(const struct fate_list *l, const struct merge_options *o,
                struct fate_result *out, void *scratch)
{
    (void)o;
    uint32_t d = l->head_dim;
    struct hosts h;
    struct layout room = {.base = scratch};
    lay_out(&h, &room, l->n, d);
    fate_count_leaving(l, &out->counts);
    find_hosts(l, &h);
    for (uint32_t e = 0; e < l->n && h.n > 0; e++) {
        if (l->state[e] != FATE_LEAVES)
            continue;
        uint32_t i = host_of(&h, fate_key(l, e), d);
        take_in(l, out, h.entry[i], e);
        h.n_guests[i]++;
        fate_count_taken(&out->counts, 1.0f);
    }
    for (uint32_t i = 0; i < h.n; i++) {
        if (h.n_guests[i] == 0)
            continue;
        float n = (float)(h.n_guests[i] + 1);
        divide(out->key + (size_t)h.entry[i] * d, n, d);
        divide(out->value + (size_t)h.entry[i] * d, n, d);
    }
}

const struct fate fate_lookm = {.name = "lookm",
                                .needs = FATE_VALUES | FATE_KEYS,
                                .new_keys = true,
                                .scratch_bytes = scratch_bytes,
                                .run = run};
