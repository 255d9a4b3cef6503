#include "runtime/kernels/avx2.h"
#include "runtime/kernels/avx2_many.h"
#include "runtime/kernels/avx512.h"

/* One vpdpwssd advances 16 weight rows by 2 columns: the 16 lanes of 32 bits
 * are the 16 rows of a row tile, and a pair of activations is broadcast from
 * memory. Two tiles of activations at a time, so that every vector of weights
 * that was loaded is used eight times, and the eight sums do not wait for
 * one another. */

enum { TILES = 2, AT_ONCE = TILES * OPS_ACT_TILE };

/* s plus the products of codes with the pair at q. In assembly, as GCC
 * broadcasts the pair with an instruction of its own. */
AVX2_INLINE __m512i add_pair(__m512i s, __m512i codes, const int16_t *q)
{
    __asm__("vpdpwssd %[pair]%{1to16%}, %[codes], %[s]"
            : [s] "+v"(s)
            : [codes] "v"(codes), [pair] "m"(*(const int16_t(*)[2])q));
    return s;
}

/* s[t] += the sums of 8 steps, from step `step` on, of n rows. */
AVX2_INLINE void add_8_steps(int n, const int16_t w[AVX2_STEPS][2][16],
                             const struct avx2_act *const a[TILES], int step,
                             __m512i s[AT_ONCE])
{
#pragma GCC unroll 8
    for (int i = step; i < step + 8; i++) {
        __m512i codes = _mm512_load_si512(w[i]);
#pragma GCC unroll 8
        for (int t = 0; t < n; t++) {
            int r = t % OPS_ACT_TILE;
            s[t] = add_pair(s[t], codes, &a[t / OPS_ACT_TILE]->q[r][2 * i]);
        }
    }
}

/* acc = fma(s, d_weight * d_activation, acc); s is zero afterwards. */
AVX2_INLINE void add_scaled(int n, const float d[OPS_ROW_TILE],
                            const struct avx2_act *const a[TILES],
                            __m512i s[AT_ONCE], __m512 acc[AT_ONCE])
{
    __m512 dw = _mm512_load_ps(d);
#pragma GCC unroll 8
    for (int t = 0; t < n; t++) {
        __m512 da = _mm512_set1_ps(a[t / OPS_ACT_TILE]->d[t % OPS_ACT_TILE]);
        acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]),
                                 _mm512_mul_ps(dw, da), acc[t]);
        s[t] = _mm512_setzero_si512();
    }
}

/* n: OPS_ACT_TILE or AT_ONCE. */
AVX2_INLINE void chunk_times(int n, enum avx2_kind kind,
                             const struct avx2_chunk *c,
                             const struct avx2_act *first, int64_t stride,
                             int n_blocks, float out[][OPS_ROW_TILE])
{
    __m512 acc[AT_ONCE];
    __m512i s[AT_ONCE];
#pragma GCC unroll 8
    for (int t = 0; t < n; t++) {
        acc[t] = _mm512_load_ps(out[t]);
        s[t] = _mm512_setzero_si512();
    }
    for (int i = 0; i < n_blocks; i++) {
        const struct avx2_act *const a[TILES] = {
            &first[i], n > OPS_ACT_TILE ? &first[stride + i] : &first[i]};
        add_8_steps(n, c->q[i], a, 0, s);
        if (kind == AVX2_PARTS)
            add_scaled(n, c->d[i][0], a, s, acc);
        add_8_steps(n, c->q[i], a, 8, s);
        add_scaled(n, c->d[i][kind == AVX2_PARTS], a, s, acc);
        if (kind != AVX2_MIN)
            continue;
        __m512 m = _mm512_load_ps(c->m[i]);
#pragma GCC unroll 8
        for (int t = 0; t < n; t++)
            acc[t] = _mm512_fmadd_ps(
                m, _mm512_set1_ps(a[t / OPS_ACT_TILE]->s[t % OPS_ACT_TILE]),
                acc[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < n; t++)
        _mm512_store_ps(out[t], acc[t]);
}

#define TIMES(KIND)                                                            \
    case KIND:                                                                 \
        if (n > OPS_ACT_TILE)                                                  \
            chunk_times(AT_ONCE, KIND, c, a, stride, n_blocks, acc);           \
        else                                                                   \
            chunk_times(OPS_ACT_TILE, KIND, c, a, stride, n_blocks, acc);      \
        break;

static void times_up_to_8(enum avx2_kind kind, int64_t n,
                          const struct avx2_chunk *c, const struct avx2_act *a,
                          int64_t stride, int n_blocks,
                          float acc[][OPS_ROW_TILE])
{
    switch (kind) {
        TIMES(AVX2_PLAIN)
        TIMES(AVX2_MIN)
        TIMES(AVX2_PARTS)
    }
}

/* So many activation rows are multiplied straight from the packed codes. */
enum { FEW_MAX = 2 };

void avx512_matmul(const struct weight *w, const struct acts *a, int64_t row0,
                   int64_t row1, float *y, int64_t ldy)
{
    if (w->packed == NULL)
        avx2_matmul_float(w, a, row0, row1, y, ldy);
    else if (a->n <= FEW_MAX)
        avx2_matmul_few(w, a, row0, row1, y, ldy);
    else
        avx2_many(w, a, row0, row1, y, ldy, AT_ONCE, times_up_to_8);
}
