#include "runtime/engine/session_views.h"

#include <assert.h>

static uint32_t most_seen(const struct sessions *ss, unit_id u)
{
    return ss->seen_by[u] > 0 ? ss->seen[u] : 0;
}

static void set_seen(struct sessions *ss, unit_id u, uint32_t n, uint32_t by)
{
    ss->n_held -= most_seen(ss, u);
    ss->seen[u] = (uint8_t)n;
    ss->seen_by[u] = by;
    ss->n_held += most_seen(ss, u);
}

void views_add(struct sessions *ss, unit_id u, uint32_t n)
{
    uint32_t most = most_seen(ss, u);
    if (n > most)
        set_seen(ss, u, n, 1);
    else if (n == most)
        ss->seen_by[u]++;
}

/* Nobody sees a unit whole any more, so for who uses it it is a list's last.
 * Lists that were compacted and not yet counted again are asked for what they
 * were. */
static void ask_others(struct sessions *ss, const struct session *but,
                       uint32_t i_list, unit_id u)
{
    uint32_t most = 0, by = 0;
    for (const struct session *s = ss->oldest; s; s = s->newer) {
        const struct kv_list *l = &s->table->list[i_list];
        uint32_t len = s->n_counted[i_list], last = table_units_of(len) - 1;
        if (s == but || len == 0 || l->unit[last] != u)
            continue;
        uint32_t n = views_of(len, last);
        by = n > most ? 1 : by + (n == most);
        most = n > most ? n : most;
    }
    set_seen(ss, u, most, by);
}

void views_remove(struct sessions *ss, const struct session *s, uint32_t i_list,
                  unit_id u, uint32_t n)
{
    assert(ss->seen_by[u] > 0 && n <= ss->seen[u]);
    if (n < ss->seen[u])
        return;
    if (ss->seen_by[u] > 1)
        ss->seen_by[u]--;
    else if (pool_refs(ss->pool, u) > 1)
        ask_others(ss, s, i_list, u);
    else
        set_seen(ss, u, 0, 0);
}

void views_add_list(struct sessions *ss, struct session *s, uint32_t i_list)
{
    const struct kv_list *l = &s->table->list[i_list];
    for (uint32_t u = 0; u < l->n_units; u++)
        views_add(ss, l->unit[u], views_of(l->len, u));
    s->n_counted[i_list] = l->len;
}

void views_add_table(struct sessions *ss, struct session *s)
{
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++)
        views_add_list(ss, s, i);
}

/* Appends change the last unit and what is behind, and so do gaps that close:
 * all units but the last are full. */
void views_open_list(struct sessions *ss, struct session *s, uint32_t i_list,
                     uint32_t from)
{
    const struct kv_list *l = &s->table->list[i_list];
    uint32_t len = s->n_counted[i_list];
    for (uint32_t u = from; u < table_units_of(len); u++)
        views_remove(ss, s, i_list, l->unit[u], views_of(len, u));
    s->n_counted[i_list] = len < from * KV_UNIT ? len : from * KV_UNIT;
}

void views_close_list(struct sessions *ss, struct session *s, uint32_t i_list)
{
    const struct kv_list *l = &s->table->list[i_list];
    for (uint32_t u = s->n_counted[i_list] / KV_UNIT; u < l->n_units; u++)
        if (u * KV_UNIT < l->len)
            views_add(ss, l->unit[u], views_of(l->len, u));
    s->n_counted[i_list] = l->len;
}

void views_remove_table(struct sessions *ss, const struct session *s)
{
    for (uint32_t i = 0; i < sessions_n_lists(ss); i++) {
        const struct kv_list *l = &s->table->list[i];
        for (uint32_t u = 0; u < l->n_units; u++)
            views_remove(ss, s, i, l->unit[u], views_of(l->len, u));
    }
}

void views_lift_list(struct sessions *ss, const struct kv_list *l)
{
    for (uint32_t u = 0; u < l->n_units; u++) {
        unit_id id = l->unit[u];
        if (views_of(l->len, u) == most_seen(ss, id))
            set_seen(ss, id, ss->seen[id], ss->seen_by[id] - 1);
    }
}
