#include "runtime/model/probe.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/layout.h"
#include "runtime/model/probe_internal.h"

static uint32_t group_of(const struct config *c)
{
    return c->n_heads / c->n_kv_heads;
}

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* Elements of each array. */
struct sizes {
    size_t query, norm, column, band, moment, logit;
};

static struct sizes sizes_of(const struct model *m,
                             const struct probe_options *o)
{
    const struct config *c = &m->cfg;
    size_t lists = (size_t)c->n_layers * c->n_kv_heads, d = c->head_dim;
    size_t heads = (size_t)c->n_layers * c->n_heads, n = o->max_tokens;
    /* The band looks at a bucket and the units it lies in. */
    size_t row = o->parts & PROBE_COLUMNS ? n : 2 * PROBE_BUCKET;
    struct sizes s = {.query = heads * o->n_window * d,
                      .norm = heads * o->n_window * 2};
    if (o->parts & PROBE_COLUMNS)
        s.column = lists * n;
    if (o->parts & PROBE_BAND)
        s.band = lists * n * PROBE_BUCKET;
    if (o->parts & PROBE_FUTURE)
        s.moment = heads * (d + d * d);
    if (o->parts & (PROBE_COLUMNS | PROBE_BAND))
        s.logit = ((size_t)c->n_heads * OPS_QUERY_MAX + c->n_kv_heads) *
                  round_up((uint32_t)row, 2 * PROBE_BUCKET);
    return s;
}

uint64_t probe_bytes(const struct model *m, const struct probe_options *o)
{
    struct sizes s = sizes_of(m, o);
    return sizeof(struct probe) + (s.query + s.norm) * sizeof(float) +
           s.column * sizeof(float) + s.band * sizeof(uint16_t) +
           s.moment * sizeof(double) + s.logit * sizeof(float);
}

enum err probe_new(struct probe **out, const struct model *m,
                   const struct probe_options *o, struct errmsg *e)
{
    struct sizes s = sizes_of(m, o);
    struct probe *p = calloc(1, sizeof(*p));
    assert(o->n_window > 0);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for a probe");
    p->model = m;
    p->o = *o;
    /* One more than needed, so that an absent part is no special case. */
    p->query = calloc(s.query + 1, sizeof(*p->query));
    p->norm = calloc(s.norm, sizeof(*p->norm));
    p->column = calloc(s.column + 1, sizeof(*p->column));
    p->band = calloc(s.band + 1, sizeof(*p->band));
    p->moment = calloc(s.moment + 1, sizeof(*p->moment));
    p->logit = malloc((s.logit + 1) * sizeof(*p->logit));
    p->logit_floats = (int64_t)(s.logit / m->cfg.n_kv_heads);
    p->logit_stride =
        p->logit_floats / (OPS_QUERY_MAX * (int64_t)group_of(&m->cfg) + 1);
    if (!p->query || !p->norm || !p->column || !p->band || !p->moment ||
        !p->logit) {
        probe_free(p);
        return err_set(e, ERR_NOMEM, "no memory for a probe of %llu bytes",
                       (unsigned long long)probe_bytes(m, o));
    }
    *out = p;
    return OK;
}

void probe_free(struct probe *p)
{
    if (!p)
        return;
    free(p->query);
    free(p->norm);
    free(p->column);
    free(p->band);
    free(p->moment);
    free(p->logit);
    free(p);
}

void probe_reset(struct probe *p)
{
    struct sizes s = sizes_of(p->model, &p->o);
    p->n_seen = p->n_rows = p->n_counted = 0;
    memset(p->column, 0, s.column * sizeof(*p->column));
    memset(p->band, 0, s.band * sizeof(*p->band));
    memset(p->moment, 0, s.moment * sizeof(*p->moment));
}

