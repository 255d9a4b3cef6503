#include "bench/eval/merging.h"

#include <string.h>

#include "base/arena.h"
#include "merge/apply.h"
#include "merge/band.h"
#include "runtime/kernels/ops.h"

struct pass {
    const struct merging *m;
    struct merge_counts *counts; /* [lists] */
    enum err *rc;                /* [lists] */
};

/* One list as merge/apply.h reads it. */
struct list {
    const struct pool *pool;
    const struct kv_list *l;
    const struct merging *m;
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

static enum err merge(struct list *x, struct arena *a, struct merge_counts *c)
{
    const struct choice *how = x->m->how;
    const struct apply_how with = {how->fate, &how->merge, ops_best()};
    const struct kv_layout *y = pool_layout(x->pool);
    struct apply_list list = {
        .layout = y, .n = x->l->len, .id = x->i, .n_seen = x->m->n_seen};
    enum err rc = add_units(x, a, &list);
    if (rc == OK)
        rc = add_seen(x, a, how->fate->needs, &list);
    float *ratio = arena_array(a, list.n, sizeof(*ratio));
    void *scratch =
        arena_alloc(a, apply_scratch_bytes(how->fate, list.n, y->head_dim));
    if (rc != OK || ratio == NULL || scratch == NULL)
        return ERR_NOMEM;
    apply_values(&list, &with, ratio, c, scratch);
    apply_bias(&list, &how->merge, ratio);
    return OK;
}

static void run_list(void *ctx, int task, int thread)
{
    const struct pass *p = ctx;
    struct arena a;
    struct list x = {.pool = p->m->table->pool,
                     .l = &p->m->table->list[task],
                     .m = p->m,
                     .i = (uint32_t)task};
    (void)thread;
    arena_init(&a, SIZE_MAX);
    p->rc[task] = merge(&x, &a, &p->counts[task]);
    arena_fini(&a);
}

enum err merging_run(const struct merging *m, struct workers *w,
                     struct merge_counts *counts)
{
    uint32_t n = m->table->n_layers * m->table->n_kv_heads;
    struct pass p = {.m = m};
    struct arena a;
    enum err rc = ERR_NOMEM;
    arena_init(&a, SIZE_MAX);
    p.counts = arena_array(&a, n, sizeof(*p.counts));
    p.rc = arena_array(&a, n, sizeof(*p.rc));
    if (p.counts != NULL && p.rc != NULL) {
        workers_run(w, (int)n, run_list, &p);
        rc = OK;
        for (uint32_t i = 0; i < n && rc == OK; i++) {
            rc = p.rc[i];
            merge_counts_add(counts, &p.counts[i]);
        }
    }
    arena_fini(&a);
    return rc;
}
