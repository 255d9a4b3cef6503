#include "runtime/kernels/avx2.h"

#include <immintrin.h>
#include <string.h>

#include "runtime/kernels/avx2_tile.h"

/* Products of float32 activations with weights of floating point, straight
 * from the file's rows. Each output has one vector of partial sums over its
 * columns (lane = column modulo 8, in order of the columns), folded at the
 * end; columns past the last whole vector are added to it as a vector filled
 * up with zeros. Rows and activation rows are blocked 4 x 2; the chain of an
 * output does not depend on it. */

enum { LANES = 8, W_ROWS = 4, X_ROWS = 2 };

AVX2_INLINE __m256 load_weights(enum dtype type, const uint8_t *w, int64_t i)
{
    if (type == DTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)w + i);
    __m128i h = _mm_loadu_si128((const __m128i *)(w + 2 * i));
    if (type == DTYPE_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

AVX2_INLINE float fold(__m256 v)
{
    __m128 s =
        _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* n_w rows of weights w[] times n_x activation rows. */
AVX2_INLINE void dot_block(enum dtype type, int n_w, int n_x,
                           const uint8_t *const w[W_ROWS],
                           const float *const x[X_ROWS], int64_t cols,
                           float out[X_ROWS][W_ROWS])
{
    enum { BYTES = LANES * sizeof(float) };
    __m256 acc[X_ROWS][W_ROWS];
#pragma GCC unroll 4
    for (int t = 0; t < n_x; t++)
#pragma GCC unroll 4
        for (int r = 0; r < n_w; r++)
            acc[t][r] = _mm256_setzero_ps();
    /* Four short streams are no pattern that the CPU foresees, and a single
     * activation row waits for memory all the time. So while one block of
     * rows is read, the next, which lies behind it, is fetched in order. */
    const int64_t step = W_ROWS * LANES * (type == DTYPE_F32 ? 4 : 2);
    const char *next = (const char *)w[0] + cols / LANES * step;
    int64_t i = 0;
    for (; i + LANES <= cols; i += LANES) {
        if (n_x == 1) {
            _mm_prefetch(next, _MM_HINT_T0);
            if (type == DTYPE_F32)
                _mm_prefetch(next + step / 2, _MM_HINT_T0);
            next += step;
        }
#pragma GCC unroll 4
        for (int r = 0; r < n_w; r++) {
            __m256 v = load_weights(type, w[r], i);
#pragma GCC unroll 4
            for (int t = 0; t < n_x; t++)
                acc[t][r] =
                    _mm256_fmadd_ps(v, _mm256_loadu_ps(x[t] + i), acc[t][r]);
        }
    }
    if (i < cols) {
        size_t n = (size_t)(cols - i), bytes = type == DTYPE_F32 ? 4 : 2;
#pragma GCC unroll 4
        for (int r = 0; r < n_w; r++) {
            uint8_t end[BYTES] = {0};
            memcpy(end, w[r] + (size_t)i * bytes, n * bytes);
            __m256 v = load_weights(type, end, 0);
#pragma GCC unroll 4
            for (int t = 0; t < n_x; t++) {
                float rest[LANES] = {0};
                memcpy(rest, x[t] + i, n * sizeof(float));
                acc[t][r] =
                    _mm256_fmadd_ps(v, _mm256_loadu_ps(rest), acc[t][r]);
            }
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < n_x; t++)
#pragma GCC unroll 4
        for (int r = 0; r < n_w; r++)
            out[t][r] = fold(acc[t][r]);
}

AVX2_INLINE void rows_times(enum dtype type, const struct weight *w,
                            const struct acts *a, int64_t row, int64_t row1,
                            float *y, int64_t ldy)
{
    int64_t bytes = w->cols * (type == DTYPE_F32 ? 4 : 2);
    int64_t n_w = row1 - row < W_ROWS ? row1 - row : W_ROWS;
    const uint8_t *rows[W_ROWS];
    /* Rows past the end repeat the last one, and are not stored. */
    for (int64_t r = 0; r < W_ROWS; r++)
        rows[r] =
            (const uint8_t *)w->raw + (row + (r < n_w ? r : n_w - 1)) * bytes;
    for (int64_t t = 0; t < a->n; t += X_ROWS) {
        const float *x = a->x + t * a->cols;
        const float *const pair[X_ROWS] = {x, x + a->cols};
        int64_t n_x = a->n - t < X_ROWS ? a->n - t : X_ROWS;
        float out[X_ROWS][W_ROWS];
        if (n_x == X_ROWS)
            dot_block(type, W_ROWS, X_ROWS, rows, pair, w->cols, out);
        else
            dot_block(type, W_ROWS, 1, rows, pair, w->cols, out);
        for (int64_t k = 0; k < n_x; k++)
            memcpy(y + (t + k) * ldy + row, out[k],
                   sizeof(float) * (size_t)n_w);
    }
}

void avx2_matmul_float(const struct weight *w, const struct acts *a,
                       int64_t row0, int64_t row1, float *y, int64_t ldy)
{
    for (int64_t r = row0; r < row1; r += W_ROWS) {
        if (w->type == DTYPE_F32)
            rows_times(DTYPE_F32, w, a, r, row1, y, ldy);
        else if (w->type == DTYPE_F16)
            rows_times(DTYPE_F16, w, a, r, row1, y, ldy);
        else
            rows_times(DTYPE_BF16, w, a, r, row1, y, ldy);
    }
}
