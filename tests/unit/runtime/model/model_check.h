/* model_check.h - what the model tests share: finding files, and a loaded model
 * with a pool.
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_MODEL_CHECK_H
#define TESTS_MODEL_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/model/model.h"
#include "tests/support/golden.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CHECK_IS_SANITIZED = 1 };
#else
enum { CHECK_IS_SANITIZED = 0 };
#endif

/* Where the real models are; false, with a line on stderr, when this one is
 * not there. */
static inline int check_model_file(char path[4096], const char *name)
{
    const char *dir = getenv("EBB_TEST_MODELS");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (dir)
        snprintf(path, 4096, "%s/%s", dir, name);
    else if (cache && cache[0])
        snprintf(path, 4096, "%s/ebb/models/%s", cache, name);
    else
        snprintf(path, 4096, "%s/.cache/ebb/models/%s", home ? home : "", name);
    if (access(path, R_OK) == 0)
        return 1;
    fprintf(stderr, "SKIPPED: no model file %s\n", path);
    return 0;
}

/* A loaded model with a pool of its own. */
struct rig {
    struct gguf *gguf;
    struct workers *workers;
    struct model *model;
    struct pool *pool;
    uint32_t max_rows, max_context, n_vocab;
};

struct rig_options {
    const char *path;
    const struct ops *ops;
    int n_threads;
    enum kv_type kv_type;
    uint32_t max_rows, max_runs, max_context;
    uint64_t kv_bytes;
};

static inline void rig_open(struct rig *r, const struct rig_options *o)
{
    struct errmsg m = {""};
    memset(r, 0, sizeof(*r));
    r->max_rows = o->max_rows;
    r->max_context = o->max_context;
    if (gguf_open(&r->gguf, o->path, &m) != OK ||
        workers_new(&r->workers, o->n_threads, &m) != OK)
        fail_msg("%s", m.text);
    struct model_options mo = {.ops = o->ops,
                               .workers = r->workers,
                               .max_rows = o->max_rows,
                               .max_runs = o->max_runs,
                               .max_context = o->max_context};
    if (model_load(&r->model, r->gguf, &mo, &m) != OK)
        fail_msg("%s: %s", o->path, m.text);
    struct kv_layout l;
    kv_layout_init(&l, o->kv_type, model_info(r->model)->head_dim);
    if (pool_new(&r->pool, &l, o->kv_bytes, &m) != OK)
        fail_msg("%s", m.text);
    r->n_vocab = model_info(r->model)->n_vocab;
}

/* A tiny model in float32 arithmetic, its cache too, so that what differs from
 * float64 is rounding. For steps of up to 64 rows of one sequence. */
static inline void rig_open_reference(struct rig *r, const char *path,
                                      uint32_t max_context)
{
    const struct rig_options o = {.path = path,
                                  .ops = &ops_reference,
                                  .n_threads = 2,
                                  .kv_type = KV_F32,
                                  .max_rows = 64,
                                  .max_runs = 1,
                                  .max_context = max_context,
                                  .kv_bytes = 16 << 20};
    rig_open(r, &o);
}

static inline void rig_close(struct rig *r)
{
    pool_free(r->pool);
    model_free(r->model);
    workers_free(r->workers);
    gguf_close(r->gguf);
}

static inline struct table *rig_table(const struct rig *r)
{
    struct table *t = NULL;
    const struct model_info *i = model_info(r->model);
    assert_int_equal(
        table_new(&t, r->pool, i->n_layers, i->n_kv_heads, r->max_context), OK);
    return t;
}

static inline void rig_grow(const struct rig *r, struct table *t, uint32_t n)
{
    uint64_t need = table_units_needed(t, n);
    assert_int_equal(pool_reserve(r->pool, (uint32_t)need), OK);
    int32_t pos = (int32_t)t->list[0].len;
    uint64_t took = table_append(t, n, pos, pos);
    assert_int_equal(took, need);
}

/* Runs n tokens on from the end of the table, in chunks. logits, if not NULL,
 * gets one row of n_vocab for each of rows[0..n_rows), ascending numbers
 * below n. */
static inline void rig_feed(const struct rig *r, struct table *t,
                            const int32_t *tokens, uint32_t n, uint32_t chunk,
                            const uint32_t *rows, uint32_t n_rows,
                            float *logits)
{
    uint32_t *wanted = malloc(sizeof(*wanted) * (chunk + 1));
    assert_non_null(wanted);
    assert_true(chunk <= r->max_rows);
    for (uint32_t at = 0, done = 0; at < n; at += chunk) {
        uint32_t k = n - at < chunk ? n - at : chunk, n_wanted = 0;
        while (done + n_wanted < n_rows && rows[done + n_wanted] < at + k) {
            wanted[n_wanted] = rows[done + n_wanted] - at;
            n_wanted++;
        }
        struct model_run run = {.table = t, .n_rows = k, .pos = t->list[0].len};
        struct model_batch b = {.n_rows = k,
                                .tokens = tokens + at,
                                .n_runs = 1,
                                .runs = &run,
                                .n_logits = n_wanted,
                                .logit_rows = wanted,
                                .logits = logits + (size_t)done * r->n_vocab};
        rig_grow(r, t, k);
        model_step(r->model, &b);
        done += n_wanted;
    }
    free(wanted);
}

/* The same from position 0 on, watched by a probe. */
static inline void rig_feed_probe(const struct rig *r, struct table *t,
                                  struct probe *p, const int32_t *tokens,
                                  uint32_t n, uint32_t chunk)
{
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t k = n - at < chunk ? n - at : chunk;
        struct model_run run = {.table = t, .n_rows = k, .pos = at, .probe = p};
        const struct model_batch b = {
            .n_rows = k, .tokens = tokens + at, .n_runs = 1, .runs = &run};
        rig_grow(r, t, k);
        model_step(r->model, &b);
    }
}

static inline int32_t check_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

/* Squared error over squared size. */
struct nmse {
    double error, size;
};

static inline void nmse_add(struct nmse *s, double got, double want)
{
    s->error += (got - want) * (got - want);
    s->size += want * want;
}

#endif
