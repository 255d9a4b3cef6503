/* session.h - token sequences whose keys and values are in the pool.
 *
 * A session is one sequence with its table. It is running while a request
 * works on it, and at rest afterwards: then it is only there to be shared or
 * continued, and makes room when others need it.
 *
 * Two kinds, by the rules it was started with (forget.h). One that is exact
 * never loses an entry: running, it has reserved all that it will need. One
 * that forgets reserves only what its next step takes, and has a guarantee:
 * so many units are its own whatever the others do, enough to go on with when
 * it has forgotten all that may go. Entries that were taken out of it are
 * counted (n_lost); its logical length never shows them.
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
 * as long. Where sessions have lost entries, equally long beginnings are told
 * apart by counting what is left of them, and a count is kept.
 *
 * Accounting. Each unit counts how many running sessions use it, and how many
 * of them are exact; a used unit without any belongs to sessions at rest alone
 * ("prefix"). What running sessions may need at any time is promised:
 *
 *     promised = units of exact ones, used and reserved + guarantees
 *                (+ room for one chunk of a prompt, where there are any)
 *                + what is kept beside entries of prompts (watch.h)
 *     room     = n_units - promised
 *
 * A request starts only when room covers what it is promised. All else in the
 * pool can be had: by forgetting, and by dropping sessions at rest.
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
#include "cache/select.h"
#include "cache/table.h"
#include "runtime/engine/forget.h"

struct watch;   /* watch.h */
struct ranking; /* rank.h */

/* Who owns sessions. Weight and limits of it count for all of them together
 * (docs/design, algorithms 1.3). Entries of exact ones count, too. */
struct session_tenant {
    double weight;       /* of its entries in the ranking, and of its share */
    uint64_t floor, cap; /* entries; UINT64_MAX: no cap */
};

/* What matching found out about the entries below a position: all of them
 * must be looked at, and chats that begin alike are asked for the same again
 * and again. Holds as long as the session has stored and lost what it had. */
struct session_below {
    uint32_t pos, n_stored;
    uint64_t n_lost;
    uint64_t n_entries;
    bool is_like_new, is_judged; /* session_match.c; judged: it is known */
};

struct session {
    struct session *next, *prev;   /* in the list of its state */
    struct session *newer, *older; /* of all, in order of creation */
    bool is_running;
    bool is_kept;      /* nothing may be taken from it for now */
    bool is_cut;       /* but by the one who is cutting it; computes nothing */
    bool is_read;      /* its prompt, in chunks: what leaves it is admission */
    int32_t *token;    /* [n_known]; room for `cap` */
    uint32_t n_known;  /* prompt and answer as far as it is decided */
    uint32_t n_stored; /* of these, in the table */
    uint32_t cap;
    uint32_t rope;      /* RoPE position of the next token; n_stored until the
                           session      is re-positioned, less from then on */
    uint32_t goal;      /* tokens that the reservation lasts for */
    uint32_t reserved;  /* units it has reserved and not yet taken */
    uint32_t guarantee; /* units; 0: exact, or at rest */
    uint64_t n_lost;    /* entries of the n_stored tokens that are gone */
    uint32_t lost_at;   /* n_stored when the last of them went */
    uint64_t n_merged;  /* of these: live on inside others */
    uint64_t n_routed;  /* of these: found one that might take them in */
    float merge_log_ratio; /* largest log R of its merges */
    int64_t merge_us;      /* its part of the time that merges took */
    /* All that live on, and those in which they do, are at positions below.
     * Rolled back to less, n_merged and n_routed are what they can be at most.
     */
    uint32_t merged_below;
    uint64_t used_at; /* sessions.clock when it came to rest */
    struct forget_rules rules;
    uint32_t tenant; /* index into the tenants */
    double weight;   /* in its tenant */
    /* Entries that no pass takes. What is promised does not cover it: where
     * floors could add up to more than can be had, room must be promised
     * first. */
    uint64_t floor;
    struct select_span *pin; /* [n_pins] positions that never leave */
    uint32_t n_pins;
    struct table *table;
    uint32_t *n_counted; /* [n_lists] entries that n_held knows of */
    struct watch *watch; /* while its prompt is admitted, or NULL */
    struct session_below below;
    struct ranking *ranking; /* while it runs, or NULL */
    /* Who gave its entries their standings, and n_stored then. */
    enum forget_policy ranked_by;
    uint32_t ranked_at;
};

