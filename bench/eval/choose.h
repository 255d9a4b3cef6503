/* choose.h - takes out of a cache what a choice does not keep.
 *
 * What `dbtrimkv` keeps is chosen by the server's eviction pass, for the
 * others by the pure functions of cache/policy/, and for `oracle` by what the
 * answers will look at (oracle.h). Before the rest is taken out the fate of the
 * choice may merge it into what stays (merging.h).
 *
 * Threads: one at a time; the work runs on the pool of threads.
 */
#ifndef BENCH_EVAL_CHOOSE_H
#define BENCH_EVAL_CHOOSE_H

#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "bench/eval/choice.h"
#include "cache/table.h"
#include "runtime/model/model.h"
#include "runtime/model/probe.h"

struct chooser;

struct chooser_size {
    struct pool *pool; /* that the tables belong to */
    struct workers *workers;
    const struct model *model;
    uint32_t max_tokens; /* of a table */
    uint32_t n_looks;    /* sequences that are looked at side by side */
};

/* On OK the caller owns *out; what `size` points to is borrowed. ERR_NOMEM. */
MUST_CHECK enum err chooser_new(struct chooser **out,
                                const struct chooser_size *size,
                                struct errmsg *m);
void chooser_free(struct chooser *c); /* NULL is allowed */

/* A sequence that has seen n_seen tokens: its cache, the probe that watched it
 * (NULL: none did), and oracle_masses() of max_tokens positions (NULL: nobody
 * asks for `oracle`). All must stay as they are as long as
 * chooser_look() and chooser_apply() are called for it. */
struct chooser_subject {
    const struct table *table;
    const struct probe *probe;
    uint32_t n_seen;
    const float *oracle;
};

/* Looks at a sequence, number i of n_looks, for chooser_apply(). needs: of
 * enum policy_need. What was seen of number i is not read again until
 * chooser_forget(), if it holds all that is needed; else `needs` takes its
 * place. */
MUST_CHECK enum err chooser_look(struct chooser *c, uint32_t i,
                                 const struct chooser_subject *of,
                                 uint32_t needs);

/* Forgets all that was seen: the sequences are others from now on. */
void chooser_forget(struct chooser *c);

/* Takes the entries out of the cache looked at last (which is then to be
 * forgotten), or out of a deep copy of it, that the choice (one with
 * a policy) does not keep when n_entries a head stay on average. Its units
 * are its own. What the fate has done is added to *counts; a probe with what it
 * needs has watched. */
MUST_CHECK enum err chooser_apply(struct chooser *c, const struct choice *how,
                                  uint32_t n_entries, struct table *t,
                                  struct merge_counts *counts,
                                  struct errmsg *m);

#endif
