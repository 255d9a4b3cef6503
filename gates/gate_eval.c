#include "gates/gate_eval.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/layout.h"
#include "runtime/kernels/quant.h"
#include "runtime/kernels/ref.h"

static const float *copy_floats(struct layout *l, const float *from, size_t n)
{
    float *to = layout_cut(l, n, sizeof(float));
    if (to != NULL && n > 0)
        memcpy(to, from, n * sizeof(float));
    return to;
}

static const void *copy_halves(struct layout *l, const float *from, size_t n)
{
    uint16_t *to = layout_cut(l, n, sizeof(uint16_t));
    for (size_t i = 0; to != NULL && i < n; i++) {
        assert(fabsf(from[i]) <= (float)GATE_PARAM_MAX);
        to[i] = quant_f32_to_f16(from[i]);
    }
    return to;
}

/* As f16. */
static struct weight copy_matrix(struct layout *l, const float *from,
                                 int64_t rows, int64_t cols)
{
    return (struct weight){.type = DTYPE_F16,
                           .rows = rows,
                           .cols = cols,
                           .raw = copy_halves(l, from, (size_t)(rows * cols))};
}

static void copy_layer(struct gate_eval *e, struct layout *l,
                       const struct gate *g, uint32_t i)
{
    const struct gate_parts *at = &g->parts;
    const float *p = gate_layer(g, i);
    int64_t m = g->shape.width, d = g->shape.n_embd, h = g->shape.n_kv_heads;
    int64_t m2 = g->shape.kind == GATE_RG10 ? m : 0;
    struct gate_eval_layer to = {
        .w1 = copy_matrix(l, p + at->w1, m, d),
        .w2 = copy_matrix(l, p + at->w2, m2, m),
        .w3 = {.type = DTYPE_F32,
               .rows = h,
               .cols = m,
               .raw = copy_floats(l, p + at->w3, (size_t)(h * m))},
        .c1 = copy_floats(l, p + at->c1, (size_t)m),
        .c2 = copy_floats(l, p + at->c2, (size_t)m2),
        .c3 = copy_floats(l, p + at->c3, (size_t)h)};
    if (e->layer != NULL)
        e->layer[i] = to;
}

static void copy_gates(struct gate_eval *e, struct layout *l,
                       const struct gate *g)
{
    e->layer = layout_cut(l, g->shape.n_layers, sizeof(*e->layer));
    float *ones = layout_cut(l, g->shape.width, sizeof(*ones));
    for (uint32_t i = 0; ones != NULL && i < g->shape.width; i++)
        ones[i] = 1.0f;
    e->ones = ones;
    for (uint32_t i = 0; i < g->shape.n_layers; i++)
        copy_layer(e, l, g, i);
}

uint64_t gate_eval_bytes(const struct gate *g)
{
    struct gate_eval e;
    struct layout l = {0};
    copy_gates(&e, &l, g);
    return l.bytes;
}

void gate_eval_init(struct gate_eval *e, const struct gate *g,
                    const struct ops *ops, void *memory)
{
    struct layout l = {.base = memory};
    *e = (struct gate_eval){.shape = g->shape, .ops = ops};
    copy_gates(e, &l, g);
}

void gate_eval_activate(const struct gate_eval *e, const float *bias, float *h,
                        int64_t n)
{
    int64_t m = e->shape.width;
    for (int64_t i = 0; i < n; i++, h += m) {
        e->ops->add(h, bias, m);
        e->ops->silu_mul(h, h, e->ones, m);
    }
}

/* log(1 + u) for 0 <= u <= 1, as 2 atanh(s) with s = u / (2 + u) <= 1/3: the
 * first term that is left out is below 1e-11 of the sum. */
static double log_1_plus(double u)
{
    enum { TERMS = 10 };
    double s = u / (2.0 + u), sum = 0.0;
    for (int k = TERMS - 1; k >= 0; k--)
        sum = sum * s * s + 1.0 / (2 * k + 1);
    return 2.0 * s * sum;
}

/* On both sides e^ is only taken of what is not positive. */
float gate_eval_log_sigmoid(float z)
{
    if (z != z)
        return 0.0f;
    if (z < -FLT_MAX)
        return -FLT_MAX;
    double rest = log_1_plus((double)ref_exp(z < 0.0f ? z : -z));
    return (float)((z < 0.0f ? (double)z : 0.0) - rest);
}

void gate_eval_log_beta(const struct gate_eval *e,
                        const struct gate_eval_layer *layer, const float *h,
                        int64_t n, float *log_beta)
{
    int64_t heads = e->shape.n_kv_heads;
    struct acts a = {.x = h, .n = n, .cols = e->shape.width};
    e->ops->matmul(&layer->w3, &a, 0, heads, log_beta, heads);
    for (int64_t i = 0; i < n; i++, log_beta += heads) {
        e->ops->add(log_beta, layer->c3, heads);
        for (int64_t k = 0; k < heads; k++)
            log_beta[k] = gate_eval_log_sigmoid(log_beta[k]);
    }
}
