#include "merge/fate.h"

#include <string.h>

#include "merge/fate_internal.h"

static const struct fate *const fates[] = {&fate_drop,       &fate_selkv,
                                           &fate_lookm,      &fate_kvmerger,
                                           &fate_weightedkv, &fate_cam};

enum { N_FATES = sizeof(fates) / sizeof(*fates) };

const struct fate *fate_at(uint32_t i)
{
    return i < N_FATES ? fates[i] : NULL;
}

const struct fate *fate_find(const char *name)
{
    if (strcmp(name, "merge") == 0)
        return &fate_selkv;
    for (uint32_t i = 0; i < N_FATES; i++)
        if (strcmp(name, fates[i]->name) == 0)
            return fates[i];
    return NULL;
}

void fate_count_leaving(const struct fate_list *l, struct merge_counts *c)
{
    for (uint32_t i = 0; i < l->n; i++)
        c->evicted += l->state[i] == FATE_LEAVES;
}

void fate_count_taken(struct merge_counts *c, float gate)
{
    c->routed++;
    c->merged += gate > 0.0f;
    c->gate_sum += (double)gate;
}
