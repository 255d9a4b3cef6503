#include "runtime/model/view.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/model_internal.h"

enum {
    /* Positions to come over which expected attention averages (kvpress). */
    FUTURE = 512
};

/* The arrays of a view, over all lists. */
struct arrays {
    int32_t *pos;
    uint32_t *slot;
    float *log_beta, *key, *key_norm, *value_norm;
    float *window, *peak, *column;
    float *future_mean, *future_cov;
};

struct view {
    const struct model *model;
    struct policy_view view;
    struct policy_list *list; /* [n_lists] */
    struct arrays a;
    /* Scratch, one for each thread: to order a list, and for the probe. */
    uint8_t *scratch;
    uint64_t scratch_bytes; /* of a thread */
    int n_threads;
    /* What is being read. */
    const struct table *table;
    const struct probe *probe;
    uint32_t needs;
};

static uint32_t n_lists(const struct view *v)
{
    return v->view.n_layers * v->view.n_kv_heads;
}

enum err view_new(struct view **out, const struct model *m)
{
    const struct model_info *i = model_info(m);
    struct view *v = calloc(1, sizeof(*v));
    if (!v)
        return ERR_NOMEM;
    v->model = m;
    v->view = (struct policy_view){.n_layers = i->n_layers,
                                   .n_kv_heads = i->n_kv_heads,
                                   .group = i->n_heads / i->n_kv_heads,
                                   .head_dim = i->head_dim};
    v->list = calloc(n_lists(v), sizeof(*v->list));
    if (!v->list) {
        free(v);
        return ERR_NOMEM;
    }
    v->view.list = v->list;
    *out = v;
    return OK;
}

static void drop_arrays(struct view *v)
{
    free(v->a.pos);
    free(v->a.slot);
    free(v->a.log_beta);
    free(v->a.key);
    free(v->a.key_norm);
    free(v->a.value_norm);
    free(v->a.window);
    free(v->a.peak);
    free(v->a.column);
    free(v->a.future_mean);
    free(v->a.future_cov);
    free(v->scratch);
    v->a = (struct arrays){0};
    v->scratch = NULL;
}

void view_free(struct view *v)
{
    if (!v)
        return;
    drop_arrays(v);
    free(v->list);
    free(v);
}

uint32_t view_offers(const struct probe *p)
{
    uint32_t has =
        POLICY_LOG_BETA | POLICY_KEYS | POLICY_KEY_NORMS | POLICY_VALUE_NORMS;
    if (!p)
        return has;
    has |= POLICY_WINDOW | POLICY_PEAK;
    if (probe_parts(p) & PROBE_COLUMNS)
        has |= POLICY_COLUMNS;
    if (probe_parts(p) & PROBE_FUTURE)
        has |= POLICY_FUTURE;
    return has;
}

/* Entry e of list i in the cache. */
struct place {
    const struct kv_meta *meta;
    const uint8_t *data;
    uint32_t slot; /* of its unit */
};

static struct place place_of(const struct view *v, uint32_t i, uint32_t e)
{
    unit_id u = v->table->list[i].unit[e / KV_UNIT];
    return (struct place){pool_meta(v->table->pool, u),
                          pool_data(v->table->pool, u), e % KV_UNIT};
}

/* ------------------------------------------------------------------ memory */

/* NULL where it is not needed; *failed where there is none. */
static void *make_array(bool needed, size_t n, size_t size, bool *failed)
{
    if (!needed)
        return NULL;
    void *p = n < SIZE_MAX / size ? malloc((n + 1) * size) : NULL;
    *failed = *failed || !p;
    return p;
}

static enum err make_arrays(struct view *v, uint32_t longest)
{
    const struct policy_view *w = &v->view;
    size_t n = w->n_entries, d = w->head_dim, W = w->n_window,
           f = sizeof(float);
    size_t heads = (size_t)n_lists(v) * w->group;
    uint32_t needs = v->needs;
    bool failed = false;
    v->a.pos = make_array(true, n, sizeof(int32_t), &failed);
    v->a.slot = make_array(true, n, sizeof(uint32_t), &failed);
    v->a.log_beta = make_array(true, n, f, &failed);
    v->a.key = make_array(needs & POLICY_KEYS, n * d, f, &failed);
    v->a.key_norm = make_array(needs & POLICY_KEY_NORMS, n, f, &failed);
    v->a.value_norm = make_array(needs & POLICY_VALUE_NORMS, n, f, &failed);
    /* The rows of a probe hold both or one of them. */
    bool rows = needs & (POLICY_WINDOW | POLICY_PEAK);
    v->a.window = make_array(rows, n * W, f, &failed);
    v->a.peak = make_array(needs & POLICY_PEAK, n * W, f, &failed);
    v->a.column = make_array(needs & POLICY_COLUMNS, n, f, &failed);
    v->a.future_mean = make_array(needs & POLICY_FUTURE, heads * d, f, &failed);
    v->a.future_cov =
        make_array(needs & POLICY_FUTURE, heads * d * d, f, &failed);
    uint64_t order = (uint64_t)longest * sizeof(uint64_t);
    uint64_t probe = v->probe ? probe_scratch_bytes(v->probe, longest) : 0;
    v->scratch_bytes =
        (order > probe ? order : probe) / KV_ALIGN * KV_ALIGN + KV_ALIGN;
    v->scratch =
        make_array(true, (size_t)v->n_threads * v->scratch_bytes, 1, &failed);
    if (failed)
        drop_arrays(v);
    return failed ? ERR_NOMEM : OK;
}

