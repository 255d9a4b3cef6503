#include "kernels_check.h"

static const enum dtype TYPES[] = {
    DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1,
    DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
enum { N_TYPES = sizeof(TYPES) / sizeof(TYPES[0]) };

/* One matrix with activations, and room for the products. */
struct problem {
    const struct ops *ops;
    struct weight w;
    uint8_t *raw;
    float *dense; /* [rows][cols] */
    float *x;     /* [n][cols] */
    float *y;     /* [n][rows] */
    double *want; /* [n][rows] */
    double power; /* sum of the squares of all terms of all products */
    int64_t n;
};

static struct problem problem_new(const struct ops *ops, enum dtype type,
                                  int64_t rows, int64_t cols, int64_t n,
                                  uint64_t seed)
{
    const struct dtype_info *info = dtype_info(type);
    struct problem p = {.ops = ops, .n = n};
    struct rng r;
    rng_seed(&r, seed);
    int64_t bytes = rows * cols / info->block_elems * info->block_bytes;
    p.raw = check_alloc((uint64_t)bytes);
    check_blocks(&r, type, p.raw, rows * cols);
    p.dense = check_alloc((uint64_t)(rows * cols) * sizeof(float));
    quant_dequantize(type, p.raw, p.dense, (size_t)(rows * cols));
    p.x = check_alloc((uint64_t)(n * cols) * sizeof(float));
    check_fill(&r, p.x, n * cols);
    p.y = check_alloc((uint64_t)(n * rows) * sizeof(float));
    p.want = check_alloc((uint64_t)(n * rows) * sizeof(double));
    p.w =
        (struct weight){.type = type, .rows = rows, .cols = cols, .raw = p.raw};
    uint64_t packed = ops->weight_bytes(&p.w);
    if (packed > 0) {
        p.w.packed = check_alloc(packed);
        memset(p.w.packed, 0xFF, packed);
        /* In two parts, as threads would. */
        int64_t cut = rows > OPS_ROW_TILE ? OPS_ROW_TILE : 0;
        ops->weight_pack(&p.w, cut, rows);
        ops->weight_pack(&p.w, 0, cut);
    }
    return p;
}

static void problem_free(struct problem *p)
{
    free(p->raw);
    free(p->dense);
    free(p->x);
    free(p->y);
    free(p->want);
    free(p->w.packed);
}

/* The squared error relative to the terms' power, which unlike that of the
 * sums cannot vanish by cancellation. */
static double relative_error(const struct problem *p)
{
    double error = 0;
    for (int64_t i = 0; i < p->n * p->w.rows; i++) {
        double e = (double)p->y[i] - p->want[i];
        error += e * e;
    }
    return error / p->power;
}

static void want_products(struct problem *p)
{
    int64_t rows = p->w.rows, cols = p->w.cols;
    for (int64_t t = 0; t < p->n; t++) {
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0;
            for (int64_t c = 0; c < cols; c++) {
                double term =
                    (double)p->dense[r * cols + c] * (double)p->x[t * cols + c];
                sum += term;
                p->power += term * term;
            }
            p->want[t * rows + r] = sum;
        }
    }
}

static bool is_float(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

/* The packed form, made in two parts; NULL for weights of floating point,
 * which need none. */
static void *pack(const struct problem *p, const struct acts *a)
{
    if (is_float(p->w.type)) {
        assert_null(p->w.packed);
        return NULL;
    }
    struct acts to = *a;
    uint64_t bytes = p->ops->act_bytes(a->n, a->cols);
    int64_t cut = a->n > OPS_ACT_TILE ? OPS_ACT_TILE : 0;
    to.packed = check_alloc(bytes);
    memset(to.packed, 0xFF, bytes);
    p->ops->act_pack(&to, cut, a->n);
    p->ops->act_pack(&to, 0, cut);
    return to.packed;
}

/* Multiplies activation rows [t0, t0 + n) alone, weight rows in ranges of
 * `step` rows, into y[n][rows]. */
static void multiply(struct problem *p, int64_t t0, int64_t n, int64_t step,
                     float *y)
{
    struct acts a = {.x = p->x + t0 * p->w.cols, .n = n, .cols = p->w.cols};
    a.packed = pack(p, &a);
    for (int64_t r = 0; r < p->w.rows; r += step) {
        int64_t end = r + step < p->w.rows ? r + step : p->w.rows;
        p->ops->matmul(&p->w, &a, r, end, y, p->w.rows);
    }
    free(a.packed);
}

/* 16-bit activations: a step is amax / 32767, so about 1e-9 of the power. */
static double bound_of(const struct ops *o)
{
    return o == &ops_reference ? 1e-13 : 1e-8;
}

static void check_products(const struct ops *o, enum dtype type, int64_t rows,
                           int64_t cols, int64_t n)
{
    struct problem p = problem_new(o, type, rows, cols, n, (uint64_t)cols);
    want_products(&p);
    multiply(&p, 0, n, rows, p.y);
    double e = relative_error(&p);
    if (!(e <= bound_of(o)))
        fail_msg("%s %s rows %lld cols %lld n %lld: nmse %g", o->name,
                 dtype_name(type), (long long)rows, (long long)cols,
                 (long long)n, e);
    problem_free(&p);
}

static void products_are_those_of_float64(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {
        {1, 256, 1},   {16, 256, 1},  {17, 512, 3},  {33, 768, 4}, {40, 256, 5},
        {50, 1536, 2}, {24, 4864, 1}, {19, 4864, 6}, {96, 512, 70}};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
                check_products(o, TYPES[t], shapes[s][0], shapes[s][1],
                               shapes[s][2]);
        }
    }
}

