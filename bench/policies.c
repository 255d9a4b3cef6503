/* policies.c - what watching attention adds to a prefill, and what each
 * eviction policy costs after it.
 *
 *     policies MODEL.gguf [tokens] [threads] [chunk]
 *
 * A prompt (seeded random tokens) is computed with nothing watched, and beside
 * it, chunk by chunk in turns so that both see the same machine, with one of:
 * what a server watches of a prompt whose entries may be merged; the same, and
 * three quarters of the entries merged at its end; the parts that comparisons
 * add. Printed are the median of the ratios of their processor seconds over
 * all threads, the least, and the most. Then, for every policy at a quarter of
 * the entries: the time to read what it needs from the cache, and to choose,
 * the least of ROUNDS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/rng.h"
#include "runtime/engine/watch.h"
#include "runtime/model/probe.h"
#include "runtime/model/view.h"

enum { CHUNK = 256, ROUNDS = 3, PAIRS = 5, WINDOW = 32 };

struct world {
    struct gguf *gguf;
    struct workers *workers;
    struct model *model;
    struct pool *pool;
    struct sessions sessions;
    struct lm lm;
    struct merge_options merge;
    struct watches *watches;
    int32_t *tokens;
    uint32_t n, chunk;
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
                              .max_rows = w->chunk,
                              .max_runs = 1,
                              .max_context = w->n};
    must(model_load(&w->model, w->gguf, &o, &m), &m);
    const struct model_info *i = model_info(w->model);
    kv_layout_init(&layout, KV_F16, i->head_dim);
    /* Two sessions, and the rows of a watch. */
    uint64_t units =
        (uint64_t)i->n_layers * i->n_kv_heads * (w->n / KV_UNIT + 2) * 5 / 2;
    must(pool_new(&w->pool, &layout, units * pool_unit_bytes(&layout), &m), &m);
    w->tokens = malloc(w->n * sizeof(*w->tokens));
    if (w->tokens == NULL)
        must(ERR_NOMEM, &m);
    rng_seed(&r, 1);
    for (uint32_t k = 0; k < w->n; k++)
        w->tokens[k] = (int32_t)rng_below(&r, i->n_vocab);
    must(sessions_init(&w->sessions, w->pool, i->n_layers, i->n_kv_heads), &m);
    lm_of_model(&w->lm, w->model);
    w->merge = merge_options_default();
    const struct watches_setup setup = {.lm = &w->lm,
                                        .sessions = &w->sessions,
                                        .options = &w->merge,
                                        .max_rows = w->chunk,
                                        .workers = w->workers,
                                        .max_prompts = 1};
    must(watches_new(&w->watches, &setup), &m);
}

static void close_world(struct world *w)
{
    watches_free(w->watches);
    sessions_fini(&w->sessions);
    free(w->tokens);
    pool_free(w->pool);
    model_free(w->model);
    workers_free(w->workers);
    gguf_close(w->gguf);
}

static struct session *start(struct world *w)
{
    const struct errmsg none = {""};
    struct session *s = NULL;
    const struct session_start o = {.token = w->tokens,
                                    .n = w->n,
                                    .cap = w->n,
                                    .rules = {.policy = FORGET_STREAMINGLLM,
                                              .admission.fate = FORGET_MERGE}};
    must(session_new(&w->sessions, &s, &o), &none);
    return s;
}

