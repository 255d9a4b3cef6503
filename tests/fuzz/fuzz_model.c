/* Fuzz target: any bytes as a model file that is loaded and, if small, run
 * for two steps. Built and run by `make fuzz`. */
#include <stdlib.h>

#include "runtime/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { ROWS = 5, CONTEXT = 32, VOCAB_MAX = 4096, DIM_MAX = 4096 };

static void step(struct model *m, struct table *t, uint32_t n, float *logits)
{
    uint32_t n_vocab = model_info(m)->n_vocab, last = n - 1;
    int32_t tokens[ROWS];
    struct model_run run = {.table = t, .n_rows = n, .pos = t->list[0].len};
    struct model_batch b = {.n_rows = n,
                            .tokens = tokens,
                            .n_runs = 1,
                            .runs = &run,
                            .n_logits = 1,
                            .logit_rows = &last,
                            .logits = logits};
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i * 5 % n_vocab);
    if (pool_reserve(t->pool, (uint32_t)table_units_needed(t, n)) != OK)
        abort();
    table_append(t, n, (int32_t)t->list[0].len, (int32_t)t->list[0].len);
    model_step(m, &b);
}

static void run(struct model *m)
{
    const struct model_info *i = model_info(m);
    struct kv_layout l;
    struct pool *pool = NULL;
    struct table *t = NULL;
    kv_layout_init(&l, KV_Q8_0, i->head_dim);
    uint64_t units = table_units_for(i->n_layers * i->n_kv_heads, CONTEXT);
    float *logits = malloc(sizeof(*logits) * i->n_vocab);
    if (logits &&
        pool_new(&pool, &l, units * pool_unit_bytes(&l), NULL) == OK &&
        table_new(&t, pool, i->n_layers, i->n_kv_heads, CONTEXT) == OK) {
        step(m, t, ROWS, logits);
        step(m, t, 1, logits);
    }
    table_free(t);
    pool_free(pool);
    free(logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct gguf *g = NULL;
    struct model *m = NULL;
    struct workers *w = NULL;
    struct errmsg e;
    if (gguf_parse(&g, data, n, &e) != OK)
        return 0;
    if (workers_new(&w, 1, NULL) != OK)
        abort();
    struct model_options o = {.ops = &ops_reference,
                              .workers = w,
                              .max_rows = ROWS,
                              .max_runs = 1,
                              .max_context = CONTEXT};
    if (model_load(&m, g, &o, &e) == OK) {
        const struct model_info *i = model_info(m);
        if (i->n_vocab <= VOCAB_MAX && i->n_embd <= DIM_MAX &&
            i->n_ff <= DIM_MAX)
            run(m);
    }
    model_free(m);
    workers_free(w);
    gguf_close(g);
    return 0;
}
