/* A token's logits are the same bits however it was computed: alone or beside
 * others, as a chunk or one by one, on any number of threads, in a table of
 * its own or on shared units. */
#include "tests/unit/runtime/model/tiny_models.h"

#include "base/rng.h"
#include "base/workers.h"

enum {
    SEQUENCES = 5,
    STREAMS = 3,
    MAX_LEN = 640,
    MAX_ROWS = 256,
    /* With a sanitizer, memory and races are looked at, not many cases. */
    STEPS = CHECK_IS_SANITIZED ? 8 : 40
};

struct streams {
    uint32_t len;
    int32_t token[STREAMS][MAX_LEN];
    float *logits[STREAMS]; /* [len][n_vocab], computed alone on one thread */
};

struct sequence {
    struct table *table;
    uint32_t stream, pos;
};

static void open_tiny(struct rig *r, const char *name, const struct ops *ops,
                      enum kv_type kv_type, int n_threads)
{
    const struct rig_options o = {.ops = ops,
                                  .n_threads = n_threads,
                                  .kv_type = kv_type,
                                  .max_rows = MAX_ROWS,
                                  .max_runs = SEQUENCES,
                                  .max_context = MAX_LEN,
                                  .kv_bytes = 32 << 20};
    tiny_open(r, name, &o);
}

static float *alone(const struct rig *r, const int32_t *tokens, uint32_t len,
                    uint32_t chunk)
{
    uint32_t all[MAX_LEN];
    for (uint32_t i = 0; i < len; i++)
        all[i] = i;
    float *logits = malloc(sizeof(*logits) * len * r->n_vocab);
    assert_non_null(logits);
    struct table *t = rig_table(r);
    rig_feed(r, t, tokens, len, chunk, all, len, logits);
    table_free(t);
    return logits;
}

static void make_streams(struct streams *s, const struct rig *r, uint32_t len)
{
    struct rng rng;
    rng_seed(&rng, 11);
    s->len = len;
    for (int i = 0; i < STREAMS; i++) {
        for (uint32_t k = 0; k < len; k++)
            s->token[i][k] = (int32_t)rng_below(&rng, r->n_vocab);
        s->logits[i] = alone(r, s->token[i], len, 64);
    }
}

/* Adds a run of a random length to the batch, if there is room for it. */
static void add_run(const struct rig *r, struct sequence *q,
                    const struct streams *s, struct rng *rng,
                    struct model_batch *b, struct model_run *runs,
                    int32_t *tokens)
{
    static const uint32_t sizes[] = {1, 1, 1, 2, 5, 16, 17, 33, 90, 200};
    uint32_t n = sizes[rng_below(rng, sizeof(sizes) / sizeof(sizes[0]))];
    uint32_t left = s->len - q->pos;
    n = n < left ? n : left;
    n = n < MAX_ROWS - b->n_rows ? n : MAX_ROWS - b->n_rows;
    if (n == 0)
        return;
    memcpy(tokens + b->n_rows, &s->token[q->stream][q->pos],
           n * sizeof(*tokens));
    rig_grow(r, q->table, n);
    runs[b->n_runs++] =
        (struct model_run){.table = q->table, .n_rows = n, .pos = q->pos};
    b->n_rows += n;
}

static void random_step(const struct rig *r, struct sequence *q,
                        const struct streams *s, struct rng *rng, float *got)
{
    int32_t tokens[MAX_ROWS];
    uint32_t rows[MAX_ROWS];
    struct model_run runs[SEQUENCES];
    struct model_batch b = {
        .tokens = tokens, .runs = runs, .logit_rows = rows, .logits = got};
    struct sequence *of[SEQUENCES];
    uint32_t first = (uint32_t)rng_below(rng, SEQUENCES);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        uint32_t before = b.n_runs;
        struct sequence *x = &q[(first + i) % SEQUENCES];
        add_run(r, x, s, rng, &b, runs, tokens);
        if (b.n_runs > before)
            of[before] = x;
    }
    for (uint32_t i = 0; i < b.n_rows; i++)
        rows[i] = i;
    b.n_logits = b.n_rows;
    model_step(r->model, &b);
    for (uint32_t k = 0; k < b.n_runs; k++) {
        size_t bytes = sizeof(float) * runs[k].n_rows * r->n_vocab;
        assert_memory_equal(
            got, s->logits[of[k]->stream] + (size_t)runs[k].pos * r->n_vocab,
            bytes);
        got += (size_t)runs[k].n_rows * r->n_vocab;
        of[k]->pos += runs[k].n_rows;
    }
}

/* One sequence goes back to the beginning of another, or of itself. */
static void random_fork(struct sequence *q, struct rng *rng)
{
    struct sequence *to = &q[rng_below(rng, SEQUENCES)];
    const struct sequence *from = &q[rng_below(rng, SEQUENCES)];
    uint32_t n = (uint32_t)rng_below(rng, from->pos + 1);
    struct table *t = NULL;
    if (to == from) {
        table_truncate(to->table, n);
        to->pos = n;
        return;
    }
    assert_int_equal(table_fork(&t, from->table, n, MAX_LEN), OK);
    table_free(to->table);
    *to = (struct sequence){.table = t, .stream = from->stream, .pos = n};
}

