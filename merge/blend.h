/* blend.h - SelKV stage 4: the soft cosine gate and the value that comes out.
 *
 *     g_j  = max(0, cos(v_j, v_i))
 *     v_i' = (a_i v_i + sum_j g_j a_j v_j) / (a_i + sum_j g_j a_j)
 *
 * over the guests j of a host i, always with the values that are stored
 * before. It is computed as v_i + sum_j w_j (v_j - v_i) with the weights
 * w_j = g_j a_j / (a_i + sum): the same number, and one that leaves the value
 * of a host exactly as it is where its guests hold the same.
 *
 * A guard may hold a guest off: where the host's mass is less than min_mass
 * times the guest's, the guest counts as one with g = 0.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MERGE_BLEND_H
#define MERGE_BLEND_H

#include <stdint.h>

/* The least mass that a host counts with. */
#define BLEND_MASS_MIN 1e-8f

struct blend_pair {
    float host_mass, guest_mass; /* >= 0 */
    float min_mass;              /* the guard; 0: none */
};

/* g of two values; 0 where the guard holds the guest off. */
float blend_gate(const float *host, const float *guest, uint32_t head_dim,
                 const struct blend_pair *pair);

/* What a mass counts as: what is no finite number >= 0 counts as 0, and a host
 * with at least BLEND_MASS_MIN. */
float blend_guest_mass(float mass);
float blend_host_mass(float mass);

/* One guest's part: value[i] += weight * (guest[i] - host[i]). `value` began
 * as a copy of `host`. */
void blend_add(float *value, const float *host, const float *guest,
               float weight, uint32_t head_dim);

#endif
