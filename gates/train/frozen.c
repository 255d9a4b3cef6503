#include "gates/train/frozen.h"

#include <stdlib.h>

/* Hands out n floats of f->weights; counts only while that is NULL. */
static float *part(struct frozen *f, size_t *at, size_t n)
{
    float *p = f->weights == NULL ? NULL : f->weights + *at;
    *at += (n + 15) / 16 * 16;
    return p;
}

static void lay_out_layer(struct frozen *f, struct frozen_layer *l, size_t *at)
{
    const struct frozen_shape *s = &f->shape;
    size_t q = (size_t)s->n_heads * s->head_dim;
    size_t kv = (size_t)s->n_kv_heads * s->head_dim;
    size_t d = s->n_embd, ff = s->n_ff;
    l->attn_norm = part(f, at, d);
    l->wq = part(f, at, q * d);
    l->wk = part(f, at, kv * d);
    l->wv = part(f, at, kv * d);
    if (s->qkv_bias) {
        l->bq = part(f, at, q);
        l->bk = part(f, at, kv);
        l->bv = part(f, at, kv);
    }
    if (s->qk_norm) {
        l->q_norm = part(f, at, s->head_dim);
        l->k_norm = part(f, at, s->head_dim);
    }
    l->wo = part(f, at, d * q);
    l->ffn_norm = part(f, at, d);
    l->w_gate = part(f, at, ff * d);
    l->w_up = part(f, at, ff * d);
    l->w_down = part(f, at, d * ff);
}

static size_t lay_out(struct frozen *f)
{
    const struct frozen_shape *s = &f->shape;
    size_t at = 0;
    f->embd = part(f, &at, (size_t)s->n_vocab * s->n_embd);
    f->out = s->tied ? f->embd : part(f, &at, (size_t)s->n_vocab * s->n_embd);
    f->out_norm = part(f, &at, s->n_embd);
    for (uint32_t i = 0; i < s->n_layers; i++)
        lay_out_layer(f, &f->layer[i], &at);
    return at;
}

enum err frozen_new(struct frozen **out, const struct frozen_shape *s,
                    struct errmsg *m)
{
    struct frozen *f = calloc(1, sizeof(*f));
    if (f == NULL)
        goto no_memory;
    f->shape = *s;
    f->layer = calloc(s->n_layers, sizeof(*f->layer));
    f->inv_freq = calloc(s->head_dim / 2, sizeof(*f->inv_freq));
    if (f->layer == NULL || f->inv_freq == NULL)
        goto no_memory;
    f->n_weights = lay_out(f);
    f->weights = calloc(f->n_weights, sizeof(float));
    if (f->weights == NULL)
        goto no_memory;
    lay_out(f);
    *out = f;
    return OK;
no_memory:
    frozen_free(f);
    return err_set(m, ERR_NOMEM,
                   "no memory for the model's weights as "
                   "float32");
}

void frozen_free(struct frozen *f)
{
    if (f == NULL)
        return;
    free(f->layer);
    free(f->inv_freq);
    free(f->weights);
    free(f);
}
