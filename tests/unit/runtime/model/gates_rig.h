/* gates_rig.h - a tiny model with gates, for the tests of both ways to run
 * them: in the step, and after several.
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_GATES_RIG_H
#define TESTS_GATES_RIG_H

#include "tests/unit/gates/gate_check.h"
#include "tests/unit/runtime/model/tiny_models.h"

enum { MAX_ROWS = 64, MAX_RUNS = 4, WIDTH = 12 };

static inline void open_tiny(struct rig *r, const char *name,
                             const struct ops *ops, enum kv_type kv_type,
                             int n_threads)
{
    const struct rig_options o = {.ops = ops,
                                  .n_threads = n_threads,
                                  .kv_type = kv_type,
                                  .max_rows = MAX_ROWS,
                                  .max_runs = MAX_RUNS,
                                  .max_context = 128,
                                  .kv_bytes = 16 << 20};
    tiny_open(r, name, &o);
}

static inline struct gate *gates_for(const struct rig *r, enum gate_kind kind)
{
    const struct model_info *i = model_info(r->model);
    struct gate_shape s = {i->n_layers, i->n_embd, i->n_kv_heads, WIDTH, kind};
    return gate_check_random(&s, 2.0f, 7);
}

static inline void set_gates(const struct rig *r, const struct gate *g)
{
    struct errmsg m = {""};
    if (model_set_gates(r->model, g, &m) != OK)
        fail_msg("%s", m.text);
}

static inline void make_tokens(int32_t *tokens, uint32_t n, uint32_t n_vocab,
                               uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, seed);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)rng_below(&rng, n_vocab);
}

static inline float log_beta_of(const struct table *t, uint32_t layer,
                                uint32_t head, uint32_t i)
{
    const struct kv_list *l = table_list(t, layer, head);
    return pool_meta(t->pool, l->unit[i / KV_UNIT])->log_beta[i % KV_UNIT];
}

/* All log_beta of a table, [layer][head][entry]; free() them. */
static inline float *read_all(const struct table *t, size_t *n_floats)
{
    uint32_t n = t->list[0].len;
    *n_floats = (size_t)t->n_layers * t->n_kv_heads * n;
    float *all = calloc(*n_floats, sizeof(*all));
    assert_non_null(all);
    for (uint32_t l = 0, k = 0; l < t->n_layers; l++)
        for (uint32_t h = 0; h < t->n_kv_heads; h++)
            for (uint32_t i = 0; i < n; i++)
                all[k++] = log_beta_of(t, l, h, i);
    return all;
}

#endif
