/* What running sessions share, when all else is at its floors: entries go for
 * all users at once, ranked by the largest score that one of them has. That
 * is the score of the user that has seen least, since ages only differ by
 * clocks; what is among its newest, or later, is protected for all. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cache/compact.h"
#include "runtime/engine/evict_internal.h"

static bool has_unit(const struct session *s, uint32_t i_list, uint32_t at,
                     unit_id u)
{
    const struct kv_list *l = &s->table->list[i_list];
    /* Beginnings are shared, so most often it lies in the same place. */
    if (at < l->n_units && l->unit[at] == u)
        return true;
    for (uint32_t i = 0; i < l->n_units; i++)
        if (l->unit[i] == u)
            return true;
    return false;
}

/* The running sessions that use a unit, in order of creation, into e->user. */
static uint32_t find_users(struct evict *e, uint32_t i_list, uint32_t at,
                           unit_id u)
{
    uint32_t n = 0;
    for (struct session *s = e->o.sessions->oldest; s; s = s->newer) {
        if (!s->is_running || !has_unit(s, i_list, at, u))
            continue;
        e->user[n] = s;
        e->user_table[n++] = s->table;
    }
    return n;
}

/* Nothing of an exact session or of a kept prompt may go, and all users must
 * be at hand. */
static bool may_shrink(const struct evict *e, uint32_t n, unit_id u)
{
    if (n != pool_refs(e->o.sessions->pool, u))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!session_forgets(e->user[i]) || e->user[i]->is_kept ||
            e->user[i]->is_cut)
            return false;
    return true;
}

/* Who uses a unit, as one number: sums of numbers that depend on the session's
 * place alone, so that the same requests give the same bytes. Two sets of users
 * with one number would only mean that less is found to go. */
static void hash_users(struct evict *e)
{
    uint32_t n_units = pool_stats(e->o.sessions->pool).n_units, place = 0;
    memset(e->unit_users, 0, n_units * sizeof(*e->unit_users));
    for (struct session *s = e->o.sessions->oldest; s; s = s->newer) {
        uint64_t seed = ++place;
        uint32_t mine = (uint32_t)rng_splitmix(&seed);
        for (uint32_t i = 0; s->is_running && i < e->n_lists; i++) {
            const struct kv_list *l = &s->table->list[i];
            for (uint32_t u = 0; u < l->n_units; u++)
                e->unit_users[l->unit[u]] += mine;
        }
    }
}

/* Adds the users of a unit, of which s is the oldest, if they are not there
 * yet. *no: users that were found not to be for this. */
static void look_at(struct evict *e, struct session *s, uint32_t i_list,
                    uint32_t at, uint32_t *no)
{
    unit_id u = s->table->list[i_list].unit[at];
    uint32_t users = e->unit_users[u];
    for (uint32_t i = 0; i < e->n_shared; i++)
        if (e->shared[i].users == users)
            return;
    if (*no == users || e->n_shared == e->o.max_sessions)
        return;
    uint32_t n = find_users(e, i_list, at, u);
    if (may_shrink(e, n, u))
        e->shared[e->n_shared++] = (struct shared){s, n, users, i_list, u};
    else
        *no = users;
}

static void find_shared(struct evict *e)
{
    uint32_t no = 0;
    e->n_shared = 0;
    hash_users(e);
    for (struct session *s = e->o.sessions->oldest; s; s = s->newer)
        for (uint32_t i = 0; s->is_running && i < e->n_lists; i++) {
            const struct kv_list *l = &s->table->list[i];
            for (uint32_t u = 0; u < l->n_units; u++)
                if (pool_refs(e->o.sessions->pool, l->unit[u]) > 1)
                    look_at(e, s, i, u, &no);
        }
}

/* ---------------------------------------------------------- the selection */

static enum err add_pins(struct evict *e, const struct session *s)
{
    if (e->n_pins + s->n_pins > e->max_pins) {
        size_t n = 2 * (e->n_pins + s->n_pins);
        struct select_span *pin = realloc(e->pin, n * sizeof(*pin));
        if (!pin)
            return ERR_NOMEM;
        e->pin = pin;
        e->max_pins = n;
    }
    if (s->n_pins > 0)
        memcpy(e->pin + e->n_pins, s->pin, s->n_pins * sizeof(*s->pin));
    e->n_pins += s->n_pins;
    return OK;
}

/* Entries that a list of `s` must keep so that every user's list keeps the
 * least. */
static uint32_t min_head(const struct evict *e, const struct session *s,
                         uint32_t n_users)
{
    uint32_t more = 0;
    for (uint32_t i = 0; i < e->n_lists; i++) {
        uint32_t len = s->table->list[i].len, shortest = len;
        for (uint32_t k = 0; k < n_users; k++) {
            uint32_t other = e->user[k]->table->list[i].len;
            shortest = other < shortest ? other : shortest;
        }
        more = len - shortest > more ? len - shortest : more;
    }
    return e->o.options->min_head + more;
}

