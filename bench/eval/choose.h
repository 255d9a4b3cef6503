/* choose.h - which entries of a cache stay under a policy: the bridge from
 * the names on the command line to cache/policy/ and cache/select.h.
 *
 * `dbtrimkv` is chosen by the server's eviction pass; the others by the pure
 * functions of cache/policy/. Two choices are no policies: everything stays,
 * or nothing of the document does.
 *
 * Threads: one at a time; the work runs on the pool of threads.
 */
#ifndef BENCH_EVAL_CHOOSE_H
#define BENCH_EVAL_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "cache/policy/policy.h"
#include "cache/table.h"
#include "runtime/model/model.h"
#include "runtime/model/probe.h"

enum choice_kind {
    CHOICE_FULL,       /* "full" */
    CHOICE_NO_CONTEXT, /* "no-context" */
    CHOICE_PASS,       /* "dbtrimkv": cache/select.h */
    CHOICE_POLICY      /* cache/policy/ */
};

enum { CHOICE_NAME_MAX = 32 };

/* A policy with a budget: one cell of the table of results. */
struct choice {
    enum choice_kind kind;
    char name[CHOICE_NAME_MAX];
    const struct policy *policy; /* NULL for the first two kinds */
    double budget; /* of the entries; 1 for full, 0 for no-context */
    uint32_t n_sinks, n_recent, min_head;
    uint64_t seed;
};

/* Sets kind, name and policy. has: what is known of a sequence (of enum
 * policy_need). ERR_NOTFOUND: no such policy; the sentence has the nearest.
 * ERR_UNSUPPORTED: it needs more than `has`. */
MUST_CHECK enum err choice_find(struct choice *out, const char *name,
                                uint32_t has, struct errmsg *m);

bool choice_needs_gates(const struct choice *c);

/* Entries a head, on average, that a budget leaves of n. */
uint32_t choice_entries(double budget, uint32_t n);

/* What the policies of n choices need to know, of enum policy_need, and the
 * longest window that one of them looks through. */
uint32_t choice_needs(const struct choice *c, uint32_t n, uint32_t *n_window);

struct chooser;

struct chooser_size {
    struct pool *pool; /* that the tables belong to */
    struct workers *workers;
    const struct model *model;
    uint32_t max_tokens; /* of a table */
};

MUST_CHECK enum err chooser_new(struct chooser **out,
                                const struct chooser_size *size,
                                struct errmsg *m);
void chooser_free(struct chooser *c); /* NULL is allowed */

/* Looks at a sequence that has seen n_seen tokens: its cache, and the probe
 * that watched it (NULL: none did). needs: of enum policy_need. */
MUST_CHECK enum err chooser_look(struct chooser *c, const struct table *t,
                                 const struct probe *p, uint32_t n_seen,
                                 uint32_t needs);

/* Takes the entries out of that cache, or out of a deep copy of it, that the
 * choice (CHOICE_PASS or CHOICE_POLICY) does not keep when n_entries a head
 * stay on average. Its units are its own. */
MUST_CHECK enum err chooser_apply(struct chooser *c, const struct choice *how,
                                  uint32_t n_entries, struct table *t,
                                  struct errmsg *m);

#endif
