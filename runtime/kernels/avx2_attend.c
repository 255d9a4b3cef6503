#include "runtime/kernels/avx2.h"

#include <math.h>
#include <string.h>

#include "runtime/kernels/avx2_attend.h"
#include "runtime/kernels/avx2_exp.h"

/* Attention over a list of units.
 *
 * Rows are (query row, head of the group) pairs, query-major; they share the
 * keys and values, which are read once for all of them. A block of KV_BLOCK
 * entries is done in three passes: scores of every row (avx2_attend_qk.c),
 * weights (here), weighted values (avx2_attend_pv.c). Up to DIRECT_ROWS rows
 * work straight on the stored form; for more, the block's keys, then its
 * values, are first converted to float32.
 *
 * For one row the operations and their order are the same in both ways and
 * for any company: a score is one chain over the dimensions, an accumulator
 * one chain over the entries, entries that a row does not see take no part.
 */

enum { DIRECT_ROWS = 12, LANES = 8, STATE_EXTRA = 8 };

struct scratch {
    const struct attend_passes *passes;
    float *q;      /* [rows][d], multiplied by the scale */
    float *weight; /* [rows][KV_BLOCK]: scores, then weights */
    float *fade;   /* [rows]: what the accumulators are multiplied by */
    float *total;  /* [rows] states */
    float *part;   /* [rows] states */
    float *kv;     /* [KV_BLOCK * d] */
};

static int64_t round_up(int64_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

int64_t avx2_attend_state_floats(uint32_t head_dim)
{
    return (int64_t)head_dim + STATE_EXTRA;
}

uint64_t avx2_attend_scratch_bytes(const struct attend_args *a)
{
    int64_t rows = (int64_t)a->n_query * a->group, d = a->layout->head_dim;
    int64_t floats = rows * (d + KV_BLOCK + 2 * (d + STATE_EXTRA)) +
                     round_up(rows) + KV_BLOCK * d;
    return (uint64_t)floats * sizeof(float) + KV_ALIGN;
}

static const struct attend_passes own = {.qk = avx2_attend_qk,
                                         .pv = avx2_attend_pv};

static struct scratch carve(const struct attend_passes *passes,
                            const struct attend_args *a, void *memory)
{
    int64_t rows = (int64_t)a->n_query * a->group, d = a->layout->head_dim;
    uintptr_t start = ((uintptr_t)memory + KV_ALIGN - 1) / KV_ALIGN * KV_ALIGN;
    struct scratch s = {.passes = passes};
    s.q = (float *)start;
    s.weight = s.q + rows * d;
    s.fade = s.weight + rows * KV_BLOCK;
    s.total = s.fade + round_up(rows);
    s.part = s.total + rows * (d + STATE_EXTRA);
    s.kv = s.part + rows * (d + STATE_EXTRA);
    return s;
}

static void scale_queries(const struct attend_args *a, float *q)
{
    int64_t d = a->layout->head_dim, n = d * a->group;
    __m256 scale = _mm256_set1_ps(a->scale);
    for (int i = 0; i < a->n_query; i++, q += n)
        for (int64_t j = 0; j < n; j += LANES)
            _mm256_storeu_ps(
                q + j, _mm256_mul_ps(
                           _mm256_loadu_ps(a->q + i * a->q_stride + j), scale));
}

static void clear_states(float *state, uint32_t d, int64_t n)
{
    for (int64_t r = 0; r < n; r++, state += d + STATE_EXTRA) {
        memset(state, 0, sizeof(float) * (d + STATE_EXTRA));
        state[d] = -INFINITY;
    }
}

static float largest_lane(__m256 v)
{
    __m128 t =
        _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

static float sum_of_lanes(__m256 v)
{
    __m128 t =
        _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}

static float exp_one(float x)
{
    return _mm256_cvtss_f32(avx2_exp(_mm256_set1_ps(x)));
}

static __m256 column(const struct kv_layout *l, const struct attend_block *b,
                     uint32_t offset, int i)
{
    (void)l;
    const uint8_t *unit = b->unit[i / (KV_UNIT / LANES)];
    return _mm256_loadu_ps((const float *)(const void *)(unit + offset) +
                           i % (KV_UNIT / LANES) * LANES);
}

/* Lanes of vector i that are among the first n entries. */
static __m256 visible_lanes(int i, int n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n - i * LANES), lane));
}

