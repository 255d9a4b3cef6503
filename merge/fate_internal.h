/* fate_internal.h - the rows of the table in fate.c, one from each file, and
 * what they share.
 *
 * Threads: any; constants only.
 */
#ifndef MERGE_FATE_INTERNAL_H
#define MERGE_FATE_INTERNAL_H

#include "merge/fate.h"

extern const struct fate fate_drop;
extern const struct fate fate_selkv;
extern const struct fate fate_lookm;
extern const struct fate fate_kvmerger;
extern const struct fate fate_weightedkv;
extern const struct fate fate_cam;

void fate_count_leaving(const struct fate_list *l, struct merge_counts *c);
/* An entry that found a host, which takes it in with a weight of `gate`. */
void fate_count_taken(struct merge_counts *c, float gate);

static inline const float *fate_value(const struct fate_list *l, uint32_t i)
{
    return l->value + (size_t)i * l->head_dim;
}

static inline const float *fate_key(const struct fate_list *l, uint32_t i)
{
    return l->key + (size_t)i * l->head_dim;
}

#endif
