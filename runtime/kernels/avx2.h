/* avx2.h - the AVX2 + FMA + F16C operations behind ops_avx2().
 *
 * Contracts: ops.h. Compiled with these instruction sets switched on, so
 * nothing in here may be called, or be inlined, before dispatch.c has found
 * them on the CPU.
 *
 * Threads: any, on disjoint outputs; no state.
 */
#ifndef RUNTIME_KERNELS_AVX2_H
#define RUNTIME_KERNELS_AVX2_H

#include "runtime/kernels/ops.h"
#include "runtime/kernels/ref.h"

extern const struct ops avx2_ops;

/* The entries of a table that wider vectors make no faster: all but name,
 * matmul, attend and attend_logits. Where plain C is fast enough, they point
 * at the reference. */
#define AVX2_FAST_ENOUGH                                                       \
    .weight_bytes = avx2_weight_bytes, .weight_pack = avx2_weight_pack,        \
    .act_bytes = avx2_act_bytes, .act_pack = avx2_act_pack,                    \
    .get_row = ref_get_row, .rmsnorm = avx2_rmsnorm, .rope = avx2_rope,        \
    .silu_mul = avx2_silu_mul, .add = avx2_add, .kv_store = avx2_kv_store,     \
    .kv_load = avx2_kv_load,                                                   \
    .attend_scratch_bytes = avx2_attend_scratch_bytes,                         \
    .attend_state_floats = avx2_attend_state_floats,                           \
    .attend_segment = avx2_attend_segment, .attend_join = avx2_attend_join,    \
    .softmax = avx2_softmax, .add_weights = avx2_add_weights

uint64_t avx2_weight_bytes(const struct weight *w);
void avx2_weight_pack(const struct weight *w, int64_t row0, int64_t row1);
uint64_t avx2_act_bytes(int64_t n, int64_t cols);
void avx2_act_pack(const struct acts *a, int64_t row0, int64_t row1);
void avx2_matmul(const struct weight *w, const struct acts *a, int64_t row0,
                 int64_t row1, float *y, int64_t ldy);

/* The parts of avx2_matmul: few activation rows, more, and weights of
 * floating point. A row gets the same bits in the first two. */
void avx2_matmul_few(const struct weight *w, const struct acts *a, int64_t row0,
                     int64_t row1, float *y, int64_t ldy);
void avx2_matmul_many(const struct weight *w, const struct acts *a,
                      int64_t row0, int64_t row1, float *y, int64_t ldy);
void avx2_matmul_float(const struct weight *w, const struct acts *a,
                       int64_t row0, int64_t row1, float *y, int64_t ldy);

void avx2_rmsnorm(float *out, const float *x, const float *w, int64_t n,
                  float eps);
void avx2_rope(float *x, int n_heads, int head_dim, int n_rot,
               const float *cos_sin, bool interleaved);
void avx2_silu_mul(float *out, const float *gate, const float *up, int64_t n);
void avx2_add(float *x, const float *y, int64_t n);

void avx2_kv_store(const struct kv_layout *l, uint8_t *unit, uint32_t slot,
                   const float *k, const float *v, float bias);
void avx2_kv_load(const struct kv_layout *l, const uint8_t *unit, uint32_t slot,
                  float *k, float *v);

uint64_t avx2_attend_scratch_bytes(const struct attend_args *a);
void avx2_attend(const struct attend_args *a, void *scratch);
int64_t avx2_attend_state_floats(uint32_t head_dim);
void avx2_attend_segment(const struct attend_args *a, int64_t segment,
                         float *state, void *scratch);
void avx2_attend_join(const struct attend_args *a, const float *states,
                      int64_t n_segments);
void avx2_attend_logits(const struct attend_args *a, float *logit,
                        int64_t stride, void *scratch);
void avx2_softmax(float *x, int64_t n);
void avx2_add_weights(const float *logit, const float *norm, int64_t n,
                      float *sum);

#endif
