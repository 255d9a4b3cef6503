/* policy_internal.h - what the files behind policy.h share.
 *
 * policy.c   the table, and the loop over layers
 * keep.c     from scores to what stays: protection, budgets, ties
 * pool.c     pooling over neighbours
 * the rest   one policy a file
 */
#ifndef CACHE_POLICY_POLICY_INTERNAL_H
#define CACHE_POLICY_POLICY_INTERNAL_H

#include "cache/policy/policy.h"

extern const struct policy policy_dbtrimkv;
extern const struct policy policy_keydiff;
extern const struct policy policy_knorm;
extern const struct policy policy_random;
extern const struct policy policy_streamingllm;
extern const struct policy policy_trimkv;

/* What every policy protects, docs/design/interface.md. */
enum { POLICY_SINKS = 4, POLICY_RECENT = 16 };

static inline const struct policy_list *
policy_list_at(const struct policy_view *v, uint32_t layer, uint32_t head)
{
    return &v->list[(size_t)layer * v->n_kv_heads + head];
}

#endif
