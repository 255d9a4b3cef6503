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
 * The two ways below, few activation rows straight from the packed codes
 * and many rows from codes unpacked to 16 bits, differ only in how they
 * come to the exact integers, so they give the same bits. */

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

/* Weights of up to AVX2_SUPER blocks of a row tile, unpacked: one such chunk
 * is used for many activation rows while it is in the first-level cache. */
struct chunk {
    int16_t q[AVX2_SUPER][AVX2_STEPS][2][16]; /* code - offset */
    float d[AVX2_SUPER][2][OPS_ROW_TILE];     /* second part: Q6_K only */
    float m[AVX2_SUPER][OPS_ROW_TILE];
};

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
                                  int n_blocks, struct chunk *c)
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

/* One function of each kind for every type. */
#define FOR_EACH_TYPE(X)                                                       \
    X(Q8_0)                                                                    \
    X(Q4_0)                                                                    \
    X(Q4_1)                                                                    \
    X(Q5_0)                                                                    \
    X(Q5_1)                                                                    \
    X(Q4_K)                                                                    \
    X(Q5_K)                                                                    \
    X(Q6_K)

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
    }                                                                          \
    static const uint8_t *unpack_##T(const uint8_t *w, int n_blocks,           \
                                     struct chunk *c)                          \
    {                                                                          \
        return unpack(DTYPE_##T, w, n_blocks, c);                              \
    }
FOR_EACH_TYPE(DEFINE)

typedef void (*tile_few_fn)(const uint8_t *w, const struct avx2_act *a, int t0,
                            int64_t n_blocks, float y[FEW][OPS_ROW_TILE]);
typedef const uint8_t *(*unpack_fn)(const uint8_t *w, int n_blocks,
                                    struct chunk *c);

static tile_few_fn tile_few_of(enum dtype type, int64_t n)
{
    switch (type) {
#define CASE(T)                                                                \
    case DTYPE_##T:                                                            \
        return n == 1 ? tile_1_##T : tile_2_##T;
        FOR_EACH_TYPE(CASE)
#undef CASE
    default:
        return NULL;
    }
}

static unpack_fn unpack_of(enum dtype type)
{
    switch (type) {
#define CASE(T)                                                                \
    case DTYPE_##T:                                                            \
        return unpack_##T;
        FOR_EACH_TYPE(CASE)
#undef CASE
    default:
        return NULL;
    }
}

/* y[0 .. n) = tile[0 .. n); the last tile of a matrix may be cut. */
static void put_rows(float *y, const float *tile, int64_t n)
{
    if (n >= OPS_ROW_TILE) {
        _mm256_storeu_ps(y, _mm256_loadu_ps(tile));
        _mm256_storeu_ps(y + 8, _mm256_loadu_ps(tile + 8));
    } else {
        memcpy(y, tile, sizeof(float) * (size_t)n);
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
                put_rows(y + (t + i) * ldy + r, out[i], row1 - r);
        }
    }
}

enum {
    TOKENS = 64, /* activation rows that share one unpacked chunk */
    TOKEN_TILES = TOKENS / OPS_ACT_TILE
};

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
                            __m256i s[4][2],
                            float acc[OPS_ACT_TILE][OPS_ROW_TILE])
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
                             const struct chunk *c, const struct avx2_act *a,
                             int n_blocks,
                             float acc[OPS_ACT_TILE][OPS_ROW_TILE])
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

typedef void (*chunk_times_fn)(const struct chunk *c, const struct avx2_act *a,
                               int n_blocks,
                               float acc[OPS_ACT_TILE][OPS_ROW_TILE]);

#define DEFINE_TIMES(NAME, TWO_PARTS, HAS_MIN)                                 \
    static void NAME##_4(const struct chunk *c, const struct avx2_act *a,      \
                         int n_blocks, float acc[OPS_ACT_TILE][OPS_ROW_TILE])  \
    {                                                                          \
        chunk_times(4, TWO_PARTS, HAS_MIN, c, a, n_blocks, acc);               \
    }                                                                          \
    static void NAME##_2(const struct chunk *c, const struct avx2_act *a,      \
                         int n_blocks, float acc[OPS_ACT_TILE][OPS_ROW_TILE])  \
    {                                                                          \
        chunk_times(2, TWO_PARTS, HAS_MIN, c, a, n_blocks, acc);               \
    }                                                                          \
    static void NAME##_1(const struct chunk *c, const struct avx2_act *a,      \
                         int n_blocks, float acc[OPS_ACT_TILE][OPS_ROW_TILE])  \
    {                                                                          \
        chunk_times(1, TWO_PARTS, HAS_MIN, c, a, n_blocks, acc);               \
    }
DEFINE_TIMES(times_plain, false, false)
DEFINE_TIMES(times_min, false, true)
DEFINE_TIMES(times_parts, true, false)

/* n_rows of a tile: 1, 2, or 3 and 4 (where the fourth is zeros). */
static chunk_times_fn times_of(enum dtype type, int64_t n_rows)
{
    static const chunk_times_fn fn[3][3] = {
        {times_plain_1, times_plain_2, times_plain_4},
        {times_min_1, times_min_2, times_min_4},
        {times_parts_1, times_parts_2, times_parts_4}};
    int kind = type == DTYPE_Q6_K ? 2 : avx2_format(type).m != 0 ? 1 : 0;
    return fn[kind][n_rows < 3 ? n_rows - 1 : 2];
}

/* One row tile times n <= TOKENS activation rows whose tiles start at a. */
static void tile_many(const struct weight *w, const uint8_t *packed,
                      const struct avx2_act *a, int64_t n, int64_t n_rows,
                      float *y, int64_t ldy)
{
    _Alignas(32) struct chunk c;
    _Alignas(32) float acc[TOKEN_TILES][OPS_ACT_TILE][OPS_ROW_TILE];
    unpack_fn unpack_chunk = unpack_of(w->type);
    int64_t n_blocks = w->cols / AVX2_COLS;
    int64_t n_tiles = (n + OPS_ACT_TILE - 1) / OPS_ACT_TILE;
    chunk_times_fn full = times_of(w->type, OPS_ACT_TILE);
    chunk_times_fn last = times_of(w->type, n - (n_tiles - 1) * OPS_ACT_TILE);
    memset(acc, 0, sizeof(acc[0]) * (size_t)n_tiles);
    for (int64_t i = 0; i < n_blocks; i += AVX2_SUPER) {
        int64_t left = n_blocks - i;
        int m = left < AVX2_SUPER ? (int)left : AVX2_SUPER;
        packed = unpack_chunk(packed, m, &c);
        for (int64_t t = 0; t < n_tiles; t++)
            (t + 1 < n_tiles ? full : last)(&c, a + t * n_blocks + i, m,
                                            acc[t]);
    }
    for (int64_t t = 0; t < n; t++)
        put_rows(y + t * ldy, acc[t / OPS_ACT_TILE][t % OPS_ACT_TILE], n_rows);
}

void avx2_matmul_many(const struct weight *w, const struct acts *a,
                      int64_t row0, int64_t row1, float *y, int64_t ldy)
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
                      y + t * ldy + r, ldy);
            tile += tile_bytes;
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
