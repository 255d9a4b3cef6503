#include <assert.h>
#include <string.h>

#include "runtime/kernels/quant.h"
#include "runtime/model/probe_internal.h"

/* One run of a step, in one layer. */
struct watch {
    const struct step *step;
    const struct model_run *run;
    struct probe *probe;
    uint32_t row0; /* first row of the run in the batch */
    int32_t pos0;  /* its logical position */
};

static int32_t pos_of(const struct table *t, const struct kv_list *l,
                      uint32_t e)
{
    return pool_meta(t->pool, l->unit[e / KV_UNIT])->pos[e % KV_UNIT];
}

/* Logical position of the first row: that of its entry, in any list. */
static int32_t first_pos(const struct model_run *run)
{
    const struct kv_list *l = &run->table->list[0];
    return pos_of(run->table, l, l->len - run->n_rows);
}

static void begin_run(const struct model_run *run, struct probe *p)
{
    if (!p)
        return;
    uint32_t pos = (uint32_t)first_pos(run);
    assert((p->o.parts & PROBE_COLUMNS) == 0 ||
           pos + run->n_rows <= p->o.max_tokens);
    assert((p->o.parts & PROBE_BAND) == 0 || run->n_rows <= p->o.max_tokens);
    if (pos != p->n_seen)
        p->n_rows = 0;
    p->n_seen = pos; /* until the end of the step */
}

void model_probes_begin(const struct model_batch *batch)
{
    for (uint32_t k = 0; k < batch->n_runs; k++) {
        begin_run(&batch->runs[k], batch->runs[k].probe);
        begin_run(&batch->runs[k], batch->runs[k].also);
    }
}

/* Queries that PROBE_FUTURE leaves out of a run. */
static uint32_t n_skipped(const struct probe *p, uint32_t pos, uint32_t n_rows)
{
    uint32_t n = p->o.n_skip > pos ? p->o.n_skip - pos : 0;
    return n < n_rows ? n : n_rows;
}

static void end_run(const struct model_run *run, struct probe *p)
{
    if (!p)
        return;
    p->n_counted += run->n_rows - n_skipped(p, p->n_seen, run->n_rows);
    p->n_seen += run->n_rows;
    p->n_rows += run->n_rows;
    if (p->n_rows > p->o.n_window)
        p->n_rows = p->o.n_window;
}

void model_probes_end(const struct model_batch *batch)
{
    for (uint32_t k = 0; k < batch->n_runs; k++) {
        end_run(&batch->runs[k], batch->runs[k].probe);
        end_run(&batch->runs[k], batch->runs[k].also);
    }
}

