#include "runtime/engine/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cache/compact.h"
#include "runtime/engine/session_views.h"

static void free_counts(struct sessions *ss)
{
    free(ss->live_refs);
    free(ss->exact_refs);
    free(ss->seen);
    free(ss->seen_by);
    free(ss->tenant);
}

enum err sessions_set_tenants(struct sessions *ss,
                              const struct session_tenant *tenant, uint32_t n)
{
    struct session_tenant *copy = calloc(n, sizeof(*copy));
    if (!copy)
        return ERR_NOMEM;
    memcpy(copy, tenant, n * sizeof(*copy));
    free(ss->tenant);
    ss->tenant = copy;
    ss->n_tenants = n;
    return OK;
}

enum err sessions_init(struct sessions *ss, struct pool *pool,
                       uint32_t n_layers, uint32_t n_kv_heads)
{
    memset(ss, 0, sizeof(*ss));
    ss->pool = pool;
    ss->n_layers = n_layers;
    ss->n_kv_heads = n_kv_heads;
    size_t n = pool_stats(pool).n_units;
    ss->live_refs = calloc(n, sizeof(*ss->live_refs));
    ss->exact_refs = calloc(n, sizeof(*ss->exact_refs));
    ss->seen = calloc(n, sizeof(*ss->seen));
    ss->seen_by = calloc(n, sizeof(*ss->seen_by));
    const struct session_tenant all = {.weight = 1.0, .cap = UINT64_MAX};
    if (ss->live_refs && ss->exact_refs && ss->seen && ss->seen_by &&
        sessions_set_tenants(ss, &all, 1) == OK)
        return OK;
    free_counts(ss);
    memset(ss, 0, sizeof(*ss));
    return ERR_NOMEM;
}

void sessions_fini(struct sessions *ss)
{
    while (ss->running.first)
        session_drop(ss, ss->running.first);
    while (ss->rest.first)
        session_drop(ss, ss->rest.first);
    free_counts(ss);
    memset(ss, 0, sizeof(*ss));
}

void sessions_listen(struct sessions *ss, struct session_listener l)
{
    int i = 0;
    while (i < SESSION_LISTENERS && ss->listener[i].fn)
        i++;
    assert(i < SESSION_LISTENERS);
    ss->listener[i] = l;
}

void sessions_unlisten(struct sessions *ss, const void *user)
{
    for (int i = 0; i < SESSION_LISTENERS; i++)
        if (ss->listener[i].user == user)
            ss->listener[i] = (struct session_listener){0};
}

void sessions_tell(const struct sessions *ss, const struct session *s)
{
    for (int i = 0; i < SESSION_LISTENERS; i++)
        if (ss->listener[i].fn)
            ss->listener[i].fn(ss->listener[i].user, s);
}

uint32_t sessions_n_lists(const struct sessions *ss)
{
    return ss->n_layers * ss->n_kv_heads;
}

uint64_t sessions_promised(const struct sessions *ss)
{
    return ss->n_exact + ss->n_reserved + ss->n_guaranteed + ss->n_watch +
           (ss->n_guaranteed > 0 ? ss->chunk_units : 0);
}

uint64_t sessions_room(const struct sessions *ss)
{
    uint64_t n = pool_stats(ss->pool).n_units, used = sessions_promised(ss);
    return n > used ? n - used : 0;
}

static void list_push(struct session_list *l, struct session *s)
{
    s->next = NULL;
    s->prev = l->last;
    if (l->last)
        l->last->next = s;
    else
        l->first = s;
    l->last = s;
    l->n++;
}

static void list_remove(struct session_list *l, struct session *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        l->first = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else
        l->last = s->prev;
    s->next = s->prev = NULL;
    l->n--;
}

