#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache/policy/policy_internal.h"
#include "cache/score.h"

/* An entry that may go. */
struct item {
    uint32_t key; /* score_key() of its score */
    int32_t pos;
    uint32_t list, entry;
};

struct selection {
    const struct policy *policy;
    const struct policy_view *view;
    const struct policy_params *params;
    const float *score;
    uint8_t *keep;
    struct arena *arena;
    struct item *item; /* [entries of the view] */
    size_t n_items;
};

/* Best first: the higher score, the later position, the earlier list. */
static int compare(const void *x, const void *y)
{
    const struct item *a = x, *b = y;
    if (a->key != b->key)
        return a->key > b->key ? -1 : 1;
    if (a->pos != b->pos)
        return a->pos > b->pos ? -1 : 1;
    return (a->list > b->list) - (a->list < b->list);
}

static void sort_items(struct selection *s)
{
    qsort(s->item, s->n_items, sizeof(*s->item), compare);
}

static uint8_t *kept(const struct selection *s, const struct item *x)
{
    return &s->keep[s->view->list[x->list].first + x->entry];
}

/* The first n of the sorted items stay. Returns how many that are. */
static size_t keep_first(struct selection *s, size_t n)
{
    if (n > s->n_items)
        n = s->n_items;
    for (size_t i = 0; i < n; i++)
        *kept(s, &s->item[i]) = 1;
    return n;
}

/* The entries of a list that nothing keeps yet. */
static void gather(struct selection *s, uint32_t list)
{
    const struct policy_list *l = &s->view->list[list];
    for (uint32_t e = 0; e < l->n; e++)
        if (!s->keep[l->first + e])
            s->item[s->n_items++] =
                (struct item){.key = score_key(s->score[l->first + e]),
                              .pos = l->pos[e],
                              .list = list,
                              .entry = e};
}

void policy_protected(uint32_t room, uint32_t *n_sinks, uint32_t *n_recent)
{
    if (*n_sinks > room / 2)
        *n_sinks = room / 2;
    if (*n_recent > room - *n_sinks)
        *n_recent = room - *n_sinks;
}

/* Marks what always stays in a list of which `capacity` entries may stay, and
 * nothing else. Returns how many: no more than `capacity`. */
static uint32_t protect(struct selection *s, uint32_t list, uint32_t capacity)
{
    const struct policy_list *l = &s->view->list[list];
    const struct policy_params *p = s->params;
    uint32_t sinks = p->n_sinks, recent = p->n_recent, n = 0;
    if (s->policy->recent) {
        uint32_t own = s->policy->recent(s->view, p);
        recent = own > recent ? own : recent;
    }
    policy_protected(capacity, &sinks, &recent);
    for (uint32_t e = 0; e < l->n; e++) {
        int64_t pos = l->pos[e];
        uint8_t stays = pos < sinks || pos + recent >= s->view->n_seen;
        s->keep[l->first + e] = stays;
        n += stays;
    }
    return n;
}

/* Beside what is kept of a list, its best n. */
static size_t keep_best(struct selection *s, uint32_t list, size_t n)
{
    s->n_items = 0;
    gather(s, list);
    sort_items(s);
    return keep_first(s, n);
}

static uint32_t list_index(const struct selection *s, uint32_t layer,
                           uint32_t head)
{
    return layer * s->view->n_kv_heads + head;
}

static void select_per_head(struct selection *s, uint32_t layer,
                            uint32_t capacity)
{
    for (uint32_t h = 0; h < s->view->n_kv_heads; h++) {
        uint32_t list = list_index(s, layer, h);
        keep_best(s, list, capacity - protect(s, list, capacity));
    }
}

/* What a head may keep when the heads of a layer share. */
struct quota {
    uint32_t n;
    double rest; /* what rounding down took from it */
};

/* How AdaKV (arXiv 2407.11550) softens one ranking over H heads that leaves
 * `room` entries: of c entries by rank a head gets c * (1 - f) + f * room / H.
 * Rounded by largest remainder, so that the sum stays `room`. */
static void soften(struct selection *s, struct quota *q, size_t room)
{
    const struct policy_view *v = s->view;
    uint32_t H = v->n_kv_heads;
    double f = (double)s->params->floor_share;
    size_t left = room;
    for (size_t i = 0; i < room; i++)
        q[s->item[i].list % H].n++;
    for (uint32_t h = 0; h < H; h++) {
        double want = q[h].n * (1 - f) + f * (double)room / H;
        q[h].n = (uint32_t)floor(want);
        q[h].rest = want - q[h].n;
        left -= q[h].n;
    }
    for (; left > 0; left--) {
        uint32_t best = 0;
        for (uint32_t h = 1; h < H; h++)
            if (q[h].rest > q[best].rest)
                best = h;
        q[best].n++;
        q[best].rest = -1;
    }
}

