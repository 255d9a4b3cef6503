/* rank.h - what policies say of the entries of sessions.
 *
 * Learned retention and recency rank entries from their metadata, at any time.
 * All other policies (cache/policy/) look at keys, at values, and at what
 * queries attend to. They are asked when something is to leave a session, and
 * when it comes to rest; what they say is stored with each entry, its standing
 * (cache/policy/standing.h), and passes rank by that until they are asked
 * again.
 *
 * Queries are kept by probes (runtime/model/probe.h). One kind keeps the last
 * 32 of a session, there is one for each running session. The other kind also
 * keeps what all queries of a prompt add up to, which a few policies need that
 * can only rank prompts; it is large, so there is one, and such prompts wait
 * for each other. They share no cached beginning either: nobody kept what its
 * queries said. All probes are sized at start; memory that is never written
 * costs nothing.
 *
 * A ranking takes memory while it runs: about 40 bytes an entry, and for each
 * thread the keys (float32) or the attention rows of one layer.
 *
 * Owns its probes and views; borrows model, sessions and compute pool. Threads:
 * the engine thread only; it uses the compute pool, with the same bits for any
 * number of threads.
 */
#ifndef RUNTIME_ENGINE_RANK_H
#define RUNTIME_ENGINE_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "runtime/engine/lm.h"
#include "runtime/engine/session.h"

struct ranker;
struct ranking; /* a probe in use; a field of its session */

enum {
    /* While a session goes on, what was said of it is good for so many
     * tokens. */
    RANK_EVERY = 32
};

struct ranker_setup {
    const struct lm *lm; /* without a model nothing is ever ranked */
    struct workers *workers;
    const struct forget_options *options;
    uint32_t max_running;
    uint32_t max_context; /* tokens of a prompt */
};

/* On OK the caller owns *out; what the setup points to must outlive it. */
MUST_CHECK enum err ranker_new(struct ranker **out,
                               const struct ranker_setup *o);
void ranker_free(struct ranker *r); /* NULL is allowed */
/* Bytes of all probes; they exist from the start. */
uint64_t ranker_bytes(const struct ranker *r);

/* Last queries of a prompt by which its entries are ranked when it is cut; 0:
 * none. */
uint32_t ranker_window(const struct forget_rules *rules);

/* Whether a session with these rules can start: false while the one probe that
 * it needs is in use. */
bool ranker_can_begin(const struct ranker *r, const struct forget_rules *rules);

/* From now on the queries of s are kept, where its rules ask for that. It can
 * begin, and has computed nothing yet. */
void ranking_begin(struct ranker *r, struct session *s);

/* The prompt of s is read and has been cut: what was kept for that alone is
 * given back. */
void ranking_prompt_ends(struct ranker *r, struct session *s);

/* Nothing is kept any more. */
void ranking_end(struct ranker *r, struct session *s);

/* What the session's runs are computed with; may be NULL. */
struct probe *ranking_probe(const struct session *s);

/* The session's keys were turned to other positions: queries from before
 * cannot be compared with them any more. */
void ranking_moved(struct session *s);

/* True if what `by` said of s is not worth repeating. */
bool ranking_is_fresh(const struct session *s, enum forget_policy by);

/* How a session is ranked. */
struct ranking_wish {
    enum forget_policy by;
    uint64_t most; /* entries over all lists that are to stay; 0: not known */
    /* Shared units keep what was said of their entries. */
    bool only_private;
};

/* Asks a policy that ranks by standings (forget_ranks_by_standing()), and
 * stores what it says of every entry. *kept (may be NULL): entries that it
 * keeps of `most`, over all lists. False: what was said before stays as it is,
 * because there is no model, no query was kept, or the host has no memory. */
bool ranker_rank(struct ranker *r, struct session *s,
                 const struct ranking_wish *wish, uint64_t *kept);

#endif