void probe_copy_window(struct probe *to, const struct probe *from)
{
    struct sizes s = sizes_of(from->model, &from->o);
    assert(to->model == from->model && to->o.n_window == from->o.n_window);
    to->n_seen = from->n_seen;
    to->n_rows = from->n_rows;
    memcpy(to->query, from->query, s.query * sizeof(*to->query));
    memcpy(to->norm, from->norm, s.norm * sizeof(*to->norm));
}

void probe_copy(struct probe *to, const struct probe *from)
{
    struct sizes s = sizes_of(from->model, &from->o);
    assert(to->o.parts == from->o.parts &&
           to->o.max_tokens == from->o.max_tokens);
    probe_copy_window(to, from);
    to->n_counted = from->n_counted;
    memcpy(to->column, from->column, s.column * sizeof(*to->column));
    memcpy(to->band, from->band, s.band * sizeof(*to->band));
    memcpy(to->moment, from->moment, s.moment * sizeof(*to->moment));
}

uint32_t probe_n_seen(const struct probe *p)
{
    return p->n_seen;
}

uint32_t probe_n_rows(const struct probe *p)
{
    return p->n_rows;
}

uint32_t probe_parts(const struct probe *p)
{
    return p->o.parts;
}

const float *probe_columns(const struct probe *p, uint32_t i_list)
{
    assert(p->o.parts & PROBE_COLUMNS);
    return p->column + (size_t)i_list * p->o.max_tokens;
}

const uint16_t *probe_band(const struct probe *p, uint32_t i_list)
{
    assert(p->o.parts & PROBE_BAND);
    return p->band + (size_t)i_list * p->o.max_tokens * PROBE_BUCKET;
}

/* -------------------------------------------- attention of the last queries */

/* Scratch: unit pointers, positions, logits of a tile, the kernels' own. */
struct parts {
    uint32_t n; /* entries */
    const uint8_t **unit;
    int32_t *pos;
    float *query; /* [OPS_QUERY_MAX][group * d] */
    float *logit;
    int64_t stride;
    void *kernel;
    uint64_t bytes;
};

static struct attend_args args_of(const struct probe *p, uint32_t n_entries,
                                  uint32_t n_rows)
{
    const struct config *c = &p->model->cfg;
    int64_t row = (int64_t)group_of(c) * c->head_dim;
    return (struct attend_args){.n_visible = n_entries,
                                .n_query = (int)n_rows,
                                .group = (int)group_of(c),
                                .q_stride = row,
                                .scale = p->model->attn_scale};
}

static struct parts lay_out(const struct probe *p, uint32_t n, uint8_t *base)
{
    const struct config *c = &p->model->cfg;
    struct kv_layout widest;
    kv_layout_init(&widest, KV_F32, c->head_dim);
    struct attend_args a = args_of(p, n, OPS_QUERY_MAX);
    a.layout = &widest;
    uint64_t rows = (uint64_t)OPS_QUERY_MAX * group_of(c);
    struct layout l = {.base = base};
    struct parts s = {.n = n, .stride = round_up(n, KV_UNIT)};
    s.unit = layout_cut(&l, (uint64_t)n / KV_UNIT + 1, sizeof(*s.unit));
    s.pos = layout_cut(&l, n, sizeof(*s.pos));
    s.query = layout_cut(&l, rows * c->head_dim, sizeof(*s.query));
    s.logit = layout_cut(&l, rows * (uint64_t)s.stride, sizeof(*s.logit));
    s.kernel = layout_cut(&l, p->model->ops->attend_scratch_bytes(&a), 1);
    s.bytes = l.bytes;
    return s;
}

uint64_t probe_scratch_bytes(const struct probe *p, uint32_t n_entries)
{
    return lay_out(p, n_entries, NULL).bytes;
}

static void read_list(const struct table *t, const struct kv_list *l,
                      struct parts *s)
{
    for (uint32_t u = 0; u < l->n_units; u++)
        s->unit[u] = pool_data(t->pool, l->unit[u]);
    for (uint32_t e = 0; e < l->len; e++)
        s->pos[e] = pool_meta(t->pool, l->unit[e / KV_UNIT])->pos[e % KV_UNIT];
}

