/* table.h - the block table of one session: for every (layer, KV head) the
 * units its entries are in, and how many there are.
 *
 * Lengths differ by list: everything is ragged, also while nothing is
 * evicted and they happen to be equal. Entry i of a list is in slot
 * i % KV_UNIT of unit[i / KV_UNIT]. A list's order is the order of arrival
 * until something is evicted from it; afterwards order means nothing and the
 * position of an entry is what its metadata says.
 *
 * Units may be shared between tables (a common prefix). A shared unit is
 * never written: append copies a shared tail unit first. So a table can be
 * forked in time proportional to its number of units, and what one session
 * does is never seen by another.
 *
 * Owns its arrays and one reference to each unit in them. Room for the units
 * is the caller's business: every function that takes units says how many it
 * may take, and the caller has reserved them in the pool.
 *
 * Threads: the engine thread only; kernels read lists during a step.
 */
#ifndef CACHE_TABLE_H
#define CACHE_TABLE_H

#include <stdint.h>

#include "base/err.h"
#include "cache/pool.h"

struct kv_list {
    uint32_t len;     /* entries */
    uint32_t n_units; /* ceil(len / KV_UNIT) */
    unit_id *unit;    /* [max_units of the table] */
};

struct table {
    struct pool *pool; /* borrowed */
    uint32_t n_layers, n_kv_heads;
    uint32_t max_units;   /* capacity of each list, in units */
    struct kv_list *list; /* [n_layers * n_kv_heads], layer-major */
    unit_id *ids;         /* room of all lists, one allocation */
};

/* An empty table whose lists can grow to max_tokens entries. */
MUST_CHECK enum err table_new(struct table **out, struct pool *pool,
                              uint32_t n_layers, uint32_t n_kv_heads,
                              uint32_t max_tokens);
void table_free(struct table *t); /* NULL is allowed; lets go of all units */

struct kv_list *table_list(const struct table *t, uint32_t layer,
                           uint32_t head);

/* Units that table_append(t, n) would take, copies of shared tails included.
 * After a fork of n entries this is also right for a list whose tail is
 * shared. */
uint64_t table_units_needed(const struct table *t, uint32_t n);

/* Upper bound for a table of that shape that starts empty. */
uint64_t table_units_for(uint32_t n_lists, uint32_t n_tokens);

/* Lengthens every list by n entries, taking table_units_needed(t, n) reserved
 * units, and returns how many: a tail that was shared when the caller
 * reserved may be private by now, and what it reserved too much is its to
 * give back. The metadata of the entries is set: log_beta 0, logical position
 * from `pos` on and RoPE position from `rope_pos` on, which differ once a
 * session was re-positioned. Keys, values and bias are written by the caller.
 * n + len must fit max_units. */
uint64_t table_append(struct table *t, uint32_t n, int32_t pos,
                      int32_t rope_pos);

/* *out becomes a table of capacity max_tokens that shares with src every
 * entry whose position is below n_tokens. Takes no units: a tail unit that is
 * only partly wanted is shared too, and copied by the first append. Only for
 * lists in order of arrival, from which nothing was evicted. */
MUST_CHECK enum err table_fork(struct table **out, const struct table *src,
                               uint32_t n_tokens, uint32_t max_tokens);

/* Drops the entries at positions >= n_tokens; same condition as fork. */
void table_truncate(struct table *t, uint32_t n_tokens);

/* Units this table refers to / those that only it refers to (what freeing it
 * would give back). */
uint64_t table_n_units(const struct table *t);
uint64_t table_n_private_units(const struct table *t);

/* Entries over all lists. */
uint64_t table_n_entries(const struct table *t);

#endif
