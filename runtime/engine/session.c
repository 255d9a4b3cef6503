#include "runtime/engine/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum err sessions_init(struct sessions *ss, struct pool *pool,
                       uint32_t n_layers, uint32_t n_kv_heads)
{
    memset(ss, 0, sizeof(*ss));
    ss->pool = pool;
    ss->n_layers = n_layers;
    ss->n_kv_heads = n_kv_heads;
    ss->live_refs =
        calloc((size_t)pool_stats(pool).n_units, sizeof(*ss->live_refs));
    return ss->live_refs ? OK : ERR_NOMEM;
}

void sessions_fini(struct sessions *ss)
{
    while (ss->running.first)
        session_drop(ss, ss->running.first);
    while (ss->rest.first)
        session_drop(ss, ss->rest.first);
    free(ss->live_refs);
    memset(ss, 0, sizeof(*ss));
}

uint32_t sessions_n_lists(const struct sessions *ss)
{
    return ss->n_layers * ss->n_kv_heads;
}

uint64_t sessions_room(const struct sessions *ss)
{
    struct pool_stats p = pool_stats(ss->pool);
    return p.n_units - p.reserved - (p.used - ss->n_prefix);
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

static void mark_live(struct sessions *ss, unit_id u)
{
    /* A unit that other sessions hold already, and no running one, was a
     * prefix until now; one that is ours alone is new. */
    if (ss->live_refs[u]++ == 0 && pool_refs(ss->pool, u) > 1)
        ss->n_prefix--;
}

/* Before this session's reference goes, or is that of a session at rest. */
static void unmark_live(struct sessions *ss, unit_id u)
{
    assert(ss->live_refs[u] > 0);
    if (--ss->live_refs[u] == 0)
        ss->n_prefix++;
}

static void for_each_unit(struct sessions *ss, const struct session *s,
                          void (*fn)(struct sessions *, unit_id))
{
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++) {
        const struct kv_list *l = &s->table->list[i];
        for (uint32_t u = 0; u < l->n_units; u++)
            fn(ss, l->unit[u]);
    }
}

/* The last reference to a unit of sessions at rest is about to go. */
static void forget_prefix(struct sessions *ss, unit_id u)
{
    if (ss->live_refs[u] == 0 && pool_refs(ss->pool, u) == 1)
        ss->n_prefix--;
}

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Tokens of the first n that a new session may share with s. */
static uint32_t sharable(const struct session *s, uint32_t n)
{
    if (n > s->n_stored)
        n = s->n_stored;
    uint32_t full = s->n_stored - s->n_stored % KV_UNIT;
    return s->is_running && n > full ? full : n;
}

static void look_at(struct session *s, const int32_t *token, uint32_t n,
                    struct session_match *best)
{
    /* Where it differs from the request before the best match ends, it can
     * neither be better now nor later. */
    uint32_t probe = best->n_tokens;
    if (probe >= s->n_known || probe >= n || s->token[probe] != token[probe])
        return;
    uint32_t same = common(s->token, token, s->n_known < n ? s->n_known : n);
    uint32_t now = sharable(s, same);
    if (now > best->n_tokens) {
        best->from = s;
        best->n_tokens = now;
    }
    if (s->is_running && same > best->n_ahead) {
        best->ahead = s;
        best->n_ahead = same;
    }
}

struct session_match sessions_match(const struct sessions *ss,
                                    const int32_t *token, uint32_t n)
{
    struct session_match best = {NULL, 0, NULL, 0};
    if (n == 0)
        return best;
    for (struct session *s = ss->rest.last; s; s = s->prev)
        look_at(s, token, n - 1, &best);
    for (struct session *s = ss->running.last; s; s = s->prev)
        look_at(s, token, n - 1, &best);
    if (best.n_ahead <= best.n_tokens) {
        best.ahead = NULL;
        best.n_ahead = 0;
    }
    return best;
}

static enum err table_for(struct sessions *ss, struct table **out,
                          const struct session_start *start)
{
    if (start->n_shared > 0)
        return table_fork(out, start->from->table, start->n_shared, start->cap);
    return table_new(out, ss->pool, ss->n_layers, ss->n_kv_heads, start->cap);
}

enum err session_new(struct sessions *ss, struct session **out,
                     const struct session_start *start)
{
    assert(start->n <= start->cap && start->n_shared <= start->n);
    struct session *s = calloc(1, sizeof(*s));
    int32_t *token = malloc((size_t)start->cap * sizeof(*token) + 1);
    struct table *table = NULL;
    if (!s || !token || table_for(ss, &table, start) != OK) {
        free(token);
        free(s);
        return ERR_NOMEM;
    }
    memcpy(token, start->token, start->n * sizeof(*token));
    s->token = token;
    s->table = table;
    s->cap = start->cap;
    s->n_known = start->n;
    s->n_stored = start->n_shared;
    s->is_running = true;
    ss->n_entries += table_n_entries(table);
    for_each_unit(ss, s, mark_live);
    list_push(&ss->running, s);
    if (start->n_shared > 0 && !start->from->is_running) {
        list_remove(&ss->rest, start->from);
        list_push(&ss->rest, start->from);
    }
    *out = s;
    return OK;
}

