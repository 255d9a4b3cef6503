#include "runtime/engine/rank.h"

#include <assert.h>
#include <stdlib.h>

#include "base/arena.h"
#include "cache/policy/policy.h"
#include "cache/policy/standing.h"
#include "runtime/model/probe.h"
#include "runtime/model/view.h"

enum {
    N_WINDOW = 32, /* queries: the longest window of all policies */
    N_STUDIES = 1, /* probes for what all queries of a prompt say */
    WATCHED = POLICY_WINDOW | POLICY_PEAK,
    STUDIED = POLICY_COLUMNS | POLICY_FUTURE
};

struct ranking {
    struct ranking *next_free;
    struct probe *probe;
    bool is_study;
};

struct ranker {
    struct ranker_setup o;
    uint64_t bytes;
    struct ranking *all; /* [n] */
    uint32_t n;
    struct ranking *window, *study; /* that nobody uses */
    struct view *whole;             /* positions of a session */
    struct view **part;             /* [n_threads] layers of it */
    int n_threads;
};

static uint32_t needs_of(enum forget_policy p)
{
    const struct policy *policy = forget_policy_method(p);
    return policy ? policy->needs : 0;
}

/* ---------------------------------------------------------------- the life */

static struct probe_options options_of(const struct ranker *r, bool is_study)
{
    struct probe_options o = {.n_window = N_WINDOW};
    if (is_study) {
        o.parts = PROBE_COLUMNS | PROBE_FUTURE;
        o.max_tokens = r->o.max_context;
        o.n_skip = r->o.options->n_sinks;
    }
    return o;
}

static struct ranking **free_list(struct ranker *r, bool is_study)
{
    return is_study ? &r->study : &r->window;
}

static void give_back(struct ranker *r, struct ranking *g)
{
    struct ranking **list = free_list(r, g->is_study);
    g->next_free = *list;
    *list = g;
}

static struct ranking *take(struct ranker *r, bool is_study)
{
    struct ranking **list = free_list(r, is_study), *g = *list;
    assert(g);
    *list = g->next_free;
    probe_reset(g->probe);
    return g;
}

static enum err new_probe(struct ranker *r, struct ranking *g, bool is_study)
{
    const struct probe_options o = options_of(r, is_study);
    enum err rc = probe_new(&g->probe, r->o.lm->model, &o, NULL);
    g->is_study = is_study;
    if (rc != OK)
        return rc;
    r->bytes += probe_bytes(r->o.lm->model, &o);
    give_back(r, g);
    return OK;
}

static enum err new_views(struct ranker *r)
{
    enum err rc = view_new(&r->whole, r->o.lm->model);
    r->n_threads = r->o.workers ? workers_count(r->o.workers) : 1;
    r->part = calloc((size_t)r->n_threads, sizeof(*r->part));
    if (!r->part)
        return ERR_NOMEM;
    for (int i = 0; i < r->n_threads && rc == OK; i++)
        rc = view_new(&r->part[i], r->o.lm->model);
    return rc;
}

enum err ranker_new(struct ranker **out, const struct ranker_setup *o)
{
    struct ranker *r = calloc(1, sizeof(*r));
    enum err rc = OK;
    if (!r)
        return ERR_NOMEM;
    r->o = *o;
    r->n = o->lm->model ? o->max_running + N_STUDIES : 0;
    r->all = calloc((size_t)r->n + 1, sizeof(*r->all));
    if (!r->all)
        rc = ERR_NOMEM;
    for (uint32_t i = r->n; i-- > 0 && rc == OK;)
        rc = new_probe(r, &r->all[i], i >= o->max_running);
    if (rc == OK && r->n > 0)
        rc = new_views(r);
    if (rc != OK) {
        ranker_free(r);
        return rc;
    }
    *out = r;
    return OK;
}

void ranker_free(struct ranker *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->all && i < r->n; i++)
        probe_free(r->all[i].probe);
    for (int i = 0; r->part && i < r->n_threads; i++)
        view_free(r->part[i]);
    view_free(r->whole);
    free(r->part);
    free(r->all);
    free(r);
}

uint64_t ranker_bytes(const struct ranker *r)
{
    return r->bytes;
}

/* ------------------------------------------------------------- the queries */

uint32_t ranker_window(const struct forget_rules *rules)
{
    return needs_of(forget_ranking(rules)) & WATCHED ? N_WINDOW : 0;
}

