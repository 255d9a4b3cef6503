/* kernels.c - how fast each kernel runs on this machine, on one thread.
 *
 *     kernels [table [seconds per cell [matmul|attend|small]]]
 *
 * matmul: for every weight type and batch size, GB/s of weight bytes (as the
 * kernel reads them) and GOP/s (two operations a product). The matrix is
 * larger than the caches, as a model is.
 * attend: nanoseconds per (KV head, entry) over units scattered in memory.
 * Each cell is the best of short runs, so a busy machine shows less.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "runtime/kernels/ops.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *room(uint64_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 128) / 64 * 64);
    if (p == NULL) {
        fputs("kernels: no memory\n", stderr);
        exit(1);
    }
    return p;
}

static void fill(struct rng *r, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = rng_float(r) - 0.5f;
}

/* Random bytes whose f16 and f32 are all small and finite. */
static void fill_weights(struct rng *r, uint8_t *raw, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(rng_next(r) & 0x33);
}

static void matmul_cell(const struct ops *o, enum dtype type, int64_t n,
                        double seconds)
{
    enum { ROWS = 24576, COLS = 1536, PIECE = 768 };
    const struct dtype_info *info = dtype_info(type);
    uint64_t raw_bytes =
        (uint64_t)ROWS * COLS / info->block_elems * info->block_bytes;
    struct rng r;
    rng_seed(&r, 1);
    struct weight w = {.type = type, .rows = ROWS, .cols = COLS};
    uint8_t *raw = room(raw_bytes);
    fill_weights(&r, raw, raw_bytes);
    w.raw = raw;
    uint64_t bytes = o->weight_bytes(&w);
    w.packed = bytes > 0 ? room(bytes) : NULL;
    o->weight_pack(&w, 0, ROWS);
    float *x = room((uint64_t)(n * COLS) * sizeof(float));
    fill(&r, x, n * COLS);
    struct acts a = {.x = x, .n = n, .cols = COLS};
    a.packed = room(o->act_bytes(n, COLS));
    o->act_pack(&a, 0, n);
    float *y = room((uint64_t)(n * ROWS) * sizeof(float));
    double best = 1e9, end = now() + seconds;
    int64_t row = 0;
    while (now() < end) {
        double t = now();
        o->matmul(&w, &a, row, row + PIECE, y, ROWS);
        t = now() - t;
        best = t < best ? t : best;
        row = (row + PIECE) % ROWS;
    }
    double read = (double)(bytes > 0 ? bytes : raw_bytes) / ROWS * PIECE;
    printf("%-5s n %3d  %6.2f GB/s  %7.1f GOP/s\n", info->name, (int)n,
           read / best * 1e-9, 2.0 * PIECE * COLS * (double)n / best * 1e-9);
    fflush(stdout);
    free(raw);
    free(w.packed);
    free(x);
    free(a.packed);
    free(y);
}

static void bench_matmul(const struct ops *o, double seconds)
{
    static const enum dtype types[] = {
        DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q4_K,
        DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_F16,  DTYPE_BF16, DTYPE_F32};
    static const int64_t batch[] = {1, 2, 4, 8, 64};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (size_t b = 0; b < sizeof(batch) / sizeof(batch[0]); b++)
            matmul_cell(o, types[t], batch[b], seconds);
}

