#include "bench/eval/choice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "bench/eval/oracle.h"
#include "config/flags.h"
#include "server/merge_config.h"

enum { NAMES_MAX = 64 };

/* Other names that the server has for what is here. */
static const char *const aliases[][2] = {{"retention", "dbtrimkv"},
                                         {"selkv", "selkv-window"},
                                         {"exact", "full"},
                                         {"none", "full"}};

/* Settings of fates are the server's options that begin so. */
static const char SETTING[] = "--merge-";
enum { SETTING_LEN = sizeof(SETTING) - 1 };

static enum err unknown_policy(const char *name, struct errmsg *m)
{
    const char *names[NAMES_MAX] = {"full", "no-context", "oracle"};
    size_t n = 3;
    for (uint32_t i = 0; policy_at(i) != NULL && n < NAMES_MAX; i++)
        names[n++] = policy_at(i)->name;
    return err_set(m, ERR_NOTFOUND,
                   "there is no policy \"%.60s\"; the nearest is \"%s\" (all: "
                   "full, no-context, oracle, %s)",
                   name, flags_nearest(name, names, n), policy_names());
}

static enum err unknown_fate(const char *name, struct errmsg *m)
{
    const char *names[NAMES_MAX] = {"merge"};
    char all[256] = "merge";
    size_t n = 1, len = strlen(all);
    for (uint32_t i = 0; fate_at(i) != NULL && n < NAMES_MAX; i++) {
        names[n] = fate_at(i)->name;
        len += (size_t)snprintf(all + len, sizeof(all) - len, ", %s", names[n]);
        n++;
    }
    return err_set(m, ERR_NOTFOUND,
                   "there is no fate \"%.60s\"; the nearest is \"%s\" (all: "
                   "%s)",
                   name, flags_nearest(name, names, n), all);
}

static enum err too_long(struct errmsg *m)
{
    return err_set(m, ERR_INVAL,
                   "a policy with its fate and settings has less than %d "
                   "characters",
                   CHOICE_NAME_MAX);
}

/* Its usual name. */
static const char *word_of(const struct fate *fate)
{
    return strcmp(fate->name, "selkv") == 0 ? "merge" : fate->name;
}

/* ------------------------------------------------------------ the settings */

/* Whose settings: those of a fate, or, where that is NULL, of a policy. */
struct owner {
    const struct policy *policy;
    const struct fate *fate;
};

/* min-cosine is about keys that become one, all others about what a host gets
 * for its guests. */
static bool is_of_fate(const struct option *o, const struct fate *fate)
{
    return o->field == offsetof(struct config, merge_min_cosine)
               ? strcmp(fate->name, "kvmerger") == 0
               : fate->has_ratio;
}

/* Keys can be turned whatever is kept; sets a head are something to ask for
 * where there is one for a layer. */
static bool is_of_policy(const struct option *o, const struct policy *policy)
{
    return o->field == offsetof(struct config, reposition) ||
           (o->field == offsetof(struct config, per_head_sets) &&
            policy->defaults.spread == POLICY_PER_LAYER);
}

/* "alpha" of "--merge-alpha"; NULL: this option is not of merges. */
static const char *merge_name(char flag[OPTION_NAME_MAX + 8],
                              const struct option *o)
{
    option_flag(flag, o);
    return strncmp(flag, SETTING, SETTING_LEN) == 0 ? flag + SETTING_LEN : NULL;
}

/* "alpha" of "--merge-alpha", "reposition" of "--reposition"; NULL: this
 * option is no setting of the owner. */
static const char *setting_name(char flag[OPTION_NAME_MAX + 8],
                                const struct option *o,
                                const struct owner *owner)
{
    const char *name = merge_name(flag, o);
    if (owner->fate != NULL)
        return name != NULL && is_of_fate(o, owner->fate) ? name : NULL;
    return is_of_policy(o, owner->policy) ? flag + strlen("--") : NULL;
}

/* NULL: there is no such setting. */
static const struct option *find_setting(const char *name,
                                         const struct owner *owner)
{
    char flag[OPTION_NAME_MAX + 8];
    size_t n;
    const struct option *o = option_table(&n);
    for (size_t i = 0; i < n; i++) {
        const char *x = setting_name(flag, &o[i], owner);
        if (x != NULL && strcmp(x, name) == 0)
            return &o[i];
    }
    return NULL;
}

