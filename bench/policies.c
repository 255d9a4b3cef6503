/* policies.c - what watching attention adds to a prefill, and what each
 * eviction policy costs after it.
 *
 *     policies MODEL.gguf [tokens] [threads]
 *
 * The prompt (seeded random tokens, chunks of 256) is computed with no probe,
 * with the window that a server keeps, and with each part that comparisons
 * add. Then, for every policy at a quarter of the entries: the time to read
 * what it needs from the cache, and to choose. Processor seconds over all
 * threads, the least of ROUNDS: what the machine does besides counts little.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/rng.h"
#include "runtime/model/view.h"

enum { CHUNK = 256, ROUNDS = 3, WINDOW = 32 };

struct world {
    struct gguf *gguf;
    struct workers *workers;
    struct model *model;
    struct pool *pool;
    int32_t *tokens;
    uint32_t n;
};

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(enum err rc, const struct errmsg *m)
{
    if (rc != OK) {
        fprintf(stderr, "policies: %s\n", m->text[0] ? m->text : err_name(rc));
        exit(1);
    }
}

static void open_world(struct world *w, const char *path, int n_threads)
{
    struct errmsg m = {""};
    struct kv_layout layout;
    struct rng r;
    must(gguf_open(&w->gguf, path, &m), &m);
    must(workers_new(&w->workers, n_threads, &m), &m);
    struct model_options o = {.ops = ops_best(),
                              .workers = w->workers,
                              .max_rows = CHUNK,
                              .max_runs = 1,
                              .max_context = w->n};
    must(model_load(&w->model, w->gguf, &o, &m), &m);
    const struct model_info *i = model_info(w->model);
    kv_layout_init(&layout, KV_F16, i->head_dim);
    uint64_t units =
        (uint64_t)i->n_layers * i->n_kv_heads * (w->n / KV_UNIT + 2);
    must(pool_new(&w->pool, &layout, units * pool_unit_bytes(&layout), &m), &m);
    w->tokens = malloc(w->n * sizeof(*w->tokens));
    if (w->tokens == NULL)
        must(ERR_NOMEM, &m);
    rng_seed(&r, 1);
    for (uint32_t k = 0; k < w->n; k++)
        w->tokens[k] = (int32_t)rng_below(&r, i->n_vocab);
}

static void close_world(struct world *w)
{
    free(w->tokens);
    pool_free(w->pool);
    model_free(w->model);
    workers_free(w->workers);
    gguf_close(w->gguf);
}

static struct table *prefill(const struct world *w, struct probe *p)
{
    const struct model_info *i = model_info(w->model);
    const struct errmsg none = {""};
    struct table *t = NULL;
    must(table_new(&t, w->pool, i->n_layers, i->n_kv_heads, w->n), &none);
    for (uint32_t at = 0; at < w->n; at += CHUNK) {
        uint32_t n = w->n - at < CHUNK ? w->n - at : CHUNK;
        struct model_run run = {.table = t, .n_rows = n, .pos = at, .probe = p};
        struct model_batch b = {
            .n_rows = n, .tokens = w->tokens + at, .n_runs = 1, .runs = &run};
        must(pool_reserve(w->pool, (uint32_t)table_units_needed(t, n)), &none);
        table_append(t, n, (int32_t)at, (int32_t)at);
        model_step(w->model, &b);
    }
    return t;
}

static struct probe *new_probe(const struct world *w, uint32_t parts)
{
    struct probe *p = NULL;
    struct errmsg m = {""};
    struct probe_options o = {
        .n_window = WINDOW, .parts = parts, .max_tokens = w->n, .n_skip = 4};
    must(probe_new(&p, w->model, &o, &m), &m);
    return p;
}

/* The least of the rounds. parts: -1 for no probe. */
static double time_prefill(const struct world *w, int parts)
{
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct probe *p = parts < 0 ? NULL : new_probe(w, (uint32_t)parts);
        double start = cpu_seconds();
        struct table *t = prefill(w, p);
        double s = cpu_seconds() - start;
        best = i == 0 || s < best ? s : best;
        table_free(t);
        probe_free(p);
    }
    return best;
}

static void time_policy(const struct world *w, const struct policy *policy,
                        const struct table *t, const struct probe *p)
{
    const struct errmsg none = {""};
    struct view *v = NULL;
    struct policy_params params = policy->defaults;
    double read = 0, choose = 0;
    params.n_entries = w->n / 4;
    must(view_new(&v, w->model), &none);
    uint8_t *keep = malloc(table_n_entries(t));
    if (keep == NULL)
        must(ERR_NOMEM, &none);
    for (int i = 0; i < ROUNDS; i++) {
        double a = cpu_seconds();
        must(view_fill(v, t, p, w->n, policy->needs), &none);
        double b = cpu_seconds();
        must(policy_keep(policy, view_get(v), &params, w->workers, keep),
             &none);
        double c = cpu_seconds();
        read = i == 0 || b - a < read ? b - a : read;
        choose = i == 0 || c - b < choose ? c - b : choose;
    }
    printf("%-20s read %.3f s, choose %.3f s\n", policy->name, read, choose);
    free(keep);
    view_free(v);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int parts;
    } probes[] = {{"window", 0},
                  {"window, band", PROBE_BAND},
                  {"window, columns", PROBE_COLUMNS},
                  {"window, future", PROBE_FUTURE}};
    struct world w = {.n = argc > 2 ? (uint32_t)atoi(argv[2]) : 1024};
    int n_threads = argc > 3 ? atoi(argv[3]) : workers_cpus();
    if (argc < 2 || w.n < 64 || w.n > 1000000) {
        fputs("usage: policies MODEL.gguf [tokens, 64 to 1000000] [threads]\n",
              stderr);
        return 2;
    }
    open_world(&w, argv[1], n_threads);
    double plain = time_prefill(&w, -1);
    printf("prefill of %u tokens  %.3f s\n", w.n, plain);
    for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]); i++) {
        double s = time_prefill(&w, probes[i].parts);
        printf("  with %-16s %.3f s, %+.1f%%\n", probes[i].name, s,
               100 * (s / plain - 1));
    }
    struct probe *p = new_probe(&w, PROBE_COLUMNS | PROBE_FUTURE);
    struct table *t = prefill(&w, p);
    for (uint32_t i = 0; policy_at(i) != NULL; i++)
        time_policy(&w, policy_at(i), t, p);
    table_free(t);
    probe_free(p);
    close_world(&w);
    return 0;
}
