#include "runtime/kernels/avx2_many.h"

#include <stddef.h>

#include "runtime/kernels/avx2.h"

AVX2_INLINE void unpack_line(enum dtype type, const uint8_t *block, int j,
                             int half, int16_t q[AVX2_STEPS][2][16])
{
    struct avx2_format f = avx2_format(type);
    struct avx2_quad c = avx2_codes(type, block, j, half);
    __m256i offset = _mm256_set1_epi16((int16_t)f.offset);
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        __m256i v =
            f.offset != 0 ? _mm256_sub_epi16(c.step[n], offset) : c.step[n];
        _mm256_store_si256((__m256i *)q[4 * j + n][half], v);
    }
}

/* Unpacks n_blocks blocks from w; returns where the next chunk begins. */
AVX2_INLINE const uint8_t *unpack(enum dtype type, const uint8_t *w,
                                  int n_blocks, struct avx2_chunk *c)
{
    struct avx2_format f = avx2_format(type);
    const uint8_t *head = w;
    w += f.head_bytes;
    for (int i = 0; i < n_blocks; i++, w += f.block_bytes) {
        for (int h = 0; h < 2; h++) {
            unpack_line(type, w, 0, h, c->q[i]);
            unpack_line(type, w, 1, h, c->q[i]);
            unpack_line(type, w, 2, h, c->q[i]);
            unpack_line(type, w, 3, h, c->q[i]);
            _mm256_store_ps(&c->d[i][0][8 * h],
                            avx2_scale(type, head, w, h, 0));
            if (type == DTYPE_Q6_K)
                _mm256_store_ps(&c->d[i][1][8 * h],
                                avx2_scale(type, head, w, h, 1));
            if (f.m != 0)
                _mm256_store_ps(&c->m[i][8 * h], avx2_min(type, head, w, h));
        }
    }
    return w;
}

typedef const uint8_t *(*unpack_fn)(const uint8_t *w, int n_blocks,
                                    struct avx2_chunk *c);

