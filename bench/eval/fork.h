/* fork.h - copies of a cache to try things on.
 *
 * A shared fork is cheap and can grow, but nothing can be taken out of it: its
 * units have two users. A deep copy has units of its own.
 *
 * Threads: one at a time.
 */
#ifndef BENCH_EVAL_FORK_H
#define BENCH_EVAL_FORK_H

#include <stdint.h>

#include "base/err.h"
#include "cache/table.h"

/* A table with capacity for max_tokens that holds copies of all entries of
 * src, in the same slots. ERR_BUDGET: the pool has too few free units. */
MUST_CHECK enum err fork_deep(struct table **out, const struct table *src,
                              uint32_t max_tokens);

/* A table that shares all entries of src, whatever was taken out of it. The
 * caller must not take anything out of src while the fork lives. */
MUST_CHECK enum err fork_shared(struct table **out, const struct table *src,
                                uint32_t max_tokens);

#endif
