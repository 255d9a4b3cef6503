#include "runtime/engine/evict.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "cache/score.h"
#include "runtime/engine/evict_internal.h"

static void leave(void *user, const struct session *s);

static void *new_array(struct evict *e, size_t n, size_t size)
{
    e->bytes += n * size;
    return calloc(n, size);
}

enum err evict_new(struct evict **out, const struct evict_setup *o)
{
    struct evict *e = calloc(1, sizeof(*e));
    if (!e)
        return ERR_NOMEM;
    e->o = *o;
    e->n_lists = sessions_n_lists(o->sessions);
    size_t n = o->max_sessions, lists = n * e->n_lists;
    uint32_t n_units = pool_stats(o->sessions->pool).n_units;
    const struct select_size size = {
        .n_units = n_units,
        .max_sessions = o->max_sessions,
        .max_tenants = o->sessions->n_tenants,
        .max_lists = (uint32_t)lists,
        /* KV_UNIT entries a unit; of all of them 1/16, or of some of them. */
        .max_undecided = o->only_cuts ? n_units / 8 + 1 : n_units,
        .n_threads = o->workers ? workers_count(o->workers) : 1,
    };
    e->session = new_array(e, n, sizeof(*e->session));
    e->of = new_array(e, n, sizeof(*e->of));
    e->share = new_array(e, n, sizeof(*e->share));
    e->cause = new_array(e, n, sizeof(*e->cause));
    e->group = new_array(e, n + 1, sizeof(*e->group));
    e->job = new_array(e, lists, sizeof(*e->job));
    e->owed = new_array(e, n, sizeof(*e->owed));
    e->user = new_array(e, n, sizeof(*e->user));
    e->user_table = new_array(e, n, sizeof(*e->user_table));
    e->shared = new_array(e, n, sizeof(*e->shared));
    e->tenant = new_array(e, size.max_tenants, sizeof(*e->tenant));
    e->unit_users =
        new_array(e, o->only_cuts ? 1 : n_units, sizeof(*e->unit_users));
    if (!e->tenant || !e->unit_users || !e->share || !e->session || !e->of ||
        !e->cause || !e->group || !e->job || !e->owed || !e->user ||
        !e->user_table || !e->shared || select_new(&e->select, &size) != OK) {
        evict_free(e);
        return ERR_NOMEM;
    }
    e->bytes += select_bytes(&size);
    sessions_listen(o->sessions, (struct session_listener){leave, e});
    *out = e;
    return OK;
}

void evict_free(struct evict *e)
{
    if (!e)
        return;
    sessions_unlisten(e->o.sessions, e);
    select_free(e->select);
    free(e->unit_users);
    free(e->tenant);
    free(e->share);
    free(e->pin);
    free(e->shared);
    free(e->user_table);
    free(e->user);
    free(e->owed);
    free(e->job);
    free(e->group);
    free(e->cause);
    free(e->of);
    free(e->session);
    free(e);
}

uint64_t evict_bytes(const struct evict *e)
{
    return e->bytes;
}

/* ------------------------------------------------------------- the input */

/* Who ranks the entries of a session. */
static enum forget_policy ranks(const struct session *s, enum engine_cause why)
{
    return why == ENGINE_ADMISSION ? forget_ranking(&s->rules)
                                   : s->rules.policy;
}

enum select_rank evict_rank_of(const struct session *s, enum engine_cause why)
{
    enum forget_policy p = ranks(s, why);
    if (forget_ranks_by_standing(p))
        return SELECT_STANDING;
    return p == FORGET_STREAMINGLLM ? SELECT_RECENCY : SELECT_RETENTION;
}

/* Equal shares for all heads. */
static bool is_by_head(const struct session *s, enum engine_cause why)
{
    return ranks(s, why) == FORGET_TRIMKV;
}

/* Before entries leave s until `most` are left: asks its policy, if it has
 * something to say. Returns how many are to be left: a prompt is cut to what
 * the policy keeps, which may be less. */