static enum err unknown_setting(const char *name, const struct owner *owner,
                                struct errmsg *m)
{
    char flag[OPTION_NAME_MAX + 8], all[160] = "none";
    size_t n, len = 0;
    const struct option *o = option_table(&n);
    for (size_t i = 0; i < n; i++) {
        const char *x = setting_name(flag, &o[i], owner);
        if (x != NULL)
            len += (size_t)snprintf(all + len, sizeof(all) - len, "%s%s",
                                    len > 0 ? ", " : "", x);
    }
    bool is_fate = owner->fate != NULL;
    return err_set(m, ERR_INVAL,
                   "\"%.40s\" is no setting of the %s %s, which has: %s", name,
                   is_fate ? "fate" : "policy",
                   is_fate ? word_of(owner->fate) : owner->policy->name, all);
}

/* "alpha=0", or "mean-ratio" of one that is on or off. seen: the names so far,
 * each between colons. */
static enum err read_setting(struct config *c, char seen[CHOICE_NAME_MAX],
                             char *text, const struct owner *owner,
                             struct errmsg *m)
{
    char key[OPTION_NAME_MAX + 8], *value = strchr(text, '=');
    if (value != NULL)
        *value++ = '\0';
    const struct option *o = find_setting(text, owner);
    if (o == NULL)
        return unknown_setting(text, owner, m);
    snprintf(key, sizeof(key), ":%s:", text);
    if (strstr(seen, key) != NULL)
        return err_set(m, ERR_INVAL, "%s is there twice", text);
    if (value == NULL && o->type != OPT_BOOL)
        return err_set(m, ERR_INVAL, "%s needs a value: %s=%s", text, text,
                       o->dflt);
    size_t n = strlen(seen);
    snprintf(seen + n, CHOICE_NAME_MAX - n, "%s", key + (n > 0));
    return option_set(c, o, value != NULL ? value : "true", 0, text, m);
}

/* ":alpha=0"; nothing where the setting is the server's. Merges compute with
 * floats, so what is the same float is the same setting. */
static void add_setting(struct choice *out, const char *name,
                        const struct option *o, const struct config *c,
                        const struct config *dflt)
{
    const void *is = (const char *)c + o->field;
    const void *was = (const char *)dflt + o->field;
    char value[JSON_DOUBLE_MAX];
    size_t n = strlen(out->name);
    if (o->type == OPT_BOOL) {
        if (*(const bool *)is == *(const bool *)was)
            return;
        snprintf(value, sizeof(value), "%s", *(const bool *)is ? "on" : "off");
    } else {
        float x = (float)*(const double *)is;
        if (x == (float)*(const double *)was)
            return;
        json_format_float(value, x == 0 ? 0 : x); /* no "-0" */
    }
    snprintf(out->name + n, sizeof(out->name) - n, ":%s=%s", name, value);
}

/* In one order, whatever the order on the command line. */
static void add_settings(struct choice *out, const struct owner *owner,
                         const struct config *c, const struct config *dflt)
{
    char flag[OPTION_NAME_MAX + 8];
    size_t n;
    const struct option *o = option_table(&n);
    for (size_t i = 0; i < n; i++) {
        const char *name = setting_name(flag, &o[i], owner);
        if (name != NULL)
            add_setting(out, name, &o[i], c, dflt);
    }
}

/* All of those that there are, also what this owner has not: merges are made
 * with them. */
static enum err default_settings(struct config *c, struct errmsg *m)
{
    char flag[OPTION_NAME_MAX + 8];
    enum err rc = OK;
    size_t n;
    const struct option *o = option_table(&n);
    for (size_t i = 0; i < n && rc == OK; i++)
        if (merge_name(flag, &o[i]) != NULL)
            rc = option_set(c, &o[i], o[i].dflt, 0, flag, m);
    return rc;
}

/* What stands behind each colon; text: NULL where there is none. */
static enum err read_settings(struct choice *out, char *text,
                              const struct owner *owner, struct errmsg *m)
{
    struct config dflt = {0};
    char seen[CHOICE_NAME_MAX] = ""; /* each is part of one such name */
    enum err rc = default_settings(&dflt, m);
    struct config c = dflt;
    while (rc == OK && text != NULL) {
        char *rest = strchr(text, ':');
        if (rest != NULL)
            *rest++ = '\0';
        rc = read_setting(&c, seen, text, owner, m);
        text = rest;
    }
    if (rc != OK)
        return rc;
    if (owner->fate != NULL) {
        out->merge = merge_config_options(&c);
    } else {
        out->reposition = c.reposition;
        out->per_head_sets = c.per_head_sets;
    }
    add_settings(out, owner, &c, &dflt);
    return OK;
}

/* --------------------------------------------------------------- the names */

/* "merge:alpha=0". */
static enum err read_fate(struct choice *out, char *text, struct errmsg *m)
{
    char *settings = strchr(text, ':');
    if (out->policy == NULL)
        return err_set(m, ERR_INVAL,
                       "%s has no fate: full keeps every entry and no-context "
                       "none, so there is nothing to merge",
                       out->name);
    if (settings != NULL)
        *settings++ = '\0';
    const struct fate *fate = fate_find(text);
    if (fate == NULL)
        return unknown_fate(text, m);
    if (strcmp(fate->name, "drop") != 0) {
        size_t n = strlen(out->name);
        out->fate = fate;
        snprintf(out->name + n, sizeof(out->name) - n, "+%s", word_of(fate));
    }
    return read_settings(out, settings, &(struct owner){out->policy, fate}, m);
}

