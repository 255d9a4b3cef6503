#include "gates/gate.h"

#include <stdlib.h>

struct gate_parts gate_parts(const struct gate_shape *s)
{
    size_t m = s->width, d = s->n_embd, h = s->n_kv_heads;
    struct gate_parts p = {.w1 = 0};
    p.c1 = m * d;
    p.w2 = p.c1 + m;
    p.c2 = p.w2 + (s->kind == GATE_RG10 ? m * m : 0);
    p.w3 = p.c2 + (s->kind == GATE_RG10 ? m : 0);
    p.c3 = p.w3 + h * m;
    p.n = p.c3 + h;
    return p;
}

enum err gate_new(struct gate **out, const struct gate_shape *s,
                  struct errmsg *m)
{
    if (s->n_layers == 0 || s->n_embd == 0 || s->n_kv_heads == 0 ||
        s->n_kv_heads > GATE_HEADS_MAX || s->width == 0 ||
        s->width > GATE_WIDTH_MAX)
        return err_set(m, ERR_INVAL,
                       "gates of %u layers x %u KV heads, width %u, input %u "
                       "make no sense (width at most %d, KV heads at most %d)",
                       s->n_layers, s->n_kv_heads, s->width, s->n_embd,
                       GATE_WIDTH_MAX, GATE_HEADS_MAX);
    struct gate *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return err_set(m, ERR_NOMEM, "no memory for gates");
    g->shape = *s;
    g->parts = gate_parts(s);
    g->p = calloc(gate_n_params(g), sizeof(float));
    if (g->p == NULL) {
        free(g);
        return err_set(m, ERR_NOMEM, "no memory for gates of width %u",
                       s->width);
    }
    *out = g;
    return OK;
}

void gate_free(struct gate *g)
{
    if (g == NULL)
        return;
    free(g->p);
    free(g);
}

enum err gate_check_fit(const struct gate_shape *s,
                        const struct gate_shape *model, struct errmsg *m)
{
    if (s->n_layers == model->n_layers && s->n_embd == model->n_embd &&
        s->n_kv_heads == model->n_kv_heads)
        return OK;
    return err_set(m, ERR_CONFLICT,
                   "its gates are for %u layers, inputs of %u and %u KV heads; "
                   "the model has %u layers, inputs of %u and %u KV heads",
                   s->n_layers, s->n_embd, s->n_kv_heads, model->n_layers,
                   model->n_embd, model->n_kv_heads);
}

size_t gate_n_params(const struct gate *g)
{
    return (size_t)g->shape.n_layers * g->parts.n;
}

const char *gate_kind_name(enum gate_kind kind)
{
    return kind == GATE_RG10 ? "rg10" : "rg";
}
