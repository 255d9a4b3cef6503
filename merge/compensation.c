#include "merge/compensation.h"

#include <math.h>

float compensation_ratio(float host_mass, float guest_sum)
{
    return (host_mass + guest_sum) / host_mass;
}

void compensation_mean(float *const *ratio, uint32_t n_heads, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float sum = 0.0f;
        for (uint32_t h = 0; h < n_heads; h++)
            sum += ratio[h][i];
        for (uint32_t h = 0; h < n_heads; h++)
            ratio[h][i] = sum / (float)n_heads;
    }
}

float compensation_bias(float bias, float ratio, const struct merge_options *o)
{
    if (!(ratio > 1.0f))
        return bias;
    double more = (double)o->alpha * log((double)ratio);
    double most = (double)o->alpha * log((double)o->max_ratio);
    double sum = (double)bias + more;
    if (sum > most)
        sum = most > (double)bias ? most : (double)bias;
    return (float)sum;
}
