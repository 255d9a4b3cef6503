#include "bench/eval/choice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/flags.h"

enum {
    NAMES_MAX = 64,
    GROWTH = 8 /* of a name, by the longer form of a word */
};

/* The server's names for rankings that are policies here. */
static const char *const aliases[][2] = {{"retention", "dbtrimkv"},
                                         {"selkv", "selkv-window"}};

static enum err unknown_policy(const char *name, struct errmsg *m)
{
    const char *names[NAMES_MAX] = {"full", "no-context"};
    size_t n = 2;
    for (uint32_t i = 0; policy_at(i) != NULL && n < NAMES_MAX; i++)
        names[n++] = policy_at(i)->name;
    return err_set(m, ERR_NOTFOUND,
                   "there is no policy \"%.60s\"; the nearest is \"%s\" (all: "
                   "full, no-context, %s)",
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

/* "alpha=0": one setting of a fate, the options --merge-* of the server. */
static enum err read_setting(struct choice *out, const char *text,
                             struct errmsg *m)
{
    static const char *const names[] = {"alpha", "min-mass", "max-ratio"};
    struct merge_options *o = &out->merge;
    float *const field[] = {&o->alpha, &o->min_mass, &o->max_ratio};
    const char *equals = strchr(text, '=');
    size_t n = strlen(out->name);
    for (int i = 0; i < 3 && equals != NULL; i++) {
        char *end = NULL;
        double value = strtod(equals + 1, &end);
        if (strncmp(text, names[i], (size_t)(equals - text)) != 0 ||
            strlen(names[i]) != (size_t)(equals - text))
            continue;
        if (end == equals + 1 || *end != '\0' || !(value >= 0 && value <= 1e6))
            break;
        *field[i] = (float)value;
        if (field[i] == &o->max_ratio && value <= 0)
            *field[i] = INFINITY;
        snprintf(out->name + n, sizeof(out->name) - n, ":%s=%g", names[i],
                 value);
        return OK;
    }
    return err_set(m, ERR_INVAL,
                   "\"%.40s\" is no setting of a fate; there are alpha=X, "
                   "min-mass=X and max-ratio=X, of numbers from 0 on",
                   text);
}

/* "merge:alpha=0". The word of the fate becomes its usual one. */
static enum err read_fate(struct choice *out, char *text, struct errmsg *m)
{
    char *rest = NULL, *word = strtok_r(text, ":", &rest);
    const struct fate *fate = word != NULL ? fate_find(word) : NULL;
    if (fate == NULL)
        return unknown_fate(word != NULL ? word : "", m);
    bool is_drop = strcmp(fate->name, "drop") == 0;
    size_t n = strlen(out->name);
    enum err rc = OK;
    if (!is_drop) {
        out->fate = fate;
        snprintf(out->name + n, sizeof(out->name) - n, "+%s",
                 strcmp(fate->name, "selkv") == 0 ? "merge" : fate->name);
    }
    for (char *s; rc == OK && (s = strtok_r(NULL, ":", &rest)) != NULL;)
        rc = is_drop ? err_set(m, ERR_INVAL, "drop has no settings")
                     : read_setting(out, s, m);
    return rc;
}

static enum err find_policy(struct choice *out, const char *name, uint32_t has,
                            struct errmsg *m)
{
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (strcmp(name, aliases[i][0]) == 0)
            name = aliases[i][1];
    out->policy = policy_find(name);
    if (out->policy == NULL)
        return unknown_policy(name, m);
    out->kind = strcmp(name, "dbtrimkv") == 0 ? CHOICE_PASS : CHOICE_POLICY;
    snprintf(out->name, sizeof(out->name), "%s", name);
    return policy_check(out->policy, has, false, m);
}

enum err choice_find(struct choice *out, const char *name, uint32_t has,
                     struct errmsg *m)
{
    char text[CHOICE_NAME_MAX - GROWTH];
    if (strlen(name) >= sizeof(text))
        return unknown_policy(name, m);
    memcpy(text, name, strlen(name) + 1);
    out->policy = NULL;
    out->fate = NULL;
    out->merge = merge_options_default();
    if (strcmp(name, "full") == 0 || strcmp(name, "no-context") == 0) {
        out->kind = name[0] == 'f' ? CHOICE_FULL : CHOICE_NO_CONTEXT;
        memcpy(out->name, name, strlen(name) + 1);
        return OK;
    }
    char *fate = strchr(text, '+');
    if (fate != NULL)
        *fate++ = '\0';
    enum err rc = find_policy(out, text, has, m);
    return rc == OK && fate != NULL ? read_fate(out, fate, m) : rc;
}

bool choice_needs_gates(const struct choice *c)
{
    return c->policy != NULL && (c->policy->needs & POLICY_LOG_BETA) != 0;
}

bool choice_same_kept(const struct choice *a, const struct choice *b)
{
    return a->policy != NULL && a->policy == b->policy &&
           a->budget == b->budget;
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
        return err_set(m, ERR_INVAL, "%s is there twice with budget %g",
                       x->name, x->budget);
    if (c->n == CHOICES_MAX)
        return err_set(m, ERR_INVAL,
                       "more than %d policies times budgets at once",
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
        if (c.fate == NULL || is_there(out, c.policy->name, c.budget))
            continue;
        c.fate = NULL;
        snprintf(c.name, sizeof(c.name), "%s", c.policy->name);
        rc = add_one(out, &c, m);
    }
    return rc;
}

enum err choices_read(struct choices *out, const struct choices_input *in,
                      struct errmsg *m)
{
    enum err rc = OK;
    out->n = 0;
    if (in->policy->n == 0)
        rc = add_all(out, in, m);
    for (size_t i = 0; i < in->policy->n && rc == OK; i++)
        rc = add(out, in, in->policy->item[i], m);
    if (rc == OK)
        rc = add_drops(out, m);
    if (rc == OK && out->n == 0)
        rc = err_set(m, ERR_INVAL, "--policy: none with a budget is named");
    if (rc != OK || in->against == NULL)
        return rc;
    for (uint32_t i = 0; i < out->n; i++)
        if (strcmp(out->choice[i].name, in->against) == 0)
            return OK;
    return err_set(m, ERR_INVAL, "--against: %.60s is not among the policies",
                   in->against);
}

struct choices_needs choices_needs(const struct choices *c)
{
    struct choices_needs needs = {0};
    for (uint32_t i = 0; i < c->n; i++) {
        const struct choice *x = &c->choice[i];
        if (x->policy == NULL)
            continue;
        needs.view |= x->policy->needs;
        uint32_t n = x->policy->defaults.n_window;
        if (x->fate != NULL) {
            needs.fate |= x->fate->needs;
            n = x->merge.n_window > n ? x->merge.n_window : n;
        }
        needs.n_window = n > needs.n_window ? n : needs.n_window;
    }
    return needs;
}
