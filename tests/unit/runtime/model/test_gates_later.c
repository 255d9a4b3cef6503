/* Gates that run after several steps give the bits of gates that run in each.
 */
#include "tests/unit/runtime/model/gates_rig.h"

enum {
    SEQUENCES = MAX_RUNS,
    LENGTH = 120, /* of a sequence at most */
    STEPS = CHECK_IS_SANITIZED ? 60 : 150,
    /* What the header of the model leaves open, in numbers. */
    SMALL_STEP = 4,
    WAITING_MAX = 16
};

/* Two models with the same gates and sequences: the first defers where it may,
 * the second never. */
struct pair {
    struct rig rig[2];
    struct table *t[2][SEQUENCES];
    uint32_t waiting; /* of the first, as it should be */
};

static void open_pair(struct pair *p, const char *name, const struct ops *ops,
                      int n_threads, const struct gate *g)
{
    memset(p, 0, sizeof(*p));
    for (int k = 0; k < 2; k++) {
        open_tiny(&p->rig[k], name, ops, KV_F16, n_threads);
        set_gates(&p->rig[k], g);
        for (int s = 0; s < SEQUENCES; s++)
            p->t[k][s] = rig_table(&p->rig[k]);
    }
}

static void close_pair(struct pair *p)
{
    for (int k = 0; k < 2; k++) {
        for (int s = 0; s < SEQUENCES; s++)
            table_free(p->t[k][s]);
        rig_close(&p->rig[k]);
    }
}

/* n[s] more tokens of each sequence in one step; may: the first model may
 * defer. */
static void step(struct pair *p, const uint32_t n[SEQUENCES], bool may,
                 struct rng *rng)
{
    int32_t tokens[MAX_ROWS];
    uint32_t rows = 0;
    for (int s = 0; s < SEQUENCES; s++)
        rows += n[s];
    make_tokens(tokens, rows, p->rig[0].n_vocab, rng_next(rng));
    for (int k = 0; k < 2; k++) {
        struct model_run run[SEQUENCES];
        struct model_batch b = {.n_rows = rows,
                                .tokens = tokens,
                                .runs = run,
                                .defer_gates = may && k == 0};
        for (int s = 0; s < SEQUENCES; s++) {
            if (n[s] == 0)
                continue;
            run[b.n_runs++] =
                (struct model_run){.table = p->t[k][s],
                                   .n_rows = n[s],
                                   .pos = p->t[k][s]->list[0].len};
            rig_grow(&p->rig[k], p->t[k][s], n[s]);
        }
        model_step(p->rig[k].model, &b);
    }
    if (!may || rows > SMALL_STEP)
        p->waiting = 0;
    else
        p->waiting = p->waiting + rows > WAITING_MAX ? rows : p->waiting + rows;
}

static uint32_t count_missing(const struct table *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_layers * t->n_kv_heads; i++) {
        const struct kv_list *l = &t->list[i];
        for (uint32_t e = 0; e < l->len; e++)
            n += kv_is_deferred(pool_meta(t->pool, l->unit[e / KV_UNIT]),
                                e % KV_UNIT);
    }
    return n;
}

/* Rows that wait are counted, and exactly their entries say so. */
static void check_waiting(const struct pair *p)
{
    uint32_t missing = 0;
    const struct table *t = p->t[0][0];
    for (int s = 0; s < SEQUENCES; s++) {
        missing += count_missing(p->t[0][s]);
        assert_int_equal(count_missing(p->t[1][s]), 0);
    }
    assert_int_equal(model_n_deferred(p->rig[0].model), p->waiting);
    assert_int_equal(model_n_deferred(p->rig[1].model), 0);
    assert_int_equal(missing, p->waiting * t->n_layers * t->n_kv_heads);
}

static void check_equal(struct pair *p)
{
    model_finish_gates(p->rig[0].model);
    p->waiting = 0;
    check_waiting(p);
    for (int s = 0; s < SEQUENCES; s++) {
        size_t n[2];
        float *a = read_all(p->t[0][s], &n[0]),
              *b = read_all(p->t[1][s], &n[1]);
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(a, b, n[0] * sizeof(*a));
        for (size_t i = 0; i < n[0]; i++)
            assert_true(a[i] <= 0);
        free(a);
        free(b);
    }
}

