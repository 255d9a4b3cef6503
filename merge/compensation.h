/* compensation.h - SelKV stage 5: the bias that gives a host the attention of
 * its guests.
 *
 *     R_i = (a_i + sum_j g_j a_j) / a_i >= 1,     bias_i += alpha log R_i
 *
 * Attention adds the bias to the logit of the entry, so with alpha = 1 the
 * host weighs exp(logit) R: as much as it and its guests did together, where
 * they had the same key. Without it merging loses more than it saves
 * ("attention sag"); the paper takes half of it.
 *
 * Where an entry already has a bias, that was part of the logits its mass
 * was measured with, so R is what it deserves on top and the biases add
 * (merge.h). The guard max_ratio bounds the total: no bias grows beyond
 * alpha log(max_ratio) by merging.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MERGE_COMPENSATION_H
#define MERGE_COMPENSATION_H

#include <stdint.h>

#include "merge/merge.h"

/* R of a host with mass host_mass (blend_host_mass) and its guests' sum of
 * g_j a_j. */
float compensation_ratio(float host_mass, float guest_sum);

/* The bias of an entry that had `bias` and merged with ratio R; `bias` itself
 * where R is 1. The logarithm is taken in float64 and rounded once. */
float compensation_bias(float bias, float ratio, const struct merge_options *o);

#endif
