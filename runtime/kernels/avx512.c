#include "runtime/kernels/avx512.h"

#include "runtime/kernels/avx2.h"

const struct ops avx512_ops = {
    .name = "avx512",
    .matmul = avx512_matmul,
    .attend = avx512_attend,
    .attend_logits = avx512_attend_logits,
    AVX2_FAST_ENOUGH,
};