static void add_shared(struct evict *e, const struct shared *g)
{
    uint32_t n = find_users(e, g->i_list, 0, g->unit);
    struct session *least = e->user[0]; /* that has the fewest entries */
    uint32_t n_seen = UINT32_MAX;
    uint64_t allow = UINT64_MAX; /* entries that all may lose */
    bool by_age = true, by_standing = true;
    for (uint32_t i = 0; i < n; i++) {
        struct session *s = e->user[i];
        uint64_t held = table_n_entries(s->table);
        uint64_t above = held > s->floor ? held - s->floor : 0;
        if (held < table_n_entries(least->table))
            least = s;
        allow = above < allow ? above : allow;
        n_seen = s->n_stored < n_seen ? s->n_stored : n_seen;
        enum select_rank rank = evict_rank_of(s, ENGINE_PRESSURE);
        by_age &= rank == SELECT_RECENCY;
        by_standing &= rank == SELECT_STANDING;
    }
    struct select_session *in = evict_add(e, least, ENGINE_PRESSURE);
    in->rank = by_age        ? SELECT_RECENCY
               : by_standing ? SELECT_STANDING
                             : SELECT_RETENTION;
    in->floor = table_n_entries(least->table) - allow;
    in->n_users = n;
    in->users = g->users;
    in->n_seen = n_seen;
    in->min_head = min_head(e, least, n);
}

/* All at once, when no more are added: the array may have moved. */
static enum err set_pins(struct evict *e)
{
    e->n_pins = 0;
    for (uint32_t i = 0; i < e->n_shared; i++) {
        const struct shared *g = &e->shared[i];
        uint32_t n = find_users(e, g->i_list, 0, g->unit);
        size_t from = e->n_pins;
        for (uint32_t k = 0; k < n; k++)
            if (add_pins(e, e->user[k]) != OK)
                return ERR_NOMEM;
        e->session[i].n_pins = (uint32_t)(e->n_pins - from);
    }
    struct select_span *at = e->pin;
    for (uint32_t i = 0; i < e->n_shared; i++) {
        e->session[i].pin = at;
        if (e->session[i].n_pins > 0)
            at += e->session[i].n_pins;
    }
    return OK;
}

/* ------------------------------------------------------------- the result */

/* Whether all users keep their floors when n more entries of a list go. What
 * was chosen of one beginning keeps them, but a beginning may lie inside
 * another: then the same lists have given to that one already, and this one
 * waits for the next time. */
static bool may_lose(const struct evict *e, uint32_t n_users, uint32_t i_list,
                     uint32_t n)
{
    for (uint32_t i = 0; i < n_users; i++) {
        const struct session *s = e->user[i];
        if (s->table->list[i_list].len < e->o.options->min_head + n ||
            session_n_entries(s) < s->floor + n)
            return false;
    }
    return true;
}

/* Takes the chosen entries out of one list of all users. */
static void shrink_list(struct evict *e, uint32_t n_users, uint32_t i_list,
                        struct evict_result *r)
{
    struct sessions *ss = e->o.sessions;
    for (uint32_t i = 0; i < n_users; i++) {
        /* What is kept beside its entries does not follow this. */
        watch_end(e->o.watches, e->user[i]);
        session_unmark_list(ss, e->user[i], i_list);
    }
    struct compact_freed f =
        compact_shared(e->user_table, n_users, i_list, select_gone(e->select));
    for (uint32_t i = 0; i < n_users; i++)
        session_mark_list(ss, e->user[i], i_list, f.entries);
    r->gone[ENGINE_PRESSURE] += (uint64_t)f.entries * n_users;
}

static void apply_shared(struct evict *e, struct evict_result *r)
{
    for (uint32_t i = 0; i < e->n_shared; i++) {
        const struct shared *g = &e->shared[i];
        uint32_t n = find_users(e, g->i_list, 0, g->unit);
        if (n != g->n_users || select_session_gone(e->select, i) == 0)
            continue;
        for (uint32_t k = 0; k < e->n_lists; k++) {
            uint32_t chosen = select_list_gone(e->select, i, k);
            if (chosen > 0 && may_lose(e, n, k, chosen))
                shrink_list(e, n, k, r);
        }
        for (uint32_t k = 0; k < n; k++)
            session_settle(e->o.sessions, e->user[k]);
    }
}

void evict_shared(struct evict *e, uint64_t k, struct evict_result *r)
{
    *r = (struct evict_result){.below = -INFINITY};
    find_shared(e);
    e->is_under_way = false;
    e->in.n_sessions = 0;
    for (uint32_t i = 0; i < e->n_shared; i++)
        add_shared(e, &e->shared[i]);
    if (e->n_shared == 0 || set_pins(e) != OK)
        return;
    /* Only whole units are freed, and a pass that frees none took nothing: it
     * is repeated with more, to the end of what may go. */
    for (uint64_t least = 1; r->gone[ENGINE_PRESSURE] == 0; least *= 2) {
        evict_start(e, k > least ? k : least, false);
        enum select_outcome o =
            select_step(e->select, e->o.workers, UINT64_MAX);
        e->is_under_way = false;
        apply_shared(e, r);
        if (o == SELECT_STUCK || least > UINT32_MAX)
            return;
        k *= 2;
    }
}
