/* avx512.h - what AVX-512 with VNNI does better than AVX2, behind
 * ops_avx512().
 *
 * Contracts: ops.h. The packed forms are those of AVX2 (avx2_tile.h), and
 * so are the bits of every result. Compiled with these instruction sets
 * switched on, so nothing in here may be called, or be inlined, before
 * dispatch.c has found them on the CPU.
 *
 * Threads: any, on disjoint outputs; no state.
 */
#ifndef RUNTIME_KERNELS_AVX512_H
#define RUNTIME_KERNELS_AVX512_H

#include "runtime/kernels/ops.h"

extern const struct ops avx512_ops;

void avx512_matmul(const struct weight *w, const struct acts *a, int64_t row0,
                   int64_t row1, float *y, int64_t ldy);
void avx512_attend(const struct attend_args *a, void *scratch);
void avx512_attend_logits(const struct attend_args *a, float *logit,
                          int64_t stride, void *scratch);

#endif
