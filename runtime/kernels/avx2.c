#include "runtime/kernels/avx2.h"

const struct ops avx2_ops = {
    .name = "avx2",
    .matmul = avx2_matmul,
    .attend = avx2_attend,
    .attend_logits = avx2_attend_logits,
    AVX2_FAST_ENOUGH,
};
