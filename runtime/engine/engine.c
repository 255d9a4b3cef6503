#include "runtime/engine/engine.h"

#include <assert.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/stats.h"

uint32_t engine_max_context(const struct engine *e)
{
    return e->o.max_context;
}

uint64_t engine_pool_tokens(const struct engine *e)
{
    return e->pool_tokens;
}

uint32_t engine_n_vocab(const struct engine *e)
{
    return e->lm.n_vocab;
}

uint64_t engine_memory_bytes(const struct engine *e)
{
    return e->memory_bytes;
}

/* The bytes of the budget by state. Used units are live or prefix, the rest
 * is reserved or free; what the budget has beyond whole units is free. */
static void fill_gauges(const struct engine *e, struct engine_stats *s)
{
    struct pool_stats p = pool_stats(e->pool);
    s->running = e->n_running;
    s->budget_bytes = p.budget_bytes;
    s->prefix_bytes = e->sessions.n_prefix * p.unit_bytes;
    s->live_bytes = p.used * p.unit_bytes - s->prefix_bytes;
    s->reserved_bytes = p.reserved * p.unit_bytes;
    s->free_bytes =
        s->budget_bytes - s->prefix_bytes - s->live_bytes - s->reserved_bytes;
    s->entries_retained = e->sessions.n_held;
    s->entries_logical = e->sessions.n_held + e->sessions.n_lost;
    s->sessions_live = e->sessions.running.n;
    s->sessions_at_rest = e->sessions.rest.n;
}

static void publish(struct engine *e)
{
    fill_gauges(e, &e->stats);
    pthread_mutex_lock(&e->mu);
    e->published = e->stats;
    e->pending.n_starts -= e->taken.n_starts;
    e->pending.n_waits -= e->taken.n_waits;
    e->pending.units -= e->taken.units;
    e->taken = (struct engine_load){0};
    e->n_queued = e->queue.n;
    e->open_slots = e->o.max_running - e->n_running;
    e->open_units = sessions_room(&e->sessions);
    atomic_fetch_sub(&e->n_active, e->n_ended);
    e->n_ended = 0;
    pthread_mutex_unlock(&e->mu);
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->mu);
    *out = e->published;
    out->waiting = atomic_load(&e->n_active) - out->running;
    out->refused_queue = e->refused_queue;
    out->refused_kv = e->refused_kv;
    out->refused_context = e->refused_context;
    out->refused_draining = e->refused_draining;
    pthread_mutex_unlock(&e->mu);
}

static void deliver(struct engine *e)
{
    struct gen *g = e->changed;
    e->changed = NULL;
    while (g) {
        struct gen *next = g->next_changed;
        g->is_changed = false;
        bool is_done = g->now.state == GEN_DONE;
        if (gen_deliver(g) != OK) {
            /* The host is out of memory; the text waits with us, and the end
             * with it. */
            engine_mark_changed(e, g);
        } else if (is_done) {
            gen_unref(g);
        }
        g = next;
    }
}

static void show(struct engine *e)
{
    publish(e);
    deliver(e);
}

static void *run(void *user)
{
    struct engine *e = user;
    while (engine_take_in(e)) {
        e->goes_on = engine_goes_on(e);
        if (!e->goes_on)
            engine_finish_gates(e);
        engine_purge_cancelled(e);
        engine_do_flush(e);
        engine_cut_some(e);
        engine_admit(e);
        engine_expire(e);
        show(e);
        engine_tell_flushed(e);
        if (e->n_running > 0) {
            engine_step(e);
            show(e);
        }
    }
    engine_finish_gates(e);
    engine_end_all(e, GEN_FINISH_SHUTDOWN);
    show(e);
    engine_tell_flushed(e);
    /* Where the host has no memory for the last words the end must do. */
    while (e->changed) {
        for (struct gen *g = e->changed; g; g = g->next_changed)
            buf_clear(&g->staged);
        deliver(e);
    }
    return NULL;
}

static void free_memory(struct engine *e)
{
    evict_free(e->evict);
    evict_free(e->cuts);
    evict_free(e->slow);
    watches_free(e->watches);
    ranker_free(e->ranker);
    if (e->sessions.pool)
        sessions_fini(&e->sessions);
    pool_free(e->pool);
    for (uint32_t i = 0; e->scratch && i < e->n_scratch; i++)
        sample_scratch_free(e->scratch[i]);
    free(e->scratch);
    free(e->running);
    free(e->row_token);
    free(e->run);
    free(e->run_gen);
    free(e->logit_row);
    free(e->logit_gen);
    free(e->logits);
    free(e->chosen);
    free(e->is_bad);
    free(e->prefill);
    free(e->limit);
    buf_fini(&e->piece);
    free(e);
}

