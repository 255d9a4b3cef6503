/* choice.h - what is compared: a policy, what becomes of the entries that it
 * does not keep, and a budget; from the names on the command line.
 *
 *     full, no-context                 the two ends of the scale
 *     oracle                           what knows the answers (oracle.h)
 *     keydiff                          what leaves is dropped
 *     keydiff+merge                    and here merged (a fate of merge/)
 *     keydiff+merge:alpha=0            with other settings than the server's
 *     keydiff:reposition               what stays is moved together
 *     selkv-window:per-head-sets       not one set for a layer
 *
 * A ranking may have the server's name for it: `retention` is dbtrimkv,
 * `selkv` is selkv-window, `exact` (or `none`) is full. `+drop` is the policy
 * alone, `+selkv` is `+merge`: the name of a choice is always the one form.
 * Settings are the server's options --merge-*, --reposition and
 * --per-head-sets, with their ranges; a fate has those that are about it, and
 * so has a policy, before the fate.
 *
 * Threads: any; plain data.
 */
#ifndef BENCH_EVAL_CHOICE_H
#define BENCH_EVAL_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/policy/policy.h"
#include "config/config.h"
#include "merge/fate.h"
#include "merge/merge.h"

enum choice_kind {
    CHOICE_FULL,       /* "full" */
    CHOICE_NO_CONTEXT, /* "no-context" */
    CHOICE_ORACLE,     /* "oracle" */
    CHOICE_PASS,       /* "dbtrimkv": cache/select.h */
    CHOICE_POLICY      /* cache/policy/ */
};

enum { CHOICE_NAME_MAX = 128, CHOICES_MAX = 256 };

/* One cell of the table of results. */
struct choice {
    enum choice_kind kind;
    char name[CHOICE_NAME_MAX];
    const struct policy *policy; /* NULL for the first two kinds */
    const struct fate *fate;     /* NULL: what leaves is dropped */
    struct merge_options merge;  /* of the fate */
    bool per_head_sets;          /* each head keeps entries of its own */
    bool reposition;             /* what stays, to positions without gaps */
    double budget; /* of the entries; 1 for full, 0 for no-context */
    uint32_t n_sinks, n_recent, min_head;
    uint64_t seed;
};

/* Sets kind, name, policy, fate and their settings. has: what is known of a
 * sequence (of enum policy_need). ERR_NOTFOUND: no such policy or fate; the
 * sentence has the nearest. ERR_UNSUPPORTED: it needs more than `has`.
 * ERR_INVAL: a setting is wrong, or there can be no fate. */
MUST_CHECK enum err choice_find(struct choice *out, const char *name,
                                uint32_t has, struct errmsg *m);

bool choice_needs_gates(const struct choice *c);

/* One of those that are compared: not one that keeps everything or nothing, or
 * knows the answers. */
bool choice_competes(const struct choice *c);

/* Two that keep the same entries. */
bool choice_same_kept(const struct choice *a, const struct choice *b);

/* Entries a head, on average, that a budget leaves of n. */
uint32_t choice_entries(double budget, uint32_t n);

struct choices {
    struct choice choice[CHOICES_MAX];
    uint32_t n;
    char against[CHOICE_NAME_MAX]; /* its usual name; "": none */
};

struct choices_input {
    const struct config_list *policy; /* names; none: all that can be had */
    const struct config_list *budget; /* shares, as text */
    const char *against;              /* one that must be among them, or NULL */
    struct choice like;               /* settings of all */
    uint32_t has;                     /* of enum policy_need */
};

/* Every policy with every budget; none of them may be there twice. With a fate
 * comes the policy alone, which it is compared with; "full" always comes.
 * ERR_INVAL and those of choice_find(); the sentence names the option. */
MUST_CHECK enum err choices_read(struct choices *out,
                                 const struct choices_input *in,
                                 struct errmsg *m);

/* What has to be known of a sequence. */
struct choices_needs {
    uint32_t view;     /* of enum policy_need: for the policies */
    uint32_t fate;     /* of enum fate_need */
    bool answers;      /* for the oracle */
    uint32_t n_window; /* last queries that somebody looks through */
};

struct choices_needs choices_needs(const struct choices *c);

#endif