/* One list of n entries in units shuffled over an arena of 64 MiB. */
static void attend_cell(const struct ops *o, enum kv_type type, int group,
                        int n_query, uint32_t head_dim, double seconds)
{
    enum { LEN = 2048, UNITS = LEN / KV_UNIT, ARENA = 64 << 20 };
    struct kv_layout l;
    kv_layout_init(&l, type, head_dim);
    struct rng r;
    rng_seed(&r, 2);
    uint64_t places = ARENA / l.data_bytes, lists = places / UNITS;
    uint8_t *arena = room(ARENA);
    memset(arena, 0, ARENA);
    uint32_t *order = room(places * sizeof(*order));
    for (uint64_t i = 0; i < places; i++) {
        uint64_t j = rng_below(&r, i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
    const uint8_t *unit[UNITS];
    int64_t stride = (int64_t)head_dim * group;
    float *q = room((uint64_t)(stride * n_query) * sizeof(float));
    float *out = room((uint64_t)(stride * n_query) * sizeof(float));
    fill(&r, q, stride * n_query);
    struct attend_args a = {.layout = &l,
                            .unit = unit,
                            .n_visible = LEN - n_query + 1,
                            .n_query = n_query,
                            .group = group,
                            .q = q,
                            .q_stride = stride,
                            .out = out,
                            .out_stride = stride,
                            .scale = 0.125f};
    void *scratch = room(o->attend_scratch_bytes(&a));
    double best = 1e9, end = now() + seconds;
    for (uint64_t i = 0; now() < end; i = (i + 1) % lists) {
        for (int u = 0; u < UNITS; u++)
            unit[u] =
                arena + (uint64_t)order[i * UNITS + (uint64_t)u] * l.data_bytes;
        double t = now();
        o->attend(&a, scratch);
        t = now() - t;
        best = t < best ? t : best;
    }
    double ns = best * 1e9 / LEN;
    printf("attend %-5s d %3u group %d queries %2d  %7.2f ns/entry  %6.1f "
           "GFLOP/s  %5.2f GB/s\n",
           kv_type_name(type), head_dim, group, n_query, ns,
           4.0 * head_dim * group * n_query / ns,
           (double)l.data_bytes / KV_UNIT / ns);
    fflush(stdout);
    free(arena);
    free(order);
    free(q);
    free(out);
    free(scratch);
}

static void bench_attend(const struct ops *o, double seconds)
{
    static const int shapes[][3] = {/* head_dim, group, queries */
                                    {64, 3, 1},  {64, 7, 1},  {64, 1, 1},
                                    {128, 4, 1}, {64, 3, 16}, {64, 7, 16},
                                    {64, 3, 4}};
    for (int t = KV_F16; t <= KV_F32; t++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
            attend_cell(o, (enum kv_type)t, shapes[s][1], shapes[s][2],
                        (uint32_t)shapes[s][0], seconds);
}

enum small_op { RMSNORM, ROPE, SILU_MUL, ADD, ACT_PACK, KV_STORE };

static void small_call(const struct ops *o, enum small_op op, float *x,
                       float *y, const struct acts *a,
                       const struct kv_layout *l, uint8_t *unit)
{
    enum { DIM = 576, FF = 1536, HEADS = 9, HEAD_DIM = 64 };
    switch (op) {
    case RMSNORM:
        o->rmsnorm(y, x, x, DIM, 1e-5f);
        break;
    case ROPE:
        o->rope(x, HEADS, HEAD_DIM, HEAD_DIM, y, true);
        break;
    case SILU_MUL:
        o->silu_mul(y, x, x, FF);
        break;
    case ADD:
        o->add(y, x, DIM);
        break;
    case ACT_PACK:
        o->act_pack(a, 0, 4);
        break;
    case KV_STORE:
        o->kv_store(l, unit, 5, x, y, 0.0f);
        break;
    }
}

static void bench_small(const struct ops *o, double seconds)
{
    enum { COLS = 1536, CALLS = 100 };
    static const char *const name[] = {"rmsnorm 576",       "rope 9 x 64",
                                       "silu_mul 1536",     "add 576",
                                       "act_pack 4 x 1536", "kv_store f16 64"};
    struct rng r;
    rng_seed(&r, 3);
    float *x = room(4 * COLS * sizeof(float));
    float *y = room(4 * COLS * sizeof(float));
    fill(&r, x, 4 * COLS);
    fill(&r, y, 4 * COLS);
    struct acts a = {.x = x, .n = 4, .cols = COLS};
    a.packed = room(o->act_bytes(4, COLS));
    struct kv_layout l;
    kv_layout_init(&l, KV_F16, 64);
    uint8_t *unit = room(l.data_bytes);
    for (int op = RMSNORM; op <= KV_STORE; op++) {
        double best = 1e9, end = now() + seconds / 4;
        while (now() < end) {
            double t = now();
            for (int i = 0; i < CALLS; i++)
                small_call(o, (enum small_op)op, x, y, &a, &l, unit);
            t = now() - t;
            best = t < best ? t : best;
        }
        printf("%-18s %8.1f ns\n", name[op], best * 1e9 / CALLS);
    }
    free(x);
    free(y);
    free(a.packed);
    free(unit);
}

int main(int argc, char **argv)
{
    const struct ops *o = argc > 1 ? ops_find(argv[1]) : ops_best();
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 0.2;
    const char *what = argc > 3 ? argv[3] : "";
    if (o == NULL) {
        fprintf(stderr, "kernels: no table \"%s\" runs here\n", argv[1]);
        return 1;
    }
    printf("table %s\n", o->name);
    if (what[0] == '\0' || strcmp(what, "matmul") == 0)
        bench_matmul(o, seconds);
    if (what[0] == '\0' || strcmp(what, "attend") == 0)
        bench_attend(o, seconds);
    if (what[0] == '\0' || strcmp(what, "small") == 0)
        bench_small(o, seconds);
    return 0;
}
