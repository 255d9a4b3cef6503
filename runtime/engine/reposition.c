/* Sessions at the end of the model's context: their entries are moved together
 * in RoPE position, and they go on behind them. What a session has seen, and
 * where each entry stands in it, stays as it is. With the option `reposition`
 * that is done as well for each prompt that was cut (docs/design, algorithms
 * 2, stage 6). */
#include <assert.h>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/engine/engine_internal.h"

uint32_t engine_context_margin(const struct engine *e)
{
    uint32_t n = e->o.max_context / 8;
    return n > ENGINE_CHUNK ? n : ENGINE_CHUNK;
}

static bool has_reached_the_end(const struct engine *e, const struct gen *g)
{
    return g->take > 0 && g->session->rope + g->take > e->o.max_context;
}

/* What is shared must be the session's own by now. */
static void turn_keys(struct engine *e, struct session *s)
{
    engine_finish_gates(e);
    s->rope = e->lm.reposition(e->lm.self, s->table);
    watch_moved(s);
    ranking_moved(s);
}

/* Once a request, when its prompt is read and has been cut. */
static void close_gaps(struct engine *e, struct gen *g)
{
    struct session *s = g->session;
    if (!e->o.forget.reposition || g->is_closed_up || g->cut.session ||
        g->now.state != GEN_DECODE)
        return;
    g->is_closed_up = true;
    if (s->n_lost > 0 && engine_own_units(e, s))
        turn_keys(e, s);
}

static void move_together(struct engine *e, struct gen *g)
{
    struct session *s = g->session;
    struct evict_result r;
    int64_t start = clock_us();
    engine_finish_gates(e);
    if (!engine_own_units(e, s))
        assert(false && "a guarantee has a unit to spare");
    /* A list that is as long as the context leaves no position to go on. */
    enum engine_cause cause =
        g->now.state == GEN_PREFILL ? ENGINE_ADMISSION : ENGINE_CAP;
    int64_t since = clock_us();
    evict_cut_lists(e->cuts, s, e->o.max_context - engine_context_margin(e),
                    cause, &r);
    engine_note_stall(e, since);
    (void)engine_count(e, &r);
    turn_keys(e, s);
    assert(s->rope + g->take <= e->o.max_context);
    log_msg(LOG_LEVEL_DEBUG,
            "a session of %u tokens goes on at position %u (%lld us)",
            s->n_stored, s->rope, (long long)(clock_us() - start));
}

void engine_reposition(struct engine *e)
{
    uint32_t most = engine_context_margin(e);
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct gen *g = e->running[i];
        close_gaps(e, g);
        if (!has_reached_the_end(e, g))
            continue;
        g->take = g->take < most ? g->take : most;
        if (has_reached_the_end(e, g))
            move_together(e, g);
    }
}
