/* Entries that leave a prompt are merged with what its watch knows of them. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/layout.h"
#include "merge/apply.h"
#include "merge/band.h"
#include "runtime/engine/watch_internal.h"
#include "runtime/model/probe.h"

/* Scratch of one thread. What the fate does not need takes no room. */
struct parts {
    float *ratio; /* [n]; by layer [KV heads][n] */
    uint8_t **unit;
    const struct kv_meta **meta;
    uint16_t *leaves, *fixed, *band;
    float *column;
    float *mass;       /* by units, as far as they are measured */
    bool *is_measured; /* [units] */
    float *sum;        /* [positions] of the R of a layer, and of how many */
    uint32_t *n_summed;
    void *probe, *apply;
    size_t bytes;
};

/* What scratch is for. */
struct extent {
    const struct fate *fate;
    const struct session *s;
    uint32_t n; /* entries of a list at most */
};

static struct parts lay_out(const struct watches *ws, const struct extent *x,
                            uint8_t *base)
{
    const struct fate *f = x->fate;
    bool by_layer = watch_is_by_layer(ws, x->s);
    bool masses = f->needs & FATE_MASS;
    uint64_t n = x->n, units = n / KV_UNIT + 1;
    uint64_t lists = by_layer ? ws->o.sessions->n_kv_heads : 1;
    uint64_t positions = by_layer ? x->s->n_stored : 0;
    struct layout l = {.base = base};
    struct parts p = {0};
    p.ratio = layout_cut(&l, lists * n, sizeof(*p.ratio));
    p.unit = layout_cut(&l, units, sizeof(*p.unit));
    p.meta = layout_cut(&l, units, sizeof(*p.meta));
    p.leaves = layout_cut(&l, units, sizeof(*p.leaves));
    p.fixed = layout_cut(&l, units, sizeof(*p.fixed));
    p.band = layout_cut(&l, f->needs & FATE_BAND ? n : 0, BAND_BYTES);
    p.column =
        layout_cut(&l, f->needs & FATE_COLUMN ? n : 0, sizeof(*p.column));
    p.mass = layout_cut(&l, masses ? units * KV_UNIT : 0, sizeof(*p.mass));
    p.is_measured = layout_cut(&l, masses ? units : 0, sizeof(bool));
    p.sum = layout_cut(&l, positions, sizeof(*p.sum));
    p.n_summed = layout_cut(&l, positions, sizeof(*p.n_summed));
    p.probe = layout_cut(
        &l, masses ? probe_scratch_bytes(x->s->watch->probe, KV_UNIT) : 0, 1);
    p.apply =
        layout_cut(&l, apply_scratch_bytes(f, x->n, ws->o.lm->head_dim), 1);
    p.bytes = l.bytes;
    return p;
}

bool watch_is_needed(enum forget_fate fate)
{
    return fate_at(fate)->needs & (FATE_MASS | FATE_BAND | FATE_COLUMN);
}

bool watch_can_merge(const struct watches *ws, const struct session *s)
{
    return ws->o.max_prompts > 0 && s->rules.admission.fate != FORGET_DROP &&
           (s->watch || !watch_is_needed(s->rules.admission.fate));
}

bool watch_is_by_layer(const struct watches *ws, const struct session *s)
{
    return fate_is_by_layer(watch_fate(s), ws->o.options);
}

bool watches_make_scratch(struct watches *ws, const struct session *s,
                          uint32_t n_entries)
{
    const struct extent x = {watch_fate(s), s, n_entries};
    int n_threads = ws->o.workers ? workers_count(ws->o.workers) : 1;
    size_t bytes = lay_out(ws, &x, NULL).bytes;
    if (bytes <= ws->scratch_bytes)
        return true;
    free(ws->scratch);
    ws->scratch = aligned_alloc(LAYOUT_ALIGN, bytes * (size_t)n_threads);
    ws->scratch_bytes = ws->scratch ? bytes : 0;
    return ws->scratch != NULL;
}

/* Scratch of a thread for lists of up to n entries. */
static struct parts parts_of(const struct watches *ws, const struct session *s,
                             uint32_t n, int thread)
{
    const struct extent x = {watch_fate(s), s, n};
    return lay_out(ws, &x, ws->scratch + (size_t)thread * ws->scratch_bytes);
}

/* A list on its way through a merge. */
struct merging {
    const struct watches *ws;
    const struct session *s;
    uint32_t i_list;
    const struct parts *p;
};

/* As the paper has it: the attention of the prefill itself. Neighbours in a
 * unit are measured together, which costs little more than one of them. */
static float mass_of(void *user, uint32_t entry)
{
    const struct merging *m = user;
    uint32_t u = entry / KV_UNIT;
    if (!m->p->is_measured[u])
        probe_masses(m->s->watch->probe, m->s->table, m->i_list, u,
                     m->p->mass + (size_t)u * KV_UNIT, m->p->probe);
    m->p->is_measured[u] = true;
    return m->p->mass[entry];
}

