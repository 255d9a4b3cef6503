/* Who gets how many rows of the next step, and room for them.
 *
 * Nothing is evicted once rows are appended: they are not computed yet. So
 * all room that a step needs is made before its first append. */
#include <assert.h>
#include <stddef.h>

#include "runtime/engine/engine_internal.h"

static struct gen *gen_of(struct schedule_prefill *p)
{
    return (struct gen *)((char *)p - offsetof(struct gen, prefill));
}

/* Entries that a query attends to, on average over the lists. */
static uint32_t mean_length(const struct engine *e, const struct session *s)
{
    return (uint32_t)(table_n_entries(s->table) / e->n_lists);
}

/* Returns the number of prompts, which are e->prefill then, in the order in
 * which they are served. */
static uint32_t plan_rows(struct engine *e)
{
    uint32_t n = 0, n_decode = 0;
    uint64_t context = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct gen *g = e->running[i];
        g->take = g->now.state == GEN_DECODE;
        n_decode += g->take;
        if (g->take) {
            context += schedule_context(mean_length(e, g->session), 1);
            continue;
        }
        g->prefill.pos = mean_length(e, g->session);
        e->prefill[n++] = &g->prefill;
    }
    if (n > 0)
        schedule_plan(&e->schedule, n_decode, context, e->prefill, n);
    for (uint32_t i = 0; i < n; i++)
        gen_of(e->prefill[i])->take = e->prefill[i]->take;
    return n;
}

static uint64_t units_missing(const struct engine *e)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        const struct session *s = e->running[i]->session;
        n += session_missing(s, s->n_stored + e->running[i]->take);
    }
    return n;
}

/* Entries that the session of a prompt may hold that does not fit as a whole:
 * its part of what exact sessions leave. A unit of each list is taken off,
 * because its end is not full. */
static uint64_t share_of(const struct engine *e, const struct gen *g)
{
    uint64_t n_forgetting = 0, cap = engine_cap(e, g);
    for (uint32_t i = 0; i < e->n_running; i++)
        n_forgetting += session_forgets(e->running[i]->session);
    uint64_t units =
        (e->n_units - e->sessions.n_exact - e->sessions.n_reserved) /
        n_forgetting;
    uint64_t share = units > e->n_lists ? (units - e->n_lists) * KV_UNIT : 0;
    uint64_t least = (uint64_t)g->floor * e->n_lists;
    share = share < cap ? share : cap;
    return share > least ? share : least;
}

/* At most `most` of the rows planned, to the last border within them. */
static uint32_t to_border(const struct gen *g, uint32_t most)
{
    uint32_t pos = g->session->n_stored, n = g->take < most ? g->take : most;
    if (n == g->prefill.left)
        return n;
    uint32_t past = (pos + n) % ENGINE_CHUNK;
    return n > past ? n - past : n;
}

/* A chunk is small against the share, so that little of what is there must
 * make room for it at a time. */
static uint32_t chunk_max(const struct engine *e, uint64_t share)
{
    uint64_t n = share / e->n_lists / 4;
    return n < ENGINE_CHUNK ? ENGINE_CHUNK
                            : (uint32_t)(n < UINT32_MAX ? n : UINT32_MAX);
}

/* From now on the whole rest of the prompt has its room, if that is free
 * beside what the step needs anyway. */
static bool can_be_whole(struct engine *e, struct gen *g, uint64_t others)
{
    struct session *s = g->session;
    if (s->n_known > e->o.max_context ||
        session_missing(s, s->n_known) + others > engine_free_units(e))
        return false;
    g->is_whole = session_reserve(&e->sessions, s, s->n_known) == OK;
    return g->is_whole;
}

/* Prompts that do not fit are cut to their share so that the next chunk is
 * within it. */
static void plan_chunks(struct engine *e, uint32_t n_prompts)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_prompts; i++) {
        struct gen *g = gen_of(e->prefill[i]);
        struct session *s = g->session;
        if (g->take == 0 || !session_forgets(s) || g->is_whole ||
            can_be_whole(e, g, units_missing(e)))
            continue;
        uint64_t share = share_of(e, g), held = table_n_entries(s->table);
        g->take = to_border(g, chunk_max(e, share));
        uint64_t chunk = (uint64_t)g->take * e->n_lists;
        uint64_t most = share > chunk ? share - chunk : 0;
        uint64_t least = (uint64_t)g->floor * e->n_lists;
        most = most > least ? most : least;
        if (held > most)
            e->limit[n++] = (struct evict_limit){s, most, ENGINE_ADMISSION};
    }
    engine_cut(e, n);
}

/* Nothing more can be gained: the last chunk that needs room gets less. */
static bool shrink_a_chunk(struct engine *e, uint32_t n_prompts)
{
    for (uint32_t i = n_prompts; i-- > 0;) {
        struct gen *g = gen_of(e->prefill[i]);
        const struct session *s = g->session;
        if (g->take == 0 || session_missing(s, s->n_stored + g->take) == 0)
            continue;
        g->take = g->take > ENGINE_CHUNK ? to_border(g, g->take / 2) : 0;
        return true;
    }
    return false;
}

static void make_room(struct engine *e, uint32_t n_prompts)
{
    uint64_t need = units_missing(e);
    engine_gain_ahead(e, need);
    for (;;) {
        need = units_missing(e);
        if (engine_free_units(e) >= need)
            return;
        if (!engine_gain(e, need, NULL) && !shrink_a_chunk(e, n_prompts))
            assert(false && "running answers have their room");
    }
}

void engine_plan(struct engine *e)
{
    uint32_t n_prompts = plan_rows(e);
    plan_chunks(e, n_prompts);
    engine_reposition(e);
    make_room(e, n_prompts);
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct gen *g = e->running[i];
        struct session *s = g->session;
        uint32_t n = s->n_stored + g->take;
        if (g->take > 0 &&
            session_reserve(&e->sessions, s, n > s->goal ? n : s->goal) != OK)
            assert(false && "room was made");
    }
}
