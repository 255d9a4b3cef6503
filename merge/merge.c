#include "merge/merge.h"

struct merge_options merge_options_default(void)
{
    return (struct merge_options){.n_window = 32,
                                  .alpha = 0.5f,
                                  .min_mass = 1.0f,
                                  .max_ratio = 4.0f,
                                  .min_cosine = 0.75f,
                                  .n_next = 32};
}

void merge_counts_add(struct merge_counts *to, const struct merge_counts *c)
{
    to->evicted += c->evicted;
    to->routed += c->routed;
    to->merged += c->merged;
    to->hosts += c->hosts;
    to->gate_sum += c->gate_sum;
    if (c->log_ratio > to->log_ratio)
        to->log_ratio = c->log_ratio;
}

double merge_routed_share(const struct merge_counts *c)
{
    return c->evicted ? (double)c->routed / (double)c->evicted : 0;
}

double merge_mean_gate(const struct merge_counts *c)
{
    return c->routed ? c->gate_sum / (double)c->routed : 0;
}
