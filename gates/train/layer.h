/* layer.h - one transformer block of the trainer, forward and backward.
 *
 * Forward is ordinary attention (the teacher: no gates) or attention whose
 * logits fade with retention (the student):
 *
 *     logit(t, i) = scale * q_t . k_i + (t - i) * lambda_i,   i <= t
 *
 * Backward gives the gradient of the input and of the gate's parameters. It
 * needs what forward computed on the way: the first n_kept layers keep that
 * over the sequence, for the others it is computed again from the layer's
 * input, with the same bits. Attention weights are never kept. Source of the
 * formulas: docs/design, algorithms 1.4.
 *
 * T is the number of tokens of the sequence; activations are [T][...].
 * Threads: one caller; the work runs on the pool.
 */
#ifndef GATES_TRAIN_LAYER_H
#define GATES_TRAIN_LAYER_H

#include "gates/gate.h"
#include "gates/train/frozen.h"
#include "gates/train/mat.h"

struct layer_work; /* scratch for sequences of up to max_tokens */

struct layer_options {
    uint32_t gate_width, max_tokens;
    uint32_t n_kept; /* layers whose forward pass is kept for backward */
};

/* Borrows model and mat. On OK the caller owns *out. */
MUST_CHECK enum err layer_work_new(struct layer_work **out,
                                   const struct frozen *f, const struct mat *t,
                                   const struct layer_options *o,
                                   struct errmsg *m);
void layer_work_free(struct layer_work *w); /* NULL is allowed */
size_t layer_work_bytes(const struct layer_work *w);

/* What one kept layer costs. */
size_t layer_kept_bytes(const struct frozen *f, const struct layer_options *o);

/* out[T][n_embd] = block(x[T][n_embd]); out may be x. gate: the gates of all
 * layers (of kind rg10), or NULL for the teacher. */
void layer_forward(struct layer_work *w, uint32_t layer, const float *x,
                   uint32_t n_tokens, const struct gate *gate, float *out);

/* lambda[n_kv_heads][T] of the student's layer that was last forwarded. */
void layer_read_lambda(const struct layer_work *w, uint32_t n_tokens,
                       float *lambda);

struct layer_grad {
    const float *d_soft; /* [T] gradient of the soft number of living entries
                            at each step (loss.h) */
    float *d;            /* [T][n_embd] gradient of the block's output; becomes
                            that of its input */
    float *gate;         /* like one layer of struct gate; is added to */
};

/* x as in the layer_forward() of this layer with these gates before; other
 * layers and the teacher may have come in between. */
void layer_backward(struct layer_work *w, uint32_t layer, const float *x,
                    uint32_t n_tokens, const struct gate *gate,
                    const struct layer_grad *g);

#endif