static enum err check_options(const struct engine_options *o, struct errmsg *m)
{
    if (o->max_running == 0)
        return err_set(m, ERR_INVAL, "max_running must be at least 1");
    if (o->max_step_rows < o->max_running)
        return err_set(m, ERR_INVAL,
                       "a step of %u rows cannot hold a token of each of %u "
                       "running answers",
                       o->max_step_rows, o->max_running);
    if (o->max_context < 2)
        return err_set(m, ERR_INVAL,
                       "a context of %u tokens holds no prompt with an answer",
                       o->max_context);
    return OK;
}

static enum err new_pass(struct engine *e, struct evict **out,
                         uint32_t max_sessions, bool only_cuts)
{
    const struct evict_setup setup = {
        .sessions = &e->sessions,
        .workers = e->o.workers,
        .watches = e->watches,
        .ranker = e->ranker,
        .options = &e->o.forget,
        .max_sessions = max_sessions,
        .only_cuts = only_cuts,
    };
    enum err rc = evict_new(out, &setup);
    if (rc == OK)
        e->memory_bytes += evict_bytes(*out);
    return rc;
}

static enum err new_evict(struct engine *e)
{
    uint64_t most = (uint64_t)e->n_units / e->n_lists + e->o.max_running;
    e->max_sessions =
        most < ENGINE_SESSIONS_MAX ? (uint32_t)most : ENGINE_SESSIONS_MAX;
    if (e->max_sessions <= e->o.max_running)
        e->max_sessions = e->o.max_running + 1;
    /* A session's guarantee has a unit a list to go on with; a chunk of a
     * prompt takes one more. */
    e->sessions.chunk_units = (ENGINE_CHUNK / KV_UNIT - 1) * e->n_lists;
    const struct watches_setup watching = {
        .lm = &e->lm,
        .sessions = &e->sessions,
        .options = &e->o.merge,
        .max_rows = e->o.max_step_rows,
        .max_prompts = ENGINE_WATCHES < e->o.max_running ? ENGINE_WATCHES
                                                         : e->o.max_running,
        .workers = e->o.workers,
        .max_columns = e->o.forget.watch_columns ? e->o.max_context : 0,
    };
    enum err rc = watches_new(&e->watches, &watching);
    if (rc != OK)
        return rc;
    e->memory_bytes += watches_bytes(e->watches);
    const struct ranker_setup ranking = {
        .lm = &e->lm,
        .workers = e->o.workers,
        .options = &e->o.forget,
        .max_running = e->o.max_running,
        .max_context = e->o.max_context,
    };
    rc = ranker_new(&e->ranker, &ranking);
    if (rc != OK)
        return rc;
    e->memory_bytes += ranker_bytes(e->ranker);
    rc = new_pass(e, &e->evict, e->max_sessions, false);
    if (rc == OK)
        rc = new_pass(e, &e->cuts, e->o.max_running, true);
    if (rc == OK)
        rc = new_pass(e, &e->slow, 1, true);
    return rc;
}

/* Tokens that the pool must hold at least: a short exact request, and what a
 * session can never forget, with one chunk of a prompt. */
static uint64_t least_tokens(const struct engine *e)
{
    const struct forget_options *f = &e->o.forget;
    uint64_t least = ENGINE_LEAST_TOKENS, floor = engine_floor(e, NULL, 0);
    if (least > e->o.max_context)
        least = e->o.max_context;
    if (f->rules.policy == FORGET_EXACT)
        return least;
    floor += (KV_UNIT - floor % KV_UNIT) % KV_UNIT + ENGINE_CHUNK;
    return floor > least ? floor : least;
}

static enum err new_pool(struct engine *e, struct errmsg *m)
{
    struct kv_layout layout;
    kv_layout_init(&layout, e->o.kv_type, e->lm.head_dim);
    uint64_t least = least_tokens(e);
    uint64_t bytes =
        table_units_for(e->n_lists, (uint32_t)least) * pool_unit_bytes(&layout);
    if (e->o.kv_bytes < bytes)
        return err_set(m, ERR_BUDGET,
                       "%llu bytes of KV memory are too few: a session of "
                       "%llu tokens in %u layers with %u KV heads needs %llu",
                       (unsigned long long)e->o.kv_bytes,
                       (unsigned long long)least, e->lm.n_layers,
                       e->lm.n_kv_heads, (unsigned long long)bytes);
    enum err rc = pool_new(&e->pool, &layout, e->o.kv_bytes, m);
    if (rc != OK)
        return rc;
    e->n_units = pool_stats(e->pool).n_units;
    e->pool_tokens = (uint64_t)(e->n_units / e->n_lists) * KV_UNIT;
    rc = sessions_init(&e->sessions, e->pool, e->lm.n_layers, e->lm.n_kv_heads);
    if (rc == OK)
        rc = new_evict(e);
    return rc == OK ? OK : err_set(m, rc, "no memory for the KV bookkeeping");
}

/* Zeroed step memory that counts. */
static void *new_array(struct engine *e, size_t n, size_t size)
{
    e->memory_bytes += n * size;
    return calloc(n, size);
}

