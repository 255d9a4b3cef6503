/* merge.h - SelKV and its rivals: what becomes of the cache entries that leave
 * when a prompt is admitted (docs/design/algorithms.md 2). This header holds
 * what all stages share: options and counts.
 *
 * Stages 1 and 2, importance and which entries stay, are those of the policy
 * selkv-window (cache/policy/). Here is one file a stage, in the order in which
 * they run:
 *
 *   routing       which of those that stay takes in one that leaves
 *   blend         the gate, and the value that comes out
 *   compensation  the bias that gives the host the attention of its guests
 *
 * A *host* is an entry that stays and takes others in, a *guest* one that
 * leaves. Which entries leave (stages 1 and 2, or any other ranking) and what
 * happens to them (stages 3 to 5, or any other fate, fate.h) are separate
 * questions. apply.h runs a fate over lists as they lie in KV units.
 *
 * All of it are pure functions over the caller's arrays: float32 arithmetic
 * in a fixed order, no allocation, time linear in the prompt for the three
 * stages. The same input gives the same bytes.
 *
 * Merging once more. A prompt may pass several boundaries before it is
 * computed, and a session may be admitted again with its next turn. Then an
 * entry that stayed at an earlier boundary is like any other: it may be a host
 * again, or a guest that takes along what was merged into it. Its mass is
 * that of the present window, and since its bias was part of the logits, the
 * mass holds what the bias gives it. So values blend as ever, with the value
 * stored now, and biases add: alpha log R to the bias that is there.
 *
 * Threads: any; nothing is kept.
 */
#ifndef MERGE_MERGE_H
#define MERGE_MERGE_H

#include <stdbool.h>
#include <stdint.h>

/* Buckets of positions: guests and hosts meet only inside one. */
enum { MERGE_BUCKET = 32 };

struct merge_options {
    uint32_t n_window; /* last queries of the prompt that measure mass */
    /* One R for all KV heads of a layer, the mean; else each has its own. */
    bool mean_ratio;
    float alpha; /* bias = alpha log R */
    /* Guards against hosts that the window hardly looks at, whose value would
     * become that of their guests: a host needs at least min_mass times the
     * mass of a guest, and R counts as max_ratio where it is more. 0 and
     * INFINITY: no guard. */
    float min_mass;
    float max_ratio;
    /* Of the other fates: */
    float min_cosine; /* kvmerger: of keys of neighbours in one set */
    uint32_t n_next;  /* cam: entries that follow and take one in */
    uint64_t seed;    /* cam */
};

/* What a server runs: R for each head, guards on. The SelKV paper (arXiv
 * 2607.16213) has one R a layer (mean_ratio) and no guards. */
struct merge_options merge_options_default(void);

/* What a merge did; counts add over lists (merge_counts_add). */
struct merge_counts {
    uint64_t evicted; /* entries that leave */
    uint64_t routed;  /* of these: found a host */
    uint64_t merged;  /* of these: have a share in what is stored now */
    uint64_t hosts;   /* entries that changed */
    double gate_sum;  /* of the gates of all routed; 0 where a guard held one
                       * off. Fates without a gate: the weight, or 1 */
    float log_ratio;  /* largest log R of one merge, before max_ratio */
};

void merge_counts_add(struct merge_counts *to, const struct merge_counts *c);

/* routed / evicted, and the mean gate of the routed; 0 when there are none. */
double merge_routed_share(const struct merge_counts *c);
double merge_mean_gate(const struct merge_counts *c);

#endif
