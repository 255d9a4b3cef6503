/* probe_internal.h - the inside of a probe, for probe.c (its life, and what is
 * read from it) and probe_step.c (what a step writes).
 */
#ifndef RUNTIME_MODEL_PROBE_INTERNAL_H
#define RUNTIME_MODEL_PROBE_INTERNAL_H

#include "runtime/model/model_internal.h"
#include "runtime/model/probe.h"

/* Of the queries of one head before rotation: how often, their sum, and the
 * lower half of the sum of their outer products. */
struct probe_moments {
    double *sum;   /* [d] */
    double *outer; /* [d][d], j <= i */
};

struct probe {
    const struct model *model;
    struct probe_options o;
    uint32_t n_seen, n_rows; /* logical position of the next token; rows */
    uint32_t n_counted;      /* queries that the moments hold */
    /* [n_layers][n_window][n_heads * d]: the query at position p in row
     * p % n_window. */
    float *query;
    /* [n_layers][n_window][n_heads][2]: what their attention divided by, as
     * ops->attend() says it. */
    float *norm;
    float *column;  /* [n_lists][max_tokens] */
    uint16_t *band; /* [n_lists][max_tokens][PROBE_BUCKET] */
    double *moment; /* [n_layers * n_heads][d + d * d] */
    /* Of a step, for each KV head: logits of a tile of rows, and one row more
     * for the sums of its columns. */
    float *logit;
    int64_t logit_stride, logit_floats; /* of a row; of a KV head */
};

static inline struct probe_moments
probe_moments_of(const struct probe *p, uint32_t layer, uint32_t head)
{
    const struct config *c = &p->model->cfg;
    size_t d = c->head_dim, each = d + d * d;
    double *at = p->moment + ((size_t)layer * c->n_heads + head) * each;
    return (struct probe_moments){.sum = at, .outer = at + d};
}

static inline float *probe_query_row(const struct probe *p, uint32_t layer,
                                     uint32_t pos)
{
    const struct config *c = &p->model->cfg;
    size_t W = p->o.n_window, Q = (size_t)c->n_heads * c->head_dim;
    return p->query + (layer * W + pos % W) * Q;
}

static inline float *probe_norm_row(const struct probe *p, uint32_t layer,
                                    uint32_t pos)
{
    size_t W = p->o.n_window, n = 2 * (size_t)p->model->cfg.n_heads;
    return p->norm + (layer * W + pos % W) * n;
}

#endif