static uint64_t units_to_end(const struct session *s)
{
    return table_units_needed(s->table, s->cap - s->n_stored);
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

enum err session_reserve(struct sessions *ss, struct session *s,
                         const struct session *spare, uint64_t *n_dropped)
{
    uint64_t need = units_to_end(s);
    if (need - avoidable_copies(ss, s) > sessions_room(ss))
        return ERR_BUDGET;
    /* From here on it works out, at the latest when nothing is at rest any
     * more: every unit dropped is one of room, and no tail is shared with a
     * session at rest then. */
    while (pool_reserve(ss->pool, (uint32_t)need) != OK) {
        struct session *victim = ss->rest.first;
        if (victim == spare && victim && victim->next)
            victim = victim->next;
        assert(victim);
        session_drop(ss, victim);
        ++*n_dropped;
        need = units_to_end(s);
    }
    s->reserved = (uint32_t)need;
    return OK;
}

/* The tail units that the next append will replace by copies: this session
 * stops using them. */
static void unmark_shared_tails(struct sessions *ss, const struct session *s)
{
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++) {
        const struct kv_list *l = &s->table->list[i];
        if (l->len % KV_UNIT == 0)
            continue;
        unit_id tail = l->unit[l->n_units - 1];
        if (pool_refs(ss->pool, tail) > 1)
            unmark_live(ss, tail);
    }
}

/* After an append of n: what is not marked at the end of a list is new. A
 * unit that was free has no marks, so a copied tail shows. */
static void mark_new_units(struct sessions *ss, const struct session *s,
                           uint32_t n)
{
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++) {
        const struct kv_list *l = &s->table->list[i];
        for (uint32_t u = (l->len - n) / KV_UNIT; u < l->n_units; u++) {
            if (ss->live_refs[l->unit[u]] == 0)
                mark_live(ss, l->unit[u]);
        }
    }
}

void session_append(struct sessions *ss, struct session *s, uint32_t n)
{
    assert(s->is_running && n > 0 && n <= s->n_known - s->n_stored);
    unmark_shared_tails(ss, s);
    uint64_t taken =
        table_append(s->table, n, (int32_t)s->n_stored, (int32_t)s->n_stored);
    mark_new_units(ss, s, n);
    assert(taken <= s->reserved);
    s->reserved -= (uint32_t)taken;
    s->n_stored += n;
    ss->n_entries += (uint64_t)n * sessions_n_lists(ss);
    /* A tail that was shared when the room was reserved may have been ours
     * alone by now. What is left must be exactly what is still needed. */
    uint64_t need = units_to_end(s);
    if (s->reserved > need) {
        pool_unreserve(ss->pool, s->reserved - (uint32_t)need);
        s->reserved = (uint32_t)need;
    }
}

void session_push(struct session *s, int32_t token)
{
    assert(s->n_known < s->cap);
    s->token[s->n_known++] = token;
}

void session_drop(struct sessions *ss, struct session *s)
{
    if (s->is_running) {
        for_each_unit(ss, s, unmark_live);
        list_remove(&ss->running, s);
    } else {
        list_remove(&ss->rest, s);
    }
    if (s->reserved > 0)
        pool_unreserve(ss->pool, s->reserved);
    for_each_unit(ss, s, forget_prefix);
    ss->n_entries -= table_n_entries(s->table);
    table_free(s->table);
    free(s->token);
    free(s);
}

/* The last token first: of histories that begin alike most end unlike. */
static bool begins_with(const struct session *s, const struct session *part)
{
    uint32_t n = part->n_stored;
    return n > 0 && n <= s->n_stored && s->token[n - 1] == part->token[n - 1] &&
           common(s->token, part->token, n) == n;
}

void session_absorb(struct sessions *ss, const struct session *s)
{
    struct session *next;
    for (struct session *r = ss->rest.first; r; r = next) {
        next = r->next;
        if (r != s && begins_with(s, r))
            session_drop(ss, r);
    }
}

static bool is_part_of_another(const struct sessions *ss,
                               const struct session *s)
{
    for (const struct session *r = ss->rest.first; r; r = r->next) {
        if (r != s && r->n_stored > s->n_stored && begins_with(r, s))
            return true;
    }
    return false;
}

/* A session at rest keeps host memory for its tokens only, not for the answer
 * it might have given. Where the host refuses the smaller pieces, the larger
 * ones stay. */
static void shrink(struct session *s)
{
    struct table *t = NULL;
    if (table_fork(&t, s->table, s->n_stored, s->n_stored) == OK) {
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
    if (s->reserved > 0)
        pool_unreserve(ss->pool, s->reserved);
    s->reserved = 0;
    if (s->n_stored == 0 || is_part_of_another(ss, s)) {
        session_drop(ss, s);
        return;
    }
    for_each_unit(ss, s, unmark_live);
    list_remove(&ss->running, s);
    s->is_running = false;
    s->n_known = s->n_stored;
    if (s->cap - s->n_stored >= KV_UNIT)
        shrink(s);
    list_push(&ss->rest, s);
    session_absorb(ss, s);
}
