/* gate_eval.h - retention gates in the form that a model step computes with.
 *
 * The products W1 x, W2 h1 and W3 h2 (gate.h has the formulas) go through the
 * same operations as the model's own matrices, so they keep the promises of
 * ops.h, and whoever owns the compute pool splits them as it splits its own.
 * What lies between and behind the products is here, for any number of rows:
 *
 *     h1 = W1 x        ops->matmul with layer->w1
 *     gate_eval_activate(e, layer->c1, h1, n)
 *     h2 = W2 h1       ops->matmul with layer->w2; not for gates of kind rg
 *     gate_eval_activate(e, layer->c2, h2, n)
 *     gate_eval_log_beta(e, layer, h2 or h1, n, log_beta)
 *
 * W1 and W2 are held as f16, which halves what a decode step reads and is
 * what gate files hold. Everything else is float32 (log_beta near -1e-8 is no
 * f16).
 *
 * Threads: constant after init; any thread may compute with it.
 */
#ifndef GATES_GATE_EVAL_H
#define GATES_GATE_EVAL_H

#include "gates/gate.h"
#include "runtime/kernels/ops.h"

struct gate_eval_layer {
    struct weight w1;          /* [width][n_embd] */
    struct weight w2;          /* [width][width]; no rows in kind rg */
    struct weight w3;          /* [n_kv_heads][width], float32 */
    const float *c1, *c2, *c3; /* [width], [width], [n_kv_heads] */
};

struct gate_eval {
    struct gate_shape shape;
    const struct ops *ops;         /* borrowed */
    struct gate_eval_layer *layer; /* [n_layers] */
    const float *ones;             /* [width] */
};

/* What gate_eval_init() needs. */
uint64_t gate_eval_bytes(const struct gate *g);
/* memory: gate_eval_bytes(g) bytes, 64-byte aligned, which the caller keeps
 * for as long as it computes with *e. Copies the gates, none of whose numbers
 * is beyond GATE_PARAM_MAX: g may go, or change, afterwards. */
void gate_eval_init(struct gate_eval *e, const struct gate *g,
                    const struct ops *ops, void *memory);

/* h[n][width] = silu(h + bias), in place. */
void gate_eval_activate(const struct gate_eval *e, const float *bias, float *h,
                        int64_t n);

/* log_beta[n][n_kv_heads] from the last hidden rows h[n][width]: finite and
 * at most 0, whatever the weights. */
void gate_eval_log_beta(const struct gate_eval *e,
                        const struct gate_eval_layer *layer, const float *h,
                        int64_t n, float *log_beta);

/* log(1 / (1 + e^-z)), with a relative error below 1e-6 for all normal
 * results, those near -1e-38 too. 0 for NaN, as of an input that is none: a
 * gate has nothing to say of it. */
float gate_eval_log_sigmoid(float z);

#endif
