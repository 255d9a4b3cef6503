/* rows_internal.h - the functions of rows.h. Included by rows.c and
 * rows_avx2.c, which differ in the instructions they are built for. ROWS_TABLE
 * and ROWS_NAME name the table that it defines, ROWS_LANES is the floats of a
 * vector, 4 or 8.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "gates/train/rows.h"

/* Vectors are as wide as the registers, or passing them between functions
 * would depend on flags. */
enum { LANES = ROWS_LANES };

typedef float fv __attribute__((vector_size(4 * LANES)));
typedef int32_t iv __attribute__((vector_size(4 * LANES)));

static inline fv load(const float *p)
{
    fv v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void store(float *p, fv v)
{
    memcpy(p, &v, sizeof(v));
}

static inline fv all(float x)
{
    return (fv){0} + x;
}

/* The first n floats, then `rest`. */
static inline fv load_part(const float *p, size_t n, float rest)
{
    fv v = all(rest);
    memcpy(&v, p, n * sizeof(*p));
    return v;
}

static inline void store_part(float *p, fv v, size_t n)
{
    memcpy(p, &v, n * sizeof(*p));
}

static inline fv choose(iv mask, fv yes, fv no)
{
    return (fv)((mask & (iv)yes) | (~mask & (iv)no));
}

static inline fv max_v(fv a, fv b)
{
    return choose(a > b, a, b);
}

static inline float sum_lanes(fv v)
{
    float sum = v[0];
    for (int i = 1; i < LANES; i++)
        sum += v[i];
    return sum;
}

static inline float max_lanes(fv v)
{
    float top = v[0];
    for (int i = 1; i < LANES; i++)
        top = v[i] > top ? v[i] : top;
    return top;
}

/* 0, 1, 2, ... */
static inline fv lane_numbers(void)
{
    static const float number[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    return load(number);
}

/* exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2. exp(r) is its
 * Taylor series to r^7, whose rest is below 6e-9. Zero below -87, where the
 * result would be no normal number; x must not exceed 88. */
static inline fv exp_v(fv x)
{
    const fv round = all(0x1.8p23f); /* adding it leaves whole numbers */
    iv is_zero = x < all(-87.0f);
    x = choose(is_zero, all(-87.0f), x);
    fv n = (x * all(0x1.715476p+0f) + round) - round;
    fv r = (x - n * all(0x1.62e4p-1f)) - n * all(0x1.7f7d1cp-20f);
    fv y = all(1.0f / 5040.0f);
    y = y * r + all(1.0f / 720.0f);
    y = y * r + all(1.0f / 120.0f);
    y = y * r + all(1.0f / 24.0f);
    y = y * r + all(1.0f / 6.0f);
    y = y * r + all(0.5f);
    y = y * r + all(1.0f);
    y = y * r + all(1.0f);
    iv power = (__builtin_convertvector(n, iv) + 127) << 23;
    return choose(is_zero, all(0.0f), y * (fv)power);
}

static inline fv sigmoid_v(fv x)
{
    const fv most = all(80.0f);
    fv e = choose(-x > most, most, -x);
    return all(1.0f) / (all(1.0f) + exp_v(e));
}

/* The body over whole vectors, then over the rest. */
#define EACH(n)                                                                \
    for (size_t i = 0, k = 0; i < (n) && ((k = (n)-i), 1); i += LANES)
#define GET(p, rest) (k < LANES ? load_part((p) + i, k, rest) : load((p) + i))
#define PUT(p, v)                                                              \
    do {                                                                       \
        if (k < LANES)                                                         \
            store_part((p) + i, v, k);                                         \
        else                                                                   \
            store((p) + i, v);                                                 \
    } while (0)

static void softmax_row(float *x, const float *lambda, size_t n)
{
    const fv step = lane_numbers();
    fv top = all(-INFINITY), sum = all(0.0f);
    EACH(n)
    {
        fv v = GET(x, -INFINITY);
        if (lambda != NULL) {
            fv age = all((float)(n - 1) - (float)i) - step;
            v += age * GET(lambda, 0.0f);
            PUT(x, v);
        }
        top = max_v(top, v);
    }
    fv shift = all(max_lanes(top));
    EACH(n)
    {
        fv v = exp_v(GET(x, -INFINITY) - shift);
        PUT(x, v);
        sum += v;
    }
    fv scale = all(1.0f / sum_lanes(sum));
    EACH(n)
    PUT(x, GET(x, 0.0f) * scale);
}

static void softmax_back_row(float *d, const float *p, float *d_lambda,
                             size_t n)
{
    const fv step = lane_numbers();
    fv sum = all(0.0f);
    EACH(n)
    sum += GET(p, 0.0f) * GET(d, 0.0f);
    fv dot = all(sum_lanes(sum));
    EACH(n)
    {
        fv v = GET(p, 0.0f) * (GET(d, 0.0f) - dot);
        fv age = all((float)(n - 1) - (float)i) - step;
        fv pull = GET(d_lambda, 0.0f) + v * age;
        PUT(d, v);
        PUT(d_lambda, pull);
    }
}

static void silu_mul_row(float *h, const float *g, const float *u, size_t n)
{
    EACH(n)
    {
        fv x = GET(g, 0.0f);
        PUT(h, x * sigmoid_v(x) * GET(u, 0.0f));
    }
}

/* d silu(x) / dx = s + x s (1 - s), s = sigmoid(x). */
static void silu_mul_back_row(float *d_g, float *d, const float *g,
                              const float *u, size_t n)
{
    EACH(n)
    {
        fv x = GET(g, 0.0f), s = sigmoid_v(x), d_h = GET(d, 0.0f);
        PUT(d, d_h * x * s);
        PUT(d_g, d_h * GET(u, 0.0f) * (s + x * s * (all(1.0f) - s)));
    }
}

static void silu_row(float *y, const float *x, size_t n)
{
    EACH(n)
    {
        fv v = GET(x, 0.0f);
        PUT(y, v * sigmoid_v(v));
    }
}

static void silu_back_row(float *d, const float *x, size_t n)
{
    EACH(n)
    {
        fv v = GET(x, 0.0f), s = sigmoid_v(v);
        PUT(d, GET(d, 0.0f) * (s + v * s * (all(1.0f) - s)));
    }
}

/* Floats of one partial sum: few enough that float32 loses nothing. */
enum { PIECE = 1024 };

static double log_sum_exp_row(const float *x, size_t n)
{
    fv top = all(-INFINITY);
    double sum = 0.0;
    EACH(n)
    top = max_v(top, GET(x, -INFINITY));
    fv shift = all(max_lanes(top));
    for (size_t from = 0; from < n; from += PIECE) {
        const float *part = x + from;
        size_t m = n - from < PIECE ? n - from : PIECE;
        fv s = all(0.0f);
        EACH(m)
        s += exp_v(GET(part, -INFINITY) - shift);
        sum += (double)sum_lanes(s);
    }
    return (double)shift[0] + log(sum);
}

static double kl_row(const struct rows_pair *x)
{
    const fv log_p = all(x->log_p), log_q = all(x->log_q);
    const fv kl_share = all(x->kl_share);
    const fv both = all(x->kl_share + x->ntp_share);
    double kl = 0.0;
    for (size_t from = 0; from < x->n; from += PIECE) {
        const float *p = x->p + from;
        float *q = x->q + from;
        size_t m = x->n - from < PIECE ? x->n - from : PIECE;
        fv s = all(0.0f);
        EACH(m)
        {
            fv lp = GET(p, -1e30f) - log_p, lq = GET(q, -1e30f) - log_q;
            fv prob = exp_v(lp);
            s += prob * (lp - lq);
            if (x->is_gradient)
                PUT(q, both * exp_v(lq) - kl_share * prob);
        }
        kl += (double)sum_lanes(s);
    }
    return kl;
}

const struct rows ROWS_TABLE = {.name = ROWS_NAME,
                                .softmax = softmax_row,
                                .softmax_back = softmax_back_row,
                                .silu_mul = silu_mul_row,
                                .silu_mul_back = silu_mul_back_row,
                                .silu = silu_row,
                                .silu_back = silu_back_row,
                                .log_sum_exp = log_sum_exp_row,
                                .kl = kl_row};
