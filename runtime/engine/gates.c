/* Gates of answers' tokens, computed for several steps together.
 *
 * Nobody reads how long an entry stays useful before something must leave, or
 * is shared, or ends. Gates cost what it takes to read their weights, so it
 * is worth waiting for several tokens; see docs/decisions, gates-in-step. */
#include "runtime/engine/engine_internal.h"

void engine_finish_gates(struct engine *e)
{
    if (e->lm.finish_gates)
        e->lm.finish_gates(e->lm.self);
}

/* An entry more in each list, and it is cut again. */
static bool is_at_cap(const struct engine *e, const struct gen *g)
{
    return session_n_entries(g->session) + e->n_lists > engine_cap(e, g);
}

/* A pass under way looks at entries in every step. */
bool engine_goes_on(const struct engine *e)
{
    if (e->flushing || (e->look && e->queue.n > 0) ||
        evict_is_under_way(e->evict))
        return false;
    for (uint32_t i = 0; i < e->n_running; i++) {
        const struct gen *g = e->running[i];
        if (g->now.state != GEN_DECODE || g->cut.session ||
            atomic_load(&g->is_cancelled) || is_at_cap(e, g))
            return false;
    }
    return true;
}
