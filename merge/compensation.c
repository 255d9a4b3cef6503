#include "merge/compensation.h"

#include <math.h>

float compensation_ratio(float host_mass, float guest_sum)
{
    return (host_mass + guest_sum) / host_mass;
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
