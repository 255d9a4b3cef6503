#include "server/merge_config.h"

#include <math.h>

struct merge_options merge_config_options(const struct config *c)
{
    struct merge_options o = merge_options_default();
    o.alpha = (float)c->merge_alpha;
    o.min_mass = (float)c->merge_min_mass;
    o.max_ratio = c->merge_max_ratio > 0 ? (float)c->merge_max_ratio : INFINITY;
    o.mean_ratio = c->merge_mean_ratio;
    o.min_cosine = (float)c->merge_min_cosine;
    return o;
}
