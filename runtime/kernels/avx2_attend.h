/* avx2_attend.h - the two inner passes of attention over one block, and
 * attention with other ones than those of AVX2 (avx512_attend.c).
 *
 * A block is up to KV_BLOCK entries in up to four units. Both passes read
 * either the stored form of the units (few rows) or, when kv is set, convert
 * it to float32 there first and use that for all rows; the bits are the same.
 * int8 keys and values are used as plain integers: their scales are applied
 * to scores and weights by the caller.
 *
 * While a block is worked on, the next one is fetched into the cache a few
 * lines at a time: units lie anywhere in memory, where the processor's own
 * prefetching does not find them.
 *
 * Threads: any, on disjoint outputs; no state.
 */
#ifndef RUNTIME_KERNELS_AVX2_ATTEND_H
#define RUNTIME_KERNELS_AVX2_ATTEND_H

#include <immintrin.h>
#include <stdint.h>

#include "base/kv_layout.h"
#include "runtime/kernels/ops.h"

enum { ATTEND_UNITS = KV_BLOCK / KV_UNIT };

struct attend_block {
    const struct kv_layout *layout;
    const uint8_t *unit[ATTEND_UNITS];
    const uint8_t *next[ATTEND_UNITS]; /* what to fetch meanwhile */
    int n_units;
    float *kv; /* room for KV_BLOCK * head_dim floats, or NULL */
};

struct attend_rows {
    const float *weight; /* [n][KV_BLOCK] */
    const float *fade;   /* [n] */
    const int *seen;     /* [n]: entries of the block, not falling */
    int n;
    float *state;   /* [n] accumulators of head_dim floats */
    int64_t stride; /* floats between them */
};

/* How scores are made, and states brought up to date; the contracts are those
 * of the two functions below. */
struct attend_passes {
    void (*qk)(const struct attend_block *b, const float *q, int n_rows,
               float *score);
    void (*pv)(const struct attend_block *b, const struct attend_rows *r);
};

/* avx2_attend() and avx2_attend_logits() with these passes. */
void avx2_attend_with(const struct attend_passes *p,
                      const struct attend_args *a, void *scratch);
void avx2_attend_logits_with(const struct attend_passes *p,
                             const struct attend_args *a, float *logit,
                             int64_t stride, void *scratch);

/* score[r * KV_BLOCK + e] = sum over i of q[r * head_dim + i] * key e [i],
 * for r < n_rows and all entries of the block's units. */
void avx2_attend_qk(const struct attend_block *b, const float *q, int n_rows,
                    float *score);

/* state = state * fade + sum over the entries seen of weight * value. */
void avx2_attend_pv(const struct attend_block *b, const struct attend_rows *r);

#define ATTEND_INLINE static inline __attribute__((always_inline))

/* Eight stored elements from p as floats. */
ATTEND_INLINE __m256 attend_load(enum kv_type type, const uint8_t *p)
{
    if (type == KV_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    if (type == KV_Q8_0)
        return _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
    return _mm256_loadu_ps((const float *)(const void *)p);
}

ATTEND_INLINE uint32_t attend_bytes(enum kv_type type)
{
    return type == KV_F16 ? 2 : type == KV_Q8_0 ? 1 : 4;
}

ATTEND_INLINE void attend_fetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* n stored elements (a multiple of 8) to floats. */
ATTEND_INLINE void attend_convert(enum kv_type type, const uint8_t *from,
                                  uint32_t n, float *to)
{
    uint32_t size = attend_bytes(type);
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(to + i, attend_load(type, from + i * size));
}

/* The same of a type that is known at run time only. */
ATTEND_INLINE void attend_unpack(enum kv_type type, const uint8_t *from,
                                 uint32_t n, float *to)
{
    if (type == KV_F16)
        attend_convert(KV_F16, from, n, to);
    else if (type == KV_Q8_0)
        attend_convert(KV_Q8_0, from, n, to);
    else
        attend_convert(KV_F32, from, n, to);
}

/* Part i of n of the lines of all next units, each unit_bytes long: fetching
 * is spread over the groups of rows, since a burst would only wait for
 * memory. */
ATTEND_INLINE void attend_fetch_part(const uint8_t *const *next, int n_units,
                                     uint32_t unit_bytes, uint32_t i,
                                     uint32_t n)
{
    uint32_t lines = unit_bytes / KV_ALIGN, all = lines * (uint32_t)n_units;
    uint32_t to = all * (i + 1) / n;
    for (uint32_t line = all * i / n; line < to; line++)
        attend_fetch(next[line / lines] + line % lines * KV_ALIGN);
}

#endif
