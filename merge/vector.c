#include "merge/vector.h"

#include <math.h>
#include <stddef.h>

enum { PARTS = 8 };

static float joined(const float s[PARTS])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

float vector_dot(const float *a, const float *b, uint32_t n)
{
    float s[PARTS] = {0};
    for (size_t i = 0; i < n; i += PARTS)
        for (size_t k = 0; k < PARTS; k++)
            s[k] += a[i + k] * b[i + k];
    return joined(s);
}

float vector_norm(const float *a, uint32_t n)
{
    return sqrtf(vector_dot(a, a, n));
}

float vector_distance2(const float *a, const float *b, uint32_t n)
{
    float s[PARTS] = {0};
    for (size_t i = 0; i < n; i += PARTS)
        for (size_t k = 0; k < PARTS; k++) {
            float x = a[i + k] - b[i + k];
            s[k] += x * x;
        }
    return joined(s);
}

float vector_cosine(const float *a, const float *b, uint32_t n)
{
    float norm_a = vector_norm(a, n), norm_b = vector_norm(b, n);
    if (!(norm_a > 0.0f && norm_b > 0.0f))
        return 0.0f;
    float c = vector_dot(a, b, n) / norm_a / norm_b;
    if (!isfinite(norm_a) || !isfinite(norm_b) || c != c)
        return 0.0f;
    return c > 1.0f ? 1.0f : c < -1.0f ? -1.0f : c;
}
