#include "runtime/engine/forget.h"

#include <stdio.h>
#include <string.h>

#include "cache/policy/policy.h"
#include "merge/fate.h"

/* In the order of enum forget_policy. */
static const char *const names[FORGET_N_POLICIES] = {
    "exact",   "dbtrimkv", "trimkv",    "streamingllm", "selkv-window",
    "snapkv",  "adakv",    "pyramidkv", "tova",         "r-kv",
    "keydiff", "knorm",    "random",    "h2o",          "expected-attention",
    "fastv"};

#define POLICIES                                                               \
    "exact (or none), dbtrimkv, trimkv, streamingllm, selkv-window, snapkv, "  \
    "adakv, pyramidkv, tova, r-kv, keydiff, knorm and random"
#define ADMISSIONS                                                             \
    "none, and retention, selkv, h2o, expected-attention, fastv or the name "  \
    "of a policy with +drop, +merge or another fate"
#define FATES "drop, merge (selkv), lookm, kvmerger, weightedkv and cam"

/* FORGET_N_POLICIES: there is none of that name. */
static enum forget_policy find(const char *name)
{
    int i = 0;
    while (i < FORGET_N_POLICIES && strcmp(names[i], name) != 0)
        i++;
    return (enum forget_policy)i;
}

const char *forget_policy_name(enum forget_policy p)
{
    return (unsigned)p < FORGET_N_POLICIES ? names[p] : "unknown";
}

const struct policy *forget_policy_method(enum forget_policy p)
{
    return policy_find(forget_policy_name(p));
}

bool forget_ranks_by_standing(enum forget_policy p)
{
    return p >= FORGET_SELKV_WINDOW;
}

enum err forget_policy_find(enum forget_policy *out, const char *name,
                            struct errmsg *m)
{
    enum forget_policy p =
        strcmp(name, "none") == 0 ? FORGET_EXACT : find(name);
    if (p == FORGET_N_POLICIES)
        return err_set(m, ERR_INVAL,
                       "'%.40s' is no policy; there are " POLICIES, name);
    struct errmsg why;
    if (p != FORGET_EXACT &&
        policy_check(forget_policy_method(p), UINT32_MAX, true, &why) != OK)
        return err_set(m, ERR_UNSUPPORTED,
                       "%s; it can be the ranking of an admission (%s+drop), "
                       "and as policies there are " POLICIES,
                       why.text, name);
    *out = p;
    return OK;
}

static enum err find_ranking(enum forget_policy *out, const char *name,
                             enum forget_policy policy, struct errmsg *m)
{
    enum forget_policy p = strcmp(name, "retention") == 0 ? FORGET_DBTRIMKV
                           : strcmp(name, "selkv") == 0   ? FORGET_SELKV_WINDOW
                                                          : find(name);
    /* Under exact nothing is cut, so any of them says nothing. */
    if (p == FORGET_N_POLICIES || (p == FORGET_EXACT && policy != FORGET_EXACT))
        return err_set(m, ERR_INVAL,
                       "'%.40s' is no ranking; there are " ADMISSIONS, name);
    *out = p;
    return OK;
}

static enum err find_fate(enum forget_fate *out, const char *name,
                          struct errmsg *m)
{
    const struct fate *f = fate_find(name);
    uint32_t i = 0;
    if (!f)
        return err_set(m, ERR_INVAL, "'%.40s' is no fate; there are " FATES,
                       name);
    while (fate_at(i) != f)
        i++;
    *out = (enum forget_fate)i;
    return OK;
}

bool forget_fate_needs_columns(enum forget_fate f)
{
    return fate_at(f)->needs & FATE_COLUMN;
}

enum err forget_check_fate(const struct forget_options *o,
                           const struct forget_rules *r, struct errmsg *m)
{
    enum forget_fate f = r->admission.fate;
    if (r->policy == FORGET_EXACT || r->admission.off || o->watch_columns ||
        !forget_fate_needs_columns(f))
        return OK;
    return err_set(m, ERR_UNSUPPORTED,
                   "the fate '%s' needs the attention that all tokens of a "
                   "prompt give to each entry, and this server does not watch "
                   "it: start it with --watch-columns",
                   fate_at(f)->name);
}

enum err forget_admission_find(struct forget_admission *out, const char *text,
                               enum forget_policy policy, struct errmsg *m)
{
    char ranking[FORGET_ADMISSION_MAX];
    struct forget_admission a = {.fate = FORGET_DROP};
    const char *plus = strchr(text, '+');
    if (strcmp(text, "none") == 0) {
        a.off = true;
        *out = a;
        return OK;
    }
    if (!plus || plus == text || (size_t)(plus - text) >= sizeof(ranking))
        return err_set(m, ERR_INVAL,
                       "'%.40s' is no RANKING+FATE; there are " ADMISSIONS,
                       text);
    snprintf(ranking, sizeof(ranking), "%.*s", (int)(plus - text), text);
    struct errmsg about_fate = {""};
    enum err fate = find_fate(&a.fate, plus + 1, &about_fate);
    enum err rc = find_ranking(&a.ranking, ranking, policy, m);
    if (fate != OK && rc == OK)
        return err_set(m, fate, "%s", about_fate.text);
    if (rc == OK)
        *out = a;
    return rc;
}

void forget_admission_name(char out[FORGET_ADMISSION_MAX],
                           const struct forget_rules *r)
{
    enum forget_policy p = forget_ranking(r);
    const char *ranking = p == FORGET_DBTRIMKV       ? "retention"
                          : p == FORGET_SELKV_WINDOW ? "selkv"
                                                     : forget_policy_name(p);
    if (r->admission.off || r->policy == FORGET_EXACT)
        snprintf(out, FORGET_ADMISSION_MAX, "none");
    else
        snprintf(out, FORGET_ADMISSION_MAX, "%s+%s", ranking,
                 r->admission.fate == FORGET_MERGE
                     ? "merge"
                     : fate_at(r->admission.fate)->name);
}

bool forget_policy_needs_gates(enum forget_policy p)
{
    return p == FORGET_DBTRIMKV || p == FORGET_TRIMKV;
}

bool forget_needs_gates(const struct forget_rules *r)
{
    return forget_policy_needs_gates(r->policy) ||
           forget_policy_needs_gates(forget_ranking(r));
}

bool forget_studies_prompt(const struct forget_rules *r)
{
    const struct policy *ranking = forget_policy_method(forget_ranking(r));
    return ranking && (ranking->needs & (POLICY_COLUMNS | POLICY_FUTURE));
}

struct forget_rules forget_default_rules(bool has_gates, bool are_tied)
{
    bool is_global = has_gates && are_tied;
    return (struct forget_rules){
        .policy = is_global   ? FORGET_DBTRIMKV
                  : has_gates ? FORGET_TRIMKV
                              : FORGET_SELKV_WINDOW,
        .admission = {.ranking = is_global   ? FORGET_RANK_RETENTION
                                 : has_gates ? FORGET_RANK_POLICY
                                             : FORGET_SELKV_WINDOW,
                      .fate = FORGET_DROP},
    };
}
