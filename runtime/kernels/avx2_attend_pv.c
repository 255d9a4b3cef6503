#include "runtime/kernels/avx2_attend.h"

enum { ROWS = 4, VECTORS = 8, LANES = 8 };

/* What one call works on: values of units v[], entries [e0, e1) of the block,
 * dimensions from column * 8 on. */
struct part {
    const uint8_t *const *v;
    const uint8_t *const *next; /* or NULL */
    uint32_t d;
    int e0, e1;
    const float *weight;
    const float *fade; /* NULL: leave the accumulators as they are */
    float *state;
    int64_t stride;
};

/* n_rows rows by n_vec vectors of dimensions, held in registers over all the
 * entries. */
ATTEND_INLINE void pv(enum kv_type type, int n_rows, int n_vec,
                      const struct part *p, uint32_t column)
{
    uint32_t bytes = LANES * attend_bytes(type), row = p->d * bytes / LANES;
    __m256 acc[ROWS][VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        __m256 fade = p->fade != NULL ? _mm256_broadcast_ss(p->fade + r)
                                      : _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int c = 0; c < n_vec; c++) {
            const float *at =
                p->state + r * p->stride + (column + (uint32_t)c) * LANES;
            acc[r][c] = _mm256_loadu_ps(at);
            if (p->fade != NULL)
                acc[r][c] = _mm256_mul_ps(acc[r][c], fade);
        }
    }
    for (int e = p->e0; e < p->e1;) {
        int unit = e / KV_UNIT, end = (unit + 1) * KV_UNIT;
        end = end < p->e1 ? end : p->e1;
        uint32_t at = (uint32_t)(e % KV_UNIT) * row + column * bytes;
        const uint8_t *v = p->v[unit] + at;
        const uint8_t *next = p->next != NULL ? p->next[unit] + at : v;
        for (; e < end; e++, v += row, next += row) {
            __m256 value[VECTORS];
#pragma GCC unroll 8
            for (int c = 0; c < n_vec; c++)
                value[c] = attend_load(type, v + (uint32_t)c * bytes);
            if (p->next != NULL)
#pragma GCC unroll 8
                for (uint32_t f = 0; f < (uint32_t)n_vec * bytes; f += KV_ALIGN)
                    attend_fetch(next + f);
#pragma GCC unroll 4
            for (int r = 0; r < n_rows; r++) {
                __m256 w = _mm256_broadcast_ss(p->weight + r * KV_BLOCK + e);
#pragma GCC unroll 8
                for (int c = 0; c < n_vec; c++)
                    acc[r][c] = _mm256_fmadd_ps(w, value[c], acc[r][c]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < n_vec; c++)
            _mm256_storeu_ps(p->state + r * p->stride +
                                 (column + (uint32_t)c) * LANES,
                             acc[r][c]);
}

/* All dimensions, widest pieces first. */
ATTEND_INLINE void pv_columns(enum kv_type type, int n_rows, int widest,
                              const struct part *p)
{
    uint32_t n = p->d / LANES, c = 0;
    if (widest >= 8)
        for (; c + 8 <= n; c += 8)
            pv(type, n_rows, 8, p, c);
    if (widest >= 4)
        for (; c + 4 <= n; c += 4)
            pv(type, n_rows, 4, p, c);
    for (; c + 2 <= n; c += 2)
        pv(type, n_rows, 2, p, c);
    for (; c < n; c++)
        pv(type, n_rows, 1, p, c);
}

ATTEND_INLINE void pv_one_group(enum kv_type type, int n_rows,
                                const struct part *p)
{
    if (n_rows == 4)
        pv_columns(type, 4, 2, p);
    else if (n_rows == 3)
        pv_columns(type, 3, 4, p);
    else if (n_rows == 2)
        pv_columns(type, 2, 4, p);
    else
        pv_columns(type, 1, 8, p);
}

/* Rows r .. r + 3 of all, or up to the last. What all of them see is added
 * together; a row that sees more then goes on alone. */
ATTEND_INLINE void pv_group(enum kv_type type, const uint8_t *const *v,
                            const uint8_t *const *next, uint32_t d,
                            const struct attend_rows *rows, int r)
{
    int n = rows->n - r < ROWS ? rows->n - r : ROWS;
    int common = rows->seen[r];
    struct part p = {.v = v,
                     .next = next,
                     .d = d,
                     .e1 = common,
                     .weight = rows->weight + r * KV_BLOCK,
                     .fade = rows->fade + r,
                     .state = rows->state + r * rows->stride,
                     .stride = rows->stride};
    pv_one_group(type, n, &p);
    for (int i = r + 1; i < r + n; i++) {
        if (rows->seen[i] == common)
            continue;
        p.next = NULL;
        p.e0 = common;
        p.e1 = rows->seen[i];
        p.weight = rows->weight + i * KV_BLOCK;
        p.fade = NULL;
        p.state = rows->state + i * rows->stride;
        pv_one_group(type, 1, &p);
    }
}

/* Straight from the stored form. */
ATTEND_INLINE void pv_direct(enum kv_type type, const uint8_t *const *v,
                             const uint8_t *const *next, uint32_t d,
                             const struct attend_rows *rows)
{
    for (int r = 0; r < rows->n; r += ROWS)
        pv_group(type, v, r == 0 ? next : NULL, d, rows, r);
}

static void pv_f16(const uint8_t *const *v, const uint8_t *const *next,
                   uint32_t d, const struct attend_rows *rows)
{
    pv_direct(KV_F16, v, next, d, rows);
}

static void pv_q8(const uint8_t *const *v, const uint8_t *const *next,
                  uint32_t d, const struct attend_rows *rows)
{
    pv_direct(KV_Q8_0, v, next, d, rows);
}

static void pv_f32(const uint8_t *const *v, const uint8_t *const *next,
                   uint32_t d, const struct attend_rows *rows)
{
    pv_direct(KV_F32, v, next, d, rows);
}

static void pv_converted(const struct attend_block *b, const uint8_t *const *v,
                         const uint8_t *const *next,
                         const struct attend_rows *rows)
{
    uint32_t d = b->layout->head_dim, n = KV_UNIT * d;
    const uint8_t *converted[ATTEND_UNITS] = {0};
    for (int u = 0; u < b->n_units; u++) {
        float *to = b->kv + (uint32_t)u * n;
        attend_unpack(b->layout->type, v[u], n, to);
        converted[u] = (const uint8_t *)to;
    }
    int n_groups = (rows->n + ROWS - 1) / ROWS;
    for (int g = 0; g < n_groups; g++) {
        attend_fetch_part(next, b->n_units, n * b->layout->elem_bytes,
                          (uint32_t)g, (uint32_t)n_groups);
        pv_group(KV_F32, converted, NULL, d, rows, g * ROWS);
    }
}

void avx2_attend_pv(const struct attend_block *b, const struct attend_rows *r)
{
    const struct kv_layout *l = b->layout;
    const uint8_t *v[ATTEND_UNITS] = {0}, *next[ATTEND_UNITS] = {0};
    for (int u = 0; u < b->n_units; u++) {
        v[u] = b->unit[u] + l->v;
        next[u] = b->next[u] + l->v;
    }
    if (b->kv != NULL && l->type != KV_F32)
        pv_converted(b, v, next, r);
    else if (l->type == KV_F16)
        pv_f16(v, next, l->head_dim, r);
    else if (l->type == KV_Q8_0)
        pv_q8(v, next, l->head_dim, r);
    else
        pv_f32(v, next, l->head_dim, r);
}