static void widths_of_one_block_and_odd_numbers_of_blocks_work(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            int64_t block = dtype_info(TYPES[t])->block_elems;
            for (int64_t k = 1; k <= 45; k += k < 10 ? 1 : 7) {
                check_products(o, TYPES[t], 20, k * block, 1);
                check_products(o, TYPES[t], 20, k * block, 7);
            }
        }
    }
}

/* Every row of every batch size must have the bits of the whole batch. */
static void check_invariance(const struct ops *o, enum dtype type, int64_t cols)
{
    enum { ROWS = 59, N = 17 };
    struct problem p = problem_new(o, type, ROWS, cols, N, 7);
    float *y = check_alloc(sizeof(float) * N * ROWS);
    multiply(&p, 0, N, ROWS, p.y);
    for (int64_t n = 1; n <= N; n++) {
        for (int64_t t0 = 0; t0 + n <= N; t0 += n) {
            int64_t step = n % 3 == 0 ? 16 : n % 3 == 1 ? ROWS : 32;
            multiply(&p, t0, n, step, y);
            if (memcmp(y, p.y + t0 * ROWS,
                       sizeof(float) * (size_t)(n * ROWS)) != 0)
                fail_msg("%s %s: %lld rows from %lld differ", o->name,
                         dtype_name(type), (long long)n, (long long)t0);
        }
    }
    free(y);
    problem_free(&p);
}

static void a_row_has_the_same_bits_in_every_batch_and_row_range(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            check_invariance(o, TYPES[t], 256);
            check_invariance(o, TYPES[t], 1280);
        }
    }
}

static void a_large_batch_has_the_bits_of_its_rows(void **state)
{
    (void)state;
    enum { N = 150, ROWS = 32 };
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            struct problem p = problem_new(o, TYPES[t], ROWS, 768, N, 8);
            float one[ROWS];
            multiply(&p, 0, N, ROWS, p.y);
            for (int64_t k = 0; k < N; k += 11) {
                multiply(&p, k, 1, ROWS, one);
                assert_memory_equal(one, p.y + k * ROWS, sizeof(one));
            }
            problem_free(&p);
        }
    }
}

/* Hosts must agree, whichever of the two they run. */
static void avx512_gives_the_bits_of_avx2(void **state)
{
    (void)state;
    enum { ROWS = 40, N = 71 };
    const struct ops *narrow = check_table(1), *wide = check_table(2);
    for (int t = 0; wide != NULL && t < N_TYPES; t++) {
        for (int64_t cols = 256; cols <= 2560; cols += 256) {
            struct problem p =
                problem_new(narrow, TYPES[t], ROWS, cols, N, (uint64_t)cols);
            struct problem q =
                problem_new(wide, TYPES[t], ROWS, cols, N, (uint64_t)cols);
            for (int64_t n = 1; n <= N; n += n < 12 ? 1 : 7) {
                multiply(&p, 0, n, ROWS, p.y);
                multiply(&q, 0, n, ROWS, q.y);
                assert_memory_equal(p.y, q.y,
                                    sizeof(float) * (size_t)(n * ROWS));
            }
            problem_free(&p);
            problem_free(&q);
        }
    }
}

/* Fills the batch with rows of magnitudes that conversions could trip over,
 * and checks each row by itself. */