#define DEFINE(T)                                                              \
    static const uint8_t *unpack_##T(const uint8_t *w, int n_blocks,           \
                                     struct avx2_chunk *c)                     \
    {                                                                          \
        return unpack(DTYPE_##T, w, n_blocks, c);                              \
    }
AVX2_EACH_TYPE(DEFINE)

static unpack_fn unpack_of(enum dtype type)
{
    switch (type) {
#define CASE(T)                                                                \
    case DTYPE_##T:                                                            \
        return unpack_##T;
        AVX2_EACH_TYPE(CASE)
#undef CASE
    default:
        return NULL;
    }
}

/* The sums of 8 steps (16 columns), in assembly: compilers spill or hoist
 * what the processor can do in registers. ROW advances one activation row by
 * one step, STEP all four rows; registers: w0 w1 the weights of both halves,
 * b a broadcast pair of activations, x a product. */
#define ROW(T, STEP_NO)                                                        \
    "vpbroadcastd " #T "*64+" #STEP_NO "*4(%[a]), %[b]\n\t"                    \
    "vpmaddwd %[b], %[w0], %[x]\n\t"                                           \
    "vpmaddwd %[b], %[w1], %[b]\n\t"                                           \
    "vpaddd %[x], %[s" #T "0], %[s" #T "0]\n\t"                                \
    "vpaddd %[b], %[s" #T "1], %[s" #T "1]\n\t"
#define WEIGHTS(STEP_NO)                                                       \
    "vmovdqa " #STEP_NO "*64(%[w]), %[w0]\n\t"                                 \
    "vmovdqa " #STEP_NO "*64+32(%[w]), %[w1]\n\t"
#define STEP_4(N) WEIGHTS(N) ROW(0, N) ROW(1, N) ROW(2, N) ROW(3, N)
#define STEP_2(N) WEIGHTS(N) ROW(0, N) ROW(1, N)
#define STEP_1(N) WEIGHTS(N) ROW(0, N)
#define EIGHT(S) S(0) S(1) S(2) S(3) S(4) S(5) S(6) S(7)

typedef int16_t half_block[AVX2_STEPS / 2][2][16];

AVX2_INLINE void add_8_steps_4(const half_block *w, const int16_t *a,
                               __m256i s[4][2])
{
    __m256i w0, w1, b, x;
    __asm__(EIGHT(STEP_4)
            : [s00] "+x"(s[0][0]), [s01] "+x"(s[0][1]), [s10] "+x"(s[1][0]),
              [s11] "+x"(s[1][1]), [s20] "+x"(s[2][0]), [s21] "+x"(s[2][1]),
              [s30] "+x"(s[3][0]), [s31] "+x"(s[3][1]), [w0] "=&x"(w0),
              [w1] "=&x"(w1), [b] "=&x"(b), [x] "=&x"(x)
            : [w] "r"(w), [a] "r"(a), "m"(*w),
              "m"(*(const int16_t(*)[4 * AVX2_COLS - 16]) a));
}

AVX2_INLINE void add_8_steps_2(const half_block *w, const int16_t *a,
                               __m256i s[4][2])
{
    __m256i w0, w1, b, x;
    __asm__(EIGHT(STEP_2)
            : [s00] "+x"(s[0][0]), [s01] "+x"(s[0][1]), [s10] "+x"(s[1][0]),
              [s11] "+x"(s[1][1]), [w0] "=&x"(w0), [w1] "=&x"(w1), [b] "=&x"(b),
              [x] "=&x"(x)
            : [w] "r"(w), [a] "r"(a), "m"(*w),
              "m"(*(const int16_t(*)[2 * AVX2_COLS - 16]) a));
}

AVX2_INLINE void add_8_steps_1(const half_block *w, const int16_t *a,
                               __m256i s[4][2])
{
    __m256i w0, w1, b, x;
    __asm__(EIGHT(STEP_1)
            : [s00] "+x"(s[0][0]), [s01] "+x"(s[0][1]), [w0] "=&x"(w0),
              [w1] "=&x"(w1), [b] "=&x"(b), [x] "=&x"(x)
            : [w] "r"(w), [a] "r"(a), "m"(*w),
              "m"(*(const int16_t(*)[AVX2_COLS - 16]) a));
}

AVX2_INLINE void add_8_steps(int n_rows, const half_block *w, const int16_t *a,
                             __m256i s[4][2])
{
    if (n_rows == 4)
        add_8_steps_4(w, a, s);
    else if (n_rows == 2)
        add_8_steps_2(w, a, s);
    else
        add_8_steps_1(w, a, s);
}

AVX2_INLINE void zero_sums(__m256i s[4][2])
{
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++)
        s[t][0] = s[t][1] = _mm256_setzero_si256();
}

/* Adds the sums of a part of a block, scaled, to the accumulators, and the
 * min term where there is one. */
AVX2_INLINE void scale_sums(int n_rows, bool has_min, const float *d,
                            const float *m, const struct avx2_act *a,
                            __m256i s[4][2], float acc[][OPS_ROW_TILE])
{
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        __m256 dh = _mm256_load_ps(d + 8 * h), mh = dh;
        if (has_min)
            mh = _mm256_load_ps(m + 8 * h);
#pragma GCC unroll 4
        for (int t = 0; t < n_rows; t++) {
            __m256 dt = _mm256_broadcast_ss(&a->d[t]);
            __m256 f = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[t][h]),
                                       _mm256_mul_ps(dh, dt),
                                       _mm256_load_ps(acc[t] + 8 * h));
            if (has_min)
                f = _mm256_fmadd_ps(mh, _mm256_broadcast_ss(&a->s[t]), f);
            _mm256_store_ps(acc[t] + 8 * h, f);
        }
    }
}

/* A chunk times the first n_rows of a tile of activations. */
AVX2_INLINE void chunk_times(int n_rows, bool two_parts, bool has_min,
                             const struct avx2_chunk *c,
                             const struct avx2_act *a, int n_blocks,
                             float acc[][OPS_ROW_TILE])
{
    for (int i = 0; i < n_blocks; i++) {
        const half_block *w = (const half_block *)c->q[i];
        __m256i s[4][2];
        zero_sums(s);
        add_8_steps(n_rows, &w[0], &a[i].q[0][0], s);
        if (two_parts) {
            scale_sums(n_rows, false, c->d[i][0], NULL, &a[i], s, acc);
            zero_sums(s);
        }
        add_8_steps(n_rows, &w[1], &a[i].q[0][16], s);
        scale_sums(n_rows, has_min, c->d[i][two_parts], c->m[i], &a[i], s, acc);
    }
}