/* One query row, at position pos: the logits of its heads become row i of
 * out->sum and out->peak. */
static void finish_row(const struct probe *p, const struct parts *s,
                       float *logit, const struct probe_rows *out, uint32_t i,
                       int64_t pos)
{
    uint32_t G = group_of(&p->model->cfg), n = s->n;
    float *sum = out->sum + i * out->stride;
    float *peak = out->peak ? out->peak + i * out->stride : NULL;
    memset(sum, 0, n * sizeof(*sum));
    for (uint32_t g = 0; g < G; g++, logit += s->stride) {
        for (uint32_t e = 0; e < n; e++) {
            if (s->pos[e] > pos)
                logit[e] = -INFINITY;
            if (peak && (g == 0 || logit[e] > peak[e]))
                peak[e] = logit[e];
        }
        p->model->ops->softmax(logit, n);
        for (uint32_t e = 0; e < n; e++)
            sum[e] += logit[e];
    }
}

/* Logits of n_rows queries, at positions `at` and on, over the entries of s. */
static void logits_of(const struct probe *p, const struct table *t,
                      uint32_t i_list, uint32_t at, uint32_t n_rows,
                      const struct parts *s)
{
    const struct config *c = &p->model->cfg;
    uint32_t layer = i_list / c->n_kv_heads, head = i_list % c->n_kv_heads;
    struct attend_args a = args_of(p, s->n, n_rows);
    for (uint32_t i = 0; i < n_rows; i++)
        memcpy(s->query + i * a.q_stride,
               probe_query_row(p, layer, at + i) + head * a.q_stride,
               (size_t)a.q_stride * sizeof(float));
    a.layout = pool_layout(t->pool);
    a.unit = s->unit;
    a.q = s->query;
    p->model->ops->attend_logits(&a, s->logit, s->stride, s->kernel);
}

void probe_attention(const struct probe *p, const struct table *t,
                     uint32_t i_list, const struct probe_rows *out,
                     void *scratch)
{
    const struct kv_list *l = &t->list[i_list];
    struct parts s = lay_out(p, l->len, scratch);
    uint32_t first = p->n_seen - out->n, G = group_of(&p->model->cfg);
    assert(out->n <= p->n_rows && out->stride >= l->len);
    if (l->len == 0)
        return;
    read_list(t, l, &s);
    for (uint32_t r = 0; r < out->n; r += OPS_QUERY_MAX) {
        uint32_t n = out->n - r < OPS_QUERY_MAX ? out->n - r : OPS_QUERY_MAX;
        logits_of(p, t, i_list, first + r, n, &s);
        for (uint32_t i = 0; i < n; i++)
            finish_row(p, &s, s.logit + (int64_t)i * G * s.stride, out, r + i,
                       first + r + i);
    }
}

/* The query at position `at`: its logits onto the masses. */
static void add_masses(const struct probe *p, const struct parts *s,
                       uint32_t i_list, uint32_t at, float *logit, float *mass)
{
    const struct config *c = &p->model->cfg;
    uint32_t layer = i_list / c->n_kv_heads, head = i_list % c->n_kv_heads;
    uint32_t G = group_of(c);
    const float *norm = probe_norm_row(p, layer, at) + (size_t)head * G * 2;
    for (uint32_t g = 0; g < G; g++, logit += s->stride, norm += 2) {
        for (uint32_t e = 0; e < s->n; e++)
            if (s->pos[e] > (int64_t)at)
                logit[e] = -INFINITY;
        p->model->ops->add_weights(logit, norm, s->n, mass);
    }
}

