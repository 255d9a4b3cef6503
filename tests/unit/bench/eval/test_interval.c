/* Bootstrap intervals against cases that can be worked out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "bench/eval/interval.h"

static struct interval of(const double *x, size_t n, uint64_t seed)
{
    struct interval i;
    const struct interval_sample s = {.n = n, .n_tasks = 1, .seed = seed};
    assert_int_equal(interval_of(&i, x, &s), OK);
    return i;
}

static void one_document_has_no_width(void **state)
{
    (void)state;
    const double x[] = {0.25};
    struct interval i = of(x, 1, 1);
    assert_true(i.mean == 0.25 && i.lo == 0.25 && i.hi == 0.25);
}

static void equal_documents_have_no_width(void **state)
{
    (void)state;
    const double x[] = {-2, -2, -2, -2, -2};
    struct interval i = of(x, 5, 1);
    assert_true(i.mean == -2 && i.lo == -2 && i.hi == -2);
}

/* Drawn means are 0, 1/2 and 1 with odds 1/4, 1/2 and 1/4: both ends of the
 * middle 95% are in the outer quarters. */
static void two_documents(void **state)
{
    (void)state;
    const double x[] = {0, 1};
    struct interval i = of(x, 2, 7);
    assert_true(i.mean == 0.5 && i.lo == 0 && i.hi == 1);
}

/* The number of ones in four draws is binomial(4, 1/4): 0 has odds 0.316, 3 or
 * more 0.051, 4 has 0.004. The upper end, above which 2.5% lie, is 3 of 4. */
static void one_of_four(void **state)
{
    (void)state;
    const double x[] = {0, 0, 1, 0};
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct interval i = of(x, 4, seed);
        assert_true(i.mean == 0.25 && i.lo == 0 && i.hi == 0.75);
    }
}

/* For many documents the interval is that of the normal law: the mean and 1.96
 * standard errors to both sides. */
static void many_documents(void **state)
{
    (void)state;
    enum { N = 400 };
    double x[N], sum = 0, squares = 0;
    struct rng r;
    rng_seed(&r, 11);
    for (int i = 0; i < N; i++) {
        x[i] = 3 + rng_double(&r) + rng_double(&r) - rng_double(&r);
        sum += x[i];
        squares += x[i] * x[i];
    }
    double mean = sum / N, error = sqrt((squares / N - mean * mean) / N);
    struct interval i = of(x, N, 1);
    assert_true(fabs(i.mean - mean) < 1e-12);
    assert_true(fabs(i.lo - (mean - 1.96 * error)) < 0.12 * error);
    assert_true(fabs(i.hi - (mean + 1.96 * error)) < 0.12 * error);
}

static void the_seed_decides(void **state)
{
    (void)state;
    double x[30];
    struct rng r;
    rng_seed(&r, 2);
    for (int i = 0; i < 30; i++)
        x[i] = rng_double(&r);
    struct interval a = of(x, 30, 5), b = of(x, 30, 5), c = of(x, 30, 6);
    assert_true(a.lo == b.lo && a.hi == b.hi);
    assert_true(a.lo != c.lo || a.hi != c.hi);
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-12;
}

/* Equal divisors: the interval of the mean, divided. The same numbers above and
 * below: 1, whatever is drawn. */
static void ratios(void **state)
{
    (void)state;
    double a[20], b[20];
    struct interval r, m;
    struct rng rng;
    const struct interval_sample s = {.n = 20, .n_tasks = 1, .seed = 5};
    rng_seed(&rng, 3);
    for (int i = 0; i < 20; i++) {
        a[i] = rng_double(&rng);
        b[i] = -2;
    }
    assert_int_equal(interval_of_ratio(&r, a, b, &s), OK);
    m = of(a, 20, 5);
    assert_true(near(r.mean, m.mean / -2) && near(r.lo, m.hi / -2) &&
                near(r.hi, m.lo / -2));
    assert_int_equal(interval_of_ratio(&r, a, a, &s), OK);
    assert_true(near(r.mean, 1) && near(r.lo, 1) && near(r.hi, 1));
}

/* Two documents, of which one says nothing: a draw of it alone counts as the
 * whole. */
static void a_draw_that_says_nothing(void **state)
{
    (void)state;
    const double a[] = {0, 3}, b[] = {0, 4};
    const struct interval_sample s = {.n = 2, .n_tasks = 1, .seed = 1};
    struct interval r;
    assert_int_equal(interval_of_ratio(&r, a, b, &s), OK);
    assert_true(near(r.mean, 0.75) && near(r.lo, 0.75) && near(r.hi, 0.75));
}

/* Every document of a task says the same: drawn within their task, draws are
 * all alike, however far the tasks are apart. And two tasks of two documents
 * (two_documents): half the sum of two such, which is 0 or 1 with odds 1/16
 * each. */
static void draws_are_within_tasks(void **state)
{
    (void)state;
    const double apart[] = {1, 1, 1, 5, 5, 5, -3, -3, -3},
                 b[] = {2, 2, 2, 2, 2, 2, 2, 2, 2};
    const double mixed[] = {0, 1, 10, 11};
    struct interval_sample s = {.n = 9, .n_tasks = 3, .seed = 1};
    struct interval i;
    assert_int_equal(interval_of(&i, apart, &s), OK);
    assert_true(near(i.mean, 1) && near(i.lo, 1) && near(i.hi, 1));
    assert_int_equal(interval_of_ratio(&i, apart, b, &s), OK);
    assert_true(near(i.mean, 0.5) && near(i.lo, 0.5) && near(i.hi, 0.5));
    s = (struct interval_sample){.n = 4, .n_tasks = 2, .seed = 1};
    assert_int_equal(interval_of(&i, mixed, &s), OK);
    assert_true(near(i.mean, 5.5) && near(i.lo, 5) && near(i.hi, 6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_document_has_no_width),
        cmocka_unit_test(equal_documents_have_no_width),
        cmocka_unit_test(two_documents),
        cmocka_unit_test(one_of_four),
        cmocka_unit_test(many_documents),
        cmocka_unit_test(the_seed_decides),
        cmocka_unit_test(ratios),
        cmocka_unit_test(draws_are_within_tasks),
        cmocka_unit_test(a_draw_that_says_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
