#include "runtime/engine/lm.h"

static void step_model(void *self, const struct model_batch *batch)
{
    model_step(self, batch);
}

static void finish_gates(void *self)
{
    model_finish_gates(self);
}

static uint32_t reposition(void *self, struct table *table)
{
    return model_reposition(self, table);
}

void lm_of_model(struct lm *out, struct model *m)
{
    const struct model_info *info = model_info(m);
    out->self = m;
    out->n_vocab = info->n_vocab;
    out->n_layers = info->n_layers;
    out->n_kv_heads = info->n_kv_heads;
    out->head_dim = info->head_dim;
    out->step = step_model;
    out->finish_gates = finish_gates;
    out->reposition = reposition;
    out->model = m;
}
