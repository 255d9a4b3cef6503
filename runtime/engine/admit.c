/* How a request starts and how it ends. */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/stats.h"

static struct gen *gen_of(struct queue_node *node)
{
    return (struct gen *)((char *)node - offsetof(struct gen, node));
}

uint64_t engine_age_us(const struct gen *g, int64_t now)
{
    return now > g->submitted_us ? (uint64_t)(now - g->submitted_us) : 1;
}

void engine_mark_changed(struct engine *e, struct gen *g)
{
    if (g->is_changed)
        return;
    g->is_changed = true;
    g->next_changed = e->changed;
    e->changed = g;
}

/* An exact session: all that it will ever need. */
static enum err reserve_all(struct engine *e, struct session *s,
                            const struct session *from)
{
    if (!session_can_fit(&e->sessions, s))
        return ERR_BUDGET;
    /* Room for all but copies of tails that are shared with sessions at rest:
     * without these it needs none. */
    while (session_missing(s, s->cap) > sessions_room(&e->sessions))
        if (!engine_drop_oldest(e, from))
            assert(false && "the tails are shared with sessions at rest");
    while (session_reserve(&e->sessions, s, s->cap) != OK)
        if (!engine_gain(e, session_missing(s, s->cap), from))
            assert(false && "what can be gained was counted");
    return OK;
}

/* One that forgets: the whole prompt where that is free beside the margin, or,
 * for one that is never cut, as soon as it can be had. */
static enum err reserve_prompt(struct engine *e, struct gen *g,
                               struct session *s, const struct session *from)
{
    if (sessions_promised(&e->sessions) > e->n_units)
        return ERR_BUDGET;
    s->is_kept = g->request.forget.admission.off;
    if (s->n_known > e->o.max_context)
        return OK;
    if (!s->is_kept && session_missing(s, s->n_known) + engine_margin(e) >
                           engine_free_units(e))
        return OK;
    while (session_reserve(&e->sessions, s, s->n_known) != OK) {
        if (!s->is_kept)
            return OK;
        if (!engine_gain(e, session_missing(s, s->n_known), from))
            return ERR_BUDGET;
    }
    g->is_whole = true;
    return OK;
}

/* Reserves the units that sharing takes. What cannot be had is not shared. */
static uint32_t reserve_fork(struct engine *e, struct session_match *match)
{
    for (;;) {
        uint64_t n = session_fork_units(match->from, match->n_tokens);
        if (n <= engine_free_units(e) &&
            pool_reserve(e->pool, (uint32_t)n) == OK)
            return (uint32_t)n;
        if (engine_forget_some(e, n))
            continue;
        *match = (struct session_match){0};
        return 0;
    }
}

/* Where a history has lost something, sharing less than all of it takes copies,
 * and what comes behind stays. If that is short of room, the history itself
 * goes back (docs/design, algorithms 1.5), unless most of it would be lost:
 * then it is likely another's. */
static void roll_back(struct engine *e, const struct gen *g,
                      const struct session_match *match)
{
    struct session *from = match->from;
    uint32_t n = match->n_tokens;
    if (!from || from->is_running || from->n_lost == 0 || n == from->n_stored ||
        from->n_stored - n > n)
        return;
    uint64_t need = session_fork_units(from, n) +
                    table_units_for(e->n_lists, g->request.n_tokens - n);
    if (need <= engine_free_units(e))
        return;
    uint64_t copies = table_truncate_units(from->table, n);
    if (copies > UINT32_MAX || pool_reserve(e->pool, (uint32_t)copies) != OK)
        return;
    uint64_t taken = session_roll_back(&e->sessions, from, n);
    pool_unreserve(e->pool, (uint32_t)(copies - taken));
}

static enum err new_session(struct engine *e, struct gen *g,
                            struct session_match *match, struct session **out)
{
    engine_bound_sessions(e, match->from);
    roll_back(e, g, match);
    uint32_t n_units = reserve_fork(e, match);
    const struct session_start start = {
        .from = match->from,
        .n_shared = match->n_tokens,
        .token = g->request.tokens,
        .n = g->request.n_tokens,
        .cap = g->cap,
        .max_entries = g->cap < e->o.max_context ? g->cap : e->o.max_context,
        .rules = g->request.forget,
        .pin = g->request.pin,
        .n_pins = g->request.n_pins,
        .guarantee = g->guarantee,
    };
    enum err rc = session_new(&e->sessions, out, &start);
    if (rc != OK)
        pool_unreserve(e->pool, n_units);
    return rc;
}