static enum err new_scratch(struct engine *e)
{
    uint32_t n = e->o.workers ? (uint32_t)workers_count(e->o.workers) : 1;
    if (n > ENGINE_SCRATCHES_MAX)
        n = ENGINE_SCRATCHES_MAX;
    if (n > e->o.max_running)
        n = e->o.max_running;
    e->scratch = new_array(e, n, sizeof(*e->scratch));
    if (!e->scratch)
        return ERR_NOMEM;
    e->n_scratch = n;
    e->memory_bytes += n * sample_scratch_bytes(e->lm.n_vocab);
    for (uint32_t i = 0; i < n; i++) {
        if (sample_scratch_new(&e->scratch[i], e->lm.n_vocab) != OK)
            return ERR_NOMEM;
    }
    return OK;
}

static enum err new_step_memory(struct engine *e, struct errmsg *m)
{
    size_t n = e->o.max_running;
    enum err rc = new_scratch(e);
    e->running = new_array(e, n, sizeof(*e->running));
    e->row_token = new_array(e, e->o.max_step_rows, sizeof(*e->row_token));
    e->run = new_array(e, n, sizeof(*e->run));
    e->run_gen = new_array(e, n, sizeof(*e->run_gen));
    e->logit_row = new_array(e, n, sizeof(*e->logit_row));
    e->logit_gen =
        new_array(e, n + ENGINE_SCRATCHES_MAX, sizeof(*e->logit_gen));
    e->logits = new_array(e, n * e->lm.n_vocab, sizeof(*e->logits));
    e->chosen = new_array(e, n, sizeof(*e->chosen));
    e->is_bad = new_array(e, n, sizeof(*e->is_bad));
    e->prefill = new_array(e, n, sizeof(*e->prefill));
    e->limit = new_array(e, n, sizeof(*e->limit));
    if (rc != OK || !e->running || !e->row_token || !e->run || !e->run_gen ||
        !e->logit_row || !e->logit_gen || !e->logits || !e->chosen ||
        !e->is_bad || !e->prefill || !e->limit)
        return err_set(m, ERR_NOMEM, "no memory for the engine's steps");
    return OK;
}

/* Requests without a seed differ from each other and from run to run, unless
 * the server is to repeat itself. */
static enum err seed(struct engine *e, struct errmsg *m)
{
    uint64_t first = 0;
    if (!e->o.deterministic && hash_random(&first, sizeof(first)) != OK)
        return err_set(m, ERR_INTERNAL,
                       "the system has no random numbers to give");
    rng_seed(&e->rng, first);
    return OK;
}

static int32_t fallback_of(const struct engine_options *o)
{
    size_t n = 0;
    const int32_t *eog = tokenizer_eog(o->tokenizer, &n);
    return n > 0 ? eog[0] : 0;
}

static enum err start(struct engine *e, struct errmsg *m)
{
    pthread_mutex_init(&e->mu, NULL);
    pthread_cond_init(&e->cond, NULL);
    if (pthread_create(&e->thread, NULL, run, e) == 0)
        return OK;
    pthread_cond_destroy(&e->cond);
    pthread_mutex_destroy(&e->mu);
    return err_set(m, ERR_NOMEM, "cannot start the engine's thread");
}

enum err engine_new_lm(struct engine **out, const struct engine_options *o,
                       const struct lm *lm, struct errmsg *m)
{
    enum err rc = check_options(o, m);
    if (rc != OK)
        return rc;
    struct engine *e = calloc(1, sizeof(*e));
    if (!e)
        return err_set(m, ERR_NOMEM, "no memory for the engine");
    e->o = *o;
    e->lm = *lm;
    e->n_lists = lm->n_layers * lm->n_kv_heads;
    e->slice = ENGINE_SLICE;
    e->fallback = fallback_of(o);
    atomic_init(&e->n_active, 0);
    schedule_init(&e->schedule, o->max_step_rows, o->step_target_us,
                  o->deterministic);
    stats_init(&e->stats);
    rc = new_pool(e, m);
    if (rc == OK)
        rc = new_step_memory(e, m);
    if (rc == OK)
        rc = seed(e, m);
    if (rc == OK) {
        fill_gauges(e, &e->stats);
        e->published = e->stats;
        e->open_slots = o->max_running;
        e->open_units = e->n_units;
        rc = start(e, m);
    }
    if (rc != OK) {
        free_memory(e);
        return rc;
    }
    *out = e;
    return OK;
}

enum err engine_new(struct engine **out, const struct engine_options *o,
                    struct errmsg *m)
{
    struct lm lm;
    lm_of_model(&lm, o->model);
    return engine_new_lm(out, o, &lm, m);
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->mu);
    e->is_stopping = true;
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->mu);
    pthread_join(e->thread, NULL);
    pthread_cond_destroy(&e->cond);
    pthread_mutex_destroy(&e->mu);
    free_memory(e);
}