/* Attention from all tokens. What was there before the watch began has it from
 * the tokens since; it counts as if those before had looked at it as much. */
static void gather_columns(const struct merging *m, const struct kv_list *l)
{
    const struct watch *w = m->s->watch;
    const float *column = probe_columns(w->columns, m->i_list);
    for (uint32_t e = 0; e < l->len; e++) {
        int32_t pos = m->p->meta[e / KV_UNIT]->pos[e % KV_UNIT];
        float all = (float)((int64_t)m->s->n_stored - pos);
        float seen = (float)(m->s->n_stored - w->from);
        m->p->column[e] = column[pos];
        if ((uint32_t)pos < w->from)
            m->p->column[e] *= all / seen;
    }
}

static void gather_units(const struct merging *m, const struct kv_list *l,
                         const uint16_t *gone)
{
    const struct pool *pool = m->ws->o.sessions->pool;
    for (uint32_t u = 0; u < l->n_units; u++) {
        bool is_shared = pool_refs(pool, l->unit[u]) > 1;
        m->p->unit[u] = pool_data(pool, l->unit[u]);
        m->p->meta[u] = pool_meta(pool, l->unit[u]);
        m->p->leaves[u] = is_shared ? 0 : gone[l->unit[u]];
        m->p->fixed[u] = is_shared ? UINT16_MAX : 0;
    }
}

/* The list as merge/apply.h reads it. */
static struct apply_list gather(struct merging *m, const uint16_t *gone)
{
    const struct kv_list *l = &m->s->table->list[m->i_list];
    const struct parts *p = m->p;
    uint32_t needs = watch_fate(m->s)->needs;
    gather_units(m, l, gone);
    for (uint32_t e = 0; (needs & FATE_BAND) && e < l->len; e++)
        band_unpack(watch_row(m->s->watch, m->i_list, e),
                    p->band + (size_t)e * BAND_CELLS);
    if (needs & FATE_COLUMN)
        gather_columns(m, l);
    if (needs & FATE_MASS)
        memset(p->is_measured, 0, l->n_units * sizeof(*p->is_measured));
    return (struct apply_list){
        .layout = pool_layout(m->ws->o.sessions->pool),
        .unit = p->unit,
        .meta = p->meta,
        .n = l->len,
        .id = m->i_list,
        .n_seen = m->s->n_stored,
        .leaves = p->leaves,
        .fixed = p->fixed,
        .column = p->column,
        .mass_of = mass_of,
        .mass_user = m,
        .band = p->band,
    };
}

void watch_merge(const struct watches *ws, const struct session *s,
                 uint32_t i_list, const uint16_t *gone, int thread,
                 struct merge_counts *c)
{
    const struct parts p = parts_of(ws, s, s->table->list[i_list].len, thread);
    struct merging m = {ws, s, i_list, &p};
    const struct apply_how how = {watch_fate(s), ws->o.options, ws->ops};
    const struct apply_list list = gather(&m, gone);
    apply_values(&list, &how, p.ratio, c, p.apply);
    apply_bias(&list, ws->o.options, p.ratio);
}

/* ------------------------------------------------- one R for a whole layer */

static uint32_t longest(const struct kv_list *l, uint32_t n)
{
    uint32_t len = 0;
    for (uint32_t i = 0; i < n; i++)
        len = l[i].len > len ? l[i].len : len;
    return len;
}

void watch_merge_layer(const struct watches *ws, const struct session *s,
                       uint32_t layer, const uint16_t *gone, int thread,
                       struct merge_counts *c)
{
    uint32_t H = ws->o.sessions->n_kv_heads;
    const struct kv_list *l = &s->table->list[(size_t)layer * H];
    uint32_t n = longest(l, H);
    const struct parts p = parts_of(ws, s, n, thread);
    const struct apply_how how = {watch_fate(s), ws->o.options, ws->ops};
    struct merging m = {ws, s, 0, &p};
    memset(p.sum, 0, s->n_stored * sizeof(*p.sum));
    memset(p.n_summed, 0, s->n_stored * sizeof(*p.n_summed));
    for (uint32_t h = 0; h < H; h++) {
        m.i_list = layer * H + h;
        const struct apply_list list = gather(&m, gone);
        apply_values(&list, &how, p.ratio + (size_t)h * n, c, p.apply);
        apply_add_ratios(&list, p.ratio + (size_t)h * n, p.sum, p.n_summed);
    }
    for (uint32_t h = 0; h < H; h++) {
        float *ratio = p.ratio + (size_t)h * n;
        m.i_list = layer * H + h;
        const struct apply_list list = gather(&m, gone);
        apply_mean_ratios(&list, ratio, p.sum, p.n_summed);
        apply_bias(&list, ws->o.options, ratio);
    }
}
