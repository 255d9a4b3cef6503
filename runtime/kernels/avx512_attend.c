#include "runtime/kernels/avx512.h"

#include "runtime/kernels/avx2.h"
#include "runtime/kernels/avx2_attend.h"

/* The two inner passes over a block that many rows share, on vectors of twice
 * the width. A score is one chain over the dimensions and an accumulator one
 * over the entries, whatever the width: the bits are those of AVX2. */

enum { LANES = 16, ROWS = 4, VECTORS = 4 };

/* ----------------------------------------------------------------- scores */

/* Keys of a unit lie as two halves of eight entries, [2][d][8]; here a
 * dimension of all sixteen is one vector, [d][16]. */
ATTEND_INLINE void join_halves(enum kv_type type, const uint8_t *k, uint32_t d,
                               float *to)
{
    uint32_t line = KV_LANES * attend_bytes(type), half = d * line;
    for (uint32_t i = 0; i < d; i++) {
        _mm256_storeu_ps(to + i * LANES, attend_load(type, k + i * line));
        _mm256_storeu_ps(to + i * LANES + KV_LANES,
                         attend_load(type, k + half + i * line));
    }
}

/* Scores of n_rows rows for n_units units with keys [d][16] behind one
 * another. */
ATTEND_INLINE void qk(int n_rows, int n_units, const float *k, const float *q,
                      uint32_t d, float *score)
{
    __m512 acc[ROWS][ATTEND_UNITS];
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int u = 0; u < n_units; u++)
            acc[r][u] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < d; i++) {
        __m512 key[ATTEND_UNITS];
#pragma GCC unroll 4
        for (int u = 0; u < n_units; u++)
            key[u] = _mm512_loadu_ps(k + ((uint32_t)u * d + i) * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            __m512 x = _mm512_set1_ps(q[(uint32_t)r * d + i]);
#pragma GCC unroll 4
            for (int u = 0; u < n_units; u++)
                acc[r][u] = _mm512_fmadd_ps(key[u], x, acc[r][u]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int u = 0; u < n_units; u++)
            _mm512_storeu_ps(score + r * KV_BLOCK + u * KV_UNIT, acc[r][u]);
}

ATTEND_INLINE void qk_rows(int n_rows, int n_units, const float *k,
                           const float *q, uint32_t d, float *score)
{
    if (n_units == ATTEND_UNITS) {
        qk(n_rows, ATTEND_UNITS, k, q, d, score);
        return;
    }
    for (int u = 0; u < n_units; u++)
        qk(n_rows, 1, k + (uint32_t)u * d * LANES, q, d, score + u * KV_UNIT);
}

static void qk_group(int n_rows, int n_units, const float *k, const float *q,
                     uint32_t d, float *score)
{
    if (n_rows == 4)
        qk_rows(4, n_units, k, q, d, score);
    else if (n_rows == 3)
        qk_rows(3, n_units, k, q, d, score);
    else if (n_rows == 2)
        qk_rows(2, n_units, k, q, d, score);
    else
        qk_rows(1, n_units, k, q, d, score);
}

static void fetch_scales(const struct attend_block *b)
{
    const struct kv_layout *l = b->layout;
    for (int u = 0; u < b->n_units; u++)
        for (uint32_t at = 2 * l->v; at < l->data_bytes; at += KV_ALIGN)
            attend_fetch(b->next[u] + at);
}

static void attend_qk(const struct attend_block *b, const float *q, int n_rows,
                      float *score)
{
    const struct kv_layout *l = b->layout;
    const uint8_t *next[ATTEND_UNITS] = {0};
    uint32_t d = l->head_dim, n = KV_UNIT * d;
    if (b->kv == NULL) {
        avx2_attend_qk(b, q, n_rows, score);
        return;
    }
    fetch_scales(b);
    for (int u = 0; u < b->n_units; u++) {
        const uint8_t *k = b->unit[u] + l->k;
        float *to = b->kv + (uint32_t)u * n;
        next[u] = b->next[u] + l->k;
        if (l->type == KV_F16)
            join_halves(KV_F16, k, d, to);
        else if (l->type == KV_Q8_0)
            join_halves(KV_Q8_0, k, d, to);
        else
            join_halves(KV_F32, k, d, to);
    }
    int n_groups = (n_rows + ROWS - 1) / ROWS;
    for (int g = 0; g < n_groups; g++) {
        int left = n_rows - g * ROWS;
        attend_fetch_part(next, b->n_units, n * l->elem_bytes, (uint32_t)g,
                          (uint32_t)n_groups);
        qk_group(left < ROWS ? left : ROWS, b->n_units, b->kv,
                 q + (uint32_t)(g * ROWS) * d, d, score + g * ROWS * KV_BLOCK);
    }
}

/* ------------------------------------------------------- weighted values */

/* What one call works on: values [entries][d], entries [e0, e1). */
struct part {
    const float *v;
    uint32_t d;
    int e0, e1;
    const float *weight;
    const float *fade; /* NULL: leave the accumulators as they are */
    float *state;
    int64_t stride;
};

/* n_rows rows by n_vec vectors of dimensions from `column` on, held in
 * registers over all the entries. */
ATTEND_INLINE void pv(int n_rows, int n_vec, const struct part *p,
                      uint32_t column)
{
    __m512 acc[ROWS][VECTORS];
    const float *v = p->v + (uint32_t)p->e0 * p->d + column;
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < n_vec; c++) {
            acc[r][c] =
                _mm512_loadu_ps(p->state + r * p->stride + column + c * LANES);
            if (p->fade != NULL)
                acc[r][c] =
                    _mm512_mul_ps(acc[r][c], _mm512_set1_ps(p->fade[r]));
        }
    for (int e = p->e0; e < p->e1; e++, v += p->d) {
        __m512 value[VECTORS];
#pragma GCC unroll 4
        for (int c = 0; c < n_vec; c++)
            value[c] = _mm512_loadu_ps(v + c * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            __m512 w = _mm512_set1_ps(p->weight[r * KV_BLOCK + e]);
#pragma GCC unroll 4
            for (int c = 0; c < n_vec; c++)
                acc[r][c] = _mm512_fmadd_ps(w, value[c], acc[r][c]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < n_vec; c++)
            _mm512_storeu_ps(p->state + r * p->stride + column + c * LANES,
                             acc[r][c]);
}

/* All dimensions, widest pieces first. */
ATTEND_INLINE void pv_columns(int n_rows, const struct part *p)
{
    uint32_t at = 0;
    for (; at + VECTORS * LANES <= p->d; at += VECTORS * LANES)
        pv(n_rows, VECTORS, p, at);
    for (; at < p->d; at += LANES)
        pv(n_rows, 1, p, at);
}

static void pv_rows(int n_rows, const struct part *p)
{
    if (n_rows == 4)
        pv_columns(4, p);
    else if (n_rows == 3)
        pv_columns(3, p);
    else if (n_rows == 2)
        pv_columns(2, p);
    else
        pv_columns(1, p);
}

/* Rows r .. r + 3 of all, or up to the last. What all of them see is added
 * together; a row that sees more then goes on alone. */
static void pv_group(const float *v, uint32_t d, const struct attend_rows *rows,
                     int r)
{
    int n = rows->n - r < ROWS ? rows->n - r : ROWS;
    int common = rows->seen[r];
    struct part p = {.v = v,
                     .d = d,
                     .e1 = common,
                     .weight = rows->weight + r * KV_BLOCK,
                     .fade = rows->fade + r,
                     .state = rows->state + r * rows->stride,
                     .stride = rows->stride};
    pv_rows(n, &p);
    for (int i = r + 1; i < r + n; i++) {
        if (rows->seen[i] == common)
            continue;
        p.e0 = common;
        p.e1 = rows->seen[i];
        p.weight = rows->weight + i * KV_BLOCK;
        p.fade = NULL;
        p.state = rows->state + i * rows->stride;
        pv_rows(1, &p);
    }
}

static void attend_pv(const struct attend_block *b,
                      const struct attend_rows *rows)
{
    const struct kv_layout *l = b->layout;
    const uint8_t *next[ATTEND_UNITS] = {0};
    uint32_t d = l->head_dim, n = KV_UNIT * d;
    if (b->kv == NULL || d % LANES != 0) {
        avx2_attend_pv(b, rows);
        return;
    }
    for (int u = 0; u < b->n_units; u++) {
        const uint8_t *v = b->unit[u] + l->v;
        float *to = b->kv + (uint32_t)u * n;
        next[u] = b->next[u] + l->v;
        attend_unpack(l->type, v, n, to);
    }
    int n_groups = (rows->n + ROWS - 1) / ROWS;
    for (int g = 0; g < n_groups; g++) {
        attend_fetch_part(next, b->n_units, n * l->elem_bytes, (uint32_t)g,
                          (uint32_t)n_groups);
        pv_group(b->kv, d, rows, g * ROWS);
    }
}

static const struct attend_passes passes = {.qk = attend_qk, .pv = attend_pv};

void avx512_attend(const struct attend_args *a, void *scratch)
{
    avx2_attend_with(&passes, a, scratch);
}

void avx512_attend_logits(const struct attend_args *a, float *logit,
                          int64_t stride, void *scratch)
{
    avx2_attend_logits_with(&passes, a, logit, stride, scratch);
}
