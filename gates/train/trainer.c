#include "gates/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gates/train/layer_internal.h"

struct trainer {
    const struct frozen *f;
    struct gate *g;
    const struct mat *mat;
    struct trainer_options o;
    struct layer_work *layer;
    struct loss_work *loss;
    float *inputs;  /* [n_layers + 1][T][n_embd]: each layer's input */
    float *teacher; /* [T][n_embd] */
    float *student; /* [T][n_embd] after the output norm */
    float *d;       /* [T][n_embd] */
    float *lambda;  /* [n_layers][n_kv_heads][T] */
    float *d_soft;  /* [T] */
    float *memory;
    size_t n_floats;
};

static size_t lay_out(struct trainer *t, float *at)
{
    const struct frozen_shape *s = &t->f->shape;
    size_t state = (size_t)t->o.max_tokens * s->n_embd;
    float *start = at;
    t->inputs = at;
    at += ((size_t)s->n_layers + 1) * state;
    t->teacher = at;
    at += state;
    t->student = at;
    at += state;
    t->d = at;
    at += state;
    t->lambda = at;
    at += (size_t)s->n_layers * s->n_kv_heads * t->o.max_tokens;
    t->d_soft = at;
    at += t->o.max_tokens;
    return (size_t)(at - start);
}

enum err trainer_new(struct trainer **out, const struct frozen *f,
                     struct gate *g, const struct trainer_options *o,
                     const struct mat *mat, struct errmsg *m)
{
    const struct frozen_shape *s = &f->shape;
    struct trainer *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the trainer");
    *t = (struct trainer){.f = f, .g = g, .mat = mat, .o = *o};
    size_t state = (size_t)o->max_tokens * s->n_embd;
    t->n_floats = ((size_t)s->n_layers + 4) * state +
                  (size_t)s->n_layers * s->n_kv_heads * o->max_tokens +
                  o->max_tokens;
    t->memory = calloc(t->n_floats, sizeof(float));
    enum err rc = OK;
    if (t->memory == NULL) {
        rc = err_set(m, ERR_NOMEM, "no memory for sequences of %u tokens",
                     o->max_tokens);
        goto fail;
    }
    lay_out(t, t->memory);
    struct layer_options lo = {g->shape.width, o->max_tokens, 0};
    size_t n_kept = o->keep_bytes / layer_kept_bytes(f, &lo);
    lo.n_kept = n_kept < s->n_layers ? (uint32_t)n_kept : s->n_layers;
    rc = layer_work_new(&t->layer, f, mat, &lo, m);
    if (rc == OK)
        rc = loss_work_new(&t->loss, f, o->max_tokens, mat, m);
    if (rc == OK) {
        *out = t;
        return OK;
    }
fail:
    trainer_free(t);
    return rc;
}

void trainer_free(struct trainer *t)
{
    if (t == NULL)
        return;
    layer_work_free(t->layer);
    loss_work_free(t->loss);
    free(t->memory);
    free(t);
}

size_t trainer_bytes(const struct trainer *t)
{
    return t->n_floats * sizeof(float) + layer_work_bytes(t->layer) +
           loss_work_bytes(t->loss);
}

static float *input_of(const struct trainer *t, uint32_t layer)
{
    return t->inputs + (size_t)layer * t->o.max_tokens * t->f->shape.n_embd;
}

static float *lambda_of(const struct trainer *t, uint32_t layer, uint32_t n)
{
    return t->lambda + (size_t)layer * t->f->shape.n_kv_heads * n;
}

static void embed(const struct trainer *t, const int32_t *tokens, uint32_t n)
{
    size_t D = t->f->shape.n_embd;
    for (uint32_t i = 0; i < n; i++)
        memcpy(t->inputs + i * D, t->f->embd + (size_t)tokens[i] * D,
               D * sizeof(float));
}

static struct norm out_norm(const struct trainer *t, uint32_t n)
{
    const struct frozen_shape *s = &t->f->shape;
    return (struct norm){t->f->out_norm, n, s->n_embd, s->norm_eps};
}

static void output_norm(const struct trainer *t, float *y, const float *x,
                        uint32_t n)
{
    norm_forward(mat_workers(t->mat), y, x, out_norm(t, n));
}

