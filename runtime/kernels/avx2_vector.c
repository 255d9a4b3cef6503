#include "runtime/kernels/avx2.h"

#include <immintrin.h>
#include <string.h>

#include "runtime/kernels/avx2_exp.h"

enum { LANES = 8 };

/* The last n < LANES floats of an array, filled up with zeros, so that an
 * element goes through the same operations wherever it stands. */
static __m256 load_rest(const float *x, int64_t n)
{
    float rest[LANES] = {0};
    memcpy(rest, x, sizeof(float) * (size_t)n);
    return _mm256_loadu_ps(rest);
}

static void store_rest(float *x, __m256 v, int64_t n)
{
    float rest[LANES];
    _mm256_storeu_ps(rest, v);
    memcpy(x, rest, sizeof(float) * (size_t)n);
}

static float fold(__m256 v)
{
    __m128 s =
        _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Four chains of eight lanes each. */
static float sum_of_squares(const float *x, int64_t n)
{
    enum { CHAINS = 4 };
    __m256 sum[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + CHAINS * LANES <= n; i += CHAINS * LANES) {
        for (int c = 0; c < CHAINS; c++) {
            __m256 v = _mm256_loadu_ps(x + i + c * LANES);
            sum[c] = _mm256_fmadd_ps(v, v, sum[c]);
        }
    }
    for (; i < n; i += LANES) {
        __m256 v =
            n - i >= LANES ? _mm256_loadu_ps(x + i) : load_rest(x + i, n - i);
        sum[0] = _mm256_fmadd_ps(v, v, sum[0]);
    }
    return fold(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]),
                              _mm256_add_ps(sum[2], sum[3])));
}

void avx2_rmsnorm(float *out, const float *x, const float *w, int64_t n,
                  float eps)
{
    float mean = sum_of_squares(x, n) / (float)n;
    __m128 root = _mm_sqrt_ss(_mm_set_ss(mean + eps));
    __m256 r = _mm256_set1_ps(1.0f / _mm_cvtss_f32(root));
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), r);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
    if (i < n) {
        __m256 v = _mm256_mul_ps(load_rest(x + i, n - i), r);
        store_rest(out + i, _mm256_mul_ps(v, load_rest(w + i, n - i)), n - i);
    }
}

/* Pairs (i, i + half) of one head. */
static void rotate_halves(float *x, int half, const float *c, const float *s)
{
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        __m256 vc = _mm256_loadu_ps(c + i), vs = _mm256_loadu_ps(s + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, vc, _mm256_mul_ps(b, vs)));
        _mm256_storeu_ps(x + half + i,
                         _mm256_fmadd_ps(a, vs, _mm256_mul_ps(b, vc)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * c[i] - b * s[i];
        x[half + i] = a * s[i] + b * c[i];
    }
}

/* Each of four floats twice: 0 0 1 1 2 2 3 3. */
static __m256 doubled(const float *p)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                    twice);
}

/* Pairs (2i, 2i + 1) of one head. */
static void rotate_neighbours(float *x, int half, const float *c,
                              const float *s)
{
    enum { PAIRS = LANES / 2 };
    int i = 0;
    for (; i + PAIRS <= half; i += PAIRS) {
        __m256 v = _mm256_loadu_ps(x + 2 * i);
        __m256 swapped = _mm256_permute_ps(v, 0xb1);
        __m256 side = _mm256_mul_ps(swapped, doubled(s + i));
        _mm256_storeu_ps(x + 2 * i,
                         _mm256_fmaddsub_ps(v, doubled(c + i), side));
    }
    for (; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * c[i] - b * s[i];
        x[2 * i + 1] = a * s[i] + b * c[i];
    }
}

void avx2_rope(float *x, int n_heads, int head_dim, int n_rot,
               const float *cos_sin, bool interleaved)
{
    int half = n_rot / 2;
    for (int h = 0; h < n_heads; h++, x += head_dim) {
        if (interleaved)
            rotate_neighbours(x, half, cos_sin, cos_sin + half);
        else
            rotate_halves(x, half, cos_sin, cos_sin + half);
    }
}

static __m256 silu_times(__m256 gate, __m256 up)
{
    __m256 one = _mm256_set1_ps(1.0f);
    __m256 e = avx2_exp(_mm256_xor_ps(gate, _mm256_set1_ps(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(one, e)), up);
}

void avx2_silu_mul(float *out, const float *gate, const float *up, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(out + i, silu_times(_mm256_loadu_ps(gate + i),
                                             _mm256_loadu_ps(up + i)));
    if (i < n)
        store_rest(
            out + i,
            silu_times(load_rest(gate + i, n - i), load_rest(up + i, n - i)),
            n - i);
}

void avx2_add(float *x, const float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i),
                                              _mm256_loadu_ps(y + i)));
    for (; i < n; i++)
        x[i] += y[i];
}
