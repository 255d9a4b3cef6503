#include "gates/train/layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gates/train/layer_internal.h"

static float *part(struct layer_work *w, size_t *at, size_t n)
{
    float *p = w->memory == NULL ? NULL : w->memory + *at;
    *at += (n + 15) / 16 * 16;
    return p;
}

static void lay_out_acts(struct layer_work *w, struct kept *a, size_t *at)
{
    const struct frozen_shape *s = &w->f->shape;
    size_t T = w->o.max_tokens, D = s->n_embd, F = s->n_ff, d = s->head_dim;
    size_t m = w->o.gate_width, H = s->n_kv_heads;
    a->n1 = part(w, at, T * D);
    a->q = part(w, at, T * s->n_heads * d);
    a->k = part(w, at, T * H * d);
    a->v = part(w, at, T * H * d);
    if (s->qk_norm) {
        a->q_raw = part(w, at, T * s->n_heads * d);
        a->k_raw = part(w, at, T * H * d);
    }
    a->x2 = part(w, at, T * D);
    a->g = part(w, at, T * F);
    a->u = part(w, at, T * F);
    a->a1 = part(w, at, T * m);
    a->h1 = part(w, at, T * m);
    a->a2 = part(w, at, T * m);
    a->h2 = part(w, at, T * m);
    a->z = part(w, at, T * H);
    a->lambda = part(w, at, T * H);
}

static size_t lay_out(struct layer_work *w)
{
    const struct frozen_shape *s = &w->f->shape;
    size_t T = w->o.max_tokens, D = s->n_embd, F = s->n_ff, d = s->head_dim;
    size_t Q = s->n_heads * d, KV = s->n_kv_heads * d, at = 0;
    for (uint32_t i = 0; i <= w->o.n_kept; i++)
        lay_out_acts(w, &w->set[i], &at);
    w->cos_sin = part(w, &at, T * d);
    w->o_att = part(w, &at, T * Q);
    w->n2 = part(w, &at, T * D);
    w->h = part(w, &at, T * F);
    w->d_n = part(w, &at, T * D);
    w->d_o = part(w, &at, T * Q);
    w->d_q = part(w, &at, T * Q);
    w->d_kq = part(w, &at, T * Q);
    w->d_vq = part(w, &at, T * Q);
    w->d_k = part(w, &at, T * KV);
    w->d_v = part(w, &at, T * KV);
    w->d_lambda_q = part(w, &at, T * s->n_heads);
    w->d_lambda = part(w, &at, T * s->n_kv_heads);
    w->d_g = part(w, &at, T * F);
    w->d_u = part(w, &at, T * F);
    w->d_z = part(w, &at, T * s->n_kv_heads);
    w->d_a = part(w, &at, T * w->o.gate_width);
    w->d_hid = part(w, &at, T * w->o.gate_width);
    w->scores = part(w, &at, (size_t)workers_count(w->k) * 2 * ATTN_ROWS * T);
    return at;
}

size_t layer_kept_bytes(const struct frozen *f, const struct layer_options *o)
{
    struct layer_work w = {.f = f, .o = *o};
    struct kept a;
    size_t at = 0;
    lay_out_acts(&w, &a, &at);
    return at * sizeof(float);
}

static void fill_rope(struct layer_work *w)
{
    size_t d = w->f->shape.head_dim;
    for (size_t t = 0; t < w->o.max_tokens; t++)
        for (size_t i = 0; i < d / 2; i++) {
            double angle = (double)t * w->f->inv_freq[i];
            w->cos_sin[t * d + i] = (float)cos(angle);
            w->cos_sin[t * d + d / 2 + i] = (float)sin(angle);
        }
}

enum err layer_work_new(struct layer_work **out, const struct frozen *f,
                        const struct mat *t, const struct layer_options *o,
                        struct errmsg *m)
{
    struct layer_work *w = calloc(1, sizeof(*w));
    if (w == NULL)
        goto no_memory;
    *w = (struct layer_work){
        .f = f, .mat = t, .k = mat_workers(t), .rows = rows_best(), .o = *o};
    w->set = calloc((size_t)o->n_kept + 1, sizeof(*w->set));
    if (w->set == NULL)
        goto no_memory;
    w->n_floats = lay_out(w);
    w->memory = calloc(w->n_floats, sizeof(float));
    if (w->memory == NULL)
        goto no_memory;
    lay_out(w);
    fill_rope(w);
    *out = w;
    return OK;
no_memory:
    err_set(m, ERR_NOMEM, "no memory for sequences of %u tokens (%zu MiB)",
            o->max_tokens, w == NULL ? 0 : layer_work_bytes(w) >> 20);
    layer_work_free(w);
    return ERR_NOMEM;
}

