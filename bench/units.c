/* units.c - what the granularity of the KV pool costs and saves: the figures
 * behind docs/decisions/kv-units.md.
 *
 *     units [seconds]
 *
 * speed: decode attention over lists whose 16-entry units lie in memory in
 * runs of 1, 2, 4, 8 neighbours at random places, as a ratio to one run of all
 * of them. Layouts take turns within a round, so that a slow moment of the
 * machine hits all alike; medians of the ratios are printed. The arena is
 * larger than the caches, and each round reads another list.
 * fill: share of a list's memory that holds entries, for pages of 16 to 128
 * entries, at lengths drawn around a mean, as eviction leaves them.
 * evicted: the same share in a real pool, in which 20 sessions of 90 lists
 * grow chunk by chunk and lose entries at random after each, until eight times
 * as many have come as stay; and how much of it still lies in runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/kv_layout.h"
#include "base/rng.h"
#include "cache/compact.h"
#include "runtime/kernels/ops.h"

enum {
    HEAD_DIM = 64,
    GROUP = 3,
    ENTRIES = 4096,
    UNITS = ENTRIES / KV_UNIT,
    LISTS = 24, /* read in turn: 24 x 1 MiB of f16 */
    SPREAD = 8, /* the arena has this many times the units */
    LAYOUTS = 5,
    ROUNDS_MAX = 4096,
    SESSIONS = 20,
    LAYERS = 30,
    HEADS = 3,
    CHUNK = 64 /* tokens between two evictions */
};