/* Those of the policy: "reposition:per-head-sets". */
static enum err read_policy_settings(struct choice *out, char *text,
                                     struct errmsg *m)
{
    if (text != NULL && out->policy == NULL)
        return err_set(m, ERR_INVAL,
                       "\"%.40s\" is no setting of %s, which has none", text,
                       out->name);
    return text == NULL ? OK
                        : read_settings(out, text,
                                        &(struct owner){out->policy, NULL}, m);
}

static enum err find_policy(struct choice *out, const char *name, uint32_t has,
                            struct errmsg *m)
{
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (strcmp(name, aliases[i][0]) == 0)
            name = aliases[i][1];
    snprintf(out->name, sizeof(out->name), "%s", name);
    if (strcmp(name, "full") == 0 || strcmp(name, "no-context") == 0) {
        out->kind = name[0] == 'f' ? CHOICE_FULL : CHOICE_NO_CONTEXT;
        return OK;
    }
    out->kind = strcmp(name, "oracle") == 0     ? CHOICE_ORACLE
                : strcmp(name, "dbtrimkv") == 0 ? CHOICE_PASS
                                                : CHOICE_POLICY;
    out->policy =
        out->kind == CHOICE_ORACLE ? oracle_policy() : policy_find(name);
    if (out->policy == NULL)
        return unknown_policy(name, m);
    return policy_check(out->policy, has, false, m);
}

enum err choice_find(struct choice *out, const char *name, uint32_t has,
                     struct errmsg *m)
{
    char text[CHOICE_NAME_MAX];
    if (strlen(name) >= sizeof(text))
        return too_long(m);
    memcpy(text, name, strlen(name) + 1);
    out->policy = NULL;
    out->fate = NULL;
    out->merge = merge_options_default();
    out->reposition = out->per_head_sets = false;
    char *fate = strchr(text, '+');
    if (fate != NULL)
        *fate++ = '\0';
    char *settings = strchr(text, ':');
    if (settings != NULL)
        *settings++ = '\0';
    enum err rc = find_policy(out, text, has, m);
    if (rc == OK)
        rc = read_policy_settings(out, settings, m);
    if (rc == OK && fate != NULL)
        rc = read_fate(out, fate, m);
    /* Words and numbers may have become longer. */
    return rc == OK && strlen(out->name) + 1 >= sizeof(out->name) ? too_long(m)
                                                                  : rc;
}

bool choice_needs_gates(const struct choice *c)
{
    return c->policy != NULL && (c->policy->needs & POLICY_LOG_BETA) != 0;
}

bool choice_competes(const struct choice *c)
{
    return c->policy != NULL && c->kind != CHOICE_ORACLE;
}

bool choice_same_kept(const struct choice *a, const struct choice *b)
{
    return a->policy != NULL && a->policy == b->policy &&
           a->per_head_sets == b->per_head_sets && a->budget == b->budget;
}

uint32_t choice_entries(double budget, uint32_t n)
{
    double entries = floor(budget * n + 0.5);
    return entries < 1 ? 1 : entries > n ? n : (uint32_t)entries;
}

static enum err read_budget(double *out, const char *text, struct errmsg *m)
{
    char *end = NULL;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !(*out > 0 && *out <= 1))
        return err_set(m, ERR_INVAL,
                       "--budget: \"%.20s\" is no share above 0 and up to 1",
                       text);
    return OK;
}

/* Before any policy: there may be one that has no budget. */
static enum err check_budgets(const struct config_list *budget,
                              struct errmsg *m)
{
    enum err rc = OK;
    for (size_t i = 0; i < budget->n && rc == OK; i++) {
        double x = 0, before = 0;
        rc = read_budget(&x, budget->item[i], m);
        for (size_t k = 0; k < i && rc == OK; k++) {
            rc = read_budget(&before, budget->item[k], m);
            if (rc == OK && before == x)
                rc = err_set(m, ERR_INVAL, "--budget: %g is there twice", x);
        }
    }
    return rc;
}

static bool is_there(const struct choices *c, const char *name, double budget)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (strcmp(c->choice[i].name, name) == 0 &&
            c->choice[i].budget == budget)
            return true;
    return false;
}

