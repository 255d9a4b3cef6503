/* run.h - a training run from the first step to the last: the loop, its
 * checkpoints and its log.
 *
 * A checkpoint holds the gates, both moments of the optimiser, the number of
 * steps done and the length of the log. A run that was killed continues from it
 * with the same bits as one that was not (same machine): sequences are a
 * function of seed and step, and results do not depend on threads.
 *
 * Threads: one caller; the work runs on the pool.
 */
#ifndef GATES_TRAIN_RUN_H
#define GATES_TRAIN_RUN_H

#include <stdatomic.h>
#include <stdint.h>

#include "gates/gate.h"
#include "gates/train/frozen.h"
#include "gates/train/mat.h"
#include "gates/train/mix.h"

struct train_options {
    uint64_t steps;           /* to the end of the schedule */
    uint64_t warm_up;         /* steps of rising learning rate */
    uint32_t tokens;          /* of one sequence */
    double memory;            /* M: entries per head to live in */
    double weight;            /* of the capacity term */
    double ntp_weight;        /* of the next-token loss */
    double answer_weight;     /* of the same over answers to questions */
    double answer_divergence; /* more weight of kl over these */
    double positions; /* share of them that the loss looks at (loss.h) */
    float lr;
    size_t keep_bytes;         /* trainer.h; changes speed, not results */
    uint64_t seed;             /* of the initial gates */
    const char *identity;      /* what the run was given: model, texts, mixture;
                                  words "name=value" with spaces between */
    const char *checkpoint;    /* file; NULL: none is written or read */
    uint32_t checkpoint_every; /* seconds */
    const char *log;           /* file that JSON lines are appended to; NULL:
                                  none. Locked while the run lasts */
    uint32_t progress_every;   /* seconds between lines on stderr; 0: none */
    const atomic_bool *stop;   /* may be NULL; set: checkpoint and return */
    /* What checkpoints say besides; see there. May be NULL. */
    const char *texts, *init_steps;
};

/* Random gates as training starts from: N(0, 0.02) weights, zero biases,
 * c3 = ln(2 M), which lets an entry live about as long as it may (docs/design,
 * gates-training). */
void train_init_gate(struct gate *g, double memory, uint64_t seed);

/* Trains g, of kind rg10, in place; copies of its last projection that differ
 * are made equal first. When the checkpoint file exists the run continues from
 * it, and what was logged since then goes; ERR_CONFLICT when it was made
 * with other options, naming the first that differs; ERR_BUSY when another run
 * writes to the log. ERR_CANCELLED after `stop`: the checkpoint is written, g
 * holds the gates so far. */
MUST_CHECK enum err train_run(struct gate *g, const struct frozen *f,
                              struct mix *x, const struct train_options *o,
                              const struct mat *mat, struct errmsg *m);

#endif
