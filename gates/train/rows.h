/* rows.h - what the trainer does with rows of floats besides products:
 * softmax, SiLU, the sums of the loss, and their derivatives.
 *
 * One source (rows_internal.h) built twice: in vectors of four floats for any
 * machine, and of eight for AVX2. Sums run in one fixed order that depends on
 * the vectors, so the two differ in the last bits and a run belongs to one
 * machine.
 * exp is our own, with a relative error below 1e-6.
 *
 * Threads: any; pure functions.
 */
#ifndef GATES_TRAIN_ROWS_H
#define GATES_TRAIN_ROWS_H

#include <stddef.h>

/* The two rows of logits of one position. */
struct rows_pair {
    const float *p; /* teacher */
    float *q;       /* student; becomes the gradient when is_gradient */
    size_t n;
    float log_p, log_q; /* their log_sum_exp */
    float kl_share;     /* d loss / d kl of this position */
    float ntp_share;    /* the same of the next token's loss */
    int is_gradient;
};

struct rows {
    const char *name; /* "plain", "avx2" */

    /* x becomes softmax(x[i] + (n - 1 - i) * lambda[i]): the attention of the
     * query at position n - 1. lambda NULL: no fading. n >= 1. */
    void (*softmax)(float *x, const float *lambda, size_t n);
    /* p is what softmax() gave, d the gradient of it; d becomes the gradient
     * of the logits, and d_lambda[i] += (n - 1 - i) * d[i]. */
    void (*softmax_back)(float *d, const float *p, float *d_lambda, size_t n);

    /* h = silu(g) * u */
    void (*silu_mul)(float *h, const float *g, const float *u, size_t n);
    /* d is the gradient of h; it becomes d_u, and d_g is written. */
    void (*silu_mul_back)(float *d_g, float *d, const float *g, const float *u,
                          size_t n);
    /* y = silu(x) */
    void (*silu)(float *y, const float *x, size_t n);
    /* d *= silu'(x) */
    void (*silu_back)(float *d, const float *x, size_t n);

    /* log sum exp(x[i]). n >= 1. */
    double (*log_sum_exp)(const float *x, size_t n);

    /* Returns KL(softmax(p) || softmax(q)). The gradient lacks the next
     * token's own -ntp_share. */
    double (*kl)(const struct rows_pair *x);
};

extern const struct rows rows_plain;
extern const struct rows rows_avx2; /* only where ops_avx2() is there */

/* The best that runs here. */
const struct rows *rows_best(void);

#endif
