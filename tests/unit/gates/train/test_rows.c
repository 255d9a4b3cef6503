/* Rows of floats against the same in double, for lengths around the width of
 * a vector, in both builds. */
#include "tests/unit/gates/train/tiny.h"

#include <stdio.h>

#include "gates/train/rows.h"
#include "runtime/kernels/ops.h"

enum { N_MAX = 2100 };

static const size_t lengths[] = {1,  2,  3,  4,   5,    7,    8,    9,    15,
                                 16, 17, 31, 100, 1023, 1024, 1025, N_MAX};

struct data {
    struct rng r;
    float a[N_MAX + 1], b[N_MAX + 1], c[N_MAX + 1], d[N_MAX + 1];
};

/* One float beyond the row is watched. */
static const float GUARD = 12345.0f;

static void fill(struct data *x, float *p, size_t n, float scale)
{
    tiny_fill(p, n, scale, &x->r);
    p[n] = GUARD;
}

static void close_to(double got, double want, double scale)
{
    if (!(fabs(got - want) <= 2e-6 * scale + 1e-30))
        fail_msg("%.9g, not %.9g", got, want);
}

static void each(void (*check)(const struct rows *, struct data *, size_t))
{
    struct data *x = calloc(1, sizeof(*x));
    assert_non_null(x);
    rng_seed(&x->r, 5);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        check(&rows_plain, x, lengths[i]);
        if (ops_avx2() != NULL)
            check(&rows_avx2, x, lengths[i]);
        else
            fprintf(stderr, "SKIPPED: no AVX2 here\n");
    }
    free(x);
}

static void check_softmax(const struct rows *f, struct data *x, size_t n)
{
    for (int fades = 0; fades < 2; fades++) {
        double want[N_MAX], sum = 0.0, top = -1e300;
        fill(x, x->a, n, 5.0f);
        fill(x, x->b, n, 0.1f);
        for (size_t i = 0; i < n; i++) {
            x->b[i] = -fabsf(x->b[i]);
            want[i] = (double)x->a[i] +
                      (fades ? (double)(n - 1 - i) * (double)x->b[i] : 0.0);
            top = fmax(top, want[i]);
        }
        for (size_t i = 0; i < n; i++)
            sum += want[i] = exp(want[i] - top);
        f->softmax(x->a, fades ? x->b : NULL, n);
        /* Large exponents are rounded before exp() sees them. */
        for (size_t i = 0; i < n; i++)
            close_to((double)x->a[i], want[i] / sum,
                     20 * want[i] / sum + 1e-30);
        assert_true(x->a[n] == GUARD);
    }
}

static void softmax_is_softmax(void **state)
{
    (void)state;
    each(check_softmax);
}

static void check_softmax_back(const struct rows *f, struct data *x, size_t n)
{
    double dot = 0.0, size = 0.0, before[N_MAX], d[N_MAX];
    fill(x, x->a, n, 3.0f);
    f->softmax(x->a, NULL, n); /* p */
    fill(x, x->b, n, 1.0f);    /* the gradient */
    fill(x, x->c, n, 1.0f);    /* sums so far */
    for (size_t i = 0; i < n; i++) {
        before[i] = (double)x->c[i];
        d[i] = (double)x->b[i];
        dot += (double)x->a[i] * d[i];
        size += (double)x->a[i] * fabs(d[i]);
    }
    f->softmax_back(x->b, x->a, x->c, n);
    for (size_t i = 0; i < n; i++) {
        double p = (double)x->a[i], want = p * (d[i] - dot);
        close_to((double)x->b[i], want, p * (fabs(d[i]) + size));
        want = before[i] + want * (double)(n - 1 - i);
        close_to((double)x->c[i], want,
                 fabs(before[i]) + p * (fabs(d[i]) + size) * (double)n);
    }
    assert_true(x->b[n] == GUARD && x->c[n] == GUARD);
}

