/* avx2_tile.h - the forms in which the AVX2 matmul reads its operands.
 *
 * Weights. A row tile is OPS_ROW_TILE = 16 rows by all columns, one
 * contiguous run: for every 32 columns a block, and for the K types before
 * every 8 blocks a head. Inside a block the 16 rows are two halves of 8, one
 * for each 32-byte vector; a step is 2 neighbouring columns: column = 2 *
 * step + p. The 16-bit lane 2 * r + p of a vector belongs to row 8 * half + r
 * and column 2 * step + p, so that one vpmaddwd with a broadcast pair of
 * activations advances 8 rows by 2 columns, without horizontal sums.
 *
 *   head     f16 d[16], and with a min f16 dmin[16]            (K types)
 *   block    f16 d[16], and with a min f16 m[16]         (types of 32)
 *            u8 scale[16], u8 min[16]                        (Q4_K, Q5_K)
 *            i8 scale[2][16]: of columns 0..15, 16..31            (Q6_K)
 *            codes: the integers of the weights, without their offset
 *
 *   codes of 8 bits:  i8 [step][half][8 rows][2]
 *   low 4 bits:       u16 [4 lines][half][16 lanes]; nibble n of a lane of
 *                     line j is of step 4 * j + n
 *   fifth bits:       u16 [half][16 lanes]; bit 2 * j + y of byte x of a lane
 *                     is of step 4 * j + 2 * x + y
 *   bits 5 and 6:     u16 [half][2][16 lanes]; of lines 2 * i and 2 * i + 1;
 *                     bits 4 * (j % 2) + 2 * y and the next of byte x are of
 *                     step 4 * j + 2 * x + y
 *
 * Activations. Tiles of OPS_ACT_TILE = 4 rows, one struct avx2_act for every
 * 32 columns (the last one filled up with zeros): 16-bit integers with one
 * scale a row. The largest magnitude of the 32 is 32,767 steps, so an integer
 * product sum of 32 columns is below 2^27 for 8-bit weights, and exact.
 *
 * Threads: any; inline functions on the caller's data.
 */
#ifndef RUNTIME_KERNELS_AVX2_TILE_H
#define RUNTIME_KERNELS_AVX2_TILE_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"
#include "runtime/kernels/ops.h"

#define AVX2_INLINE static inline __attribute__((always_inline))

enum {
    AVX2_COLS = 32,                     /* columns of a block */
    AVX2_STEPS = AVX2_COLS / 2,         /* column pairs of a block */
    AVX2_SUPER = 8,                     /* blocks behind one head */
    AVX2_LINE = 2 * 32,                 /* bytes of a line: both halves */
    AVX2_LOW_BYTES = 4 * AVX2_LINE,     /* low 4 bits of a block */
    AVX2_F16_BYTES = 2 * OPS_ROW_TILE,  /* one f16 a row */
    AVX2_BYTE_BYTES = 1 * OPS_ROW_TILE, /* one byte a row */
    AVX2_ACT_MAX = 32767
};

struct avx2_act {
    int16_t q[OPS_ACT_TILE][AVX2_COLS];
    float d[OPS_ACT_TILE];        /* x is about q * d */
    float s[OPS_ACT_TILE];        /* d * sum of q */
    int32_t sum[2][OPS_ACT_TILE]; /* sum of q[0..15], q[16..31] */
};

/* X(type) for every packed type. */
#define AVX2_EACH_TYPE(X)                                                      \
    X(Q8_0)                                                                    \
    X(Q4_0)                                                                    \
    X(Q4_1)                                                                    \
    X(Q5_0)                                                                    \
    X(Q5_1)                                                                    \
    X(Q4_K)                                                                    \
    X(Q5_K)                                                                    \
    X(Q6_K)

