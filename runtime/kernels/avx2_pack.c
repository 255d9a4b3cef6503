#include "runtime/kernels/avx2.h"

#include <string.h>

#include "runtime/kernels/avx2_tile.h"
#include "runtime/kernels/quant.h"

/* Packing reads the blocks of the file (quant.h) and writes the tiles of
 * avx2_tile.h. It runs once, at load. */

static bool is_float(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

uint64_t avx2_weight_bytes(const struct weight *w)
{
    if (is_float(w->type))
        return 0;
    uint64_t tiles = ((uint64_t)w->rows + OPS_ROW_TILE - 1) / OPS_ROW_TILE;
    return tiles * avx2_tile_bytes(w->type, w->cols);
}

/* The codes of 32 columns of 16 rows, and what stands beside them. */
struct gathered {
    uint8_t code[OPS_ROW_TILE][AVX2_COLS];
    uint8_t d[OPS_ROW_TILE][2]; /* f16, as bytes */
    uint8_t m[OPS_ROW_TILE][2];
    uint8_t scale[2][OPS_ROW_TILE]; /* scale and min, or two scales */
};

static void low_codes(const uint8_t *q, uint8_t code[AVX2_COLS])
{
    for (int i = 0; i < 16; i++) {
        code[i] = q[i] & 15;
        code[16 + i] = q[i] >> 4;
    }
}

/* Bit i of the 32 at h becomes bit 4 of code i. */
static void add_fifth_bits(const uint8_t *h, uint8_t code[AVX2_COLS])
{
    const __m256i byte_of = _mm256_setr_epi64x(
        0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    int32_t bits;
    memcpy(&bits, h, sizeof(bits));
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of);
    v = _mm256_cmpeq_epi8(_mm256_and_si256(v, bit_of), bit_of);
    v = _mm256_and_si256(v, _mm256_set1_epi8(16));
    __m256i *c = (__m256i *)code;
    _mm256_storeu_si256(c, _mm256_or_si256(_mm256_loadu_si256(c), v));
}

/* One row of a type whose blocks have 32 elements. */
static void gather_32(enum dtype type, const uint8_t *b, int row,
                      struct gathered *out)
{
    memcpy(out->d[row], b, 2);
    memcpy(out->m[row], b + 2, 2);
    uint8_t *code = out->code[row];
    switch (type) {
    case DTYPE_Q8_0:
        memcpy(code, b + 2, AVX2_COLS);
        break;
    case DTYPE_Q4_0:
        low_codes(b + 2, code);
        break;
    case DTYPE_Q4_1:
        low_codes(b + 4, code);
        break;
    case DTYPE_Q5_0:
        low_codes(b + 6, code);
        add_fifth_bits(b + 2, code);
        break;
    default: /* Q5_1 */
        low_codes(b + 8, code);
        add_fifth_bits(b + 4, code);
        break;
    }
}

/* One row of part j (0..7) of a Q4_K or Q5_K block. */
static void gather_k(enum dtype type, const uint8_t *b, int j, int row,
                     struct gathered *out)
{
    memcpy(out->d[row], b, 2);
    memcpy(out->m[row], b + 2, 2);
    quant_k_scale(b + 4, (unsigned)j, &out->scale[0][row], &out->scale[1][row]);
    const uint8_t *h = b + 16, *q = type == DTYPE_Q5_K ? b + 48 : b + 16;
    q += 32 * (j / 2);
    int low = 4 * (j % 2);
    uint8_t *code = out->code[row];
    for (int i = 0; i < AVX2_COLS; i++)
        code[i] = (q[i] >> low) & 15;
    if (type == DTYPE_Q5_K)
        for (int i = 0; i < AVX2_COLS; i++)
            code[i] |= (uint8_t)(((h[i] >> j) & 1) << 4);
}

/* One row of part j (0..7) of a Q6_K block. */
static void gather_6k(const uint8_t *b, int j, int row, struct gathered *out)
{
    int quarter = j % 4;
    const uint8_t *l = b + 64 * (j / 4) + 32 * (quarter % 2);
    const uint8_t *h = b + 128 + 32 * (j / 4);
    memcpy(out->d[row], b + 208, 2);
    out->scale[0][row] = b[192 + 2 * j];
    out->scale[1][row] = b[192 + 2 * j + 1];
    int low = quarter < 2 ? 0 : 4, high = 2 * quarter;
    uint8_t *code = out->code[row];
    for (int i = 0; i < AVX2_COLS; i++)
        code[i] = (uint8_t)(((l[i] >> low) & 15) | ((h[i] >> high) & 3) << 4);
}

/* Block i of row `row` of the matrix, as row r of the tile. */
static void gather(const struct weight *w, int64_t row, int64_t i, int r,
                   struct gathered *out)
{
    const struct dtype_info *info = dtype_info(w->type);
    int64_t per_block = info->block_elems / AVX2_COLS;
    int64_t block = row * (w->cols / info->block_elems) + i / per_block;
    const uint8_t *b = (const uint8_t *)w->raw + block * info->block_bytes;
    if (per_block == 1)
        gather_32(w->type, b, r, out);
    else if (w->type == DTYPE_Q6_K)
        gather_6k(b, (int)(i % per_block), r, out);
    else
        gather_k(w->type, b, (int)(i % per_block), r, out);
}

static void write_8_bits(const struct gathered *g, uint8_t *to)
{
    for (int step = 0; step < AVX2_STEPS; step++)
        for (int r = 0; r < OPS_ROW_TILE; r++, to += 2)
            memcpy(to, &g->code[r][2 * step], 2);
}

/* The lane of row r and column parity p in line j holds steps 4j .. 4j+3. */
static void write_low_bits(const struct gathered *g, uint8_t *to)
{
    for (int j = 0; j < 4; j++) {
        for (int r = 0; r < OPS_ROW_TILE; r++) {
            for (int p = 0; p < 2; p++, to += 2) {
                const uint8_t *c = &g->code[r][8 * j + p];
                to[0] = (uint8_t)((c[0] & 15) | (c[2] & 15) << 4);
                to[1] = (uint8_t)((c[4] & 15) | (c[6] & 15) << 4);
            }
        }
    }
}

/* The even bits of x, side by side. */
static uint32_t even_bits(uint32_t x)
{
    x &= 0x55555555;
    x = (x | x >> 1) & 0x33333333;
    x = (x | x >> 2) & 0x0f0f0f0f;
    x = (x | x >> 4) & 0x00ff00ff;
    return (x | x >> 8) & 0xffff;
}

/* Of 16 bits in groups of four, the lower two of each, side by side. */
static uint8_t lower_pairs(uint32_t x)
{
    return (uint8_t)((x & 0x03) | (x >> 2 & 0x0c) | (x >> 4 & 0x30) |
                     (x >> 6 & 0xc0));
}

static void write_fifth_bits(const struct gathered *g, uint8_t *to)
{
    for (int r = 0; r < OPS_ROW_TILE; r++) {
        /* Bit 4 of each byte to bit 7, and these to one bit a column. */
        __m256i c = _mm256_slli_epi16(avx2_load(g->code[r]), 3);
        uint32_t columns = (uint32_t)_mm256_movemask_epi8(c);
        for (int p = 0; p < 2; p++, to += 2) {
            uint32_t steps = even_bits(columns >> p);
            to[0] = lower_pairs(steps);
            to[1] = lower_pairs(steps >> 2);
        }
    }
}

static void write_bits_5_and_6(const struct gathered *g, uint8_t *to)
{
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 2; i++) {
            for (int lane = 0; lane < 16; lane++) {
                const uint8_t *c = g->code[8 * half + lane / 2] + lane % 2;
                for (int x = 0; x < 2; x++, to++) {
                    /* The first of the steps of lines 2i and 2i + 1. */
                    const uint8_t *a = c + 2 * (8 * i + 2 * x), *b = a + 8;
                    *to = (uint8_t)(a[0] >> 4 | (a[2] >> 4) << 2 |
                                    (b[0] >> 4) << 4 | (b[2] >> 4) << 6);
                }
            }
        }
    }
}