static const int run_of[LAYOUTS] = {UNITS, 1, 2, 4, 8};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *room(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (p == NULL) {
        fputs("units: no memory\n", stderr);
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

/* Distinct places for runs of `run` units in an arena of n, shuffled. */
static void place(const uint8_t **unit, const uint8_t *arena, size_t n, int run,
                  size_t unit_bytes, struct rng *r)
{
    size_t slots = n / (size_t)run, want = UNITS / (size_t)run;
    size_t *slot = room(slots * sizeof(*slot));
    for (size_t i = 0; i < slots; i++)
        slot[i] = i;
    for (size_t i = 0; i < want; i++) {
        size_t j = i + rng_below(r, slots - i), t = slot[i];
        slot[i] = slot[j];
        slot[j] = t;
        for (int u = 0; u < run; u++)
            unit[i * (size_t)run + (size_t)u] =
                arena + (slot[i] * (size_t)run + (size_t)u) * unit_bytes;
    }
    free(slot);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static void speed(const struct ops *o, enum kv_type type, double seconds)
{
    static double ratio[LAYOUTS][ROUNDS_MAX], ns[ROUNDS_MAX];
    struct kv_layout l;
    struct rng r;
    rng_seed(&r, 3);
    kv_layout_init(&l, type, HEAD_DIM);
    size_t n = (size_t)UNITS * SPREAD * LISTS;
    uint8_t *arena = room(n * l.data_bytes);
    const uint8_t **unit =
        room(sizeof(*unit) * (size_t)LAYOUTS * LISTS * UNITS);
    for (size_t i = 0; i < (size_t)LAYOUTS * LISTS; i++)
        place(unit + i * UNITS, arena, n, run_of[i / LISTS], l.data_bytes, &r);
    float q[GROUP * HEAD_DIM], out[GROUP * HEAD_DIM];
    for (int i = 0; i < GROUP * HEAD_DIM; i++)
        q[i] = rng_float(&r) - 0.5f;
    struct attend_args a = {.layout = &l,
                            .n_visible = ENTRIES,
                            .n_query = 1,
                            .group = GROUP,
                            .q = q,
                            .q_stride = GROUP * HEAD_DIM,
                            .out = out,
                            .out_stride = GROUP * HEAD_DIM,
                            .scale = 0.125f};
    void *scratch = room(o->attend_scratch_bytes(&a));
    int rounds = 0;
    double end = now() + seconds;
    while (rounds < ROUNDS_MAX && (now() < end || rounds < 9)) {
        double took[LAYOUTS];
        for (int k = 0; k < LAYOUTS; k++) {
            size_t list = (size_t)k * LISTS + (size_t)rounds % LISTS;
            a.unit = unit + list * UNITS;
            double start = now();
            o->attend(&a, scratch);
            took[k] = now() - start;
        }
        for (int k = 0; k < LAYOUTS; k++)
            ratio[k][rounds] = took[k] / took[0];
        ns[rounds++] = took[0] * 1e9 / ENTRIES;
    }
    printf("speed %-4s one run %.1f ns an entry;", kv_type_name(type),
           median(ns, rounds));
    for (int k = 1; k < LAYOUTS; k++)
        printf("  runs of %d: x%.2f", run_of[k] * KV_UNIT,
               median(ratio[k], rounds));
    printf("  (%d rounds)\n", rounds);
    free(scratch);
    free(unit);
    free(arena);
}

static void fill(int mean)
{
    struct rng r;
    rng_seed(&r, 5);
    printf("fill  mean length %4d:", mean);
    for (int page = 16; page <= 128; page *= 2) {
        double used = 0.0, held = 0.0;
        for (int i = 0; i < 100000; i++) {
            /* Heads differ by far: from a tenth of the mean to twice it. */
            double len = mean * (0.1 + 1.9 * rng_double(&r));
            used += len;
            held += (double)(((int)len + page) / page * page);
        }
        printf("  %d: %.1f%%", page, 100.0 * used / held);
    }
    putchar('\n');
}

/* Chooses what goes of a list until `keep` entries are left, all alike. */
static void choose(const struct kv_list *l, uint32_t keep, uint16_t *gone,
                   struct rng *r)
{
    uint32_t go = l->len > keep ? l->len - keep : 0;
    for (uint32_t i = 0; i < l->len; i++)
        if (rng_below(r, l->len - i) < go) {
            gone[l->unit[i / KV_UNIT]] |= (uint16_t)(1u << i % KV_UNIT);
            go--;
        }
}

static void must(enum err rc)
{
    if (rc != OK) {
        fprintf(stderr, "units: %s\n", err_name(rc));
        exit(1);
    }
}

static void grow(struct table *t, uint32_t n, int32_t pos)
{
    must(pool_reserve(t->pool, (uint32_t)table_units_needed(t, n)));
    (void)table_append(t, n, pos, pos);
}

static void report(struct table *const *t, uint32_t mean)
{
    uint64_t entries = 0, units = 0, followed = 0;
    for (int s = 0; s < SESSIONS; s++) {
        entries += table_n_entries(t[s]);
        units += table_n_units(t[s]);
        for (uint32_t i = 0; i < LAYERS * HEADS; i++)
            for (uint32_t u = 1; u < t[s]->list[i].n_units; u++)
                followed +=
                    t[s]->list[i].unit[u] == t[s]->list[i].unit[u - 1] + 1;
    }
    printf("evicted  mean length %4u: %.1f%% of the slots hold entries, "
           "%.1f units in a run\n",
           mean, 100.0 * (double)entries / (double)(units * KV_UNIT),
           (double)units / (double)(units - followed));
}

/* Heads differ by far here too. */
static void evicted(uint32_t mean)
{
    struct kv_layout y;
    struct pool *p = NULL;
    struct table *t[SESSIONS];
    static uint32_t keep[SESSIONS][LAYERS * HEADS];
    struct rng r;
    rng_seed(&r, 7);
    kv_layout_init(&y, KV_F16, 8);
    uint64_t units = (uint64_t)SESSIONS * LAYERS * HEADS *
                     (2 * mean + CHUNK + 2 * KV_UNIT) / KV_UNIT;
    must(pool_new(&p, &y, units * pool_unit_bytes(&y), NULL));
    uint16_t *gone = room(units * sizeof(*gone));
    for (int s = 0; s < SESSIONS; s++) {
        must(table_new(&t[s], p, LAYERS, HEADS, 2 * mean + CHUNK));
        for (int i = 0; i < LAYERS * HEADS; i++)
            keep[s][i] = (uint32_t)(mean * (0.1 + 1.8 * rng_double(&r)));
    }
    for (uint32_t pos = 0; pos < 8 * mean; pos += CHUNK)
        for (int s = 0; s < SESSIONS; s++) {
            grow(t[s], CHUNK, (int32_t)pos);
            memset(gone, 0, units * sizeof(*gone));
            for (int i = 0; i < LAYERS * HEADS; i++)
                choose(&t[s]->list[i], keep[s][i], gone, &r);
            (void)compact_table(t[s], gone);
        }
    report(t, mean);
    for (int s = 0; s < SESSIONS; s++)
        table_free(t[s]);
    free(gone);
    pool_free(p);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 3.0;
    const struct ops *o = ops_best();
    printf("%s kernels, head size %d, %d query heads, lists of %d entries\n",
           o->name, HEAD_DIM, GROUP, ENTRIES);
    for (int t = KV_F16; t <= KV_F32; t++)
        speed(o, (enum kv_type)t, seconds);
    const int means[] = {50, 100, 200, 512, 2048};
    for (size_t i = 0; i < sizeof(means) / sizeof(means[0]); i++)
        fill(means[i]);
    evicted(100);
    evicted(512);
    return 0;
}