bool ranker_can_begin(const struct ranker *r, const struct forget_rules *rules)
{
    return r->n == 0 || r->study || !forget_studies_prompt(rules);
}

void ranking_begin(struct ranker *r, struct session *s)
{
    bool is_study = forget_studies_prompt(&s->rules);
    uint32_t needs =
        needs_of(s->rules.policy) | needs_of(forget_ranking(&s->rules));
    assert(!s->ranking);
    if (r->n > 0 && (is_study || (needs & WATCHED)))
        s->ranking = take(r, is_study);
}

void ranking_end(struct ranker *r, struct session *s)
{
    if (s->ranking)
        give_back(r, s->ranking);
    s->ranking = NULL;
}

void ranking_prompt_ends(struct ranker *r, struct session *s)
{
    struct ranking *g = s->ranking;
    bool goes_on = needs_of(s->rules.policy) & WATCHED;
    if (!g || (goes_on && !g->is_study))
        return;
    s->ranking = NULL;
    if (goes_on) {
        s->ranking = take(r, false);
        probe_copy_window(s->ranking->probe, g->probe);
    }
    give_back(r, g);
}

struct probe *ranking_probe(const struct session *s)
{
    return s->ranking ? s->ranking->probe : NULL;
}

void ranking_moved(struct session *s)
{
    if (s->ranking)
        probe_reset(s->ranking->probe);
}

/* ------------------------------------------------------------- the ranking */

bool ranking_is_fresh(const struct session *s, enum forget_policy by)
{
    return s->ranked_by == by && s->n_stored - s->ranked_at < RANK_EVERY;
}

/* One ranking. The arrays are by entry of the view of the whole. */
struct work {
    struct ranker *ranker;
    const struct session *session;
    const struct policy *policy;
    const struct probe *probe; /* NULL: it looks at no queries */
    const struct policy_view *view;
    struct policy_params params;
    float *score, *standing;
    uint8_t *keep;
    enum err *rc; /* [n_layers] */
};

/* Scores by entry of a view of some layers, to where the layer's entries are
 * in the whole. */
static void place(struct work *w, const struct policy_view *part,
                  uint32_t layer, const float *score)
{
    uint32_t H = w->view->n_kv_heads;
    for (uint32_t i = layer * H; i < (layer + 1) * H; i++)
        for (uint32_t e = 0; e < part->list[i].n; e++)
            w->score[w->view->list[i].first + e] =
                score[part->list[i].first + e];
}

static enum err score_layer(struct work *w, uint32_t layer, struct view *v,
                            struct arena *a)
{
    const struct policy_view *part = view_get(v);
    const uint32_t layers[2] = {
        layer, policy_looks_at(w->policy, w->view, &w->params, layer)};
    const struct view_source from = {
        .table = w->session->table,
        .probe = w->probe,
        .n_seen = w->session->n_stored,
        .needs = w->policy->needs,
        .n_window = w->params.n_window > 0 ? w->params.n_window : 1};
    enum err rc = view_fill_layers(v, &from, layers);
    if (rc != OK)
        return rc;
    float *score = arena_array(a, part->n_entries, sizeof(*score));
    if (!score)
        return ERR_NOMEM;
    rc = policy_score_layer(w->policy, part, &w->params, layer, score);
    if (rc == OK)
        place(w, part, layer, score);
    return rc;
}

static void score_task(void *ctx, int task, int thread)
{
    struct work *w = ctx;
    struct arena a;
    arena_init(&a, SIZE_MAX);
    w->rc[task] = score_layer(w, (uint32_t)task, w->ranker->part[thread], &a);
    arena_fini(&a);
}

static enum err score_all(struct work *w)
{
    struct workers *workers = w->ranker->o.workers;
    uint32_t n = w->view->n_layers;
    enum err rc = OK;
    if (workers)
        workers_run(workers, (int)n, score_task, w);
    for (uint32_t i = 0; !workers && i < n; i++)
        score_task(w, (int)i, 0);
    for (uint32_t i = 0; i < n && rc == OK; i++)
        rc = w->rc[i];
    return rc;
}

/* What was shared with others, or was at a floor, may have left the lists of a
 * layer unlike each other: then each head keeps its own. */
