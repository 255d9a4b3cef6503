/* oracle.h - what the answers will look at: a control that knows what no policy
 * can know, and so shows how much room is left above the best of them.
 *
 * An entry's score is the attention that it gets, with the full cache, from all
 * queries that come after the compression: those of the right answers
 * (teacher-forced) and, in agnostic mode, of the questions (docs/design,
 * methods 7, has those of the answers alone: docs/decisions/policies.md).
 * Summed over rows and group, and over the questions that one cache has to
 * serve.
 *
 * Owns its memory, sized once. Threads: one at a time; the work runs on the
 * pool of threads.
 */
#ifndef BENCH_EVAL_ORACLE_H
#define BENCH_EVAL_ORACLE_H

#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "bench/eval/scoring.h"
#include "cache/policy/policy.h"
#include "runtime/model/model.h"

struct oracle;

struct oracle_size {
    struct model *model; /* borrowed, as are the workers */
    struct workers *workers;
    uint32_t max_tokens; /* positions that may be ranked */
    uint32_t n_states;   /* caches that are ranked side by side */
};

/* How its scores become a selection: one ranking over the sequence. It has no
 * scores of its own (they are oracle_masses), so policy_score() and
 * policy_keep() are not for it. */
const struct policy *oracle_policy(void);

/* On OK the caller owns *out. ERR_NOMEM. */
MUST_CHECK enum err oracle_new(struct oracle **out,
                               const struct oracle_size *size,
                               struct errmsg *m);
void oracle_free(struct oracle *o); /* NULL is allowed */
uint64_t oracle_bytes(const struct oracle_size *size);

/* Forgets what was seen: for the next document. */
void oracle_reset(struct oracle *o);

/* Feeds the run, a right answer (and its question, where that was not
 * compressed) on a fork of cache number i_state, and adds what it looks at.
 * ERR_BUDGET as scoring_feed(). */
MUST_CHECK enum err oracle_watch(struct oracle *o, uint32_t i_state,
                                 struct scoring *s,
                                 const struct scoring_run *run);

/* [n_layers * n_kv_heads][max_tokens], by position. */
const float *oracle_masses(const struct oracle *o, uint32_t i_state);

#endif