/* n rows of a tile: 1, 2, or 3 and 4 (where the fourth is zeros). */
#define TIMES(KIND, TWO_PARTS, HAS_MIN)                                        \
    case KIND:                                                                 \
        if (n == 1)                                                            \
            chunk_times(1, TWO_PARTS, HAS_MIN, c, a, n_blocks, acc);           \
        else if (n == 2)                                                       \
            chunk_times(2, TWO_PARTS, HAS_MIN, c, a, n_blocks, acc);           \
        else                                                                   \
            chunk_times(4, TWO_PARTS, HAS_MIN, c, a, n_blocks, acc);           \
        break;

static void times_up_to_4(enum avx2_kind kind, int64_t n,
                          const struct avx2_chunk *c, const struct avx2_act *a,
                          int64_t stride, int n_blocks,
                          float acc[][OPS_ROW_TILE])
{
    (void)stride;
    switch (kind) {
        TIMES(AVX2_PLAIN, false, false)
        TIMES(AVX2_MIN, false, true)
        TIMES(AVX2_PARTS, true, false)
    }
}

enum { TOKENS = 64 }; /* activation rows that share one unpacked chunk */

static enum avx2_kind kind_of(enum dtype type)
{
    if (type == DTYPE_Q6_K)
        return AVX2_PARTS;
    return avx2_format(type).m != 0 ? AVX2_MIN : AVX2_PLAIN;
}

/* One row tile (n_rows of it are wanted) times n <= TOKENS activation rows
 * whose tiles start at a. */
static void tile_many(const struct weight *w, const uint8_t *packed,
                      const struct avx2_act *a, int64_t n, int64_t n_rows,
                      float *y, int64_t ldy, int at_once,
                      avx2_times_fn multiply)
{
    _Alignas(64) struct avx2_chunk c;
    _Alignas(64) float acc[TOKENS][OPS_ROW_TILE];
    unpack_fn unpack_chunk = unpack_of(w->type);
    enum avx2_kind kind = kind_of(w->type);
    int64_t n_blocks = w->cols / AVX2_COLS;
    memset(acc, 0, sizeof(acc));
    for (int64_t i = 0; i < n_blocks; i += AVX2_SUPER) {
        int64_t left = n_blocks - i;
        int m = left < AVX2_SUPER ? (int)left : AVX2_SUPER;
        packed = unpack_chunk(packed, m, &c);
        for (int64_t t = 0; t < n; t += at_once)
            multiply(kind, n - t < at_once ? n - t : at_once, &c,
                     a + t / OPS_ACT_TILE * n_blocks + i, n_blocks, m, &acc[t]);
    }
    for (int64_t t = 0; t < n; t++)
        avx2_put_rows(y + t * ldy, acc[t], n_rows);
}

void avx2_many(const struct weight *w, const struct acts *a, int64_t row0,
               int64_t row1, float *y, int64_t ldy, int at_once,
               avx2_times_fn multiply)
{
    uint64_t tile_bytes = avx2_tile_bytes(w->type, w->cols);
    int64_t n_blocks = w->cols / AVX2_COLS;
    const struct avx2_act *acts = a->packed;
    for (int64_t t = 0; t < a->n; t += TOKENS) {
        int64_t n = a->n - t < TOKENS ? a->n - t : TOKENS;
        const uint8_t *tile = (const uint8_t *)w->packed +
                              (uint64_t)(row0 / OPS_ROW_TILE) * tile_bytes;
        for (int64_t r = row0; r < row1; r += OPS_ROW_TILE) {
            tile_many(w, tile, acts + t / OPS_ACT_TILE * n_blocks, n, row1 - r,
                      y + t * ldy + r, ldy, at_once, multiply);
            tile += tile_bytes;
        }
    }
}

void avx2_matmul_many(const struct weight *w, const struct acts *a,
                      int64_t row0, int64_t row1, float *y, int64_t ldy)
{
    avx2_many(w, a, row0, row1, y, ldy, OPS_ACT_TILE, times_up_to_4);
}
