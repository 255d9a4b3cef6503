#include "merge/selection.h"

#include <stdbool.h>
#include <string.h>

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, KEY_BITS = 32 };

/* Marks of an entry while its fate is open. */
enum {
    FREE = 1,  /* not protected */
    ASKED = 2, /* among the best of some head */
    KEPT = 4
};

/* Integers in the order of the floats; what is not a number is lowest. */
static uint32_t key_of(float f)
{
    uint32_t u;
    f += 0.0f; /* -0 becomes +0 */
    memcpy(&u, &f, sizeof(u));
    u ^= (uint32_t)((int32_t)u >> 31) | 0x80000000u;
    return f != f ? 0 : u;
}

static bool is_protected(const struct selection *s, uint32_t i)
{
    int64_t p = s->pos[i];
    return p < s->n_sinks || p + s->n_recent >= s->n_seen;
}

/* The k-th highest key among the entries that are marked `from`, and how many
 * of those with that very key are among the k. */
struct threshold {
    uint32_t key;
    uint32_t n_equal;
};

/* Digit by digit, from the highest: `known` covers the bits that are decided.
 */
static struct threshold find_threshold(const struct selection *s,
                                       const float *score, const uint8_t *mark,
                                       uint8_t from, uint32_t k)
{
    struct threshold t = {0, k};
    uint32_t known = 0;
    for (int shift = KEY_BITS - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        uint32_t count[DIGITS] = {0}, d = DIGITS - 1;
        for (uint32_t i = 0; i < s->n; i++) {
            uint32_t key = key_of(score[i]);
            if (mark[i] & from && (key & known) == t.key)
                count[key >> shift & (DIGITS - 1)]++;
        }
        while (d > 0 && count[d] < t.n_equal)
            t.n_equal -= count[d--];
        t.key |= d << shift;
        known |= (uint32_t)(DIGITS - 1) << shift;
    }
    return t;
}

/* Marks the k highest of those marked `from` with `to` as well. There are at
 * least k of them. */
static void mark_highest(const struct selection *s, const float *score,
                         uint8_t *mark, uint8_t from, uint8_t to, uint32_t k)
{
    if (k == 0)
        return;
    struct threshold t = find_threshold(s, score, mark, from, k);
    for (uint32_t i = s->n; i-- > 0;) {
        uint32_t key = key_of(score[i]);
        if (!(mark[i] & from) || key < t.key)
            continue;
        if (key == t.key && t.n_equal == 0)
            continue;
        t.n_equal -= key == t.key;
        mark[i] |= to;
    }
}

/* Keeps what is protected. Returns how many more are to be kept. */
static uint32_t begin(const struct selection *s, uint8_t *mark)
{
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        mark[i] = is_protected(s, i) ? KEPT : FREE;
        n_kept += mark[i] == KEPT;
    }
    uint32_t m = s->m < s->n ? s->m : s->n;
    return m > n_kept ? m - n_kept : 0;
}

static uint32_t finish(const struct selection *s, uint8_t *mark)
{
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        mark[i] = (mark[i] & KEPT) != 0;
        n_kept += mark[i];
    }
    return n_kept;
}

uint32_t selection_of_head(const struct selection *s, const float *score,
                           uint8_t *kept)
{
    uint32_t k = begin(s, kept);
    mark_highest(s, score, kept, FREE, KEPT, k);
    return finish(s, kept);
}

uint32_t selection_of_layer(const struct selection *s,
                            const float *const *score, uint32_t n_heads,
                            uint8_t *kept, float *mean)
{
    uint32_t k = begin(s, kept);
    memset(mean, 0, s->n * sizeof(*mean));
    for (uint32_t h = 0; h < n_heads; h++) {
        mark_highest(s, score[h], kept, FREE, ASKED, k);
        for (uint32_t i = 0; i < s->n; i++)
            mean[i] += score[h][i];
    }
    for (uint32_t i = 0; i < s->n; i++)
        mean[i] /= (float)n_heads;
    mark_highest(s, mean, kept, ASKED, KEPT, k);
    return finish(s, kept);
}
