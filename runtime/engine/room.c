/* Room in the pool: what it takes to have some.
 *
 * In this order: sessions at rest that cannot forget are dropped, then those
 * down to their floors where they are many, then who forgets loses what ranks
 * lowest, then sessions at rest are dropped, least recently used first, then
 * what running ones share gets smaller, and at last prompts give back what was
 * reserved for the rest of them. Running answers always get theirs
 * (session.h). */
#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/stats.h"

enum { SPENT_PART = 4 }; /* of the pool: all that spent sessions may fill */

uint64_t engine_free_units(const struct engine *e)
{
    struct pool_stats p = pool_stats(e->pool);
    return p.n_units - p.used - p.reserved;
}

/* What a pass frees beyond the need of the moment, so that it isn't repeated
 * at each step: 2% of the pool, or 64 entries for each running list. Bounded,
 * because on a small pool the latter could be most of it. */
static uint64_t slack(const struct engine *e)
{
    uint64_t n = e->n_units / 50;
    uint64_t lists = (uint64_t)e->n_running * e->n_lists * (64 / KV_UNIT);
    n = n > lists ? n : lists;
    return n < e->n_units / 16 ? n : e->n_units / 16;
}

static bool somebody_forgets(const struct engine *e)
{
    for (const struct session *s = e->sessions.oldest; s; s = s->newer)
        if (session_forgets(s) && s->n_stored > 0)
            return true;
    return false;
}

uint64_t engine_count(struct engine *e, const struct evict_result *r)
{
    uint64_t n = 0;
    for (int i = 0; i < ENGINE_N_CAUSES; i++) {
        e->stats.evicted[i] += r->gone[i];
        n += r->gone[i];
    }
    if (r->below > -INFINITY)
        e->stats.evicted_below = r->below;
    e->stats.merged += r->merged.merged;
    e->stats.routed += r->merged.routed;
    if ((double)r->merged.log_ratio > e->stats.merge_log_ratio)
        e->stats.merge_log_ratio = (double)r->merged.log_ratio;
    if (r->merge_us > 0)
        stats_observe_us(&e->stats.merge_seconds, r->merge_us);
    return n;
}

void engine_note_stall(struct engine *e, int64_t start)
{
    stats_observe_us(&e->stats.evict_seconds, clock_us() - start);
}

/* Works on the pass that is under way, in a stall since `start`; adds to *gone
 * what it took. True when the pass has ended. */
static bool work(struct engine *e, uint64_t max_looks, int64_t start,
                 uint64_t *gone)
{
    struct evict_result r;
    engine_finish_gates(e);
    bool ended =
        evict_step(e->evict, max_looks, engine_slice(e) / ENGINE_TAKE_COST, &r);
    engine_note_stall(e, start);
    *gone += engine_count(e, &r);
    const struct evict_limit *owed;
    uint32_t n = evict_owed(e->evict, &owed);
    *gone += engine_cut(e, owed, n);
    return ended;
}

/* The choice is made to the end, but no more is taken out now than is needed
 * now; the rest goes in the steps to come. */
static void work_until(struct engine *e, uint64_t need, int64_t start,
                       uint64_t *gone)
{
    while (!work(e, UINT64_MAX, start, gone)) {
        if (*gone > 0 && engine_free_units(e) >= need)
            return;
        start = clock_us();
    }
}

/* Policies are asked here, which takes longer than the choice itself. */
static void begin(struct engine *e, uint64_t need, bool squeeze)
{
    uint64_t high = need + slack(e), has = engine_free_units(e);
    engine_finish_gates(e);
    evict_begin(e->evict, high > has ? (high - has) * KV_UNIT : 1, squeeze);
}

bool engine_forget_some(struct engine *e, uint64_t need)
{
    uint64_t gone = 0;
    if (!somebody_forgets(e))
        return false;
    if (evict_is_under_way(e->evict))
        work_until(e, need, clock_us(), &gone);
    for (int squeeze = 0; squeeze < 2 && gone == 0; squeeze++) {
        /* What waits to be cut gives nothing until then. */
        if (squeeze && engine_finish_cut(e))
            return true;
        int64_t start = clock_us();
        begin(e, need, squeeze);
        work_until(e, need, start, &gone);
    }
    return gone > 0;
}

uint64_t engine_margin(const struct engine *e)
{
    return e->sessions.n_entries > e->slice ? slack(e) / 2 : 0;
}

void engine_gain_ahead(struct engine *e, uint64_t need)
{
    uint64_t gone = 0;
    int64_t start = clock_us();
    if (!evict_is_under_way(e->evict)) {
        uint64_t margin = engine_margin(e);
        if (margin == 0 || engine_free_units(e) >= need + margin ||
            !somebody_forgets(e))
            return;
        /* At its end so much is to be free, beside what is taken until then. */
        uint64_t until = need * (e->sessions.n_entries / e->slice + 1);
        begin(e, need + (until < margin ? until : margin), false);
    }
    (void)work(e, engine_slice(e), start, &gone);
}

