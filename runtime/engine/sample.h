/* sample.h - from the logits of one position to one token.
 *
 * The order of the steps is vLLM's: logit bias, repetition penalty, frequency
 * and presence penalty, then (unless greedy) temperature, min_p, top_k, top_p
 * on what is left, and one draw from the rest.
 *
 * A result depends on seed, parameters, history and logits only: never on
 * what else runs, on threads, or on how often the scratch was used. Equal
 * logits are ranked by id, the lower one first. A token less likely than
 * e^-40 of the likeliest one is never drawn.
 *
 * Nothing is sorted: the maxima of small blocks of tokens leave out most of
 * the vocabulary, and in the rest top_k and top_p find their borders by a
 * radix descent over the bits of the scaled logits. For 152,000 tokens (EPYC,
 * one core, SSE2): greedy 50 us, top_k 90 us, neither top_k nor top_p 470 us.
 *
 * Logits that are not numbers count as minus infinity. Where no finite one is
 * left, the token is the caller's fallback: a broken model ends its own
 * answer and harms nothing else.
 *
 * Owns: a sampler owns its counts; a scratch owns its arrays. No allocation
 * happens in sampler_next(). Threads: one at a time per object; different
 * samplers may run at once with different scratches.
 */
#ifndef RUNTIME_ENGINE_SAMPLE_H
#define RUNTIME_ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/rng.h"
#include "runtime/engine/engine.h"

/* Working memory for one call at a time. */
struct sample_scratch;

MUST_CHECK enum err sample_scratch_new(struct sample_scratch **out,
                                       uint32_t n_vocab);
void sample_scratch_free(struct sample_scratch *s); /* NULL is allowed */
uint64_t sample_scratch_bytes(uint32_t n_vocab);    /* what one takes */

/* How often a token was generated; an entry without any is a prompt token. */
struct sample_count {
    int32_t token; /* -1: the slot is empty */
    uint32_t n;
};

struct sampler {
    struct gen_params params;
    const struct gen_bias *bias; /* borrowed */
    uint32_t n_bias;
    struct rng rng;
    struct sample_count *count; /* [mask + 1], NULL when nothing counts */
    uint32_t mask;
};

/* What the sampler must know of a request. */
struct sample_start {
    const struct gen_params *params;
    const struct gen_bias *bias; /* must outlive the sampler; ids < n_vocab */
    uint32_t n_bias;
    const int32_t *prompt; /* read now; ids in 0 to n_vocab - 1 */
    uint32_t n_prompt;
    uint32_t max_tokens; /* most that will be generated */
    uint32_t n_vocab;
    uint64_t seed; /* used unless params has one */
};

/* ERR_NOMEM leaves *s as one that sampler_fini() accepts. The memory is two
 * slots for each token that can differ, and only where a penalty is on. */
MUST_CHECK enum err sampler_init(struct sampler *s,
                                 const struct sample_start *start);
void sampler_fini(struct sampler *s); /* a zeroed one is allowed */

/* Chooses the next token and counts it. logits[n_vocab] are changed in place.
 * *is_bad (may be NULL) becomes true when no logit was finite and the
 * fallback was taken. Draws one random number unless greedy. */
int32_t sampler_next(struct sampler *s, float *logits, uint32_t n_vocab,
                     struct sample_scratch *scratch, int32_t fallback,
                     bool *is_bad);

#endif