/* Byte offsets inside a block of a type; 0 where the type has none. */
struct avx2_format {
    uint32_t head_bytes; /* before AVX2_SUPER blocks */
    uint32_t m;          /* f16 m[16]: in the block, or dmin in the head */
    uint32_t scale;      /* u8 or i8 scale[16] */
    uint32_t low;        /* codes of 8 bits, or their low 4 bits */
    uint32_t high;       /* the bits above */
    uint32_t block_bytes;
    int32_t offset; /* weight = d * (code - offset) + m */
};

AVX2_INLINE struct avx2_format avx2_format(enum dtype type)
{
    enum { F = AVX2_F16_BYTES, B = AVX2_BYTE_BYTES, L = AVX2_LOW_BYTES };
    switch (type) {
    case DTYPE_Q8_0:
        return (struct avx2_format){.low = F, .block_bytes = F + 2 * L};
    case DTYPE_Q4_0:
        return (struct avx2_format){
            .low = F, .block_bytes = F + L, .offset = 8};
    case DTYPE_Q4_1:
        return (struct avx2_format){
            .m = F, .low = 2 * F, .block_bytes = 2 * F + L};
    case DTYPE_Q5_0:
        return (struct avx2_format){.low = F,
                                    .high = F + L,
                                    .block_bytes = F + L + L / 4,
                                    .offset = 16};
    case DTYPE_Q5_1:
        return (struct avx2_format){.m = F,
                                    .low = 2 * F,
                                    .high = 2 * F + L,
                                    .block_bytes = 2 * F + L + L / 4};
    case DTYPE_Q4_K:
        return (struct avx2_format){.head_bytes = 2 * F,
                                    .m = F,
                                    .low = 2 * B,
                                    .block_bytes = 2 * B + L};
    case DTYPE_Q5_K:
        return (struct avx2_format){.head_bytes = 2 * F,
                                    .m = F,
                                    .low = 2 * B,
                                    .high = 2 * B + L,
                                    .block_bytes = 2 * B + L + L / 4};
    case DTYPE_Q6_K:
        return (struct avx2_format){.head_bytes = F,
                                    .low = 2 * B,
                                    .high = 2 * B + L,
                                    .block_bytes = 2 * B + L + L / 2,
                                    .offset = 32};
    default:
        return (struct avx2_format){0};
    }
}

/* Bytes of one row tile of cols columns. */
AVX2_INLINE uint64_t avx2_tile_bytes(enum dtype type, int64_t cols)
{
    struct avx2_format f = avx2_format(type);
    uint64_t blocks = (uint64_t)cols / AVX2_COLS;
    return blocks * f.block_bytes + blocks / AVX2_SUPER * f.head_bytes;
}

/* The vectors of four neighbouring steps of one half. */
struct avx2_quad {
    __m256i step[4];
};

AVX2_INLINE __m256i avx2_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Bytes to words: the low byte of each lane, then the high one. */
AVX2_INLINE struct avx2_quad avx2_split(__m256i even, __m256i odd)
{
    const __m256i byte = _mm256_set1_epi16(0xff);
    struct avx2_quad q = {
        {_mm256_and_si256(even, byte), _mm256_and_si256(odd, byte),
         _mm256_srli_epi16(even, 8), _mm256_srli_epi16(odd, 8)}};
    return q;
}

/* Line j (0..3) of one half of a block, as codes of its four steps. j must
 * be a constant. */
