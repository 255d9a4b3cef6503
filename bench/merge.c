/* merge.c - what a merge costs for each entry that leaves, beside dropping it.
 *
 *     merge [entries of a list]
 *
 * One list of one KV head with values of 64 numbers, of which three quarters
 * leave, chosen at random; every fate, every KV type, one thread. Printed are
 * microseconds for each entry that leaves (the fastest of the rounds), the
 * scratch, and how many found a host. The fates that compare every key with
 * every other run on at most 2,048 entries. And what stage 1 and 2 of SelKV
 * cost for each entry of the list.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "merge/apply.h"
#include "merge/band.h"
#include "runtime/kernels/quant.h"

enum { HEAD_DIM = 64, ROUNDS = 7, ALL_PAIRS_MAX = 2048 };

struct world {
    struct kv_layout layout;
    uint8_t *data;
    struct kv_meta *meta_of;
    uint8_t **unit;
    const struct kv_meta **meta;
    uint16_t *leaves, *band;
    float *mass, *column, *ratio;
    struct apply_list l;
};

static void *must_alloc(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);
    if (p == NULL) {
        fputs("merge: out of memory\n", stderr);
        exit(1);
    }
    memset(p, 0, n);
    return p;
}

static void fill(struct world *w, struct rng *r, uint32_t e)
{
    float k[HEAD_DIM], v[HEAD_DIM];
    for (int i = 0; i < HEAD_DIM; i++) {
        k[i] = rng_float(r) - 0.3f;
        v[i] = rng_float(r) - 0.3f;
    }
    ops_best()->kv_store(&w->layout, w->unit[e / KV_UNIT], e % KV_UNIT, k, v,
                         0);
    w->meta_of[e / KV_UNIT].pos[e % KV_UNIT] = (int32_t)e;
    w->mass[e] = rng_float(r);
    w->column[e] = rng_float(r);
    for (int c = 0; c < BAND_CELLS; c++)
        w->band[(size_t)e * BAND_CELLS + (size_t)c] =
            quant_f32_to_f16(rng_float(r));
    if (rng_below(r, 4) > 0)
        w->leaves[e / KV_UNIT] |= (uint16_t)(1u << e % KV_UNIT);
}

static void new_world(struct world *w, enum kv_type type, uint32_t n)
{
    struct rng r;
    uint32_t units = (n + KV_UNIT - 1) / KV_UNIT;
    rng_seed(&r, 1);
    kv_layout_init(&w->layout, type, HEAD_DIM);
    w->data = must_alloc((size_t)units * w->layout.data_bytes);
    w->meta_of = must_alloc(units * sizeof(*w->meta_of));
    w->unit = must_alloc(units * sizeof(*w->unit));
    w->meta = must_alloc(units * sizeof(*w->meta));
    w->leaves = must_alloc(units * sizeof(*w->leaves));
    w->band = must_alloc((size_t)n * BAND_BYTES);
    w->mass = must_alloc(n * sizeof(float));
    w->column = must_alloc(n * sizeof(float));
    w->ratio = must_alloc(n * sizeof(float));
    for (uint32_t u = 0; u < units; u++) {
        w->unit[u] = w->data + (size_t)u * w->layout.data_bytes;
        w->meta[u] = &w->meta_of[u];
    }
    for (uint32_t e = 0; e < n; e++)
        fill(w, &r, e);
    w->l = (struct apply_list){.layout = &w->layout,
                               .unit = w->unit,
                               .meta = w->meta,
                               .n = n,
                               .n_seen = n,
                               .leaves = w->leaves,
                               .mass = w->mass,
                               .column = w->column,
                               .band = w->band};
}

static void end_world(struct world *w)
{
    free(w->data), free(w->meta_of), free(w->unit), free(w->meta);
    free(w->leaves), free(w->band), free(w->mass), free(w->column);
    free(w->ratio);
}

static void time_fate(const struct fate *f, enum kv_type type, uint32_t n)
{
    struct world w;
    struct merge_counts c = {0};
    const struct merge_options o = merge_options_default();
    const struct apply_how how = {f, &o, ops_best()};
    int64_t best = INT64_MAX;
    if (f->needs & FATE_KEYS && !f->by_bucket && n > ALL_PAIRS_MAX)
        n = ALL_PAIRS_MAX;
    new_world(&w, type, n);
    size_t bytes = apply_scratch_bytes(f, n, HEAD_DIM);
    void *scratch = must_alloc(bytes);
    for (int i = 0; i < ROUNDS; i++) {
        memset(&c, 0, sizeof(c));
        int64_t t = clock_us();
        apply_values(&w.l, &how, w.ratio, &c, scratch);
        apply_bias(&w.l, &o, w.ratio);
        t = clock_us() - t;
        best = t < best ? t : best;
    }
    printf("  %-10s %-4s %6u entries  %8.3f us each  scratch %7zu B  "
           "routed %.2f\n",
           f->name, kv_type_name(type), n, (double)best / (double)c.evicted,
           bytes, merge_routed_share(&c));
    fflush(stdout);
    free(scratch);
    end_world(&w);
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 8192;
    if (n < 64 || n > 1000000) {
        fputs("usage: merge [entries of a list, 64 to 1000000]\n", stderr);
        return 2;
    }
    for (uint32_t f = 0; fate_at(f) != NULL; f++)
        for (int t = KV_F16; t <= KV_F32; t++)
            time_fate(fate_at(f), (enum kv_type)t, (uint32_t)n);
    return 0;
}
