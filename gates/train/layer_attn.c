#include <math.h>
#include <string.h>

#include "gates/train/layer_internal.h"

struct attn_job {
    struct layer_work *w;
    uint32_t n_tokens;
    const float *lambda; /* [n_kv_heads][T] or NULL */
    const float *d_soft; /* [T] */
};

static struct mat_view rows_of(float *p, size_t row, size_t n, size_t head,
                               size_t head_dim, size_t ld)
{
    return (struct mat_view){p + row * ld + head * head_dim, n, head_dim, ld};
}

/* p[t - row][i] = softmax over i <= t of the logits already in p. Entries
 * after t become zero, so that products over whole blocks may use them. */
static void softmax_rows(const struct rows *f, const struct mat_view *p,
                         size_t row, const float *lambda)
{
    for (size_t r = 0; r < p->rows; r++) {
        float *x = p->p + r * p->ld;
        size_t n = row + r + 1;
        f->softmax(x, lambda, n);
        memset(x + n, 0, (p->cols - n) * sizeof(float));
    }
}

/* The attention weights of query rows [row, row + n) of one head. */
static struct mat_view weights_of(const struct attn_job *job, size_t head,
                                  size_t row, size_t n, float *p)
{
    struct layer_work *w = job->w;
    const struct frozen_shape *s = &w->f->shape;
    size_t d = s->head_dim, kv = head / (s->n_heads / s->n_kv_heads);
    struct mat_view a =
        rows_of(w->a->q, row, n, head, d, (size_t)s->n_heads * d);
    struct mat_view b =
        rows_of(w->a->k, 0, row + n, kv, d, (size_t)s->n_kv_heads * d);
    struct mat_view c = {p, n, row + n, job->n_tokens};
    mat_abt(w->mat, &c, &a, &b, 1.0f / sqrtf((float)d), 0.0f);
    const float *lambda =
        job->lambda == NULL ? NULL : job->lambda + kv * job->n_tokens;
    softmax_rows(w->rows, &c, row, lambda);
    return c;
}

static size_t block_rows(const struct attn_job *job, size_t row)
{
    size_t left = job->n_tokens - row;
    return left < ATTN_ROWS ? left : ATTN_ROWS;
}

static float *scratch_of(const struct attn_job *job, int thread)
{
    return job->w->scores +
           (size_t)thread * 2 * ATTN_ROWS * job->w->o.max_tokens;
}

static size_t n_blocks(uint32_t n_tokens)
{
    return ((size_t)n_tokens + ATTN_ROWS - 1) / ATTN_ROWS;
}

/* One block of rows of one head. */
static void forward_task(void *ctx, int task, int thread)
{
    const struct attn_job *job = ctx;
    struct layer_work *w = job->w;
    const struct frozen_shape *s = &w->f->shape;
    size_t blocks = n_blocks(job->n_tokens);
    size_t d = s->head_dim, head = (size_t)task / blocks;
    size_t row = (size_t)task % blocks * ATTN_ROWS, n = block_rows(job, row);
    size_t kv = head / (s->n_heads / s->n_kv_heads);
    struct mat_view p = weights_of(job, head, row, n, scratch_of(job, thread));
    struct mat_view v =
        rows_of(w->a->v, 0, row + n, kv, d, (size_t)s->n_kv_heads * d);
    struct mat_view o =
        rows_of(w->o_att, row, n, head, d, (size_t)s->n_heads * d);
    mat_ab(w->mat, &o, &p, &v, 1.0f, 0.0f);
}

void attn_forward(struct layer_work *w, uint32_t n_tokens, const float *lambda)
{
    struct attn_job job = {w, n_tokens, lambda, NULL};
    size_t n = w->f->shape.n_heads * n_blocks(n_tokens);
    workers_run(w->k, (int)n, forward_task, &job);
}

/* ds = p * (dp - sum(dp * p)) in place of dp, and its pull on lambda. */
static void softmax_backward(const struct rows *f, const struct mat_view *p,
                             float *dp, size_t row, float *d_lambda)
{
    for (size_t r = 0; r < p->rows; r++) {
        float *d = dp + r * p->ld;
        size_t n = row + r + 1;
        f->softmax_back(d, p->p + r * p->ld, d_lambda, n);
        memset(d + n, 0, (p->cols - n) * sizeof(float));
    }
}

/* Gradients of one query head; those of keys, values and lambda go to places
 * of this head's own and are summed over the group afterwards, in order. */