static void set_pointers(struct view *v)
{
    const struct policy_view *w = &v->view;
    size_t d = w->head_dim, W = w->n_window;
    for (uint32_t i = 0; i < n_lists(v); i++) {
        struct policy_list *l = &v->list[i];
        size_t at = l->first, head = (size_t)i * w->group;
        l->pos = v->a.pos + at;
        l->log_beta = v->a.log_beta + at;
        l->key = v->a.key ? v->a.key + at * d : NULL;
        l->key_norm = v->a.key_norm ? v->a.key_norm + at : NULL;
        l->value_norm = v->a.value_norm ? v->a.value_norm + at : NULL;
        l->window = v->a.window ? v->a.window + at * W : NULL;
        l->peak = v->a.peak ? v->a.peak + at * W : NULL;
        l->column = v->a.column ? v->a.column + at : NULL;
        l->future_mean = v->a.future_mean ? v->a.future_mean + head * d : NULL;
        l->future_cov = v->a.future_cov ? v->a.future_cov + head * d * d : NULL;
    }
}

/* --------------------------------------------------------------- one list */

static int compare(const void *x, const void *y)
{
    const uint64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

/* The entries by position. A list from which nothing was taken already is:
 * then true. */
static bool order_list(struct view *v, uint32_t i, uint64_t *key)
{
    const struct policy_list *l = &v->list[i];
    int32_t *pos = v->a.pos + l->first;
    uint32_t *slot = v->a.slot + l->first;
    bool ordered = true;
    for (uint32_t e = 0; e < l->n; e++) {
        struct place p = place_of(v, i, e);
        pos[e] = p.meta->pos[p.slot];
        slot[e] = e;
        key[e] = (uint64_t)(uint32_t)pos[e] << 32 | e;
        ordered = ordered && (e == 0 || pos[e] > pos[e - 1]);
    }
    if (ordered)
        return true;
    qsort(key, l->n, sizeof(*key), compare);
    for (uint32_t e = 0; e < l->n; e++) {
        pos[e] = (int32_t)(key[e] >> 32);
        slot[e] = (uint32_t)key[e];
    }
    return false;
}

static float norm_of(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)sqrt(sum);
}

static void read_entries(struct view *v, uint32_t i)
{
    const struct policy_list *l = &v->list[i];
    const struct kv_layout *y = pool_layout(v->table->pool);
    const float *column = v->a.column ? probe_columns(v->probe, i) : NULL;
    uint32_t d = v->view.head_dim;
    float key[OPS_HEAD_DIM_MAX], value[OPS_HEAD_DIM_MAX];
    bool wants_key = v->a.key || v->a.key_norm;
    for (uint32_t e = 0; e < l->n; e++) {
        size_t at = l->first + e;
        struct place p = place_of(v, i, v->a.slot[at]);
        assert(!kv_is_deferred(p.meta, p.slot));
        v->a.log_beta[at] = p.meta->log_beta[p.slot];
        if (wants_key || v->a.value_norm)
            v->model->ops->kv_load(y, p.data, p.slot, wants_key ? key : NULL,
                                   v->a.value_norm ? value : NULL);
        if (v->a.key)
            memcpy(v->a.key + at * d, key, d * sizeof(*key));
        if (v->a.key_norm)
            v->a.key_norm[at] = norm_of(key, d);
        if (v->a.value_norm)
            v->a.value_norm[at] = norm_of(value, d);
        if (column)
            v->a.column[at] = column[v->a.pos[at]];
    }
}

/* Rows by entry in the order of the list, into the order of positions. */
static void permute(const uint32_t *slot, uint32_t n, float *row, float *copy)
{
    memcpy(copy, row, n * sizeof(*row));
    for (uint32_t e = 0; e < n; e++)
        row[e] = copy[slot[e]];
}