/* The logits that vector i of a row's scores are. */
static __m256 logits(const struct kv_layout *l, const struct attend_block *b,
                     int i, const float *score)
{
    __m256 s = _mm256_loadu_ps(score + i * LANES);
    __m256 bias = column(l, b, l->bias, i);
    return l->type == KV_Q8_0
               ? _mm256_fmadd_ps(s, column(l, b, l->k_scale, i), bias)
               : _mm256_add_ps(s, bias);
}

/* One row's scores become weights; its maximum and its sum of weights are
 * brought up to date. Returns what the older weights are multiplied by. n:
 * entries of the block that the row sees. */
static float weigh(const struct kv_layout *l, const struct attend_block *b,
                   int n, float *weight, float *m, float *sum)
{
    const __m256 none = _mm256_set1_ps(-INFINITY);
    int vectors = (n + LANES - 1) / LANES;
    __m256 top = _mm256_set1_ps(*m);
    for (int i = 0; i < vectors; i++) {
        __m256 s = logits(l, b, i, weight);
        s = _mm256_blendv_ps(none, s, visible_lanes(i, n));
        _mm256_storeu_ps(weight + i * LANES, s);
        top = _mm256_max_ps(s, top);
    }
    float m_new = largest_lane(top);
    /* Nothing seen so far: any finite reference makes all weights zero. */
    float reference = m_new == -INFINITY ? 0.0f : m_new;
    float fade = exp_one(*m - reference);
    __m256 at = _mm256_set1_ps(reference), total = _mm256_setzero_ps();
    for (int i = 0; i < vectors; i++) {
        __m256 p =
            avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(weight + i * LANES), at));
        total = _mm256_add_ps(total, p);
        if (l->type == KV_Q8_0)
            p = _mm256_mul_ps(p, column(l, b, l->v_scale, i));
        _mm256_storeu_ps(weight + i * LANES, p);
    }
    *sum = fmaf(*sum, fade, sum_of_lanes(total));
    *m = m_new;
    return fade;
}

/* Entries of the block at e0 that query row i sees; not above KV_BLOCK. */
static int entries_seen(const struct attend_args *a, int64_t row, int64_t e0)
{
    int64_t n = a->n_visible + row / a->group - e0;
    return n < 0 ? 0 : n < KV_BLOCK ? (int)n : KV_BLOCK;
}

/* The block at e0. The one behind it is fetched meanwhile, if it begins
 * before entry fetch_end: unit pointers are good only so far. */
static struct attend_block block_at(const struct attend_args *a, int64_t e0,
                                    int64_t fetch_end)
{
    int64_t end = a->n_visible + a->n_query - 1;
    struct attend_block b = {.layout = a->layout};
    fetch_end = fetch_end < end ? fetch_end : end;
    int64_t n = end - e0 < KV_BLOCK ? end - e0 : KV_BLOCK;
    b.n_units = (int)((n + KV_UNIT - 1) / KV_UNIT);
    for (int u = 0; u < b.n_units; u++) {
        int64_t i = e0 / KV_UNIT + u, next = i + KV_BLOCK / KV_UNIT;
        b.unit[u] = a->unit[i];
        b.next[u] = next * KV_UNIT < fetch_end ? a->unit[next] : a->unit[i];
    }
    return b;
}

/* The first row that sees entry e. */
static int64_t first_row(const struct attend_args *a, int64_t e)
{
    int64_t i = e - a->n_visible + 1;
    return (i > 0 ? i : 0) * a->group;
}

/* Adds the block at e0 to the states of the rows that see at least one entry
 * of it. */
