#include "runtime/kernels/ref.h"

#include <stddef.h>

#include "runtime/kernels/quant.h"

enum {
    CHUNK = 256, /* a multiple of every type's block */
    LANES = 8,   /* independent sums, so that a compiler may use vectors */
    TOKENS = 16  /* activation rows that share one dequantised chunk */
};

uint64_t ref_weight_bytes(const struct weight *w)
{
    (void)w;
    return 0;
}

void ref_weight_pack(const struct weight *w, int64_t row0, int64_t row1)
{
    (void)w;
    (void)row0;
    (void)row1;
}

uint64_t ref_act_bytes(int64_t n, int64_t cols)
{
    (void)n;
    (void)cols;
    return 0;
}

void ref_act_pack(const struct acts *a, int64_t row0, int64_t row1)
{
    (void)a;
    (void)row0;
    (void)row1;
}

static const uint8_t *row_start(const struct weight *w, int64_t row)
{
    const struct dtype_info *info = dtype_info(w->type);
    uint64_t row_bytes =
        (uint64_t)w->cols / info->block_elems * info->block_bytes;
    return (const uint8_t *)w->raw + (uint64_t)row * row_bytes;
}

/* The sum over one chunk, always in the same order for the same length. */
static double dot_chunk(const float *w, const float *x, int64_t n)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += w[i + j] * x[i + j];
    double sum = 0;
    for (int j = 0; j < LANES; j++)
        sum += (double)lane[j];
    for (; i < n; i++)
        sum += (double)w[i] * (double)x[i];
    return sum;
}

/* One weight row against up to TOKENS activation rows. */
static void dot_row(const struct weight *w, const uint8_t *src, const float *x,
                    int n_tokens, float *y, int64_t ldy)
{
    const struct dtype_info *info = dtype_info(w->type);
    float chunk[CHUNK];
    double sum[TOKENS] = {0};
    for (int64_t c = 0; c < w->cols; c += CHUNK) {
        int64_t n = w->cols - c < CHUNK ? w->cols - c : CHUNK;
        quant_dequantize(w->type, src, chunk, (size_t)n);
        src += (uint64_t)n / info->block_elems * info->block_bytes;
        for (int t = 0; t < n_tokens; t++)
            sum[t] += dot_chunk(chunk, x + t * w->cols + c, n);
    }
    for (int t = 0; t < n_tokens; t++)
        y[t * ldy] = (float)sum[t];
}

void ref_matmul(const struct weight *w, const struct acts *a, int64_t row0,
                int64_t row1, float *y, int64_t ldy)
{
    for (int64_t t = 0; t < a->n; t += TOKENS) {
        int n_tokens = a->n - t < TOKENS ? (int)(a->n - t) : TOKENS;
        for (int64_t r = row0; r < row1; r++)
            dot_row(w, row_start(w, r), a->x + t * a->cols, n_tokens,
                    y + t * ldy + r, ldy);
    }
}

void ref_get_row(const struct weight *w, int64_t row, float *out)
{
    quant_dequantize(w->type, row_start(w, row), out, (size_t)w->cols);
}
