#include "runtime/kernels/quant.h"

#include <assert.h>

/* The layouts and formulas are in quant.h; names here are the names there. */

static uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)load_u16(p) | (uint32_t)load_u16(p + 2) << 16;
}

static float load_f16(const uint8_t *p)
{
    return quant_f16_to_f32(load_u16(p));
}

static void f32_block(const uint8_t *b, float *x)
{
    memcpy(x, b, sizeof(*x));
}

static void f16_block(const uint8_t *b, float *x)
{
    *x = load_f16(b);
}

static void bf16_block(const uint8_t *b, float *x)
{
    *x = quant_bf16_to_f32(load_u16(b));
}

static void q8_0_block(const uint8_t *b, float *x)
{
    float d = load_f16(b);
    for (int i = 0; i < 32; i++)
        x[i] = (float)(int8_t)b[2 + i] * d;
}

/* n(i) of the types with blocks of 32. */
static int nibble(const uint8_t *q, int i)
{
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

static void q4_0_block(const uint8_t *b, float *x)
{
    float d = load_f16(b);
    for (int i = 0; i < 32; i++)
        x[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void q4_1_block(const uint8_t *b, float *x)
{
    float d = load_f16(b), m = load_f16(b + 2);
    for (int i = 0; i < 32; i++)
        x[i] = d * (float)nibble(b + 4, i) + m;
}

static int fifth_bit(uint32_t h, int i)
{
    return (int)((h >> i) & 1) << 4;
}

static void q5_0_block(const uint8_t *b, float *x)
{
    float d = load_f16(b);
    uint32_t h = load_u32(b + 2);
    for (int i = 0; i < 32; i++)
        x[i] = d * (float)(nibble(b + 6, i) + fifth_bit(h, i) - 16);
}

static void q5_1_block(const uint8_t *b, float *x)
{
    float d = load_f16(b), m = load_f16(b + 2);
    uint32_t h = load_u32(b + 4);
    for (int i = 0; i < 32; i++)
        x[i] = d * (float)(nibble(b + 8, i) + fifth_bit(h, i)) + m;
}

/* Q4_K, and Q5_K where h is not NULL. s is the block's s[]. */
static void k_block(const uint8_t *b, const uint8_t *h, const uint8_t *q,
                    float *x)
{
    float d = load_f16(b), m = load_f16(b + 2);
    for (unsigned j = 0; j < 8; j++) {
        uint8_t scale = 0, min = 0;
        quant_k_scale(b + 4, j, &scale, &min);
        float dj = d * (float)scale, mj = m * (float)min;
        for (unsigned r = 0; r < 32; r++) {
            unsigned byte = q[32 * (j / 2) + r];
            unsigned n = j % 2 == 0 ? byte & 15 : byte >> 4;
            if (h != NULL)
                n += ((unsigned)(h[r] >> j) & 1) << 4;
            x[32 * j + r] = dj * (float)n - mj;
        }
    }
}

static void q4_k_block(const uint8_t *b, float *x)
{
    k_block(b, NULL, b + 16, x);
}

static void q5_k_block(const uint8_t *b, float *x)
{
    k_block(b, b + 16, b + 48, x);
}

static void q6_k_block(const uint8_t *b, float *x)
{
    const uint8_t *l = b, *h = b + 128, *s = b + 192;
    float d = load_f16(b + 208);
    for (int i = 0; i < QUANT_K_ELEMS; i++) {
        int half = i / 128, r = i % 32, quarter = i % 128 / 32;
        int byte = l[64 * half + 32 * (quarter % 2) + r];
        int low = quarter < 2 ? byte & 15 : byte >> 4;
        int high = (h[32 * half + r] >> (2 * quarter)) & 3;
        float scale = d * (float)(int8_t)s[i / 16];
        x[i] = scale * (float)((low | high << 4) - 32);
    }
}

typedef void (*block_fn)(const uint8_t *b, float *x);

static block_fn block_function(enum dtype t)
{
    switch (t) {
    case DTYPE_F32:
        return f32_block;
    case DTYPE_F16:
        return f16_block;
    case DTYPE_BF16:
        return bf16_block;
    case DTYPE_Q8_0:
        return q8_0_block;
    case DTYPE_Q4_0:
        return q4_0_block;
    case DTYPE_Q4_1:
        return q4_1_block;
    case DTYPE_Q5_0:
        return q5_0_block;
    case DTYPE_Q5_1:
        return q5_1_block;
    case DTYPE_Q4_K:
        return q4_k_block;
    case DTYPE_Q5_K:
        return q5_k_block;
    case DTYPE_Q6_K:
        return q6_k_block;
    }
    return NULL;
}

void quant_dequantize(enum dtype t, const void *src, float *dst, size_t n)
{
    const struct dtype_info *info = dtype_info(t);
    block_fn f = block_function(t);
    assert(info != NULL && f != NULL && n % info->block_elems == 0);
    const uint8_t *b = src;
    for (size_t i = 0; i < n; i += info->block_elems) {
        f(b, dst + i);
        b += info->block_bytes;
    }
}
