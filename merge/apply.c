#include "merge/apply.h"

#include <assert.h>
#include <string.h>

#include "base/layout.h"
#include "merge/band.h"
#include "merge/compensation.h"

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, POS_BITS = 32 };

/* Entries of one piece (a bucket, or the whole list) as a fate reads them,
 * and what it writes. */
struct piece {
    int32_t *pos;
    uint8_t *state, *changed, *want;
    float *value, *key, *mass, *column, *new_value, *new_key, *ratio;
    uint16_t *band;
    void *fate_scratch;
};

struct pass {
    const struct apply_list *l;
    const struct apply_how *how;
    uint32_t *order; /* [n] entries by ascending position */
    struct piece p;
    float *ratio;
    struct merge_counts *counts;
};

static uint32_t piece_entries(const struct fate *f, uint32_t n)
{
    return f->by_bucket && n > MERGE_BUCKET ? MERGE_BUCKET : n;
}

/* What a fate does not read or write takes no room. */
static void lay_out(struct piece *p, const struct fate *f, uint32_t n,
                    uint32_t head_dim, struct layout *l)
{
    size_t vectors = (size_t)n * head_dim * sizeof(float);
    bool keys = f->needs & FATE_KEYS, values = f->needs & FATE_VALUES;
    p->pos = layout_cut(l, n, sizeof(*p->pos));
    p->state = layout_cut(l, n, 1);
    p->changed = layout_cut(l, n, 1);
    p->want = layout_cut(l, f->needs & FATE_MASS ? n : 0, 1);
    p->ratio = layout_cut(l, n, sizeof(float));
    p->mass = layout_cut(l, f->needs & FATE_MASS ? n : 0, sizeof(float));
    p->column = layout_cut(l, f->needs & FATE_COLUMN ? n : 0, sizeof(float));
    p->band = layout_cut(l, f->needs & FATE_BAND ? n : 0, BAND_BYTES);
    p->value = layout_cut(l, values ? vectors : 0, 1);
    p->new_value = layout_cut(l, values ? vectors : 0, 1);
    p->key = layout_cut(l, keys ? vectors : 0, 1);
    p->new_key = layout_cut(l, f->new_keys ? vectors : 0, 1);
    p->fate_scratch = layout_cut(l, f->scratch_bytes(n, head_dim), 1);
}

size_t apply_scratch_bytes(const struct fate *fate, uint32_t n,
                           uint32_t head_dim)
{
    struct piece p;
    struct layout room = {0};
    (void)layout_cut(&room, n, sizeof(uint32_t));
    (void)layout_cut(&room, n, sizeof(uint32_t));
    lay_out(&p, fate, piece_entries(fate, n), head_dim, &room);
    return room.bytes;
}

static int32_t pos_of(const struct apply_list *l, uint32_t i)
{
    return l->meta[i / KV_UNIT]->pos[i % KV_UNIT];
}

static bool has_bit(const uint16_t *mask, uint32_t i)
{
    return mask[i / KV_UNIT] >> i % KV_UNIT & 1;
}

static enum fate_state state_of(const struct apply_list *l, uint32_t i)
{
    if (has_bit(l->leaves, i))
        return FATE_LEAVES;
    return l->fixed != NULL && has_bit(l->fixed, i) ? FATE_FIXED : FATE_STAYS;
}

/* One pass of a radix sort; returns where the result is. */
static uint32_t *sort_digit(const struct apply_list *l, uint32_t *order,
                            uint32_t *other, int shift)
{
    uint32_t count[DIGITS] = {0}, sum = 0;
    for (uint32_t i = 0; i < l->n; i++)
        count[(uint32_t)pos_of(l, i) >> shift & (DIGITS - 1)]++;
    for (uint32_t d = 0; d < DIGITS; d++) {
        uint32_t n = count[d];
        if (n == l->n)
            return order; /* all alike */
        count[d] = sum;
        sum += n;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t d = (uint32_t)pos_of(l, order[i]) >> shift & (DIGITS - 1);
        other[count[d]++] = order[i];
    }
    return other;
}

static uint32_t *sorted(const struct apply_list *l, uint32_t *order,
                        uint32_t *other)
{
    bool ascends = true;
    for (uint32_t i = 0; i < l->n; i++) {
        order[i] = i;
        ascends = ascends && (i == 0 || pos_of(l, i - 1) < pos_of(l, i));
    }
    for (int shift = 0; shift < POS_BITS && !ascends; shift += DIGIT_BITS) {
        uint32_t *to = sort_digit(l, order, other, shift);
        if (to == other) {
            other = order;
            order = to;
        }
    }
    return order;
}

/* Copies entries order[from..to) into the piece. */
static void gather(const struct pass *s, uint32_t from, uint32_t to)
{
    const struct apply_list *l = s->l;
    const struct piece *p = &s->p;
    uint32_t needs = s->how->fate->needs;
    size_t d = l->layout->head_dim;
    for (uint32_t k = from; k < to; k++) {
        uint32_t e = s->order[k], i = k - from;
        p->pos[i] = pos_of(l, e);
        p->state[i] = (uint8_t)state_of(l, e);
        p->changed[i] = 0;
        p->ratio[i] = 1.0f;
        if (needs & FATE_COLUMN)
            p->column[i] = l->column[e];
        if (needs & FATE_BAND)
            memcpy(p->band + (size_t)i * BAND_CELLS,
                   l->band + (size_t)e * BAND_CELLS, BAND_BYTES);
        s->how->ops->kv_load(l->layout, l->unit[e / KV_UNIT], e % KV_UNIT,
                             needs & FATE_KEYS ? p->key + i * d : NULL,
                             needs & FATE_VALUES ? p->value + i * d : NULL);
    }
}