static void play(const struct rig *r, const struct streams *s, uint64_t seed)
{
    struct sequence q[SEQUENCES];
    struct rng rng;
    float *got = malloc(sizeof(*got) * MAX_ROWS * r->n_vocab);
    assert_non_null(got);
    rng_seed(&rng, seed);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        q[i] = (struct sequence){.table = rig_table(r), .stream = i % STREAMS};
    for (int step = 0; step < STEPS; step++) {
        if (rng_below(&rng, 3) == 0)
            random_fork(q, &rng);
        random_step(r, q, s, &rng, got);
    }
    for (uint32_t i = 0; i < SEQUENCES; i++)
        table_free(q[i].table);
    assert_int_equal(pool_stats(r->pool).used, 0);
    free(got);
}

static void check_table_of(const char *table, const char *name,
                           enum kv_type kv_type, uint32_t len)
{
    static const uint32_t chunks[] = {1, 7, 256};
    const struct ops *ops = ops_find(table);
    struct streams s;
    struct rig r;
    if (!ops) {
        fprintf(stderr, "SKIPPED: this CPU or OS cannot run %s\n", table);
        return;
    }
    open_tiny(&r, name, ops, kv_type, 1);
    make_streams(&s, &r, len);
    for (int i = 0; i < 3; i++) {
        float *x = alone(&r, s.token[0], len, chunks[i]);
        assert_memory_equal(x, s.logits[0], sizeof(*x) * len * r.n_vocab);
        free(x);
    }
    rig_close(&r);
    for (int n = 1; n <= 3; n++) {
        open_tiny(&r, name, ops, kv_type, n);
        play(&r, &s, (uint64_t)n);
        rig_close(&r);
    }
    for (int i = 0; i < STREAMS; i++)
        free(s.logits[i]);
}

static void reference_kernels_give_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    if (CHECK_IS_SANITIZED) {
        check_table_of("reference", "llama-gqa3-64", KV_Q8_0, 20);
        return;
    }
    check_table_of("reference", "llama-gqa3-64", KV_F16, 70);
    check_table_of("reference", "llama-gqa3-64", KV_Q8_0, 70);
    check_table_of("reference", "llama-gqa3-64", KV_F32, 70);
}

/* Long enough for lists of two segments, which are split over threads. */
static void avx2_kernels_give_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    if (CHECK_IS_SANITIZED) {
        check_table_of("avx2", "llama-gqa3-64", KV_F16, 70);
        check_table_of("avx2", "qwen3-gqa4-80-k", KV_Q8_0, 30);
        return;
    }
    check_table_of("avx2", "llama-gqa3-64", KV_F16, 560);
    check_table_of("avx2", "llama-gqa3-64", KV_Q8_0, 560);
    check_table_of("avx2", "llama-gqa3-64", KV_F32, 560);
    check_table_of("avx2", "qwen2-gqa7-64", KV_F16, 130);
    check_table_of("avx2", "qwen2-mha-128", KV_Q8_0, 130);
    check_table_of("avx2", "qwen3-gqa3-96", KV_F16, 130);
    check_table_of("avx2", "qwen3-gqa4-80-k", KV_F16, 130);
    check_table_of("avx2", "llama-gqa2-128-k", KV_F32, 130);
    check_table_of("avx2", "llama-gqa2-96-linear", KV_F16, 130);
}

static void a_list_split_over_threads_gives_the_same_bits(void **state)
{
    (void)state;
    struct rig r;
    const struct ops *ops = CHECK_IS_SANITIZED ? ops_best() : &ops_reference;
    open_tiny(&r, "llama-gqa3-64", ops, KV_F16, 1);
    int32_t tokens[530];
    for (int i = 0; i < 530; i++)
        tokens[i] = i * 7 % 251;
    /* 512 tokens at once; then one by one beyond the first segment. */
    float *want = alone(&r, tokens, 530, 256);
    rig_close(&r);
    open_tiny(&r, "llama-gqa3-64", ops, KV_F16, 2);
    uint32_t rows[18];
    float *got = malloc(sizeof(*got) * 18 * r.n_vocab);
    assert_non_null(got);
    for (uint32_t i = 0; i < 18; i++)
        rows[i] = i;
    struct table *t = rig_table(&r);
    rig_feed(&r, t, tokens, 512, 256, rows, 0, got);
    rig_feed(&r, t, tokens + 512, 18, 1, rows, 18, got);
    assert_memory_equal(got, want + (size_t)512 * r.n_vocab,
                        sizeof(*got) * 18 * r.n_vocab);
    table_free(t);
    rig_close(&r);
    free(got);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_kernels_give_the_same_bits_in_any_batch),
        cmocka_unit_test(avx2_kernels_give_the_same_bits_in_any_batch),
        cmocka_unit_test(a_list_split_over_threads_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
