/* routing.h - SelKV stage 3: who takes in whom.
 *
 * An entry that leaves goes to the one before it, in its own bucket of
 * positions, that stays and that it attended to most when it passed through
 * prefill (band.h). On equal attention the later one is the host. Where
 * nothing stays in the bucket, or the entry looked at none of it (as far as a
 * half can tell), it has no host and is dropped. Entries that may not change
 * are no hosts.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MERGE_ROUTING_H
#define MERGE_ROUTING_H

#include <stdint.h>

#include "merge/fate.h"

enum { ROUTING_NONE = UINT32_MAX };

/* host[n]: the index of the host of each entry that leaves, ROUTING_NONE where
 * it has none and for all that stay. Reads pos, state and band. */
void routing_of(const struct fate_list *l, uint32_t *host);

#endif