static const float *query_of(const struct watch *w, uint32_t i)
{
    const struct config *c = &w->step->m->cfg;
    size_t ld = ((size_t)c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    return w->step->m->s.qkv + (w->row0 + i) * ld;
}

/* Only the last rows can stay in the window. */
static void keep_queries(const struct watch *w)
{
    const struct config *c = &w->step->m->cfg;
    uint32_t n = w->run->n_rows, W = w->probe->o.n_window;
    size_t n_norm = 2 * (size_t)c->n_heads;
    for (uint32_t i = n > W ? n - W : 0; i < n; i++) {
        uint32_t pos = (uint32_t)w->pos0 + i;
        memcpy(probe_query_row(w->probe, w->step->i_layer, pos), query_of(w, i),
               (size_t)c->n_heads * c->head_dim * sizeof(float));
        memcpy(probe_norm_row(w->probe, w->step->i_layer, pos),
               w->step->m->s.norm + (w->row0 + i) * n_norm,
               n_norm * sizeof(float));
    }
}

/* The arguments for rows [i, i + n) of the run against the first n_visible
 * entries that `unit` leads to. */
static struct attend_args args_of(const struct watch *w, uint32_t head,
                                  uint32_t i, uint32_t n)
{
    const struct model *m = w->step->m;
    const struct config *c = &m->cfg;
    uint32_t group = c->n_heads / c->n_kv_heads;
    return (struct attend_args){
        .layout = pool_layout(w->run->table->pool),
        .n_query = (int)n,
        .group = (int)group,
        .q = query_of(w, i) + (size_t)head * group * c->head_dim,
        .q_stride = (int64_t)(c->n_heads + 2 * c->n_kv_heads) * c->head_dim,
        .scale = m->attn_scale};
}

/* ---------------------------------------------------- attention of all rows */

/* One tile of rows onto the sums by entry, row after row. */
static void add_rows(const struct watch *w, const struct attend_args *tile,
                     uint32_t sees, float *logit, float *sum)
{
    int64_t stride = w->probe->logit_stride;
    for (int r = 0; r < tile->n_query * tile->group; r++) {
        float *x = logit + r * stride;
        uint32_t n = sees + (uint32_t)(r / tile->group);
        w->step->m->ops->softmax(x, n);
        for (uint32_t e = 0; e < n; e++)
            sum[e] += x[e];
    }
}

static void add_columns(const struct watch *w, const struct kv_list *l,
                        uint32_t head, const uint8_t *const *unit,
                        void *scratch)
{
    const struct probe *p = w->probe;
    uint32_t list = w->step->i_layer * w->step->m->cfg.n_kv_heads + head;
    uint32_t before = l->len - w->run->n_rows;
    float *column = p->column + (size_t)list * p->o.max_tokens;
    float *logit = p->logit + head * p->logit_floats;
    float *sum = logit + p->logit_floats - p->logit_stride;
    for (uint32_t e = 0; e < l->len; e++)
        sum[e] = column[pos_of(w->run->table, l, e)];
    for (uint32_t i = 0; i < w->run->n_rows; i += OPS_QUERY_MAX) {
        uint32_t n = w->run->n_rows - i;
        n = n < OPS_QUERY_MAX ? n : OPS_QUERY_MAX;
        struct attend_args tile = args_of(w, head, i, n);
        tile.unit = unit;
        tile.n_visible = before + i + n;
        w->step->m->ops->attend_logits(&tile, logit, p->logit_stride, scratch);
        add_rows(w, &tile, before + i + 1, logit, sum);
    }
    for (uint32_t e = 0; e < l->len; e++)
        column[pos_of(w->run->table, l, e)] = sum[e];
}

/* ------------------------------------------------ attention inside a bucket */

/* Rows [i, i + n), all in one bucket; their entries and those before them in
 * the bucket are the last of the list. `first`: the first of them. */
struct bucket {
    uint32_t i, n, first, end;
    int32_t start; /* its first position */
};

static struct bucket bucket_at(const struct watch *w, const struct kv_list *l,
                               uint32_t i)
{
    int32_t pos = w->pos0 + (int32_t)i;
    uint32_t cell = (uint32_t)pos % PROBE_BUCKET;
    uint32_t entry = l->len - w->run->n_rows + i;
    struct bucket b = {.i = i,
                       .n = PROBE_BUCKET - cell,
                       .first = entry > cell ? entry - cell : 0,
                       .start = pos - (int32_t)cell};
    if (b.n > OPS_QUERY_MAX)
        b.n = OPS_QUERY_MAX;
    if (b.n > w->run->n_rows - i)
        b.n = w->run->n_rows - i;
    b.end = entry + b.n;
    return b;
}

/* The first entry of the unit in which the bucket begins. */
static uint32_t unit_start(const struct bucket *b)
{
    return b->first - b->first % KV_UNIT;
}

/* Row r of the bucket: `logit` are those of its first query head over the
 * entries from unit_start() on; pos[] are their positions. */
static void write_row(const struct watch *w, const struct bucket *b,
                      uint32_t head, uint32_t r, const float *logit,
                      const int32_t *pos)
{
    const struct probe *p = w->probe;
    const struct model *m = w->step->m;
    uint32_t G = m->cfg.n_heads / m->cfg.n_kv_heads;
    uint32_t list = w->step->i_layer * m->cfg.n_kv_heads + head;
    int32_t cell = w->pos0 - b->start + (int32_t)(b->i + r);
    size_t in_ring = (uint32_t)(b->start + cell) % p->o.max_tokens;
    uint16_t *row =
        p->band + ((size_t)list * p->o.max_tokens + in_ring) * PROBE_BUCKET;
    const float *norm = m->s.norm +
                        (w->row0 + b->i + r) * 2 * (size_t)m->cfg.n_heads +
                        2 * (size_t)head * G;
    uint32_t n_visible = b->end - b->n + r + 1 - unit_start(b);
    float weight[PROBE_BUCKET + KV_UNIT] = {0};
    for (uint32_t g = 0; g < G; g++)
        m->ops->add_weights(logit + g * p->logit_stride, norm + 2 * g,
                            n_visible, weight);
    memset(row, 0, PROBE_BUCKET * sizeof(*row));
    for (uint32_t e = 0; e < n_visible; e++)
        if (pos[e] >= b->start && pos[e] <= b->start + cell)
            row[pos[e] - b->start] = quant_f32_to_f16(weight[e]);
}

static void add_bucket(const struct watch *w, const struct kv_list *l,
                       const struct bucket *b, uint32_t head,
                       const uint8_t *const *unit, void *scratch)
{
    const struct probe *p = w->probe;
    uint32_t e0 = unit_start(b);
    float *logit = p->logit + head * p->logit_floats;
    int32_t pos[PROBE_BUCKET + KV_UNIT];
    struct attend_args a = args_of(w, head, b->i, b->n);
    a.unit = unit + e0 / KV_UNIT;
    a.n_visible = b->end - e0;
    w->step->m->ops->attend_logits(&a, logit, p->logit_stride, scratch);
    for (uint32_t e = e0; e < b->end; e++)
        pos[e - e0] = pos_of(w->run->table, l, e);
    for (uint32_t r = 0; r < b->n; r++)
        write_row(w, b, head, r,
                  logit + r * (uint32_t)a.group * p->logit_stride, pos);
}

/* -------------------------------------------- queries before their rotation */

static void add_moments(const struct watch *w, uint32_t head)
{
    const struct model *m = w->step->m;
    const struct config *c = &m->cfg;
    uint32_t d = c->head_dim, G = c->n_heads / c->n_kv_heads;
    float back[OPS_HEAD_DIM_MAX], q[OPS_HEAD_DIM_MAX];
    double u[OPS_HEAD_DIM_MAX];
    uint32_t i = n_skipped(w->probe, (uint32_t)w->pos0, w->run->n_rows);
    for (; i < w->run->n_rows; i++) {
        const float *rope = m->s.rope + (size_t)(w->row0 + i) * d;
        for (uint32_t k = 0; k < d; k++)
            back[k] = k < d / 2 ? rope[k] : -rope[k];
        for (uint32_t h = head * G; h < (head + 1) * G; h++) {
            struct probe_moments x =
                probe_moments_of(w->probe, w->step->i_layer, h);
            memcpy(q, query_of(w, i) + (size_t)h * d, d * sizeof(*q));
            m->ops->rope(q, 1, (int)d, (int)d, back,
                         c->family->rope_interleaved);
            for (uint32_t j = 0; j < d; j++) {
                double *row = x.outer + (size_t)j * d;
                u[j] = (double)q[j];
                x.sum[j] += u[j];
                for (uint32_t k = 0; k <= j; k++)
                    row[k] += u[j] * u[k];
            }
        }
    }
}

/* ------------------------------------------------------------------ a layer */

static void watch_head(void *ctx, int task, int thread)
{
    const struct watch *w = ctx;
    const struct model *m = w->step->m;
    uint32_t head = (uint32_t)task, parts = w->probe->o.parts;
    const struct table *t = w->run->table;
    const struct kv_list *l = table_list(t, w->step->i_layer, head);
    uint8_t *mine = m->s.thread + (size_t)thread * m->s.thread_bytes;
    const uint8_t **unit = (const uint8_t **)(void *)mine;
    void *scratch = mine + m->s.units_bytes;
    for (uint32_t u = 0; u < l->n_units; u++)
        unit[u] = pool_data(t->pool, l->unit[u]);
    if (parts & PROBE_COLUMNS)
        add_columns(w, l, head, unit, scratch);
    for (uint32_t i = 0; (parts & PROBE_BAND) && i < w->run->n_rows;) {
        struct bucket b = bucket_at(w, l, i);
        add_bucket(w, l, &b, head, unit, scratch);
        i += b.n;
    }
    if (parts & PROBE_FUTURE)
        add_moments(w, head);
}

static void watch_run(struct watch *w, struct probe *p)
{
    const struct model *m = w->step->m;
    if (!p)
        return;
    w->probe = p;
    w->pos0 = (int32_t)p->n_seen;
    keep_queries(w);
    if (p->o.parts != 0)
        workers_run(m->opt.workers, (int)m->cfg.n_kv_heads, watch_head, w);
}

void model_probes_layer(const struct step *s)
{
    struct watch w = {.step = s};
    for (uint32_t k = 0; k < s->batch->n_runs; k++) {
        w.run = &s->batch->runs[k];
        watch_run(&w, w.run->probe);
        watch_run(&w, w.run->also);
        w.row0 += w.run->n_rows;
    }
}
