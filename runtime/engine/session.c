#include "runtime/engine/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/engine/session_internal.h"
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
    for_each_unit(ss, s, session_mark_live);
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

void session_push(struct session *s, int32_t token)
{
    assert(s->n_known < s->cap);
    s->token[s->n_known++] = token;
}

/* Gives back what is reserved and promised; its units become prefix. */
static void end_running(struct sessions *ss, struct session *s)
{
    pool_unreserve(ss->pool, s->reserved);
    session_set_reserved(ss, s, 0);
    ss->n_guaranteed -= s->guarantee;
    s->guarantee = 0;
    for_each_unit(ss, s, session_unmark_live);
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
    for_each_unit(ss, s, session_forget_prefix);
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
    s->is_running = s->is_kept = s->is_cut = s->is_read = false;
    s->used_at = ss->clock;
    s->n_known = s->n_stored;
    if (s->cap - s->n_stored >= KV_UNIT)
        shrink_host_memory(s);
    list_push(&ss->rest, s);
    session_absorb(ss, s);
}
