/* model_file.h - what every command does first with a model's file: open it,
 * and make the pool, the tokenizer and the chat template that go with it.
 * The model itself is loaded by the command, which knows for what.
 *
 * Threads: one caller.
 */
#ifndef SERVER_COMMAND_MODEL_FILE_H
#define SERVER_COMMAND_MODEL_FILE_H

#include "base/workers.h"
#include "config/option.h"
#include "runtime/engine/prompt.h"
#include "runtime/gguf/gguf.h"
#include "runtime/text/tokenizer.h"

struct model_file {
    struct workers *workers;
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct prompt *prompt; /* NULL: no chat template that we can render */
};

/* n_threads 0: as many as there are CPUs. On error nothing is left; on OK the
 * caller ends *out with model_file_close(). */
MUST_CHECK enum err model_file_open(struct model_file *out, const char *path,
                                    int64_t n_threads, struct errmsg *m);
void model_file_close(struct model_file *f); /* a zeroed one is allowed */

/* The row of --threads in a command's table; `at`: offset of its int64_t. */
#define MODEL_FILE_THREADS(at)                                                 \
    {                                                                          \
        .name = "threads", .type = OPT_INT, .field = (at), .dflt = "0",        \
        .max = WORKERS_MAX, .word = "N",                                       \
        .shown_dflt = "the CPUs that affinity and cgroup allow",               \
        .help = "Threads that compute. The result does not depend on them."    \
    }

#endif
