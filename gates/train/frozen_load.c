#include <string.h>

#include "gates/train/frozen.h"
#include "runtime/kernels/quant.h"
#include "runtime/model/weights.h"

struct copy_job {
    const struct weight *from;
    float *to;
};

/* Rows of one task: small enough to share out, large enough to be quick. */
enum { ROWS_PER_TASK = 64 };

static void copy_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct copy_job *j = ctx;
    const struct dtype_info *info = dtype_info(j->from->type);
    size_t cols = (size_t)j->from->cols, rows = (size_t)j->from->rows;
    size_t row_bytes = cols / info->block_elems * info->block_bytes;
    size_t row = (size_t)task * ROWS_PER_TASK;
    size_t n = rows - row < ROWS_PER_TASK ? rows - row : ROWS_PER_TASK;
    quant_dequantize(j->from->type,
                     (const uint8_t *)j->from->raw + row * row_bytes,
                     j->to + row * cols, n * cols);
}

static void copy_matrix(struct workers *k, float *to, const struct weight *from)
{
    struct copy_job j = {from, to};
    int n = (int)((from->rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK);
    workers_run(k, n, copy_task, &j);
}

static void copy_vector(float *to, const float *from, size_t n)
{
    if (to != NULL)
        memcpy(to, from, n * sizeof(float));
}

static void copy_layer(struct workers *k, const struct frozen_shape *s,
                       struct frozen_layer *to, const struct layer *from)
{
    size_t q = (size_t)s->n_heads * s->head_dim;
    size_t kv = (size_t)s->n_kv_heads * s->head_dim;
    copy_vector(to->attn_norm, from->attn_norm, s->n_embd);
    copy_vector(to->ffn_norm, from->ffn_norm, s->n_embd);
    copy_vector(to->bq, from->q_bias, q);
    copy_vector(to->bk, from->k_bias, kv);
    copy_vector(to->bv, from->v_bias, kv);
    copy_vector(to->q_norm, from->q_norm, s->head_dim);
    copy_vector(to->k_norm, from->k_norm, s->head_dim);
    copy_matrix(k, to->wq, &from->q);
    copy_matrix(k, to->wk, &from->k);
    copy_matrix(k, to->wv, &from->v);
    copy_matrix(k, to->wo, &from->o);
    copy_matrix(k, to->w_gate, &from->gate);
    copy_matrix(k, to->w_up, &from->up);
    copy_matrix(k, to->w_down, &from->down);
}

enum err frozen_from_model(struct frozen **out, const struct model *from,
                           struct workers *k, struct errmsg *m)
{
    const struct model_info *i = model_info(from);
    const struct model_weights w = model_weights(from);
    struct frozen_shape s = {.n_layers = i->n_layers,
                             .n_heads = i->n_heads,
                             .n_kv_heads = i->n_kv_heads,
                             .head_dim = i->head_dim,
                             .n_embd = i->n_embd,
                             .n_ff = i->n_ff,
                             .n_vocab = i->n_vocab,
                             .norm_eps = w.norm_eps,
                             .rope_interleaved = w.family->rope_interleaved,
                             .qkv_bias = w.family->qkv_bias,
                             .qk_norm = w.family->qk_norm,
                             .tied = w.is_tied};
    struct frozen *f = NULL;
    enum err rc = frozen_new(&f, &s, m);
    if (rc != OK)
        return rc;
    copy_matrix(k, f->embd, w.embd);
    if (!s.tied)
        copy_matrix(k, f->out, w.head);
    copy_vector(f->out_norm, w.out_norm, s.n_embd);
    for (uint32_t l = 0; l < s.n_layers; l++)
        copy_layer(k, &s, &f->layer[l], &w.layer[l]);
    memcpy(f->inv_freq, w.rope_freq, s.head_dim / 2 * sizeof(double));
    *out = f;
    return OK;
}
