/* rng.h - a small deterministic random generator whose state is a parameter.
 *
 * xoshiro256** seeded by splitmix64 (Blackman and Vigna, "Scrambled linear
 * pseudorandom number generators", 2021). The same seed gives the same
 * numbers on every machine: sampling, tests and generated texts rely on it.
 * Not for keys or ids that somebody must not guess: hash_random() is.
 *
 * Threads: a state belongs to one thread at a time.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

struct rng {
    uint64_t s[4]; /* not all zero */
};

/* One step of splitmix64: advances *state and returns 64 mixed bits. */
uint64_t rng_splitmix(uint64_t *state);

/* Any seed is good, 0 too. */
void rng_seed(struct rng *r, uint64_t seed);

uint64_t rng_next(struct rng *r);

/* Uniform in [0, 1): multiples of 2^-24, so never rounded up to 1. */
float rng_float(struct rng *r);
/* The same with multiples of 2^-53. */
double rng_double(struct rng *r);

/* Uniform in [0, n), without bias; n >= 1. */
uint64_t rng_below(struct rng *r, uint64_t n);

#endif
