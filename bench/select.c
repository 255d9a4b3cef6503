/* select.c - what a pass of the eviction costs: the figures behind the slices
 * of cache/select.h.
 *
 *     select [entries in millions]
 *
 * 200 sessions of 30 layers and 3 KV heads hold the entries in lists of
 * lengths around their mean, in units as the pool hands them out. One pass
 * removes 2%. Printed are milliseconds (median and longest of the rounds) for
 * one thread and for as many as there are CPUs, in one go and cut into slices,
 * of which the longest counts. And what closing the gaps costs, in
 * microseconds for each entry that goes, with keys and values of 64 numbers.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "cache/compact.h"
#include "cache/score.h"
#include "cache/select.h"

enum {
    SESSIONS = 200,
    LAYERS = 30,
    HEADS = 3,
    LISTS = LAYERS * HEADS,
    ROUNDS = 15,
    SLICE = 2000000 /* entries */
};

struct world {
    struct pool *pool;
    struct table *table[SESSIONS];
    struct select_session session[SESSIONS];
    struct select_tenant tenant;
    struct select_input in;
};

static void must(enum err rc)
{
    if (rc != OK) {
        fprintf(stderr, "select: %s\n", err_name(rc));
        exit(1);
    }
}

static float draw_lambda(struct rng *r, bool saturated)
{
    /* Logits of the gate around 8: most of beta is near 1, some is small. */
    double z = 8;
    for (int i = 0; i < 4; i++)
        z += 5 * (rng_double(r) - 0.5);
    return saturated || rng_below(r, 10) == 0 ? 0 : (float)-log1p(exp(-z));
}

static void new_world(struct world *w, uint32_t n_sessions, uint32_t mean,
                      uint32_t head_dim, bool saturated)
{
    struct rng r;
    struct kv_layout y;
    rng_seed(&r, 1);
    kv_layout_init(&y, KV_F16, head_dim);
    uint64_t units =
        (uint64_t)n_sessions * LISTS * (mean * 3 / 2 / KV_UNIT + 2);
    must(pool_new(&w->pool, &y, units * pool_unit_bytes(&y), NULL));
    for (uint32_t i = 0; i < n_sessions; i++) {
        uint32_t n = mean / 2 + (uint32_t)rng_below(&r, mean);
        must(table_new(&w->table[i], w->pool, LAYERS, HEADS, n));
        must(pool_reserve(w->pool,
                          (uint32_t)table_units_needed(w->table[i], n)));
        /* Token by token, as sessions that answer side by side grow. */
        for (uint32_t t = 0; t < n; t += KV_UNIT)
            (void)table_append(w->table[i], n - t < KV_UNIT ? n - t : KV_UNIT,
                               (int32_t)t, (int32_t)t);
        for (uint32_t l = 0; l < LISTS; l++)
            for (uint32_t k = 0; k < n; k++)
                pool_meta(w->pool, w->table[i]->list[l].unit[k / KV_UNIT])
                    ->log_beta[k % KV_UNIT] = draw_lambda(&r, saturated);
        w->session[i] = (struct select_session){
            .table = w->table[i],
            .n_seen = n,
            .offset = score_offset(1, 0.05, rng_below(&r, 100000)),
            .floor = 20 * LISTS,
            .cap = UINT64_MAX};
    }
    w->tenant = (struct select_tenant){0, UINT64_MAX};
    w->in = (struct select_input){.pool = w->pool,
                                  .session = w->session,
                                  .tenant = &w->tenant,
                                  .n_sessions = n_sessions,
                                  .n_tenants = 1,
                                  .min_head = 20,
                                  .n_sinks = 4,
                                  .n_recent = 16,
                                  .n_ahead = 1};
    for (uint32_t i = 0; i < n_sessions; i++)
        w->in.k += table_n_entries(w->table[i]) / 50;
}

static void end_world(struct world *w)
{
    for (uint32_t i = 0; i < w->in.n_sessions; i++)
        table_free(w->table[i]);
    pool_free(w->pool);
}

static struct select *new_select(const struct world *w, int n_threads)
{
    struct select *s = NULL;
    uint32_t units = pool_stats(w->pool).n_units;
    struct select_size size = {.n_units = units,
                               .max_sessions = SESSIONS,
                               .max_tenants = 1,
                               .max_lists = SESSIONS * LISTS,
                               .max_undecided = units,
                               .n_threads = n_threads};
    must(select_new(&s, &size));
    return s;
}

