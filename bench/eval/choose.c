#include "bench/eval/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache/compact.h"
#include "cache/select.h"
#include "config/flags.h"
#include "runtime/model/view.h"

enum { NAMES_MAX = 64 };

static enum err unknown(const char *name, struct errmsg *m)
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

enum err choice_find(struct choice *out, const char *name, uint32_t has,
                     struct errmsg *m)
{
    if (strlen(name) >= CHOICE_NAME_MAX)
        return unknown(name, m);
    out->policy = NULL;
    memcpy(out->name, name, strlen(name) + 1);
    if (strcmp(name, "full") == 0) {
        out->kind = CHOICE_FULL;
        return OK;
    }
    if (strcmp(name, "no-context") == 0) {
        out->kind = CHOICE_NO_CONTEXT;
        return OK;
    }
    out->policy = policy_find(name);
    if (out->policy == NULL)
        return unknown(name, m);
    out->kind = strcmp(name, "dbtrimkv") == 0 ? CHOICE_PASS : CHOICE_POLICY;
    return policy_check(out->policy, has, false, m);
}

bool choice_needs_gates(const struct choice *c)
{
    return c->policy != NULL && (c->policy->needs & POLICY_LOG_BETA) != 0;
}

uint32_t choice_entries(double budget, uint32_t n)
{
    double entries = floor(budget * n + 0.5);
    return entries < 1 ? 1 : entries > n ? n : (uint32_t)entries;
}

uint32_t choice_needs(const struct choice *c, uint32_t n, uint32_t *n_window)
{
    uint32_t needs = 0;
    *n_window = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct policy *policy = c[i].policy;
        if (policy == NULL)
            continue;
        needs |= policy->needs;
        if (policy->defaults.n_window > *n_window)
            *n_window = policy->defaults.n_window;
    }
    return needs;
}

struct chooser {
    struct chooser_size size;
    struct view *view; /* of the sequence that was looked at */
    uint32_t n_seen;
    uint8_t *keep;
    uint16_t *gone; /* [units of the pool], zero between calls */
    struct select *select;
};

static enum err new_select(struct chooser *c, uint32_t n_lists)
{
    uint64_t n = (uint64_t)n_lists * c->size.max_tokens;
    struct select_size size = {.n_units = pool_stats(c->size.pool).n_units,
                               .max_sessions = 1,
                               .max_tenants = 1,
                               .max_lists = n_lists,
                               .max_undecided = (uint32_t)(n / 16 + 1024),
                               .n_threads = workers_count(c->size.workers)};
    return select_new(&c->select, &size);
}

enum err chooser_new(struct chooser **out, const struct chooser_size *size,
                     struct errmsg *m)
{
    const struct model_info *i = model_info(size->model);
    uint32_t n_lists = i->n_layers * i->n_kv_heads;
    struct chooser *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the policies");
    c->size = *size;
    c->keep = malloc((size_t)n_lists * size->max_tokens);
    c->gone = calloc(pool_stats(size->pool).n_units, sizeof(*c->gone));
    if (c->keep == NULL || c->gone == NULL ||
        view_new(&c->view, size->model) != OK || new_select(c, n_lists) != OK) {
        chooser_free(c);
        return err_set(m, ERR_NOMEM, "no memory for the policies");
    }
    *out = c;
    return OK;
}

void chooser_free(struct chooser *c)
{
    if (c == NULL)
        return;
    select_free(c->select);
    view_free(c->view);
    free(c->keep);
    free(c->gone);
    free(c);
}

enum err chooser_look(struct chooser *c, const struct table *t,
                      const struct probe *p, uint32_t n_seen, uint32_t needs)
{
    c->n_seen = n_seen;
    return view_fill(c->view, t, p, n_seen, needs);
}

/* A deep copy has its entries in the slots of the original, so that the view
 * is good for both. */
static enum err apply_policy(struct chooser *c, const struct choice *how,
                             uint32_t n_entries, struct table *t)
{
    struct policy_params params = how->policy->defaults;
    params.n_entries = n_entries;
    params.n_sinks = how->n_sinks;
    params.n_recent = how->n_recent;
    params.min_head = how->min_head;
    params.seed = how->seed;
    enum err rc = policy_keep(how->policy, view_get(c->view), &params,
                              c->size.workers, c->keep);
    if (rc != OK)
        return rc;
    view_gone(c->view, t, c->keep, c->gone);
    compact_table(t, c->gone);
    memset(c->gone, 0, pool_stats(c->size.pool).n_units * sizeof(*c->gone));
    return OK;
}

static enum err apply_pass(struct chooser *c, const struct choice *how,
                           uint32_t n_entries, struct table *t,
                           struct errmsg *m)
{
    struct select_session session = {
        .table = t, .n_seen = c->n_seen, .cap = UINT64_MAX};
    struct select_tenant tenant = {.cap = UINT64_MAX};
    uint64_t n_lists = (uint64_t)t->n_layers * t->n_kv_heads;
    uint64_t wanted = n_lists * n_entries;
    uint64_t all = table_n_entries(t);
    struct select_input in = {.pool = c->size.pool,
                              .session = &session,
                              .tenant = &tenant,
                              .n_sessions = 1,
                              .n_tenants = 1,
                              .k = all > wanted ? all - wanted : 0,
                              .min_head = how->min_head,
                              .n_sinks = how->n_sinks,
                              .n_recent = how->n_recent,
                              .n_ahead = 1};
    enum err rc = select_begin(c->select, &in, m);
    if (rc != OK)
        return rc;
    if (select_step(c->select, c->size.workers, UINT64_MAX) != SELECT_DONE)
        return err_set(m, ERR_INVAL,
                       "a budget of %g leaves fewer entries than are protected",
                       how->budget);
    compact_table(t, select_gone(c->select));
    return OK;
}

enum err chooser_apply(struct chooser *c, const struct choice *how,
                       uint32_t n_entries, struct table *t, struct errmsg *m)
{
    return how->kind == CHOICE_PASS ? apply_pass(c, how, n_entries, t, m)
                                    : apply_policy(c, how, n_entries, t);
}
