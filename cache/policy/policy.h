/* policy.h - which cache entries of a sequence are worth keeping: one
 * interface for every eviction method, the learned one and its baselines.
 *
 * A policy is a pure function: from what is known of a sequence (the view) to
 * one float an entry, higher stays, and a rule of how the budget is spread
 * over layers and heads. It owns no state and draws no random numbers but
 * from the seed it is given, so the same view gives the same scores.
 *
 * Two users:
 *   - `ebb eval` asks policy_keep() for a mask of what one pass over a prompt
 *     leaves, at B entries a head;
 *   - the server asks for scores layer by layer and stores what follows from
 *     them beside log_beta (standing.h), to rank with it now and while the
 *     session rests.
 *
 * All policies play by the same rules (docs/design, methods 4 and 8): B counts
 * everything that is kept; the first positions (sinks) and the last (recent)
 * stay under every policy; a method's own window is kept too where it is
 * longer than the recent ones; a list that holds no more than its budget is
 * left alone. On equal scores the later position stays, then the lower layer,
 * then the lower head (the order of cache/select.h).
 *
 * Threads: any; nothing is kept. policy_score() runs layers in parallel, with
 * the same bits for any number of threads.
 */
#ifndef CACHE_POLICY_POLICY_H
#define CACHE_POLICY_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/workers.h"

/* What a policy reads beside positions. A bit in `needs` says that the fields
 * of struct policy_list named here must be there. */
enum policy_need {
    POLICY_LOG_BETA = 1 << 0,    /* log_beta, of trained gates */
    POLICY_WINDOW = 1 << 1,      /* window */
    POLICY_PEAK = 1 << 2,        /* peak */
    POLICY_COLUMNS = 1 << 3,     /* column */
    POLICY_KEYS = 1 << 4,        /* key */
    POLICY_KEY_NORMS = 1 << 5,   /* key_norm */
    POLICY_VALUE_NORMS = 1 << 6, /* value_norm */
    POLICY_FUTURE = 1 << 7       /* future_mean, future_cov */
};

/* One (layer, KV head), its entries in order of position. G is the view's
 * group, d its head_dim, W its n_window. Pointers may be NULL where no policy
 * asked for them. */
struct policy_list {
    uint32_t n;         /* entries */
    uint64_t first;     /* where its entries start in arrays over all lists */
    const int32_t *pos; /* [n], ascending */
    const float *log_beta;   /* [n], <= 0 */
    const float *key;        /* [n][d], after RoPE, as stored */
    const float *key_norm;   /* [n], Euclidean */
    const float *value_norm; /* [n], Euclidean */
    /* [W][n]: attention of the last W queries, oldest first, to each entry:
     * softmax over all entries that the query sees, summed over the group; 0
     * for entries after the query. */
    const float *window;
    /* [W][n]: the largest logit of the group (scaled, with bias), -inf for
     * entries after the query. */
    const float *peak;
    /* [n]: attention of all queries so far, summed over rows and group. */
    const float *column;
    /* [G][d] mean and [G][d][d] covariance of the queries of the prompt, as
     * they would be rotated at positions to come (averaged over them). */
    const float *future_mean, *future_cov;
};

struct policy_view {
    uint32_t n_layers, n_kv_heads, group, head_dim;
    uint32_t n_seen;   /* tokens so far: all positions are below */
    uint32_t n_window; /* rows of window and peak, at most n_seen */
    const struct policy_list *list; /* [n_layers * n_kv_heads], layer-major */
    uint64_t n_entries;             /* over all lists */
};

/* How the budget of n_layers * n_kv_heads * B entries is shared out. */
enum policy_spread {
    POLICY_PER_HEAD,     /* every head of a layer the same number */
    POLICY_OVER_HEADS,   /* the heads of a layer share one number: one ranking,
                          * softened by floor_share (AdaKV) */
    POLICY_PER_LAYER,    /* the same positions in every head of a layer: the
                          * union of what the heads would keep, trimmed by the
                          * mean of their scores (SelKV) */
    POLICY_OVER_SEQUENCE /* one ranking over all layers and heads (DBTrimKV) */
};

enum policy_pooling {
    POLICY_POOL_MAX,
    POLICY_POOL_MEAN /* zeros beyond the ends count, as in PyTorch */
};

