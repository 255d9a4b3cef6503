#include "runtime/kernels/avx2.h"

#include <float.h>
#include <immintrin.h>
#include <string.h>

#include "runtime/kernels/ref.h"

static const float HALF_MAX = 65504.0f;

/* As ref_kv.c: only finite values are stored. NaN becomes 0. */
static __m256 clamped(__m256 x, float limit)
{
    __m256 number = _mm256_cmp_ps(x, x, _CMP_ORD_Q);
    x = _mm256_and_ps(x, number);
    x = _mm256_min_ps(x, _mm256_set1_ps(limit));
    return _mm256_max_ps(x, _mm256_set1_ps(-limit));
}

/* One key: element i at to[i * KV_LANES]; one value: element i at to[i]. */
static void store_f16(uint16_t *to, size_t stride, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m128i h =
            _mm256_cvtps_ph(clamped(_mm256_loadu_ps(x + i), HALF_MAX),
                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        if (stride == 1) {
            _mm_storeu_si128((__m128i *)(to + i), h);
        } else {
            uint16_t lane[8];
            _mm_storeu_si128((__m128i *)lane, h);
            for (size_t j = 0; j < 8; j++)
                to[(i + j) * stride] = lane[j];
        }
    }
}

static void store_f32(float *to, size_t stride, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        float lane[8];
        _mm256_storeu_ps(lane, clamped(_mm256_loadu_ps(x + i), FLT_MAX));
        for (size_t j = 0; j < 8; j++)
            to[(i + j) * stride] = lane[j];
    }
}

/* The scale of one int8 vector: its largest magnitude is 127 steps. */
static float q8_scale(const float *x, uint32_t n)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 top = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = clamped(_mm256_loadu_ps(x + i), HALF_MAX);
        top = _mm256_max_ps(top, _mm256_andnot_ps(sign, v));
    }
    __m128 t =
        _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    t = _mm_max_ss(t, _mm_movehdup_ps(t));
    float scale = _mm_cvtss_f32(t) / 127.0f;
    return scale < FLT_MIN * 4 ? 0.0f : scale;
}

static void store_q8(int8_t *to, size_t stride, const float *x, uint32_t n,
                     float scale)
{
    __m256 by = _mm256_set1_ps(scale);
    __m256 keep =
        _mm256_castsi256_ps(_mm256_set1_epi32(scale == 0.0f ? 0 : -1));
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = clamped(_mm256_loadu_ps(x + i), HALF_MAX);
        v = _mm256_and_ps(_mm256_div_ps(v, by), keep);
        int32_t lane[8];
        _mm256_storeu_si256((__m256i *)lane, _mm256_cvtps_epi32(v));
        for (size_t j = 0; j < 8; j++)
            to[(i + j) * stride] = (int8_t)lane[j];
    }
}

/* One key or value, whose first element is at `to`. */
static void store(const struct kv_layout *l, uint8_t *to, size_t stride,
                  const float *x, uint8_t *scale_at)
{
    uint32_t d = l->head_dim;
    switch (l->type) {
    case KV_F16:
        store_f16((void *)to, stride, x, d);
        break;
    case KV_F32:
        store_f32((void *)to, stride, x, d);
        break;
    case KV_Q8_0: {
        float scale = q8_scale(x, d);
        memcpy(scale_at, &scale, sizeof(scale));
        store_q8((void *)to, stride, x, d, scale);
        break;
    }
    }
}

void avx2_kv_store(const struct kv_layout *l, uint8_t *unit, uint32_t slot,
                   const float *k, const float *v, float bias)
{
    uint8_t *key = unit + l->k + kv_key_index(l, slot, 0) * l->elem_bytes;
    uint8_t *value = unit + l->v + (size_t)slot * l->head_dim * l->elem_bytes;
    memcpy(unit + l->bias + slot * sizeof(bias), &bias, sizeof(bias));
    if (k != NULL)
        store(l, key, KV_LANES, k, unit + l->k_scale + slot * sizeof(float));
    if (v != NULL)
        store(l, value, 1, v, unit + l->v_scale + slot * sizeof(float));
}

static void load_f16(float *x, const uint16_t *from, size_t stride, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        uint16_t lane[8];
        for (size_t j = 0; j < 8; j++)
            lane[j] = from[(i + j) * stride];
        __m128i h = _mm_loadu_si128((const __m128i *)lane);
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(h));
    }
}

/* Only halves need more than a copy or a product, which compilers do well. */
void avx2_kv_load(const struct kv_layout *l, const uint8_t *unit, uint32_t slot,
                  float *k, float *v)
{
    uint32_t d = l->head_dim;
    const uint16_t *half = (const void *)unit;
    if (l->type != KV_F16) {
        ref_kv_load(l, unit, slot, k, v);
        return;
    }
    if (k != NULL)
        load_f16(k, half + l->k / 2 + kv_key_index(l, slot, 0), KV_LANES, d);
    if (v != NULL)
        load_f16(v, half + l->v / 2 + (size_t)slot * d, 1, d);
}