static enum err choose(struct work *w)
{
    enum err rc =
        policy_select(w->policy, w->view, &w->params, w->score, w->keep);
    if (rc != ERR_INVAL)
        return rc;
    w->params.spread = POLICY_PER_HEAD;
    return policy_select(w->policy, w->view, &w->params, w->score, w->keep);
}

static enum err make_arrays(struct work *w, struct arena *a)
{
    uint64_t n = w->view->n_entries;
    w->score = arena_array(a, n, sizeof(*w->score));
    w->standing = arena_array(a, n, sizeof(*w->standing));
    w->keep = arena_array(a, n, 1);
    w->rc = arena_array(a, w->view->n_layers, sizeof(*w->rc));
    return w->score && w->standing && w->keep && w->rc ? OK : ERR_NOMEM;
}

static void set_params(struct work *w, uint64_t most)
{
    const struct forget_options *o = w->ranker->o.options;
    uint32_t n_lists = w->view->n_layers * w->view->n_kv_heads;
    uint64_t n = most / n_lists;
    if (most == 0)
        n = table_max_len(w->session->table);
    w->params = policy_defaults(w->policy, w->view->group);
    w->params.n_entries = n < 1 ? 1 : n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    w->params.n_sinks = o->n_sinks;
    w->params.n_recent = o->n_recent;
    w->params.min_head = o->min_head;
    if (o->per_head_sets)
        policy_set_per_head(&w->params);
}

static void store(const struct work *w, bool only_private)
{
    const struct table *t = w->session->table;
    const uint32_t *slot = view_slot(w->ranker->whole);
    for (uint32_t i = 0; i < t->n_layers * t->n_kv_heads; i++) {
        const struct policy_list *l = &w->view->list[i];
        for (uint32_t e = 0; e < l->n; e++) {
            uint32_t at = slot[l->first + e];
            unit_id u = t->list[i].unit[at / KV_UNIT];
            if (!only_private || pool_refs(t->pool, u) == 1)
                pool_meta(t->pool, u)->standing[at % KV_UNIT] =
                    w->standing[l->first + e];
        }
    }
}

static enum err rank(struct work *w, uint64_t most, struct arena *a)
{
    struct workers *workers = w->ranker->o.workers;
    enum err rc = view_fill(w->ranker->whole, w->session->table, w->probe,
                            w->session->n_stored, 0);
    if (rc != OK)
        return rc;
    set_params(w, most);
    rc = make_arrays(w, a);
    if (rc == OK)
        rc = score_all(w);
    if (rc == OK && most > 0)
        rc = choose(w);
    if (rc != OK)
        return rc;
    return policy_standing(w->view, &w->params, w->score,
                           most > 0 ? w->keep : NULL, workers, w->standing);
}

/* All queries that it needs were kept up to the last token. */
static bool can_look(const struct session *s, const struct policy *policy)
{
    const struct probe *p = ranking_probe(s);
    uint32_t needs = policy->needs & (WATCHED | STUDIED);
    if (needs == 0)
        return true;
    return p && probe_n_rows(p) > 0 && probe_n_seen(p) == s->n_stored &&
           (needs & ~view_offers(p)) == 0;
}

bool ranker_rank(struct ranker *r, struct session *s,
                 const struct ranking_wish *wish, uint64_t *kept)
{
    struct work w = {
        .ranker = r, .session = s, .policy = forget_policy_method(wish->by)};
    struct arena a;
    assert(forget_ranks_by_standing(wish->by));
    if (r->n == 0 || s->n_stored == 0 || !can_look(s, w.policy))
        return false;
    if (w.policy->needs & (WATCHED | STUDIED))
        w.probe = ranking_probe(s);
    w.view = view_get(r->whole);
    arena_init(&a, SIZE_MAX);
    bool is_ranked = rank(&w, wish->most, &a) == OK;
    if (is_ranked) {
        store(&w, wish->only_private);
        s->ranked_by = wish->by;
        s->ranked_at = s->n_stored;
    }
    if (is_ranked && kept) {
        *kept = 0;
        for (uint64_t i = 0; i < w.view->n_entries; i++)
            *kept += wish->most == 0 || w.keep[i];
    }
    arena_fini(&a);
    view_clear(r->whole);
    for (int i = 0; i < r->n_threads; i++)
        view_clear(r->part[i]);
    return is_ranked;
}
