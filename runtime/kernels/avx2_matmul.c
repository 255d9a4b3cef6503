#include "runtime/kernels/avx2.h"

#include <string.h>

#include "runtime/kernels/avx2_tile.h"

/* Products of packed weights and packed activations (avx2_tile.h).
 *
 * Every output is one chain over the blocks of its row, in their order:
 *
 *     sum = (integer sum over a part of a block, exact)
 *     acc = fma(sum, d_weight * d_activation, acc)
 *     acc = fma(m_weight, s_activation, acc)          (types with a min)
 *
 * The two ways, few activation rows straight from the packed codes (here) and
 * many rows from codes unpacked to 16 bits (avx2_many.h), differ only in how
 * they come to the exact integers, so they give the same bits. */

enum {
    FEW = 2, /* activation rows of one pass of the first way */
    /* So many rows are done by passes of it; with more, unpacking pays. It
     * pays earlier for codes of 5 and 6 bits, which cost more to put
     * together. */
    FEW_MAX = 6,
    FEW_MAX_HIGH_BITS = 3
};

/* Integer sums of 16 rows, by half, for each activation row. */
struct sums {
    __m256i row[FEW][2];
};

AVX2_INLINE __m256i pair_of(const int16_t *q)
{
    int32_t pair;
    memcpy(&pair, q, sizeof(pair));
    return _mm256_set1_epi32(pair);
}

/* s += w x, one after the other: GCC else computes many products first, as
 * integer sums may be regrouped, and runs out of registers. */
AVX2_INLINE void add_product(__m256i *s, __m256i w, __m256i x)
{
    *s = _mm256_add_epi32(*s, _mm256_madd_epi16(w, x));
    __asm__("" : "+x"(*s));
}

/* Line j (0..3) of a block times n activation rows, from row t0 of a on. */
AVX2_INLINE void add_line(enum dtype type, int n, const uint8_t *block, int j,
                          const struct avx2_act *a, int t0, struct sums *s)
{
    struct avx2_quad c0 = avx2_codes(type, block, j, 0);
    struct avx2_quad c1 = avx2_codes(type, block, j, 1);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#pragma GCC unroll 2
        for (int t = 0; t < n; t++) {
            __m256i x = pair_of(&a->q[t0 + t][2 * (4 * j + i)]);
            add_product(&s->row[t][0], c0.step[i], x);
            add_product(&s->row[t][1], c1.step[i], x);
        }
    }
}

/* The offset of the codes is taken off all at once: sum of (code - offset)
 * q = sum of code q - offset * sum of q. from, to: the parts of the block
 * (16 columns each) that are summed. */
AVX2_INLINE struct sums start_sums(int n, int32_t offset,
                                   const struct avx2_act *a, int t0, int from,
                                   int to)
{
    struct sums s;
#pragma GCC unroll 2
    for (int t = 0; t < n; t++) {
        int32_t sum = 0;
        for (int i = from; i < to && offset != 0; i++)
            sum += a->sum[i][t0 + t];
        s.row[t][0] = s.row[t][1] = _mm256_set1_epi32(-offset * sum);
    }
    return s;
}

AVX2_INLINE void add_scaled(enum dtype type, int n, const uint8_t *head,
                            const uint8_t *block, int part,
                            const struct avx2_act *a, int t0,
                            const struct sums *s, __m256 acc[FEW][2])
{
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m256 d = avx2_scale(type, head, block, h, part);
#pragma GCC unroll 2
        for (int t = 0; t < n; t++) {
            __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(&a->d[t0 + t]));
            acc[t][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s->row[t][h]), scale,
                                        acc[t][h]);
        }
    }
}

AVX2_INLINE void add_block(enum dtype type, int n, const uint8_t *head,
                           const uint8_t *block, const struct avx2_act *a,
                           int t0, __m256 acc[FEW][2])
{
    struct avx2_format f = avx2_format(type);
    bool two_parts = type == DTYPE_Q6_K;
    struct sums s = start_sums(n, f.offset, a, t0, 0, two_parts ? 1 : 2);
    add_line(type, n, block, 0, a, t0, &s);
    add_line(type, n, block, 1, a, t0, &s);
    if (two_parts) {
        add_scaled(type, n, head, block, 0, a, t0, &s, acc);
        s = start_sums(n, f.offset, a, t0, 1, 2);
    }
    add_line(type, n, block, 2, a, t0, &s);
    add_line(type, n, block, 3, a, t0, &s);
    add_scaled(type, n, head, block, two_parts, a, t0, &s, acc);
    if (f.m == 0)
        return;
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m256 m = avx2_min(type, head, block, h);
#pragma GCC unroll 2
        for (int t = 0; t < n; t++)
            acc[t][h] = _mm256_fmadd_ps(m, _mm256_broadcast_ss(&a->s[t0 + t]),
                                        acc[t][h]);
    }
}

