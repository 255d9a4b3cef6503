/* ref.h - the plain C operations behind ops_reference.
 *
 * Contracts: ops.h. Written for clearness and exactness, not speed; where a
 * faster table has nothing better, it points at these.
 *
 * Threads: any, on disjoint outputs; no state.
 */
#ifndef RUNTIME_KERNELS_REF_H
#define RUNTIME_KERNELS_REF_H

#include "runtime/kernels/ops.h"

/* e^x to within one unit in the last place of float32, computed in float64
 * without libm. 0 below -104, infinity above 88.8; NaN stays NaN. */
float ref_exp(float x);

uint64_t ref_weight_bytes(const struct weight *w);
void ref_weight_pack(const struct weight *w, int64_t row0, int64_t row1);
uint64_t ref_act_bytes(int64_t n, int64_t cols);
void ref_act_pack(const struct acts *a, int64_t row0, int64_t row1);
void ref_matmul(const struct weight *w, const struct acts *a, int64_t row0,
                int64_t row1, float *y, int64_t ldy);
void ref_get_row(const struct weight *w, int64_t row, float *out);

void ref_rmsnorm(float *out, const float *x, const float *w, int64_t n,
                 float eps);
void ref_rope(float *x, int n_heads, int head_dim, int n_rot,
              const float *cos_sin, bool interleaved);
void ref_silu_mul(float *out, const float *gate, const float *up, int64_t n);
void ref_add(float *x, const float *y, int64_t n);

void ref_kv_store(const struct kv_layout *l, uint8_t *unit, uint32_t slot,
                  const float *k, const float *v, float bias);
void ref_kv_load(const struct kv_layout *l, const uint8_t *unit, uint32_t slot,
                 float *k, float *v);

uint64_t ref_attend_scratch_bytes(const struct attend_args *a);
void ref_attend(const struct attend_args *a, void *scratch);
int64_t ref_attend_state_floats(uint32_t head_dim);
void ref_attend_segment(const struct attend_args *a, int64_t segment,
                        float *state, void *scratch);
void ref_attend_join(const struct attend_args *a, const float *states,
                     int64_t n_segments);
void ref_attend_logits(const struct attend_args *a, float *logit,
                       int64_t stride, void *scratch);
void ref_softmax(float *x, int64_t n);
void ref_add_weights(const float *logit, const float *norm, int64_t n,
                     float *sum);

#endif
