#include <float.h>
#include <math.h>
#include <string.h>

#include "runtime/engine/sample_internal.h"

/* exp(-40) is 4e-18: a whole vocabulary of such tokens together is far below
 * the resolution of the random number. */
static const float LEAST_X = -40.0f;

/* Four numbers at once, in the vector notation of gcc and clang: as fast as
 * intrinsics, the same bits on every machine. */
enum { LANES = 4 };
typedef float vec __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(16)));
typedef uint32_t uvec __attribute__((vector_size(16)));

static vec splat(float f)
{
    return (vec){f, f, f, f};
}

/* n of them, the rest minus infinity. */
static vec load(const float *p, uint32_t n)
{
    vec v = splat(-HUGE_VALF);
    memcpy(&v, p, n * sizeof(*p));
    return v;
}

static vec load_all(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static vec pick(ivec mask, vec a, vec b)
{
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}

/* e^x where x is in LEAST_X to 0, else 0, also for a NaN. x = k ln 2 + r;
 * e^r by its series up to r^6 (the next term is below 1.3e-7 of it), times
 * 2^k through the exponent bits. The product k * LN2_HIGH is exact. */
static vec exp_or_zero(vec x)
{
    const float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    const float MAGIC = 12582912.0f; /* 1.5 * 2^23: rounds to whole numbers */
    ivec counts = x >= splat(LEAST_X);
    x = pick(counts, x, splat(0.0f));
    vec t = x * splat(1.44269504f) + splat(MAGIC);
    vec k = t - splat(MAGIC);
    vec r = x - k * splat(LN2_HIGH) - k * splat(LN2_LOW);
    vec p = splat(1.0f / 720);
    p = p * r + splat(1.0f / 120);
    p = p * r + splat(1.0f / 24);
    p = p * r + splat(1.0f / 6);
    p = p * r + splat(0.5f);
    p = p * r + splat(1.0f);
    p = p * r + splat(1.0f);
    p = (vec)((uvec)p + (((uvec)t - (uvec)splat(MAGIC)) << 23));
    return pick(counts, p, splat(0.0f));
}

float sample_exp(float x)
{
    return exp_or_zero(splat(x))[0];
}

static uint32_t n_blocks(uint32_t n)
{
    return n / SAMPLE_BLOCK + (n % SAMPLE_BLOCK != 0);
}

static uint32_t block_size(uint32_t n, uint32_t block)
{
    uint32_t left = n - block * SAMPLE_BLOCK;
    return left < SAMPLE_BLOCK ? left : SAMPLE_BLOCK;
}

/* A comparison with a NaN is false, so none gets into the maximum. */
static float max_of(const float *p, uint32_t n)
{
    vec m = splat(-HUGE_VALF);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec v = load_all(p + i);
        m = pick(v > m, v, m);
    }
    if (i < n) {
        vec v = load(p + i, n - i);
        m = pick(v > m, v, m);
    }
    float max = m[0];
    for (int k = 1; k < LANES; k++)
        max = m[k] > max ? m[k] : max;
    return max;
}

static float max_of_blocks(const struct sample_row *row,
                           struct sample_scratch *s)
{
    float max = -HUGE_VALF;
    for (uint32_t b = 0; b < n_blocks(row->n); b++) {
        s->block_max[b] =
            max_of(row->logit + b * SAMPLE_BLOCK, block_size(row->n, b));
        max = s->block_max[b] > max ? s->block_max[b] : max;
    }
    return max;
}

int32_t sample_find_highest(struct sample_row *row, struct sample_scratch *s)
{
    row->highest = max_of_blocks(row, s);
    if (row->highest == HUGE_VALF) {
        for (uint32_t i = 0; i < row->n; i++) {
            if (row->logit[i] == HUGE_VALF)
                row->logit[i] = FLT_MAX;
        }
        row->highest = max_of_blocks(row, s);
    }
    if (row->highest == -HUGE_VALF)
        return -1;
    uint32_t i = 0;
    while (s->block_max[i / SAMPLE_BLOCK] < row->highest)
        i += SAMPLE_BLOCK;
    while (!(row->logit[i] == row->highest))
        i++;
    return (int32_t)i;
}

