/* watch_internal.h - what the two files of watch.h share.
 *
 * watch.c        probes, rows, and their memory
 * watch_merge.c  merging with what they know
 */
#ifndef RUNTIME_ENGINE_WATCH_INTERNAL_H
#define RUNTIME_ENGINE_WATCH_INTERNAL_H

#include <stddef.h>

#include "merge/fate.h"
#include "runtime/engine/watch.h"
#include "runtime/kernels/ops.h"

enum watch_kind { WATCH_ROWS, WATCH_COLUMNS, WATCH_N_KINDS };

struct watch {
    struct watch *next_free;
    enum watch_kind kind;
    struct probe *probe;
    const struct probe *columns; /* its own, or that which ranks the prompt */
    uint32_t from;  /* position of the first token that is in the columns */
    uint8_t *order; /* [max_entries][BAND_ORDER_BYTES], list after list */
    uint64_t max_entries;
    uint32_t units;  /* reserved for it */
    uint64_t *first; /* [n_lists] row of the first entry of a list */
    uint32_t *len;   /* [n_lists] entries that have one */
};

struct watches {
    struct watches_setup o;
    const struct ops *ops;
    uint32_t n_lists;
    uint64_t unit_bytes;
    uint64_t bytes;
    uint32_t max_rows; /* of a probe */
    struct watch *all; /* [n_all] */
    uint32_t n_all;
    struct watch *free[WATCH_N_KINDS];
    uint8_t *scratch; /* [n_threads][scratch_bytes] */
    size_t scratch_bytes;
};

/* The fate of what leaves the session by admission. */
static inline const struct fate *watch_fate(const struct session *s)
{
    return fate_at(s->rules.admission.fate);
}

#endif
