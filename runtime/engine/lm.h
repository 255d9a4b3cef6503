/* lm.h - what the engine needs of a model: its shape and one step.
 *
 * The seam between engine and model. The engine runs any language model that
 * keeps its keys and values in tables of the pool; tests put in one whose
 * answers show what it was given.
 *
 * Borrows self. Threads: all functions by the engine thread only.
 */
#ifndef RUNTIME_ENGINE_LM_H
#define RUNTIME_ENGINE_LM_H

#include <stdint.h>

#include "runtime/model/model.h"

struct lm {
    void *self;
    uint32_t n_vocab, n_layers, n_kv_heads, head_dim;
    void (*step)(void *self, const struct model_batch *batch);
    /* As model_finish_gates(); NULL where step() never defers any. */
    void (*finish_gates)(void *self);
    /* As model_reposition(): between steps, all units private. */
    uint32_t (*reposition)(void *self, struct table *table);
    /* What probes are for (watch.h); NULL: nothing can be merged. */
    const struct model *model;
};

/* The loaded model as an lm; m must outlive it. */
void lm_of_model(struct lm *out, struct model *m);

#endif