static enum err add_one(struct choices *c, const struct choice *x,
                        struct errmsg *m)
{
    if (is_there(c, x->name, x->budget))
        return err_set(m, ERR_INVAL, "--policy: %s is there twice", x->name);
    if (c->n == CHOICES_MAX)
        return err_set(m, ERR_INVAL,
                       "--policy: more than %d policies times budgets at once",
                       CHOICES_MAX);
    c->choice[c->n++] = *x;
    return OK;
}

/* One policy with every budget; full and no-context have none. */
static enum err add(struct choices *out, const struct choices_input *in,
                    const char *name, struct errmsg *m)
{
    struct choice c = in->like;
    struct errmsg why = {""};
    enum err rc = choice_find(&c, name, in->has, &why);
    if (rc != OK)
        return err_set(m, rc, "--policy: %s", why.text);
    c.budget = c.kind == CHOICE_FULL;
    if (c.policy == NULL)
        return add_one(out, &c, m);
    for (size_t i = 0; i < in->budget->n && rc == OK; i++) {
        rc = read_budget(&c.budget, in->budget->item[i], m);
        if (rc == OK)
            rc = add_one(out, &c, m);
    }
    return rc;
}

/* Everything that the model allows, but merges: they are for who asks. */
static enum err add_all(struct choices *out, const struct choices_input *in,
                        struct errmsg *m)
{
    enum err rc = add(out, in, "full", m);
    if (rc == OK)
        rc = add(out, in, "no-context", m);
    if (rc == OK)
        rc = add(out, in, "oracle", m);
    for (uint32_t i = 0; policy_at(i) != NULL && rc == OK; i++)
        if ((policy_at(i)->needs & ~in->has) == 0)
            rc = add(out, in, policy_at(i)->name, m);
    return rc;
}

/* What merges are compared with, where it was not named. */
static enum err add_drops(struct choices *out, struct errmsg *m)
{
    enum err rc = OK;
    for (uint32_t i = 0, n = out->n; i < n && rc == OK; i++) {
        struct choice c = out->choice[i];
        c.name[strcspn(c.name, "+")] = '\0';
        if (c.fate == NULL || is_there(out, c.name, c.budget))
            continue;
        c.fate = NULL;
        rc = add_one(out, &c, m);
    }
    return rc;
}

/* The reference runs in any case, and what it can't do says nothing about
 * policies: first, where it was not named. */
static enum err add_reference(struct choices *out,
                              const struct choices_input *in, struct errmsg *m)
{
    if (is_there(out, "full", 1))
        return OK;
    enum err rc = add(out, in, "full", m);
    if (rc != OK)
        return rc;
    struct choice full = out->choice[out->n - 1];
    memmove(&out->choice[1], &out->choice[0],
            (out->n - 1) * sizeof(out->choice[0]));
    out->choice[0] = full;
    return OK;
}

/* By any of its names. */
static enum err find_against(struct choices *out,
                             const struct choices_input *in, struct errmsg *m)
{
    struct choice c = in->like;
    struct errmsg why = {""};
    enum err rc = choice_find(&c, in->against, in->has, &why);
    if (rc != OK)
        return err_set(m, rc, "--against: %s", why.text);
    for (uint32_t i = 0; i < out->n; i++)
        if (strcmp(out->choice[i].name, c.name) == 0) {
            memcpy(out->against, c.name, sizeof(out->against));
            return OK;
        }
    return err_set(m, ERR_INVAL, "--against: %.60s is not among the policies",
                   in->against);
}

enum err choices_read(struct choices *out, const struct choices_input *in,
                      struct errmsg *m)
{
    enum err rc = check_budgets(in->budget, m);
    out->n = 0;
    out->against[0] = '\0';
    if (rc == OK && in->policy->n == 0)
        rc = add_all(out, in, m);
    for (size_t i = 0; i < in->policy->n && rc == OK; i++)
        rc = add(out, in, in->policy->item[i], m);
    if (rc == OK)
        rc = add_drops(out, m);
    if (rc == OK && out->n == 0)
        rc = err_set(m, ERR_INVAL, "--policy: none with a budget is named");
    if (rc == OK)
        rc = add_reference(out, in, m);
    return rc == OK && in->against != NULL ? find_against(out, in, m) : rc;
}

struct choices_needs choices_needs(const struct choices *c)
{
    struct choices_needs needs = {0};
    for (uint32_t i = 0; i < c->n; i++) {
        const struct choice *x = &c->choice[i];
        if (x->policy == NULL)
            continue;
        needs.view |= x->policy->needs;
        needs.answers |= x->kind == CHOICE_ORACLE;
        uint32_t n = x->policy->defaults.n_window;
        if (x->fate != NULL) {
            needs.fate |= x->fate->needs;
            n = x->merge.n_window > n ? x->merge.n_window : n;
        }
        needs.n_window = n > needs.n_window ? n : needs.n_window;
    }
    return needs;
}
