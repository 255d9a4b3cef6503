#include "runtime/model/model_internal.h"

#include <math.h>
#include <string.h>

/* A step keeps what the gates of each layer would have read, and where their
 * results belong. Afterwards the layers have nothing to do with each other:
 * each is one task, from its rows to log_beta, and its weights are read once
 * for all rows. */

static size_t first_row(uint32_t layer)
{
    return (size_t)layer * MODEL_DEFER_MAX;
}

void model_gates_begin(struct step *s)
{
    struct model *m = s->m;
    bool has = model_has_gates(m);
    s->defers_gates =
        has && s->batch->defer_gates && s->n_rows <= MODEL_DEFER_STEP;
    s->has_gates = has && !s->defers_gates;
    if (!s->defers_gates || m->gates.later.n + s->n_rows > MODEL_DEFER_MAX)
        model_finish_gates(m);
}

void model_gates_keep(const struct step *s)
{
    struct model_deferred *d = &s->m->gates.later;
    if (!s->defers_gates)
        return;
    const uint32_t E = s->m->cfg.n_embd, heads = s->m->cfg.n_kv_heads;
    size_t at = first_row(s->i_layer) + d->n;
    memcpy(d->x + at * E, s->m->s.h, (size_t)s->n_rows * E * sizeof(*d->x));
    float **to = d->to + at * heads;
    for (uint32_t r = 0; r < s->n_rows; r++)
        for (uint32_t h = 0; h < heads; h++, to++) {
            struct entry e = model_entry(s, r, h);
            *to = &pool_meta(e.pool, e.unit)->log_beta[e.slot];
            **to = NAN;
        }
}

void model_gates_end(const struct step *s)
{
    if (s->defers_gates)
        s->m->gates.later.n += s->n_rows;
}

static void finish_layer(void *ctx, int task, int thread)
{
    const struct model *m = ctx;
    const struct model_gates *g = &m->gates;
    const struct model_deferred *d = &g->later;
    const struct gate_eval_layer *l = &g->eval.layer[task];
    const uint32_t n = d->n, width = g->eval.shape.width;
    const uint32_t heads = m->cfg.n_kv_heads;
    size_t first = first_row((uint32_t)task);
    float *log_beta = d->work + (size_t)thread * d->work_floats;
    float *h1 = log_beta + (size_t)MODEL_DEFER_MAX * heads;
    float *h2 = h1 + (size_t)MODEL_DEFER_MAX * width, *last = h1;

    struct acts a = {
        .x = d->x + first * m->cfg.n_embd, .n = n, .cols = m->cfg.n_embd};
    m->ops->matmul(&l->w1, &a, 0, l->w1.rows, h1, width);
    gate_eval_activate(&g->eval, l->c1, h1, n);
    if (l->w2.rows > 0) {
        a = (struct acts){.x = h1, .n = n, .cols = width};
        m->ops->matmul(&l->w2, &a, 0, l->w2.rows, h2, width);
        gate_eval_activate(&g->eval, l->c2, h2, n);
        last = h2;
    }
    gate_eval_log_beta(&g->eval, l, last, n, log_beta);
    float *const *to = d->to + first * heads;
    for (uint32_t i = 0; i < n * heads; i++)
        *to[i] = log_beta[i];
}

void model_finish_gates(struct model *m)
{
    if (m->gates.later.n == 0)
        return;
    workers_run(m->opt.workers, (int)m->cfg.n_layers, finish_layer, m);
    m->gates.later.n = 0;
}

uint32_t model_n_deferred(const struct model *m)
{
    return m->gates.later.n;
}
