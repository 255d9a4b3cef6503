/* watch.h - what is kept of a prompt while it is admitted, so that entries
 * that leave can be merged into others (merge/merge.h).
 *
 * Some fates need what attention does not keep, and a watch keeps it while the
 * prompt is computed. It holds a probe (runtime/model/probe.h), which sees the
 * queries of each step, and is of one of two kinds:
 *
 *   rows     for `merge` (selkv): the last queries of the prompt, from which
 *            the mass of each entry is measured, and for each entry the row of
 *            its own pass through prefill, which says who takes it in
 *            (merge/band.h). Rows are kept list by list in the order of the
 *            lists and move with their entries until the admission ends. Of a
 *            row only its order is kept (band_pack), 20 bytes an entry. That
 *            is memory of the prompt, so it counts: a watch reserves as many
 *            units of the pool.
 *   columns  for kvmerger, weightedkv and cam: the attention that each entry
 *            got from all tokens, by position. That is a second pass over the
 *            keys, and its memory grows with the context, so there are only
 *            such watches where a server asks for them. Where the prompt is
 *            ranked by its columns (rank.h), those are taken.
 *
 * `lookm` needs neither, and can be done to any prompt. Probes are few and
 * sized at start; a prompt that finds none, or no room, is admitted without
 * merging.
 *
 * Owns probes, rows and scratch; borrows sessions and compute pool. Threads:
 * the engine thread, but for watch_merge(), watch_merge_layer() and
 * watch_compact(), which run on any threads for different lists at once.
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
    struct workers *workers; /* may be NULL */
    const struct merge_options *options;
    uint32_t max_rows;    /* of one step */
    uint32_t max_prompts; /* that are watched at a time, of each kind */
    uint32_t max_columns; /* positions of a prompt whose columns are watched;
                             0: none are */
};

/* On OK the caller owns *out; what the setup points to must outlive it. No
 * prompt is ever watched when lm has no model. */
MUST_CHECK enum err watches_new(struct watches **out,
                                const struct watches_setup *o);
void watches_free(struct watches *ws); /* NULL is allowed */
/* Bytes of all probes; they exist from the start. */
uint64_t watches_bytes(const struct watches *ws);

/* True if entries that leave by this fate are only merged where the prompt was
 * watched. */
bool watch_is_needed(enum forget_fate fate);

/* Entries that fit into so many units together with what this fate keeps
 * beside them. */
uint64_t watch_entries_in(const struct watches *ws, enum forget_fate fate,
                          uint64_t units);

/* Units that so many entries take beside their own. */
uint64_t watch_units_for(const struct watches *ws, enum forget_fate fate,
                         uint64_t entries);

/* A probe for this fate that nobody uses is there. */
bool watches_have_free(const struct watches *ws, enum forget_fate fate);

/* True when there is one for the session's fate, its prompt is not too long
 * for it, and the pool has so much that it promised to nobody. */
bool watch_can_begin(const struct watches *ws, const struct session *s,
                     uint64_t entries);

/* From now on s->watch sees what the session computes; it holds up to
 * `entries` entries over all lists, those that are there included. False
 * changes nothing: watch_can_begin() says no, or so many units are not free
 * just now. */
bool watch_begin(struct watches *ws, struct session *s, uint64_t entries);

/* Gives rows, probe and reservation back, before the session's ranking ends.
 * Nothing when s is not watched. */
void watch_end(struct watches *ws, struct session *s);

/* UINT64_MAX: any number. */
uint64_t watch_max_entries(const struct watch *w);
/* The order of the row of an entry of a list (band_pack); rows only. */
const uint8_t *watch_row(const struct watch *w, uint32_t i_list,
                         uint32_t entry);
/* What the session's runs are computed with; NULL where the session's ranking
 * sees all that is needed. */
struct probe *watch_probe(const struct watch *w);

/* The session's keys were turned to other positions: queries from before
 * cannot be compared with them any more. */
void watch_moved(struct session *s);

/* After a step that computed the session's last n tokens: keeps their rows,
 * on all threads. Ends the watch where they do not fit. */
void watch_take(struct watches *ws, struct session *s, uint32_t n);

/* What leaves the session by admission can be merged: its fate merges, and is
 * watched or needs no watch. */
bool watch_can_merge(const struct watches *ws, const struct session *s);

/* Makes scratch for merging lists of s of up to n entries, for every thread.
 * False: the host has no memory, and nothing can be merged now. */
bool watches_make_scratch(struct watches *ws, const struct session *s,
                          uint32_t n_entries);

/* Merges entries of list i_list that go (masks by unit id, as for
 * compact_move()) into those that stay. Only private units change. The
 * scratch is for the list's length. Adds to *c. */
void watch_merge(const struct watches *ws, const struct session *s,
                 uint32_t i_list, const uint16_t *gone, int thread,
                 struct merge_counts *c);

/* True if the lists of a layer must be merged together, because their R is one:
 * the mean over the KV heads that keep the token (merge_options.mean_ratio).
 * watch_merge_layer() does it; the scratch is for the longest list. */
bool watch_is_by_layer(const struct watches *ws, const struct session *s);
void watch_merge_layer(const struct watches *ws, const struct session *s,
                       uint32_t layer, const uint16_t *gone, int thread,
                       struct merge_counts *c);

/* compact_move() for a session that may be watched: rows follow entries. */
uint32_t watch_compact(struct session *s, uint32_t i_list,
                       const uint16_t *gone);

#endif
