#include <math.h>

#include "gates/train/layer_internal.h"

enum { ROWS_PER_TASK = 16 };

struct norm_job {
    float *y;
    const float *x;
    struct norm norm;
};

static size_t end_of(size_t task, size_t n)
{
    size_t end = (task + 1) * ROWS_PER_TASK;
    return end < n ? end : n;
}

static int tasks_for(size_t n)
{
    return (int)((n + ROWS_PER_TASK - 1) / ROWS_PER_TASK);
}

static float inverse_rms(const float *x, size_t dim, float eps)
{
    double sum = 0.0;
    for (size_t i = 0; i < dim; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)(1.0 / sqrt(sum / (double)dim + (double)eps));
}

static void norm_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct norm_job *j = ctx;
    const struct norm *n = &j->norm;
    size_t r = (size_t)task * ROWS_PER_TASK;
    for (; r < end_of((size_t)task, n->n); r++) {
        const float *x = j->x + r * n->dim;
        float *y = j->y + r * n->dim;
        float scale = inverse_rms(x, n->dim, n->eps);
        for (size_t i = 0; i < n->dim; i++)
            y[i] = x[i] * scale * n->weight[i];
    }
}

void norm_forward(struct workers *k, float *y, const float *x, struct norm n)
{
    struct norm_job j = {y, x, n};
    workers_run(k, tasks_for(n.n), norm_task, &j);
}

/* With r = 1/rms(x): dx_i = r w_i dy_i - x_i r^3 / dim * sum_j w_j dy_j x_j. */
static void norm_back_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct norm_grad *j = ctx;
    const struct norm *n = &j->norm;
    size_t row = (size_t)task * ROWS_PER_TASK;
    for (; row < end_of((size_t)task, n->n); row++) {
        const float *x = j->x + row * n->dim;
        const float *dy = j->dy + row * n->dim;
        float *dx = j->dx + row * n->dim;
        float r = inverse_rms(x, n->dim, n->eps);
        double dot = 0.0;
        for (size_t i = 0; i < n->dim; i++)
            dot += (double)(n->weight[i] * dy[i]) * (double)x[i];
        float pull =
            (float)(dot * (double)r * (double)r * (double)r / (double)n->dim);
        for (size_t i = 0; i < n->dim; i++) {
            float v = r * n->weight[i] * dy[i] - x[i] * pull;
            dx[i] = j->add ? dx[i] + v : v;
        }
    }
}

void norm_backward(struct workers *k, const struct norm_grad *g)
{
    struct norm_grad j = *g;
    workers_run(k, tasks_for(g->norm.n), norm_back_task, &j);
}

struct rope_job {
    const struct layer_work *w;
    float *x;
    uint32_t n_heads, n_tokens;
    int backward;
};

static void rope_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct rope_job *j = ctx;
    size_t d = j->w->f->shape.head_dim, half = d / 2;
    bool inter = j->w->f->shape.rope_interleaved;
    size_t t = (size_t)task * ROWS_PER_TASK;
    for (; t < end_of((size_t)task, j->n_tokens); t++) {
        const float *c = j->w->cos_sin + t * d, *s = c + half;
        for (size_t h = 0; h < j->n_heads; h++) {
            float *p = j->x + (t * j->n_heads + h) * d;
            for (size_t i = 0; i < half; i++) {
                size_t a = inter ? 2 * i : i;
                size_t b = inter ? 2 * i + 1 : i + half;
                float sine = j->backward ? -s[i] : s[i];
                float u = p[a] * c[i] - p[b] * sine;
                p[b] = p[a] * sine + p[b] * c[i];
                p[a] = u;
            }
        }
    }
}

void rope_rows(const struct layer_work *w, float *x, uint32_t n_heads,
               uint32_t n_tokens, int backward)
{
    struct rope_job j = {w, x, n_heads, n_tokens, backward};
    workers_run(w->k, tasks_for(n_tokens), rope_task, &j);
}

struct gate_job {
    const struct layer_work *w;
    float *x, *y; /* [n][dim] */
    const float *bias;
    size_t n, dim;
};

