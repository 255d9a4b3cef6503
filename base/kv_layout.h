/* kv_layout.h - how 16 cached entries of one (session, layer, KV head) lie in
 * memory. The one description that cache (which owns the memory) and kernels
 * (which read and write it) share.
 *
 * A unit holds KV_UNIT entries in two places under one id:
 *
 *   data block (what attention streams), one contiguous run of bytes:
 *     K     [KV_UNIT / KV_LANES][head_dim][KV_LANES]   f16, f32 or int8
 *     V     [KV_UNIT][head_dim]                        f16, f32 or int8
 *     scale of K and of V, one f32 an entry each       (q8_0 only)
 *     bias  [KV_UNIT] f32, added to the attention logit after scaling
 *   struct kv_meta (what only ranking and re-positioning read)
 *
 * Eight keys lie side by side so that the scores of eight entries grow in one
 * vector register, with no horizontal sum. Keys are stored after RoPE.
 *
 * Slots past the length of a list may hold anything finite; a kernel must
 * give them weight zero. (Arena memory starts as zeros, and only finite
 * values are ever stored.)
 *
 * Threads: any; constants only.
 */
#ifndef BASE_KV_LAYOUT_H
#define BASE_KV_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_type { KV_F16, KV_Q8_0, KV_F32 };

enum {
    KV_UNIT = 16,  /* entries of a unit */
    KV_LANES = 8,  /* keys side by side */
    KV_ALIGN = 64, /* data blocks start on a cache line */
    /* Attention works through a list in blocks of this many entries (one
     * maximum and one rescale a block) and in segments of that many (each a
     * partial result of its own, joined in order). Both are properties of the
     * list alone, so that a result never depends on threads or batch. */
    KV_BLOCK = 64,
    KV_SEGMENT = 512
};

/* Bookkeeping beside the data block. 16 bytes an entry, with the bias 20. */
struct kv_meta {
    float log_beta[KV_UNIT]; /* log retention, <= 0; 0 = never fades; NaN:
                                it is still to come */
    /* What a policy that looks at more than retention and age has said of it
     * (cache/policy/standing.h), <= 0; 0 = nothing yet, it stays. */
    float standing[KV_UNIT];
    int32_t pos[KV_UNIT];      /* logical position: tokens seen before it */
    int32_t rope_pos[KV_UNIT]; /* position its key was rotated to */
};

struct kv_layout {
    enum kv_type type;
    uint32_t head_dim; /* a multiple of 8 */
    uint32_t elem_bytes;
    /* Byte offsets inside a data block. Without scales k_scale = v_scale = 0
     * and they must not be read. */
    uint32_t k, v, k_scale, v_scale, bias;
    uint32_t data_bytes; /* a multiple of KV_ALIGN */
};

void kv_layout_init(struct kv_layout *l, enum kv_type type, uint32_t head_dim);

/* True of an entry whose log_beta is still to come: it is a NaN, which gates
 * never give (model_batch.defer_gates). Such an entry stays where it is. */
static inline bool kv_is_deferred(const struct kv_meta *m, uint32_t slot)
{
    return m->log_beta[slot] != m->log_beta[slot];
}

/* "f16", "q8_0", "f32". */
const char *kv_type_name(enum kv_type type);

/* Index (in elements, from offset k) of dimension i of the key in slot e. */
static inline size_t kv_key_index(const struct kv_layout *l, uint32_t e,
                                  uint32_t i)
{
    return ((size_t)(e / KV_LANES) * l->head_dim + i) * KV_LANES + e % KV_LANES;
}

#endif