static enum err start_session(struct engine *e, struct gen *g,
                              struct session_match *match)
{
    struct session *s = NULL;
    enum err rc = new_session(e, g, match, &s);
    if (rc != OK)
        return rc;
    /* First of all the history that it continues: its tail need not be copied
     * then. If no room is found the new session takes its place at rest. */
    const struct session *from = match->from;
    if (from && !from->is_running && from->n_stored <= s->n_stored)
        from = NULL;
    session_absorb(&e->sessions, s);
    rc = session_forgets(s) ? reserve_prompt(e, g, s, from)
                            : reserve_all(e, s, from);
    if (rc != OK) {
        g->is_whole = false;
        session_rest(&e->sessions, s);
        return rc;
    }
    g->session = s;
    return OK;
}

static enum err start_sampler(struct engine *e, struct gen *g)
{
    const struct sample_start start = {
        .params = &g->request.params,
        .bias = g->request.bias,
        .n_bias = g->request.n_bias,
        .prompt = g->request.tokens,
        .n_prompt = g->request.n_tokens,
        .max_tokens = g->max_tokens,
        .n_vocab = e->lm.n_vocab,
        .seed = g->seed,
    };
    return sampler_init(&g->sampler, &start);
}

static void begin(struct engine *e, struct gen *g)
{
    struct session *s = g->session;
    int64_t now = clock_us();
    detok_init(&g->detok, e->o.tokenizer);
    g->prefill = (struct schedule_prefill){
        .pos = s->n_stored,
        .left = s->n_known - s->n_stored,
        .order = e->n_admitted++,
    };
    g->now.state = GEN_PREFILL;
    g->now.cached_tokens = s->n_stored;
    g->now.admitted_us = engine_age_us(g, now);
    e->running[e->n_running++] = g;
    e->stats.prompt_tokens += g->now.prompt_tokens;
    e->stats.cached_tokens += s->n_stored;
    stats_observe_us(&e->stats.queue_seconds, now - g->submitted_us);
    engine_mark_changed(e, g);
}

/* A first look, before anything is searched. Whatever an exact request
 * shares, all its units will be promised. */
static bool may_have_room(const struct engine *e, const struct gen *g)
{
    const struct sessions *ss = &e->sessions;
    if (g->guarantee > 0)
        return g->guarantee <= sessions_room(ss);
    uint64_t others = ss->n_reserved + ss->n_guaranteed;
    return table_units_for(e->n_lists, g->cap) + others <= e->n_units;
}

/* Whether the prompt will be cut for certain: it is longer than its cap, or
 * than the pool. */
static bool will_be_cut(const struct engine *e, const struct gen *g)
{
    const struct forget_rules *r = &g->request.forget;
    uint64_t all = (uint64_t)g->request.n_tokens * e->n_lists;
    return r->policy != FORGET_EXACT && !r->admission.off &&
           (all > engine_cap(e, g) || g->request.n_tokens > e->pool_tokens);
}

/* What g can share. False: it waits for others, which is not for long. Nobody
 * kept what the queries of a beginning said. So a prompt that is ranked by all
 * of its queries shares nothing, and waits for those who are; one that will be
 * cut by what its last queries say computes these; one whose entries will be
 * merged by what each of them looked at shares only what was cut like that
 * before. */
static bool find_match(const struct engine *e, const struct gen *g,
                       struct session_match *out)
{
    struct session_wish wish = {.token = g->request.tokens,
                                .n = g->request.n_tokens,
                                .rules = &g->request.forget,
                                .options = &e->o.forget,
                                .pin = g->request.pin,
                                .n_pins = g->request.n_pins};
    if (forget_studies_prompt(wish.rules)) {
        *out = (struct session_match){0};
        return ranker_can_begin(e->ranker, wish.rules);
    }
    if (will_be_cut(e, g))
        wish.n_fresh = watch_is_needed(wish.rules->admission.fate)
                           ? wish.n
                           : ranker_window(wish.rules);
    *out = sessions_match(&e->sessions, &wish);
    return !out->ahead || out->n_ahead - out->n_tokens < ENGINE_HOLD_LEAST;
}