static void mark_live(struct sessions *ss, const struct session *s, unit_id u)
{
    /* A unit that other sessions hold already, and no running one, was a
     * prefix until now; one that is ours alone is new. */
    if (ss->live_refs[u]++ == 0 && pool_refs(ss->pool, u) > 1)
        ss->n_prefix--;
    if (!session_forgets(s) && ss->exact_refs[u]++ == 0)
        ss->n_exact++;
}

/* Before this session's reference goes, or is that of a session at rest. */
static void unmark_live(struct sessions *ss, const struct session *s, unit_id u)
{
    assert(ss->live_refs[u] > 0);
    if (--ss->live_refs[u] == 0)
        ss->n_prefix++;
    if (!session_forgets(s) && --ss->exact_refs[u] == 0)
        ss->n_exact--;
}

static void for_each_unit(struct sessions *ss, const struct session *s,
                          void (*fn)(struct sessions *, const struct session *,
                                     unit_id))
{
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++) {
        const struct kv_list *l = &s->table->list[i];
        for (uint32_t u = 0; u < l->n_units; u++)
            fn(ss, s, l->unit[u]);
    }
}

/* The last reference to a unit of sessions at rest is about to go. */
static void forget_prefix(struct sessions *ss, const struct session *s,
                          unit_id u)
{
    (void)s;
    if (ss->live_refs[u] == 0 && pool_refs(ss->pool, u) == 1)
        ss->n_prefix--;
}

static enum err table_for(struct sessions *ss, struct table **out,
                          const struct session_start *start)
{
    uint32_t most = start->max_entries > 0 ? start->max_entries : start->cap;
    if (start->n_shared > 0)
        return table_fork(out, start->from->table,
                          session_pos(start->from, start->n_shared), most);
    return table_new(out, ss->pool, ss->n_layers, ss->n_kv_heads, most);
}

/* After the RoPE positions of all entries. */
static uint32_t rope_after(const struct table *t)
{
    int32_t most = -1;
    for (uint32_t i = 0; i < t->n_layers * t->n_kv_heads; i++) {
        const struct kv_list *l = &t->list[i];
        for (uint32_t e = 0; e < l->len; e++) {
            const struct kv_meta *m = pool_meta(t->pool, l->unit[e / KV_UNIT]);
            int32_t pos = m->rope_pos[e % KV_UNIT];
            most = pos > most ? pos : most;
        }
    }
    return (uint32_t)(most + 1);
}

/* Where a session goes on that shares the first n tokens of `from`. */
static uint32_t rope_of(const struct session *from, uint32_t n,
                        const struct table *t)
{
    if (n == 0 || from->rope == from->n_stored)
        return n;
    return n == from->n_stored ? from->rope : rope_after(t);
}

static enum err copy_pins(struct session *s, const struct session_start *start)
{
    s->n_pins = start->n_pins;
    if (s->n_pins == 0)
        return OK;
    s->pin = calloc(s->n_pins, sizeof(*s->pin));
    if (!s->pin)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < s->n_pins; i++)
        s->pin[i] = (struct select_span){(int32_t)start->pin[i].from,
                                         (int32_t)start->pin[i].to};
    return OK;
}

/* Units beyond its guarantee that may stay in what a new session shares with
 * running ones, after all has gone that may: only whole units go there, so
 * one a list, and a last one that is shared in part until the first append
 * (docs/decisions, admission). */
static uint32_t n_shared_extra(const struct sessions *ss, const struct table *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++) {
        const struct kv_list *l = &t->list[i];
        uint32_t n_live = 0;
        for (uint32_t u = 0; u < l->n_units; u++)
            n_live += ss->live_refs[l->unit[u]] > 0;
        uint32_t most = 1 + (l->len % KV_UNIT != 0);
        n += n_live < most ? n_live : most;
    }
    return n;
}

static void enter(struct sessions *ss, struct session *s)
{
    s->older = ss->newest;
    if (ss->newest)
        ss->newest->newer = s;
    else
        ss->oldest = s;
    ss->newest = s;
    ss->n_entries += table_n_entries(s->table);
    ss->n_lost += s->n_lost;
    for_each_unit(ss, s, mark_live);
    views_add_table(ss, s);
    list_push(&ss->running, s);
}

