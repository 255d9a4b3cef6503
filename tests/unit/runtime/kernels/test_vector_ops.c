#include "kernels_check.h"

/* Sizes around the widths of vectors. */
static const int64_t SIZES[] = {1, 7, 8, 9, 31, 64, 576, 896, 1537};
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), SIZE_MAX_ = 1537 };

static void rmsnorm_is_that_of_float64(void **state)
{
    (void)state;
    static const float magnitude[] = {1e-18f, 0.01f, 1.0f, 5000.0f};
    struct rng r;
    rng_seed(&r, 1);
    float x[SIZE_MAX_], w[SIZE_MAX_], out[SIZE_MAX_];
    double want[SIZE_MAX_];
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int s = 0; o != NULL && s < N_SIZES * 4; s++) {
            int64_t n = SIZES[s / 4];
            check_fill(&r, x, n);
            check_fill(&r, w, n);
            double sum = 0;
            for (int64_t k = 0; k < n; k++) {
                x[k] *= magnitude[s % 4];
                sum += (double)x[k] * (double)x[k];
            }
            double scale = 1.0 / sqrt(sum / (double)n + 1e-5);
            for (int64_t k = 0; k < n; k++)
                want[k] = (double)x[k] * scale * (double)w[k];
            o->rmsnorm(out, x, w, n, 1e-5f);
            assert_true(check_nmse(out, want, n) < 1e-12);
            o->rmsnorm(x, x, w, n, 1e-5f);
            assert_memory_equal(x, out, sizeof(float) * (size_t)n);
        }
    }
}

static void rope_rotates_the_pairs_of_its_layout(void **state)
{
    (void)state;
    enum { HEADS = 3 };
    static const int dims[][2] = {{64, 64}, {80, 80}, {96, 96}, {128, 128},
                                  {64, 32}, {80, 20}, {8, 6}};
    struct rng r;
    rng_seed(&r, 2);
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 14; t++) {
            int d = dims[t / 2][0], n_rot = dims[t / 2][1], half = n_rot / 2;
            float x[HEADS * 128], cs[128];
            double want[HEADS * 128];
            check_fill(&r, x, HEADS * d);
            for (int k = 0; k < half; k++) {
                cs[k] = cosf(0.7f * (float)k);
                cs[half + k] = sinf(0.7f * (float)k);
            }
            for (int k = 0; k < HEADS * d; k++)
                want[k] = (double)x[k];
            for (int h = 0; h < HEADS; h++) {
                for (int k = 0; k < half; k++) {
                    int a = h * d + (t % 2 ? 2 * k : k);
                    int b = h * d + (t % 2 ? 2 * k + 1 : k + half);
                    double c = (double)cs[k], s = (double)cs[half + k];
                    want[a] = (double)x[a] * c - (double)x[b] * s;
                    want[b] = (double)x[a] * s + (double)x[b] * c;
                }
            }
            o->rope(x, HEADS, d, n_rot, cs, t % 2);
            for (int k = 0; k < HEADS * d; k++)
                assert_true(fabs((double)x[k] - want[k]) < 1e-6);
        }
    }
}

/* Over the whole range where it is not plainly 0 or the identity, and the
 * extremes. */
static void silu_times_up_is_that_of_float64(void **state)
{
    (void)state;
    enum { N = 4001 };
    float gate[N], up[N], out[N];
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        if (o == NULL)
            continue;
        for (int k = 0; k < N; k++) {
            gate[k] = ((float)k - 2000.0f) * 0.06f;
            up[k] = 1.0f + 0.001f * (float)k;
        }
        gate[0] = -1e30f;
        gate[1] = 1e30f;
        gate[2] = -88.5f;
        gate[3] = -104.5f;
        o->silu_mul(out, gate, up, N);
        for (int k = 0; k < N; k++) {
            double g = (double)gate[k];
            double want = g / (1.0 + exp(-g)) * (double)up[k];
            double slack = 4e-7 * fabs(want) + 1e-36;
            if (!(fabs((double)out[k] - want) <= slack))
                fail_msg("%s: silu(%g) * %g is %g, want %g", o->name, g,
                         (double)up[k], (double)out[k], want);
        }
        float whole[N];
        memcpy(whole, out, sizeof(out));
        for (int64_t n = 0; n < 40; n++) {
            o->silu_mul(out, gate + 1000, up + 1000, n);
            assert_memory_equal(out, whole + 1000, sizeof(float) * (size_t)n);
        }
        o->silu_mul(gate, gate, up, N);
        assert_memory_equal(gate, whole, sizeof(whole));
        gate[0] = NAN;
        o->silu_mul(gate, gate, up, N);
        assert_true(isnan(gate[0]));
    }
}

