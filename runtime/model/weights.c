#include "runtime/model/weights.h"

#include "runtime/model/model_internal.h"

struct model_weights model_weights(const struct model *m)
{
    return (struct model_weights){.family = m->cfg.family,
                                  .norm_eps = m->cfg.eps,
                                  .layer = m->layer,
                                  .embd = &m->embd,
                                  .head = &m->head,
                                  .is_tied = m->head.raw == m->embd.raw,
                                  .out_norm = m->out_norm,
                                  .rope_freq = m->rope_freq};
}