static uint64_t ask_policy(struct evict *e, struct session *s,
                           enum engine_cause why, uint64_t most)
{
    uint64_t kept = most;
    const struct ranking_wish wish = {.by = ranks(s, why), .most = most};
    if (!e->o.ranker || !forget_ranks_by_standing(wish.by) || !s->is_running ||
        (why != ENGINE_ADMISSION && ranking_is_fresh(s, wish.by)) ||
        !ranker_rank(e->o.ranker, s, &wish, &kept))
        return most;
    return why == ENGINE_ADMISSION && kept < most ? kept : most;
}

struct select_session *evict_add(struct evict *e, struct session *s,
                                 enum engine_cause cause)
{
    uint32_t i = e->in.n_sessions++;
    uint64_t idle = s->is_running ? 0 : e->o.sessions->clock - s->used_at;
    double weight = session_weight(e->o.sessions, s);
    assert(i < e->o.max_sessions);
    e->of[i] = s;
    e->share[i] = 0;
    e->cause[i] = cause;
    e->session[i] = (struct select_session){
        .table = s->table,
        .rank = evict_rank_of(s, cause),
        .pin = s->pin,
        .n_pins = s->n_pins,
        .n_seen = s->n_stored,
        .keep = !session_forgets(s) || s->is_kept ||
                (s->is_cut && cause == ENGINE_PRESSURE),
        .tenant = s->tenant,
        .offset = score_offset(weight, e->o.options->idle_decay, idle),
        .cap_offset = score_offset(weight, 0.0, 0),
        .floor = s->floor,
        .cap = UINT64_MAX,
    };
    return &e->session[i];
}

/* At most `most` entries, and with `exactly` not a single one fewer. */
static void limit(const struct evict *e, struct select_session *in,
                  const struct session *s, enum engine_cause cause,
                  uint64_t most, bool exactly)
{
    if (is_by_head(s, cause)) {
        in->min_head = (uint32_t)(most / e->n_lists);
        most = (uint64_t)in->min_head * e->n_lists;
    }
    in->cap = most;
    if (exactly && most > s->floor)
        in->floor = most;
}

/* Limits of tenants mean something where all their sessions are looked at. */
static void set_tenants(struct evict *e, bool is_all)
{
    const struct sessions *ss = e->o.sessions;
    for (uint32_t i = 0; i < ss->n_tenants; i++) {
        const struct session_tenant *t = &ss->tenant[i];
        e->tenant[i] = (struct select_tenant){
            .floor = is_all ? t->floor : 0,
            .cap = is_all ? t->cap : UINT64_MAX,
        };
    }
}

void evict_start(struct evict *e, uint64_t k, bool is_all)
{
    const struct forget_options *o = e->o.options;
    set_tenants(e, is_all);
    e->in.pool = e->o.sessions->pool;
    e->in.session = e->session;
    e->in.tenant = e->tenant;
    e->in.unit_users = e->o.only_cuts ? NULL : e->unit_users;
    e->in.n_tenants = e->o.sessions->n_tenants;
    e->in.k = k;
    e->in.min_head = o->min_head;
    e->in.n_sinks = o->n_sinks;
    e->in.n_recent = o->n_recent;
    e->in.n_ahead = 1;
    if (select_begin(e->select, &e->in, NULL) != OK)
        assert(false && "the pass is within its size");
    e->is_under_way = true;
    e->is_chosen = false;
}

/* ------------------------------------------------------------ the shares */

/* The group of learned retention first, then one a session of other kinds. */
static uint32_t find_groups(struct evict *e)
{
    uint32_t n = 1;
    e->group[0] = (struct group){.i = UINT32_MAX};
    for (uint32_t i = 0; i < e->in.n_sessions; i++) {
        const struct session *s = e->of[i];
        uint64_t room =
            e->session[i].keep ? 0 : session_above(s, e->o.options->min_head);
        struct group *g = &e->group[0];
        if (s->rules.policy != FORGET_DBTRIMKV) {
            g = &e->group[n++];
            *g = (struct group){.i = i};
        }
        g->room += room;
        g->part += (double)room / session_weight(e->o.sessions, s);
    }
    return n;
}

