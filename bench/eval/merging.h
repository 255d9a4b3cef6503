/* merging.h - what becomes of the entries of a cache that a choice does not
 * keep, before they are taken out: its fate, run over every list.
 *
 * The code is the server's (merge/apply.h, and the probe that watched the
 * prompt); only where rows of the band are kept differs. Masses are those of
 * the last queries, whole rows of the band and columns are there by position.
 *
 * Threads: one caller; the lists are done on the pool of threads, with the
 * same bits for any number of them.
 */
#ifndef BENCH_EVAL_MERGING_H
#define BENCH_EVAL_MERGING_H

#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "bench/eval/choice.h"
#include "cache/table.h"
#include "runtime/model/probe.h"

struct merging {
    const struct choice *how; /* its fate and settings */
    struct table *table;      /* units of its own */
    const struct probe *probe;
    uint32_t n_seen;
    const uint16_t *gone; /* masks by unit, as for compact_table() */
};

/* Parts of a probe (of enum probe_part) that fates with these needs read. */
uint32_t merging_parts(uint32_t fate_needs);

/* Changes what stays; adds to *counts. ERR_NOMEM: some lists are done. */
MUST_CHECK enum err merging_run(const struct merging *m, struct workers *w,
                                struct merge_counts *counts);

#endif
