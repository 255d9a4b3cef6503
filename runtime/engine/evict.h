/* evict.h - one eviction pass: from sessions to a selection and back.
 *
 * Two kinds of passes. One under pressure takes k entries from whoever
 * forgets, running or at rest. A cut takes from each session that has a limit
 * what is above it. Which entries go is decided by cache/select.h, and they go
 * by cache/compact.h.
 *
 * Policies that look at more than metadata are asked before entries leave a
 * running session (rank.h); what they said of one at rest holds.
 *
 * Retention scores can be compared between sessions, other rankings cannot.
 * So a pass under pressure splits k first: all sessions of the policy dbtrimkv
 * are one group, every other session is its own, and each group gives in
 * proportion to what it holds above its floors divided by its weight, rounded
 * by largest remainder (docs/design, algorithms 1.3). A session's share is a
 * cap and a floor at once for the selection. Weights, floors and caps of
 * sessions and tenants are those of session.h.
 *
 * Of a prompt that is being read such a pass chooses only how many entries
 * leave: which ones, and what becomes of them, is for the ranking and the fate
 * of prompts to say (evict_owed()). A squeeze takes them itself.
 *
 * A pass under pressure may be worked on in slices between steps, while
 * sessions come, go on and go to rest. One that ends, or whose entries are
 * moved or taken by others (session_listener), leaves it, and others give what
 * it would have given; the shares of groups stay what they were. When all is
 * chosen, what was chosen of it is let go with it. Where its tenant has limits
 * the pass is forgotten, and the caller begins another.
 *
 * Owns the scratch of the selection, sized at start; borrows sessions and
 * compute pool. Threads: the engine thread only; it uses the compute pool.
 */
#ifndef RUNTIME_ENGINE_EVICT_H
#define RUNTIME_ENGINE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "cache/select.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/rank.h"
#include "runtime/engine/session.h"
#include "runtime/engine/watch.h"

struct evict;

struct evict_setup {
    struct sessions *sessions;
    struct workers *workers; /* may be NULL */
    struct watches *watches; /* of prompts whose entries can be merged */
    struct ranker *ranker;   /* NULL: standings stay as they are */
    const struct forget_options *options;
    uint32_t max_sessions; /* running and at rest; or of a cut */
    bool only_cuts;        /* no passes under pressure: less memory */
};

/* A session and what it may hold; entries over all its lists. */
struct evict_limit {
    struct session *session;
    uint64_t most;
    enum engine_cause cause;
};

struct evict_result {
    uint64_t gone[ENGINE_N_CAUSES]; /* entries that left */
    /* Highest effective score of those that left under pressure by learned
     * retention; -INFINITY: none did. */
    double below;
    struct merge_counts merged; /* of those that left */
    int64_t merge_us;           /* that merging took; 0: there was none */
};

/* On OK the caller owns *out; the setup's objects must outlive it. */
MUST_CHECK enum err evict_new(struct evict **out, const struct evict_setup *o);
void evict_free(struct evict *e); /* NULL is allowed */

/* Bytes that evict_new() allocated. */
uint64_t evict_bytes(const struct evict *e);

/* Starts a pass that takes k entries. With `squeeze` nothing is split: it takes
 * whatever may go at all, for when a group cannot give its share. */
void evict_begin(struct evict *e, uint64_t k, bool squeeze);

/* True while a pass is under way whose state is still what it looked at. */
bool evict_is_under_way(const struct evict *e);

/* Looks at about max_looks entries or, when all is chosen, takes out of those
 * chosen what costs as much as moving max_takes entries, list by list. *r is
 * what went in this call. True when the pass has ended; it may have taken
 * nothing. */
bool evict_step(struct evict *e, uint64_t max_looks, uint64_t max_takes,
                struct evict_result *r);

/* Cuts that the last call of evict_step() leaves to its caller, for the cause
 * ENGINE_ADMISSION; returns how many. They hold until the next call, or until
 * their sessions change. */
uint32_t evict_owed(const struct evict *e, const struct evict_limit **out);

/* Steps that look at max_looks entries each until the pass that is under way
 * gives room, about. */
uint64_t evict_steps_left(const struct evict *e, uint64_t max_looks);

/* Starts a cut of the n sessions that evict_step() is to work on: nothing of
 * what it takes may be merged, or ranked by standings. A session that is_cut
 * gives nothing to passes under pressure. */
void evict_begin_cut(struct evict *e, const struct evict_limit *limit,
                     uint32_t n);
/* What is under way ends here. */
void evict_forget(struct evict *e);

/* Cuts the n sessions to their limits at once, as far as their floors, sinks,
 * newest entries and pins allow. A pass under way is forgotten. For the cause
 * ENGINE_ADMISSION the ranking of prompts decides, and what leaves a watched
 * session is merged where its rules say so. */
void evict_cut(struct evict *e, const struct evict_limit *limit, uint32_t n,
               struct evict_result *r);

/* The same for each list of one session by itself: no more than `most`
 * entries. What is shared stays. */
void evict_cut_lists(struct evict *e, struct session *s, uint32_t most,
                     enum engine_cause cause, struct evict_result *r);

/* s is about to rest: its policy says which of its entries are worth how much,
 * for the passes to come. A pass under way goes on without s. False: there was
 * nothing to ask. */
bool evict_rank(struct evict *e, struct session *s);

/* Takes about k entries, counted once, out of what several running sessions
 * share, for all of them: for when a squeeze finds nothing, and nothing is at
 * rest. What exact sessions or kept ones use stays. A pass under way is
 * forgotten. r->gone counts them for each session. */
void evict_shared(struct evict *e, uint64_t k, struct evict_result *r);

#endif
