#include "runtime/kernels/avx2_attend.h"

enum {
    GROUPS = KV_UNIT / KV_LANES, /* vectors of keys in a unit */
    UNROLL = 4,
    ROWS = 4,
    UNITS_AT_ONCE = 4
};

/* Scores of n_rows rows for n_units units whose keys start at k[]. Chains:
 * n_rows * n_units * GROUPS, enough of them to hide the latency of the
 * multiply-add where registers allow. */
ATTEND_INLINE void qk(enum kv_type type, int n_rows, int n_units,
                      const uint8_t *const *k, const uint8_t *const *next,
                      const float *q, uint32_t d, float *score)
{
    uint32_t line = KV_LANES * attend_bytes(type), half = d * line;
    __m256 acc[ROWS][UNITS_AT_ONCE][GROUPS];
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int u = 0; u < n_units; u++)
            acc[r][u][0] = acc[r][u][1] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < d; i++) {
        __m256 key[UNITS_AT_ONCE][GROUPS];
#pragma GCC unroll 4
        for (int u = 0; u < n_units; u++) {
            const uint8_t *at = k[u] + i * line;
            key[u][0] = attend_load(type, at);
            key[u][1] = attend_load(type, at + half);
            /* Two lines of keys are passed here in a turn or more: fetch as
             * many bytes of the next unit. */
            if (next != NULL)
                attend_fetch(next[u] + 2 * i * line);
        }
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            __m256 x = _mm256_broadcast_ss(q + (uint32_t)r * d + i);
#pragma GCC unroll 4
            for (int u = 0; u < n_units; u++) {
                acc[r][u][0] = _mm256_fmadd_ps(key[u][0], x, acc[r][u][0]);
                acc[r][u][1] = _mm256_fmadd_ps(key[u][1], x, acc[r][u][1]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int u = 0; u < n_units; u++) {
            float *to = score + r * KV_BLOCK + u * KV_UNIT;
            _mm256_storeu_ps(to, acc[r][u][0]);
            _mm256_storeu_ps(to + KV_LANES, acc[r][u][1]);
        }
    }
}

/* All units of a block for one group of rows. */
ATTEND_INLINE void qk_units(enum kv_type type, int n_rows, int at_once,
                            const uint8_t *const *k, const uint8_t *const *next,
                            int n_units, const float *q, uint32_t d,
                            float *score)
{
    int u = 0;
    for (; u + at_once <= n_units; u += at_once)
        qk(type, n_rows, at_once, k + u, next != NULL ? next + u : NULL, q, d,
           score + u * KV_UNIT);
    for (; u < n_units; u++)
        qk(type, n_rows, 1, k + u, next != NULL ? next + u : NULL, q, d,
           score + u * KV_UNIT);
}

/* n_rows is 1 to ROWS. */
ATTEND_INLINE void qk_group(enum kv_type type, const uint8_t *const *k,
                            const uint8_t *const *next, int n_units,
                            const float *q, int n_rows, uint32_t d,
                            float *score)
{
    if (n_rows == 4)
        qk_units(type, 4, 1, k, next, n_units, q, d, score);
    else if (n_rows == 3)
        qk_units(type, 3, 2, k, next, n_units, q, d, score);
    else if (n_rows == 2)
        qk_units(type, 2, 2, k, next, n_units, q, d, score);
    else
        qk_units(type, 1, 4, k, next, n_units, q, d, score);
}

ATTEND_INLINE void qk_direct(enum kv_type type, const struct attend_block *b,
                             const uint8_t *const *k,
                             const uint8_t *const *next, const float *q,
                             int n_rows, float *score)
{
    uint32_t d = b->layout->head_dim;
    for (int r = 0; r < n_rows; r += ROWS)
        qk_group(type, k, r == 0 ? next : NULL, b->n_units, q + (uint32_t)r * d,
                 n_rows - r < ROWS ? n_rows - r : ROWS, d,
                 score + r * KV_BLOCK);
}

static void qk_f16(const struct attend_block *b, const uint8_t *const *k,
                   const uint8_t *const *next, const float *q, int n_rows,
                   float *score)
{
    qk_direct(KV_F16, b, k, next, q, n_rows, score);
}

static void qk_q8(const struct attend_block *b, const uint8_t *const *k,
                  const uint8_t *const *next, const float *q, int n_rows,
                  float *score)
{
    qk_direct(KV_Q8_0, b, k, next, q, n_rows, score);
}

static void qk_f32(const struct attend_block *b, const uint8_t *const *k,
                   const uint8_t *const *next, const float *q, int n_rows,
                   float *score)
{
    qk_direct(KV_F32, b, k, next, q, n_rows, score);
}

/* Keys converted once, then used by all rows. */
static void qk_converted(const struct attend_block *b, const uint8_t *const *k,
                         const uint8_t *const *next, const float *q, int n_rows,
                         float *score)
{
    uint32_t d = b->layout->head_dim, n = KV_UNIT * d;
    const uint8_t *converted[ATTEND_UNITS] = {0};
    for (int u = 0; u < b->n_units; u++) {
        float *to = b->kv + (uint32_t)u * n;
        attend_unpack(b->layout->type, k[u], n, to);
        converted[u] = (const uint8_t *)to;
    }
    int n_groups = (n_rows + ROWS - 1) / ROWS;
    for (int g = 0; g < n_groups; g++) {
        int left = n_rows - g * ROWS;
        attend_fetch_part(next, b->n_units, n * b->layout->elem_bytes,
                          (uint32_t)g, (uint32_t)n_groups);
        qk_group(KV_F32, converted, NULL, b->n_units,
                 q + (uint32_t)(g * ROWS) * d, left < ROWS ? left : ROWS, d,
                 score + g * ROWS * KV_BLOCK);
    }
}

void avx2_attend_qk(const struct attend_block *b, const float *q, int n_rows,
                    float *score)
{
    const struct kv_layout *l = b->layout;
    const uint8_t *k[ATTEND_UNITS] = {0}, *next[ATTEND_UNITS] = {0};
    for (int u = 0; u < b->n_units; u++) {
        k[u] = b->unit[u] + l->k;
        next[u] = b->next[u] + l->k;
        /* Scales and bias are not passed by the loops. */
        for (uint32_t at = 2 * l->v; at < l->data_bytes; at += KV_ALIGN)
            attend_fetch(b->next[u] + at);
    }
    if (b->kv != NULL && l->type != KV_F32)
        qk_converted(b, k, next, q, n_rows, score);
    else if (l->type == KV_F16)
        qk_f16(b, k, next, q, n_rows, score);
    else if (l->type == KV_Q8_0)
        qk_q8(b, k, next, q, n_rows, score);
    else
        qk_f32(b, k, next, q, n_rows, score);
}
