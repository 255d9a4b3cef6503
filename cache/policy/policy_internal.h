/* policy_internal.h - what the files behind policy.h share.
 *
 * policy.c   the table, and the loop over layers
 * keep.c     from scores to what stays: protection, budgets, ties
 * standing.c from scores to one number that ranks across lists (standing.h)
 * pool.c     pooling over neighbours
 * window.c   attention of the last queries
 * the rest   one policy a file
 */
#ifndef CACHE_POLICY_POLICY_INTERNAL_H
#define CACHE_POLICY_POLICY_INTERNAL_H

#include "cache/policy/policy.h"

/* In the order of the documentation. */
extern const struct policy policy_dbtrimkv;
extern const struct policy policy_trimkv;
extern const struct policy policy_selkv_window;
extern const struct policy policy_snapkv;
extern const struct policy policy_adakv;
extern const struct policy policy_pyramidkv;
extern const struct policy policy_h2o;
extern const struct policy policy_tova;
extern const struct policy policy_rkv;
extern const struct policy policy_streamingllm;
extern const struct policy policy_keydiff;
extern const struct policy policy_knorm;
extern const struct policy policy_expected_attention;
extern const struct policy policy_random;
extern const struct policy policy_fastv;

/* What every policy protects, docs/design/interface.md. */
enum { POLICY_SINKS = 4, POLICY_RECENT = 16 };

static inline const struct policy_list *
policy_list_at(const struct policy_view *v, uint32_t layer, uint32_t head)
{
    return &v->list[(size_t)layer * v->n_kv_heads + head];
}

/* The lists of a layer hold the same positions. */
bool policy_lists_are_alike(const struct policy_view *v, uint32_t layer);

/* Queries that a method looks through when it keeps their entries too: at
 * most half of the budget, so that something is left to choose. */
uint32_t policy_window(const struct policy_view *v,
                       const struct policy_params *p);

/* Entries of a list before the last n_window positions. */
uint32_t policy_prefix(const struct policy_view *v, const struct policy_list *l,
                       uint32_t n_window);

/* out[n]: attention of the last n_window queries to each of the first n
 * entries, summed over rows and group. */
void policy_window_sum(const struct policy_view *v, const struct policy_list *l,
                       uint32_t n_window, uint32_t n, float *out);

/* Entries [from, to), which a method does not rank, get the best score of
 * those before them, so that they still rank high when they are no longer the
 * newest. */
void policy_fill_rest(float *score, uint32_t from, uint32_t to);

/* Pooling of width p->n_pool over neighbours in the list, x[n] into out[n].
 * Beyond the ends there is nothing for the maximum, zeros for the mean. */
void policy_pool(const struct policy_params *p, const float *x, uint32_t n,
                 float *out);

/* Scores of a layer's entries: what the last query of layer `from` attended to
 * at their positions, on the average over all heads. ERR_NOMEM. */
enum err policy_last_query(const struct policy_view *v, uint32_t from,
                           uint32_t layer, struct arena *a, float *out);

#endif
