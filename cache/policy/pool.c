#include <assert.h>
#include <math.h>

#include "cache/policy/policy_internal.h"

static float pool_at(const struct policy_params *p, const float *x, uint32_t n,
                     uint32_t i)
{
    uint32_t half = p->n_pool / 2;
    uint32_t from = i > half ? i - half : 0;
    uint32_t to = n - i > half + 1 ? i + half + 1 : n;
    float best = -INFINITY;
    double sum = 0;
    for (uint32_t j = from; j < to; j++) {
        best = x[j] > best ? x[j] : best;
        sum += (double)x[j];
    }
    return p->pooling == POLICY_POOL_MAX ? best : (float)(sum / p->n_pool);
}

void policy_pool(const struct policy_params *p, const float *x, uint32_t n,
                 float *out)
{
    assert(p->n_pool % 2 == 1);
    for (uint32_t i = 0; i < n; i++)
        out[i] = pool_at(p, x, n, i);
}
