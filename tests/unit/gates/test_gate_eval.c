/* The gates' forward pass, on every table of kernels, against the formula in
 * double precision. */
#include "tests/unit/gates/gate_check.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "gates/gate_eval.h"
#include "runtime/kernels/quant.h"

enum { TABLES = 2, ROWS = 9 };

static const struct gate_shape SHAPES[] = {
    {2, 576, 3, 128, GATE_RG10}, {1, 896, 2, 128, GATE_RG10},
    {3, 64, 8, 512, GATE_RG10},  {2, 30, 5, 7, GATE_RG10},
    {1, 1, 1, 1, GATE_RG10},     {2, 576, 3, 64, GATE_RG},
    {2, 30, 5, 7, GATE_RG},
};
enum { N_SHAPES = sizeof(SHAPES) / sizeof(SHAPES[0]) };

static const struct ops *table(int i)
{
    static const char *const names[TABLES] = {"reference", "avx2"};
    const struct ops *o = ops_find(names[i]);
    if (o == NULL)
        fprintf(stderr, "SKIPPED: this CPU or OS cannot run %s\n", names[i]);
    return o;
}

static float *floats(size_t n)
{
    float *p = calloc(n + 1, sizeof(*p));
    assert_non_null(p);
    return p;
}

/* n rows of one layer, as a model step would compute them. */
static void forward(const struct gate_eval *e, uint32_t layer, const float *x,
                    int64_t n, float *log_beta)
{
    const struct gate_eval_layer *l = &e->layer[layer];
    int64_t m = e->shape.width;
    float *h1 = floats((size_t)(n * m)), *h2 = floats((size_t)(n * m));
    const float *last = h1;
    struct acts a = {.x = x, .n = n, .cols = e->shape.n_embd};
    e->ops->matmul(&l->w1, &a, 0, m, h1, m);
    gate_eval_activate(e, l->c1, h1, n);
    if (l->w2.rows > 0) {
        a = (struct acts){.x = h1, .n = n, .cols = m};
        e->ops->matmul(&l->w2, &a, 0, m, h2, m);
        gate_eval_activate(e, l->c2, h2, n);
        last = h2;
    }
    gate_eval_log_beta(e, l, last, n, log_beta);
    free(h1);
    free(h2);
}

struct setup {
    struct gate_eval e;
    void *memory;
    float *x, *log_beta; /* [ROWS][n_embd], [ROWS][n_kv_heads] */
};

static void setup_init(struct setup *s, const struct gate *g,
                       const struct ops *ops)
{
    struct rng r;
    rng_seed(&r, 5);
    size_t bytes = gate_eval_bytes(g), n = (size_t)ROWS * g->shape.n_embd;
    s->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(s->memory);
    memset(s->memory, 0xff, bytes); /* NaNs where nothing is written */
    gate_eval_init(&s->e, g, ops, s->memory);
    s->x = floats(n);
    s->log_beta = floats((size_t)ROWS * g->shape.n_kv_heads);
    for (size_t i = 0; i < n; i++)
        s->x[i] = gate_check_normal(&r);
}

static void setup_fini(struct setup *s)
{
    free(s->memory);
    free(s->x);
    free(s->log_beta);
}

static void check_against_double(const struct gate *g, const struct ops *ops,
                                 double tolerance)
{
    struct setup s;
    double want[8], x[1024];
    uint32_t H = g->shape.n_kv_heads, E = g->shape.n_embd;
    setup_init(&s, g, ops);
    for (uint32_t l = 0; l < g->shape.n_layers; l++) {
        forward(&s.e, l, s.x, ROWS, s.log_beta);
        for (int i = 0; i < ROWS; i++) {
            for (uint32_t k = 0; k < E; k++)
                x[k] = (double)s.x[(uint32_t)i * E + k];
            gate_check_log_beta(g, l, x, want);
            for (uint32_t h = 0; h < H; h++) {
                double got = (double)s.log_beta[(uint32_t)i * H + h];
                if (!(fabs(got - want[h]) <= tolerance * fabs(want[h])))
                    fail_msg("%s, layer %u row %d head %u: %.9g, not %.9g",
                             ops->name, l, i, h, got, want[h]);
            }
        }
    }
    setup_fini(&s);
}

/* c3 from -3 (forgotten at once) to 18 (log_beta near -1e-8: what float16
 * would flush to zero). */
static void log_beta_is_within_a_thousandth_of_the_formula(void **state)
{
    static const float last[] = {-3.0f, 0.0f, 5.0f, 18.0f};
    (void)state;
    for (int t = 0; t < TABLES; t++)
        for (int i = 0; i < N_SHAPES && table(t) != NULL; i++)
            for (int k = 0; k < 4; k++) {
                struct gate *g =
                    gate_check_random(&SHAPES[i], last[k], (uint64_t)(i + 1));
                check_against_double(g, table(t), 1e-3);
                gate_free(g);
            }
}