static enum err select_over_heads(struct selection *s, uint32_t layer,
                                  uint32_t capacity)
{
    uint32_t H = s->view->n_kv_heads;
    size_t room = (size_t)capacity * H;
    struct quota *q = arena_array(s->arena, H, sizeof(*q));
    if (!q)
        return ERR_NOMEM;
    s->n_items = 0;
    for (uint32_t h = 0; h < H; h++) {
        room -= protect(s, list_index(s, layer, h), capacity);
        gather(s, list_index(s, layer, h));
    }
    sort_items(s);
    if (room >= s->n_items) {
        keep_first(s, s->n_items);
        return OK;
    }
    soften(s, q, room);
    for (size_t i = 0; i < s->n_items; i++) {
        struct quota *mine = &q[s->item[i].list % H];
        if (mine->n > 0) {
            mine->n--;
            room--;
            *kept(s, &s->item[i]) = 1;
        }
    }
    /* A short head can't fill its quota: the best of the others get it. */
    for (size_t i = 0; i < s->n_items && room > 0; i++) {
        uint8_t *k = kept(s, &s->item[i]);
        room -= !*k;
        *k = 1;
    }
    return OK;
}

bool policy_lists_are_alike(const struct policy_view *v, uint32_t layer)
{
    const struct policy_list *a = policy_list_at(v, layer, 0);
    for (uint32_t h = 1; h < v->n_kv_heads; h++) {
        const struct policy_list *b = policy_list_at(v, layer, h);
        if (a->n != b->n || memcmp(a->pos, b->pos, a->n * sizeof(*a->pos)) != 0)
            return false;
    }
    return true;
}

/* Replaces the items by those entries of the first list that some head
 * keeps beyond the protected ones, with the mean of their scores. */
static void gather_union(struct selection *s, uint32_t layer,
                         const uint8_t *protected)
{
    uint32_t H = s->view->n_kv_heads;
    const struct policy_list *first = policy_list_at(s->view, layer, 0);
    s->n_items = 0;
    for (uint32_t e = 0; e < first->n; e++) {
        double sum = 0;
        bool any = false;
        for (uint32_t h = 0; h < H; h++) {
            uint64_t at = policy_list_at(s->view, layer, h)->first + e;
            sum += (double)s->score[at];
            any = any || s->keep[at];
        }
        if (any && !protected[e])
            s->item[s->n_items++] =
                (struct item){.key = score_key((float)(sum / H)),
                              .pos = first->pos[e],
                              .list = list_index(s, layer, 0),
                              .entry = e};
    }
}

static enum err select_per_layer(struct selection *s, uint32_t layer,
                                 uint32_t capacity)
{
    const struct policy_list *first = policy_list_at(s->view, layer, 0);
    if (!policy_lists_are_alike(s->view, layer))
        return ERR_INVAL;
    uint8_t *protected = arena_alloc(s->arena, first->n);
    if (!protected)
        return ERR_NOMEM;
    uint32_t room = capacity - protect(s, list_index(s, layer, 0), capacity);
    memcpy(protected, s->keep + first->first, first->n);
    select_per_head(s, layer, capacity);
    gather_union(s, layer, protected);
    sort_items(s);
    memcpy(s->keep + first->first, protected, first->n);
    keep_first(s, room);
    for (uint32_t h = 1; h < s->view->n_kv_heads; h++)
        memcpy(s->keep + policy_list_at(s->view, layer, h)->first,
               s->keep + first->first, first->n);
    return OK;
}

/* The floor under every head keeps what the rule "an entry may not go while
 * its head holds no more than min_head" would: the best of each head. */
static void select_over_sequence(struct selection *s)
{
    const struct policy_view *v = s->view;
    uint32_t n_lists = v->n_layers * v->n_kv_heads, B = s->params->n_entries;
    uint32_t floor_of_head = s->params->min_head;
    if (floor_of_head > B)
        floor_of_head = B;
    size_t room = (size_t)n_lists * B;
    for (uint32_t i = 0; i < n_lists; i++) {
        uint32_t n = protect(s, i, B);
        room -= n;
        if (n < floor_of_head)
            room -= keep_best(s, i, floor_of_head - n);
    }
    s->n_items = 0;
    for (uint32_t i = 0; i < n_lists; i++)
        gather(s, i);
    sort_items(s);
    keep_first(s, room);
}

static enum err select_layer(struct selection *s, uint32_t layer)
{
    uint32_t capacity = policy_capacity(s->policy, s->view, s->params, layer);
    switch (s->params->spread) {
    case POLICY_OVER_HEADS:
        return select_over_heads(s, layer, capacity);
    case POLICY_PER_LAYER:
        return select_per_layer(s, layer, capacity);
    default:
        select_per_head(s, layer, capacity);
        return OK;
    }
}

uint32_t policy_capacity(const struct policy *policy,
                         const struct policy_view *v,
                         const struct policy_params *p, uint32_t layer)
{
    return policy->capacity ? policy->capacity(v, p, layer) : p->n_entries;
}

enum err policy_select(const struct policy *policy, const struct policy_view *v,
                       const struct policy_params *p, const float *score,
                       uint8_t *keep)
{
    enum err rc = OK;
    struct arena a;
    struct selection s = {.policy = policy,
                          .view = v,
                          .params = p,
                          .score = score,
                          .keep = keep,
                          .arena = &a};
    arena_init(&a, SIZE_MAX);
    s.item = arena_array(&a, v->n_entries, sizeof(*s.item));
    if (!s.item)
        rc = ERR_NOMEM;
    else if (p->spread == POLICY_OVER_SEQUENCE)
        select_over_sequence(&s);
    else
        for (uint32_t i = 0; i < v->n_layers && rc == OK; i++)
            rc = select_layer(&s, i);
    arena_fini(&a);
    return rc;
}