static void write_block(enum dtype type, const struct gathered *g, uint8_t *to)
{
    struct avx2_format f = avx2_format(type);
    if (f.head_bytes == 0) {
        memcpy(to, g->d, sizeof(g->d));
        if (f.m != 0)
            memcpy(to + f.m, g->m, sizeof(g->m));
    } else {
        memcpy(to, g->scale, sizeof(g->scale));
    }
    if (type == DTYPE_Q8_0)
        write_8_bits(g, to + f.low);
    else
        write_low_bits(g, to + f.low);
    if (type == DTYPE_Q6_K)
        write_bits_5_and_6(g, to + f.high);
    else if (f.high != 0)
        write_fifth_bits(g, to + f.high);
}

static void pack_tile(const struct weight *w, int64_t row0, uint8_t *to)
{
    struct avx2_format f = avx2_format(w->type);
    int64_t n = w->rows - row0;
    n = n < OPS_ROW_TILE ? n : OPS_ROW_TILE;
    struct gathered g;
    /* Rows past the end stay zeros with scale zero. */
    memset(&g, 0, sizeof(g));
    for (int64_t i = 0; i < w->cols / AVX2_COLS; i++) {
        for (int r = 0; r < n; r++)
            gather(w, row0 + r, i, r, &g);
        if (f.head_bytes != 0 && i % AVX2_SUPER == 0) {
            memcpy(to, g.d, sizeof(g.d));
            if (f.m != 0)
                memcpy(to + f.m, g.m, sizeof(g.m));
            to += f.head_bytes;
        }
        write_block(w->type, &g, to);
        to += f.block_bytes;
    }
}

