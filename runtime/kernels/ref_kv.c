#include "runtime/kernels/ref.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "runtime/kernels/quant.h"

enum { Q8_MAX = 127 };

static const float HALF_MAX = 65504.0f;

/* Only finite values are ever stored: attention multiplies what it finds by
 * a weight that may be zero, and zero times infinity would spread. */
static float clamped(float x, float limit)
{
    if (x != x)
        return 0.0f;
    return x > limit ? limit : x < -limit ? -limit : x;
}

static void put(enum kv_type type, uint8_t *base, size_t index, float x)
{
    if (type == KV_F16) {
        uint16_t h = quant_f32_to_f16(clamped(x, HALF_MAX));
        memcpy(base + index * sizeof(h), &h, sizeof(h));
    } else {
        float f = clamped(x, FLT_MAX);
        memcpy(base + index * sizeof(f), &f, sizeof(f));
    }
}

static float get(enum kv_type type, const uint8_t *base, size_t index)
{
    if (type == KV_F16) {
        uint16_t h;
        memcpy(&h, base + index * sizeof(h), sizeof(h));
        return quant_f16_to_f32(h);
    }
    float f;
    memcpy(&f, base + index * sizeof(f), sizeof(f));
    return f;
}

/* The scale of one int8 vector: its largest magnitude is 127 steps. Below
 * the smallest normal step the vector is stored as zeros. */
static float q8_scale(const float *x, uint32_t n)
{
    float top = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        float m = fabsf(clamped(x[i], HALF_MAX));
        top = m > top ? m : top;
    }
    float scale = top / (float)Q8_MAX;
    return scale < FLT_MIN * 4 ? 0.0f : scale;
}

static int8_t q8_round(float x, float scale)
{
    if (scale == 0.0f)
        return 0;
    /* Adding 1.5 * 2^23 rounds to the nearest integer, ties to even. */
    const float magic = 12582912.0f;
    volatile float r = clamped(x, HALF_MAX) / scale + magic;
    return (int8_t)(r - magic);
}

static void put_float(uint8_t *at, uint32_t slot, float x)
{
    memcpy(at + slot * sizeof(x), &x, sizeof(x));
}

static float get_float(const uint8_t *at, uint32_t slot)
{
    float x;
    memcpy(&x, at + slot * sizeof(x), sizeof(x));
    return x;
}

void ref_kv_store(const struct kv_layout *l, uint8_t *unit, uint32_t slot,
                  const float *k, const float *v, float bias)
{
    put_float(unit + l->bias, slot, bias);
    if (l->type != KV_Q8_0) {
        for (uint32_t i = 0; i < l->head_dim; i++) {
            put(l->type, unit + l->k, kv_key_index(l, slot, i), k[i]);
            put(l->type, unit + l->v, slot * l->head_dim + i, v[i]);
        }
        return;
    }
    float ks = q8_scale(k, l->head_dim), vs = q8_scale(v, l->head_dim);
    put_float(unit + l->k_scale, slot, ks);
    put_float(unit + l->v_scale, slot, vs);
    int8_t *kq = (int8_t *)(unit + l->k);
    int8_t *vq = (int8_t *)(unit + l->v) + slot * l->head_dim;
    for (uint32_t i = 0; i < l->head_dim; i++) {
        kq[kv_key_index(l, slot, i)] = q8_round(k[i], ks);
        vq[i] = q8_round(v[i], vs);
    }
}

void ref_kv_load(const struct kv_layout *l, const uint8_t *unit, uint32_t slot,
                 float *k, float *v)
{
    if (l->type != KV_Q8_0) {
        for (uint32_t i = 0; i < l->head_dim; i++) {
            k[i] = get(l->type, unit + l->k, kv_key_index(l, slot, i));
            v[i] = get(l->type, unit + l->v, slot * l->head_dim + i);
        }
        return;
    }
    float ks = get_float(unit + l->k_scale, slot);
    float vs = get_float(unit + l->v_scale, slot);
    const int8_t *kq = (const int8_t *)(unit + l->k);
    const int8_t *vq = (const int8_t *)(unit + l->v) + slot * l->head_dim;
    for (uint32_t i = 0; i < l->head_dim; i++) {
        k[i] = (float)kq[kv_key_index(l, slot, i)] * ks;
        v[i] = (float)vq[i] * vs;
    }
}
