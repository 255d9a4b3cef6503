/* Units of the pool that a session reserves, fills, shares and gives up. */
#include <assert.h>

#include "cache/compact.h"
#include "runtime/engine/session_internal.h"
#include "runtime/engine/session_views.h"

void session_mark_live(struct sessions *ss, const struct session *s, unit_id u)
{
    /* A unit that other sessions hold already, and no running one, was a
     * prefix until now; one that is ours alone is new. */
    if (ss->live_refs[u]++ == 0 && pool_refs(ss->pool, u) > 1)
        ss->n_prefix--;
    if (!session_forgets(s) && ss->exact_refs[u]++ == 0)
        ss->n_exact++;
}

void session_unmark_live(struct sessions *ss, const struct session *s,
                         unit_id u)
{
    assert(ss->live_refs[u] > 0);
    if (--ss->live_refs[u] == 0)
        ss->n_prefix++;
    if (!session_forgets(s) && --ss->exact_refs[u] == 0)
        ss->n_exact--;
}

void session_forget_prefix(struct sessions *ss, const struct session *s,
                           unit_id u)
{
    (void)s;
    if (ss->live_refs[u] == 0 && pool_refs(ss->pool, u) == 1)
        ss->n_prefix--;
}

static uint64_t units_to(const struct session *s, uint32_t n)
{
    return n > s->n_stored ? table_units_needed(s->table, n - s->n_stored) : 0;
}

uint64_t session_missing(const struct session *s, uint32_t n)
{
    uint64_t need = units_to(s, n);
    return need > s->reserved ? need - s->reserved : 0;
}

/* Copies of tails that would not be made any more if all other users of these
 * tails, which are at rest, were dropped. */
static uint64_t avoidable_copies(const struct sessions *ss,
                                 const struct session *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; s->cap > s->n_stored && i < sessions_n_lists(ss);
         i++) {
        const struct kv_list *l = &s->table->list[i];
        if (l->len % KV_UNIT == 0)
            continue;
        unit_id tail = l->unit[l->n_units - 1];
        n += pool_refs(ss->pool, tail) > 1 && ss->live_refs[tail] == 1;
    }
    return n;
}

bool session_can_fit(const struct sessions *ss, const struct session *s)
{
    /* What it shares counts as promised already. */
    return session_missing(s, s->cap) - avoidable_copies(ss, s) <=
           sessions_room(ss);
}

void session_set_reserved(struct sessions *ss, struct session *s, uint32_t n)
{
    if (!session_forgets(s))
        ss->n_reserved += (uint64_t)n - s->reserved;
    s->reserved = n;
}

enum err session_reserve(struct sessions *ss, struct session *s, uint32_t n)
{
    assert(s->is_running && n >= s->n_stored && n <= s->cap);
    uint64_t need = units_to(s, n);
    if (need > s->reserved) {
        if (need - s->reserved > UINT32_MAX ||
            pool_reserve(ss->pool, (uint32_t)need - s->reserved) != OK)
            return ERR_BUDGET;
    } else {
        pool_unreserve(ss->pool, s->reserved - (uint32_t)need);
    }
    s->goal = n;
    session_set_reserved(ss, s, (uint32_t)need);
    return OK;
}

/* Tail units that the next append will fill further, or replace by copies:
 * these this session stops using. */
static void unmark_tails(struct sessions *ss, struct session *s)
{
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++) {
        const struct kv_list *l = &s->table->list[i];
        views_open_list(ss, s, i, l->len / KV_UNIT);
        if (l->len % KV_UNIT == 0)
            continue;
        unit_id tail = l->unit[l->n_units - 1];
        if (pool_refs(ss->pool, tail) > 1)
            session_unmark_live(ss, s, tail);
    }
}

/* After an append of n: what is not marked at the end of a list is new. A
 * unit that was free has no marks, so a copied tail shows. */
static void mark_new_units(struct sessions *ss, struct session *s, uint32_t n)
{
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++) {
        const struct kv_list *l = &s->table->list[i];
        for (uint32_t u = (l->len - n) / KV_UNIT; u < l->n_units; u++) {
            if (ss->live_refs[l->unit[u]] == 0)
                session_mark_live(ss, s, l->unit[u]);
        }
        views_close_list(ss, s, i);
    }
}

