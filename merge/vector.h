/* vector.h - sums over the dimensions of a head, in one fixed order.
 *
 * Eight partial sums side by side, so that compilers can use vector registers
 * without changing the order: the bits are the same on every machine.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MERGE_VECTOR_H
#define MERGE_VECTOR_H

#include <stdint.h>

/* n is a multiple of 8, as head_dim is. */
float vector_dot(const float *a, const float *b, uint32_t n);
float vector_norm(const float *a, uint32_t n); /* Euclidean */
float vector_distance2(const float *a, const float *b, uint32_t n);

/* 0 where one of them has no direction: its length is 0 or not finite. */
float vector_cosine(const float *a, const float *b, uint32_t n);

#endif
