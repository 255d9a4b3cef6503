/* avx2_exp.h - e^x of eight floats.
 *
 * Relative error below 2 units in the last place where the result is a normal
 * number; subnormal results are rounded once more. 0 from about -103.98 down
 * (exactly 0 for -infinity), infinity from about 88.73 up, NaN stays NaN.
 *
 * e^x = 2^n e^r with n = round(x / ln 2), and e^r = 1 + r + r^2 q(r) for |r|
 * <= ln(2) / 2, where q interpolates (e^r - 1 - r) / r^2 in the five
 * Chebyshev nodes of that range (error of e^r: 1.1e-8, found by evaluating
 * both at 10,001 points).
 *
 * Threads: any; a pure function.
 */
#ifndef RUNTIME_KERNELS_AVX2_EXP_H
#define RUNTIME_KERNELS_AVX2_EXP_H

#include <immintrin.h>

static inline __m256 avx2_power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

static inline __m256 avx2_exp(__m256 x)
{
    const __m256 log2_e = _mm256_set1_ps(0x1.715476p+0f);
    /* ln 2 in two parts; the first has so few bits that n times it is
     * exact. */
    const __m256 ln2_high = _mm256_set1_ps(0x1.62e4p-1f);
    const __m256 ln2_low = _mm256_set1_ps(0x1.7f7d1cp-20f);
    /* min and max return their second operand when one is NaN. */
    x = _mm256_min_ps(_mm256_set1_ps(89.0f), x);
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, log2_e),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, ln2_high, x);
    r = _mm256_fnmadd_ps(n, ln2_low, r);
    __m256 q = _mm256_set1_ps(0x1.6d117cp-10f);
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0x1.120be2p-7f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0x1.555518p-5f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0x1.5554dcp-3f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0.5f));
    __m256 e = _mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r);
    e = _mm256_add_ps(e, _mm256_set1_ps(1.0f));
    /* Two factors: 2^n itself may be no float where the result is one. */
    __m256i all = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(all, 1);
    e = _mm256_mul_ps(e, avx2_power_of_two(half));
    return _mm256_mul_ps(e, avx2_power_of_two(_mm256_sub_epi32(all, half)));
}

#endif