AVX2_INLINE struct avx2_quad avx2_codes(enum dtype type, const uint8_t *block,
                                        int j, int half)
{
    struct avx2_format f = avx2_format(type);
    const __m256i nibbles = _mm256_set1_epi8(15);
    if (type == DTYPE_Q8_0) {
        const uint8_t *at = block + f.low + j * 4 * 32 + half * 16;
        struct avx2_quad q;
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            q.step[n] = _mm256_cvtepi8_epi16(
                _mm_loadu_si128((const __m128i *)(at + n * 32)));
        return q;
    }
    __m256i line = avx2_load(block + f.low + j * AVX2_LINE + half * 32);
    if (f.high == 0) {
        const __m256i low = _mm256_set1_epi16(15);
        struct avx2_quad q = {
            {_mm256_and_si256(line, low),
             _mm256_and_si256(_mm256_srli_epi16(line, 4), low),
             _mm256_and_si256(_mm256_srli_epi16(line, 8), low),
             _mm256_srli_epi16(line, 12)}};
        return q;
    }
    __m256i even = _mm256_and_si256(line, nibbles);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi16(line, 4), nibbles);
    __m256i up, down;
    if (type == DTYPE_Q6_K) {
        const __m256i two = _mm256_set1_epi8(0x30);
        __m256i h = avx2_load(block + f.high + half * 64 + j / 2 * 32);
        up = j % 2 == 0 ? _mm256_slli_epi16(h, 4) : h;
        down = j % 2 == 0 ? _mm256_slli_epi16(h, 2) : _mm256_srli_epi16(h, 2);
        even = _mm256_or_si256(even, _mm256_and_si256(up, two));
        odd = _mm256_or_si256(odd, _mm256_and_si256(down, two));
        return avx2_split(even, odd);
    }
    const __m256i one = _mm256_set1_epi8(0x10);
    __m256i h = avx2_load(block + f.high + half * 32);
    up = j < 2 ? _mm256_slli_epi16(h, 4 - 2 * j)
               : _mm256_srli_epi16(h, 2 * j - 4);
    down = j < 2 ? _mm256_slli_epi16(h, 3 - 2 * j)
                 : _mm256_srli_epi16(h, 2 * j - 3);
    even = _mm256_or_si256(even, _mm256_and_si256(up, one));
    odd = _mm256_or_si256(odd, _mm256_and_si256(down, one));
    return avx2_split(even, odd);
}

/* Eight of the f16 at p. */
AVX2_INLINE __m256 avx2_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Scale of 8 rows for columns 16 * part .. of a block; for types with one
 * scale a block part is 0. The products are exact: 11 bits by at most 8. */
AVX2_INLINE __m256 avx2_scale(enum dtype type, const uint8_t *head,
                              const uint8_t *block, int half, int part)
{
    struct avx2_format f = avx2_format(type);
    if (f.head_bytes == 0)
        return avx2_f16(block + half * 16);
    __m128i s =
        _mm_loadl_epi64((const __m128i *)(block + part * 16 + half * 8));
    __m256i wide =
        type == DTYPE_Q6_K ? _mm256_cvtepi8_epi32(s) : _mm256_cvtepu8_epi32(s);
    return _mm256_mul_ps(avx2_f16(head + half * 16), _mm256_cvtepi32_ps(wide));
}

/* What is added to every weight of a block, for types with f.m != 0. */
AVX2_INLINE __m256 avx2_min(enum dtype type, const uint8_t *head,
                            const uint8_t *block, int half)
{
    struct avx2_format f = avx2_format(type);
    if (f.head_bytes == 0)
        return avx2_f16(block + f.m + half * 16);
    __m128i s =
        _mm_loadl_epi64((const __m128i *)(block + AVX2_BYTE_BYTES + half * 8));
    __m256 m = _mm256_mul_ps(avx2_f16(head + f.m + half * 16),
                             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(s)));
    return _mm256_xor_ps(m, _mm256_set1_ps(-0.0f));
}

/* y[0 .. n) = tile[0 .. n); the last tile of a matrix may be cut. */
AVX2_INLINE void avx2_put_rows(float *y, const float *tile, int64_t n)
{
    if (n >= OPS_ROW_TILE) {
        _mm256_storeu_ps(y, _mm256_loadu_ps(tile));
        _mm256_storeu_ps(y + 8, _mm256_loadu_ps(tile + 8));
    } else {
        memcpy(y, tile, sizeof(float) * (size_t)n);
    }
}

#endif
