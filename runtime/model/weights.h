/* weights.h - a loaded model's tensors, for who computes with them in another
 * way than model_step(): the trainer of the retention gates.
 *
 * Names of dimensions: E n_embd, Q n_heads * head_dim, KV n_kv_heads *
 * head_dim, F n_ff, V n_vocab.
 *
 * Threads: constant after load; any thread may read.
 */
#ifndef RUNTIME_MODEL_WEIGHTS_H
#define RUNTIME_MODEL_WEIGHTS_H

#include <stdbool.h>

#include "runtime/model/model.h"

/* What differs between families. The block itself is the same for all. */
struct family {
    const char *arch;      /* general.architecture */
    bool rope_interleaved; /* rotated pairs are neighbours in the rows */
    bool qkv_bias;         /* bias vectors on Q, K and V */
    bool qk_norm;          /* RMSNorm of each head of Q and K before RoPE */
};

/* Matrices have one row an output; their raw form is the file's mapping. */
struct layer {
    const float *attn_norm, *ffn_norm;     /* [E] */
    const float *q_bias, *k_bias, *v_bias; /* [Q], [KV]; NULL without */
    const float *q_norm, *k_norm;          /* [head_dim]; NULL without */
    struct weight q, k, v, o, gate, up, down;
};

/* Borrowed from the model, as all that it points to. */
struct model_weights {
    const struct family *family;
    float norm_eps;            /* of every RMSNorm */
    const struct layer *layer; /* [n_layers] */
    const struct weight *embd; /* [V][E] */
    const struct weight *head; /* [V][E] */
    bool is_tied;              /* head and embd are the same tensor */
    const float *out_norm;     /* [E] */
    const double *rope_freq;   /* [head_dim / 2] radians a position */
};

struct model_weights model_weights(const struct model *m);

#endif
