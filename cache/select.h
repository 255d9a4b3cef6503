/* select.h - which k entries leave: one ranking over all sessions, tenants,
 * layers and heads.
 *
 * A pass chooses exactly the entries that one would get by sorting all of
 * them and taking one after the other from the bottom, skipping those that
 * may not go at that moment (docs/design 1.3). Who leaves first:
 *
 *     the lower effective score (cache/score.h, rounded to float32); then the
 *     larger age; then the session created earlier, the higher layer, the
 *     higher head, the lower position.
 *
 * An entry may not go while its head holds no more than min_head entries, its
 * session no more than its floor, or its tenant no more than its floor (all
 * entries count there, those that can never go too); and never if it is one
 * of the first n_sinks or last n_recent positions of its session, is pinned,
 * lies in a unit with more than one user (or another number, if the session
 * says so: then it stands for all of them), or its session is to be kept.
 *
 * A pass has three stages, each that rule with a limit of its own:
 *   1. sessions above their cap give up what is above it, whatever k is; the
 *      idle part of the offset does not count here;
 *   2. so do tenants above theirs, among all their sessions;
 *   3. of all that is left the lowest go until k have gone in all three.
 *
 * How: scores become 32-bit keys, key and age one integer c; a histogram of c
 * for every session, cut off at what head, session and tenant may give, says
 * in which bucket each limit is reached. What is below goes, what is above
 * stays, and only that bucket is looked at again, finer, until nothing is left
 * but entries with equal c, which go in the order of their lists. Two sweeps
 * over the metadata in all but odd cases, linear in every case; no sort.
 *
 * The work can be done in slices. The result is that of one pass over the
 * state at select_begin(). Until the end lists may grow (but not those of a
 * session with n_users above 1) and be forked; a unit
 * that gets a second user meanwhile is left alone by cache/compact.h. But no
 * entry of a table in the pass may move or go: whoever must do that begins
 * again. A session may end: select_drop().
 *
 * Owns its scratch, allocated once. Threads: the engine thread calls; the
 * sweeps run on the compute pool, and the result is the same for any number
 * of threads and any slicing.
 */
#ifndef CACHE_SELECT_H
#define CACHE_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "cache/table.h"

struct select;

enum select_outcome {
    SELECT_MORE, /* call select_step() again */
    SELECT_DONE, /* k entries or more are chosen (caps may ask for more) */
    SELECT_STUCK /* all that may go is chosen, and it is fewer than k */
};

/* What the scratch is sized for: 2 bytes a unit, 16 bytes an undecided entry,
 * 8 KiB a session, 16 KiB a tenant (touched when used), 100 KiB a thread. */
struct select_size {
    uint32_t n_units;       /* of the pool */
    uint32_t max_sessions;  /* of one pass */
    uint32_t max_tenants;   /* of one pass */
    uint32_t max_lists;     /* of all sessions of one pass */
    uint32_t max_undecided; /* more cost more sweeps; 1/16 of all entries is
                             * plenty */
    uint32_t sample_rate;   /* one unit of so many is looked at to guess where
                             * the limit lies; 0: the usual 61 */
    int n_threads;          /* of the compute pool */
};

struct select_span {
    int32_t from, to; /* positions, `to` is the first outside */
};

/* What ranks the entries of one session. */
enum select_rank {
    SELECT_RETENTION, /* score.h with the stored log_beta */
    SELECT_RECENCY,   /* the same with log_beta -1 for all: score = -age */
    SELECT_STANDING   /* the stored standing itself, whatever the age */
};

struct select_session {
    const struct table *table;
    enum select_rank rank;
    const struct select_span *pin; /* never go */
    uint32_t n_pins;
    uint32_t tenant; /* index into the pass's tenants */
    uint32_t n_seen; /* its clock T: all positions are below, at most 2^31-2 */
    bool keep;       /* nothing of it may go: exact, or read by a step now */
    double offset;   /* score_offset() */
    double cap_offset; /* the same without the idle part */
    uint32_t n_users;  /* units with so many users may lose entries; 0: 1 */
    uint32_t users;    /* and, if that is more than 1, these: unit_users */
    uint32_t min_head; /* entries that each list keeps at least; 0: min_head of
                          the pass, which counts where it is more, too */
    uint64_t floor;    /* entries over all lists that it keeps at least */
    uint64_t cap;      /* entries over all lists; UINT64_MAX: none */
};

struct select_tenant {
    uint64_t floor, cap; /* entries over all its sessions; UINT64_MAX: none */
};

struct select_input {
    const struct pool *pool;
    const struct select_session *session; /* in order of creation */
    const struct select_tenant *tenant;
    const uint32_t *unit_users; /* [n_units] equal for units with the same
                                   users; NULL: their number says it */
    uint32_t n_sessions, n_tenants;
    uint64_t k;
    uint32_t min_head; /* entries that every list keeps at least */
    uint32_t n_sinks, n_recent;
    uint32_t n_ahead; /* look-ahead of the score, 1: none */
};

struct select_counts {
    uint64_t gone;   /* entries chosen */
    uint64_t capped; /* those of them that stages 1 and 2 took */
    uint64_t swept;  /* entries looked at, again and again: the work done */
};

/* On OK the caller owns *out; ERR_NOMEM else. */
MUST_CHECK enum err select_new(struct select **out,
                               const struct select_size *size);
void select_free(struct select *s); /* NULL is allowed */

/* Bytes that select_new() allocates. */
uint64_t select_bytes(const struct select_size *size);

/* Starts a pass; one that is under way is forgotten. `in` and what it points
 * to are borrowed until select_step() says something else than SELECT_MORE.
 * ERR_INVAL when it is larger than the size, or names no tenant. */
MUST_CHECK enum err
select_begin(struct select *s, const struct select_input *in, struct errmsg *m);

/* Works on about max_entries entries (a chunk of 65,536 or one list at
 * least), or to the end with UINT64_MAX. `w` has the size's n_threads; it may
 * be NULL where that is 1. */
enum select_outcome select_step(struct select *s, struct workers *w,
                                uint64_t max_entries);

/* Entries that are still to be looked at, if the guess of where the limit lies
 * is good: an estimate. */
uint64_t select_left(const struct select *s);

/* A session of the pass ends, before its units return to the pool: from now on
 * its table is not looked at. The result is that of a pass over the state at
 * select_begin() without it, since what is chosen of others would be chosen
 * then too, and they give what it would have given. That holds as long as its
 * tenant has no limits; false where it has: begin again. In the input the
 * session must say keep by then. After the outcome it only takes back what is
 * chosen of this session. */
bool select_drop(struct select *s, uint32_t i_session);

/* The result, complete when select_step() said DONE or STUCK, and valid until
 * the next select_begin(). */
struct select_counts select_counts(const struct select *s);
uint64_t select_session_gone(const struct select *s, uint32_t i_session);
uint32_t select_list_gone(const struct select *s, uint32_t i_session,
                          uint32_t i_list);
/* [n_units of the pool], by unit: bit e set: the entry in slot e goes. Zero
 * for all units that could not lose any. */
const uint16_t *select_gone(const struct select *s);
/* A unit returns to the pool before all that was chosen is gone: what comes to
 * lie there is not chosen. */
void select_unit_freed(struct select *s, unit_id u);

#endif