/* One row tile times the rows t0 .. t0 + n - 1 of an activation tile. */
AVX2_INLINE void tile_few(enum dtype type, int n, const uint8_t *w,
                          const struct avx2_act *a, int t0, int64_t n_blocks,
                          float y[FEW][OPS_ROW_TILE])
{
    struct avx2_format f = avx2_format(type);
    __m256 acc[FEW][2];
    for (int t = 0; t < n; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    const uint8_t *head = w;
    for (int64_t i = 0; i < n_blocks; i++) {
        if (f.head_bytes != 0 && i % AVX2_SUPER == 0) {
            head = w;
            w += f.head_bytes;
        }
        add_block(type, n, head, w, &a[i], t0, acc);
        w += f.block_bytes;
    }
    for (int t = 0; t < n; t++) {
        _mm256_storeu_ps(y[t], acc[t][0]);
        _mm256_storeu_ps(y[t] + 8, acc[t][1]);
    }
}

#define DEFINE(T)                                                              \
    static void tile_1_##T(const uint8_t *w, const struct avx2_act *a, int t0, \
                           int64_t n_blocks, float y[FEW][OPS_ROW_TILE])       \
    {                                                                          \
        tile_few(DTYPE_##T, 1, w, a, t0, n_blocks, y);                         \
    }                                                                          \
    static void tile_2_##T(const uint8_t *w, const struct avx2_act *a, int t0, \
                           int64_t n_blocks, float y[FEW][OPS_ROW_TILE])       \
    {                                                                          \
        tile_few(DTYPE_##T, 2, w, a, t0, n_blocks, y);                         \
    }
AVX2_EACH_TYPE(DEFINE)

typedef void (*tile_few_fn)(const uint8_t *w, const struct avx2_act *a, int t0,
                            int64_t n_blocks, float y[FEW][OPS_ROW_TILE]);

static tile_few_fn tile_few_of(enum dtype type, int64_t n)
{
    switch (type) {
#define CASE(T)                                                                \
    case DTYPE_##T:                                                            \
        return n == 1 ? tile_1_##T : tile_2_##T;
        AVX2_EACH_TYPE(CASE)
#undef CASE
    default:
        return NULL;
    }
}

void avx2_matmul_few(const struct weight *w, const struct acts *a, int64_t row0,
                     int64_t row1, float *y, int64_t ldy)
{
    uint64_t tile_bytes = avx2_tile_bytes(w->type, w->cols);
    int64_t n_blocks = w->cols / AVX2_COLS;
    const struct avx2_act *acts = a->packed;
    const uint8_t *tile = (const uint8_t *)w->packed +
                          (uint64_t)(row0 / OPS_ROW_TILE) * tile_bytes;
    for (int64_t r = row0; r < row1; r += OPS_ROW_TILE, tile += tile_bytes) {
        for (int64_t t = 0; t < a->n; t += FEW) {
            int64_t n = a->n - t < FEW ? a->n - t : FEW;
            float out[FEW][OPS_ROW_TILE];
            tile_few_of(w->type, n)(tile, acts + t / OPS_ACT_TILE * n_blocks,
                                    (int)(t % OPS_ACT_TILE), n_blocks, out);
            for (int64_t i = 0; i < n; i++)
                avx2_put_rows(y + (t + i) * ldy + r, out[i], row1 - r);
        }
    }
}

void avx2_matmul(const struct weight *w, const struct acts *a, int64_t row0,
                 int64_t row1, float *y, int64_t ldy)
{
    int64_t few_max =
        avx2_format(w->type).high != 0 ? FEW_MAX_HIGH_BITS : FEW_MAX;
    if (w->packed == NULL)
        avx2_matmul_float(w, a, row0, row1, y, ldy);
    else if (a->n <= few_max)
        avx2_matmul_few(w, a, row0, row1, y, ldy);
    else
        avx2_matmul_many(w, a, row0, row1, y, ldy);
}
