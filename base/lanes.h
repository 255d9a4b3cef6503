/* lanes.h - the same sum for eight vectors at once.
 *
 * A sum of floats must go one addition after the other, which leaves most of
 * the processor idle. Eight sums side by side take hardly longer than one, and
 * each has the bits that it has alone. So vectors that have the same formula
 * are laid out in blocks of eight:
 *
 *     block[n][LANES], vector k in column k
 *
 * Threads: any; nothing is kept.
 */
#ifndef BASE_LANES_H
#define BASE_LANES_H

#include <stddef.h>
#include <stdint.h>

enum { LANES = 8 };

/* Blocks of n vectors; the last may be filled in part. */
static inline size_t lanes_blocks(size_t n)
{
    return (n + LANES - 1) / LANES;
}

/* Number i of vector e of length d, in blocks one after the other. */
static inline size_t lanes_at(size_t e, size_t d, size_t i)
{
    return (e / LANES * d + i) * LANES + e % LANES;
}

/* out[k] = sum over i < n of x[i] * block[i][k], from i = 0 on. */
void lanes_dot_f32(const float *block, const float *x, size_t n,
                   float out[LANES]);
void lanes_dot_f64(const double *block, const double *x, size_t n,
                   double out[LANES]);

#endif