/* True if all that it has stored is there as it was computed: then it serves
 * anybody. Of a re-positioned session a beginning may be complete, but its
 * keys are turned. */
static inline bool session_is_pristine(const struct session *s)
{
    return s->n_lost == 0 && s->rope == s->n_stored;
}

struct session_list {
    struct session *first, *last;
    uint32_t n;
};

/* Told before a session goes, or before it gives back units of entries that
 * moved or were taken: whoever looks at tables over several steps leaves it
 * out from then on. fn NULL: nobody. */
struct session_listener {
    void (*fn)(void *user, const struct session *s);
    void *user;
};
enum { SESSION_LISTENERS = 4 };

struct sessions {
    struct pool *pool;
    uint32_t n_layers, n_kv_heads;
    struct session_tenant *tenant; /* [n_tenants] */
    uint32_t n_tenants;
    struct session_list running;
    struct session_list rest; /* least recently used first */
    struct session *oldest, *newest;
    uint32_t *live_refs;  /* [n_units] running sessions that use a unit */
    uint32_t *exact_refs; /* [n_units] those of them that are exact */
    uint8_t *seen;        /* [n_units] most slots that a session sees of it */
    uint32_t *seen_by;    /* [n_units] sessions that see so many */
    uint64_t n_prefix;    /* units that sessions at rest alone use */
    uint64_t n_exact;     /* units that running exact sessions use */
    uint64_t n_reserved;  /* units that these have reserved */
    uint64_t n_guaranteed;
    uint64_t n_watch;     /* units reserved for what is kept beside entries */
    uint64_t chunk_units; /* of one chunk of a prompt; set by the engine */
    uint64_t n_entries;   /* entries of all sessions, shared ones counted
                             for each */
    uint64_t n_held;      /* each once (session_views.h) */
    uint64_t n_lost;      /* the sum of what sessions have lost */
    uint64_t clock;       /* tokens that the server has processed */
    struct session_listener listener[SESSION_LISTENERS];
};

MUST_CHECK enum err sessions_init(struct sessions *ss, struct pool *pool,
                                  uint32_t n_layers, uint32_t n_kv_heads);
void sessions_fini(struct sessions *ss); /* drops them all, running ones too */

/* Copies them; without this there is one, of weight 1 and without limits. Not
 * while there are sessions or passes (evict.h). ERR_NOMEM changes nothing. */
MUST_CHECK enum err sessions_set_tenants(struct sessions *ss,
                                         const struct session_tenant *tenant,
                                         uint32_t n);

/* At most SESSION_LISTENERS at a time, told apart by `user`. */
void sessions_listen(struct sessions *ss, struct session_listener l);
void sessions_unlisten(struct sessions *ss, const void *user);
/* Tells them of s. */
void sessions_tell(const struct sessions *ss, const struct session *s);

uint32_t sessions_n_lists(const struct sessions *ss);

/* Units that running sessions may need at any time; and those of the pool that
 * are promised to nobody. */
uint64_t sessions_promised(const struct sessions *ss);
uint64_t sessions_room(const struct sessions *ss);

static inline bool session_forgets(const struct session *s)
{
    return s->rules.policy != FORGET_EXACT;
}

/* Entries over all lists. */
static inline uint64_t session_n_entries(const struct session *s)
{
    return (uint64_t)s->n_stored * s->table->n_layers * s->table->n_kv_heads -
           s->n_lost;
}

/* Its own in its tenant's. */
static inline double session_weight(const struct sessions *ss,
                                    const struct session *s)
{
    return s->weight * ss->tenant[s->tenant].weight;
}

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
 * ones that which retains more, then a session at rest, then the most recently
 * used.
 *
 * A session that has lost entries matches only at rest and under equal rules.
 * Rolled back to a length at which it had lost them all, it is what it was
 * then. To a shorter one only where it still holds about what it would hold
 * had it read no further: what made room for later tokens is not what the
 * beginning alone would have lost. What the request pins must be there in any
 * case. Where entries were merged a match ends at the border of a bucket
 * (merge/merge.h), if the fate merges inside buckets only, and else not before
 * the end of what was merged: a text that is rolled back must not live on in a
 * value.
 *
 * A request with a cap shares no more than the cap with sessions that stay:
 * what is shared is not taken out of one of its users. */
struct session_wish {
    const int32_t *token;
    uint32_t n;
    const struct forget_rules *rules;
    const struct forget_options *options;
    const struct forget_span *pin; /* ascending, disjoint */
    uint32_t n_pins;
    /* Its last tokens that no history without losses may serve, though it has
     * them: nobody kept what their queries said. */
    uint32_t n_fresh;
};
struct session_match sessions_match(const struct sessions *ss,
                                    const struct session_wish *wish);

