/* Caps of sessions: what is above them goes after each step, and before a
 * session comes to rest. */
#include "runtime/engine/engine_internal.h"

uint64_t engine_cap(const struct engine *e, const struct gen *g)
{
    uint64_t most = g->request.forget.session_tokens;
    if (most == 0 || !session_forgets(g->session))
        return UINT64_MAX;
    return (most > g->floor ? most : g->floor) * e->n_lists;
}

/* Those of the n sessions of e->limit that are above it still hold what others
 * have come to share with them. They get it for themselves, and are cut then;
 * once, since what has lost something is not shared while it runs. */
static void cut_what_is_shared(struct engine *e, uint32_t n)
{
    uint32_t n_again = 0, i_list, i_unit;
    for (uint32_t i = 0; i < n; i++) {
        struct evict_limit l = e->limit[i];
        if (table_n_entries(l.session->table) <= l.most ||
            !session_find_shared(l.session, &i_list, &i_unit))
            continue;
        (void)engine_own_units(e, l.session);
        e->limit[n_again++] = l;
    }
    engine_cut(e, n_again);
}

static bool is_above(const struct engine *e, const struct gen *g)
{
    return table_n_entries(g->session->table) > engine_cap(e, g);
}

static struct evict_limit limit_of(const struct engine *e, const struct gen *g)
{
    bool is_prompt = g->now.state == GEN_PREFILL;
    bool is_cut = !g->session->rules.admission.off;
    return (struct evict_limit){g->session, engine_cap(e, g),
                                is_prompt && is_cut ? ENGINE_ADMISSION
                                                    : ENGINE_CAP};
}

/* A prompt that has just been stored as a whole, and an answer that got a
 * token. */
void engine_cut_to_caps(struct engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        const struct gen *g = e->running[i];
        struct session *s = g->session;
        bool is_prompt = g->now.state == GEN_PREFILL;
        if (g->take == 0 || (is_prompt && g->prefill.left > 0))
            continue;
        s->is_kept = false;
        if (is_above(e, g) && !(is_prompt && s->rules.admission.off))
            e->limit[n++] = limit_of(e, g);
    }
    engine_cut(e, n);
    cut_what_is_shared(e, n);
}

/* The answer may have ended before the step that would have cut its prompt. */
void engine_cut_at_end(struct engine *e, struct gen *g)
{
    if (!is_above(e, g))
        return;
    g->session->is_kept = false;
    e->limit[0] = limit_of(e, g);
    engine_cut(e, 1);
    cut_what_is_shared(e, 1);
}