void probe_masses(const struct probe *p, const struct table *t, uint32_t i_list,
                  uint32_t i_unit, float *mass, void *scratch)
{
    const struct kv_list *l = &t->list[i_list];
    uint32_t n = l->len - i_unit * KV_UNIT, G = group_of(&p->model->cfg);
    struct parts s = lay_out(p, n < KV_UNIT ? n : KV_UNIT, scratch);
    s.unit[0] = pool_data(t->pool, l->unit[i_unit]);
    memcpy(s.pos, pool_meta(t->pool, l->unit[i_unit])->pos,
           s.n * sizeof(*s.pos));
    memset(mass, 0, KV_UNIT * sizeof(*mass));
    for (uint32_t r = 0; r < p->n_rows; r += OPS_QUERY_MAX) {
        uint32_t at = p->n_seen - p->n_rows + r;
        n = p->n_rows - r < OPS_QUERY_MAX ? p->n_rows - r : OPS_QUERY_MAX;
        logits_of(p, t, i_list, at, n, &s);
        for (uint32_t i = 0; i < n; i++)
            add_masses(p, &s, i_list, at + i,
                       s.logit + (int64_t)i * G * s.stride, mass);
    }
}

/* ------------------------------------------------ what queries will be like */

/* The mean rotation of n_ahead positions: cos, then sin, of each pair. */
static void average_rotation(const struct probe *p, uint32_t n_ahead,
                             double *cos_sin)
{
    uint32_t half = p->model->cfg.head_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double c = 0, s = 0;
        for (uint32_t k = 0; k < n_ahead; k++) {
            double angle = (double)(p->n_seen + k) * p->model->rope_freq[i];
            c += cos(angle);
            s += sin(angle);
        }
        cos_sin[i] = c / n_ahead;
        cos_sin[half + i] = s / n_ahead;
    }
}

/* Applies it to x[0], x[stride] ... x[(d - 1) * stride]. */
static void rotate(const struct probe *p, const double *cos_sin, float *x,
                   size_t stride)
{
    const struct config *c = &p->model->cfg;
    uint32_t half = c->head_dim / 2;
    bool neighbours = c->family->rope_interleaved;
    for (uint32_t i = 0; i < half; i++) {
        float *a = x + stride * (neighbours ? 2 * i : i);
        float *b = a + stride * (neighbours ? 1 : half);
        double u = (double)*a, v = (double)*b;
        *a = (float)(u * cos_sin[i] - v * cos_sin[half + i]);
        *b = (float)(u * cos_sin[half + i] + v * cos_sin[i]);
    }
}

/* mean[d] and cov[d][d] of one query head before rotation. */
static void distribution(const struct probe *p, struct probe_moments m,
                         float *mean, float *cov)
{
    size_t d = p->model->cfg.head_dim;
    double n = p->n_counted > 0 ? p->n_counted : 1;
    for (size_t i = 0; i < d; i++)
        mean[i] = (float)(m.sum[i] / n);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j <= i; j++)
            cov[i * d + j] = cov[j * d + i] =
                (float)(m.outer[i * d + j] / n - m.sum[i] / n * m.sum[j] / n);
}

void probe_future(const struct probe *p, uint32_t i_list, uint32_t n_ahead,
                  float *mean, float *cov)
{
    const struct config *c = &p->model->cfg;
    uint32_t layer = i_list / c->n_kv_heads, head = i_list % c->n_kv_heads;
    uint32_t G = group_of(c), d = c->head_dim;
    double cos_sin[OPS_HEAD_DIM_MAX];
    assert(p->o.parts & PROBE_FUTURE);
    average_rotation(p, n_ahead, cos_sin);
    for (uint32_t g = 0; g < G; g++, mean += d, cov += (size_t)d * d) {
        distribution(p, probe_moments_of(p, layer, head * G + g), mean, cov);
        rotate(p, cos_sin, mean, 1);
        for (uint32_t i = 0; i < d; i++) /* R C R^T: columns, then rows */
            rotate(p, cos_sin, cov + i, d);
        for (uint32_t i = 0; i < d; i++)
            rotate(p, cos_sin, cov + (size_t)i * d, 1);
    }
}
