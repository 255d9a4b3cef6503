#include "bench/eval/merging.h"

#include <string.h>

#include "base/arena.h"
#include "merge/apply.h"
#include "merge/band.h"
#include "runtime/kernels/ops.h"

/* The lists in groups of n: alone, or a layer together. */
struct pass {
    const struct merging *m;
    const struct ops *ops;
    uint32_t n;
    struct merge_counts *counts; /* [groups] */
    enum err *rc;                /* [groups] */
};

/* One list as merge/apply.h reads it. */
struct list {
    const struct pool *pool;
    const struct kv_list *l;
    const struct merging *m;
    const struct ops *ops;
    uint32_t i;
};

uint32_t merging_parts(uint32_t fate_needs)
{
    return (fate_needs & FATE_BAND ? PROBE_BAND : 0) |
           (fate_needs & FATE_COLUMN ? PROBE_COLUMNS : 0);
}

static int32_t pos_of(const struct list *x, uint32_t e)
{
    return pool_meta(x->pool, x->l->unit[e / KV_UNIT])->pos[e % KV_UNIT];
}

static enum err add_units(const struct list *x, struct arena *a,
                          struct apply_list *out)
{
    uint32_t n = x->l->n_units;
    uint8_t **unit = arena_array(a, n, sizeof(*unit));
    const struct kv_meta **meta = arena_array(a, n, sizeof(*meta));
    uint16_t *leaves = arena_array(a, n, sizeof(*leaves));
    if (unit == NULL || meta == NULL || leaves == NULL)
        return ERR_NOMEM;
    for (uint32_t u = 0; u < n; u++) {
        unit[u] = pool_data(x->pool, x->l->unit[u]);
        meta[u] = pool_meta(x->pool, x->l->unit[u]);
        leaves[u] = x->m->gone[x->l->unit[u]];
    }
    out->unit = unit;
    out->meta = meta;
    out->leaves = leaves;
    return OK;
}

static enum err add_masses(const struct list *x, struct arena *a,
                           struct apply_list *out)
{
    const struct probe *p = x->m->probe;
    uint32_t n = x->l->n_units;
    float *mass = arena_array(a, (size_t)n * KV_UNIT, sizeof(*mass));
    void *scratch = arena_alloc(a, probe_scratch_bytes(p, KV_UNIT));
    if (mass == NULL || scratch == NULL)
        return ERR_NOMEM;
    for (uint32_t u = 0; u < n; u++)
        probe_masses(p, x->m->table, x->i, u, mass + (size_t)u * KV_UNIT,
                     scratch);
    out->mass = mass;
    return OK;
}

/* What the probe has by position, by entry. */
static enum err add_seen(const struct list *x, struct arena *a, uint32_t needs,
                         struct apply_list *out)
{
    uint32_t n = x->l->len;
    if (needs & FATE_BAND) {
        const uint16_t *row = probe_band(x->m->probe, x->i);
        uint16_t *band = arena_array(a, n, BAND_BYTES);
        for (uint32_t e = 0; e < n && band != NULL; e++)
            memcpy(band + (size_t)e * BAND_CELLS,
                   row + (size_t)pos_of(x, e) * BAND_CELLS, BAND_BYTES);
        out->band = band;
        if (band == NULL)
            return ERR_NOMEM;
    }
    if (needs & FATE_COLUMN) {
        const float *seen = probe_columns(x->m->probe, x->i);
        float *column = arena_array(a, n, sizeof(*column));
        for (uint32_t e = 0; e < n && column != NULL; e++)
            column[e] = seen[pos_of(x, e)];
        out->column = column;
        if (column == NULL)
            return ERR_NOMEM;
    }
    return needs & FATE_MASS ? add_masses(x, a, out) : OK;
}

/* A list on its way through both steps of a merge. */
struct step {
    struct apply_list list;
    float *ratio;
};

static enum err merge_values(const struct list *x, struct arena *a,
                             struct step *out, struct merge_counts *c)
{
    const struct choice *how = x->m->how;
    const struct apply_how with = {how->fate, &how->merge, x->ops};
    const struct kv_layout *y = pool_layout(x->pool);
    uint32_t n = x->l->len;
    out->list = (struct apply_list){
        .layout = y, .n = n, .id = x->i, .n_seen = x->m->n_seen};
    enum err rc = add_units(x, a, &out->list);
    if (rc == OK)
        rc = add_seen(x, a, how->fate->needs, &out->list);
    out->ratio = arena_array(a, n, sizeof(*out->ratio));
    void *scratch =
        arena_alloc(a, apply_scratch_bytes(how->fate, n, y->head_dim));
    if (rc != OK || out->ratio == NULL || scratch == NULL)
        return ERR_NOMEM;
    apply_values(&out->list, &with, out->ratio, c, scratch);
    return OK;
}

static enum err share_ratios(const struct step *s, uint32_t n, struct arena *a)
{
    uint32_t n_seen = s[0].list.n_seen;
    float *sum = arena_array(a, n_seen, sizeof(*sum));
    uint32_t *n_summed = arena_array(a, n_seen, sizeof(*n_summed));
    if (sum == NULL || n_summed == NULL)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        apply_add_ratios(&s[i].list, s[i].ratio, sum, n_summed);
    for (uint32_t i = 0; i < n; i++)
        apply_mean_ratios(&s[i].list, s[i].ratio, sum, n_summed);
    return OK;
}

static enum err merge(const struct pass *p, uint32_t first, struct arena *a,
                      struct merge_counts *c)
{
    struct step *s = arena_array(a, p->n, sizeof(*s));
    enum err rc = s != NULL ? OK : ERR_NOMEM;
    for (uint32_t i = 0; i < p->n && rc == OK; i++) {
        const struct list x = {.pool = p->m->table->pool,
                               .l = &p->m->table->list[first + i],
                               .m = p->m,
                               .ops = p->ops,
                               .i = first + i};
        rc = merge_values(&x, a, &s[i], c);
    }
    if (rc == OK && p->n > 1)
        rc = share_ratios(s, p->n, a);
    for (uint32_t i = 0; i < p->n && rc == OK; i++)
        apply_bias(&s[i].list, &p->m->how->merge, s[i].ratio);
    return rc;
}

static void run_group(void *ctx, int task, int thread)
{
    const struct pass *p = ctx;
    struct arena a;
    (void)thread;
    arena_init(&a, SIZE_MAX);
    p->rc[task] = merge(p, (uint32_t)task * p->n, &a, &p->counts[task]);
    arena_fini(&a);
}

enum err merging_run(const struct merging *m, struct workers *w,
                     struct merge_counts *counts)
{
    bool by_layer = fate_is_by_layer(m->how->fate, &m->how->merge);
    struct pass p = {
        .m = m, .ops = ops_best(), .n = by_layer ? m->table->n_kv_heads : 1};
    uint32_t n = m->table->n_layers * m->table->n_kv_heads / p.n;
    struct arena a;
    enum err rc = ERR_NOMEM;
    arena_init(&a, SIZE_MAX);
    p.counts = arena_array(&a, n, sizeof(*p.counts));
    p.rc = arena_array(&a, n, sizeof(*p.rc));
    if (p.counts != NULL && p.rc != NULL) {
        workers_run(w, (int)n, run_group, &p);
        rc = OK;
        for (uint32_t i = 0; i < n && rc == OK; i++) {
            rc = p.rc[i];
            merge_counts_add(counts, &p.counts[i]);
        }
    }
    arena_fini(&a);
    return rc;
}