/* One chunk of a session, with its watch or p, which may be NULL. */
static void prefill_chunk(struct world *w, struct session *s, struct probe *p)
{
    const struct errmsg none = {""};
    uint32_t at = s->n_stored;
    uint32_t n = w->n - at < w->chunk ? w->n - at : w->chunk;
    struct model_run run = {.table = s->table,
                            .n_rows = n,
                            .pos = at,
                            .probe = s->watch ? watch_probe(s->watch) : p};
    struct model_batch b = {
        .n_rows = n, .tokens = w->tokens + at, .n_runs = 1, .runs = &run};
    must(session_reserve(&w->sessions, s, at + n), &none);
    session_append(&w->sessions, s, n);
    model_step(w->model, &b);
    watch_take(w->watches, s, n);
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

/* What is watched of a prefill, beside parts of enum probe_part. */
enum { NOTHING = -3, TO_MERGE = -2, AND_MERGE = -1 };

/* Three quarters of the entries, drawn, into those that stay. */
static void merge_all(const struct world *w, const struct session *s)
{
    struct merge_counts c = {0};
    struct rng r;
    uint32_t n = pool_stats(w->pool).n_units;
    uint16_t *gone = malloc(n * sizeof(*gone));
    const struct errmsg none = {""};
    if (gone == NULL || !watches_make_scratch(w->watches, s, w->n))
        must(ERR_NOMEM, &none);
    rng_seed(&r, 2);
    for (uint32_t u = 0; u < n; u++)
        gone[u] = (uint16_t)(rng_next(&r) | rng_next(&r));
    for (uint32_t i = 0; i < sessions_n_lists(&w->sessions); i++)
        watch_merge(w->watches, s, i, gone, 0, &c);
    free(gone);
}

/* A prefill, and the processor seconds that it has taken so far. */
struct side {
    int watched;
    struct session *s;
    struct probe *p;
    double seconds;
};

static void begin(struct world *w, struct side *x, int watched)
{
    *x = (struct side){.watched = watched, .s = start(w)};
    if (watched >= 0)
        x->p = new_probe(w, (uint32_t)watched);
    if (watched != NOTHING && watched < 0 &&
        !watch_begin(w->watches, x->s,
                     (uint64_t)w->n * sessions_n_lists(&w->sessions)))
        must(ERR_BUDGET, &(const struct errmsg){"no room for the watch"});
}

static void go_on(struct world *w, struct side *x)
{
    double from = cpu_seconds();
    prefill_chunk(w, x->s, x->p);
    if (x->s->n_stored == w->n && x->watched == AND_MERGE)
        merge_all(w, x->s);
    x->seconds += cpu_seconds() - from;
}

static void end(struct world *w, struct side *x)
{
    watch_end(w->watches, x->s);
    session_drop(&w->sessions, x->s);
    probe_free(x->p);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(struct world *w, const char *name, int watched)
{
    double ratio[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        struct side x[2];
        begin(w, &x[0], NOTHING);
        begin(w, &x[1], watched);
        for (int k = i; x[0].s->n_stored + x[1].s->n_stored < 2 * w->n; k++) {
            go_on(w, &x[k % 2]);
            go_on(w, &x[1 - k % 2]);
        }
        ratio[i] = x[1].seconds / x[0].seconds;
        end(w, &x[0]);
        end(w, &x[1]);
    }
    qsort(ratio, PAIRS, sizeof(*ratio), by_size);
    printf("  with %-16s %+.1f%% (%+.1f to %+.1f, %d pairs)\n", name,
           100 * (ratio[PAIRS / 2] - 1), 100 * (ratio[0] - 1),
           100 * (ratio[PAIRS - 1] - 1), PAIRS);
    fflush(stdout);
}

static void time_policy(const struct world *w, const struct policy *policy,
                        const struct table *t, const struct probe *p)
{
    const struct errmsg none = {""};
    const struct model_info *info = model_info(w->model);
    struct view *v = NULL;
    struct policy_params params =
        policy_defaults(policy, info->n_heads / info->n_kv_heads);
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
    } probes[] = {{"watch for merge", TO_MERGE},
                  {"watch and merge", AND_MERGE},
                  {"window", 0},
                  {"window, band", PROBE_BAND},
                  {"window, columns", PROBE_COLUMNS},
                  {"window, future", PROBE_FUTURE}};
    struct world w = {.n = argc > 2 ? (uint32_t)atoi(argv[2]) : 1024,
                      .chunk = argc > 4 ? (uint32_t)atoi(argv[4]) : CHUNK};
    int n_threads = argc > 3 ? atoi(argv[3]) : workers_cpus();
    if (argc < 2 || w.n < 64 || w.n > 1000000 || w.chunk < 1 ||
        w.chunk > 4096) {
        fputs("usage: policies MODEL.gguf [tokens, 64 to 1000000] [threads] "
              "[chunk, 1 to 4096]\n",
              stderr);
        return 2;
    }
    open_world(&w, argv[1], n_threads);
    printf("prefill of %u tokens, by %u\n", w.n, w.chunk);
    for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]); i++)
        compare(&w, probes[i].name, probes[i].parts);
    struct probe *p = new_probe(&w, PROBE_COLUMNS | PROBE_FUTURE);
    struct session *s = start(&w);
    while (s->n_stored < w.n)
        prefill_chunk(&w, s, p);
    for (uint32_t i = 0; policy_at(i) != NULL; i++)
        time_policy(&w, policy_at(i), s->table, p);
    session_drop(&w.sessions, s);
    probe_free(p);
    close_world(&w);
    return 0;
}