static int by_remainder(const void *pa, const void *pb)
{
    const struct group *a = pa, *b = pb;
    if (a->remainder != b->remainder)
        return a->remainder > b->remainder ? -1 : 1;
    /* The group of all last, then those created first. */
    return a->i < b->i ? -1 : a->i > b->i;
}

/* Largest remainder; nobody gives more than it has. Returns what all give. */
static uint64_t split(struct group *g, uint32_t n, uint64_t k)
{
    double sum = 0;
    uint64_t room = 0, given = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += g[i].part;
        room += g[i].room;
    }
    k = k < room ? k : room;
    for (uint32_t i = 0; i < n && sum > 0; i++) {
        double part = (double)k * (g[i].part / sum);
        g[i].share = (uint64_t)part < g[i].room ? (uint64_t)part : g[i].room;
        g[i].remainder = part - floor(part);
        given += g[i].share;
    }
    qsort(g, n, sizeof(*g), by_remainder);
    while (given < k) {
        for (uint32_t i = 0; i < n && given < k; i++) {
            if (g[i].share == g[i].room)
                continue;
            g[i].share++;
            given++;
        }
    }
    return given;
}

/* What leaves a prompt under pressure leaves by other rules than it would once
 * the prompt is read. */
static bool is_for_admission(const struct evict *e, const struct session *s)
{
    return s->is_read && (forget_ranking(&s->rules) != s->rules.policy ||
                          (e->o.watches && watch_can_merge(e->o.watches, s)));
}

static uint64_t split_between_groups(struct evict *e, uint64_t k)
{
    uint32_t n = find_groups(e);
    if (n == 1)
        return k;
    k = split(e->group, n, k);
    for (uint32_t i = 0; i < n; i++) {
        const struct group *g = &e->group[i];
        if (g->i == UINT32_MAX || e->session[g->i].keep)
            continue;
        struct session *s = e->of[g->i];
        uint64_t most = table_n_entries(s->table) - g->share;
        e->share[g->i] = g->share;
        if (!is_for_admission(e, s))
            (void)ask_policy(e, s, ENGINE_PRESSURE, most);
        limit(e, &e->session[g->i], s, ENGINE_PRESSURE, most, true);
    }
    return k;
}

void evict_begin(struct evict *e, uint64_t k, bool squeeze)
{
    e->in.n_sessions = 0;
    for (struct session *s = e->o.sessions->oldest; s; s = s->newer)
        (void)evict_add(e, s, ENGINE_PRESSURE);
    e->is_squeeze = squeeze;
    if (!squeeze)
        k = split_between_groups(e, k);
    evict_start(e, k, true);
}

bool evict_is_under_way(const struct evict *e)
{
    return e->is_under_way;
}

/* Takes the jobs of a session out of those to come. */
static void drop_jobs(struct evict *e, uint32_t i_session)
{
    uint32_t n = e->next_job;
    for (uint32_t i = n; i < e->n_jobs; i++)
        if (e->job[i].i != i_session)
            e->job[n++] = e->job[i];
    e->n_jobs = n;
}

/* A session ends, is ranked anew, or is changed by others: it is no part of
 * what is under way any more. */
static void leave(void *user, const struct session *s)
{
    struct evict *e = user;
    uint32_t i = 0;
    if (!e->is_under_way || e->is_taking)
        return;
    while (i < e->in.n_sessions && e->of[i] != s)
        i++;
    if (i == e->in.n_sessions)
        return;
    e->session[i].table = s->table;
    e->session[i].keep = true;
    bool goes_on = select_drop(e->select, i);
    e->of[i] = NULL;
    e->session[i].table = NULL;
    e->in.k -= e->share[i] < e->in.k ? e->share[i] : e->in.k;
    if (e->is_chosen)
        drop_jobs(e, i);
    e->is_under_way = e->is_chosen ? e->next_job < e->n_jobs : goes_on;
}