/* Stores what the fate has changed. */
static void scatter(const struct pass *s, uint32_t from, uint32_t to)
{
    const struct apply_list *l = s->l;
    const struct piece *p = &s->p;
    size_t d = l->layout->head_dim;
    for (uint32_t k = from; k < to; k++) {
        uint32_t e = s->order[k], i = k - from, slot = e % KV_UNIT;
        uint8_t *unit = l->unit[e / KV_UNIT];
        float bias;
        s->ratio[e] = p->ratio[i];
        if (!p->changed[i])
            continue;
        memcpy(&bias, unit + l->layout->bias + slot * sizeof(bias),
               sizeof(bias));
        s->how->ops->kv_store(
            l->layout, unit, slot,
            p->changed[i] & FATE_NEW_KEY ? p->new_key + i * d : NULL,
            p->changed[i] & FATE_NEW_VALUE ? p->new_value + i * d : NULL, bias);
    }
}

/* The masses of entries order[from..from + in->n), as far as they matter. */
static void measure(const struct pass *s, const struct fate_list *in,
                    uint32_t from)
{
    const struct apply_list *l = s->l;
    const struct fate *f = s->how->fate;
    const struct piece *p = &s->p;
    memset(p->want, f->wants == NULL, in->n);
    if (f->wants != NULL)
        f->wants(in, p->want, p->fate_scratch);
    for (uint32_t i = 0; i < in->n; i++) {
        uint32_t e = s->order[from + i];
        p->mass[i] = !p->want[i] ? 0.0f
                     : l->mass   ? l->mass[e]
                                 : l->mass_of(l->mass_user, e);
    }
}

static void run_piece(const struct pass *s, uint32_t from, uint32_t to)
{
    const struct fate *f = s->how->fate;
    const struct piece *p = &s->p;
    struct fate_list in = {.n = to - from,
                           .head_dim = s->l->layout->head_dim,
                           .id = s->l->id,
                           .n_seen = s->l->n_seen,
                           .pos = p->pos,
                           .state = p->state,
                           .value = p->value,
                           .key = p->key,
                           .mass = p->mass,
                           .column = p->column,
                           .band = p->band};
    struct fate_result out = {.changed = p->changed,
                              .value = p->new_value,
                              .key = p->new_key,
                              .ratio = p->ratio};
    gather(s, from, to);
    if (f->needs & FATE_MASS)
        measure(s, &in, from);
    f->run(&in, s->how->options, &out, p->fate_scratch);
    merge_counts_add(s->counts, &out.counts);
    scatter(s, from, to);
}

/* The end of the bucket that begins at order[from]; the end of the list for
 * fates that want all of it. */
static uint32_t piece_end(const struct pass *s, uint32_t from)
{
    uint32_t to = from + 1;
    if (!s->how->fate->by_bucket)
        return s->l->n;
    int32_t start = band_start(pos_of(s->l, s->order[from]));
    while (to < s->l->n && band_start(pos_of(s->l, s->order[to])) == start)
        to++;
    assert(to - from <= MERGE_BUCKET);
    return to;
}

void apply_values(const struct apply_list *l, const struct apply_how *how,
                  float *ratio, struct merge_counts *c, void *scratch)
{
    struct pass s = {.l = l, .how = how, .ratio = ratio, .counts = c};
    struct layout room = {.base = scratch};
    uint32_t *a = layout_cut(&room, l->n, sizeof(*a));
    uint32_t *b = layout_cut(&room, l->n, sizeof(*b));
    lay_out(&s.p, how->fate, piece_entries(how->fate, l->n),
            l->layout->head_dim, &room);
    s.order = sorted(l, a, b);
    for (uint32_t from = 0, to; from < l->n; from = to) {
        bool any = false;
        to = piece_end(&s, from);
        for (uint32_t k = from; k < to; k++) {
            any = any || state_of(l, s.order[k]) == FATE_LEAVES;
            ratio[s.order[k]] = 1.0f;
        }
        if (any)
            run_piece(&s, from, to);
    }
}

void apply_add_ratios(const struct apply_list *l, const float *ratio,
                      float *sum, uint32_t *n_summed)
{
    for (uint32_t e = 0; e < l->n; e++) {
        if (state_of(l, e) == FATE_LEAVES)
            continue;
        sum[pos_of(l, e)] += ratio[e];
        n_summed[pos_of(l, e)]++;
    }
}

void apply_mean_ratios(const struct apply_list *l, float *ratio,
                       const float *sum, const uint32_t *n_summed)
{
    for (uint32_t e = 0; e < l->n; e++)
        if (state_of(l, e) != FATE_LEAVES)
            ratio[e] = sum[pos_of(l, e)] / (float)n_summed[pos_of(l, e)];
}

void apply_bias(const struct apply_list *l, const struct merge_options *o,
                const float *ratio)
{
    for (uint32_t e = 0; e < l->n; e++) {
        uint8_t *at = l->unit[e / KV_UNIT] + l->layout->bias +
                      e % KV_UNIT * sizeof(float);
        float bias;
        if (!(ratio[e] > 1.0f) || state_of(l, e) != FATE_STAYS)
            continue;
        memcpy(&bias, at, sizeof(bias));
        bias = compensation_bias(bias, ratio[e], o);
        memcpy(at, &bias, sizeof(bias));
    }
}
