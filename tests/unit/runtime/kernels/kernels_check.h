/* kernels_check.h - what the kernel tests share: which tables to run on, and
 * random inputs.
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_KERNELS_CHECK_H
#define TESTS_KERNELS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/kernels/ops.h"
#include "runtime/kernels/quant.h"

enum { CHECK_TABLES = 3 };

/* Table i, or NULL (with a line on stderr) where this CPU cannot run it. */
static inline const struct ops *check_table(int i)
{
    static const char *const names[CHECK_TABLES] = {"reference", "avx2",
                                                    "avx512"};
    const struct ops *o = ops_find(names[i]);
    if (o == NULL)
        fprintf(stderr, "SKIPPED: this CPU or OS cannot run %s\n", names[i]);
    return o;
}

static inline void *check_alloc(uint64_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* Close to a normal distribution of variance 1: a sum of uniforms. */
static inline float check_normal(struct rng *r)
{
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += rng_float(r);
    return s - 6.0f;
}

static inline void check_fill(struct rng *r, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = check_normal(r);
}

static inline void check_put_f16(uint8_t *at, float x)
{
    uint16_t h = quant_f32_to_f16(x);
    memcpy(at, &h, sizeof(h));
}

static inline float check_scale(struct rng *r)
{
    return (0.5f + rng_float(r)) * 0.01f;
}

/* n elements of random blocks: any bits, but scales of a sane size. */
static inline void check_blocks(struct rng *r, enum dtype type, uint8_t *raw,
                                int64_t n)
{
    const struct dtype_info *info = dtype_info(type);
    for (int64_t i = 0; i < n; i += info->block_elems) {
        for (uint32_t b = 0; b < info->block_bytes; b++)
            raw[b] = (uint8_t)rng_next(r);
        float x = check_normal(r) * 0.1f;
        if (type == DTYPE_F32) {
            memcpy(raw, &x, sizeof(x));
        } else if (type == DTYPE_F16) {
            check_put_f16(raw, x);
        } else if (type == DTYPE_BF16) {
            uint16_t h = quant_f32_to_bf16(x);
            memcpy(raw, &h, sizeof(h));
        } else if (type == DTYPE_Q6_K) {
            check_put_f16(raw + 208, check_scale(r));
        } else {
            check_put_f16(raw, check_scale(r));
            if (type != DTYPE_Q4_0 && type != DTYPE_Q5_0 && type != DTYPE_Q8_0)
                check_put_f16(raw + 2, check_normal(r) * 0.05f);
        }
        raw += info->block_bytes;
    }
}

/* Sum of squared differences over the sum of squares of what is wanted. */
static inline double check_nmse(const float *got, const double *want, int64_t n)
{
    double error = 0, power = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = (double)got[i] - want[i];
        error += e * e;
        power += want[i] * want[i];
    }
    return power > 0 ? error / power : error;
}

#endif
