#include "cache/policy/standing.h"

#include <stdlib.h>

#include "cache/policy/policy_internal.h"
#include "cache/score.h"

struct standings {
    const struct policy_view *view;
    const struct policy_params *params;
    const float *score;
    const uint8_t *keep;
    float *standing;
    enum err *rc; /* [n_layers] */
};

/* An entry that shares a budget with others. */
struct rival {
    uint32_t key; /* score_key() of its score */
    int32_t pos;
    uint32_t list, entry;
};

/* Best first: the order of policy.h. */
static int compare(const void *x, const void *y)
{
    const struct rival *a = x, *b = y;
    if (a->key != b->key)
        return a->key > b->key ? -1 : 1;
    if (a->pos != b->pos)
        return a->pos > b->pos ? -1 : 1;
    return (a->list > b->list) - (a->list < b->list);
}

static void set(const struct standings *s, uint32_t list, uint32_t entry,
                float standing)
{
    uint64_t at = s->view->list[list].first + entry;
    s->standing[at] = standing - (s->keep && !s->keep[at] ? 1.0f : 0.0f);
}

/* The entries of the lists [from, to), which share one budget. */
static enum err rank_together(const struct standings *s, uint32_t from,
                              uint32_t to, struct arena *a)
{
    const struct policy_list *list = s->view->list;
    size_t n = 0, k = 0;
    for (uint32_t i = from; i < to; i++)
        n += list[i].n;
    struct rival *r = arena_array(a, n, sizeof(*r));
    if (!r)
        return ERR_NOMEM;
    for (uint32_t i = from; i < to; i++)
        for (uint32_t e = 0; e < list[i].n; e++)
            r[k++] =
                (struct rival){.key = score_key(s->score[list[i].first + e]),
                               .pos = list[i].pos[e],
                               .list = i,
                               .entry = e};
    qsort(r, n, sizeof(*r), compare);
    for (k = 0; k < n; k++)
        set(s, r[k].list, r[k].entry, -(float)(k + 1) / (float)n);
    return OK;
}

/* The positions of a layer whose heads keep the same ones, by the mean of
 * their scores. */
static enum err rank_positions(const struct standings *s, uint32_t layer,
                               struct arena *a)
{
    uint32_t H = s->view->n_kv_heads, i0 = layer * H;
    const struct policy_list *list = s->view->list + i0;
    uint32_t n = list[0].n;
    struct rival *r = arena_array(a, n, sizeof(*r));
    if (!r)
        return ERR_NOMEM;
    for (uint32_t e = 0; e < n; e++) {
        double sum = 0;
        for (uint32_t h = 0; h < H; h++)
            sum += (double)s->score[list[h].first + e];
        r[e] = (struct rival){.key = score_key((float)(sum / H)),
                              .pos = list[0].pos[e],
                              .entry = e};
    }
    qsort(r, n, sizeof(*r), compare);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t h = 0; h < H; h++)
            set(s, i0 + h, r[k].entry, -(float)(k + 1) / (float)n);
    return OK;
}

static enum err rank_layer(const struct standings *s, uint32_t layer,
                           struct arena *a)
{
    uint32_t H = s->view->n_kv_heads, i0 = layer * H;
    enum err rc = OK;
    if (s->params->spread == POLICY_OVER_HEADS)
        return rank_together(s, i0, i0 + H, a);
    if (s->params->spread == POLICY_PER_LAYER &&
        policy_lists_are_alike(s->view, layer))
        return rank_positions(s, layer, a);
    for (uint32_t i = i0; i < i0 + H && rc == OK; i++)
        rc = rank_together(s, i, i + 1, a);
    return rc;
}

static void rank_task(void *ctx, int task, int thread)
{
    const struct standings *s = ctx;
    struct arena a;
    (void)thread;
    arena_init(&a, SIZE_MAX);
    s->rc[task] = rank_layer(s, (uint32_t)task, &a);
    arena_fini(&a);
}

static enum err rank_layers(struct standings *s, struct workers *w,
                            struct arena *a)
{
    uint32_t n = s->view->n_layers;
    enum err rc = OK;
    s->rc = arena_array(a, n, sizeof(*s->rc));
    if (!s->rc)
        return ERR_NOMEM;
    if (w)
        workers_run(w, (int)n, rank_task, s);
    for (uint32_t i = 0; !w && i < n; i++)
        rank_task(s, (int)i, 0);
    for (uint32_t i = 0; i < n && rc == OK; i++)
        rc = s->rc[i];
    return rc;
}

enum err policy_standing(const struct policy_view *v,
                         const struct policy_params *p, const float *score,
                         const uint8_t *keep, struct workers *w,
                         float *standing)
{
    struct standings s = {.view = v,
                          .params = p,
                          .score = score,
                          .keep = keep,
                          .standing = standing};
    struct arena a;
    arena_init(&a, SIZE_MAX);
    enum err rc = p->spread == POLICY_OVER_SEQUENCE
                      ? rank_together(&s, 0, v->n_layers * v->n_kv_heads, &a)
                      : rank_layers(&s, w, &a);
    arena_fini(&a);
    return rc;
}
