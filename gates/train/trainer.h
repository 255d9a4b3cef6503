/* trainer.h - one training step: from a sequence of tokens to the gradient of
 * the gates, and from the gradient to better gates.
 *
 * Memory is allocated once: the inputs of every layer for one sequence, the
 * scratch of one layer, logits of a block of positions; and, as far as the
 * caller allows, what the layers compute on the way, so that backward need
 * not compute it again. The result is the same with and without.
 *
 * Threads: one caller; the work runs on the pool.
 */
#ifndef GATES_TRAIN_TRAINER_H
#define GATES_TRAIN_TRAINER_H

#include "gates/gate.h"
#include "gates/train/frozen.h"
#include "gates/train/loss.h"
#include "gates/train/mat.h"

struct trainer;

struct trainer_options {
    uint32_t max_tokens;      /* longest sequence */
    double entries_per_head;  /* M: the capacity the gates learn to live in */
    double capacity_weight;   /* w */
    double ntp_weight;        /* u of the next-token loss */
    double answer_weight;     /* a, of the same where an answer is predicted */
    double answer_divergence; /* v, more weight of kl there */
    double positions;  /* share of them that the loss looks at (loss.h) */
    size_t keep_bytes; /* for what backward would compute again */
};

/* Borrows model, gates and mat. On OK the caller
 * owns *out. */
MUST_CHECK enum err trainer_new(struct trainer **out, const struct frozen *f,
                                struct gate *g, const struct trainer_options *o,
                                const struct mat *mat, struct errmsg *m);
void trainer_free(struct trainer *t); /* NULL is allowed */

/* Bytes of everything the trainer owns. */
size_t trainer_bytes(const struct trainer *t);

struct trainer_sequence {
    const int32_t *tokens;
    const uint8_t *is_answer; /* loss.h; may be NULL */
    uint32_t n_tokens;
    uint64_t seed; /* of the positions that are drawn */
};

/* Adds d loss / d gate to grad (gate_n_params floats; NULL: only the loss).
 * 2 <= n_tokens <= max_tokens; ids are checked by the caller. The gates are
 * of kind rg10. */
void trainer_gradient(struct trainer *t, const struct trainer_sequence *x,
                      float *grad, struct loss_values *loss);

/* The shared last projection: sums the gradients of W3 and c3 over the layers
 * and gives each layer the sum, so that equal copies stay equal. */
void trainer_tie(const struct gate *g, float *grad);

/* The same for the gates themselves, by their mean: for gates from elsewhere,
 * whose copies may differ. Equal copies stay as they are. */
void trainer_tie_gate(struct gate *g);

/* AdamW (Loshchilov and Hutter 2019) with the gradient scaled down to norm
 * `clip` first. step counts from 1. */
struct adamw {
    float lr, beta1, beta2, eps, weight_decay, clip;
};

/* Returns the gradient's norm before clipping; a tied projection counts
 * once. */
double adamw_step(const struct adamw *a, struct gate *g, const float *grad,
                  float *m1, float *m2, uint64_t step);

/* Rises in a line to lr at step `warm_up`, then falls as a cosine that would
 * be zero after step `total`. step counts from 1. */
float schedule_lr(float lr, uint64_t step, uint64_t warm_up, uint64_t total);

#endif