/* Bits that grow as x falls; x is 0 or less. The subtraction makes minus
 * zero plus zero. */
static uint32_t rank_of(const struct sample_candidate *c)
{
    float a = 0.0f - c->x;
    uint32_t bits;
    memcpy(&bits, &a, sizeof(bits));
    return bits;
}

enum measure { BY_COUNT, BY_WEIGHT };

static double amount_of(const struct sample_candidate *c, enum measure by)
{
    return by == BY_COUNT ? 1.0 : (double)c->w;
}

/* Of n candidates in order of id, keeps the shortest sequence of best ones
 * whose amounts add up to at least `wanted`, in order of id, and returns how
 * many. Ranks are looked at in three digits, from the highest: the digit in
 * which the sum passes `wanted` is found, everything behind it goes, and what
 * lies before it stays for sure. */
static uint32_t keep_best(struct sample_candidate *c, uint32_t n, double wanted,
                          enum measure by)
{
    enum { DIGIT_BITS = 11, DIGITS = 3, VALUES = 1 << DIGIT_BITS };
    static const uint32_t shift[DIGITS] = {21, 10, 0};
    double sum[VALUES];
    uint32_t border = 0; /* the digits found so far */
    double before = 0.0; /* amount of ranks below the border's digits */

    for (uint32_t d = 0; d < DIGITS; d++) {
        uint32_t above = d == 0 ? 32 : shift[d - 1];
        uint32_t values = 1u << (above - shift[d]);
        memset(sum, 0, sizeof(sum));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t r = rank_of(&c[i]);
            if (d == 0 || r >> above == border)
                sum[r >> shift[d] & (values - 1)] += amount_of(&c[i], by);
        }
        uint32_t last = 0, v = 0;
        for (; v < values; v++) {
            if (sum[v] > 0.0)
                last = v;
            if (before + sum[v] >= wanted)
                break;
            before += sum[v];
        }
        /* Rounding can leave the sum of all just below `wanted`: then the
         * border is the last rank there is. */
        if (v == values) {
            before -= sum[last];
            v = last;
        }
        border = border << (above - shift[d]) | v;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (rank_of(&c[i]) >> shift[d] <= border)
                c[kept++] = c[i];
        }
        n = kept;
    }

    /* All that is left of the last rank is equal: the lowest ids stay. */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (rank_of(&c[i]) == border) {
            if (before >= wanted)
                continue;
            before += amount_of(&c[i], by);
        }
        c[kept++] = c[i];
    }
    return kept;
}

/* All tokens whose x is at least `least`, in order of id. */
static uint32_t gather(const struct sample_row *row, float temperature,
                       float least, struct sample_scratch *s)
{
    struct sample_candidate *c = s->candidate;
    uint32_t n = 0;
    for (uint32_t b = 0; b < n_blocks(row->n); b++) {
        if (!((s->block_max[b] - row->highest) / temperature >= least))
            continue;
        uint32_t first = b * SAMPLE_BLOCK;
        for (uint32_t i = first; i < first + block_size(row->n, b); i++) {
            c[n].x = (row->logit[i] - row->highest) / temperature;
            c[n].id = (int32_t)i;
            n += c[n].x >= least;
        }
    }
    return n;
}

static double weigh(struct sample_candidate *c, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        c[i].w = sample_exp(c[i].x);
        sum += (double)c[i].w;
    }
    return sum;
}

/* A value of x that at least k tokens reach: the k-th highest of the blocks'
 * maxima. LEAST_X where there are too few blocks to say. */
static float reached_by(const struct sample_row *row, uint32_t k,
                        float temperature, struct sample_scratch *s)
{
    struct sample_candidate *c = s->candidate;
    uint32_t n = 0;
    for (uint32_t b = 0; b < n_blocks(row->n); b++) {
        c[n].x = (s->block_max[b] - row->highest) / temperature;
        n += c[n].x >= LEAST_X;
    }
    if (n < k)
        return LEAST_X;
    n = keep_best(c, n, (double)k, BY_COUNT);
    float least = 0.0f;
    for (uint32_t i = 0; i < n; i++)
        least = c[i].x < least ? c[i].x : least;
    return least;
}

