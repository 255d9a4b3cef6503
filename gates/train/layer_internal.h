/* layer_internal.h - what the files of the trainer's block share: its scratch
 * and its parts.
 */
#ifndef GATES_TRAIN_LAYER_INTERNAL_H
#define GATES_TRAIN_LAYER_INTERNAL_H

#include "gates/train/layer.h"
#include "gates/train/loss.h"
#include "gates/train/rows.h"

enum { ATTN_ROWS = 64 }; /* query rows that attention handles at a time */

/* What backward needs of a forward pass. */
struct kept {
    float *n1;                /* [T][n_embd] after the attention norm */
    float *q, *k, *v;         /* [T][heads * head_dim], after RoPE */
    float *q_raw, *k_raw;     /* the same before norm and RoPE; qk_norm only */
    float *x2;                /* [T][n_embd] after the attention residual */
    float *g, *u;             /* [T][n_ff] gate and up */
    float *a1, *h1, *a2, *h2; /* [T][width] of the retention gate */
    float *z;                 /* [T][n_kv_heads] */
    float *lambda;            /* [n_kv_heads][T] */
};

struct layer_work {
    const struct frozen *f;
    const struct mat *mat;
    struct workers *k;
    const struct rows *rows;
    struct layer_options o;
    struct kept *set; /* [n_kept + 1]: the kept layers', and one for all else */
    struct kept *a;   /* the one in use */
    float *cos_sin;   /* [T][head_dim]: cosines, then sines */
    /* Scratch of a forward pass. */
    float *o_att; /* [T][n_heads * head_dim] attention output */
    float *n2;    /* [T][n_embd] after the FFN norm */
    float *h;     /* [T][n_ff] silu(g) * u */
    /* Gradients. */
    float *d_n;         /* [T][n_embd] */
    float *d_o, *d_q;   /* [T][n_heads * head_dim] */
    float *d_kq, *d_vq; /* the same: keys and values by query head */
    float *d_k, *d_v;   /* [T][n_kv_heads * head_dim] */
    float *d_lambda_q;  /* [n_heads][T] */
    float *d_lambda;    /* [n_kv_heads][T] */
    float *d_g, *d_u;   /* [T][n_ff]; d_u is first the gradient of h */
    float *d_z;         /* [T][n_kv_heads] */
    float *d_a, *d_hid; /* [T][width] */
    float *scores;      /* [threads][2][ATTN_ROWS][T] */
    float *memory;      /* what all of the above point into */
    size_t n_floats;
};

/* Of n rows of dim floats each. */
struct norm {
    const float *weight; /* [dim] */
    size_t n, dim;
    float eps;
};

/* y = x / rms(x) * weight; y may be x. */
void norm_forward(struct workers *k, float *y, const float *x, struct norm n);

/* dx from dy, for the same x; dx is added to when add, else it may be dy. */
struct norm_grad {
    float *dx;
    const float *dy, *x;
    struct norm norm;
    int add;
};
void norm_backward(struct workers *k, const struct norm_grad *g);

/* Rotates every head of [T][n_heads * head_dim]; backward turns back. */
void rope_rows(const struct layer_work *w, float *x, uint32_t n_heads,
               uint32_t n_tokens, int backward);

/* o_att from q, k, v; lambda NULL for the teacher. */
void attn_forward(struct layer_work *w, uint32_t n_tokens, const float *lambda);
/* d_q, d_k, d_v (after RoPE) and d_lambda from d_o. */
void attn_backward(struct layer_work *w, uint32_t n_tokens,
                   const float *d_soft);

/* a1, h1, a2, h2, z and lambda from n1. */
void gate_forward(struct layer_work *w, const struct gate *g, uint32_t layer,
                  uint32_t n_tokens);
/* Adds to gate_grad and to d_n from d_lambda. */
void gate_backward(struct layer_work *w, const struct gate *g, uint32_t layer,
                   uint32_t n_tokens, float *gate_grad);

#endif