static void backward_task(void *ctx, int task, int thread)
{
    const struct attn_job *job = ctx;
    struct layer_work *w = job->w;
    const struct frozen_shape *s = &w->f->shape;
    size_t d = s->head_dim, head = (size_t)task, T = job->n_tokens;
    size_t kv = head / (s->n_heads / s->n_kv_heads);
    size_t ld = (size_t)s->n_heads * d, ld_kv = (size_t)s->n_kv_heads * d;
    float scale = 1.0f / sqrtf((float)d);
    float *scores = scratch_of(job, thread);
    float *dp = scores + (size_t)ATTN_ROWS * w->o.max_tokens;
    float *d_lambda = w->d_lambda_q + head * T;
    memset(d_lambda, 0, T * sizeof(float));
    for (size_t row = 0; row < T; row += ATTN_ROWS) {
        size_t n = block_rows(job, row);
        struct mat_view p = weights_of(job, head, row, n, scores);
        struct mat_view ds = {dp, n, row + n, T};
        struct mat_view v = rows_of(w->a->v, 0, row + n, kv, d, ld_kv);
        struct mat_view k = rows_of(w->a->k, 0, row + n, kv, d, ld_kv);
        struct mat_view q = rows_of(w->a->q, row, n, head, d, ld);
        struct mat_view d_o = rows_of(w->d_o, row, n, head, d, ld);
        struct mat_view d_q = rows_of(w->d_q, row, n, head, d, ld);
        struct mat_view d_k = rows_of(w->d_kq, 0, row + n, head, d, ld);
        struct mat_view d_v = rows_of(w->d_vq, 0, row + n, head, d, ld);
        /* Blocks come in order of rows, so rows up to `row` hold sums. */
        for (size_t i = row; i < row + n; i++) {
            memset(w->d_kq + i * ld + head * d, 0, d * sizeof(float));
            memset(w->d_vq + i * ld + head * d, 0, d * sizeof(float));
        }
        mat_abt(w->mat, &ds, &d_o, &v, 1.0f, 0.0f);
        mat_atb(w->mat, &d_v, &p, &d_o, 1.0f, 1.0f);
        softmax_backward(w->rows, &p, dp, row, d_lambda);
        mat_ab(w->mat, &d_q, &ds, &k, scale, 0.0f);
        mat_atb(w->mat, &d_k, &ds, &q, scale, 1.0f);
    }
}

/* The capacity term's pull: S_t = sum over i of beta_i^(t - i), so that
 * d S_t / d lambda_i = (t - i) beta_i^(t - i). */
static void soft_backward(float *d_lambda, const float *lambda,
                          const float *d_soft, size_t n_tokens)
{
    for (size_t i = 0; i < n_tokens; i++) {
        double beta = exp((double)lambda[i]), left = 1.0, sum = 0.0;
        for (size_t t = i; t < n_tokens && left > LOSS_ALIVE_MIN; t++) {
            sum += (double)d_soft[t] * (double)(t - i) * left;
            left *= beta;
        }
        d_lambda[i] += (float)sum;
    }
}

static void reduce_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct attn_job *job = ctx;
    struct layer_work *w = job->w;
    const struct frozen_shape *s = &w->f->shape;
    size_t d = s->head_dim, T = job->n_tokens, kv = (size_t)task;
    size_t group = s->n_heads / s->n_kv_heads;
    size_t ld = (size_t)s->n_heads * d, ld_kv = (size_t)s->n_kv_heads * d;
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; i < d; i++) {
            float k = 0.0f, v = 0.0f;
            for (size_t g = 0; g < group; g++) {
                k += w->d_kq[t * ld + (kv * group + g) * d + i];
                v += w->d_vq[t * ld + (kv * group + g) * d + i];
            }
            w->d_k[t * ld_kv + kv * d + i] = k;
            w->d_v[t * ld_kv + kv * d + i] = v;
        }
    }
    float *d_lambda = w->d_lambda + kv * T;
    for (size_t i = 0; i < T; i++) {
        d_lambda[i] = 0.0f;
        for (size_t g = 0; g < group; g++)
            d_lambda[i] += w->d_lambda_q[(kv * group + g) * T + i];
    }
    soft_backward(d_lambda, job->lambda + kv * T, job->d_soft, T);
}

void attn_backward(struct layer_work *w, uint32_t n_tokens, const float *d_soft)
{
    struct attn_job job = {w, n_tokens, w->a->lambda, d_soft};
    workers_run(w->k, (int)w->f->shape.n_heads, backward_task, &job);
    workers_run(w->k, (int)w->f->shape.n_kv_heads, reduce_task, &job);
}
