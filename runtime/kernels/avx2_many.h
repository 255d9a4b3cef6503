/* avx2_many.h - packed weights times many activation rows.
 *
 * The weights of a row tile are unpacked a chunk at a time, and each chunk is
 * used for many activation rows while it is in the first-level cache. What
 * multiplies a chunk differs by instruction set and is handed in; the order
 * of the floating-point sums is the same everywhere (avx2_matmul.c), and so
 * are the bits.
 *
 * Threads: any, on disjoint outputs; no state.
 */
#ifndef RUNTIME_KERNELS_AVX2_MANY_H
#define RUNTIME_KERNELS_AVX2_MANY_H

#include "runtime/kernels/avx2_tile.h"

/* Weights of up to AVX2_SUPER blocks of a row tile, unpacked; 64-byte aligned.
 */
struct avx2_chunk {
    int16_t q[AVX2_SUPER][AVX2_STEPS][2][16]; /* code - offset */
    float d[AVX2_SUPER][2][OPS_ROW_TILE];     /* second part: Q6_K only */
    float m[AVX2_SUPER][OPS_ROW_TILE];
};

/* What a type adds to sum * scale: nothing, a min, or a second scale for
 * columns 16..31. */
enum avx2_kind { AVX2_PLAIN, AVX2_MIN, AVX2_PARTS };

/* A chunk of n_blocks blocks times n rows of activations: a is the first
 * block of a tile, the one of the next tile is `stride` blocks further. acc
 * (64-byte aligned) has one row for each activation row, up to a whole number
 * of tiles, and so have the activations (filled up with zeros). */
typedef void (*avx2_times_fn)(enum avx2_kind kind, int64_t n,
                              const struct avx2_chunk *c,
                              const struct avx2_act *a, int64_t stride,
                              int n_blocks, float acc[][OPS_ROW_TILE]);

/* ops->matmul for packed types with `multiply`, which is given up to at_once
 * rows (a multiple of OPS_ACT_TILE, at most 64). */
void avx2_many(const struct weight *w, const struct acts *a, int64_t row0,
               int64_t row1, float *y, int64_t ldy, int at_once,
               avx2_times_fn multiply);

#endif