/* The weights of all tokens, added up by block and in all. */
static double weigh_all(const struct sample_row *row, float temperature,
                        struct sample_scratch *s)
{
    vec highest = splat(row->highest), t = splat(temperature);
    double total = 0.0;
    for (uint32_t b = 0; b < n_blocks(row->n); b++) {
        const float *p = row->logit + b * SAMPLE_BLOCK;
        uint32_t n = block_size(row->n, b), i = 0;
        vec sum = splat(0.0f);
        for (; i + LANES <= n; i += LANES)
            sum += exp_or_zero((load_all(p + i) - highest) / t);
        if (i < n)
            sum += exp_or_zero((load(p + i, n - i) - highest) / t);
        s->block_sum[b] = ((double)sum[0] + (double)sum[1]) +
                          ((double)sum[2] + (double)sum[3]);
        total += s->block_sum[b];
    }
    return total;
}

/* The token at which the sum of weights passes u, in order of id. */
static int32_t find_in_all(const struct sample_row *row, float temperature,
                           double u, const struct sample_scratch *s)
{
    uint32_t last = 0, b = 0;
    double before = 0.0;
    for (; b < n_blocks(row->n); b++) {
        if (!(s->block_sum[b] > 0.0))
            continue;
        last = b;
        if (u < before + s->block_sum[b])
            break;
        before += s->block_sum[b];
    }
    /* Rounding can leave u at the very end: then it is the last block that
     * has any weight, and in a block the last token that has. */
    int32_t token = 0;
    uint32_t first = last * SAMPLE_BLOCK;
    for (uint32_t i = first; i < first + block_size(row->n, last); i++) {
        float x = (row->logit[i] - row->highest) / temperature;
        float w = sample_exp(x);
        if (!(w > 0.0f))
            continue;
        token = (int32_t)i;
        before += (double)w;
        if (b < n_blocks(row->n) && u < before)
            break;
    }
    return token;
}

static int32_t find(const struct sample_candidate *c, uint32_t n, double u)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)c[i].w;
        if (u < sum)
            return c[i].id;
    }
    return c[n - 1].id; /* rounding: u was the sum itself */
}

int32_t sample_choose(const struct sample_row *row, const struct gen_params *p,
                      struct rng *rng, struct sample_scratch *s)
{
    float least = LEAST_X, t = p->temperature;
    double total = 0.0, u = rng_double(rng);
    bool is_cut = false; /* min_p or top_k come before top_p */
    if (p->min_p > 0.0f) {
        least = fmaxf(least, logf(p->min_p));
        is_cut = true;
    }
    if (p->top_k > 0 && (uint32_t)p->top_k < row->n) {
        least = fmaxf(least, reached_by(row, (uint32_t)p->top_k, t, s));
        is_cut = true;
    }
    if (!is_cut) {
        total = weigh_all(row, t, s);
        if (p->top_p >= 1.0f)
            return find_in_all(row, t, u * total, s);
        /* Tokens below an even share of what top_p leaves out are left out,
         * all of them: together they do not make that much. The margin is
         * for rounding. */
        double share = (1.0 - (double)p->top_p) * total / row->n;
        least = fmaxf(least, (float)log(share) - 0.01f);
    }
    uint32_t n = gather(row, t, least, s);
    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        n = keep_best(s->candidate, n, (double)p->top_k, BY_COUNT);
    double sum = weigh(s->candidate, n);
    if (p->top_p < 1.0f) {
        double wanted = (double)p->top_p * (is_cut ? sum : total);
        n = keep_best(s->candidate, n, wanted, BY_WEIGHT);
        sum = 0.0;
        for (uint32_t i = 0; i < n; i++)
            sum += (double)s->candidate[i].w;
    }
    return find(s->candidate, n, u * sum);
}
