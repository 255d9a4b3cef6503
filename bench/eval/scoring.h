/* scoring.h - how well a model with some cache predicts given tokens, and how
 * far its predictions are from those with the full cache.
 *
 * Runs are fed to the model together, in steps of bounded rows and logits.
 * For every predicted token:
 *
 *     nll   = -log q(token)
 *     kl    = sum over the vocabulary of p log(p / q)
 *     agree = argmax q == argmax p
 *     top1  = argmax q == token
 *
 * with q the model's distribution and p that of the reference: the same
 * tokens with the full cache. Sums are in double, a row each on one thread.
 *
 * Owns the logits of a step and the reference, n_vocab floats a row.
 *
 * Threads: one at a time; the work runs on the pool.
 */
#ifndef BENCH_EVAL_SCORING_H
#define BENCH_EVAL_SCORING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "runtime/model/model.h"

enum {
    SCORING_ROWS = 256,  /* of a step, and runs of a step at most */
    SCORING_LOGITS = 64, /* of them with logits */
};

struct scoring;

/* One sequence. ids[0] is fed at position pos; ids[first..n) are predicted,
 * first >= 1. The last token is not fed. RoPE has it `back` positions before
 * its place in the sequence: 0 but for a cache that model_reposition() has
 * moved together. */
struct scoring_run {
    struct table *table; /* grows by n - 1 entries in every list */
    struct probe *probe; /* NULL, or what watches it */
    const int32_t *ids;
    uint32_t n, first, pos, back;
};

struct scored {
    double nll, kl;
    int32_t best; /* argmax q */
    bool agree, top1;
};

/* On OK the caller owns *out. max_scored: predicted tokens of one call at most,
 * over all runs. Borrows model and workers; the model was loaded with
 * SCORING_ROWS rows and runs. ERR_NOMEM. */
MUST_CHECK enum err scoring_new(struct scoring **out, struct model *model,
                                struct workers *w, uint32_t max_scored,
                                struct errmsg *m);
void scoring_free(struct scoring *s); /* NULL is allowed */
uint64_t scoring_bytes(const struct model_info *info, uint32_t max_scored);

/* Feeds all ids of a run, whose predictions nobody wants; first is not read.
 * ERR_BUDGET: the pool of the table has too few free units. */
MUST_CHECK enum err scoring_feed(struct scoring *s,
                                 const struct scoring_run *run);

/* The same for several tables at once: of each run the ids before first - 1,
 * so that a scoring_run() from there predicts what is left. */
MUST_CHECK enum err scoring_feed_given(struct scoring *s,
                                       const struct scoring_run *run,
                                       uint32_t n_runs);

/* Scores all runs; out has a row for each predicted token, run after run.
 * is_reference: these are the predictions with the full cache, against which
 * later calls with the same tokens are compared. */
MUST_CHECK enum err scoring_score(struct scoring *s,
                                  const struct scoring_run *run,
                                  uint32_t n_runs, bool is_reference,
                                  struct scored *out);

#endif