uint64_t engine_rate(const struct engine *e)
{
    uint64_t margin = engine_margin(e), has = engine_free_units(e);
    uint64_t steps;
    if (margin == 0 || !evict_is_under_way(e->evict))
        return UINT64_MAX;
    steps = evict_steps_left(e->evict, engine_slice(e));
    if (steps > 1)
        return has / steps;
    /* What is taken out comes back step by step; the next pass will need its
     * margin. */
    return has > margin ? has - margin : 0;
}

static bool drop(struct engine *e, struct session *s)
{
    engine_finish_gates(e);
    session_drop(&e->sessions, s);
    e->stats.dropped_sessions++;
    return true;
}

static bool drop_exact(struct engine *e, const struct session *spare)
{
    for (struct session *s = e->sessions.rest.first; s; s = s->next)
        if (!session_forgets(s) && s != spare)
            return drop(e, s);
    return false;
}

/* A conversation at rest that is down to its floors, or nearly, gives nothing
 * more and is worth little to who returns to it. Many of them would fill the
 * pool and leave the running ones not much more than floors either. Told from
 * counts alone, since there may be thousands: no list is below its floor. */
static bool is_spent(const struct engine *e, const struct session *s)
{
    uint64_t held = session_n_entries(s);
    uint64_t least = (uint64_t)e->o.forget.min_head * e->n_lists;
    least = least > s->floor ? least : s->floor;
    return session_forgets(s) && held <= least + 4 * (uint64_t)e->n_lists;
}

/* Of lists of about equal length. */
static uint64_t units_of(const struct engine *e, const struct session *s)
{
    uint64_t n = (session_n_entries(s) + e->n_lists - 1) / e->n_lists;
    return (uint64_t)table_units_of((uint32_t)n) * e->n_lists;
}

static bool drop_spent(struct engine *e, const struct session *spare)
{
    uint64_t units = 0;
    struct session *first = NULL;
    if (e->sessions.n_prefix <= e->n_units / SPENT_PART)
        return false;
    for (struct session *s = e->sessions.rest.first; s; s = s->next) {
        if (!is_spent(e, s))
            continue;
        units += units_of(e, s);
        if (!first && s != spare)
            first = s;
    }
    return first && units > e->n_units / SPENT_PART && drop(e, first);
}

bool engine_drop_oldest(struct engine *e, const struct session *spare)
{
    struct session *s = e->sessions.rest.first;
    if (s && s == spare && s->next)
        s = s->next;
    return s && drop(e, s);
}

/* The request that came last loses its reservation first: its prompt goes on
 * in chunks, and is cut between them. */
static bool withdraw(struct engine *e)
{
    for (uint32_t i = e->n_running; i-- > 0;) {
        struct gen *g = e->running[i];
        struct session *s = g->session;
        if (!g->is_whole || s->is_kept || s->reserved == 0)
            continue;
        g->is_whole = false;
        if (session_reserve(&e->sessions, s, s->n_stored) != OK)
            assert(false && "giving back cannot fail");
        return true;
    }
    return false;
}

static bool forget_shared(struct engine *e, uint64_t need)
{
    struct evict_result r;
    uint64_t has = engine_free_units(e);
    if (e->sessions.running.n < 2 || !somebody_forgets(e))
        return false;
    int64_t start = clock_us();
    engine_finish_gates(e);
    evict_shared(e->evict, need > has ? (need - has) * KV_UNIT : 1, &r);
    engine_note_stall(e, start);
    return engine_count(e, &r) > 0;
}

bool engine_gain(struct engine *e, uint64_t need, const struct session *spare)
{
    return drop_exact(e, spare) || drop_spent(e, spare) ||
           engine_forget_some(e, need) || engine_drop_oldest(e, spare) ||
           forget_shared(e, need) || withdraw(e);
}

/* One unit at a time: each becomes one that may lose entries, so this ends
 * well however little is free. */
bool engine_own_units(struct engine *e, struct session *s)
{
    uint32_t i_list, i_unit;
    bool is_done = true;
    engine_finish_gates(e);
    while (is_done && session_find_shared(s, &i_list, &i_unit)) {
        if (pool_reserve(e->pool, 1) == OK)
            session_own_unit(&e->sessions, s, i_list, i_unit);
        else
            is_done = engine_gain(e, 1, NULL);
    }
    session_settle(&e->sessions, s);
    return is_done;
}

void engine_bound_sessions(struct engine *e, const struct session *spare)
{
    while (e->sessions.running.n + e->sessions.rest.n >= e->max_sessions)
        (void)engine_drop_oldest(e, spare);
}
