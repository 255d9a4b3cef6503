#include "merge/vector.h"

#include <math.h>

enum { LANES = 8 };

static float joined(const float s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

float vector_dot(const float *a, const float *b, uint32_t n)
{
    float s[LANES] = {0};
    for (uint32_t i = 0; i < n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            s[k] += a[i + k] * b[i + k];
    return joined(s);
}

float vector_norm(const float *a, uint32_t n)
{
    return sqrtf(vector_dot(a, a, n));
}

float vector_distance2(const float *a, const float *b, uint32_t n)
{
    float s[LANES] = {0};
    for (uint32_t i = 0; i < n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) {
            float x = a[i + k] - b[i + k];
            s[k] += x * x;
        }
    return joined(s);
}

float vector_cosine_of(float dot, float norm_a, float norm_b)
{
    if (!(norm_a > 0.0f && norm_b > 0.0f))
        return 0.0f;
    float c = dot / norm_a / norm_b;
    if (!isfinite(norm_a) || !isfinite(norm_b) || c != c)
        return 0.0f;
    return c > 1.0f ? 1.0f : c < -1.0f ? -1.0f : c;
}

float vector_cosine(const float *a, const float *b, uint32_t n)
{
    return vector_cosine_of(vector_dot(a, b, n), vector_norm(a, n),
                            vector_norm(b, n));
}
