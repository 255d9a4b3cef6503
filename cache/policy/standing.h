/* standing.h - what a policy says of the entries of a sequence, as one number
 * an entry.
 *
 * Scores of one head or layer say little about those of another, and a policy
 * gives each its own number of entries (enum policy_spread). The pass that
 * takes entries out of many sessions at once (cache/select.h) knows nothing of
 * that: it takes the lowest. So an entry gets
 *
 *     standing = -(entries that rank no lower, itself included) / n
 *
 * among the n entries that share one budget: those of its list, or of the
 * heads of its layer, or of the sequence. Whoever then takes the lowest takes
 * from all alike. And 1 less where a budget is known and the policy does not
 * keep the entry at it: these go first, and are all that goes when as many go
 * as the policy takes.
 *
 * Standings are from -2 up to, but not, 0, and mean the same under every
 * policy: one of -0.25 is in the best quarter.
 *
 * Threads: any; nothing is kept. The same bits for any number of threads.
 */
#ifndef CACHE_POLICY_STANDING_H
#define CACHE_POLICY_STANDING_H

#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "cache/policy/policy.h"

/* standing[v->n_entries] from the scores of policy_score() and what
 * policy_select() made of them, or keep NULL: no budget is known. Of the view
 * only positions are read. `w` may be NULL: then on this thread alone.
 * ERR_NOMEM leaves the standings undefined. */
MUST_CHECK enum err policy_standing(const struct policy_view *v,
                                    const struct policy_params *p,
                                    const float *score, const uint8_t *keep,
                                    struct workers *w, float *standing);

#endif
