#include "runtime/model/model_internal.h"

static void activate(struct step *s, uint32_t row0, uint32_t row1)
{
    const struct model *m = s->m;
    size_t F = m->cfg.n_ff;
    float *gate = m->s.gate + row0 * F;
    struct acts a = model_acts(m, m->s.gate, s->n_rows, m->cfg.n_ff);
    m->ops->silu_mul(gate, gate, m->s.up + row0 * F,
                     (int64_t)((row1 - row0) * F));
    m->ops->act_pack(&a, row0, row1);
}

/* y = down . (silu(gate . h) * (up . h)) */
void model_ffn(struct step *s)
{
    struct model *m = s->m;
    const struct layer *l = s->layer;
    uint32_t E = m->cfg.n_embd, F = m->cfg.n_ff;
    struct acts a = model_acts(m, m->s.h, s->n_rows, E);
    const struct product in[] = {{&l->gate, m->s.gate, F},
                                 {&l->up, m->s.up, F}};
    model_multiply(m, &a, in, 2);
    model_each_tile(s, s->n_rows, activate);
    a = model_acts(m, m->s.gate, s->n_rows, F);
    const struct product out = {&l->down, m->s.y, E};
    model_multiply(m, &a, &out, 1);
}