static void read_window(struct view *v, uint32_t i, bool is_ordered,
                        void *scratch)
{
    const struct policy_list *l = &v->list[i];
    size_t W = v->view.n_window, at = l->first * W;
    struct probe_rows rows = {.n = v->view.n_window,
                              .stride = l->n,
                              .sum = v->a.window + at,
                              .peak = v->a.peak ? v->a.peak + at : NULL};
    probe_attention(v->probe, v->table, i, &rows, scratch);
    for (size_t r = 0; r < W && !is_ordered; r++) {
        permute(v->a.slot + l->first, l->n, rows.sum + r * l->n, scratch);
        if (rows.peak)
            permute(v->a.slot + l->first, l->n, rows.peak + r * l->n, scratch);
    }
}

static void read_list(void *ctx, int task, int thread)
{
    struct view *v = ctx;
    uint32_t i = (uint32_t)task, d = v->view.head_dim;
    size_t head = (size_t)i * v->view.group;
    void *scratch = v->scratch + (size_t)thread * v->scratch_bytes;
    bool is_ordered = order_list(v, i, scratch);
    read_entries(v, i);
    if (v->a.window)
        read_window(v, i, is_ordered, scratch);
    if (v->a.future_mean)
        probe_future(v->probe, i, FUTURE, v->a.future_mean + head * d,
                     v->a.future_cov + head * d * d);
}

/* ------------------------------------------------------------------ a view */

void view_clear(struct view *v)
{
    drop_arrays(v);
    memset(v->list, 0, n_lists(v) * sizeof(*v->list));
    v->view.n_entries = 0;
}

static bool is_of(const struct view *v, uint32_t i_list, const uint32_t *layer)
{
    uint32_t l = i_list / v->view.n_kv_heads;
    return layer == NULL || l == layer[0] || l == layer[1];
}

/* Lays out the lists of the layers (NULL: of all). */
static enum err prepare(struct view *v, const struct table *t,
                        const uint32_t *layer)
{
    uint32_t longest = 0;
    drop_arrays(v);
    v->table = t;
    v->view.n_entries = 0;
    for (uint32_t i = 0; i < n_lists(v); i++) {
        uint32_t n = is_of(v, i, layer) ? t->list[i].len : 0;
        v->list[i] = (struct policy_list){.n = n, .first = v->view.n_entries};
        v->view.n_entries += n;
        longest = n > longest ? n : longest;
    }
    enum err rc =
        v->needs & ~view_offers(v->probe) ? ERR_INVAL : make_arrays(v, longest);
    if (rc == OK)
        set_pointers(v);
    else
        view_clear(v);
    return rc;
}

enum err view_fill(struct view *v, const struct table *t, const struct probe *p,
                   uint32_t n_seen, uint32_t needs)
{
    assert(!p || probe_n_seen(p) == n_seen);
    v->view.n_seen = n_seen;
    v->view.n_window = p ? probe_n_rows(p) : 0;
    v->probe = p;
    v->needs = needs;
    v->n_threads = workers_count(v->model->opt.workers);
    enum err rc = prepare(v, t, NULL);
    if (rc == OK)
        workers_run(v->model->opt.workers, (int)n_lists(v), read_list, v);
    return rc;
}

enum err view_fill_layers(struct view *v, const struct view_source *from,
                          const uint32_t layer[2])
{
    const struct probe *p = from->probe;
    assert(!p || probe_n_seen(p) == from->n_seen);
    uint32_t n_rows = p ? probe_n_rows(p) : 0;
    v->view.n_seen = from->n_seen;
    v->view.n_window = n_rows < from->n_window ? n_rows : from->n_window;
    v->probe = p;
    v->needs = from->needs;
    v->n_threads = 1;
    enum err rc = prepare(v, from->table, layer);
    for (uint32_t i = 0; i < n_lists(v) && rc == OK; i++)
        if (is_of(v, i, layer))
            read_list(v, (int)i, 0);
    return rc;
}

const struct policy_view *view_get(const struct view *v)
{
    return &v->view;
}

const uint32_t *view_slot(const struct view *v)
{
    return v->a.slot;
}

void view_gone(const struct view *v, const struct table *t, const uint8_t *keep,
               uint16_t *gone)
{
    for (uint32_t i = 0; i < n_lists(v); i++)
        for (uint32_t e = 0; e < v->list[i].n; e++) {
            uint32_t slot = v->a.slot[v->list[i].first + e];
            if (!keep[v->list[i].first + e])
                gone[t->list[i].unit[slot / KV_UNIT]] |=
                    (uint16_t)(1u << slot % KV_UNIT);
        }
}