/* x += bias, y = silu(x) */
static void act_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct gate_job *j = ctx;
    size_t r = (size_t)task * ROWS_PER_TASK;
    for (; r < end_of((size_t)task, j->n); r++) {
        float *x = j->x + r * j->dim;
        for (size_t i = 0; i < j->dim; i++)
            x[i] += j->bias[i];
        j->w->rows->silu(j->y + r * j->dim, x, j->dim);
    }
}

static void act_forward(const struct layer_work *w, float *y, float *x,
                        const float *bias, size_t n)
{
    struct gate_job j = {w, x, y, bias, n, w->o.gate_width};
    workers_run(w->k, tasks_for(n), act_task, &j);
}

/* x, the gradient of silu(y), becomes that of y. */
static void act_back_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct gate_job *j = ctx;
    size_t r = (size_t)task * ROWS_PER_TASK;
    size_t n = (end_of((size_t)task, j->n) - r) * j->dim;
    j->w->rows->silu_back(j->x + r * j->dim, j->y + r * j->dim, n);
}

static void act_backward(const struct layer_work *w, float *d, float *x,
                         size_t n)
{
    struct gate_job j = {w, d, x, NULL, n, w->o.gate_width};
    workers_run(w->k, tasks_for(n), act_back_task, &j);
}

void gate_forward(struct layer_work *w, const struct gate *g, uint32_t layer,
                  uint32_t n_tokens)
{
    const float *p = gate_layer(g, layer);
    const struct gate_parts *at = &g->parts;
    struct kept *a = w->a;
    size_t T = n_tokens, m = g->shape.width, D = g->shape.n_embd;
    size_t H = g->shape.n_kv_heads;
    mat_xwt(w->mat, a->a1, a->n1, p + at->w1, (struct mat_size){T, m, D}, 0);
    act_forward(w, a->h1, a->a1, p + at->c1, T);
    mat_xwt(w->mat, a->a2, a->h1, p + at->w2, (struct mat_size){T, m, m}, 0);
    act_forward(w, a->h2, a->a2, p + at->c2, T);
    mat_xwt(w->mat, a->z, a->h2, p + at->w3, (struct mat_size){T, H, m}, 0);
    /* log sigmoid(z), stable on both sides. */
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < H; h++) {
            float z = a->z[t * H + h] + p[at->c3 + h];
            a->z[t * H + h] = z;
            a->lambda[h * T + t] =
                z > 0.0f ? -log1pf(expf(-z)) : z - log1pf(expf(z));
        }
}

static void add_column_sums(float *bias_grad, const float *d, size_t n,
                            size_t dim)
{
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < dim; i++)
            bias_grad[i] += d[r * dim + i];
}

void gate_backward(struct layer_work *w, const struct gate *g, uint32_t layer,
                   uint32_t n_tokens, float *gate_grad)
{
    const float *p = gate_layer(g, layer);
    const struct gate_parts *at = &g->parts;
    struct kept *a = w->a;
    size_t T = n_tokens, m = g->shape.width, D = g->shape.n_embd;
    size_t H = g->shape.n_kv_heads;
    /* d log sigmoid(z) / dz = 1 - sigmoid(z) = 1 / (1 + exp(z)). */
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < H; h++)
            w->d_z[t * H + h] =
                w->d_lambda[h * T + t] / (1.0f + expf(a->z[t * H + h]));
    mat_ytx(w->mat, gate_grad + at->w3, w->d_z, a->h2,
            (struct mat_size){T, H, m});
    add_column_sums(gate_grad + at->c3, w->d_z, T, H);
    mat_yw(w->mat, w->d_hid, w->d_z, p + at->w3, (struct mat_size){T, H, m}, 0);
    act_backward(w, w->d_hid, a->a2, T);
    mat_ytx(w->mat, gate_grad + at->w2, w->d_hid, a->h1,
            (struct mat_size){T, m, m});
    add_column_sums(gate_grad + at->c2, w->d_hid, T, m);
    mat_yw(w->mat, w->d_a, w->d_hid, p + at->w2, (struct mat_size){T, m, m}, 0);
    act_backward(w, w->d_a, a->a1, T);
    mat_ytx(w->mat, gate_grad + at->w1, w->d_a, a->n1,
            (struct mat_size){T, m, D});
    add_column_sums(gate_grad + at->c1, w->d_a, T, m);
    mat_yw(w->mat, w->d_n, w->d_a, p + at->w1, (struct mat_size){T, m, D}, 1);
}
