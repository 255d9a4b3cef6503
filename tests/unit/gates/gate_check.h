/* gate_check.h - what the tests of gates share: random ones, and their
 * formula (gates/gate.h) in double precision, written straight from it.
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_GATE_CHECK_H
#define TESTS_GATE_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/rng.h"
#include "gates/gate.h"

/* Close to a normal distribution of variance 1: a sum of uniforms. */
static inline float gate_check_normal(struct rng *r)
{
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += rng_float(r);
    return s - 6.0f;
}

/* Each matrix keeps the size of what it reads, so that gates differ between
 * tokens; c3 is around `last`. The layers' last projections differ too. */
static inline struct gate *gate_check_random(const struct gate_shape *s,
                                             float last, uint64_t seed)
{
    struct gate *g = NULL;
    struct rng r;
    rng_seed(&r, seed);
    assert_int_equal(gate_new(&g, s, NULL), OK);
    const struct gate_parts *at = &g->parts;
    for (uint32_t l = 0; l < s->n_layers; l++) {
        float *p = gate_layer(g, l);
        for (size_t i = 0; i < at->n; i++) {
            bool bias = (i >= at->c1 && i < at->w2) ||
                        (i >= at->c2 && i < at->w3) || i >= at->c3;
            float inputs = (float)(i < at->c1 ? s->n_embd : s->width);
            p[i] = gate_check_normal(&r) * (bias ? 0.1f : 1.0f / sqrtf(inputs));
            if (i >= at->c3)
                p[i] += last;
        }
    }
    return g;
}

/* y[n_out] = W x + c */
static inline void gate_check_product(double *y, const float *w, const float *c,
                                      const double *x, uint32_t n_out,
                                      uint32_t n_in)
{
    for (uint32_t i = 0; i < n_out; i++) {
        y[i] = (double)c[i];
        for (uint32_t k = 0; k < n_in; k++)
            y[i] += (double)w[(size_t)i * n_in + k] * x[k];
    }
}

static inline void gate_check_silu(double *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] /= 1.0 + exp(-x[i]);
}

static inline double gate_check_log_sigmoid(double z)
{
    return z > 0 ? -log1p(exp(-z)) : z - log1p(exp(z));
}

/* log_beta[n_kv_heads] of one token whose attention input is x[n_embd]. */
static inline void gate_check_log_beta(const struct gate *g, uint32_t layer,
                                       const double *x, double *log_beta)
{
    const struct gate_shape *s = &g->shape;
    const struct gate_parts *at = &g->parts;
    const float *p = gate_layer(g, layer);
    double *h1 = malloc(sizeof(double) * s->width);
    double *h2 = malloc(sizeof(double) * s->width);
    const double *last = h1;
    assert_non_null(h1);
    assert_non_null(h2);
    gate_check_product(h1, p + at->w1, p + at->c1, x, s->width, s->n_embd);
    gate_check_silu(h1, s->width);
    if (s->kind == GATE_RG10) {
        gate_check_product(h2, p + at->w2, p + at->c2, h1, s->width, s->width);
        gate_check_silu(h2, s->width);
        last = h2;
    }
    gate_check_product(log_beta, p + at->w3, p + at->c3, last, s->n_kv_heads,
                       s->width);
    for (uint32_t h = 0; h < s->n_kv_heads; h++)
        log_beta[h] = gate_check_log_sigmoid(log_beta[h]);
    free(h1);
    free(h2);
}

#endif
