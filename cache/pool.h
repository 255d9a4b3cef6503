/* pool.h - the one pool of KV units that all sessions of all tenants share.
 *
 * Owns the arena (one anonymous mapping), the metadata of every unit, their
 * reference counts and the list of free ones. The number of units is fixed at
 * start: the byte budget divided by what a unit costs with all its
 * bookkeeping. So the budget cannot be passed; what can happen is that no
 * unit is free, and therefore whoever wants units reserves first:
 *
 *     used + reserved <= n_units      (true between calls)
 *
 * A reservation is a promise to its holder, not memory: pool_take() turns one
 * reserved unit into a used one and cannot fail. A unit whose last user lets
 * go returns to the free list at once (it does not return to a reservation).
 *
 * Free units are kept in groups of four neighbours: a list that grows gets
 * the neighbour of its last unit where that is free, else the start of a
 * wholly free group, else any unit. Long lists then lie in runs of 64
 * entries, which attention streams at twice the speed of scattered units.
 *
 * Threads: the engine thread only (kernels read data blocks meanwhile).
 */
#ifndef CACHE_POOL_H
#define CACHE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/kv_layout.h"

typedef uint32_t unit_id;

enum { POOL_NO_UNIT = UINT32_MAX };

struct pool;

struct pool_stats {
    uint64_t budget_bytes;
    uint64_t unit_bytes; /* data + metadata + bookkeeping of one unit */
    uint32_t n_units;
    uint32_t used;     /* referenced at least once, counted once */
    uint32_t reserved; /* promised, not yet taken */
    uint32_t used_max; /* highest `used` since start */
};

/* What one unit costs of the budget: data block, struct kv_meta and the
 * pool's own bookkeeping. */
uint64_t pool_unit_bytes(const struct kv_layout *layout);

/* On OK the caller owns *out. ERR_INVAL when the budget holds no unit or more
 * than UINT32_MAX - 1; ERR_NOMEM when the mapping is refused. The arena is
 * zeroed lazily by the system: pages cost memory when first written. */
MUST_CHECK enum err pool_new(struct pool **out, const struct kv_layout *layout,
                             uint64_t budget_bytes, struct errmsg *m);
void pool_free(struct pool *p); /* NULL is allowed; asserts used == 0 */

const struct kv_layout *pool_layout(const struct pool *p);

/* ERR_BUDGET changes nothing: too few units are neither used nor reserved. */
MUST_CHECK enum err pool_reserve(struct pool *p, uint32_t n);
void pool_unreserve(struct pool *p, uint32_t n);

/* Turns one reserved unit into a used one with one reference, and returns it.
 * `after` is the list's last unit, or POOL_NO_UNIT. Asserts that something is
 * reserved. The data block keeps whatever finite bytes it had. */
unit_id pool_take(struct pool *p, unit_id after);

void pool_ref(struct pool *p, unit_id u);
void pool_unref(struct pool *p, unit_id u); /* frees at the last one */
uint32_t pool_refs(const struct pool *p, unit_id u);
/* Which units have exactly one: bit u % 64 of bits[u / 64], for all units of
 * the pool; bits past the last are clear. One sweep over 4 bytes a unit. */
void pool_private_units(const struct pool *p, uint64_t *bits);

uint8_t *pool_data(const struct pool *p, unit_id u);
/* The metadata of all units are one array: pool_meta(p, 0) + u. */
struct kv_meta *pool_meta(const struct pool *p, unit_id u);

struct pool_stats pool_stats(const struct pool *p);

#endif
