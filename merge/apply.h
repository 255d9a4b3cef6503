/* apply.h - runs a fate over a list as it lies in KV units, after somebody
 * has chosen what leaves and before the gaps are closed.
 *
 * Entries may lie in any order: they are brought into the order of their
 * positions first (linear). Fates that work bucket by bucket need scratch for
 * one bucket and 8 bytes an entry, the others for the whole list.
 *
 * What changes is the value of a host (a fate with new_keys: its key too) and
 * its bias; everything else in the units stays as it is, bit for bit, also the
 * entries that leave. Units that others use are the caller's to name (fixed).
 *
 * In two steps, because the paper's form of the bias needs R of all KV heads
 * of a layer: apply_values() for each list, then apply_bias() for each. Where
 * R is one for a layer (fate_is_by_layer()), apply_add_ratios() follows on the
 * first for each list of it, and apply_mean_ratios() comes before the second.
 *
 * Threads: any, on different lists at once; nothing is kept.
 */
#ifndef MERGE_APPLY_H
#define MERGE_APPLY_H

#include <stddef.h>
#include <stdint.h>

#include "base/kv_layout.h"
#include "merge/fate.h"
#include "runtime/kernels/ops.h"

/* The mass of an entry of the list, on demand. */
typedef float (*apply_mass_fn)(void *user, uint32_t entry);

/* One list. Arrays by entry are in the order of the list. */
struct apply_list {
    const struct kv_layout *layout;
    uint8_t *const *unit;              /* [units] data blocks */
    const struct kv_meta *const *meta; /* [units] */
    uint32_t n;                        /* entries */
    uint32_t id;                       /* fate.h */
    uint32_t n_seen;                   /* tokens so far */
    const uint16_t *leaves; /* [units] bit e: the entry in slot e leaves */
    const uint16_t *fixed;  /* [units] bit e: must not change; NULL: none */
    /* By entry; what the fate does not need may be NULL. Instead of masses
     * there can be a function that measures them: it is asked for the entries
     * that matter (a tenth, where a tenth leaves) and once for each. */
    const float *mass, *column;
    apply_mass_fn mass_of;
    void *mass_user;
    const uint16_t *band; /* [n][BAND_CELLS] */
};

struct apply_how {
    const struct fate *fate;
    const struct merge_options *options;
    const struct ops *ops;
};

/* For lists of up to n entries; aligned as malloc aligns. */
size_t apply_scratch_bytes(const struct fate *fate, uint32_t n,
                           uint32_t head_dim);

/* Rewrites the hosts' values (and keys), and sets ratio[n], R of each entry,
 * 1 where it took nothing in. Adds to *c. */
void apply_values(const struct apply_list *l, const struct apply_how *how,
                  float *ratio, struct merge_counts *c, void *scratch);

/* One R for the lists of a layer, by position: the mean over those that keep
 * the token. sum and n_summed are [n_seen], of zeros before the first list. */
void apply_add_ratios(const struct apply_list *l, const float *ratio,
                      float *sum, uint32_t *n_summed);
void apply_mean_ratios(const struct apply_list *l, float *ratio,
                       const float *sum, const uint32_t *n_summed);

/* Adds the bias that the ratios ask for to entries that stay and may change.
 */
void apply_bias(const struct apply_list *l, const struct merge_options *o,
                const float *ratio);

#endif
