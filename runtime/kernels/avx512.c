#include "runtime/kernels/avx512.h"

#include "runtime/kernels/avx2.h"

const struct ops avx512_ops = {
    .name = "avx512",
    .matmul = avx512_matmul,
    AVX2_BESIDES_MATMUL,
};
