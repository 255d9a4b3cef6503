/* table.h - the block table of one session: for every (layer, KV head) the
 * units its entries are in, and how many there are.
 *
 * Lengths differ by list: everything is ragged, also while nothing is
 * evicted and they happen to be equal. Entry i of a list is in slot
 * i % KV_UNIT of unit[i / KV_UNIT], so all units of a list but the last are
 * full. A list starts in order: positions ascend along it. Compaction ends
 * that where it moves an entry; from then on order means nothing, and the
 * position of an entry is what its metadata says. The flag in_order keeps
 * what is common cheap: to cut a list in order takes one binary search and no
 * look at its entries.
 *
 * Units may be shared between tables (a common prefix). A shared unit is
 * never written: append copies a shared tail unit first. So a table can be
 * forked in time proportional to its number of units, and what one session
 * does is never seen by another. (compact_shared() changes all users of a unit
 * at once.)
 *
 * Owns its arrays and one reference to each unit in them. Room for the units
 * is the caller's business: every function that takes units says how many it
 * may take, and the caller has reserved them in the pool.
 *
 * Threads: the engine thread only; kernels read lists during a step.
 */
#ifndef CACHE_TABLE_H
#define CACHE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/pool.h"

enum { TABLE_ALL = INT32_MAX }; /* above all positions */

struct kv_list {
    uint32_t len;     /* entries */
    uint32_t n_units; /* ceil(len / KV_UNIT) */
    unit_id *unit;    /* [max_units of the table] */
    bool in_order;    /* positions ascend; else they may */
};

struct table {
    struct pool *pool; /* borrowed */
    uint32_t n_layers, n_kv_heads;
    uint32_t max_units;   /* capacity of each list, in units */
    struct kv_list *list; /* [n_layers * n_kv_heads], layer-major */
    unit_id *ids;         /* room of all lists, one allocation */
};

/* An empty table whose lists can grow to max_entries each. On OK the caller
 * owns *out; the pool is borrowed. ERR_NOMEM. */
MUST_CHECK enum err table_new(struct table **out, struct pool *pool,
                              uint32_t n_layers, uint32_t n_kv_heads,
                              uint32_t max_entries);
void table_free(struct table *t); /* NULL is allowed; lets go of all units */

struct kv_list *table_list(const struct table *t, uint32_t layer,
                           uint32_t head);

/* Units that n entries of one list fill. */
static inline uint32_t table_units_of(uint32_t n_entries)
{
    return n_entries / KV_UNIT + (n_entries % KV_UNIT != 0);
}

/* Units that table_append(t, n) would take, copies of shared tails included.
 * After a fork of n entries this is also right for a list whose tail is
 * shared. */
uint64_t table_units_needed(const struct table *t, uint32_t n);

/* Upper bound for a table of that shape that starts empty. */
uint64_t table_units_for(uint32_t n_lists, uint32_t n_tokens);

/* Lengthens every list by n entries, taking table_units_needed(t, n) reserved
 * units, and returns how many: a tail that was shared when the caller
 * reserved may be private by now, and what it reserved too much is its to
 * give back. The metadata of the entries is set: log_beta and standing 0,
 * logical position from `pos` on and RoPE position from `rope_pos` on, which
 * differ once a session was re-positioned. Keys, values and bias are written by
 * the caller. n + len must fit max_units. */
uint64_t table_append(struct table *t, uint32_t n, int32_t pos,
                      int32_t rope_pos);

/* *out becomes a table with room for max_entries a list, whose lists hold the
 * entries of src at positions below `pos` and fit that. Units of which all
 * entries are wanted are shared, and so is a last one that is wanted only
 * from its start (the first append copies it). What else is wanted, in units
 * that hold unwanted entries too, is copied behind these, and takes
 * table_fork_units(src, pos) reserved units. That is none for a list in
 * order, and none where all is wanted; with TABLE_ALL no entry is looked at to
 * know that. ERR_NOMEM takes nothing. */
MUST_CHECK enum err table_fork(struct table **out, const struct table *src,
                               uint32_t pos, uint32_t max_entries);
uint64_t table_fork_units(const struct table *src, uint32_t pos);

/* Drops the entries at positions >= pos; gaps close by the rule of
 * cache/compact.h. Shared units in which gaps must close are replaced by
 * copies first, which takes table_truncate_units(t, pos) reserved units or
 * fewer (some may be private by now), and returns how many. None for a list
 * in order, and none where nothing is shared. */
uint64_t table_truncate(struct table *t, uint32_t pos);
uint64_t table_truncate_units(const struct table *t, uint32_t pos);

/* Replaces unit i of a list by a copy that only this table uses, if others use
 * it too. Takes one reserved unit and returns 1 then, else 0. */
uint32_t table_own_unit(struct table *t, struct kv_list *l, uint32_t i);

/* Bits of the slots of unit i of a list whose positions are >= pos. */
uint32_t table_slots_from(const struct table *t, const struct kv_list *l,
                          uint32_t i, uint32_t pos);

/* Units this table refers to / those that only it refers to (what freeing it
 * would give back). */
uint64_t table_n_units(const struct table *t);
uint64_t table_n_private_units(const struct table *t);

/* Entries over all lists; those of them at positions below `pos`. */
uint64_t table_n_entries(const struct table *t);
uint64_t table_n_entries_below(const struct table *t, uint32_t pos);

/* Entries of the longest list. */
uint32_t table_max_len(const struct table *t);

#endif