static void add_adds(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 3);
    float x[SIZE_MAX_], y[SIZE_MAX_], want[SIZE_MAX_ + 1];
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int s = 0; o != NULL && s < N_SIZES; s++) {
            check_fill(&r, x, SIZE_MAX_);
            check_fill(&r, y, SIZE_MAX_);
            for (int64_t k = 0; k < SIZE_MAX_; k++)
                want[k] = k < SIZES[s] ? x[k] + y[k] : x[k];
            o->add(x, y, SIZES[s]);
            assert_memory_equal(x, want, sizeof(x));
        }
    }
}

static void tables_are_found_by_name(void **state)
{
    (void)state;
    assert_ptr_equal(ops_find("reference"), &ops_reference);
    assert_ptr_equal(ops_find("avx2"), ops_avx2());
    assert_ptr_equal(ops_find("avx512"), ops_avx512());
    assert_null(ops_find("avx3"));
    assert_null(ops_find(""));
    const struct ops *best = ops_best();
    assert_ptr_equal(ops_find(best->name), best);
    const struct ops *narrow = ops_avx2() != NULL ? ops_avx2() : &ops_reference;
    assert_ptr_equal(best, ops_avx512() != NULL ? ops_avx512() : narrow);
}

static void softmax_is_that_of_float64(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 5);
    float x[SIZE_MAX_ + 1];
    double want[SIZE_MAX_];
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int s = 0; o != NULL && s < N_SIZES * 3; s++) {
            int64_t n = SIZES[s / 3];
            double top = -INFINITY, sum = 0;
            for (int64_t k = 0; k < n; k++) {
                x[k] = check_normal(&r) * (s % 3 == 2 ? 900.0f : 3.0f);
                if (s % 3 == 1 && k % 3 == 1)
                    x[k] = -INFINITY;
                top = fmax(top, (double)x[k]);
            }
            for (int64_t k = 0; k < n; k++)
                sum += want[k] = exp((double)x[k] - top);
            for (int64_t k = 0; k < n; k++)
                want[k] /= sum;
            x[n] = 77;
            o->softmax(x, n);
            assert_true(check_nmse(x, want, n) < 1e-11);
            assert_true(x[n] == 77);
        }
    }
}

static void softmax_of_nothing_is_zeros(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        float x[20];
        for (int k = 0; k < 20; k++)
            x[k] = -INFINITY;
        if (o == NULL)
            continue;
        o->softmax(x, 0);
        assert_true(x[0] < 0);
        o->softmax(x, 20);
        for (int k = 0; k < 20; k++)
            assert_true(x[k] == 0.0f);
    }
}

/* Sums of several rows, of which one saw nothing at all and one is masked in
 * part. */
static void weights_are_those_of_float64(void **state)
{
    (void)state;
    enum { ROWS = 4 };
    struct rng r;
    rng_seed(&r, 6);
    float x[SIZE_MAX_], sum[SIZE_MAX_ + 1], norm[ROWS][2];
    double want[SIZE_MAX_];
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int s = 0; o != NULL && s < N_SIZES; s++) {
            int64_t n = SIZES[s];
            for (int64_t k = 0; k <= n; k++)
                sum[k] = 0.25f;
            for (int64_t k = 0; k < n; k++)
                want[k] = 0.25;
            for (int row = 0; row < ROWS; row++) {
                norm[row][0] = 40.0f * (float)row;
                norm[row][1] = row == 1 ? 0.0f : 1.5f + (float)row;
                for (int64_t k = 0; k < n; k++) {
                    x[k] = norm[row][0] + 3.0f * check_normal(&r);
                    if (row == 2 && k % 3 == 1)
                        x[k] = -INFINITY;
                    double w = exp((double)x[k] - (double)norm[row][0]);
                    want[k] += row == 1 ? 0 : w / (double)norm[row][1];
                }
                o->add_weights(x, norm[row], n, sum);
            }
            assert_true(check_nmse(sum, want, n) < 1e-12);
            assert_true(sum[n] == 0.25f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_is_that_of_float64),
        cmocka_unit_test(rope_rotates_the_pairs_of_its_layout),
        cmocka_unit_test(silu_times_up_is_that_of_float64),
        cmocka_unit_test(add_adds),
        cmocka_unit_test(tables_are_found_by_name),
        cmocka_unit_test(softmax_is_that_of_float64),
        cmocka_unit_test(softmax_of_nothing_is_zeros),
        cmocka_unit_test(weights_are_those_of_float64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
