#include "merge/importance.h"

#include <assert.h>
#include <string.h>

void importance_mass(const float *window, uint32_t n_rows, uint32_t n,
                     float *mass)
{
    memset(mass, 0, n * sizeof(*mass));
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < n; i++)
            mass[i] += window[(size_t)r * n + i];
}

/* Every mean is a sum of its own: a running sum would carry the rounding of
 * all entries before. */
void importance_of(const float *mass, const float *value_norm, uint32_t n,
                   uint32_t n_pool, float *out)
{
    assert(n_pool % 2 == 1);
    uint32_t half = n_pool / 2;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = i > half ? i - half : 0;
        uint32_t to = n - i > half ? i + half + 1 : n;
        float sum = 0.0f;
        for (uint32_t k = from; k < to; k++)
            sum += mass[k] * value_norm[k];
        out[i] = sum / (float)n_pool;
    }
}
