#include <math.h>

#include "cache/table.h"
#include "runtime/kernels/ops.h"
#include "server/command/gates_internal.h"

/* The model as it is served, with the gates in its step: what is read here is
 * what ranks entries there. */

enum { STEP_ROWS = 256 };

struct reader {
    struct model *model;
    struct pool *pool;
    struct table *table;
};

static enum err open_reader(struct reader *r, const struct gates_model *g,
                            const struct gate *gate, uint32_t n_tokens,
                            struct errmsg *m)
{
    struct model_options o = {.ops = ops_best(),
                              .workers = g->file.workers,
                              .max_rows = STEP_ROWS,
                              .max_runs = 1,
                              .max_context = n_tokens};
    struct kv_layout l;
    kv_layout_init(&l, KV_F16, g->info.head_dim);
    uint64_t units =
        table_units_for(g->info.n_layers * g->info.n_kv_heads, n_tokens);
    enum err rc = model_load(&r->model, g->file.gguf, &o, m);
    if (rc == OK)
        rc = model_set_gates(r->model, gate, m);
    if (rc == OK)
        rc = pool_new(&r->pool, &l, units * pool_unit_bytes(&l), m);
    if (rc != OK)
        return rc;
    rc = table_new(&r->table, r->pool, g->info.n_layers, g->info.n_kv_heads,
                   n_tokens);
    return rc == OK ? OK
                    : err_set(m, rc, "no memory for a window of %u tokens",
                              n_tokens);
}

static void close_reader(struct reader *r)
{
    table_free(r->table);
    pool_free(r->pool);
    model_free(r->model);
}

/* The pool was made for one window. */
static enum err read_window(const struct reader *r, const int32_t *tokens,
                            uint32_t n, struct errmsg *m)
{
    for (uint32_t at = 0; at < n; at += STEP_ROWS) {
        uint32_t k = n - at < STEP_ROWS ? n - at : STEP_ROWS;
        struct model_run run = {.table = r->table, .n_rows = k, .pos = at};
        struct model_batch step = {
            .n_rows = k, .tokens = tokens + at, .n_runs = 1, .runs = &run};
        uint64_t units = table_units_needed(r->table, k);
        enum err rc = pool_reserve(r->pool, (uint32_t)units);
        if (rc != OK)
            return err_set(m, rc, "no room for a window of %u tokens", n);
        table_append(r->table, k, (int32_t)at, (int32_t)at);
        model_step(r->model, &step);
    }
    return OK;
}

/* to[n_kv_heads][n] of one layer. */
static void read_layer(const struct table *t, uint32_t layer, float *to)
{
    for (uint32_t h = 0; h < t->n_kv_heads; h++) {
        const struct kv_list *l = table_list(t, layer, h);
        for (uint32_t i = 0; i < l->len; i++) {
            const struct kv_meta *meta =
                pool_meta(t->pool, l->unit[i / KV_UNIT]);
            *to++ = expf(meta->log_beta[i % KV_UNIT]);
        }
    }
}

enum err gates_read_beta(const struct gates_model *g, const struct gate *gate,
                         const struct gates_windows *w, float *beta,
                         struct errmsg *m)
{
    struct reader r = {.model = NULL};
    size_t list = (size_t)g->info.n_kv_heads * w->n_tokens;
    enum err rc = open_reader(&r, g, gate, w->n_tokens, m);
    for (uint32_t i = 0; i < w->n && rc == OK; i++) {
        rc = read_window(&r, w->tokens + (size_t)i * w->n_tokens, w->n_tokens,
                         m);
        for (uint32_t l = 0; l < g->info.n_layers && rc == OK; l++)
            read_layer(r.table, l, beta + ((size_t)l * w->n + i) * list);
        if (rc == OK)
            table_truncate(r.table, 0);
    }
    close_reader(&r);
    return rc;
}
