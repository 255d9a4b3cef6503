#include "bench/eval/choose.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "bench/eval/merging.h"
#include "bench/eval/oracle.h"
#include "cache/compact.h"
#include "cache/select.h"
#include "runtime/model/view.h"

/* What was seen of a sequence. */
struct look {
    struct view *view;
    uint32_t needs; /* that the view holds; 0: nothing was seen */
};

struct chooser {
    struct chooser_size size;
    struct look *look; /* [n_looks] */
    /* The sequence that was looked at last. */
    struct view *view;
    const struct probe *probe;
    const float *oracle;
    uint32_t n_seen;
    float *score; /* [entries], of the oracle */
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

static enum err new_looks(struct chooser *c)
{
    enum err rc = OK;
    c->look = calloc(c->size.n_looks, sizeof(*c->look));
    if (c->look == NULL)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < c->size.n_looks && rc == OK; i++)
        rc = view_new(&c->look[i].view, c->size.model);
    return rc;
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
    c->score = malloc((size_t)n_lists * size->max_tokens * sizeof(*c->score));
    c->gone = calloc(pool_stats(size->pool).n_units, sizeof(*c->gone));
    if (c->keep == NULL || c->score == NULL || c->gone == NULL ||
        new_looks(c) != OK || new_select(c, n_lists) != OK) {
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
    for (uint32_t i = 0; i < c->size.n_looks && c->look != NULL; i++)
        view_free(c->look[i].view);
    free(c->look);
    select_free(c->select);
    free(c->keep);
    free(c->score);
    free(c->gone);
    free(c);
}

enum err chooser_look(struct chooser *c, uint32_t i,
                      const struct chooser_subject *of, uint32_t needs)
{
    struct look *l = &c->look[i];
    enum err rc = OK;
    assert(i < c->size.n_looks);
    c->view = l->view;
    c->n_seen = of->n_seen;
    c->probe = of->probe;
    c->oracle = of->oracle;
    if (l->needs != 0 && (needs & ~l->needs) == 0)
        return OK;
    l->needs = 0;
    rc = view_fill(l->view, of->table, of->probe, of->n_seen, needs);
    if (rc == OK)
        l->needs = needs;
    return rc;
}

void chooser_forget(struct chooser *c)
{
    for (uint32_t i = 0; i < c->size.n_looks; i++) {
        view_clear(c->look[i].view);
        c->look[i].needs = 0;
    }
}

/* Merges what is marked into what stays, and takes it out. */
static enum err take_out(struct chooser *c, const struct choice *how,
                         struct table *t, const uint16_t *gone,
                         struct merge_counts *counts)
{
    const struct merging merging = {.how = how,
                                    .table = t,
                                    .probe = c->probe,
                                    .n_seen = c->n_seen,
                                    .gone = gone};
    enum err rc = OK;
    if (how->fate != NULL)
        rc = merging_run(&merging, c->size.workers, counts);
    if (rc == OK)
        compact_table(t, gone);
    return rc;
}

/* The best by what will be looked at. */
static enum err keep_by_oracle(struct chooser *c, const struct policy *policy,
                               const struct policy_params *params)
{
    const struct policy_view *v = view_get(c->view);
    for (uint32_t i = 0; i < v->n_layers * v->n_kv_heads; i++) {
        const struct policy_list *l = &v->list[i];
        const float *mass = c->oracle + (size_t)i * c->size.max_tokens;
        for (uint32_t e = 0; e < l->n; e++)
            c->score[l->first + e] = mass[l->pos[e]];
    }
    return policy_select(policy, v, params, c->score, c->keep);
}

/* A deep copy has its entries in the slots of the original, so that the view
 * is good for both. */
static enum err apply_policy(struct chooser *c, const struct choice *how,
                             uint32_t n_entries, struct table *t,
                             struct merge_counts *counts)
{
    struct policy_params params =
        policy_defaults(how->policy, view_get(c->view)->group);
    params.n_entries = n_entries;
    params.n_sinks = how->n_sinks;
    params.n_recent = how->n_recent;
    params.min_head = how->min_head;
    params.seed = how->seed;
    if (how->per_head_sets)
        policy_set_per_head(&params);
    enum err rc = how->kind == CHOICE_ORACLE
                      ? keep_by_oracle(c, how->policy, &params)
                      : policy_keep(how->policy, view_get(c->view), &params,
                                    c->size.workers, c->keep);
    if (rc != OK)
        return rc;
    view_gone(c->view, t, c->keep, c->gone);
    rc = take_out(c, how, t, c->gone, counts);
    memset(c->gone, 0, pool_stats(c->size.pool).n_units * sizeof(*c->gone));
    return rc;
}

/* What a budget of n_entries a head protects. */
static void protect(struct select_input *in, const struct choice *how,
                    uint32_t n_entries)
{
    in->n_sinks = how->n_sinks;
    in->n_recent = how->n_recent;
    policy_protected(n_entries, &in->n_sinks, &in->n_recent);
    in->min_head = how->min_head < n_entries ? how->min_head : n_entries;
}

static enum err apply_pass(struct chooser *c, const struct choice *how,
                           uint32_t n_entries, struct table *t,
                           struct merge_counts *counts, struct errmsg *m)
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
                              .n_ahead = 1};
    protect(&in, how, n_entries);
    enum err rc = select_begin(c->select, &in, m);
    if (rc != OK)
        return rc;
    if (select_step(c->select, c->size.workers, UINT64_MAX) != SELECT_DONE)
        return err_set(m, ERR_INTERNAL, "a budget of %g cannot be reached",
                       how->budget);
    return take_out(c, how, t, select_gone(c->select), counts);
}

enum err chooser_apply(struct chooser *c, const struct choice *how,
                       uint32_t n_entries, struct table *t,
                       struct merge_counts *counts, struct errmsg *m)
{
    return how->kind == CHOICE_PASS
               ? apply_pass(c, how, n_entries, t, counts, m)
               : apply_policy(c, how, n_entries, t, counts);
}
