/* watch.h - what is kept of a prompt while it is admitted, so that entries
 * that leave can be merged into others (merge/merge.h).
 *
 * Merging needs what attention does not keep: the last queries of the prompt,
 * from which the mass of each entry is measured, and for each entry the row of
 * its own pass through prefill, which says who takes it in (merge/band.h). A
 * watch holds a probe (runtime/model/probe.h), which sees the queries and the
 * rows of one step, and the rows of all entries of the session, list by list
 * in the order of the lists. They move with their entries until the admission
 * ends.
 *
 * Of a row only its order is kept (band_pack), 20 bytes an entry. That is
 * memory of the prompt, so it counts: a watch reserves as many units of the
 * pool. Probes are few and sized at start; a prompt that finds none, or no
 * room, is admitted without merging.
 *
 * Owns probes, rows and scratch; borrows sessions and compute pool. Threads:
 * the engine thread, but for watch_merge() and watch_compact(), which run on
 * any threads for different lists at once.
 */
#ifndef RUNTIME_ENGINE_WATCH_H
#define RUNTIME_ENGINE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "merge/merge.h"
#include "runtime/engine/lm.h"
#include "runtime/engine/session.h"

struct watch;   /* of one prompt; a field of its session */
struct watches; /* all that there can be */

struct watches_setup {
    const struct lm *lm;
    struct sessions *sessions;
    const struct merge_options *options;
    uint32_t max_rows;    /* of one step */
    uint32_t max_prompts; /* that are watched at a time */
    int n_threads;        /* of the compute pool */
};

/* On OK the caller owns *out; what the setup points to must outlive it. No
 * prompt is ever watched when lm has no model. */
MUST_CHECK enum err watches_new(struct watches **out,
                                const struct watches_setup *o);
void watches_free(struct watches *ws); /* NULL is allowed */
/* Bytes of all probes; they exist from the start. */
uint64_t watches_bytes(const struct watches *ws);

/* Entries that fit into so many units together with their rows. */
uint64_t watch_entries_in(const struct watches *ws, uint64_t units);

/* Units that rows of so many entries take. */
uint64_t watch_units_for(const struct watches *ws, uint64_t entries);

/* A probe that nobody uses is there. */
bool watches_have_free(const struct watches *ws);

/* True when one is, and the pool has so much that it promised to nobody. */
bool watch_can_begin(const struct watches *ws, uint64_t entries);

/* From now on s->watch sees what the session computes; it holds up to
 * `entries` entries over all lists, those that are there included. False
 * changes nothing: watch_can_begin() says no, or so many units are not free
 * just now. */
bool watch_begin(struct watches *ws, struct session *s, uint64_t entries);

/* Gives rows, probe and reservation back. Nothing when s is not watched. */
void watch_end(struct watches *ws, struct session *s);

uint64_t watch_max_entries(const struct watch *w);
/* The order of the row of an entry of a list (band_pack). */
const uint8_t *watch_row(const struct watch *w, uint32_t i_list,
                         uint32_t entry);
/* What the session's runs are computed with. */
struct probe *watch_probe(const struct watch *w);

/* The session's keys were turned to other positions: queries from before
 * cannot be compared with them any more. */
void watch_moved(struct session *s);

/* After a step that computed the session's last n tokens: keeps their rows.
 * Ends the watch where they do not fit. */
void watch_take(struct watches *ws, struct session *s, uint32_t n);

/* Makes scratch for lists of up to n entries, for every thread. False: the
 * host has no memory, and nothing can be merged now. */
bool watches_make_scratch(struct watches *ws, uint32_t n_entries);

/* Merges entries of list i_list that go (masks by unit id, as for
 * compact_move()) into those that stay. Only private units change. The
 * scratch is for the list's length. Adds to *c. */
void watch_merge(const struct watches *ws, const struct session *s,
                 uint32_t i_list, const uint16_t *gone, int thread,
                 struct merge_counts *c);

/* compact_move() for a session that may be watched: rows follow entries. */
uint32_t watch_compact(struct session *s, uint32_t i_list,
                       const uint16_t *gone);

#endif
