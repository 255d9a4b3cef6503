#include "runtime/kernels/ref.h"

#include <math.h>
#include <string.h>

const struct ops ops_reference = {
    .name = "reference",
    .weight_bytes = ref_weight_bytes,
    .weight_pack = ref_weight_pack,
    .act_bytes = ref_act_bytes,
    .act_pack = ref_act_pack,
    .matmul = ref_matmul,
    .get_row = ref_get_row,
    .rmsnorm = ref_rmsnorm,
    .rope = ref_rope,
    .silu_mul = ref_silu_mul,
    .add = ref_add,
    .kv_store = ref_kv_store,
    .kv_load = ref_kv_load,
    .attend_scratch_bytes = ref_attend_scratch_bytes,
    .attend = ref_attend,
    .attend_state_floats = ref_attend_state_floats,
    .attend_segment = ref_attend_segment,
    .attend_join = ref_attend_join,
    .attend_logits = ref_attend_logits,
    .softmax = ref_softmax,
    .add_weights = ref_add_weights,
};

/* 2^n for -1022 <= n <= 1023. */
static double power_of_two(int n)
{
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double d;
    memcpy(&d, &u, sizeof(d));
    return d;
}

float ref_exp(float x)
{
    if (x != x)
        return x;
    if (x < -104.0f)
        return 0.0f;
    if (x > 88.8f)
        return INFINITY;
    /* e^x = 2^n e^r with |r| <= ln(2) / 2, and a Taylor series of e^r whose
     * first missing term is below 2^-41. */
    double t = (double)x * 1.44269504088896340736;
    int n = (int)(t < 0 ? t - 0.5 : t + 0.5);
    double r = (double)x - (double)n * 0.69314718055994530942;
    double e = 1.0 / 40320;
    e = e * r + 1.0 / 5040;
    e = e * r + 1.0 / 720;
    e = e * r + 1.0 / 120;
    e = e * r + 1.0 / 24;
    e = e * r + 1.0 / 6;
    e = e * r + 1.0 / 2;
    e = e * r + 1.0;
    e = e * r + 1.0;
    return (float)(e * power_of_two(n));
}

void ref_rmsnorm(float *out, const float *x, const float *w, int64_t n,
                 float eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    float r = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] * r * w[i];
}

void ref_rope(float *x, int n_heads, int head_dim, int n_rot,
              const float *cos_sin, bool interleaved)
{
    int half = n_rot / 2;
    int stride = interleaved ? 2 : 1, other = interleaved ? 1 : half;
    for (int h = 0; h < n_heads; h++, x += head_dim) {
        for (int i = 0; i < half; i++) {
            float c = cos_sin[i], s = cos_sin[half + i];
            float a = x[i * stride], b = x[i * stride + other];
            x[i * stride] = a * c - b * s;
            x[i * stride + other] = a * s + b * c;
        }
    }
}

void ref_silu_mul(float *out, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + ref_exp(-gate[i])) * up[i];
}

void ref_add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}
