#include "runtime/model/model_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    /* Weight rows of one task. Small matrices need small tasks so that two
     * threads end together; large ones save the hand-over. */
    TASK_ROWS = 32,
    TASK_ROWS_LARGE = 128,
    LARGE_ROWS = 16384
};

struct tiles {
    struct step *s;
    tile_fn fn;
    uint32_t n_rows;
};

static void run_tile(void *ctx, int task, int thread)
{
    const struct tiles *t = ctx;
    uint32_t row0 = (uint32_t)task * OPS_ACT_TILE;
    uint32_t row1 = row0 + OPS_ACT_TILE;
    (void)thread;
    t->fn(t->s, row0, row1 < t->n_rows ? row1 : t->n_rows);
}

void model_each_tile(struct step *s, uint32_t n_rows, tile_fn fn)
{
    struct tiles t = {.s = s, .fn = fn, .n_rows = n_rows};
    /* One tile is done at once: waking a thread costs more. */
    if (n_rows <= OPS_ACT_TILE)
        fn(s, 0, n_rows);
    else
        workers_run(s->m->opt.workers,
                    (int)((n_rows + OPS_ACT_TILE - 1) / OPS_ACT_TILE), run_tile,
                    &t);
}

struct multiplication {
    const struct ops *ops;
    const struct acts *a;
    const struct product *p;
    int n;
    int64_t task_rows;
};

static int n_row_tasks(const struct multiplication *x, int i)
{
    return (int)((x->p[i].w->rows + x->task_rows - 1) / x->task_rows);
}

static void multiply_rows(void *ctx, int task, int thread)
{
    const struct multiplication *x = ctx;
    int i = 0;
    (void)thread;
    while (task >= n_row_tasks(x, i)) {
        task -= n_row_tasks(x, i);
        i++;
    }
    const struct product *p = &x->p[i];
    int64_t row0 = task * x->task_rows, row1 = row0 + x->task_rows;
    if (row1 > p->w->rows)
        row1 = p->w->rows;
    x->ops->matmul(p->w, x->a, row0, row1, p->y, p->ldy);
}

void model_multiply(struct model *m, const struct acts *a,
                    const struct product *p, int n)
{
    struct multiplication x = {
        .ops = m->ops,
        .a = a,
        .p = p,
        .n = n,
        .task_rows = p[0].w->rows >= LARGE_ROWS ? TASK_ROWS_LARGE : TASK_ROWS};
    int n_tasks = 0;
    for (int i = 0; i < n; i++)
        n_tasks += n_row_tasks(&x, i);
    workers_run(m->opt.workers, n_tasks, multiply_rows, &x);
}

struct acts model_acts(const struct model *m, const float *x, uint32_t n,
                       uint32_t cols)
{
    return (struct acts){.x = x, .packed = m->s.packed, .n = n, .cols = cols};
}

void model_norm_and_pack(struct step *s, const float *norm, uint32_t row0,
                         uint32_t row1)
{
    const struct model *m = s->m;
    uint32_t E = m->cfg.n_embd;
    struct acts a = model_acts(m, m->s.h, s->n_rows, E);
    for (uint32_t r = row0; r < row1; r++)
        m->ops->rmsnorm(m->s.h + (size_t)r * E, m->s.x + (size_t)r * E, norm, E,
                        m->cfg.eps);
    m->ops->act_pack(&a, row0, row1);
}

void model_add_residual(struct step *s, uint32_t row0, uint32_t row1)
{
    const struct model *m = s->m;
    size_t E = m->cfg.n_embd;
    m->ops->add(m->s.x + row0 * E, m->s.y + row0 * E,
                (int64_t)((row1 - row0) * E));
}

/* The start of a step: embeddings, and the rotation of each row's position,
 * which all layers and heads share. In double, so that large positions keep
 * their precision. */
