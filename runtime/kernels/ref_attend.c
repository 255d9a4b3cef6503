#include "runtime/kernels/ref.h"

#include <math.h>
#include <string.h>

/* A partial result: the values' weighted sum acc[head_dim] (padded to whole
 * vectors), the largest score m it is relative to, and the sum of weights l.
 * Nothing seen yet: m = -infinity, l = 0, acc = 0. */
enum { STATE_EXTRA = 8, STATE_MAX = OPS_HEAD_DIM_MAX + STATE_EXTRA };

static float *state_m(float *state, uint32_t head_dim)
{
    return state + head_dim;
}

static float *state_l(float *state, uint32_t head_dim)
{
    return state + head_dim + 1;
}

int64_t ref_attend_state_floats(uint32_t head_dim)
{
    return (int64_t)head_dim + STATE_EXTRA;
}

uint64_t ref_attend_scratch_bytes(const struct attend_args *a)
{
    (void)a;
    return 0;
}

static float entry_bias(const struct kv_layout *l, const uint8_t *unit,
                        uint32_t slot)
{
    float b;
    memcpy(&b, unit + l->bias + slot * sizeof(b), sizeof(b));
    return b;
}

static float logit_of(const struct attend_args *a, const float *q, int64_t e,
                      const float *key)
{
    double dot = 0;
    for (uint32_t i = 0; i < a->layout->head_dim; i++)
        dot += (double)q[i] * (double)key[i];
    return (float)dot * a->scale +
           entry_bias(a->layout, a->unit[e / KV_UNIT], (uint32_t)(e % KV_UNIT));
}

/* Adds entries [e0, e1), at most one block of them, to one head's state. */
static void add_block(const struct attend_args *a, const float *q, int64_t e0,
                      int64_t e1, float *state)
{
    uint32_t d = a->layout->head_dim;
    float *m = state_m(state, d), *l = state_l(state, d);
    float score[KV_BLOCK], key[OPS_HEAD_DIM_MAX], value[OPS_HEAD_DIM_MAX];
    float top = *m;
    for (int64_t e = e0; e < e1; e++) {
        ref_kv_load(a->layout, a->unit[e / KV_UNIT], (uint32_t)(e % KV_UNIT),
                    key, value);
        float s = logit_of(a, q, e, key);
        score[e - e0] = s;
        top = s > top ? s : top;
    }
    if (top == -INFINITY)
        return;
    float fade = ref_exp(*m - top);
    *m = top;
    *l *= fade;
    for (uint32_t i = 0; i < d; i++)
        state[i] *= fade;
    for (int64_t e = e0; e < e1; e++) {
        float p = ref_exp(score[e - e0] - top);
        ref_kv_load(a->layout, a->unit[e / KV_UNIT], (uint32_t)(e % KV_UNIT),
                    key, value);
        *l += p;
        for (uint32_t i = 0; i < d; i++)
            state[i] += p * value[i];
    }
}

/* The partial result of one query head over one segment. */
static void one_segment(const struct attend_args *a, const float *q,
                        int64_t n_visible, int64_t segment, float *state)
{
    uint32_t d = a->layout->head_dim;
    memset(state, 0, sizeof(float) * (d + STATE_EXTRA));
    *state_m(state, d) = -INFINITY;
    int64_t end = (segment + 1) * KV_SEGMENT;
    end = end < n_visible ? end : n_visible;
    for (int64_t e = segment * KV_SEGMENT; e < end; e += KV_BLOCK)
        add_block(a, q, e, e + KV_BLOCK < end ? e + KV_BLOCK : end, state);
}

/* into = into joined with next, which comes later in the list. */
static void fold(uint32_t d, float *into, const float *next)
{
    float m0 = into[d], m1 = next[d];
    float top = m0 > m1 ? m0 : m1;
    if (top == -INFINITY)
        return;
    float c0 = ref_exp(m0 - top), c1 = ref_exp(m1 - top);
    for (uint32_t i = 0; i < d; i++)
        into[i] = into[i] * c0 + next[i] * c1;
    *state_m(into, d) = top;
    *state_l(into, d) = into[d + 1] * c0 + next[d + 1] * c1;
}

/* A row that sees nothing (every bias is -infinity) gives zeros. */
static void finish(const struct attend_args *a, int i, int g,
                   const float *state)
{
    uint32_t d = a->layout->head_dim;
    float *out = a->out + i * a->out_stride + g * (int64_t)d;
    float l = state[d + 1];
    for (uint32_t k = 0; k < d; k++)
        out[k] = l > 0.0f ? state[k] / l : 0.0f;
    if (a->norm)
        memcpy(a->norm + i * a->norm_stride + 2 * (int64_t)g, state + d,
               2 * sizeof(*state));
}

void ref_attend(const struct attend_args *a, void *scratch)
{
    (void)scratch;
    uint32_t d = a->layout->head_dim;
    float total[STATE_MAX], part[STATE_MAX];
    for (int i = 0; i < a->n_query; i++) {
        int64_t n_visible = a->n_visible + i;
        int64_t n_segments = (n_visible + KV_SEGMENT - 1) / KV_SEGMENT;
        for (int g = 0; g < a->group; g++) {
            const float *q = a->q + i * a->q_stride + g * (int64_t)d;
            one_segment(a, q, n_visible, 0, total);
            for (int64_t s = 1; s < n_segments; s++) {
                one_segment(a, q, n_visible, s, part);
                fold(d, total, part);
            }
            finish(a, i, g, total);
        }
    }
}

void ref_attend_segment(const struct attend_args *a, int64_t segment,
                        float *state, void *scratch)
{
    (void)scratch;
    uint32_t d = a->layout->head_dim;
    for (int g = 0; g < a->group; g++)
        one_segment(a, a->q + g * (int64_t)d, a->n_visible, segment,
                    state + g * ref_attend_state_floats(d));
}

void ref_attend_join(const struct attend_args *a, const float *states,
                     int64_t n_segments)
{
    uint32_t d = a->layout->head_dim;
    int64_t stride = ref_attend_state_floats(d);
    float total[STATE_MAX];
    for (int g = 0; g < a->group; g++) {
        memcpy(total, states + g * stride, sizeof(float) * (size_t)stride);
        for (int64_t s = 1; s < n_segments; s++)
            fold(d, total, states + (s * a->group + g) * stride);
        finish(a, 0, g, total);
    }
}

void ref_attend_logits(const struct attend_args *a, float *logit,
                       int64_t stride, void *scratch)
{
    uint32_t d = a->layout->head_dim;
    float key[OPS_HEAD_DIM_MAX], value[OPS_HEAD_DIM_MAX];
    (void)scratch;
    for (int64_t e = 0; e < a->n_visible; e++) {
        ref_kv_load(a->layout, a->unit[e / KV_UNIT], (uint32_t)(e % KV_UNIT),
                    key, value);
        for (int i = 0; i < a->n_query; i++)
            for (int g = 0; g < a->group; g++)
                logit[(i * a->group + g) * stride + e] = logit_of(
                    a, a->q + i * a->q_stride + g * (int64_t)d, e, key);
    }
}

void ref_softmax(float *x, int64_t n)
{
    float top = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++)
        sum += (double)(x[i] = top == -INFINITY ? 0 : ref_exp(x[i] - top));
    for (int64_t i = 0; i < n && sum > 0; i++)
        x[i] = (float)((double)x[i] / sum);
}

void ref_add_weights(const float *logit, const float *norm, int64_t n,
                     float *sum)
{
    for (int64_t e = 0; e < n && norm[1] > 0; e++)
        sum[e] += ref_exp(logit[e] - norm[0]) / norm[1];
}
