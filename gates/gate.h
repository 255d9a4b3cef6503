/* gate.h - the weights of the retention gates of one model.
 *
 * A gate reads the attention input of a layer (after the input RMSNorm, n_embd
 * floats), once per token, and says for every KV head how long the token's
 * entry stays useful (docs/design, algorithms 1.1):
 *
 *     h1 = silu(W1[l] x + c1[l])     W1: width x n_embd
 *     h2 = silu(W2[l] h1 + c2[l])    W2: width x width
 *     z  = W3[l] h2 + c3[l]          W3: n_kv_heads x width
 *     log_beta = logsigmoid(z) = -log1p(exp(-z))  <= 0
 *
 * Trained gates have one W3 and one c3 for all layers, which puts every layer
 * and head on one scale; a file may hold copies that differ, so they are kept
 * per layer here. Source: arXiv 2605.09649 (gate type "rg10").
 *
 * The older gate type "rg" (arXiv 2512.03324) has one hidden layer, and every
 * layer its own output: z = W3[l] h1 + c3[l]. W2 and c2 are then empty. It
 * ranks entries within a head only.
 *
 * All parameters lie in one array of floats, layer after layer, each layer as
 * W1, c1, W2, c2, W3, c3: an optimiser walks over them in one loop.
 *
 * Threads: constant after loading; training changes it from one thread.
 */
#ifndef GATES_GATE_H
#define GATES_GATE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { GATE_WIDTH_MAX = 8192, GATE_HEADS_MAX = 1024 };

/* No parameter of gates that are written, read or computed with is larger, of
 * either sign: the largest number of 16 bits. With what a model gives a gate to
 * read, sums of such do not overflow, so that none ends as NaN. */
enum { GATE_PARAM_MAX = 65504 };

enum gate_kind { GATE_RG10, GATE_RG };

struct gate_shape {
    uint32_t n_layers, n_embd, n_kv_heads;
    uint32_t width; /* m of the formulas */
    enum gate_kind kind;
};

/* Where a layer's parts begin, in floats from the start of that layer. */
struct gate_parts {
    size_t w1, c1, w2, c2, w3, c3;
    size_t n; /* floats of one layer */
};

struct gate {
    struct gate_shape shape;
    struct gate_parts parts;
    float *p; /* [n_layers * parts.n] */
};

struct gate_parts gate_parts(const struct gate_shape *s);

/* All parameters zero. On OK the caller owns *out. ERR_INVAL for a shape with
 * a zero, a width above GATE_WIDTH_MAX or more heads than GATE_HEADS_MAX. */
MUST_CHECK enum err gate_new(struct gate **out, const struct gate_shape *s,
                             struct errmsg *m);
void gate_free(struct gate *g); /* NULL is allowed */

/* ERR_CONFLICT, with both shapes in the sentence, when gates of shape s are
 * for another model. Width and kind are theirs and do not matter. */
MUST_CHECK enum err gate_check_fit(const struct gate_shape *s,
                                   const struct gate_shape *model,
                                   struct errmsg *m);

size_t gate_n_params(const struct gate *g);

/* "rg10", "rg" */
const char *gate_kind_name(enum gate_kind kind);

/* The first parameter of a layer. */
static inline float *gate_layer(const struct gate *g, uint32_t layer)
{
    return g->p + (size_t)layer * g->parts.n;
}

#endif
