/* loss.h - what training minimises (docs/design, algorithms 1.4).
 *
 *     kl    mean over t of KL(teacher_t || student_t), whole vocabulary
 *     ntp   mean over t of -log student_t(token t + 1)
 *     cap   mean over the t where it is positive of
 *           max(0, S_t - M L H) / max(1, n_t L H - M L H),  n_t = t + 1
 *           S_t = sum over layers, heads and i <= t of exp((t - i) lambda_i)
 *     answer  mean of -log student_t(token t + 1) over the t whose next token
 *           answers a question of the sequence; 0 where there is none
 *     loss = kl + u ntp + a answer + w cap
 *
 * The vocabulary costs a large part of a step, so kl and ntp may be taken over
 * a share of the positions, drawn at random: each then stands for as many as
 * were not drawn, which leaves the expected loss and its gradient as they are.
 * All positions that predict an answer are always taken.
 *
 * S_t is the soft number of entries alive at step t, n_t L H the number there
 * would be if nothing faded.
 *
 * Threads: one caller; the work runs on the pool.
 */
#ifndef GATES_TRAIN_LOSS_H
#define GATES_TRAIN_LOSS_H

#include "gates/train/frozen.h"
#include "gates/train/mat.h"

/* An entry counts as gone when less than this is left of it. */
#define LOSS_ALIVE_MIN 1e-13

struct loss_values {
    double kl, ntp, cap;
    double answer;
    double answer_kl; /* kl over answers alone */
    /* What the unchanged model reaches. */
    double teacher_ntp, teacher_answer;
    uint32_t n_answers; /* tokens */
    double alive;       /* S at the last step, per layer and head */
    uint32_t n_over;    /* steps above the capacity */
};

struct loss_work; /* scratch */

/* Borrows model and mat. On OK the caller owns *out. */
MUST_CHECK enum err loss_work_new(struct loss_work **out,
                                  const struct frozen *f, uint32_t t_max,
                                  const struct mat *t, struct errmsg *m);
void loss_work_free(struct loss_work *w); /* NULL is allowed */
size_t loss_work_bytes(const struct loss_work *w);

struct loss_input {
    /* The last hidden states after the output norm, [T][n_embd]. */
    const float *teacher, *student;
    const int32_t *tokens;
    const uint8_t *is_answer; /* [T], 1: a token of an answer; may be NULL */
    uint32_t n_tokens;        /* T, at least 2 */
    double ntp_weight;        /* u */
    double answer_weight;     /* a */
    double answer_divergence; /* v */
    double positions;         /* share that is looked at; 0: all, as is 1 */
    uint64_t seed;            /* of the draw */
};

/* The positions that are looked at, in order. out has room for n_tokens;
 * returns how many. *stands_for: the positions that each of them counts as,
 * unless it predicts an answer. */
size_t loss_choose(uint32_t *out, double *stands_for,
                   const struct loss_input *in);

/* All of a sequence but cap and alive. d_student (may be NULL) gets the
 * gradient of kl + u ntp + a answer + v (kl over answers alone). Logits exist
 * for a block of positions at a time. */
void loss_vocab(struct loss_work *w, const struct loss_input *in,
                struct loss_values *out, float *d_student);

struct loss_capacity {
    const float *lambda; /* [n_layers][n_kv_heads][T] */
    uint32_t n_tokens;
    double entries_per_head; /* M */
    double weight;           /* w */
};

/* cap and alive; d_soft[T] gets weight * d cap / d S_t. */
void loss_capacity(struct loss_work *w, const struct loss_capacity *c,
                   struct loss_values *out, float *d_soft);

#endif
