/* sample_internal.h - between sample.c, which knows what was asked, and
 * sample_choose.c, which looks at the numbers.
 */
#ifndef RUNTIME_ENGINE_SAMPLE_INTERNAL_H
#define RUNTIME_ENGINE_SAMPLE_INTERNAL_H

#include <stdint.h>

#include "base/rng.h"
#include "runtime/engine/engine.h"

/* Tokens are looked at in blocks; most blocks hold nothing that could be
 * chosen, and their maximum tells. */
enum { SAMPLE_BLOCK = 64 };

/* A token that may still be drawn. */
struct sample_candidate {
    float x; /* (logit - highest logit) / temperature: 0 or less */
    float w; /* exp(x) */
    int32_t id;
};

struct sample_scratch {
    uint32_t n_vocab;
    struct sample_candidate *candidate; /* [n_vocab] */
    float *block_max;                   /* of logits; NaN is never in it */
    double *block_sum;                  /* of weights */
};

struct sample_row {
    float *logit;
    uint32_t n;
    float highest;
};

/* e^x for x from -40 to 0, within 3e-7 of it; 0 for what is below, and for a
 * NaN. The same bits with every compiler and C library. */
float sample_exp(float x);

/* The highest logit (into row->highest) and the lowest id that has it; -1
 * when none is finite. Fills block_max. Plus infinity becomes the greatest
 * finite number. */
int32_t sample_find_highest(struct sample_row *row, struct sample_scratch *s);

/* One draw after temperature, min_p, top_k and top_p. The temperature must be
 * above 0 and top_p too; sample_find_highest() must have found something. */
int32_t sample_choose(const struct sample_row *row, const struct gen_params *p,
                      struct rng *rng, struct sample_scratch *s);

#endif
