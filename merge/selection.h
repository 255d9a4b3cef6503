/* selection.h - SelKV stage 2: which entries stay.
 *
 * Of a list in order of position the n_recent last and n_sinks first
 * positions stay, and then the most important until m are kept. On equal
 * importance the later one stays. Protection outranks m: where more entries
 * are protected than m, all of them stay.
 *
 * For a layer with several KV heads the paper takes the union of their sets
 * and trims it to m by the mean importance over the heads: one set of
 * positions for the whole layer (docs/design/algorithms.md 2).
 *
 * Linear in n: a histogram over the bits of the scores finds the m-th.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MERGE_SELECTION_H
#define MERGE_SELECTION_H

#include <stdint.h>

struct selection {
    uint32_t n;         /* entries of a list */
    const int32_t *pos; /* [n], ascending */
    uint32_t n_seen;    /* tokens so far: all positions are below */
    uint32_t m;         /* entries that stay */
    uint32_t n_sinks, n_recent;
};

/* kept[n] becomes 1 for what stays, else 0; returns how many stay. score[n]:
 * higher stays; what is not a number goes first. */
uint32_t selection_of_head(const struct selection *s, const float *score,
                           uint8_t *kept);

/* The same for n_heads lists with the same positions, score[head][n]: one
 * kept[n] for all of them. `mean` is scratch of n floats. */
uint32_t selection_of_layer(const struct selection *s,
                            const float *const *score, uint32_t n_heads,
                            uint8_t *kept, float *mean);

#endif