/* A running session with the n prompt tokens as its known ones, of which the
 * first n_shared come from `from` (NULL when 0), and room for `cap` tokens.
 * What was lost of these stays lost. Takes session_fork_units() reserved units
 * and reserves none; `guarantee`, for one that forgets, is promised from now
 * on, and a little more where it shares with running ones. Pins are copied.
 * ERR_NOMEM changes nothing. */
struct session_start {
    struct session *from;
    uint32_t n_shared;
    const int32_t *token;
    uint32_t n, cap;
    uint32_t max_entries; /* of each list; 0: cap */
    struct forget_rules rules;
    const struct forget_span *pin;
    uint32_t n_pins;
    uint32_t guarantee;
    uint32_t tenant;
    double weight; /* 0: 1 */
    uint64_t floor;
};
MUST_CHECK enum err session_new(struct sessions *ss, struct session **out,
                                const struct session_start *start);

/* Entries that its lists hold beyond min_head each, and no more than it holds
 * beyond its own floor. */
uint64_t session_above(const struct session *s, uint32_t min_head);

/* The end of the first n tokens in its table. */
static inline uint32_t session_pos(const struct session *from, uint32_t n)
{
    return n >= from->n_stored ? TABLE_ALL : n;
}

/* Units that sharing the first n tokens takes: none of a session that has lost
 * nothing. */
static inline uint64_t session_fork_units(const struct session *from,
                                          uint32_t n)
{
    return n > 0 ? table_fork_units(from->table, session_pos(from, n)) : 0;
}

/* Units that are still to be reserved for the session to have n tokens. */
uint64_t session_missing(const struct session *s, uint32_t n);

/* True if an exact session can have `cap` tokens when others forget all that
 * they may and nothing is at rest any more. */
bool session_can_fit(const struct sessions *ss, const struct session *s);

/* Reserves what the session needs until it has n tokens, no fewer than it has
 * stored; what it has reserved beyond that it gives back. ERR_BUDGET changes
 * nothing: that much is not free. */
MUST_CHECK enum err session_reserve(struct sessions *ss, struct session *s,
                                    uint32_t n);

/* Lengthens the table by n tokens that are known but not stored, taking units
 * from the session's reservation. */
void session_append(struct sessions *ss, struct session *s, uint32_t n);

/* n entries went from list i_list by compact_move(): returns the units past
 * its end to the pool. After the last list comes session_settle(). */
void session_shrink(struct sessions *ss, struct session *s, uint32_t i_list,
                    uint32_t n);

/* Around compact_shared() on a list of several running sessions: for each
 * user, before and after. n entries went from it. */
void session_unmark_list(struct sessions *ss, const struct session *s,
                         uint32_t i_list);
void session_mark_list(struct sessions *ss, struct session *s, uint32_t i_list,
                       uint32_t n);

/* Makes a reservation right after compaction. Where its lists end in shared
 * units now, the session may need more than it gave back; if that is not free
 * the reservation ends. */
void session_settle(struct sessions *ss, struct session *s);

/* The first unit of a running session that others use too; false: none is. And
 * its replacement by a copy, which takes one reserved unit. */
bool session_find_shared(const struct session *s, uint32_t *i_list,
                         uint32_t *i_unit);
void session_own_unit(struct sessions *ss, struct session *s, uint32_t i_list,
                      uint32_t i_unit);

/* Adds a decided token. There must be room. */
void session_push(struct session *s, int32_t token);

/* The work on a running session has ended. It goes to rest with what is
 * stored and gives back what is reserved; it goes for good when nothing is
 * stored or when another session at rest can replace it. Sessions at rest
 * that it can replace are dropped in turn. */
void session_rest(struct sessions *ss, struct session *s);

/* A session at rest goes back to its first n tokens, fewer than it has: what it
 * held of the others leaves, what it had lost of these stays lost. Takes
 * reserved units for copies of shared ones in which gaps close: at most
 * table_truncate_units(), and returns how many. */
uint64_t session_roll_back(struct sessions *ss, struct session *s, uint32_t n);

/* Drops sessions at rest that s can replace: it has stored their whole
 * history, and whoever may use them may use it. */
void session_absorb(struct sessions *ss, const struct session *s);

/* Frees a session in any state. */
void session_drop(struct sessions *ss, struct session *s);

#endif