void session_append(struct sessions *ss, struct session *s, uint32_t n)
{
    assert(s->is_running && n > 0 && n <= s->n_known - s->n_stored);
    unmark_tails(ss, s);
    uint64_t taken =
        table_append(s->table, n, (int32_t)s->n_stored, (int32_t)s->rope);
    mark_new_units(ss, s, n);
    assert(taken <= s->reserved);
    session_set_reserved(ss, s, s->reserved - (uint32_t)taken);
    s->n_stored += n;
    s->rope += n;
    s->goal = s->goal > s->n_stored ? s->goal : s->n_stored;
    ss->n_entries += (uint64_t)n * sessions_n_lists(ss);
    /* A tail that was shared when the room was reserved may have been ours
     * alone by now. What is left must be exactly what is still needed. */
    session_settle(ss, s);
}

uint64_t session_above(const struct session *s, uint32_t min_head)
{
    uint64_t n = 0, held = 0;
    for (uint32_t i = 0; i < s->table->n_layers * s->table->n_kv_heads; i++) {
        uint32_t len = s->table->list[i].len;
        n += len > min_head ? len - min_head : 0;
        held += len;
    }
    held = held > s->floor ? held - s->floor : 0;
    return n < held ? n : held;
}

static void count_lost(struct sessions *ss, struct session *s, uint32_t n)
{
    s->n_lost += n;
    if (n > 0)
        s->lost_at = s->n_stored;
    ss->n_lost += n;
    ss->n_entries -= n;
}

void session_shrink(struct sessions *ss, struct session *s, uint32_t i_list,
                    uint32_t n)
{
    const struct kv_list *l = &s->table->list[i_list];
    sessions_tell(ss, s);
    if (n > 0)
        views_open_list(ss, s, i_list, l->len / KV_UNIT);
    for (uint32_t u = (l->len + KV_UNIT - 1) / KV_UNIT; u < l->n_units; u++) {
        if (s->is_running)
            session_unmark_live(ss, s, l->unit[u]);
        session_forget_prefix(ss, s, l->unit[u]);
    }
    (void)compact_release(s->table, i_list);
    if (n > 0)
        views_close_list(ss, s, i_list);
    count_lost(ss, s, n);
}

/* Bare counts: units that all users lose are used by nobody any more, and none
 * of them becomes prefix on the way. */
void session_unmark_list(struct sessions *ss, const struct session *s,
                         uint32_t i_list)
{
    const struct kv_list *l = &s->table->list[i_list];
    assert(s->is_running && session_forgets(s));
    sessions_tell(ss, s);
    for (uint32_t u = 0; u < l->n_units; u++)
        ss->live_refs[l->unit[u]]--;
    views_lift_list(ss, l);
}

void session_mark_list(struct sessions *ss, struct session *s, uint32_t i_list,
                       uint32_t n)
{
    const struct kv_list *l = &s->table->list[i_list];
    for (uint32_t u = 0; u < l->n_units; u++)
        ss->live_refs[l->unit[u]]++;
    views_add_list(ss, s, i_list);
    count_lost(ss, s, n);
}

void session_settle(struct sessions *ss, struct session *s)
{
    if (!s->is_running || session_reserve(ss, s, s->goal) == OK)
        return;
    assert(session_forgets(s));
    if (session_reserve(ss, s, s->n_stored) != OK)
        assert(false && "giving back cannot fail");
}

bool session_find_shared(const struct session *s, uint32_t *i_list,
                         uint32_t *i_unit)
{
    const struct table *t = s->table;
    for (uint32_t i = 0; i < t->n_layers * t->n_kv_heads; i++)
        for (uint32_t u = 0; u < t->list[i].n_units; u++)
            if (pool_refs(t->pool, t->list[i].unit[u]) > 1) {
                *i_list = i;
                *i_unit = u;
                return true;
            }
    return false;
}

void session_own_unit(struct sessions *ss, struct session *s, uint32_t i_list,
                      uint32_t i_unit)
{
    struct kv_list *l = &s->table->list[i_list];
    uint32_t n = views_of(l->len, i_unit);
    sessions_tell(ss, s);
    views_remove(ss, s, i_list, l->unit[i_unit], n);
    session_unmark_live(ss, s, l->unit[i_unit]);
    if (table_own_unit(s->table, l, i_unit) == 0)
        assert(false && "it was shared");
    session_mark_live(ss, s, l->unit[i_unit]);
    views_add(ss, l->unit[i_unit], n);
}