static void leave(struct sessions *ss, struct session *s)
{
    if (s->older)
        s->older->newer = s->newer;
    else
        ss->oldest = s->newer;
    if (s->newer)
        s->newer->older = s->older;
    else
        ss->newest = s->older;
}

static void free_session(struct session *s)
{
    if (!s)
        return;
    table_free(s->table);
    free(s->pin);
    free(s->n_counted);
    free(s->token);
    free(s);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* What s, with the table for it, has of a session (itself, perhaps) whose
 * first n tokens it shares. */
static void inherit(struct session *s, const struct session *from, uint32_t n)
{
    const struct table *t = s->table;
    s->rope = rope_of(from, n, t);
    s->n_lost = (uint64_t)n * t->n_layers * t->n_kv_heads - table_n_entries(t);
    s->n_stored = n;
    s->merge_us = 0;
    if (n == 0)
        return;
    s->lost_at = s->n_lost > 0 ? smaller(from->lost_at, n) : 0;
    s->n_merged = from->n_merged < s->n_lost ? from->n_merged : s->n_lost;
    s->n_routed = from->n_routed < s->n_lost ? from->n_routed : s->n_lost;
    s->merge_log_ratio = from->merge_log_ratio;
    s->merged_below = smaller(from->merged_below, n);
}

enum err session_new(struct sessions *ss, struct session **out,
                     const struct session_start *start)
{
    assert(start->n <= start->cap && start->n_shared <= start->n);
    assert(start->tenant < ss->n_tenants);
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->token = malloc((size_t)start->cap * sizeof(*s->token) + 1);
    s->n_counted = calloc(sessions_n_lists(ss), sizeof(*s->n_counted));
    if (!s->token || !s->n_counted || copy_pins(s, start) != OK ||
        table_for(ss, &s->table, start) != OK) {
        free_session(s);
        return ERR_NOMEM;
    }
    memcpy(s->token, start->token, start->n * sizeof(*s->token));
    s->cap = start->cap;
    s->n_known = start->n;
    s->goal = start->n_shared;
    inherit(s, start->from, start->n_shared);
    s->rules = start->rules;
    s->tenant = start->tenant;
    s->weight = start->weight > 0 ? start->weight : 1.0;
    s->floor = start->floor;
    s->is_running = true;
    if (session_forgets(s))
        s->guarantee = start->guarantee + n_shared_extra(ss, s->table);
    ss->n_guaranteed += s->guarantee;
    enter(ss, s);
    if (start->n_shared > 0 && !start->from->is_running) {
        list_remove(&ss->rest, start->from);
        list_push(&ss->rest, start->from);
    }
    *out = s;
    return OK;
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

static void set_reserved(struct sessions *ss, struct session *s, uint32_t n)
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
    set_reserved(ss, s, (uint32_t)need);
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
            unmark_live(ss, s, tail);
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
                mark_live(ss, s, l->unit[u]);
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
    set_reserved(ss, s, s->reserved - (uint32_t)taken);
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
            unmark_live(ss, s, l->unit[u]);
        forget_prefix(ss, s, l->unit[u]);
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
    unmark_live(ss, s, l->unit[i_unit]);
    if (table_own_unit(s->table, l, i_unit) == 0)
        assert(false && "it was shared");
    mark_live(ss, s, l->unit[i_unit]);
    views_add(ss, l->unit[i_unit], n);
}

void session_push(struct session *s, int32_t token)
{
    assert(s->n_known < s->cap);
    s->token[s->n_known++] = token;
}

/* Gives back what is reserved and promised; its units become prefix. */
static void end_running(struct sessions *ss, struct session *s)
{
    pool_unreserve(ss->pool, s->reserved);
    set_reserved(ss, s, 0);
    ss->n_guaranteed -= s->guarantee;
    s->guarantee = 0;
    for_each_unit(ss, s, unmark_live);
}

void session_drop(struct sessions *ss, struct session *s)
{
    sessions_tell(ss, s);
    if (s->is_running) {
        end_running(ss, s);
        list_remove(&ss->running, s);
    } else {
        list_remove(&ss->rest, s);
    }
    leave(ss, s);
    for_each_unit(ss, s, forget_prefix);
    views_remove_table(ss, s);
    ss->n_entries -= table_n_entries(s->table);
    ss->n_lost -= s->n_lost;
    free_session(s);
}

/* Units that are used by this session at rest and nobody else. */
static uint64_t n_own_prefix(const struct session *s)
{
    return table_n_private_units(s->table);
}

uint64_t session_roll_back(struct sessions *ss, struct session *s, uint32_t n)
{
    assert(!s->is_running && n > 0 && n < s->n_stored);
    sessions_tell(ss, s);
    ss->n_prefix -= n_own_prefix(s);
    ss->n_entries -= table_n_entries(s->table);
    ss->n_lost -= s->n_lost;
    views_remove_table(ss, s);
    uint64_t taken = table_truncate(s->table, n);
    inherit(s, s, n);
    s->n_known = n;
    views_add_table(ss, s);
    ss->n_prefix += n_own_prefix(s);
    ss->n_entries += table_n_entries(s->table);
    ss->n_lost += s->n_lost;
    return taken;
}

/* The last token first: of histories that begin alike most end unlike. */
static bool begins_with(const struct session *s, const struct session *part)
{
    uint32_t n = part->n_stored;
    return n > 0 && n <= s->n_stored && s->token[n - 1] == part->token[n - 1] &&
           memcmp(s->token, part->token, n * sizeof(*s->token)) == 0;
}

/* True if nobody needs `part` as long as s is there. What has lost something
 * serves only those who forget by the same rules. */
static bool can_replace(const struct session *s, const struct session *part)
{
    if (!begins_with(s, part))
        return false;
    if (s->n_stored == part->n_stored && s->n_lost > part->n_lost)
        return false;
    return session_is_pristine(s) ||
           (!session_is_pristine(part) &&
            forget_rules_equal(&s->rules, &part->rules));
}

void session_absorb(struct sessions *ss, const struct session *s)
{
    struct session *next;
    for (struct session *r = ss->rest.first; r; r = next) {
        next = r->next;
        if (r != s && can_replace(s, r))
            session_drop(ss, r);
    }
}

static bool is_replaceable(const struct sessions *ss, const struct session *s)
{
    for (const struct session *r = ss->rest.first; r; r = r->next) {
        if (r != s && r->n_stored > s->n_stored && can_replace(r, s))
            return true;
    }
    return false;
}

/* A session at rest keeps host memory for its tokens only, not for the answer
 * it might have given. Where the host refuses the smaller pieces, the larger
 * ones stay. */
static void shrink_host_memory(struct session *s)
{
    struct table *t = NULL;
    if (table_fork(&t, s->table, TABLE_ALL, table_max_len(s->table)) == OK) {
        table_free(s->table);
        s->table = t;
    }
    int32_t *token =
        realloc(s->token, (size_t)s->n_stored * sizeof(*token) + 1);
    if (token)
        s->token = token;
    s->cap = s->n_stored;
}

void session_rest(struct sessions *ss, struct session *s)
{
    assert(s->is_running);
    if (s->n_stored == 0 || is_replaceable(ss, s)) {
        session_drop(ss, s);
        return;
    }
    end_running(ss, s);
    list_remove(&ss->running, s);
    s->is_running = s->is_kept = s->is_cut = false;
    s->used_at = ss->clock;
    s->n_known = s->n_stored;
    if (s->cap - s->n_stored >= KV_UNIT)
        shrink_host_memory(s);
    list_push(&ss->rest, s);
    session_absorb(ss, s);
}
