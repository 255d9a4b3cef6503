/* compact.h - takes chosen entries out of a list and closes the gaps.
 *
 * The rule, the same on every backend (docs/design 1.3): the i-th hole below
 * the new length is filled by the i-th kept entry at or above it. So no entry
 * moves that need not, and what a list looks like afterwards depends on the
 * list and the chosen entries alone. An entry moves whole: its column of K,
 * its row of V, scales, bias and metadata. Units that empty return to the
 * pool.
 *
 * Two steps, because moving bytes is most of the work: compact_move() may run
 * on any thread, one list at a time each; compact_release() is the engine
 * thread's, as everything that touches the pool.
 */
#ifndef CACHE_COMPACT_H
#define CACHE_COMPACT_H

#include <stdint.h>

#include "cache/table.h"

/* `gone` has one mask a unit, by unit id, bit e: the entry in slot e goes;
 * bits past the length mean nothing, and so do bits of units with more than one
 * user, whose entries stay. Returns how many entries went. Sets the length,
 * and leaves n_units to compact_release(). */
uint32_t compact_move(struct table *t, uint32_t i_list, const uint16_t *gone);

/* The same, and says which entries change their place, so that what somebody
 * keeps beside them can follow: moved(user, to, from), indices into the list,
 * in ascending order of both. moved may be NULL. */
typedef void (*compact_moved_fn)(void *user, uint32_t to, uint32_t from);
uint32_t compact_move_told(struct table *t, uint32_t i_list,
                           const uint16_t *gone, compact_moved_fn moved,
                           void *user);

/* compact_move() for the entries at positions >= pos. Units in which a gap
 * closes must be private (asserted). */
uint32_t compact_move_from(struct table *t, uint32_t i_list, uint32_t pos);

/* Returns the units past the length of a list to the pool, and how many. */
uint32_t compact_release(struct table *t, uint32_t i_list);

/* Both, for all lists of a table. Returns the entries that went. */
uint64_t compact_table(struct table *t, const uint16_t *gone);

/* Takes chosen entries out of units that several tables share, for all of them
 * at once: the way to make room where everything lies in shared prefixes
 * (docs/design 1.3). It looks at the units of list i_list to which
 * user[0..n_users) and nobody else refer, and which each of these sees to the
 * end; others are left alone.
 *
 * Only whole units can stay shared, since each user's own entries lie behind
 * them. So up to 15 of the chosen entries stay, the newest, and where no unit
 * would be freed nothing is done. What stays keeps its order.
 *
 * No unit is taken: a copy would need room when there is none. It is the one
 * writer of shared units, which no user can notice, because all of them change
 * between two steps. Whoever must not see that holds a reference of its own.
 * Engine thread. */
struct compact_freed {
    uint32_t units;   /* returned to the pool */
    uint32_t entries; /* that each user lost */
};
struct compact_freed compact_shared(struct table *const *user, uint32_t n_users,
                                    uint32_t i_list, const uint16_t *gone);

#endif
