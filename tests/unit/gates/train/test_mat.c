/* Matrix products against plain loops in double, for shapes around the
 * borders of blocks. */
#include "tests/unit/gates/train/tiny.h"

#include "gates/train/mat.h"

struct at {
    size_t n, rows, cols;
};

static const struct at shapes[] = {{1, 1, 1},    {3, 5, 2},     {257, 3, 4},
                                   {2, 193, 7},  {257, 769, 2}, {513, 769, 3},
                                   {300, 97, 33}};

static void check(const float *got, const double *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 1e-4))
            fail_msg("[%zu]: %.9g, not %.9g", i, (double)got[i], want[i]);
}

static float *random_floats(size_t n, struct rng *r)
{
    float *p = malloc((n + 1) * sizeof(float));
    assert_non_null(p);
    tiny_fill(p, n, 1.0f, r);
    return p;
}

static double *as_double(const float *p, size_t n, int keep)
{
    double *d = calloc(n, sizeof(double));
    assert_non_null(d);
    for (size_t i = 0; i < n && keep; i++)
        d[i] = (double)p[i];
    return d;
}

static void check_shape(const struct mat *t, const struct at *s, int add)
{
    struct rng r;
    rng_seed(&r, 17);
    size_t n = s->n, rows = s->rows, cols = s->cols;
    float *x = random_floats(n * cols, &r), *y = random_floats(n * rows, &r);
    float *w = random_floats(rows * cols, &r);
    double *yd = as_double(y, n * rows, add);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < rows; k++)
            for (size_t c = 0; c < cols; c++)
                yd[i * rows + k] +=
                    (double)x[i * cols + c] * (double)w[k * cols + c];
    mat_xwt(t, y, x, w, (struct mat_size){n, rows, cols}, add);
    check(y, yd, n * rows);
    double *xd = as_double(x, n * cols, add);
    double *wd = as_double(w, rows * cols, 1);
    float *x2 = random_floats(n * cols, &r);
    memcpy(x2, x, n * cols * sizeof(float));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < rows; k++)
            for (size_t c = 0; c < cols; c++) {
                xd[i * cols + c] +=
                    (double)y[i * rows + k] * (double)w[k * cols + c] / 64;
                wd[k * cols + c] +=
                    (double)y[i * rows + k] * (double)x[i * cols + c] / 1024;
            }
    for (size_t i = 0; i < n * rows; i++)
        y[i] /= 64;
    mat_yw(t, x2, y, w, (struct mat_size){n, rows, cols}, add);
    check(x2, xd, n * cols);
    for (size_t i = 0; i < n * rows; i++)
        y[i] /= 16;
    mat_ytx(t, w, y, x, (struct mat_size){n, rows, cols});
    check(w, wd, rows * cols);
    free(x);
    free(y);
    free(w);
    free(x2);
    free(yd);
    free(xd);
    free(wd);
}

static void products_are_those_of_plain_loops(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads += 2) {
        struct workers *k = NULL;
        struct mat *t = NULL;
        assert_int_equal(workers_new(&k, threads, NULL), OK);
        assert_int_equal(mat_new(&t, k, NULL), OK);
        assert_ptr_equal(mat_workers(t), k);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            for (int add = 0; add < 2; add++)
                check_shape(t, &shapes[i], add);
        mat_free(t);
        workers_free(k);
    }
    mat_free(NULL);
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    (void)state;
    enum { N = 300, ROWS = 210, COLS = 70 };
    struct rng r;
    rng_seed(&r, 3);
    float *x = random_floats(N * COLS, &r), *w = random_floats(ROWS * COLS, &r);
    float *y[2];
    for (int i = 0; i < 2; i++) {
        struct workers *k = NULL;
        struct mat *t = NULL;
        y[i] = random_floats(N * ROWS, &r);
        assert_int_equal(workers_new(&k, i == 0 ? 1 : 4, NULL), OK);
        assert_int_equal(mat_new(&t, k, NULL), OK);
        mat_xwt(t, y[i], x, w, (struct mat_size){N, ROWS, COLS}, 0);
        mat_free(t);
        workers_free(k);
    }
    assert_memory_equal(y[0], y[1], N * ROWS * sizeof(float));
    free(x);
    free(w);
    free(y[0]);
    free(y[1]);
}

/* Views into larger matrices: the products that tasks use. */
static void views_leave_what_is_around_them(void **state)
{
    (void)state;
    struct workers *k = NULL;
    struct mat *t = NULL;
    assert_int_equal(workers_new(&k, 1, NULL), OK);
    assert_int_equal(mat_new(&t, k, NULL), OK);
    float a[] = {1, 2, 9, 3, 4, 9}, b[] = {5, 6, 9, 7, 8, 9};
    float c[] = {1, 1, 9, 1, 1, 9};
    struct mat_view va = {a, 2, 2, 3}, vb = {b, 2, 2, 3}, vc = {c, 2, 2, 3};
    mat_abt(t, &vc, &va, &vb, 2.0f, 1.0f);
    const float abt[] = {35, 47, 9, 79, 107, 9};
    assert_memory_equal(c, abt, sizeof(c));
    mat_ab(t, &vc, &va, &vb, 1.0f, 0.0f);
    const float ab[] = {19, 22, 9, 43, 50, 9};
    assert_memory_equal(c, ab, sizeof(c));
    mat_atb(t, &vc, &va, &vb, 1.0f, 0.0f);
    const float atb[] = {26, 30, 9, 38, 44, 9};
    assert_memory_equal(c, atb, sizeof(c));
    mat_free(t);
    workers_free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_plain_loops),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(views_leave_what_is_around_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