static void start_rows(struct step *s, uint32_t row0, uint32_t row1)
{
    const struct model *m = s->m;
    uint32_t dim = m->cfg.head_dim, half = dim / 2;
    for (uint32_t r = row0; r < row1; r++) {
        float *rope = m->s.rope + (size_t)r * dim;
        m->ops->get_row(&m->embd, s->batch->tokens[r],
                        m->s.x + (size_t)r * m->cfg.n_embd);
        for (uint32_t i = 0; i < half; i++) {
            double angle = (double)m->s.row[r].pos * m->rope_freq[i];
            rope[i] = (float)cos(angle);
            rope[half + i] = (float)sin(angle);
        }
    }
}

/* The attention input of a layer: s->h, one row a token, which the gates read
 * too. */
static void attention_input(struct step *s, uint32_t row0, uint32_t row1)
{
    if (s->i_layer > 0)
        model_add_residual(s, row0, row1); /* of the layer before */
    model_norm_and_pack(s, s->layer->attn_norm, row0, row1);
}

static void ffn_input(struct step *s, uint32_t row0, uint32_t row1)
{
    model_add_residual(s, row0, row1);
    model_norm_and_pack(s, s->layer->ffn_norm, row0, row1);
}

/* The output head for the wanted rows only. They are gathered in s->h, since
 * s->x is theirs by number. */
static void output_input(struct step *s, uint32_t i0, uint32_t i1)
{
    const struct model *m = s->m;
    uint32_t E = m->cfg.n_embd;
    struct acts a = model_acts(m, m->s.h, s->batch->n_logits, E);
    for (uint32_t i = i0; i < i1; i++) {
        uint32_t r = s->batch->logit_rows[i];
        model_add_residual(s, r, r + 1);
        m->ops->rmsnorm(m->s.h + (size_t)i * E, m->s.x + (size_t)r * E,
                        m->out_norm, E, m->cfg.eps);
    }
    m->ops->act_pack(&a, i0, i1);
}

static void output(struct step *s)
{
    struct model *m = s->m;
    const struct model_batch *b = s->batch;
    if (b->n_logits == 0)
        return;
    model_each_tile(s, b->n_logits, output_input);
    struct acts a = model_acts(m, m->s.h, b->n_logits, m->cfg.n_embd);
    struct product p = {&m->head, b->logits, m->info.n_vocab};
    model_multiply(m, &a, &p, 1);
}

static void number_rows(struct step *s)
{
    const struct model_batch *b = s->batch;
    uint32_t r = 0;
    for (uint32_t k = 0; k < b->n_runs; k++)
        for (uint32_t i = 0; i < b->runs[k].n_rows; i++, r++) {
            assert(r < b->n_rows);
            s->m->s.row[r] =
                (struct row){.run = k, .i = i, .pos = b->runs[k].pos + i};
        }
    assert(r == b->n_rows);
    for (uint32_t i = 0; i < b->n_logits; i++)
        assert(b->logit_rows[i] < b->n_rows &&
               (i == 0 || b->logit_rows[i] > b->logit_rows[i - 1]));
}

void model_step(struct model *m, const struct model_batch *batch)
{
    struct step s = {.m = m, .batch = batch, .n_rows = batch->n_rows};
    assert(batch->n_rows <= m->opt.max_rows && batch->n_runs <= batch->n_rows &&
           batch->n_runs <= m->opt.max_runs);
    if (batch->n_rows == 0)
        return;
    number_rows(&s);
    model_gates_begin(&s);
    model_probes_begin(batch);
    model_each_tile(&s, s.n_rows, start_rows);
    for (uint32_t i = 0; i < m->cfg.n_layers; i++) {
        s.i_layer = i;
        s.layer = &m->layer[i];
        model_each_tile(&s, s.n_rows, attention_input);
        model_gates_keep(&s);
        model_attention(&s);
        model_each_tile(&s, s.n_rows, ffn_input);
        model_ffn(&s);
    }
    model_gates_end(&s);
    model_probes_end(batch);
    output(&s);
}
