/* view_check.h - made-up sequences for the tests of policies.
 *
 * Every field that a policy may read is filled with seeded random numbers of
 * the right range. Threads: one per sequence.
 */
#ifndef TESTS_UNIT_CACHE_POLICY_VIEW_CHECK_H
#define TESTS_UNIT_CACHE_POLICY_VIEW_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/rng.h"
#include "cache/policy/policy.h"

struct made {
    struct policy_view view;
    struct policy_list *list;
    struct arena arena;
    struct rng rng;
};

static inline void *made_array(struct made *m, size_t n, size_t size)
{
    void *p = arena_array(&m->arena, n, size);
    assert_non_null(p);
    return p;
}

static inline float *made_floats(struct made *m, size_t n, float lo, float hi)
{
    float *x = made_array(m, n, sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = lo + (hi - lo) * rng_float(&m->rng);
    return x;
}

/* Rows of a causal softmax over random logits, and the logits' maximum. */
static inline void made_window(struct made *m, struct policy_list *l)
{
    const struct policy_view *v = &m->view;
    float *window = made_floats(m, (size_t)v->n_window * l->n, 0, 0);
    float *peak = made_floats(m, (size_t)v->n_window * l->n, 0, 0);
    for (uint32_t r = 0; r < v->n_window; r++) {
        int64_t at = (int64_t)v->n_seen - v->n_window + r;
        for (uint32_t g = 0; g < v->group; g++) {
            float *x = made_floats(m, l->n, -4, 4);
            double sum = 0;
            for (uint32_t e = 0; e < l->n && l->pos[e] <= at; e++)
                sum += exp((double)x[e]);
            for (uint32_t e = 0; e < l->n; e++) {
                size_t i = (size_t)r * l->n + e;
                bool sees = l->pos[e] <= at;
                window[i] += sees ? (float)(exp((double)x[e]) / sum) : 0;
                if (g == 0 || (sees && x[e] > peak[i]))
                    peak[i] = sees ? x[e] : -INFINITY;
            }
        }
    }
    l->window = window;
    l->peak = peak;
}

/* A list of the n positions in pos, all fields filled. */
static inline void made_list(struct made *m, struct policy_list *l,
                             const int32_t *pos, uint32_t n)
{
    const struct policy_view *v = &m->view;
    uint32_t d = v->head_dim;
    float *key = made_floats(m, (size_t)n * d, -1, 1);
    float *norm = made_floats(m, n, 0, 0);
    float *log_beta = made_floats(m, n, -0.05f, 0);
    for (uint32_t e = 0; e < n; e++) {
        double sum = 0;
        for (uint32_t i = 0; i < d; i++)
            sum += (double)key[e * d + i] * (double)key[e * d + i];
        norm[e] = (float)sqrt(sum);
    }
    *l = (struct policy_list){
        .n = n,
        .first = v->n_entries,
        .pos = pos,
        .log_beta = log_beta,
        .key = key,
        .key_norm = norm,
        .value_norm = made_floats(m, n, 0.1f, 2),
        .column = made_floats(m, n, 0, 9),
        .future_mean = made_floats(m, (size_t)v->group * d, -1, 1),
        .future_cov = made_floats(m, (size_t)v->group * d * d, -0.1f, 0.1f)};
    made_window(m, l);
    m->view.n_entries += n;
}

/* An uncompressed sequence of n tokens; the window is its last 40 queries. */
static inline void made_init(struct made *m, uint32_t n_layers,
                             uint32_t n_kv_heads, uint32_t n, uint64_t seed)
{
    memset(m, 0, sizeof(*m));
    arena_init(&m->arena, SIZE_MAX);
    rng_seed(&m->rng, seed);
    m->list = made_array(m, (size_t)n_layers * n_kv_heads, sizeof(*m->list));
    m->view = (struct policy_view){.n_layers = n_layers,
                                   .n_kv_heads = n_kv_heads,
                                   .group = 3,
                                   .head_dim = 8,
                                   .n_seen = n,
                                   .n_window = n < 40 ? n : 40,
                                   .list = m->list};
    int32_t *pos = made_array(m, n, sizeof(*pos));
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)i;
    for (uint32_t i = 0; i < n_layers * n_kv_heads; i++)
        made_list(m, &m->list[i], pos, n);
}

static inline void made_fini(struct made *m)
{
    arena_fini(&m->arena);
}

static inline uint32_t made_kept(const struct made *m, uint32_t list,
                                 const uint8_t *keep)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < m->list[list].n; e++)
        n += keep[m->list[list].first + e];
    return n;
}

#endif
