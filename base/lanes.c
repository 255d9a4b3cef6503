#include "base/lanes.h"

/* Vectors of the smallest size that every target has: of a larger one GCC
 * keeps the sums in memory where the target must split it. */
typedef float f32x4 __attribute__((vector_size(16), aligned(4)));
typedef double f64x2 __attribute__((vector_size(16), aligned(8)));

void lanes_dot_f32(const float *block, const float *x, size_t n,
                   float out[LANES])
{
    f32x4 sum[2] = {{0}};
    for (size_t i = 0; i < n; i++, block += LANES) {
        sum[0] += x[i] * *(const f32x4 *)block;
        sum[1] += x[i] * *(const f32x4 *)(block + 4);
    }
    *(f32x4 *)out = sum[0];
    *(f32x4 *)(out + 4) = sum[1];
}

void lanes_dot_f64(const double *block, const double *x, size_t n,
                   double out[LANES])
{
    f64x2 sum[4] = {{0}};
    for (size_t i = 0; i < n; i++, block += LANES) {
        sum[0] += x[i] * *(const f64x2 *)block;
        sum[1] += x[i] * *(const f64x2 *)(block + 2);
        sum[2] += x[i] * *(const f64x2 *)(block + 4);
        sum[3] += x[i] * *(const f64x2 *)(block + 6);
    }
    *(f64x2 *)out = sum[0];
    *(f64x2 *)(out + 2) = sum[1];
    *(f64x2 *)(out + 4) = sum[2];
    *(f64x2 *)(out + 6) = sum[3];
}