static void extreme_activations_give_finite_and_right_products(void **state)
{
    (void)state;
    enum { ROWS = 16, COLS = 512, N = 5 };
    static const float magnitude[N] = {0.0f, 1e-44f, 1e-36f, 1e18f, 1e30f};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            struct problem p = problem_new(o, TYPES[t], ROWS, COLS, N, 9);
            for (int64_t k = 0; k < N * COLS; k++)
                p.x[k] *= magnitude[k / COLS];
            want_products(&p);
            multiply(&p, 0, N, ROWS, p.y);
            double heaviest = 0;
            for (int64_t k = 0; k < ROWS * COLS; k++)
                heaviest = fmax(heaviest, fabs((double)p.dense[k]));
            for (int64_t k = 0; k < N; k++) {
                for (int64_t r = k * ROWS; r < (k + 1) * ROWS; r++) {
                    assert_true(isfinite(p.y[r]));
                    double slack =
                        1e-3 * heaviest * (double)magnitude[k] + 1e-26;
                    assert_true(fabs((double)p.y[r] - p.want[r]) <= slack);
                }
            }
            problem_free(&p);
        }
    }
}

static void an_outlier_in_a_block_costs_only_that_block_precision(void **state)
{
    (void)state;
    enum { ROWS = 32, COLS = 1024, N = 4 };
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            struct problem p = problem_new(o, TYPES[t], ROWS, COLS, N, 10);
            for (int64_t k = 0; k < N; k++)
                p.x[k * COLS + 100 * k] = 300.0f;
            want_products(&p);
            multiply(&p, 0, N, ROWS, p.y);
            assert_true(relative_error(&p) < 1e-7);
            problem_free(&p);
        }
    }
}

static void a_nan_or_infinite_activation_is_seen_in_the_products(void **state)
{
    (void)state;
    enum { ROWS = 16, COLS = 256, N = 6 };
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            struct problem p = problem_new(o, TYPES[t], ROWS, COLS, N, 11);
            p.x[1 * COLS + 40] = NAN;
            p.x[4 * COLS + 200] = INFINITY;
            multiply(&p, 0, N, ROWS, p.y);
            for (int64_t k = 0; k < N; k++) {
                bool bad = false;
                for (int64_t r = k * ROWS; r < (k + 1) * ROWS; r++)
                    bad = bad || !isfinite(p.y[r]);
                assert_int_equal(bad, k == 1 || k == 4);
            }
            problem_free(&p);
        }
    }
}

static void only_the_rows_asked_for_are_written(void **state)
{
    (void)state;
    enum { ROWS = 50, COLS = 256, N = 6, LDY = 64 };
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            struct problem p = problem_new(o, TYPES[t], ROWS, COLS, N, 12);
            struct acts a = {.x = p.x, .n = N, .cols = COLS};
            a.packed = check_alloc(o->act_bytes(N, COLS));
            o->act_pack(&a, 0, N);
            float y[N * LDY];
            for (int k = 0; k < N * LDY; k++)
                y[k] = 12345.0f;
            o->matmul(&p.w, &a, 16, ROWS, y, LDY);
            o->matmul(&p.w, &a, 16, 16, y, LDY);
            for (int k = 0; k < N * LDY; k++) {
                bool inside = k % LDY >= 16 && k % LDY < ROWS;
                assert_int_equal(y[k] == 12345.0f, !inside);
            }
            free(a.packed);
            problem_free(&p);
        }
    }
}

static void a_row_can_be_looked_up(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < N_TYPES; t++) {
            struct problem p = problem_new(o, TYPES[t], 9, 512, 1, 13);
            float row[512];
            for (int64_t r = 0; r < 9; r++) {
                o->get_row(&p.w, r, row);
                assert_memory_equal(row, p.dense + r * 512, sizeof(row));
            }
            problem_free(&p);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_float64),
        cmocka_unit_test(widths_of_one_block_and_odd_numbers_of_blocks_work),
        cmocka_unit_test(a_row_has_the_same_bits_in_every_batch_and_row_range),
        cmocka_unit_test(a_large_batch_has_the_bits_of_its_rows),
        cmocka_unit_test(avx512_gives_the_bits_of_avx2),
        cmocka_unit_test(extreme_activations_give_finite_and_right_products),
        cmocka_unit_test(an_outlier_in_a_block_costs_only_that_block_precision),
        cmocka_unit_test(a_nan_or_infinite_activation_is_seen_in_the_products),
        cmocka_unit_test(only_the_rows_asked_for_are_written),
        cmocka_unit_test(a_row_can_be_looked_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