void layer_work_free(struct layer_work *w)
{
    if (w == NULL)
        return;
    free(w->memory);
    free(w->set);
    free(w);
}

size_t layer_work_bytes(const struct layer_work *w)
{
    return w->n_floats * sizeof(float);
}

static void add_bias(float *x, const float *bias, size_t n, size_t dim)
{
    for (size_t r = 0; bias != NULL && r < n; r++)
        for (size_t i = 0; i < dim; i++)
            x[r * dim + i] += bias[i];
}

/* Of n whole states, or of n heads. */
static struct norm norm_of(const struct frozen_shape *s, const float *weight,
                           size_t n)
{
    return (struct norm){weight, n, s->n_embd, s->norm_eps};
}

static struct norm head_norm(const struct frozen_shape *s, const float *weight,
                             size_t n)
{
    return (struct norm){weight, n, s->head_dim, s->norm_eps};
}

/* n1, q, k, v from the block's input. */
static void project(struct layer_work *w, const struct frozen_layer *l,
                    const float *x, size_t T)
{
    const struct frozen_shape *s = &w->f->shape;
    struct kept *a = w->a;
    size_t D = s->n_embd, d = s->head_dim;
    size_t Q = s->n_heads * d, KV = s->n_kv_heads * d;
    float *q = s->qk_norm ? a->q_raw : a->q, *k = s->qk_norm ? a->k_raw : a->k;
    norm_forward(w->k, a->n1, x, norm_of(s, l->attn_norm, T));
    mat_xwt(w->mat, q, a->n1, l->wq, (struct mat_size){T, Q, D}, 0);
    mat_xwt(w->mat, k, a->n1, l->wk, (struct mat_size){T, KV, D}, 0);
    mat_xwt(w->mat, a->v, a->n1, l->wv, (struct mat_size){T, KV, D}, 0);
    add_bias(q, l->bq, T, Q);
    add_bias(k, l->bk, T, KV);
    add_bias(a->v, l->bv, T, KV);
    if (s->qk_norm) {
        norm_forward(w->k, a->q, q, head_norm(s, l->q_norm, T * s->n_heads));
        norm_forward(w->k, a->k, k, head_norm(s, l->k_norm, T * s->n_kv_heads));
    }
    rope_rows(w, a->q, s->n_heads, (uint32_t)T, 0);
    rope_rows(w, a->k, s->n_kv_heads, (uint32_t)T, 0);
}

struct ffn_job {
    struct layer_work *w;
    size_t n;
};

enum { FFN_PIECE = 16384 }; /* elements of one task */

static size_t piece_of(const struct ffn_job *j, size_t from)
{
    return j->n - from < FFN_PIECE ? j->n - from : FFN_PIECE;
}

static void ffn_act_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct ffn_job *j = ctx;
    size_t i = (size_t)task * FFN_PIECE;
    const struct layer_work *w = j->w;
    w->rows->silu_mul(w->h + i, w->a->g + i, w->a->u + i, piece_of(j, i));
}

/* d_g and d_u from the gradient of h, which lies in d_u. */
static void ffn_back_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct ffn_job *j = ctx;
    size_t i = (size_t)task * FFN_PIECE;
    const struct layer_work *w = j->w;
    w->rows->silu_mul_back(w->d_g + i, w->d_u + i, w->a->g + i, w->a->u + i,
                           piece_of(j, i));
}

static void run_ffn(struct layer_work *w, size_t n, workers_fn fn)
{
    struct ffn_job j = {w, n};
    workers_run(w->k, (int)((n + FFN_PIECE - 1) / FFN_PIECE), fn, &j);
}

/* Everything up to gate and up of the FFN; x2 = x + attention. */
static void forward_to_ffn(struct layer_work *w, uint32_t layer, const float *x,
                           uint32_t n_tokens, const struct gate *gate)
{
    const struct frozen_shape *s = &w->f->shape;
    const struct frozen_layer *l = &w->f->layer[layer];
    struct kept *a = w->a;
    size_t T = n_tokens, D = s->n_embd;
    size_t Q = (size_t)s->n_heads * s->head_dim;
    project(w, l, x, T);
    if (gate != NULL)
        gate_forward(w, gate, layer, n_tokens);
    attn_forward(w, n_tokens, gate == NULL ? NULL : a->lambda);
    memcpy(a->x2, x, T * D * sizeof(float));
    mat_xwt(w->mat, a->x2, w->o_att, l->wo, (struct mat_size){T, D, Q}, 1);
    norm_forward(w->k, w->n2, a->x2, norm_of(s, l->ffn_norm, T));
    mat_xwt(w->mat, a->g, w->n2, l->w_gate, (struct mat_size){T, s->n_ff, D},
            0);
    mat_xwt(w->mat, a->u, w->n2, l->w_up, (struct mat_size){T, s->n_ff, D}, 0);
}

