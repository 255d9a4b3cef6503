#include "merge/blend.h"

#include <math.h>

#include "merge/vector.h"

float blend_guest_mass(float mass)
{
    return mass > 0.0f && isfinite(mass) ? mass : 0.0f;
}

float blend_host_mass(float mass)
{
    float m = blend_guest_mass(mass);
    return m > BLEND_MASS_MIN ? m : BLEND_MASS_MIN;
}

float blend_gate(const float *host, const float *guest, uint32_t head_dim,
                 const struct blend_pair *pair)
{
    if (pair->host_mass < pair->min_mass * pair->guest_mass)
        return 0.0f;
    float g = vector_cosine(guest, host, head_dim);
    return g > 0.0f ? g : 0.0f;
}

void blend_add(float *value, const float *host, const float *guest,
               float weight, uint32_t head_dim)
{
    for (uint32_t i = 0; i < head_dim; i++)
        value[i] += weight * (guest[i] - host[i]);
}
