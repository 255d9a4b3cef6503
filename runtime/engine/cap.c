/* Caps of sessions: what is above them goes after each step, and before a
 * session comes to rest. */
#include "runtime/engine/engine_internal.h"

enum {
    LARGE_CAP = 4, /* larger than such a part of a slice: */
    HEADROOM = 64  /* cut by so much more */
};

uint64_t engine_cap(const struct engine *e, const struct gen *g)
{
    uint64_t most = g->request.forget.session_tokens;
    if (most == 0 || g->request.forget.policy == FORGET_EXACT)
        return UINT64_MAX;
    return (most > g->floor ? most : g->floor) * e->n_lists;
}

/* Those of the n sessions that are above their limits still hold what others
 * have come to share with them. They get it for themselves, and are cut then;
 * once, since what has lost something is not shared while it runs. */
static void cut_what_is_shared(struct engine *e, const struct evict_limit *l,
                               uint32_t n)
{
    uint32_t i_list, i_unit;
    for (uint32_t i = 0; i < n; i++) {
        if (table_n_entries(l[i].session->table) <= l[i].most ||
            !session_find_shared(l[i].session, &i_list, &i_unit))
            continue;
        (void)engine_own_units(e, l[i].session);
        (void)engine_cut(e, &l[i], 1);
    }
}

static void cut_all(struct engine *e, const struct evict_limit *l, uint32_t n)
{
    (void)engine_cut(e, l, n);
    cut_what_is_shared(e, l, n);
}

static bool is_above(const struct engine *e, const struct gen *g)
{
    return table_n_entries(g->session->table) > engine_cap(e, g);
}

static struct evict_limit limit_of(const struct engine *e, const struct gen *g)
{
    bool is_prompt = g->now.state == GEN_PREFILL;
    bool is_cut = !g->session->rules.admission.off;
    uint64_t most = engine_cap(e, g);
    /* To look at all that a large session holds for the few entries that each
     * token brings would cost more than the token. */
    if (!is_prompt && most > e->slice / LARGE_CAP)
        most -= most / HEADROOM;
    return (struct evict_limit){
        g->session, most, is_prompt && is_cut ? ENGINE_ADMISSION : ENGINE_CAP};
}

/* A prompt that has just been stored as a whole, and an answer that got a
 * token. */
void engine_cut_to_caps(struct engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct gen *g = e->running[i];
        struct session *s = g->session;
        bool is_prompt = g->now.state == GEN_PREFILL;
        if (g->take == 0 || (is_prompt && g->prefill.left > 0))
            continue;
        s->is_kept = false;
        if (!is_above(e, g) || (is_prompt && s->rules.admission.off))
            continue;
        e->limit[n] = limit_of(e, g);
        n += !engine_cut_later(e, g, &e->limit[n]);
    }
    cut_all(e, e->limit, n);
}

/* What is its own is cut already. */
void engine_cut_rest(struct engine *e, struct gen *g)
{
    bool is_done = g->now.state == GEN_DECODE || g->prefill.left == 0;
    if (!is_done || !is_above(e, g))
        return;
    const struct evict_limit l = limit_of(e, g);
    cut_what_is_shared(e, &l, 1);
}

/* The answer may have ended before the step that would have cut its prompt. */
void engine_cut_at_end(struct engine *e, struct gen *g)
{
    if (!is_above(e, g))
        return;
    g->session->is_kept = false;
    const struct evict_limit l = limit_of(e, g);
    cut_all(e, &l, 1);
}