bool evict_rank(struct evict *e, struct session *s)
{
    const struct ranking_wish wish = {.by = s->rules.policy,
                                      .only_private = evict_is_under_way(e)};
    if (!e->o.ranker || !forget_ranks_by_standing(wish.by) ||
        ranking_is_fresh(s, wish.by))
        return false;
    leave(e, s);
    (void)ranker_rank(e->o.ranker, s, &wish, NULL);
    return true;
}

/* A session at rest has moved its table. */
static void find_tables(struct evict *e)
{
    for (uint32_t i = 0; i < e->in.n_sessions; i++)
        if (e->of[i])
            e->session[i].table = e->of[i]->table;
}

/* What was chosen of prompts that are read is let go: they are to lose as many
 * entries by the rules of their admission. */
static void owe(struct evict *e)
{
    for (uint32_t i = 0; i < e->in.n_sessions && !e->is_squeeze; i++) {
        struct session *s = e->of[i];
        uint64_t gone = s ? select_session_gone(e->select, i) : 0;
        if (gone == 0 || e->cause[i] != ENGINE_PRESSURE ||
            !is_for_admission(e, s))
            continue;
        e->owed[e->n_owed++] = (struct evict_limit){
            s, table_n_entries(s->table) - gone, ENGINE_ADMISSION};
        leave(e, s);
    }
}

uint32_t evict_owed(const struct evict *e, const struct evict_limit **out)
{
    *out = e->owed;
    return e->n_owed;
}

bool evict_step(struct evict *e, uint64_t max_looks, uint64_t max_takes,
                struct evict_result *r)
{
    assert(evict_is_under_way(e));
    *r = (struct evict_result){.below = -INFINITY};
    e->n_owed = 0;
    find_tables(e);
    if (!e->is_chosen) {
        if (select_step(e->select, e->o.workers, max_looks) == SELECT_MORE)
            return false;
        e->is_chosen = true;
        evict_find_jobs(e);
        owe(e);
        e->is_under_way = e->n_jobs > 0;
        if (max_looks < UINT64_MAX || !e->is_under_way)
            return !e->is_under_way;
    }
    evict_take_some(e, max_takes, r);
    e->is_under_way = e->next_job < e->n_jobs;
    return !e->is_under_way;
}

uint64_t evict_steps_left(const struct evict *e, uint64_t max_looks)
{
    return e->is_chosen ? 1 : 2 + select_left(e->select) / max_looks;
}

void evict_begin_cut(struct evict *e, const struct evict_limit *l, uint32_t n)
{
    e->in.n_sessions = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct session *s = l[i].session;
        uint64_t most = ask_policy(e, s, l[i].cause, l[i].most);
        struct select_session *in = evict_add(e, s, l[i].cause);
        limit(e, in, s, l[i].cause, most, false);
    }
    evict_start(e, 0, false);
}

void evict_cut(struct evict *e, const struct evict_limit *l, uint32_t n,
               struct evict_result *r)
{
    evict_begin_cut(e, l, n);
    (void)evict_step(e, UINT64_MAX, UINT64_MAX, r);
}

void evict_forget(struct evict *e)
{
    e->is_under_way = false;
}

void evict_cut_lists(struct evict *e, struct session *s, uint32_t most,
                     enum engine_cause cause, struct evict_result *r)
{
    *r = (struct evict_result){.below = -INFINITY};
    (void)ask_policy(e, s, cause, (uint64_t)most * e->n_lists);
    for (uint32_t i = 0; i < e->n_lists; i++) {
        struct table view = *s->table;
        if (view.list[i].len <= most)
            continue;
        view.n_layers = view.n_kv_heads = 1;
        view.list += i;
        e->in.n_sessions = 0;
        struct select_session *in = evict_add(e, s, cause);
        in->table = &view;
        in->floor = 0;
        in->cap = most;
        evict_start(e, 0, false);
        (void)select_step(e->select, e->o.workers, UINT64_MAX);
        e->is_under_way = false;
        evict_merge_list(e, s, i, cause, r);
        uint32_t n = watch_compact(s, i, select_gone(e->select));
        session_shrink(e->o.sessions, s, i, n);
        r->gone[cause] += n;
    }
    session_settle(e->o.sessions, s);
}
