/* schedule.h - how many prompt tokens the next step computes, and whose.
 *
 * A step decodes every running answer once; what is left of its time target
 * goes to prompts. How long a step takes is predicted by
 *
 *     us = fixed + row * rows + context * (sum over rows of their context)
 *
 * (reading the weights; arithmetic of a row; attention), whose three
 * constants are fitted to the last steps by weighted least squares. In
 * deterministic mode they stay what they are at start, so that a plan depends
 * on the requests alone.
 *
 * Among prompts the one with the least left goes first, but each counts the
 * tokens that others were given before it, and they are taken off what it has
 * left: a prompt of n tokens is passed by at most about n tokens of others,
 * so a long one is never starved by a stream of short ones.
 *
 * While something decodes, a prompt gets at least SCHEDULE_LEAST tokens a
 * step, also where the decodes alone pass the target: everybody advances.
 *
 * Threads: the engine thread only. No clock is read here.
 */
#ifndef RUNTIME_ENGINE_SCHEDULE_H
#define RUNTIME_ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    /* A whole number of KV units, as all chunks but the last of a prompt. */
    SCHEDULE_LEAST = 16,
    /* With nobody waiting for a token a step may be longer: bigger chunks are
     * faster. It still bounds how late a cancel is noticed. */
    SCHEDULE_ALONE_US = 120000
};

struct schedule_cost {
    double fixed_us, row_us, context_us;
    /* Decayed normal equations of the fit: products of the three features
     * with each other and with the measured time. */
    double xx[3][3], xy[3];
    uint64_t n_observed;
};

struct schedule {
    uint32_t max_rows;
    uint32_t target_us;
    bool deterministic;
    struct schedule_cost cost;
};

/* One prompt under way. */
struct schedule_prefill {
    uint32_t pos;    /* tokens that are stored already */
    uint32_t left;   /* tokens of the prompt that are not */
    uint64_t passed; /* tokens of others computed before it; kept for it */
    uint64_t order;  /* order of admission: decides ties */
    uint32_t take;   /* out: tokens in this step */
};

void schedule_init(struct schedule *s, uint32_t max_rows, uint32_t target_us,
                   bool deterministic);

/* What a step of that size is expected to take. */
double schedule_predict_us(const struct schedule *s, uint64_t rows,
                           uint64_t context);

/* Learns from a step that took `us`. Nothing when deterministic. */
void schedule_observe(struct schedule *s, uint64_t rows, uint64_t context,
                      double us);

/* Fills p[i]->take for the n prompts and updates their `passed`. n_decode
 * rows with decode_context entries to attend to are in the step already;
 * n_decode must not pass max_rows. Sorts p. */
void schedule_plan(struct schedule *s, uint32_t n_decode,
                   uint64_t decode_context, struct schedule_prefill **p,
                   uint32_t n);

/* Entries that n rows from position pos on attend to, all together. */
uint64_t schedule_context(uint32_t pos, uint32_t n);

#endif
