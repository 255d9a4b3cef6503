#include "runtime/engine/forget.h"

#include <stdio.h>
#include <string.h>

/* In the order of enum forget_policy. */
static const char *const built[] = {"exact", "dbtrimkv", "trimkv",
                                    "streamingllm"};

/* Names of docs/design, interface.md, that mean something later. */
static const char *const policies_to_come[] = {
    "selkv-window", "snapkv",  "adakv", "pyramidkv",          "h2o",    "tova",
    "r-kv",         "keydiff", "knorm", "expected-attention", "random", NULL};
static const char *const rankings_to_come[] = {"selkv", NULL};
static const char *const fates_to_come[] = {"lookm", "kvmerger", "weightedkv",
                                            "cam", NULL};

enum { N_BUILT = sizeof(built) / sizeof(built[0]) };

#define POLICIES_BUILT "exact (or none), dbtrimkv, trimkv and streamingllm"
#define ADMISSIONS_BUILT                                                       \
    "none, and retention or the policy's own name with +merge or +drop"

static bool is_in(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

/* The number of a name in `built`; N_BUILT: it is not there. */
static int find_built(const char *name)
{
    int i = 0;
    while (i < N_BUILT && strcmp(built[i], name) != 0)
        i++;
    return i;
}

const char *forget_policy_name(enum forget_policy p)
{
    return (unsigned)p < N_BUILT ? built[p] : "unknown";
}

enum err forget_policy_find(enum forget_policy *out, const char *name,
                            struct errmsg *m)
{
    int i = strcmp(name, "none") == 0 ? FORGET_EXACT : find_built(name);
    if (i < N_BUILT) {
        *out = (enum forget_policy)i;
        return OK;
    }
    if (is_in(policies_to_come, name))
        return err_set(
            m, ERR_UNSUPPORTED,
            "the policy '%s' is not built yet; " POLICIES_BUILT " are", name);
    return err_set(m, ERR_INVAL,
                   "'%.40s' is no policy; there are " POLICIES_BUILT, name);
}

static enum err find_ranking(enum forget_ranking *out, const char *name,
                             enum forget_policy policy, struct errmsg *m)
{
    int i = find_built(name);
    if (strcmp(name, "retention") == 0 || i == FORGET_DBTRIMKV) {
        *out = FORGET_RANK_RETENTION;
        return OK;
    }
    /* Under exact nothing is cut, so any of them says nothing. */
    if (i == (int)policy || (i < N_BUILT && policy == FORGET_EXACT)) {
        *out = FORGET_RANK_POLICY;
        return OK;
    }
    if (i < N_BUILT || is_in(policies_to_come, name) ||
        is_in(rankings_to_come, name))
        return err_set(m, ERR_UNSUPPORTED,
                       "admission by '%s' under the policy %s is not built "
                       "yet; " ADMISSIONS_BUILT " are",
                       name, forget_policy_name(policy));
    return err_set(m, ERR_INVAL,
                   "'%.40s' is no ranking; there are " ADMISSIONS_BUILT, name);
}

static enum err find_fate(enum forget_fate *out, const char *name,
                          struct errmsg *m)
{
    bool merge = strcmp(name, "merge") == 0 || strcmp(name, "selkv") == 0;
    if (!merge && strcmp(name, "drop") != 0) {
        if (is_in(fates_to_come, name))
            return err_set(m, ERR_UNSUPPORTED,
                           "the fate '%s' is not built yet; merge and drop are",
                           name);
        return err_set(m, ERR_INVAL,
                       "'%.40s' is no fate; there are merge and drop", name);
    }
    *out = merge ? FORGET_MERGE : FORGET_DROP;
    return OK;
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
        return err_set(
            m, ERR_INVAL,
            "'%.40s' is no RANKING+FATE; there are " ADMISSIONS_BUILT, text);
    snprintf(ranking, sizeof(ranking), "%.*s", (int)(plus - text), text);
    struct errmsg about_fate = {""};
    enum err fate = find_fate(&a.fate, plus + 1, &about_fate);
    enum err rc = find_ranking(&a.ranking, ranking, policy, m);
    /* What nobody knows is said before what is not built. */
    if (fate != OK && (rc == OK || (fate == ERR_INVAL && rc != ERR_INVAL)))
        return err_set(m, fate, "%s", about_fate.text);
    if (rc == OK)
        *out = a;
    return rc;
}

void forget_admission_name(char out[FORGET_ADMISSION_MAX],
                           const struct forget_rules *r)
{
    const char *ranking = r->admission.ranking == FORGET_RANK_RETENTION
                              ? "retention"
                              : forget_policy_name(r->policy);
    if (r->admission.off || r->policy == FORGET_EXACT)
        snprintf(out, FORGET_ADMISSION_MAX, "none");
    else
        snprintf(out, FORGET_ADMISSION_MAX, "%s+%s", ranking,
                 r->admission.fate == FORGET_MERGE ? "merge" : "drop");
}

bool forget_policy_needs_gates(enum forget_policy p)
{
    return p == FORGET_DBTRIMKV || p == FORGET_TRIMKV;
}

bool forget_needs_gates(const struct forget_rules *r)
{
    if (r->policy == FORGET_EXACT)
        return false;
    return forget_policy_needs_gates(r->policy) ||
           (!r->admission.off && r->admission.ranking == FORGET_RANK_RETENTION);
}

struct forget_rules forget_default_rules(bool has_gates, bool are_tied)
{
    bool is_global = has_gates && are_tied;
    return (struct forget_rules){
        .policy = is_global   ? FORGET_DBTRIMKV
                  : has_gates ? FORGET_TRIMKV
                              : FORGET_STREAMINGLLM,
        .admission = {.ranking = is_global ? FORGET_RANK_RETENTION
                                           : FORGET_RANK_POLICY,
                      .fate = FORGET_DROP},
    };
}