static void add_block(const struct attend_args *a, const struct scratch *s,
                      int64_t e0, int64_t fetch_end, float *state)
{
    int64_t row0 = first_row(a, e0), rows = (int64_t)a->n_query * a->group;
    int64_t d = a->layout->head_dim, stride = d + STATE_EXTRA;
    int64_t n_rows = rows - row0;
    struct attend_block b = block_at(a, e0, fetch_end);
    bool direct = n_rows <= DIRECT_ROWS;
    b.kv = direct ? NULL : s->kv;
    s->passes->qk(&b, s->q + row0 * d, (int)n_rows,
                  s->weight + row0 * KV_BLOCK);
    int seen[OPS_QUERY_MAX * OPS_GROUP_MAX];
    for (int64_t r = row0; r < rows; r++) {
        float *st = state + r * stride;
        seen[r] = entries_seen(a, r, e0);
        s->fade[r] = weigh(a->layout, &b, seen[r], s->weight + r * KV_BLOCK,
                           st + d, st + d + 1);
    }
    const struct attend_rows shown = {.weight = s->weight + row0 * KV_BLOCK,
                                      .fade = s->fade + row0,
                                      .seen = seen + row0,
                                      .n = (int)n_rows,
                                      .state = state + row0 * stride,
                                      .stride = stride};
    s->passes->pv(&b, &shown);
}

/* The partial results of one segment for the rows that see any of it. */
static void segment(const struct attend_args *a, const struct scratch *s,
                    int64_t index, int64_t fetch_end, float *state)
{
    uint32_t d = a->layout->head_dim;
    int64_t rows = (int64_t)a->n_query * a->group;
    int64_t start = index * KV_SEGMENT, end = start + KV_SEGMENT;
    int64_t last = a->n_visible + a->n_query - 1;
    int64_t row0 = first_row(a, start);
    clear_states(state + row0 * (d + STATE_EXTRA), d, rows - row0);
    for (int64_t e = start; e < end && e < last; e += KV_BLOCK)
        add_block(a, s, e, fetch_end, state);
}

/* into = into joined with next, which comes later in the list. */
static void fold(uint32_t d, float *into, const float *next)
{
    float m0 = into[d], m1 = next[d], top = m0 > m1 ? m0 : m1;
    float reference = top == -INFINITY ? 0.0f : top;
    float c0 = exp_one(m0 - reference), c1 = exp_one(m1 - reference);
    __m256 v0 = _mm256_set1_ps(c0), v1 = _mm256_set1_ps(c1);
    for (uint32_t i = 0; i < d; i += LANES) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(into + i), v0);
        x = _mm256_fmadd_ps(_mm256_loadu_ps(next + i), v1, x);
        _mm256_storeu_ps(into + i, x);
    }
    into[d] = top;
    into[d + 1] = fmaf(next[d + 1], c1, into[d + 1] * c0);
}

/* A row that sees nothing (every bias is -infinity) gives zeros. */
static void finish(const struct attend_args *a, int64_t row, const float *state)
{
    uint32_t d = a->layout->head_dim;
    int64_t i = row / a->group, g = row % a->group;
    float l = state[d + 1], *out = a->out + i * a->out_stride + g * d;
    __m256 sum = _mm256_set1_ps(l == 0.0f ? 1.0f : l);
    for (uint32_t k = 0; k < d; k += LANES)
        _mm256_storeu_ps(out + k,
                         _mm256_div_ps(_mm256_loadu_ps(state + k), sum));
    if (a->norm != NULL)
        memcpy(a->norm + i * a->norm_stride + 2 * g, state + d,
               2 * sizeof(*state));
}

void avx2_attend(const struct attend_args *a, void *memory)
{
    avx2_attend_with(&own, a, memory);
}

void avx2_attend_with(const struct attend_passes *p,
                      const struct attend_args *a, void *memory)
{
    uint32_t d = a->layout->head_dim;
    int64_t rows = (int64_t)a->n_query * a->group, stride = d + STATE_EXTRA;
    struct scratch s = carve(p, a, memory);
    scale_queries(a, s.q);
    int64_t end = a->n_visible + a->n_query - 1;
    segment(a, &s, 0, end, s.total);
    for (int64_t i = 1; i * KV_SEGMENT < end; i++) {
        segment(a, &s, i, end, s.part);
        for (int64_t r = first_row(a, i * KV_SEGMENT); r < rows; r++)
            fold(d, s.total + r * stride, s.part + r * stride);
    }
    for (int64_t r = 0; r < rows; r++)
        finish(a, r, s.total + r * stride);
}

