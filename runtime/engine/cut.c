/* Cuts: what a session loses to stay within a limit of its own. Small ones are
 * made at once. A large one is made in slices, step by step, as passes under
 * pressure are. Its session computes nothing meanwhile, so the limit is kept
 * whenever it does, and what it computes is the same; others go on. */
#include "base/clock.h"
#include "runtime/engine/engine_internal.h"

uint64_t engine_cut(struct engine *e, const struct evict_limit *l, uint32_t n)
{
    struct evict_result r;
    if (n == 0)
        return 0;
    int64_t start = clock_us();
    engine_finish_gates(e);
    evict_cut(e->cuts, l, n, &r);
    engine_note_stall(e, start);
    return engine_count(e, &r);
}

uint64_t engine_slice(const struct engine *e)
{
    return e->cutting ? e->slice / 2 + 1 : e->slice;
}

/* By what is to be looked at, and by what moves or goes. */
static bool is_large(const struct engine *e, const struct evict_limit *l)
{
    uint64_t held = table_n_entries(l->session->table);
    uint64_t goes = held - l->most;
    uint64_t moves = goes < l->most ? goes : l->most;
    return held > e->slice ||
           moves + goes / KV_UNIT > e->slice / ENGINE_TAKE_COST;
}

/* Merging needs what is kept of a prompt until it was cut, and what policies
 * say of entries must not be older than the cut. */
static bool can_wait(const struct engine *e, const struct evict_limit *l)
{
    const struct forget_rules *rules = &l->session->rules;
    bool is_prompt = l->cause == ENGINE_ADMISSION;
    return !forget_ranks_by_standing(is_prompt ? forget_ranking(rules)
                                               : rules->policy) &&
           !(is_prompt && watch_can_merge(e->watches, l->session));
}

bool engine_cut_later(struct engine *e, struct gen *g,
                      const struct evict_limit *l)
{
    if (g->was_cut || e->n_running < 2 || !is_large(e, l) || !can_wait(e, l))
        return false;
    g->cut = *l;
    g->take = 0;
    /* A pass under pressure goes on without it. */
    sessions_tell(&e->sessions, l->session);
    l->session->is_cut = true;
    return true;
}

void engine_forget_cut(struct engine *e, struct gen *g)
{
    if (!g->cut.session)
        return;
    g->cut.session->is_cut = false;
    g->cut.session = NULL;
    if (e->cutting != g)
        return;
    e->cutting = NULL;
    evict_forget(e->slow);
}

static bool begin(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_running && !e->cutting; i++) {
        struct gen *g = e->running[i];
        if (!g->cut.session)
            continue;
        e->cutting = g;
        evict_begin_cut(e->slow, &g->cut, 1);
    }
    return e->cutting;
}

static void finish(struct engine *e, struct gen *g)
{
    engine_forget_cut(e, g);
    g->was_cut = true;
    engine_cut_rest(e, g);
    engine_update_kv(e, g);
}

void engine_end_prompts(struct engine *e)
{
    for (uint32_t i = e->n_running; i-- > 0;) {
        struct gen *g = e->running[i];
        if (g->now.state == GEN_PREFILL && g->prefill.left == 0 &&
            g->max_tokens == 0 && !g->cut.session)
            engine_end(e, g, GEN_FINISH_LENGTH);
    }
}

static void work(struct engine *e, uint64_t max_looks, uint64_t max_takes)
{
    struct gen *g = e->cutting;
    struct evict_result r;
    bool ended = !evict_is_under_way(e->slow);
    int64_t start = clock_us();
    if (!ended) {
        engine_finish_gates(e);
        ended = evict_step(e->slow, max_looks, max_takes, &r);
        engine_note_stall(e, start);
        (void)engine_count(e, &r);
    }
    if (ended)
        finish(e, g);
}

void engine_cut_some(struct engine *e)
{
    if (begin(e)) {
        uint64_t slice =
            evict_is_under_way(e->evict) ? engine_slice(e) : e->slice;
        work(e, slice, slice / ENGINE_TAKE_COST);
    }
    engine_end_prompts(e);
}

bool engine_finish_cut(struct engine *e)
{
    if (!begin(e))
        return false;
    work(e, UINT64_MAX, UINT64_MAX);
    return true;
}