/* Where a layer's forward pass is written; the last set serves whatever is
 * not kept. */
static void pick_set(struct layer_work *w, uint32_t layer, int is_student)
{
    uint32_t n = w->o.n_kept;
    w->a = &w->set[is_student && layer < n ? layer : n];
}

void layer_forward(struct layer_work *w, uint32_t layer, const float *x,
                   uint32_t n_tokens, const struct gate *gate, float *out)
{
    const struct frozen_shape *s = &w->f->shape;
    size_t T = n_tokens, D = s->n_embd;
    pick_set(w, layer, gate != NULL);
    forward_to_ffn(w, layer, x, n_tokens, gate);
    run_ffn(w, T * s->n_ff, ffn_act_task);
    memcpy(out, w->a->x2, T * D * sizeof(float));
    mat_xwt(w->mat, out, w->h, w->f->layer[layer].w_down,
            (struct mat_size){T, D, s->n_ff}, 1);
}

void layer_read_lambda(const struct layer_work *w, uint32_t n_tokens,
                       float *lambda)
{
    size_t n = (size_t)n_tokens * w->f->shape.n_kv_heads;
    memcpy(lambda, w->a->lambda, n * sizeof(float));
}

/* d (gradient of the output) becomes the gradient of x2. */
static void backward_ffn(struct layer_work *w, const struct frozen_layer *l,
                         size_t T, float *d)
{
    const struct frozen_shape *s = &w->f->shape;
    size_t D = s->n_embd;
    mat_yw(w->mat, w->d_u, d, l->w_down, (struct mat_size){T, D, s->n_ff}, 0);
    run_ffn(w, T * s->n_ff, ffn_back_task);
    mat_yw(w->mat, w->d_n, w->d_g, l->w_gate, (struct mat_size){T, s->n_ff, D},
           0);
    mat_yw(w->mat, w->d_n, w->d_u, l->w_up, (struct mat_size){T, s->n_ff, D},
           1);
    struct norm_grad g = {d, w->d_n, w->a->x2, norm_of(s, l->ffn_norm, T), 1};
    norm_backward(w->k, &g);
}

/* In place: the gradient after a norm of each head becomes that before. */
static void backward_head_norm(const struct layer_work *w, float *d,
                               const float *raw, const float *weight, size_t n)
{
    const struct frozen_shape *s = &w->f->shape;
    struct norm_grad g = {d, d, raw, head_norm(s, weight, n), 0};
    norm_backward(w->k, &g);
}

/* d_n (gradient of n1) from d_q, d_k, d_v after RoPE. */
static void backward_project(struct layer_work *w, const struct frozen_layer *l,
                             size_t T)
{
    const struct frozen_shape *s = &w->f->shape;
    size_t D = s->n_embd, d = s->head_dim;
    rope_rows(w, w->d_q, s->n_heads, (uint32_t)T, 1);
    rope_rows(w, w->d_k, s->n_kv_heads, (uint32_t)T, 1);
    if (s->qk_norm) {
        backward_head_norm(w, w->d_q, w->a->q_raw, l->q_norm, T * s->n_heads);
        backward_head_norm(w, w->d_k, w->a->k_raw, l->k_norm,
                           T * s->n_kv_heads);
    }
    mat_yw(w->mat, w->d_n, w->d_q, l->wq,
           (struct mat_size){T, s->n_heads * d, D}, 0);
    mat_yw(w->mat, w->d_n, w->d_k, l->wk,
           (struct mat_size){T, s->n_kv_heads * d, D}, 1);
    mat_yw(w->mat, w->d_n, w->d_v, l->wv,
           (struct mat_size){T, s->n_kv_heads * d, D}, 1);
}

void layer_backward(struct layer_work *w, uint32_t layer, const float *x,
                    uint32_t n_tokens, const struct gate *gate,
                    const struct layer_grad *g)
{
    const struct frozen_shape *s = &w->f->shape;
    const struct frozen_layer *l = &w->f->layer[layer];
    size_t T = n_tokens, D = s->n_embd;
    pick_set(w, layer, 1);
    if (layer >= w->o.n_kept)
        forward_to_ffn(w, layer, x, n_tokens, gate);
    backward_ffn(w, l, T, g->d);
    mat_yw(w->mat, w->d_o, g->d, l->wo,
           (struct mat_size){T, D, (size_t)s->n_heads * s->head_dim}, 0);
    attn_backward(w, n_tokens, g->d_soft);
    backward_project(w, l, T);
    gate_backward(w, gate, layer, n_tokens, g->gate);
    struct norm_grad n = {g->d, w->d_n, x, norm_of(s, l->attn_norm, T), 1};
    norm_backward(w->k, &n);
}
