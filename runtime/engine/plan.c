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
        bool waits = g->cut.session;
        g->take = g->now.state == GEN_DECODE && !waits;
        n_decode += g->take;
        if (g->take) {
            context += schedule_context(mean_length(e, g->session), 1);
            continue;
        }
        if (waits)
            continue;
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

/* Whether what leaves this prompt can only be merged if it is watched. */
static bool is_to_watch(const struct gen *g)
{
    const struct forget_admission *a = &g->session->rules.admission;
    return session_forgets(g->session) && !a->off && watch_is_needed(a->fate);
}

/* Entries that the session of a prompt may hold that does not fit as a whole:
 * its part, by weight, of what exact sessions leave, and what is kept beside
 * entries. A unit of each list is taken off, because its end is not full. */
static uint64_t share_of(const struct engine *e, const struct gen *g)
{
    const struct sessions *ss = &e->sessions;
    double weights = 0, weight = session_weight(ss, g->session);
    uint64_t cap = engine_cap(e, g);
    for (uint32_t i = 0; i < e->n_running; i++)
        if (session_forgets(e->running[i]->session))
            weights += session_weight(ss, e->running[i]->session);
    uint64_t left = e->n_units - ss->n_exact - ss->n_reserved - ss->n_watch;
    uint64_t units = (uint64_t)((double)left * weight / weights);
    uint64_t share = units > e->n_lists ? (units - e->n_lists) * KV_UNIT : 0;
    uint64_t least = (uint64_t)g->floor * e->n_lists;
    const struct watch *w = g->session->watch;
    if (!w && !g->is_tried && is_to_watch(g))
        share = watch_entries_in(e->watches, g->session->rules.admission.fate,
                                 share / KV_UNIT);
    if (w && share > watch_max_entries(w))
        share = watch_max_entries(w);
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

/* Entries that all lists have when the prompt is stored and nothing left. */
static uint64_t all_entries(const struct engine *e, const struct gen *g)
{
    return (uint64_t)g->session->n_known * e->n_lists;
}

/* From now on the whole rest of the prompt has its room, if that is free
 * beside what the step needs anyway. One that is watched and will be cut to
 * its cap goes on in chunks, which fit what the watch holds. */
static bool can_be_whole(struct engine *e, struct gen *g, uint64_t others)
{
    struct session *s = g->session;
    if (s->n_known > e->o.max_context ||
        session_missing(s, s->n_known) + others + engine_margin(e) >
            engine_free_units(e) ||
        (s->watch && engine_cap(e, g) < all_entries(e, g)))
        return false;
    g->is_whole = session_reserve(&e->sessions, s, s->n_known) == OK;
    if (g->is_whole) {
        s->is_read = false;
        watch_end(e->watches, s);
    }
    return g->is_whole;
}

/* Watches a prompt that will be cut, so that what leaves can be merged. False:
 * there is no room for it. */
static bool watch(struct engine *e, struct gen *g, uint64_t entries)
{
    enum forget_fate fate = g->session->rules.admission.fate;
    uint64_t need = watch_units_for(e->watches, fate, entries);
    if (!watch_can_begin(e->watches, g->session, entries))
        return false;
    while (engine_free_units(e) < need)
        if (!engine_gain(e, need, NULL))
            return false;
    return watch_begin(e->watches, g->session, entries);
}

/* A prompt that fits is cut once, to its cap, when it is stored. If there is no
 * room for what must be kept beside it, it goes on in chunks. */
static void watch_whole(struct engine *e, struct gen *g)
{
    struct session *s = g->session;
    if (g->is_tried || !is_to_watch(g) || engine_cap(e, g) >= all_entries(e, g))
        return;
    g->is_tried = true;
    if (!watches_have_free(e->watches, s->rules.admission.fate) ||
        watch(e, g, all_entries(e, g)))
        return;
    g->is_whole = g->is_tried = false;
    if (session_reserve(&e->sessions, s, s->n_stored) != OK)
        assert(false && "giving back cannot fail");
}

/* One that does not fit is cut between chunks. */
static void watch_chunked(struct engine *e, struct gen *g)
{
    if (g->is_tried || !is_to_watch(g))
        return;
    uint64_t share = share_of(e, g);
    g->is_tried = true;
    (void)watch(e, g, share);
}

/* Prompts that do not fit are cut to their share so that the next chunk is
 * within it. */
static void plan_chunks(struct engine *e, uint32_t n_prompts)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_prompts; i++) {
        struct gen *g = gen_of(e->prefill[i]);
        struct session *s = g->session;
        if (g->take == 0 || !session_forgets(s))
            continue;
        bool was_whole = g->is_whole;
        if (was_whole)
            watch_whole(e, g);
        if (g->is_whole || (!was_whole && can_be_whole(e, g, units_missing(e))))
            continue;
        watch_chunked(e, g);
        s->is_read = !s->rules.admission.off;
        uint64_t share = share_of(e, g), held = table_n_entries(s->table);
        g->take = to_border(g, chunk_max(e, share));
        uint64_t chunk = (uint64_t)g->take * e->n_lists;
        uint64_t most = share > chunk ? share - chunk : 0;
        uint64_t least = (uint64_t)g->floor * e->n_lists;
        most = most > least ? most : least;
        e->limit[n] = (struct evict_limit){s, most, ENGINE_ADMISSION};
        if (held > most)
            n += !engine_cut_later(e, g, &e->limit[n]);
    }
    (void)engine_cut(e, e->limit, n);
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

static uint64_t n_rows(const struct engine *e)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < e->n_running; i++)
        n += e->running[i]->take;
    return n;
}

/* While a pass is worked on, prompts take no more room than it can follow with.
 * Otherwise they would soon need what it has not freed yet, and answers would
 * have to wait for its end. */
static void follow_the_pass(struct engine *e, uint32_t n_prompts)
{
    uint64_t most = engine_rate(e);
    while (units_missing(e) > most && n_rows(e) > ENGINE_CHUNK &&
           shrink_a_chunk(e, n_prompts))
        ;
}

static void make_room(struct engine *e, uint32_t n_prompts)
{
    uint64_t need = units_missing(e);
    engine_gain_ahead(e, need);
    follow_the_pass(e, n_prompts);
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
