#include "runtime/model/model_internal.h"

#include <assert.h>

enum {
    /* Query rows of one task. More share the reading of each key; fewer give
     * a small chunk enough tasks for all threads. */
    BLOCK_ROWS = OPS_QUERY_MAX,
    BLOCK_ROWS_SMALL = 4,
    SMALL_CHUNK = 2 * OPS_QUERY_MAX
};

static uint32_t qkv_stride(const struct config *c)
{
    return (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
}

/* Bias, head norms and rotation of one row's queries and keys, in place. */
static void finish_heads(const struct step *s, float *q, const float *rope)
{
    const struct model *m = s->m;
    const struct config *c = &m->cfg;
    const struct layer *l = s->layer;
    int64_t Q = c->n_heads * c->head_dim, KV = c->n_kv_heads * c->head_dim;
    float *k = q + Q, *v = k + KV;
    if (c->family->qkv_bias) {
        m->ops->add(q, l->q_bias, Q);
        m->ops->add(k, l->k_bias, KV);
        m->ops->add(v, l->v_bias, KV);
    }
    if (c->family->qk_norm) {
        uint32_t n = c->head_dim;
        for (uint32_t h = 0; h < c->n_heads; h++)
            m->ops->rmsnorm(q + h * n, q + h * n, l->q_norm, n, c->eps);
        for (uint32_t h = 0; h < c->n_kv_heads; h++)
            m->ops->rmsnorm(k + h * n, k + h * n, l->k_norm, n, c->eps);
    }
    int dim = (int)c->head_dim;
    bool neighbours = c->family->rope_interleaved;
    m->ops->rope(q, (int)c->n_heads, dim, dim, rope, neighbours);
    m->ops->rope(k, (int)c->n_kv_heads, dim, dim, rope, neighbours);
}

/* Puts the keys and values of the rows where attention will read them. */
static void store_rows(struct step *s, uint32_t row0, uint32_t row1)
{
    const struct model *m = s->m;
    const struct config *c = &m->cfg;
    uint32_t dim = c->head_dim;
    model_gates_activate(s, row0, row1);
    for (uint32_t r = row0; r < row1; r++) {
        float *q = m->s.qkv + (size_t)r * qkv_stride(c);
        const float *k = q + c->n_heads * dim, *v = k + c->n_kv_heads * dim;
        finish_heads(s, q, m->s.rope + (size_t)r * dim);
        for (uint32_t h = 0; h < c->n_kv_heads; h++) {
            struct entry e = model_entry(s, r, h);
            m->ops->kv_store(pool_layout(e.pool), pool_data(e.pool, e.unit),
                             e.slot, k + h * dim, v + h * dim, 0.0f);
        }
    }
}

static uint32_t n_segments(uint32_t n_entries)
{
    return (n_entries + KV_SEGMENT - 1) / KV_SEGMENT;
}

/* A single row whose list has several segments becomes one task a segment
 * while there is room for their results. Split or not gives the same bits, so
 * the choice is free. */
static void plan_single(struct step *s, struct attend_task t,
                        uint32_t n_visible, uint64_t *n_states)
{
    struct scratch *x = &s->m->s;
    uint32_t n = n_segments(n_visible);
    t.n_rows = 1;
    if (n == 1 || *n_states + n > s->m->max_states) {
        t.segment = -1;
        x->task[s->n_tasks++] = t;
        return;
    }
    x->split[s->n_splits++] = (struct split){.run = t.run,
                                             .head = t.head,
                                             .row = t.row0,
                                             .state = (uint32_t)*n_states,
                                             .n_segments = n};
    for (uint32_t i = 0; i < n; i++) {
        t.segment = (int32_t)i;
        t.state = (uint32_t)(*n_states)++;
        x->task[s->n_tasks++] = t;
    }
}

static void plan(struct step *s)
{
    const struct model *m = s->m;
    uint64_t n_states = 0;
    uint32_t row0 = 0;
    s->n_tasks = s->n_splits = 0;
    for (uint32_t k = 0; k < s->batch->n_runs; k++) {
        const struct model_run *run = &s->batch->runs[k];
        uint32_t block =
            run->n_rows < SMALL_CHUNK ? BLOCK_ROWS_SMALL : BLOCK_ROWS;
        for (uint32_t h = 0; h < m->cfg.n_kv_heads; h++) {
            struct attend_task t = {
                .run = k, .head = h, .row0 = row0, .segment = -1};
            if (run->n_rows == 1) {
                plan_single(s, t, table_list(run->table, s->i_layer, h)->len,
                            &n_states);
                continue;
            }
            for (uint32_t i = 0; i < run->n_rows; i += block) {
                t.row0 = row0 + i;
                t.n_rows = run->n_rows - i < block ? run->n_rows - i : block;
                m->s.task[s->n_tasks++] = t;
            }
        }
        row0 += run->n_rows;
    }
    assert(s->n_tasks <= m->max_tasks && n_states <= m->max_states &&
           s->n_splits <= m->max_splits);
}

/* The arguments for rows [row0, row0 + n) of the batch and one KV head, but
 * for the units. */
static struct attend_args args_of(const struct step *s, uint32_t run_i,
                                  uint32_t head, uint32_t row0, uint32_t n)
{
    const struct model *m = s->m;
    const struct config *c = &m->cfg;
    const struct model_run *run = &s->batch->runs[run_i];
    const struct kv_list *l = table_list(run->table, s->i_layer, head);
    uint32_t group = c->n_heads / c->n_kv_heads,
             q_dim = c->n_heads * c->head_dim;
    size_t first = (size_t)head * group * c->head_dim;
    size_t ld_norm = 2 * (size_t)c->n_heads;
    return (struct attend_args){
        .layout = pool_layout(run->table->pool),
        .n_visible = l->len - run->n_rows + m->s.row[row0].i + 1,
        .n_query = (int)n,
        .group = (int)group,
        .q = m->s.qkv + (size_t)row0 * qkv_stride(c) + first,
        .q_stride = qkv_stride(c),
        .out = m->s.att + (size_t)row0 * q_dim + first,
        .out_stride = q_dim,
        .scale = m->attn_scale,
        .norm = run->probe || run->also
                    ? m->s.norm + row0 * ld_norm + 2 * head * group
                    : NULL,
        .norm_stride = (int64_t)ld_norm};
}

static void attend(const struct step *s, const struct attend_task *t,
                   int thread)
{
    const struct model *m = s->m;
    const struct table *table = s->batch->runs[t->run].table;
    const struct kv_list *l = table_list(table, s->i_layer, t->head);
    uint8_t *mine = m->s.thread + (size_t)thread * m->s.thread_bytes;
    const uint8_t **unit = (const uint8_t **)(void *)mine;
    void *scratch = mine + m->s.units_bytes;
    struct attend_args a = args_of(s, t->run, t->head, t->row0, t->n_rows);

    uint32_t u0 = 0, u1 = l->n_units;
    if (t->segment >= 0) {
        u0 = (uint32_t)t->segment * (KV_SEGMENT / KV_UNIT);
        if (u1 > u0 + KV_SEGMENT / KV_UNIT)
            u1 = u0 + KV_SEGMENT / KV_UNIT;
    }
    for (uint32_t u = u0; u < u1; u++)
        unit[u] = pool_data(table->pool, l->unit[u]);
    a.unit = unit;
    if (t->segment < 0)
        m->ops->attend(&a, scratch);
    else
        m->ops->attend_segment(
            &a, t->segment,
            m->s.state + t->state * (size_t)a.group * m->state_floats, scratch);
}

/* The gates' tasks come first: they are the longer ones of a large batch. */
static void attend_or_gate(void *ctx, int task, int thread)
{
    const struct step *s = ctx;
    uint32_t i = (uint32_t)task, n_gates = model_gates_n_tasks(s);
    if (i < n_gates)
        model_gates_task(s, i);
    else
        attend(s, &s->m->s.task[i - n_gates], thread);
}

static void join_splits(const struct step *s)
{
    const struct model *m = s->m;
    for (uint32_t i = 0; i < s->n_splits; i++) {
        const struct split *x = &m->s.split[i];
        struct attend_args a = args_of(s, x->run, x->head, x->row, 1);
        m->ops->attend_join(
            &a, m->s.state + x->state * (size_t)a.group * m->state_floats,
            x->n_segments);
    }
}

static void finish_rows(struct step *s, uint32_t row0, uint32_t row1)
{
    const struct model *m = s->m;
    struct acts a =
        model_acts(m, m->s.att, s->n_rows, m->cfg.n_heads * m->cfg.head_dim);
    m->ops->act_pack(&a, row0, row1);
    model_gates_store(s, row0, row1);
}

void model_attention(struct step *s)
{
    struct model *m = s->m;
    const struct config *c = &m->cfg;
    const struct layer *l = s->layer;
    uint32_t E = c->n_embd, Q = c->n_heads * c->head_dim;
    uint32_t KV = c->n_kv_heads * c->head_dim, ld = qkv_stride(c);
    struct acts a = model_acts(m, m->s.h, s->n_rows, E);
    struct product in[] = {{&l->q, m->s.qkv, ld},
                           {&l->k, m->s.qkv + Q, ld},
                           {&l->v, m->s.qkv + Q + KV, ld},
                           {NULL, NULL, 0}};
    model_multiply(m, &a, in, 3 + model_gates_product(s, &in[3]));
    model_each_tile(s, s->n_rows, store_rows);
    plan(s);
    workers_run(m->opt.workers, (int)(s->n_tasks + model_gates_n_tasks(s)),
                attend_or_gate, s);
    join_splits(s);
    model_probes_layer(s);
    model_each_tile(s, s->n_rows, finish_rows);
    a = model_acts(m, m->s.att, s->n_rows, Q);
    const struct product out = {&l->o, m->s.y, E};
    model_multiply(m, &a, &out, 1);
}
