/* forget.h - the rules by which a session forgets: what a server is started
 * with, and what one request may ask for instead.
 *
 * Two questions are kept apart (docs/design, algorithms 2.1): a ranking says
 * who leaves, a fate what becomes of it.
 *
 * Threads: plain data.
 */
#ifndef RUNTIME_ENGINE_FORGET_H
#define RUNTIME_ENGINE_FORGET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct policy; /* cache/policy/policy.h */

/* Who leaves when memory is short. */
enum forget_policy {
    FORGET_EXACT,        /* nobody: wait, or be refused */
    FORGET_DBTRIMKV,     /* learned retention, one ranking over everything */
    FORGET_TRIMKV,       /* the same gates, equal shares for all heads */
    FORGET_STREAMINGLLM, /* the oldest, but for the sinks */
    /* By standings (rank.h), as docs/policies.md says. */
    FORGET_SELKV_WINDOW,
    FORGET_SNAPKV,
    FORGET_ADAKV,
    FORGET_PYRAMIDKV,
    FORGET_TOVA,
    FORGET_RKV,
    FORGET_KEYDIFF,
    FORGET_KNORM,
    FORGET_RANDOM,
    /* These rank prompts only, as the ranking of an admission. */
    FORGET_H2O,
    FORGET_EXPECTED_ATTENTION,
    FORGET_FASTV,
    FORGET_N_POLICIES,
    /* Rankings of an admission: as the policy of the same rules ranks, and
     * "retention". */
    FORGET_RANK_POLICY = FORGET_EXACT,
    FORGET_RANK_RETENTION = FORGET_DBTRIMKV
};

/* What becomes of it; the numbers are those of fate_at() (merge/fate.h). */
enum forget_fate {
    FORGET_DROP,  /* nothing */
    FORGET_MERGE, /* SelKV: its value lives on in an entry that stays */
    FORGET_LOOKM,
    FORGET_KVMERGER,
    FORGET_WEIGHTEDKV,
    FORGET_CAM,
    FORGET_N_FATES
};

struct forget_admission {
    bool off; /* "none": a prompt is never cut; it waits for room */
    enum forget_policy ranking; /* what leaves of a prompt beyond its share */
    enum forget_fate fate;
};

/* Of one session. Two sessions may share a beginning that has lost entries
 * only when these are equal. */
struct forget_rules {
    enum forget_policy policy;
    struct forget_admission admission;
    uint32_t session_tokens; /* cap: entries per list on average; 0: none */
};

/* What ranks the entries of a prompt, whatever the words for it; FORGET_EXACT:
 * none of them leaves. */
static inline enum forget_policy forget_ranking(const struct forget_rules *r)
{
    if (r->policy == FORGET_EXACT || r->admission.off)
        return FORGET_EXACT;
    return r->admission.ranking == FORGET_RANK_POLICY ? r->policy
                                                      : r->admission.ranking;
}

static inline bool forget_rules_equal(const struct forget_rules *a,
                                      const struct forget_rules *b)
{
    return a->policy == b->policy && a->session_tokens == b->session_tokens &&
           a->admission.off == b->admission.off &&
           forget_ranking(a) == forget_ranking(b) &&
           a->admission.fate == b->admission.fate;
}

/* Of the server. */
struct forget_options {
    struct forget_rules rules; /* of requests that say nothing */
    uint32_t min_head;         /* entries that every list keeps at least */
    uint32_t n_sinks;          /* first and */
    uint32_t n_recent;         /* newest positions that never leave */
    double idle_decay;         /* docs/design, algorithms 1.3 */
    bool unbounded_context;    /* re-position instead of ending */
    bool reposition;    /* what stays of a prompt, to positions without gaps */
    bool per_head_sets; /* also where a method has one set a layer */
    bool watch_columns; /* the attention of all tokens of a prompt, which some
                           fates need */
};

/* Token positions of the prompt that are never evicted. */
struct forget_span {
    uint32_t from, to; /* `to` is the first outside */
};

/* "exact", "dbtrimkv", ...; constant memory. */
const char *forget_policy_name(enum forget_policy p);

/* Its definition; NULL for exact. */
const struct policy *forget_policy_method(enum forget_policy p);

/* True if entries have a rank only after the policy was asked for it. */
bool forget_ranks_by_standing(enum forget_policy p);

/* The policy of that name that a session can have; "none" is another word for
 * exact. ERR_UNSUPPORTED: one that ranks prompts only; ERR_INVAL: nobody's
 * name. The sentence names those that there are. On error *out is as it was. */
MUST_CHECK enum err forget_policy_find(enum forget_policy *out,
                                       const char *name, struct errmsg *m);

/* "RANKING+FATE" or "none". A ranking is "retention" (dbtrimkv), "selkv"
 * (selkv-window), or any policy that forgets. Under FORGET_EXACT, which cuts
 * nothing, the name of any policy is accepted and means as little as "none".
 * Errors as above; ERR_UNSUPPORTED for what is not built. */
MUST_CHECK enum err forget_admission_find(struct forget_admission *out,
                                          const char *text,
                                          enum forget_policy policy,
                                          struct errmsg *m);

enum { FORGET_ADMISSION_MAX = 32 };
/* The text that forget_admission_find() reads as these rules' admission. */
void forget_admission_name(char out[FORGET_ADMISSION_MAX],
                           const struct forget_rules *r);

/* Whether a server can do what these rules say becomes of entries.
 * ERR_UNSUPPORTED: the fate needs what it does not watch; the sentence says
 * what that is. Under FORGET_EXACT nothing leaves, so any fate can be done. */
MUST_CHECK enum err forget_check_fate(const struct forget_options *o,
                                      const struct forget_rules *r,
                                      struct errmsg *m);
bool forget_fate_needs_columns(enum forget_fate f);

/* Can these rules only be kept with retention gates? */
bool forget_policy_needs_gates(enum forget_policy p);
bool forget_needs_gates(const struct forget_rules *r);

/* Is a prompt ranked by what all of its queries say? Then it is computed from
 * its first token on, and is no longer than the context. */
bool forget_studies_prompt(const struct forget_rules *r);

/* What a server does that was told nothing. are_tied: the scores of the gates
 * compare across heads (model_gates_are_tied()); where they do not, every head
 * ranks its own entries, in admission too. */
struct forget_rules forget_default_rules(bool has_gates, bool are_tied);

#endif
