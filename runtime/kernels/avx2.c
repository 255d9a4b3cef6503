#include "runtime/kernels/avx2.h"

#include "runtime/kernels/ref.h"

/* Where plain C is fast enough, the table points at the reference. */
const struct ops avx2_ops = {
    .name = "avx2",
    .weight_bytes = avx2_weight_bytes,
    .weight_pack = avx2_weight_pack,
    .act_bytes = avx2_act_bytes,
    .act_pack = avx2_act_pack,
    .matmul = avx2_matmul,
    .get_row = ref_get_row,
    .rmsnorm = avx2_rmsnorm,
    .rope = avx2_rope,
    .silu_mul = avx2_silu_mul,
    .add = avx2_add,
    .kv_store = avx2_kv_store,
    .kv_load = avx2_kv_load,
    .attend_scratch_bytes = avx2_attend_scratch_bytes,
    .attend = avx2_attend,
    .attend_state_floats = avx2_attend_state_floats,
    .attend_segment = avx2_attend_segment,
    .attend_join = avx2_attend_join,
    .attend_logits = avx2_attend_logits,
    .softmax = avx2_softmax,
    .add_weights = avx2_add_weights,
};
