/* view.h - what a policy looks at (cache/policy/policy.h), read from the cache
 * of a sequence and the probe that watched it.
 *
 * A view is a copy: float32 keys, norms, attention of the last queries. It
 * stays as it is whatever becomes of the cache, and until it is filled again.
 * Lists are put into the order of their positions; view_slot() says where an
 * entry is in the cache.
 *
 * Owns its memory, which grows with the longest sequence it has seen: 4
 * head_dim bytes an entry with POLICY_KEYS, 4 n_window with POLICY_WINDOW and
 * as much with POLICY_PEAK. Threads: one at a time; filling runs on the worker
 * pool, and gives the same bits for any number of threads. Layer by layer a
 * view takes a small part of that memory, and many threads can fill one each.
 */
#ifndef RUNTIME_MODEL_VIEW_H
#define RUNTIME_MODEL_VIEW_H

#include <stdint.h>

#include "base/err.h"
#include "cache/policy/policy.h"
#include "cache/table.h"
#include "runtime/model/model.h"
#include "runtime/model/probe.h"

struct view;

/* On OK the caller ends *out with view_free(). The model must outlive it. */
MUST_CHECK enum err view_new(struct view **out, const struct model *m);
void view_free(struct view *v); /* NULL is allowed */

/* The policy_need bits that can be filled from a probe (NULL: none). Log_beta
 * can always be read; whether gates have written it the caller knows. */
uint32_t view_offers(const struct probe *p);

/* Of the sequence whose cache is t and that has seen n_seen tokens, what
 * `needs` (of enum policy_need) asks for. p may be NULL, or has seen as many.
 * ERR_NOMEM: the view is empty. ERR_INVAL: needs more than view_offers(). */
MUST_CHECK enum err view_fill(struct view *v, const struct table *t,
                              const struct probe *p, uint32_t n_seen,
                              uint32_t needs);

/* The same of two layers (which may be one) alone, on this thread; the lists of
 * other layers are empty. */
struct view_source {
    const struct table *table;
    const struct probe *probe; /* may be NULL */
    uint32_t n_seen, needs;
    uint32_t n_window; /* of its queries the last so many are looked at */
};
MUST_CHECK enum err view_fill_layers(struct view *v,
                                     const struct view_source *from,
                                     const uint32_t layer[2]);

/* Empty, and without the memory of its entries. */
void view_clear(struct view *v);

const struct policy_view *view_get(const struct view *v);

/* [n_entries of the view]: the entry's place in its list. */
const uint32_t *view_slot(const struct view *v);

/* Turns keep[n_entries] into masks for cache/compact.h: bit e of
 * gone[unit] is set where the entry in slot e is not kept. The caller has
 * cleared `gone`, [n_units of the pool]. */
void view_gone(const struct view *v, const struct table *t, const uint8_t *keep,
               uint16_t *gone);

#endif
