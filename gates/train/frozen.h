/* frozen.h - the base model as the trainer sees it: all weights as float32,
 * never changed.
 *
 * Owns one array with every weight, dequantised. What differs between model
 * families is data: biases, query and key norms, the pairing of RoPE.
 *
 * Threads: constant after it is made.
 */
#ifndef GATES_TRAIN_FROZEN_H
#define GATES_TRAIN_FROZEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "runtime/model/model.h"

struct frozen_shape {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t n_embd, n_ff, n_vocab;
    float norm_eps;
    bool rope_interleaved; /* pairs (2i, 2i+1), else (i, i + head_dim / 2) */
    bool qkv_bias, qk_norm, tied;
};

/* Matrices are [outputs][inputs]. NULL where the family has none. */
struct frozen_layer {
    float *attn_norm;       /* [n_embd] */
    float *wq, *wk, *wv;    /* [heads * head_dim][n_embd] */
    float *bq, *bk, *bv;    /* [heads * head_dim] or NULL */
    float *q_norm, *k_norm; /* [head_dim] or NULL */
    float *wo;              /* [n_embd][n_heads * head_dim] */
    float *ffn_norm;        /* [n_embd] */
    float *w_gate, *w_up;   /* [n_ff][n_embd] */
    float *w_down;          /* [n_embd][n_ff] */
};

struct frozen {
    struct frozen_shape shape;
    float *embd;     /* [n_vocab][n_embd] */
    float *out;      /* the same matrix when tied */
    float *out_norm; /* [n_embd] */
    struct frozen_layer *layer;
    double *inv_freq; /* [head_dim / 2], RoPE frequencies */
    float *weights;   /* what the pointers above point into */
    size_t n_weights;
};

/* Everything allocated, zero, with pointers set; the caller fills it in. On
 * OK the caller owns *out. */
MUST_CHECK enum err frozen_new(struct frozen **out,
                               const struct frozen_shape *s, struct errmsg *m);
void frozen_free(struct frozen *f); /* NULL is allowed */

/* The same model that the runtime loaded, dequantised. The runtime's model is
 * not needed afterwards. */
MUST_CHECK enum err frozen_from_model(struct frozen **out,
                                      const struct model *from,
                                      struct workers *k, struct errmsg *m);

#endif