/* Trained gates are stored as f16, and nothing is lost on the way from the
 * file. */
static void gates_of_halves_are_computed_as_exactly_as_floats(void **state)
{
    (void)state;
    for (int t = 0; t < TABLES; t++)
        for (int i = 0; i < N_SHAPES && table(t) != NULL; i++) {
            struct gate *g = gate_check_random(&SHAPES[i], 18.0f, 3);
            for (size_t k = 0; k < gate_n_params(g); k++)
                g->p[k] = quant_f16_to_f32(quant_f32_to_f16(g->p[k]));
            check_against_double(g, table(t), 1e-5);
            gate_free(g);
        }
}

static void a_row_is_the_same_bits_alone_and_in_any_chunk(void **state)
{
    (void)state;
    for (int t = 0; t < TABLES; t++)
        for (int i = 0; i < N_SHAPES && table(t) != NULL; i++) {
            struct gate *g = gate_check_random(&SHAPES[i], 3.0f, 9);
            struct setup s;
            size_t H = g->shape.n_kv_heads, E = g->shape.n_embd;
            float *got = floats(ROWS * H);
            setup_init(&s, g, table(t));
            forward(&s.e, 0, s.x, ROWS, s.log_beta);
            for (size_t chunk = 1; chunk < ROWS; chunk++)
                for (size_t at = 0; at < ROWS; at += chunk) {
                    size_t n = ROWS - at < chunk ? ROWS - at : chunk;
                    forward(&s.e, 0, s.x + at * E, (int64_t)n, got);
                    assert_memory_equal(got, s.log_beta + at * H,
                                        n * H * sizeof(float));
                }
            setup_fini(&s);
            free(got);
            gate_free(g);
        }
}

static void log_sigmoid_is_right_from_end_to_end(void **state)
{
    (void)state;
    for (int i = -20000; i <= 8700; i++) {
        double z = i * 0.01;
        double want = gate_check_log_sigmoid((double)(float)z);
        double got = (double)gate_eval_log_sigmoid((float)z);
        if (!(fabs(got - want) <= 1e-6 * fabs(want)))
            fail_msg("at %g: %.9g, not %.9g", z, got, want);
    }
    /* Below 2^-126 a float has fewer bits, then none. */
    assert_true(gate_eval_log_sigmoid(95.0f) < 0.0f);
    for (int i = 0; i < 2; i++) {
        float z = i == 0 ? 200.0f : INFINITY;
        assert_true(gate_eval_log_sigmoid(z) == 0.0f);
        assert_false(signbit(gate_eval_log_sigmoid(z)));
    }
    assert_true(gate_eval_log_sigmoid(-FLT_MAX) == -FLT_MAX);
    assert_true(gate_eval_log_sigmoid(-INFINITY) == -FLT_MAX);
    assert_true(gate_eval_log_sigmoid(NAN) == 0.0f);
}

/* The last projection pulls down whatever comes: only NaN would end as 0. */
static void the_largest_gates_overflow_nothing(void **state)
{
    const float most = (float)GATE_PARAM_MAX;
    (void)state;
    for (int t = 0; t < TABLES; t++)
        for (int i = 0; i < N_SHAPES && table(t) != NULL; i++) {
            struct gate *g = gate_check_random(&SHAPES[i], 0.0f, 2);
            struct setup s;
            for (size_t k = 0; k < gate_n_params(g); k++)
                g->p[k] = k % g->parts.n < g->parts.w3 && g->p[k] > 0.0f
                              ? most
                              : -most;
            setup_init(&s, g, table(t));
            for (size_t k = 0; k < (size_t)ROWS * g->shape.n_embd; k++)
                s.x[k] *= 1000.0f;
            for (uint32_t l = 0; l < g->shape.n_layers; l++) {
                forward(&s.e, l, s.x, ROWS, s.log_beta);
                for (size_t k = 0; k < ROWS * (size_t)g->shape.n_kv_heads; k++)
                    assert_true(s.log_beta[k] < 0.0f &&
                                s.log_beta[k] > -FLT_MAX);
            }
            setup_fini(&s);
            gate_free(g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_beta_is_within_a_thousandth_of_the_formula),
        cmocka_unit_test(gates_of_halves_are_computed_as_exactly_as_floats),
        cmocka_unit_test(a_row_is_the_same_bits_alone_and_in_any_chunk),
        cmocka_unit_test(log_sigmoid_is_right_from_end_to_end),
        cmocka_unit_test(the_largest_gates_overflow_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
