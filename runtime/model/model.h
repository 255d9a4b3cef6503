/* model.h - a loaded model: from tokens to logits over the paged cache.
 *
 * One transformer block serves every family (llama, qwen2, qwen3); what
 * differs between them is data and a few hooks (family.h). The weights stay
 * quantised: as mapped from the file, or repacked by the kernels.
 *
 * A step is one forward pass over a batch of runs. A run is a piece of one
 * sequence: one token (decode) or a chunk of its prompt (prefill). The keys
 * and values of all rows are written to the cache first and attention reads
 * only what is stored, so a token's result is the same bits whether it came
 * as a chunk or alone, whatever else is in the batch.
 *
 * With retention gates (model_set_gates) a step also writes how long each
 * entry stays useful, log_beta, into its metadata. That changes no logit and
 * no other metadata. No step reads it, so a small step may leave it to later
 * (model_batch.defer_gates), with the same bits: reading the gates' weights
 * is what they cost, and then they are read once for several tokens.
 *
 * Owns weights' packed forms and all scratch, sized at load.
 * Borrows the gguf (its mapping must outlive the model), ops and workers.
 *
 * Threads: load, gates and step by one thread at a time (the engine's); the
 * step itself runs on the worker pool. model_info is constant once the gates
 * are set.
 */
#ifndef RUNTIME_MODEL_MODEL_H
#define RUNTIME_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/kv_layout.h"
#include "base/workers.h"
#include "cache/table.h"
#include "gates/gate_find.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kernels/ops.h"

struct model;
struct probe; /* probe.h */

struct model_info {
    char arch[32];  /* "llama" */
    char name[128]; /* general.name, repaired UTF-8; "" if absent */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t n_embd, n_ff, n_vocab;
    uint32_t context_length; /* trained */
    uint64_t n_params;       /* elements of all tensors used */
    uint64_t file_bytes;     /* bytes of all tensors used */
    uint64_t packed_bytes;   /* anonymous memory of repacked weights, and
                                of the gates' */
    uint64_t scratch_bytes;  /* activations, logits and other step memory */
};

struct model_options {
    const struct ops *ops;
    struct workers *workers;
    uint32_t max_rows;    /* tokens of one step, over all runs */
    uint32_t max_runs;    /* runs of one step */
    uint32_t max_context; /* longest sequence; 0: as trained */
};

struct model_run {
    struct table *table; /* already lengthened by n_rows (table_append): row i
                            belongs in entry len - n_rows + i of each list */
    uint32_t n_rows;
    uint32_t pos;        /* RoPE position of the first row */
    struct probe *probe; /* NULL, or what watches this sequence */
    struct probe *also;  /* NULL, or what watches it beside that */
};

struct model_batch {
    uint32_t n_rows;
    const int32_t *tokens; /* [n_rows], run after run; checked ids */
    uint32_t n_runs;
    const struct model_run *runs;
    uint32_t n_logits;          /* rows whose logits are wanted */
    const uint32_t *logit_rows; /* [n_logits], ascending row numbers */
    float *logits;              /* [n_logits][n_vocab], written */
    /* log_beta of these rows may come later, with model_finish_gates(). Until
     * then the caller lets nobody read it, and the entries of these rows stay
     * where they are: not moved, copied, shared or freed. */
    bool defer_gates;
};

/* Refuses by name what cannot be computed right: another architecture,
 * missing or misshapen tensors, RoPE scaling we do not know, experts, sliding
 * windows, other head sizes. On error nothing is left behind. */
MUST_CHECK enum err model_load(struct model **out, const struct gguf *g,
                               const struct model_options *options,
                               struct errmsg *m);
void model_free(struct model *m); /* NULL is allowed */

const struct model_info *model_info(const struct model *m);

/* From now on steps run these gates, which are copied; NULL: none, and
 * log_beta stays as table_append() set it, 0. ERR_CONFLICT when they are made
 * for a model of another shape, ERR_NOMEM; the gates from before then stay.
 * No row may be waiting for the gates from before (asserted). */
MUST_CHECK enum err model_set_gates(struct model *m, const struct gate *gate,
                                    struct errmsg *e);
/* The gates that the user asks for, as in gate_find.h: which is "none", "auto"
 * or a file; g is what the model was loaded from. path is the file they came
 * from. *out, which the caller then owns, is NULL and path "" where there are
 * none. */
MUST_CHECK enum err
model_look_for_gates(struct gate **out, const struct model *m,
                     const struct gguf *g, const char *which,
                     char path[GATE_PATH_MAX], struct errmsg *e);
/* Looks for them and sets them. On error nothing changes. */
MUST_CHECK enum err model_find_gates(struct model *m, const struct gguf *g,
                                     const char *which,
                                     char path[GATE_PATH_MAX],
                                     struct errmsg *e);
bool model_has_gates(const struct model *m);
/* Do their scores compare across layers and heads? Those of kind rg, each
 * trained for its own head, do not. False without gates. */
bool model_gates_are_tied(const struct model *m);

/* Writes log_beta of all rows that it is still to come for. A step that may
 * not defer does it first, and any step when it has too many to wait. Runs on
 * the worker pool, between steps; costs nothing when there are none. */
void model_finish_gates(struct model *m);
/* Rows that log_beta is still to come for. */
uint32_t model_n_deferred(const struct model *m);

/* Moves the entries of a table together in RoPE position, so that a session
 * can go on when its next position would reach the model's context: in each
 * list the newest entry (by logical position) gets R - 1 and the older ones
 * R - 2, R - 3 and so on, R being the longest list. Keys are turned in float32
 * by the difference; values, biases, log_beta and logical positions stay. All
 * units must be private to the table (asserted), and its lists no longer than
 * max_context. Returns R: the RoPE position of the next token, for
 * table_append() and struct model_run. Runs on the worker pool, between
 * steps; the result is the same for any number of threads. */
uint32_t model_reposition(struct model *m, struct table *t);

/* Runs one step. The tables must belong to pools of model head_dim. Cannot
 * fail: all memory exists since load. */
void model_step(struct model *m, const struct model_batch *batch);

#endif