/* Sequences that come and go, chunks between single tokens, steps that may not
 * defer, and results that are asked for at any time. */
static void random_steps(struct pair *p, uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, seed);
    for (int i = 0; i < STEPS; i++) {
        uint32_t n[SEQUENCES], most = rng_below(&rng, 8) ? 1 : 7, rows = 0;
        for (int s = 0; s < SEQUENCES; s++) {
            n[s] = (uint32_t)rng_below(&rng, most + 1);
            if (p->t[0][s]->list[0].len + n[s] > LENGTH)
                n[s] = 0;
            rows += n[s];
        }
        if (rows == 0)
            continue;
        step(p, n, rng_below(&rng, 10) > 0, &rng);
        check_waiting(p);
        if (rng_below(&rng, 12) == 0)
            check_equal(p);
    }
    check_equal(p);
}

static void later_gates_give_the_same_bits(void **state)
{
    static const char *const names[] = {"llama-gqa3-64", "qwen3-gqa4-80-k"};
    static const char *const tables[] = {"reference", "avx2"};
    (void)state;
    for (int i = 0; i < 2 * 2 * 2; i++) {
        const struct ops *ops = ops_find(tables[i % 2]);
        struct pair p;
        struct rig r;
        if (ops == NULL || (CHECK_IS_SANITIZED && i % 2 == 0))
            continue;
        open_tiny(&r, names[i / 4], ops, KV_F16, 1);
        struct gate *g = gates_for(&r, i / 2 % 2 ? GATE_RG : GATE_RG10);
        rig_close(&r);
        open_pair(&p, names[i / 4], ops, 1 + i % 3, g);
        random_steps(&p, (uint64_t)i);
        close_pair(&p);
        gate_free(g);
    }
}

/* Who does not ask for it has log_beta at once, also of rows of others. */
static void a_step_that_does_not_ask_leaves_nothing_to_come(void **state)
{
    static const uint32_t one[SEQUENCES] = {1, 0, 0, 0}, other[] = {0, 1, 0, 0},
                          none[SEQUENCES] = {0, 0, 5, 0};
    struct pair p;
    struct rig r;
    struct rng rng;
    (void)state;
    rng_seed(&rng, 3);
    open_tiny(&r, "llama-gqa3-64", ops_best(), KV_F16, 1);
    struct gate *g = gates_for(&r, GATE_RG10);
    rig_close(&r);
    open_pair(&p, "llama-gqa3-64", ops_best(), 2, g);
    for (int k = 0; k < 2; k++) {
        step(&p, one, true, &rng);
        assert_int_equal(count_missing(p.t[0][0]) > 0, 1);
        step(&p, k == 0 ? other : none, k == 1, &rng);
        for (int s = 0; s < SEQUENCES; s++)
            assert_int_equal(count_missing(p.t[0][s]), 0);
    }
    check_equal(&p);
    close_pair(&p);
    gate_free(g);
}

static void without_gates_there_is_nothing_to_come(void **state)
{
    struct rig r;
    (void)state;
    open_tiny(&r, "llama-gqa3-64", ops_best(), KV_F16, 1);
    struct table *t = rig_table(&r);
    const int32_t token = 1;
    const struct model_run run = {.table = t, .n_rows = 1};
    const struct model_batch b = {.n_rows = 1,
                                  .tokens = &token,
                                  .n_runs = 1,
                                  .runs = &run,
                                  .defer_gates = true};
    rig_grow(&r, t, 1);
    model_step(r.model, &b);
    assert_int_equal(model_n_deferred(r.model), 0);
    assert_int_equal(count_missing(t), 0);
    model_finish_gates(r.model);
    assert_true(log_beta_of(t, 0, 0, 0) == 0);
    table_free(t);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(later_gates_give_the_same_bits),
        cmocka_unit_test(a_step_that_does_not_ask_leaves_nothing_to_come),
        cmocka_unit_test(without_gates_there_is_nothing_to_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