static enum queue_verdict try_start(void *user, struct queue_node *node)
{
    struct engine *e = user;
    struct gen *g = gen_of(node);
    struct session_match match;
    if (e->n_running == e->o.max_running)
        return QUEUE_ALL_BUSY;
    if (!may_have_room(e, g))
        return QUEUE_NO_ROOM;
    if (!find_match(e, g, &match)) {
        e->look = true;
        return QUEUE_HELD;
    }
    if (start_sampler(e, g) != OK || start_session(e, g, &match) != OK) {
        sampler_fini(&g->sampler);
        return QUEUE_NO_ROOM;
    }
    ranking_begin(e->ranker, g->session);
    begin(e, g);
    return QUEUE_STARTED;
}

void engine_admit(struct engine *e)
{
    if (!e->look || e->queue.n == 0)
        return;
    engine_finish_gates(e);
    e->look = false;
    queue_admit(&e->queue, try_start, e);
}

/* The queue is in order of submission, but for the few whose clocks were read
 * in another order than they came in. */
void engine_expire(struct engine *e)
{
    int64_t now = clock_us();
    bool is_busy = e->n_running == e->o.max_running;
    while (e->o.queue_us > 0 && e->queue.first) {
        struct gen *g = gen_of(e->queue.first);
        if (engine_age_us(g, now) < e->o.queue_us)
            return;
        engine_end(e, g, is_busy ? GEN_FINISH_BUSY : GEN_FINISH_NO_ROOM);
        e->stats.expired_busy += is_busy;
        e->stats.expired_no_room += !is_busy;
    }
}

static void leave_running(struct engine *e, const struct gen *g)
{
    uint32_t i = 0;
    while (e->running[i] != g)
        i++;
    e->n_running--;
    memmove(&e->running[i], &e->running[i + 1],
            (e->n_running - i) * sizeof(e->running[0]));
}

static void rank_for_rest(struct engine *e, struct session *s)
{
    int64_t start = clock_us();
    if (evict_rank(e->evict, s))
        engine_note_stall(e, start);
}

void engine_end(struct engine *e, struct gen *g, enum gen_finish finish)
{
    int64_t now = clock_us();
    assert(g->now.state != GEN_DONE);
    if (g->now.state == GEN_WAITING) {
        queue_remove(&e->queue, &g->node);
    } else {
        engine_finish_gates(e);
        engine_forget_cut(e, g);
        if (!e->is_ending)
            engine_cut_at_end(e, g);
        leave_running(e, g);
        engine_update_kv(e, g);
        if (g->now.full_entries > 0)
            stats_observe(&e->stats.retained_share,
                          (double)g->now.retained_entries /
                              (double)g->now.full_entries);
        watch_end(e->watches, g->session);
        if (!e->is_ending)
            rank_for_rest(e, g->session);
        ranking_end(e->ranker, g->session);
        session_rest(&e->sessions, g->session);
        g->session = NULL;
    }
    g->now.state = GEN_DONE;
    g->now.finish = finish;
    g->now.done_us = engine_age_us(g, now);
    if (finish == GEN_FINISH_STOP || finish == GEN_FINISH_LENGTH)
        stats_observe_us(&e->stats.request_seconds, now - g->submitted_us);
    gen_end(g);
    e->n_ended++;
    e->look = true;
    engine_mark_changed(e, g);
}

void engine_purge_cancelled(struct engine *e)
{
    struct queue_node *next;
    for (struct queue_node *node = e->queue.first; node; node = next) {
        next = node->next;
        if (atomic_load(&gen_of(node)->is_cancelled))
            engine_end(e, gen_of(node), GEN_FINISH_CANCELLED);
    }
    for (uint32_t i = e->n_running; i-- > 0;) {
        if (atomic_load(&e->running[i]->is_cancelled))
            engine_end(e, e->running[i], GEN_FINISH_CANCELLED);
    }
}

void engine_end_all(struct engine *e, enum gen_finish finish)
{
    e->is_ending = true;
    while (e->queue.first)
        engine_end(e, gen_of(e->queue.first), finish);
    while (e->n_running > 0)
        engine_end(e, e->running[e->n_running - 1], finish);
}