void avx2_attend_segment(const struct attend_args *a, int64_t index,
                         float *state, void *memory)
{
    struct scratch s = carve(&own, a, memory);
    scale_queries(a, s.q);
    segment(a, &s, index, (index + 1) * KV_SEGMENT, state);
}

void avx2_attend_join(const struct attend_args *a, const float *states,
                      int64_t n_segments)
{
    uint32_t d = a->layout->head_dim;
    int64_t stride = avx2_attend_state_floats(d);
    float total[OPS_HEAD_DIM_MAX + STATE_EXTRA];
    for (int g = 0; g < a->group; g++) {
        memcpy(total, states + g * stride, sizeof(float) * (size_t)stride);
        for (int64_t s = 1; s < n_segments; s++)
            fold(d, total, states + (s * a->group + g) * stride);
        finish(a, g, total);
    }
}

void avx2_attend_logits(const struct attend_args *a, float *logit,
                        int64_t stride, void *memory)
{
    avx2_attend_logits_with(&own, a, logit, stride, memory);
}

void avx2_attend_logits_with(const struct attend_passes *p,
                             const struct attend_args *a, float *logit,
                             int64_t stride, void *memory)
{
    int rows = a->n_query * a->group;
    struct scratch s = carve(p, a, memory);
    /* The blocks of a list whose last entry every row sees. */
    struct attend_args all = *a;
    all.n_visible -= a->n_query - 1;
    scale_queries(a, s.q);
    for (int64_t e = 0; e < a->n_visible; e += KV_BLOCK) {
        struct attend_block b = block_at(&all, e, a->n_visible);
        b.kv = rows <= DIRECT_ROWS ? NULL : s.kv;
        s.passes->qk(&b, s.q, rows, s.weight);
        for (int64_t r = 0; r < rows; r++)
            for (int i = 0; i < b.n_units * (KV_UNIT / LANES); i++)
                _mm256_storeu_ps(
                    logit + r * stride + e + i * LANES,
                    logits(a->layout, &b, i, s.weight + r * KV_BLOCK));
    }
}

/* Eight of the n - i numbers from x + i on; -infinity behind the last. */
static __m256 load_tail(const float *x, int64_t i, int64_t n)
{
    float tail[LANES];
    if (n - i >= LANES)
        return _mm256_loadu_ps(x + i);
    for (int64_t k = 0; k < LANES; k++)
        tail[k] = i + k < n ? x[i + k] : -INFINITY;
    return _mm256_loadu_ps(tail);
}

static void store_tail(float *x, int64_t i, int64_t n, __m256 v)
{
    float tail[LANES];
    _mm256_storeu_ps(tail, v);
    memcpy(x + i, tail,
           sizeof(float) * (size_t)(n - i < LANES ? n - i : LANES));
}

void avx2_softmax(float *x, int64_t n)
{
    __m256 top = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i += LANES)
        top = _mm256_max_ps(load_tail(x, i, n), top);
    float m = largest_lane(top);
    top = _mm256_set1_ps(m == -INFINITY ? 0.0f : m);
    for (int64_t i = 0; i < n; i += LANES) {
        __m256 p = avx2_exp(_mm256_sub_ps(load_tail(x, i, n), top));
        sum = _mm256_add_ps(sum, p);
        store_tail(x, i, n, p);
    }
    float l = sum_of_lanes(sum);
    sum = _mm256_set1_ps(l == 0.0f ? 1.0f : l);
    for (int64_t i = 0; i < n; i += LANES)
        store_tail(x, i, n, _mm256_div_ps(load_tail(x, i, n), sum));
}

void avx2_add_weights(const float *logit, const float *norm, int64_t n,
                      float *sum)
{
    __m256 top = _mm256_set1_ps(norm[0]), all = _mm256_set1_ps(norm[1]);
    for (int64_t e = 0; e < n && norm[1] > 0; e += LANES) {
        __m256 x = avx2_exp(_mm256_sub_ps(load_tail(logit, e, n), top));
        x = _mm256_add_ps(load_tail(sum, e, n), _mm256_div_ps(x, all));
        store_tail(sum, e, n, x);
    }
}