void avx2_weight_pack(const struct weight *w, int64_t row0, int64_t row1)
{
    if (is_float(w->type))
        return;
    uint64_t tile_bytes = avx2_tile_bytes(w->type, w->cols);
    for (int64_t row = row0; row < row1; row += OPS_ROW_TILE)
        pack_tile(w, row,
                  (uint8_t *)w->packed +
                      (uint64_t)(row / OPS_ROW_TILE) * tile_bytes);
}

uint64_t avx2_act_bytes(int64_t n, int64_t cols)
{
    uint64_t tiles = ((uint64_t)n + OPS_ACT_TILE - 1) / OPS_ACT_TILE;
    uint64_t blocks = ((uint64_t)cols + AVX2_COLS - 1) / AVX2_COLS;
    return tiles * blocks * sizeof(struct avx2_act);
}

/* The largest magnitude of 32 floats, as the bits of a float: compared as
 * integers, infinity is above all finite numbers and NaN above infinity. */
static float largest(const __m256 x[4])
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        top = _mm256_max_epi32(
            top, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude));
    __m128i t = _mm_max_epi32(_mm256_castsi256_si128(top),
                              _mm256_extracti128_si256(top, 1));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(t));
}

static int32_t sum_of(__m256i q)
{
    __m256i pairs = _mm256_madd_epi16(q, _mm256_set1_epi16(1));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(pairs),
                              _mm256_extracti128_si256(pairs, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    return _mm_cvtsi128_si32(t);
}

/* Two vectors of 8 floats as one of 16 words, in order. */
static __m256i to_words(__m256 a, __m256 b)
{
    __m256i w =
        _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    return _mm256_permute4x64_epi64(w, 0xd8);
}

/* Rounds 32 floats to integers and their scale, as row t of a block. */
static void pack_32(const float *x, int t, struct avx2_act *to)
{
    /* Below this the reciprocal of a step could overflow; such a block is
     * zero in every sum that float32 can tell from zero. */
    const float smallest = 1e-30f;
    __m256 v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_loadu_ps(x + 8 * i);
    float top = largest(v), d = 0.0f, inverse = 0.0f;
    if (!(top < smallest)) {
        d = top / (float)AVX2_ACT_MAX;
        inverse = (float)AVX2_ACT_MAX / top;
    }
    __m256 by = _mm256_set1_ps(inverse);
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_mul_ps(v[i], by);
    __m256i a = to_words(v[0], v[1]), b = to_words(v[2], v[3]);
    _mm256_storeu_si256((__m256i *)&to->q[t][0], a);
    _mm256_storeu_si256((__m256i *)&to->q[t][16], b);
    to->d[t] = d;
    to->sum[0][t] = sum_of(a);
    to->sum[1][t] = sum_of(b);
    to->s[t] = d * (float)(to->sum[0][t] + to->sum[1][t]);
}

static void pack_row(const float *x, int64_t cols, int t, struct avx2_act *to)
{
    int64_t whole = cols / AVX2_COLS;
    for (int64_t i = 0; i < whole; i++)
        pack_32(x + i * AVX2_COLS, t, &to[i]);
    if (cols % AVX2_COLS != 0) {
        float rest[AVX2_COLS] = {0};
        memcpy(rest, x + whole * AVX2_COLS,
               sizeof(float) * (size_t)(cols % AVX2_COLS));
        pack_32(rest, t, &to[whole]);
    }
}

void avx2_act_pack(const struct acts *a, int64_t row0, int64_t row1)
{
    int64_t blocks = (a->cols + AVX2_COLS - 1) / AVX2_COLS;
    struct avx2_act *first = a->packed;
    for (int64_t row = row0; row < row1; row += OPS_ACT_TILE) {
        struct avx2_act *to = first + row / OPS_ACT_TILE * blocks;
        int64_t n = row1 - row < OPS_ACT_TILE ? row1 - row : OPS_ACT_TILE;
        /* The kernel for four rows also reads those past the end. */
        if (n < OPS_ACT_TILE)
            memset(to, 0, sizeof(*to) * (size_t)blocks);
        for (int t = 0; t < n; t++)
            pack_row(a->x + (row + t) * a->cols, a->cols, t, to);
    }
}
