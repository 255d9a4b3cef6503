/* fate.h - what happens to the entries that leave a list: one interface for
 * dropping them, for SelKV's merge, and for the merges it is compared with.
 *
 * A fate is a pure function over one (layer, KV head) list, or over one bucket
 * of it: it reads which entries stay and which leave, and says what those that
 * stay hold afterwards. It always reads what is stored before, never what
 * another merge of the same pass has made of it.
 *
 *   drop        nothing: what leaves is forgotten
 *   selkv       values into a host of the same bucket, gated, with a bias
 *   lookm       keys and values into the entry with the most similar key
 *   kvmerger    keys and values of runs of similar keys, by a Gaussian kernel
 *   weightedkv  values into the next entry that stays, by mean attention
 *   cam         values into the next entries, by chance, in parts
 *
 * What each does exactly, and where its batch form had to be chosen, is said
 * in its file; the formulas are those of docs/design/methods.md 5.
 *
 * Threads: any; tables are constant.
 */
#ifndef MERGE_FATE_H
#define MERGE_FATE_H

#include <stddef.h>
#include <stdint.h>

#include "merge/merge.h"

/* What a fate reads beside positions and states. */
enum fate_need {
    FATE_VALUES = 1 << 0, /* value */
    FATE_KEYS = 1 << 1,   /* key */
    FATE_MASS = 1 << 2,   /* mass */
    FATE_BAND = 1 << 3,   /* band */
    FATE_COLUMN = 1 << 4  /* column, n_seen: attention of every prompt row */
};

enum fate_state {
    FATE_LEAVES,
    FATE_STAYS,
    FATE_FIXED /* stays and must not change: others use it too */
};

/* One list, or one bucket of it, in order of position. What the fate does not
 * need may be NULL. */
struct fate_list {
    uint32_t n, head_dim; /* head_dim: a multiple of 8 */
    uint32_t id;          /* layer * KV heads + head: for random numbers */
    uint32_t n_seen;      /* tokens so far: all positions are below */
    const int32_t *pos;   /* [n], ascending */
    const uint8_t *state; /* [n] of enum fate_state */
    const float *value;   /* [n][head_dim] as stored */
    const float *key;     /* [n][head_dim] as stored, after RoPE */
    const float *mass;    /* [n] attention of the window */
    const float *column;  /* [n] attention of all rows, summed over the group */
    const uint16_t *band; /* [n][BAND_CELLS] (band.h) */
};

enum { FATE_NEW_VALUE = 1, FATE_NEW_KEY = 2 };

/* What the entries that stay hold afterwards. The caller clears `changed` and
 * sets `ratio` to 1 before; values and keys are only written where `changed`
 * says so. */
struct fate_result {
    uint8_t *changed; /* [n] FATE_NEW_VALUE, FATE_NEW_KEY */
    float *value;     /* [n][head_dim] */
    float *key;       /* [n][head_dim]; only fates with new_keys write it */
    float *ratio;     /* [n] R >= 1: attention that the entry deserves for its
                       * guests, by its own; compensation.h */
    struct merge_counts counts; /* added to */
};

struct fate {
    const char *name;
    uint32_t needs; /* of enum fate_need */
    bool by_bucket; /* buckets do not see each other */
    bool new_keys;
    bool has_ratio; /* R may be more than 1 */
    /* Marks the entries whose mass run() will read; NULL: none or all. Reads
     * neither masses nor values. `want` is [n] zeros; scratch as for run(). */
    void (*wants)(const struct fate_list *l, uint8_t *want, void *scratch);
    /* Scratch of run() for lists of up to n entries. */
    size_t (*scratch_bytes)(uint32_t n, uint32_t head_dim);
    /* `scratch` is aligned as malloc aligns. */
    void (*run)(const struct fate_list *l, const struct merge_options *o,
                struct fate_result *out, void *scratch);
};

/* The lists of a layer are merged together, because their R is one. */
static inline bool fate_is_by_layer(const struct fate *f,
                                    const struct merge_options *o)
{
    return f->has_ratio && o->mean_ratio;
}

/* NULL when no fate has that name; "merge" is selkv. */
const struct fate *fate_find(const char *name);
/* In the order above, NULL past the end. */
const struct fate *fate_at(uint32_t i);

#endif
