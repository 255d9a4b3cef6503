#include "base/hash.h"
#include "base/layout.h"
#include "runtime/model/model_internal.h"

#include <assert.h>

/* The first product is one more matrix beside q, k and v; the second runs
 * beside the attention, which for a single row has few tasks; the last, a few
 * rows, with the packing of its output. So gates add no parallel loop. */

enum { TASK_ROWS = 2 * OPS_ROW_TILE };

static const struct gate_eval_layer *layer_of(const struct step *s)
{
    return &s->m->gates.eval.layer[s->i_layer];
}

int model_gates_product(const struct step *s, struct product *out)
{
    const struct model_gates *g = &s->m->gates;
    if (!s->has_gates)
        return 0;
    *out = (struct product){&layer_of(s)->w1, g->h1, g->eval.shape.width};
    return 1;
}

void model_gates_activate(const struct step *s, uint32_t row0, uint32_t row1)
{
    const struct model_gates *g = &s->m->gates;
    if (s->has_gates)
        gate_eval_activate(&g->eval, layer_of(s)->c1,
                           g->h1 + (size_t)row0 * g->eval.shape.width,
                           row1 - row0);
}

uint32_t model_gates_n_tasks(const struct step *s)
{
    if (!s->has_gates)
        return 0;
    return (uint32_t)((layer_of(s)->w2.rows + TASK_ROWS - 1) / TASK_ROWS);
}

void model_gates_task(const struct step *s, uint32_t task)
{
    const struct model_gates *g = &s->m->gates;
    const struct weight *w2 = &layer_of(s)->w2;
    const struct acts a = {.x = g->h1, .n = s->n_rows, .cols = w2->cols};
    int64_t row0 = (int64_t)task * TASK_ROWS, row1 = row0 + TASK_ROWS;
    s->m->ops->matmul(w2, &a, row0, row1 < w2->rows ? row1 : w2->rows, g->h2,
                      w2->rows);
}

void model_gates_store(const struct step *s, uint32_t row0, uint32_t row1)
{
    const struct model_gates *g = &s->m->gates;
    if (!s->has_gates)
        return;
    uint32_t heads = s->m->cfg.n_kv_heads;
    const struct gate_eval_layer *l = layer_of(s);
    size_t at = (size_t)row0 * g->eval.shape.width, n = row1 - row0;
    const float *hidden = g->h1 + at;
    float *log_beta = g->log_beta + (size_t)row0 * heads;
    if (l->w2.rows > 0) {
        gate_eval_activate(&g->eval, l->c2, g->h2 + at, (int64_t)n);
        hidden = g->h2 + at;
    }
    gate_eval_log_beta(&g->eval, l, hidden, (int64_t)n, log_beta);
    for (uint32_t r = row0; r < row1; r++, log_beta += heads)
        for (uint32_t h = 0; h < heads; h++) {
            struct entry e = model_entry(s, r, h);
            pool_meta(e.pool, e.unit)->log_beta[e.slot] = log_beta[h];
        }
}

static void lay_out(struct model_gates *g, const struct gate_shape *shape,
                    const struct model *m, struct layout *l)
{
    const uint64_t R = m->opt.max_rows, D = MODEL_DEFER_MAX, f = sizeof(float);
    uint64_t layers = shape->n_layers, heads = shape->n_kv_heads;
    uint64_t hidden = shape->kind == GATE_RG10 ? 2 : 1;
    g->later.to = layout_cut(l, layers * D * heads, sizeof(*g->later.to));
    g->later.x = layout_cut(l, layers * D * shape->n_embd, f);
    g->later.work_floats = D * (hidden * shape->width + heads);
    g->later.work = layout_cut(l, (uint64_t)workers_count(m->opt.workers),
                               g->later.work_floats * f);
    g->h1 = layout_cut(l, R * shape->width, f);
    g->h2 = layout_cut(l, R * shape->width * (hidden - 1), f);
    g->log_beta = layout_cut(l, R * heads, f);
}

/* One mapping: the weights, then what a step writes. */
static enum err make_gates(struct model_gates *g, const struct gate *gate,
                           const struct model *m, struct errmsg *e)
{
    struct layout l = {0};
    lay_out(g, &gate->shape, m, &l);
    g->weight_bytes = gate_eval_bytes(gate);
    g->scratch_bytes = l.bytes;
    g->map = model_map(g->weight_bytes + g->scratch_bytes);
    if (g->map == NULL)
        return err_set(e, ERR_NOMEM, "no memory for gates of width %u",
                       gate->shape.width);
    gate_eval_init(&g->eval, gate, m->ops, g->map);
    l = (struct layout){.base = (uint8_t *)g->map + g->weight_bytes};
    lay_out(g, &gate->shape, m, &l);
    return OK;
}

void model_gates_drop(struct model *m)
{
    struct model_gates *g = &m->gates;
    m->info.packed_bytes -= g->weight_bytes;
    m->info.scratch_bytes -= g->scratch_bytes;
    model_unmap(g->map, g->weight_bytes + g->scratch_bytes);
    *g = (struct model_gates){0};
}

static struct gate_shape gate_shape_of(const struct model *m)
{
    return (struct gate_shape){.n_layers = m->cfg.n_layers,
                               .n_embd = m->cfg.n_embd,
                               .n_kv_heads = m->cfg.n_kv_heads};
}

enum err model_set_gates(struct model *m, const struct gate *gate,
                         struct errmsg *e)
{
    struct model_gates g = {0};
    if (gate != NULL) {
        struct gate_shape need = gate_shape_of(m);
        enum err rc = gate_check_fit(&gate->shape, &need, e);
        if (rc == OK)
            rc = make_gates(&g, gate, m, e);
        if (rc != OK)
            return rc;
    }
    assert(m->gates.later.n == 0);
    model_gates_drop(m);
    m->gates = g;
    m->info.packed_bytes += g.weight_bytes;
    m->info.scratch_bytes += g.scratch_bytes;
    return OK;
}

enum err model_look_for_gates(struct gate **out, const struct model *m,
                              const struct gguf *g, const char *which,
                              char path[GATE_PATH_MAX], struct errmsg *e)
{
    uint8_t digest[HASH_BYTES];
    char hex[HASH_HEX];
    enum err rc = gguf_fingerprint(g, digest, e);
    if (rc != OK)
        return rc;
    hash_hex(hex, digest, sizeof(digest));
    struct gate_base base = {.shape = gate_shape_of(m), .fingerprint = hex};
    return gate_find(out, path, which, &base, e);
}

enum err model_find_gates(struct model *m, const struct gguf *g,
                          const char *which, char path[GATE_PATH_MAX],
                          struct errmsg *e)
{
    struct gate *gate = NULL;
    enum err rc = model_look_for_gates(&gate, m, g, which, path, e);
    if (rc == OK)
        rc = model_set_gates(m, gate, e);
    gate_free(gate);
    return rc;
}

bool model_has_gates(const struct model *m)
{
    return m->gates.map != NULL;
}

bool model_gates_are_tied(const struct model *m)
{
    return model_has_gates(m) && m->gates.eval.shape.kind != GATE_RG;
}
