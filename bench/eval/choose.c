#include "bench/eval/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache/compact.h"
#include "cache/select.h"
#include "config/flags.h"

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

struct chooser {
    struct chooser_size size;
    uint32_t n_lists;
    struct policy_list *list; /* [n_lists] */
    /* Of all lists, max_tokens each. */
    int32_t *pos;
    float *log_beta, *key_norm, *value_norm;
    float *key;   /* times head_dim */
    float *value; /* one for each thread */
    uint8_t *keep;
    uint16_t *gone; /* [units of the pool], zero between calls */
    struct select *select;
    /* What is being read. */
    const struct table *table;
    uint32_t needs;
};

static enum err new_select(struct chooser *c)
{
    uint64_t n = (uint64_t)c->n_lists * c->size.max_tokens;
    struct select_size size = {.n_units = pool_stats(c->size.pool).n_units,
                               .max_sessions = 1,
                               .max_tenants = 1,
                               .max_lists = c->n_lists,
                               .max_undecided = (uint32_t)(n / 16 + 1024),
                               .n_threads = workers_count(c->size.workers)};
    return select_new(&c->select, &size);
}

enum err chooser_new(struct chooser **out, const struct chooser_size *size,
                     struct errmsg *m)
{
    struct chooser *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the policies");
    c->size = *size;
    c->n_lists = size->n_layers * size->n_kv_heads;
    size_t n = (size_t)c->n_lists * size->max_tokens;
    c->list = calloc(c->n_lists, sizeof(*c->list));
    c->pos = malloc(n * sizeof(*c->pos));
    c->log_beta = malloc(n * sizeof(float));
    c->key_norm = malloc(n * sizeof(float));
    c->value_norm = malloc(n * sizeof(float));
    c->key = malloc(n * size->head_dim * sizeof(float));
    c->value = malloc(sizeof(float) * size->head_dim *
                      (size_t)workers_count(size->workers));
    c->keep = malloc(n);
    c->gone = calloc(pool_stats(size->pool).n_units, sizeof(*c->gone));
    if (!c->list || !c->pos || !c->log_beta || !c->key_norm || !c->value_norm ||
        !c->key || !c->value || !c->keep || !c->gone || new_select(c) != OK) {
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
    free(c->list);
    free(c->pos);
    free(c->log_beta);
    free(c->key_norm);
    free(c->value_norm);
    free(c->key);
    free(c->value);
    free(c->keep);
    free(c->gone);
    free(c);
}

static float norm_of(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return (float)sqrt(sum);
}

static void read_list(void *ctx, int task, int thread)
{
    struct chooser *c = ctx;
    const struct kv_list *from = &c->table->list[task];
    const struct pool *pool = c->table->pool;
    const struct kv_layout *l = pool_layout(pool);
    size_t at = (size_t)task * c->size.max_tokens;
    float *value = c->value + (size_t)thread * l->head_dim;
    for (uint32_t i = 0; i < from->len; i++) {
        unit_id unit = from->unit[i / KV_UNIT];
        uint32_t slot = i % KV_UNIT;
        const struct kv_meta *meta = pool_meta(pool, unit);
        const uint8_t *data = pool_data(pool, unit);
        c->pos[at + i] = meta->pos[slot];
        c->log_beta[at + i] = meta->log_beta[slot];
        float *key = c->key + (at + i) * l->head_dim;
        if (c->needs & (POLICY_KEYS | POLICY_KEY_NORMS)) {
            c->size.ops->kv_load(l, data, slot, key, NULL);
            c->key_norm[at + i] = norm_of(key, l->head_dim);
        }
        if (c->needs & POLICY_VALUE_NORMS) {
            c->size.ops->kv_load(l, data, slot, NULL, value);
            c->value_norm[at + i] = norm_of(value, l->head_dim);
        }
    }
}

/* What the policy needs of the table, as policy.h describes it. */
static void read_view(struct chooser *c, const struct policy *policy,
                      const struct table *t, uint32_t n_seen,
                      struct policy_view *out)
{
    c->table = t;
    c->needs = policy->needs;
    workers_run(c->size.workers, (int)c->n_lists, read_list, c);
    *out = (struct policy_view){.n_layers = c->size.n_layers,
                                .n_kv_heads = c->size.n_kv_heads,
                                .group = c->size.n_heads / c->size.n_kv_heads,
                                .head_dim = c->size.head_dim,
                                .n_seen = n_seen,
                                .list = c->list};
    for (uint32_t i = 0; i < c->n_lists; i++) {
        size_t at = (size_t)i * c->size.max_tokens;
        c->list[i] = (struct policy_list){.n = t->list[i].len,
                                          .first = out->n_entries,
                                          .pos = c->pos + at,
                                          .log_beta = c->log_beta + at,
                                          .key = c->key + at * c->size.head_dim,
                                          .key_norm = c->key_norm + at,
                                          .value_norm = c->value_norm + at};
        out->n_entries += t->list[i].len;
    }
}

static void take_out(struct chooser *c, struct table *t)
{
    const uint8_t *keep = c->keep;
    for (uint32_t i = 0; i < c->n_lists; i++)
        for (uint32_t e = 0; e < t->list[i].len; e++, keep++)
            if (!*keep)
                c->gone[t->list[i].unit[e / KV_UNIT]] |=
                    (uint16_t)(1u << e % KV_UNIT);
    compact_table(t, c->gone);
    memset(c->gone, 0, pool_stats(t->pool).n_units * sizeof(*c->gone));
}

static enum err apply_policy(struct chooser *c, const struct choice *how,
                             struct table *t, uint32_t n_seen)
{
    struct policy_view view;
    struct policy_params params = how->policy->defaults;
    params.n_entries = choice_entries(how->budget, n_seen);
    params.n_sinks = how->n_sinks;
    params.n_recent = how->n_recent;
    params.min_head = how->min_head;
    params.seed = how->seed;
    read_view(c, how->policy, t, n_seen, &view);
    enum err rc =
        policy_keep(how->policy, &view, &params, c->size.workers, c->keep);
    if (rc == OK)
        take_out(c, t);
    return rc;
}

static enum err apply_pass(struct chooser *c, const struct choice *how,
                           struct table *t, uint32_t n_seen, struct errmsg *m)
{
    struct select_session session = {
        .table = t, .n_seen = n_seen, .cap = UINT64_MAX};
    struct select_tenant tenant = {.cap = UINT64_MAX};
    uint64_t wanted =
        (uint64_t)c->n_lists * choice_entries(how->budget, n_seen);
    uint64_t all = table_n_entries(t);
    struct select_input in = {.pool = t->pool,
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
                       struct table *t, uint32_t n_seen, struct errmsg *m)
{
    return how->kind == CHOICE_PASS ? apply_pass(c, how, t, n_seen, m)
                                    : apply_policy(c, how, t, n_seen);
}
