/* gate_find.h - which gates a model gets.
 *
 * What the user says is one word: "none", "auto", or the name of a file
 * (./auto, if it is called so). "auto" looks for the first file, by name, that
 * ends in .safetensors and whose base_fingerprint is the model's, in these
 * folders, where they exist:
 *
 *     DIR/../gates/pretrained              DIR holds the program: a checkout
 *     DIR/../share/ebb/gates/pretrained    or an installation
 *     gates/pretrained                     of the working directory
 *
 * A file without a base_fingerprint is only taken by name: where the shape
 * fits, the user knows best.
 *
 * Threads: any.
 */
#ifndef GATES_GATE_FIND_H
#define GATES_GATE_FIND_H

#include "gates/gate_file.h"

enum { GATE_PATH_MAX = 4096 };

/* The model that gates are for. */
struct gate_base {
    struct gate_shape shape; /* width and kind are ignored */
    const char *fingerprint; /* gguf_fingerprint() in hexadecimal */
};

/* *out: the gates, which the caller then owns, and path their file; or NULL
 * and "" where there are none. A file given by name that cannot be read or
 * does not fit is an error, and the sentence says why; one that "auto" meets
 * is logged and passed by. */
MUST_CHECK enum err gate_find(struct gate **out, char path[GATE_PATH_MAX],
                              const char *which, const struct gate_base *base,
                              struct errmsg *m);

/* What "auto" does with one folder, which need not exist. */
MUST_CHECK enum err gate_find_in(struct gate **out, char path[GATE_PATH_MAX],
                                 const char *folder,
                                 const struct gate_base *base,
                                 struct errmsg *m);

/* ERR_CONFLICT when a file's base_fingerprint is there and another one. */
MUST_CHECK enum err gate_check_base(const struct safetensors *f,
                                    const char *fingerprint, struct errmsg *m);

#endif
