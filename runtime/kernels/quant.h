/* quant.h - what the bytes of every tensor type mean, and the plain C code
 * that turns them into float32. It is the reference that faster kernels are
 * tested against.
 *
 * A row is a sequence of blocks without gaps; a block is a packed struct
 * whose fields stand in the order given here, with no padding, at any
 * address. Numbers are little-endian; f16 is IEEE binary16. All arithmetic is
 * float32, one rounding per operation, in the order of the parentheses. x[i]
 * is the block's element i; low(b) = b & 15, high(b) = b >> 4;
 * bit(b, k) = (b >> k) & 1.
 *
 * Elements on their own:
 *   F32, F16, BF16   the number; BF16 is the upper half of a float32
 *
 * Blocks of 32 elements:
 *   Q8_0   f16 d; i8 q[32]                                       34 bytes
 *            x[i] = q[i] * d
 *   Q4_0   f16 d; u8 q[16]                                       18 bytes
 *            x[i] = d * (n(i) - 8)
 *   Q4_1   f16 d, m; u8 q[16]                                    20 bytes
 *            x[i] = (d * n(i)) + m
 *   Q5_0   f16 d; u32 h; u8 q[16]                                22 bytes
 *            x[i] = d * ((n(i) + 16 * bit(h, i)) - 16)
 *   Q5_1   f16 d, m; u32 h; u8 q[16]                             24 bytes
 *            x[i] = (d * (n(i) + 16 * bit(h, i))) + m
 *   where n(i) = low(q[i]) for i < 16, high(q[i - 16]) from there on: the
 *   first half of the block is in the low nibbles.
 *
 * Blocks of 256 elements with scales of their own for parts of it:
 *   Q4_K   f16 d, m; u8 s[12]; u8 q[128]                        144 bytes
 *            x[i] = ((d * scale(j)) * n(i)) - (m * min(j)),  j = i / 32
 *   Q5_K   f16 d, m; u8 s[12]; u8 h[32]; u8 q[128]              176 bytes
 *            x[i] = ((d * scale(j)) * (n(i) + 16 * bit(h[i % 32], j)))
 *                   - (m * min(j)),  j = i / 32
 *   where each run of 64 elements has 32 bytes of q, its first 32 elements in
 *   their low nibbles: with b = q[32 * (i / 64) + i % 32], n(i) = low(b) when
 *   i % 64 < 32, else high(b). scale(j) and min(j) are 6-bit numbers:
 *     j < 4   scale = s[j] & 63             min = s[j + 4] & 63
 *     j >= 4  scale = low(s[j + 4]) | (s[j - 4] >> 6) << 4
 *             min   = high(s[j + 4]) | (s[j] >> 6) << 4
 *   Q6_K   u8 l[128]; u8 h[64]; i8 s[16]; f16 d                 210 bytes
 *            x[i] = (d * s[i / 16]) * (n(i) - 32)
 *   where each half of 128 elements has 64 bytes of l and 32 bytes of h. With
 *   half = i / 128, k = i % 128, r = k % 32, quarter = k / 32:
 *     nibble from b = l[64 * half + 32 * (quarter % 2) + r]: low(b) for
 *     quarters 0 and 1, high(b) for 2 and 3;
 *     two bits from (h[32 * half + r] >> (2 * quarter)) & 3;
 *     n(i) = nibble + 16 * two bits
 *
 * Threads: any; nothing is kept.
 *
 * Source: the layouts are facts of the GGUF/ggml format; the order of the
 * operations is that of the `gguf` Python package, whose results the test
 * compares bit for bit.
 */
#ifndef RUNTIME_KERNELS_QUANT_H
#define RUNTIME_KERNELS_QUANT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

enum {
    QUANT_K_ELEMS = 256,     /* elements of a block of a K type */
    QUANT_K_SCALE_BYTES = 12 /* s[] of Q4_K and Q5_K */
};

/* n elements of type t from src (any address) to dst. n is a multiple of the
 * type's block; src holds n / block_elems * block_bytes bytes. Infinite and
 * NaN scales go through the arithmetic like other numbers. */
void quant_dequantize(enum dtype t, const void *src, float *dst, size_t n);

/* scale(j) and min(j) of a Q4_K or Q5_K block, j < 8; 0 to 63 each. */
static inline void quant_k_scale(const uint8_t s[QUANT_K_SCALE_BYTES],
                                 unsigned j, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}

static inline uint32_t quant_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float quant_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

/* The conversions below give the bits that the x86 F16C instructions give, on
 * every host: exact where the result can hold the number, else to nearest,
 * ties to even; too large becomes infinite; subnormal numbers are kept; a NaN
 * keeps its sign and the upper bits of its payload, and becomes quiet. */

static inline float quant_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, fraction = h & 0x3FF;
    if (exponent == 0) /* zero and subnormal: fraction * 2^-24, exactly */
        return quant_f32_from_bits(quant_f32_bits((float)fraction * 0x1p-24f) |
                                   sign);
    if (exponent == 31) {
        uint32_t quiet = fraction != 0 ? 0x400000 : 0;
        return quant_f32_from_bits(sign | 0x7F800000 | fraction << 13 | quiet);
    }
    return quant_f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t quant_f32_to_f16(float x)
{
    uint32_t bits = quant_f32_bits(x), a = bits & 0x7FFFFFFF;
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    if (a > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | ((a >> 13) & 0x3FF));
    if (a >= 0x477FF000) /* 65520, half way from the largest to 2^16 */
        return sign | 0x7C00;
    if (a >= 0x38800000) { /* 2^-14, the smallest normal number */
        a -= (uint32_t)112 << 23;
        a += 0xFFF + ((a >> 13) & 1);
        return (uint16_t)(sign | a >> 13);
    }
    /* In units of 2^-24 the number is its 24-bit significand, shifted. */
    uint32_t shift = 126 - (a >> 23);
    if (shift > 24)
        return sign;
    uint32_t significand = (a & 0x7FFFFF) | 0x800000;
    uint32_t h = significand >> shift;
    uint32_t rest = significand & (((uint32_t)1 << shift) - 1);
    uint32_t half = (uint32_t)1 << (shift - 1);
    if (rest > half || (rest == half && (h & 1) != 0))
        h++;
    return (uint16_t)(sign | h);
}

static inline float quant_bf16_to_f32(uint16_t b)
{
    return quant_f32_from_bits((uint32_t)b << 16);
}

/* As above but for bf16; a NaN becomes quiet here too, and only here:
 * quant_bf16_to_f32 moves bits. */
static inline uint16_t quant_f32_to_bf16(float x)
{
    uint32_t a = quant_f32_bits(x);
    if ((a & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(a >> 16 | 0x40);
    a += 0x7FFF + ((a >> 16) & 1);
    return (uint16_t)(a >> 16);
}

#endif
