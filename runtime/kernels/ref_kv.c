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

/* A key lies with stride KV_LANES from element `first` on, a value with 1. */
struct place {
    uint32_t at, scale_at; /* of the layout */
    size_t first, stride;
};

static struct place place_of_key(const struct kv_layout *l, uint32_t slot)
{
    return (struct place){l->k, l->k_scale, kv_key_index(l, slot, 0), KV_LANES};
}

static struct place place_of_value(const struct kv_layout *l, uint32_t slot)
{
    return (struct place){l->v, l->v_scale, (size_t)slot * l->head_dim, 1};
}

static void store(const struct kv_layout *l, uint8_t *unit, uint32_t slot,
                  struct place p, const float *x)
{
    if (l->type != KV_Q8_0) {
        for (uint32_t i = 0; i < l->head_dim; i++)
            put(l->type, unit + p.at, p.first + i * p.stride, x[i]);
        return;
    }
    float scale = q8_scale(x, l->head_dim);
    put_float(unit + p.scale_at, slot, scale);
    int8_t *q = (int8_t *)(unit + p.at);
    for (uint32_t i = 0; i < l->head_dim; i++)
        q[p.first + i * p.stride] = q8_round(x[i], scale);
}

static void load(const struct kv_layout *l, const uint8_t *unit, uint32_t slot,
                 struct place p, float *x)
{
    if (l->type != KV_Q8_0) {
        for (uint32_t i = 0; i < l->head_dim; i++)
            x[i] = get(l->type, unit + p.at, p.first + i * p.stride);
        return;
    }
    float scale = get_float(unit + p.scale_at, slot);
    const int8_t *q = (const int8_t *)(unit + p.at);
    for (uint32_t i = 0; i < l->head_dim; i++)
        x[i] = (float)q[p.first + i * p.stride] * scale;
}

void ref_kv_store(const struct kv_layout *l, uint8_t *unit, uint32_t slot,
                  const float *k, const float *v, float bias)
{
    put_float(unit + l->bias, slot, bias);
    if (k != NULL)
        store(l, unit, slot, place_of_key(l, slot), k);
    if (v != NULL)
        store(l, unit, slot, place_of_value(l, slot), v);
}

void ref_kv_load(const struct kv_layout *l, const uint8_t *unit, uint32_t slot,
                 float *k, float *v)
{
    if (k != NULL)
        load(l, unit, slot, place_of_key(l, slot), k);
    if (v != NULL)
        load(l, unit, slot, place_of_value(l, slot), v);
}