/* CPU time of all threads: what a busy neighbour doesn't stretch. */
static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_passes(const struct world *w, int n_threads, uint64_t slice)
{
    struct workers *workers = NULL;
    struct select *s = new_select(w, n_threads);
    double total[ROUNDS], longest[ROUNDS], cpu[ROUNDS];
    uint64_t swept = 0;
    int n_slices = 0;
    must(workers_new(&workers, n_threads, NULL));
    for (int i = -1; i < ROUNDS; i++) { /* the first warms up */
        enum select_outcome o = SELECT_MORE;
        double sum = 0, max = 0;
        bool begun = false;
        double before = cpu_ms();
        for (n_slices = 0; o == SELECT_MORE; n_slices++) {
            int64_t t = clock_us();
            if (!begun)
                must(select_begin(s, &w->in, NULL));
            begun = true;
            o = select_step(s, workers, slice);
            double ms = (double)(clock_us() - t) / 1000;
            sum += ms;
            max = ms > max ? ms : max;
        }
        swept = select_counts(s).swept;
        if (i >= 0) {
            total[i] = sum;
            longest[i] = max;
            cpu[i] = cpu_ms() - before;
        }
    }
    qsort(total, ROUNDS, sizeof(*total), by_value);
    qsort(cpu, ROUNDS, sizeof(*cpu), by_value);
    qsort(longest, ROUNDS, sizeof(*longest), by_value);
    printf("  %d threads, %3d slices: pass %6.1f ms (fastest %.1f), longest "
           "slice %5.1f ms (fastest %.1f), CPU %.1f ms (least %.1f), "
           "%.1fM entries looked at\n",
           n_threads, n_slices, total[ROUNDS / 2], total[0],
           longest[ROUNDS / 2], longest[0], cpu[ROUNDS / 2], cpu[0],
           (double)swept / 1e6);
    fflush(stdout);
    select_free(s);
    workers_free(workers);
}

static void time_all(const char *name, uint32_t mean, bool saturated)
{
    struct world w;
    new_world(&w, SESSIONS, mean, 8, saturated);
    uint64_t n = 0;
    for (uint32_t i = 0; i < SESSIONS; i++)
        n += table_n_entries(w.table[i]);
    printf("%s: %.2fM entries, %u sessions, %.0fk go\n", name, (double)n / 1e6,
           SESSIONS, (double)w.in.k / 1e3);
    for (int threads = 1; threads <= 2; threads++) {
        time_passes(&w, threads, UINT64_MAX);
        time_passes(&w, threads, SLICE);
    }
    end_world(&w);
}

static void time_compaction(uint32_t mean)
{
    struct world w;
    struct workers *workers = NULL;
    new_world(&w, 20, mean, 64, false);
    struct select *s = new_select(&w, 1);
    /* Written once, or the first move into a page would pay for it. */
    for (uint32_t u = 0; u < pool_stats(w.pool).n_units; u++)
        memset(pool_data(w.pool, u), 1, pool_layout(w.pool)->data_bytes);
    must(workers_new(&workers, 1, NULL));
    must(select_begin(s, &w.in, NULL));
    (void)select_step(s, workers, UINT64_MAX);
    int64_t t = clock_us();
    uint64_t n = 0;
    for (uint32_t i = 0; i < w.in.n_sessions; i++)
        n += compact_table(w.table[i], select_gone(s));
    t = clock_us() - t;
    printf("compaction, 1 thread: %.2f us for each of %llu entries\n",
           (double)t / (double)n, (unsigned long long)n);
    select_free(s);
    workers_free(workers);
    end_world(&w);
}

int main(int argc, char **argv)
{
    double millions = argc > 1 ? atof(argv[1]) : 10;
    uint32_t mean = (uint32_t)(millions * 1e6 / SESSIONS / LISTS);
    if (mean < KV_UNIT || mean > 100000) {
        fputs("usage: select [entries in millions, 0.3 to 1800]\n", stderr);
        return 2;
    }
    time_all("learned", mean, false);
    time_all("all equal (log_beta 0)", mean, true);
    time_compaction(mean);
    return 0;
}