/* policy_defaults() gives those of a policy; copy and change. */
struct policy_params {
    /* B: entries a head, on average over the sequence; at least 1. */
    uint32_t n_entries;
    /* Positions that always stay: the first and the last. */
    uint32_t n_sinks, n_recent;
    /* Entries that POLICY_OVER_SEQUENCE leaves every head, at most B. */
    uint32_t min_head;
    uint64_t seed;
    /* Last queries that a method looks through, at most what the view has.
     * Where it keeps their entries too (not selkv-window) it is at most half
     * of B. tova and fastv look at one, whatever this is. */
    uint32_t n_window;
    /* Width of the pooling over neighbours in the list, odd; 1: none. */
    uint32_t n_pool;
    enum policy_pooling pooling;
    enum policy_spread spread;
    /* POLICY_OVER_HEADS: the part of the budget that every head gets
     * whatever its scores, 0 to 1. */
    float floor_share;
    /* Look-ahead of the retention score; 1: none. */
    uint32_t n_ahead;
    /* R-KV: the weight of importance, the rest is redundancy's. */
    float importance;
    /* PyramidKV: the last layer gets 1 / slope of the mean. */
    uint32_t slope;
    /* FastV: so many first layers keep everything. */
    uint32_t n_whole;
};

struct policy {
    const char *name;
    uint32_t needs; /* of enum policy_need */
    /* It can rank while the session generates, from the last n_window
     * queries or none. One that needs every query cannot. */
    bool at_decode;
    struct policy_params defaults; /* read by policy_defaults() */
    /* The rest is for cache/policy/ only.
     * Writes a score for each entry of a layer: score[list.first + i]. */
    enum err (*score)(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *score);
    /* The layer whose attention ranks that layer; NULL: its own. */
    uint32_t (*looks_at)(const struct policy_view *v,
                         const struct policy_params *p, uint32_t layer);
    /* Entries a head of that layer; NULL: n_entries. */
    uint32_t (*capacity)(const struct policy_view *v,
                         const struct policy_params *p, uint32_t layer);
    /* Last positions that the method itself keeps; NULL: none. */
    uint32_t (*recent)(const struct policy_view *v,
                       const struct policy_params *p);
};

/* NULL when no policy has that name. "exact" is none: it ranks nothing. */
const struct policy *policy_find(const char *name);
/* In the order of the documentation, NULL past the end. */
const struct policy *policy_at(uint32_t i);
/* All names, "streamingllm, random, ..."; for messages and help. */
const char *policy_names(void);

/* The parameters of a policy on a model with `group` query heads a KV head. One
 * set for all heads of a layer (POLICY_PER_LAYER) is what SelKV has where query
 * heads share KV heads; else each has its own (docs/design, algorithms 2).
 * n_entries is the caller's. */
struct policy_params policy_defaults(const struct policy *policy,
                                     uint32_t group);
/* From now on each head has a set of its own where there was one for a layer;
 * as many entries stay. */
void policy_set_per_head(struct policy_params *p);

/* ERR_UNSUPPORTED with a sentence naming the policy and what is missing, when
 * it needs something that is not in `has` (of enum policy_need), or can't run
 * at decode and is asked to. */
MUST_CHECK enum err policy_check(const struct policy *policy, uint32_t has,
                                 bool at_decode, struct errmsg *m);

/* Entries a head that the policy gives to a layer; over all layers they add
 * up to no more than n_layers * n_entries. */
uint32_t policy_capacity(const struct policy *policy,
                         const struct policy_view *v,
                         const struct policy_params *p, uint32_t layer);

/* Scores of all entries, score[v->n_entries], also of those that a method
 * always keeps now: they will not always be the newest. `w` may be NULL: then
 * on this thread alone. ERR_NOMEM leaves the scores undefined. */
MUST_CHECK enum err policy_score(const struct policy *policy,
                                 const struct policy_view *v,
                                 const struct policy_params *p,
                                 struct workers *w, float *score);

/* The same for the entries of one layer alone. What it needs must be there of
 * that layer and of policy_looks_at(); other lists may be empty. On this
 * thread. */
MUST_CHECK enum err policy_score_layer(const struct policy *policy,
                                       const struct policy_view *v,
                                       const struct policy_params *p,
                                       uint32_t layer, float *score);
uint32_t policy_looks_at(const struct policy *policy,
                         const struct policy_view *v,
                         const struct policy_params *p, uint32_t layer);

/* How many of the first and of the last positions always stay where `room`
 * entries of a list do: as many as asked for, or where that is more than `room`
 * sinks get at most half of it and the newest the rest. */
void policy_protected(uint32_t room, uint32_t *n_sinks, uint32_t *n_recent);

/* What stays of a sequence with these scores: keep[v->n_entries] becomes 0 or
 * 1. Protection and budget: as said above and by policy_protected(). Exactly
 * min(n, capacity) a list are kept under POLICY_PER_HEAD and POLICY_PER_LAYER,
 * and as many over a layer or the sequence under the others. POLICY_PER_LAYER
 * asks that the lists of a layer have the same positions. */
MUST_CHECK enum err policy_select(const struct policy *policy,
                                  const struct policy_view *v,
                                  const struct policy_params *p,
                                  const float *score, uint8_t *keep);

/* Both. */
MUST_CHECK enum err policy_keep(const struct policy *policy,
                                const struct policy_view *v,
                                const struct policy_params *p,
                                struct workers *w, uint8_t *keep);

#endif
