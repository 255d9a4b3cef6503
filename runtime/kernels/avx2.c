#include "runtime/kernels/avx2.h"

const struct ops avx2_ops = {
    .name = "avx2",
    .matmul = avx2_matmul,
    AVX2_BESIDES_MATMUL,
};