void trainer_gradient(struct trainer *t, const struct trainer_sequence *x,
                      float *grad, struct loss_values *loss)
{
    const struct frozen_shape *s = &t->f->shape;
    uint32_t L = s->n_layers, n_tokens = x->n_tokens;
    embed(t, x->tokens, n_tokens);
    layer_forward(t->layer, 0, t->inputs, n_tokens, NULL, t->d);
    for (uint32_t l = 1; l < L; l++)
        layer_forward(t->layer, l, t->d, n_tokens, NULL, t->d);
    output_norm(t, t->teacher, t->d, n_tokens);
    for (uint32_t l = 0; l < L; l++) {
        layer_forward(t->layer, l, input_of(t, l), n_tokens, t->g,
                      input_of(t, l + 1));
        layer_read_lambda(t->layer, n_tokens, lambda_of(t, l, n_tokens));
    }
    output_norm(t, t->student, input_of(t, L), n_tokens);
    struct loss_capacity c = {t->lambda, n_tokens, t->o.entries_per_head,
                              t->o.capacity_weight};
    loss_capacity(t->loss, &c, loss, t->d_soft);
    struct loss_input in = {.teacher = t->teacher,
                            .student = t->student,
                            .tokens = x->tokens,
                            .is_answer = x->is_answer,
                            .n_tokens = n_tokens,
                            .ntp_weight = t->o.ntp_weight,
                            .answer_weight = t->o.answer_weight,
                            .answer_divergence = t->o.answer_divergence,
                            .positions = t->o.positions,
                            .seed = x->seed};
    loss_vocab(t->loss, &in, loss, grad == NULL ? NULL : t->d);
    if (grad == NULL)
        return;
    struct norm_grad n = {t->d, t->d, input_of(t, L), out_norm(t, n_tokens), 0};
    norm_backward(mat_workers(t->mat), &n);
    for (uint32_t l = L; l-- > 0;) {
        struct layer_grad g = {t->d_soft, t->d,
                               grad + (size_t)l * t->g->parts.n};
        layer_backward(t->layer, l, input_of(t, l), n_tokens, t->g, &g);
    }
}

void trainer_tie(const struct gate *g, float *grad)
{
    const struct gate_parts *at = &g->parts;
    for (size_t i = at->w3; i < at->n; i++) {
        float sum = 0.0f;
        for (uint32_t l = 0; l < g->shape.n_layers; l++)
            sum += grad[(size_t)l * at->n + i];
        for (uint32_t l = 0; l < g->shape.n_layers; l++)
            grad[(size_t)l * at->n + i] = sum;
    }
}

void trainer_tie_gate(struct gate *g)
{
    const struct gate_parts *at = &g->parts;
    for (size_t i = at->w3; i < at->n; i++) {
        double sum = 0.0;
        for (uint32_t l = 0; l < g->shape.n_layers; l++)
            sum += (double)gate_layer(g, l)[i];
        for (uint32_t l = 0; l < g->shape.n_layers; l++)
            gate_layer(g, l)[i] = (float)(sum / g->shape.n_layers);
    }
}

static double norm_of(const struct gate *g, const float *grad)
{
    double sum = 0.0;
    for (uint32_t l = 0; l < g->shape.n_layers; l++) {
        size_t n = l == 0 ? g->parts.n : g->parts.w3;
        for (size_t i = 0; i < n; i++) {
            double x = (double)grad[(size_t)l * g->parts.n + i];
            sum += x * x;
        }
    }
    return sqrt(sum);
}

double adamw_step(const struct adamw *a, struct gate *g, const float *grad,
                  float *m1, float *m2, uint64_t step)
{
    double norm = norm_of(g, grad);
    float scale =
        norm > (double)a->clip ? (float)((double)a->clip / norm) : 1.0f;
    double fix1 = 1.0 - pow((double)a->beta1, (double)step);
    double fix2 = 1.0 - pow((double)a->beta2, (double)step);
    size_t n = gate_n_params(g);
    for (size_t i = 0; i < n; i++) {
        float d = grad[i] * scale;
        m1[i] = a->beta1 * m1[i] + (1.0f - a->beta1) * d;
        m2[i] = a->beta2 * m2[i] + (1.0f - a->beta2) * d * d;
        float first = (float)((double)m1[i] / fix1);
        float second = (float)((double)m2[i] / fix2);
        g->p[i] -= a->lr * (first / (sqrtf(second) + a->eps) +
                            a->weight_decay * g->p[i]);
    }
    return norm;
}

float schedule_lr(float lr, uint64_t step, uint64_t warm_up, uint64_t total)
{
    const double pi = 3.14159265358979323846;
    if (step < warm_up)
        return lr * (float)step / (float)warm_up;
    if (step > total)
        return 0.0f;
    double part = (double)(step - warm_up) / (double)(total - warm_up + 1);
    return (float)((double)lr * 0.5 * (1.0 + cos(part * pi)));
}
