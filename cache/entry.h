/* entry.h - copies cached entries from unit to unit.
 *
 * An entry moves whole, whatever the KV type: its column of K, its row of V,
 * scales, bias and metadata.
 *
 * Threads: any, on units that nobody else writes meanwhile.
 */
#ifndef CACHE_ENTRY_H
#define CACHE_ENTRY_H

#include <stdint.h>

#include "cache/pool.h"

/* Slot `src` of unit `from` into slot `dst` of unit `to`. They may be slots of
 * one unit. */
void entry_copy(const struct pool *p, unit_id to, uint32_t dst, unit_id from,
                uint32_t src);

/* All slots, those past a list's length too. */
void entry_copy_unit(const struct pool *p, unit_id to, unit_id from);

#endif
