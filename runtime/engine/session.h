/* session.h - token sequences whose keys and values are in the pool.
 *
 * A session is one sequence with its table. It is running while a request
 * works on it, and at rest afterwards: then it is only there to be shared or
 * continued, and is dropped when its room is needed, least recently used
 * first.
 *
 * Nothing that is shared is ever written (table.h), so a session never shows
 * what was done in another. One rule makes room exact as well: a running
 * session's unit that is still being filled is never shared. Else its next
 * token would have to copy that unit, and would need room that nobody
 * reserved. Such a match ends at the border of the unit before.
 *
 * Matching compares tokens, session by session. That is linear in the tokens
 * of all sessions, and these are bounded by the pool: a token there costs
 * kilobytes of keys and values, and 4 bytes here. Most comparisons end at
 * once, because a session that cannot beat the best match so far is left at
 * its first look: 33 sessions of 8,192 tokens, 8,000 of them in common, take
 * 7 microseconds (EPYC, one core), 1,000 sessions of 300 with 250 in common
 * as long.
 *
 * Accounting. Each unit counts how many running sessions use it; a used unit
 * without any belongs to sessions at rest alone ("prefix"). So always
 *
 *     used = live + prefix,      free + prefix = n_units - live - reserved
 *
 * and the right hand side is what dropping every session at rest could give.
 *
 * Owns sessions, their tokens and tables; borrows the pool. Threads: the
 * engine thread only.
 */
#ifndef RUNTIME_ENGINE_SESSION_H
#define RUNTIME_ENGINE_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/pool.h"
#include "cache/table.h"

struct session {
    struct session *next, *prev; /* in the list of its state */
    bool is_running;
    int32_t *token;    /* [n_known]; room for `cap` */
    uint32_t n_known;  /* prompt and answer as far as it is decided */
    uint32_t n_stored; /* of these, in the table */
    uint32_t cap;
    uint32_t reserved; /* units promised to it and not yet taken */
    struct table *table;
};

struct session_list {
    struct session *first, *last;
    uint32_t n;
};

struct sessions {
    struct pool *pool;
    uint32_t n_layers, n_kv_heads;
    struct session_list running;
    struct session_list rest; /* least recently used first */
    uint32_t *live_refs;      /* [n_units] running sessions that use a unit */
    uint64_t n_prefix;        /* units that sessions at rest alone use */
    uint64_t n_entries;       /* entries of all sessions, shared ones counted
                                 for each */
};

MUST_CHECK enum err sessions_init(struct sessions *ss, struct pool *pool,
                                  uint32_t n_layers, uint32_t n_kv_heads);
void sessions_fini(struct sessions *ss); /* drops them all, running ones too */

uint32_t sessions_n_lists(const struct sessions *ss);

/* Units that dropping every session at rest would leave for reservations. */
uint64_t sessions_room(const struct sessions *ss);

struct session_match {
    struct session *from; /* NULL: nothing to share */
    uint32_t n_tokens;    /* the first so many are shared */
    /* A running session that is still computing a prompt which agrees for
     * longer; NULL where none does. */
    struct session *ahead;
    uint32_t n_ahead; /* tokens that could be shared with it in the end */
};

/* The longest sharable prefix of token[0..n), at most n - 1 tokens, since the
 * last one must be computed to have something to answer from. Of equally long
 * ones a session at rest is preferred, then the most recently used. */
struct session_match sessions_match(const struct sessions *ss,
                                    const int32_t *token, uint32_t n);

/* A running session with the n prompt tokens as its known ones, of which the
 * first n_shared come from `from` (NULL when 0), and room for `cap` tokens.
 * Takes no units and reserves none. ERR_NOMEM changes nothing. */
struct session_start {
    struct session *from;
    uint32_t n_shared;
    const int32_t *token;
    uint32_t n, cap;
};
MUST_CHECK enum err session_new(struct sessions *ss, struct session **out,
                                const struct session_start *start);

/* Reserves what the session needs until it has all of `cap` tokens, dropping
 * sessions at rest as needed (`spare` last; it may be NULL). Drops nothing
 * when that would not be enough. Returns ERR_BUDGET then. Adds to *n_dropped.
 */
MUST_CHECK enum err session_reserve(struct sessions *ss, struct session *s,
                                    const struct session *spare,
                                    uint64_t *n_dropped);

/* Lengthens the table by n tokens that are known but not stored, taking units
 * from the session's reservation. */
void session_append(struct sessions *ss, struct session *s, uint32_t n);

/* Adds a decided token. There must be room. */
void session_push(struct session *s, int32_t token);

/* The work on a running session has ended. It goes to rest with what is
 * stored and gives back what is reserved; it goes for good when nothing is
 * stored or when another session at rest begins with the same tokens.
 * Sessions at rest that it begins with are dropped in turn. */
void session_rest(struct sessions *ss, struct session *s);

/* Drops sessions at rest whose whole history s has stored. */
void session_absorb(struct sessions *ss, const struct session *s);

/* Frees a session in any state. */
void session_drop(struct sessions *ss, struct session *s);

#endif