static void the_derivative_of_softmax_is_right(void **state)
{
    (void)state;
    each(check_softmax_back);
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double silu_slope(double x)
{
    double s = 1.0 / (1.0 + exp(-x));
    return s + x * s * (1.0 - s);
}

static void check_silu(const struct rows *f, struct data *x, size_t n)
{
    fill(x, x->a, n, 4.0f);
    fill(x, x->b, n, 1.0f);
    x->a[0] = -200.0f; /* beyond what exp() can hold */
    x->a[n - 1] = 200.0f;
    x->c[n] = x->d[n] = GUARD;
    f->silu(x->c, x->a, n);
    f->silu_mul(x->d, x->a, x->b, n);
    for (size_t i = 0; i < n; i++) {
        double a = (double)x->a[i], b = (double)x->b[i];
        close_to((double)x->c[i], silu(a), fabs(silu(a)) + 1e-30);
        close_to((double)x->d[i], silu(a) * b, fabs(silu(a) * b) + 1e-30);
    }
    assert_true(x->c[n] == GUARD && x->d[n] == GUARD);
}

static void silu_is_silu(void **state)
{
    (void)state;
    each(check_silu);
}

static void check_silu_back(const struct rows *f, struct data *x, size_t n)
{
    float d[N_MAX];
    fill(x, x->a, n, 4.0f); /* gate */
    fill(x, x->b, n, 1.0f); /* up */
    fill(x, x->c, n, 1.0f);
    x->a[0] = -200.0f;
    x->a[n - 1] = 200.0f;
    x->d[n] = GUARD;
    memcpy(d, x->c, n * sizeof(float));
    f->silu_mul_back(x->d, x->c, x->a, x->b, n);
    for (size_t i = 0; i < n; i++) {
        double a = (double)x->a[i], b = (double)x->b[i], dh = (double)d[i];
        close_to((double)x->c[i], dh * silu(a), fabs(dh) * (1 + fabs(a)));
        close_to((double)x->d[i], dh * b * silu_slope(a),
                 fabs(dh * b) * (1 + fabs(a)));
    }
    assert_true(x->c[n] == GUARD && x->d[n] == GUARD);
    memcpy(x->c, d, n * sizeof(float));
    f->silu_back(x->c, x->a, n);
    for (size_t i = 0; i < n; i++)
        close_to((double)x->c[i], (double)d[i] * silu_slope((double)x->a[i]),
                 fabs((double)d[i]) * (1 + fabs((double)x->a[i])));
    assert_true(x->c[n] == GUARD);
}

static void the_derivative_of_silu_is_right(void **state)
{
    (void)state;
    each(check_silu_back);
}

static double lse(const float *x, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - 40.0);
    return log(sum) + 40.0;
}

static void check_kl(const struct rows *f, struct data *x, size_t n)
{
    fill(x, x->a, n, 6.0f);
    fill(x, x->b, n, 1.0f);
    for (size_t i = 0; i < n; i++)
        x->b[i] += x->a[i];
    double lp = lse(x->a, n), lq = lse(x->b, n), kl = 0.0, want[N_MAX];
    close_to(f->log_sum_exp(x->a, n), lp, fabs(lp) + 1.0);
    for (size_t i = 0; i < n; i++) {
        double p = exp((double)x->a[i] - lp), q = exp((double)x->b[i] - lq);
        kl += p * ((double)x->a[i] - lp - (double)x->b[i] + lq);
        want[i] = 0.25 * (q - p) + 0.5 * q;
    }
    struct rows_pair r = {.p = x->a,
                          .q = x->b,
                          .n = n,
                          .log_p = (float)lp,
                          .log_q = (float)lq,
                          .kl_share = 0.25f,
                          .ntp_share = 0.5f};
    close_to(f->kl(&r), kl, kl + 1.0);
    assert_true(x->b[n] == GUARD);
    r.is_gradient = 1;
    close_to(f->kl(&r), kl, kl + 1.0);
    for (size_t i = 0; i < n; i++)
        close_to((double)x->b[i], want[i], 2.0);
    assert_true(x->b[n] == GUARD);
}

static void the_divergence_and_its_gradient_are_right(void **state)
{
    (void)state;
    each(check_kl);
}

static void the_best_runs_here(void **state)
{
    (void)state;
    assert_string_equal(rows_best()->name,
                        ops_avx2() != NULL ? "avx2" : "plain");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_is_softmax),
        cmocka_unit_test(the_derivative_of_softmax_is_right),
        cmocka_unit_test(silu_is_silu),
        cmocka_unit_test(the_derivative_of_silu_is_right),
        cmocka_unit_test(the_divergence_and_its_gradient_are_right),
        cmocka_unit_test(the_best_runs_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
