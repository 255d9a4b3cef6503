/* checkpoint.h - the file that a training run leaves behind, so that it can
 * go on: the gates, both moments of the optimiser, the number of steps done,
 * what the run was given and the length of its log.
 *
 * Its settings are words "name=value" with spaces between. A run that goes on
 * must be given the same ones; a word that older runs did not know counts as
 * if it stood there with the value that changes nothing.
 *
 * Threads: any; no state.
 */
#ifndef GATES_TRAIN_CHECKPOINT_H
#define GATES_TRAIN_CHECKPOINT_H

#include <stdbool.h>

#include "base/safetensors.h"
#include "gates/gate.h"

/* A run as it is saved. Borrows everything. */
struct checkpoint {
    const char *settings;
    const char *log;   /* its path; NULL: none */
    int64_t log_bytes; /* of the log at that moment */
    uint64_t step;     /* done */
    size_t n;          /* parameters */
    float *gates, *m1, *m2;
    /* For the metadata of gates that are taken from it: the texts, "name
     * sha256, ...", and the steps of the gates that the run began from. Not
     * read back, not compared; NULL: nothing. */
    const char *texts, *init_steps;
};

/* Replaces the file atomically. */
MUST_CHECK enum err checkpoint_write(const char *path,
                                     const struct checkpoint *c,
                                     struct errmsg *m);

/* Fills in step, gates, m1, m2 and log_bytes, which is -1 when it is that of
 * another log. ERR_CONFLICT when the file was made with other settings than
 * c's, naming the first that differs; ERR_INVAL when it is no checkpoint. After
 * an error the numbers mean nothing. */
MUST_CHECK enum err checkpoint_read(struct checkpoint *c, const char *path,
                                    struct errmsg *m);

/* Whether an open file is a checkpoint. */
bool checkpoint_is(const struct safetensors *f);

/* What the run was given and how far it was, for people: settings and
 * "step=N". Terminated, cut where it is too long. */
void checkpoint_describe(char *out, size_t size, const struct safetensors *f);

/* The value of the setting `name`, n characters, in settings or in what
 * checkpoint_describe() wrote. NULL without one. Borrowed. */
const char *checkpoint_setting(const char *settings, const char *name,
                               size_t *n);

/* The gates alone, of kind rg10. ERR_CONFLICT when they are for a model of
 * another shape (width and kind are ignored), ERR_INVAL for a damaged file. On
 * OK the caller owns *out. */
MUST_CHECK enum err checkpoint_gates(struct gate **out,
                                     const struct safetensors *f,
                                     const struct gate_shape *model,
                                     struct errmsg *m);

#endif
