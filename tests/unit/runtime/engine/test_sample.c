#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/engine/sample.h"
#include "runtime/engine/sample_internal.h"

enum { V = 203, FALLBACK = 77 };

static struct gen_params plain(void)
{
    return (struct gen_params){
        .temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

static struct sampler sampler_of(const struct gen_params *p, uint64_t seed)
{
    struct sampler s;
    const struct sample_start start = {
        .params = p, .max_tokens = 1000, .n_vocab = V, .seed = seed};
    assert_int_equal(sampler_init(&s, &start), OK);
    return s;
}

static int32_t once(const struct gen_params *p, const float *logits,
                    uint64_t seed, struct sample_scratch *scratch)
{
    float row[V];
    struct sampler s = sampler_of(p, seed);
    memcpy(row, logits, sizeof(row));
    int32_t t = sampler_next(&s, row, V, scratch, FALLBACK, NULL);
    sampler_fini(&s);
    return t;
}

/* The same by sorting everything, in double. prob[i] is what token i must be
 * drawn with. Returns how far the nearest border decision (top_p, min_p) was
 * from going the other way: where it is tiny, rounding may decide. */
struct ranked {
    double x;
    int id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *p = a, *q = b;
    if (p->x != q->x)
        return p->x > q->x ? -1 : 1;
    return p->id - q->id;
}

static double reference(const struct gen_params *p, const float *logits,
                        double *prob)
{
    struct ranked r[V];
    double sum = 0, margin = 1, kept = 0;
    int n = V;
    for (int i = 0; i < V; i++) {
        r[i] = (struct ranked){(double)logits[i], i};
        prob[i] = 0;
    }
    qsort(r, V, sizeof(r[0]), by_rank);
    for (int i = V; i-- > 0;)
        r[i].x = exp((r[i].x - r[0].x) / (double)p->temperature);
    for (int i = 0; i < n; i++) {
        if (p->min_p > 0.0f && fabs(r[i].x - (double)p->min_p) < margin)
            margin = fabs(r[i].x - (double)p->min_p);
        if (r[i].x < (double)p->min_p)
            n = i;
    }
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    for (int i = 0; i < n; i++)
        sum += r[i].x;
    if (p->top_p < 1.0f) {
        int k = 0;
        double before = 0;
        do {
            before += r[k++].x;
            if (fabs(before / sum - (double)p->top_p) < margin)
                margin = fabs(before / sum - (double)p->top_p);
        } while (k < n && before / sum < (double)p->top_p);
        n = k;
    }
    for (int i = 0; i < n; i++)
        kept += r[i].x;
    for (int i = 0; i < n; i++)
        prob[r[i].id] = r[i].x / kept;
    return margin;
}

static void random_logits(struct rng *r, float *logits)
{
    /* Some rows on a coarse grid, so that ties are common. */
    float grid = rng_below(r, 2) ? 2.0f : 1024.0f;
    /* And some where nearly all are likely. */
    float range = rng_below(r, 4) ? 16.0f : 0.7f;
    for (int i = 0; i < V; i++)
        logits[i] = roundf((rng_float(r) - 0.5f) * range * grid) / grid;
}

static struct gen_params random_params(struct rng *r)
{
    struct gen_params p = plain();
    p.temperature = 0.1f + rng_float(r) * 1.9f;
    if (rng_below(r, 2))
        p.top_p = 0.05f + 0.95f * rng_float(r);
    if (rng_below(r, 2))
        p.top_k = 1 + (int32_t)rng_below(r, 60);
    if (rng_below(r, 3) == 0)
        p.min_p = rng_float(r) * 0.3f;
    return p;
}

/* The set of tokens that can come: for a fixed state, an inverse draw takes
 * tokens in order of id, so evenly spread draws reach all of any weight. */
static void every_choice_is_from_the_set_a_full_sort_keeps(void **state)
{
    (void)state;
    struct rng r;
    struct sample_scratch *scratch;
    int n_checked = 0;
    assert_int_equal(sample_scratch_new(&scratch, V), OK);
    rng_seed(&r, 3);
    for (int round = 0; round < 1000; round++) {
        float logits[V];
        double prob[V], freq[V] = {0};
        struct gen_params p = random_params(&r);
        random_logits(&r, logits);
        if (reference(&p, logits, prob) < 1e-5)
            continue;
        n_checked++;
        for (uint64_t seed = 0; seed < 100; seed++) {
            int32_t t = once(&p, logits, seed, scratch);
            if (!(prob[t] > 0))
                fail_msg("token %d must not come (top_k %d top_p %g min_p %g)",
                         (int)t, (int)p.top_k, (double)p.top_p,
                         (double)p.min_p);
            freq[t] += 0.01;
        }
        /* What has a fair share comes at least once. */
        for (int i = 0; i < V; i++)
            assert_true(prob[i] < 0.25 || freq[i] > 0);
    }
    assert_true(n_checked > 800);
    sample_scratch_free(scratch);
}

/* Chi-square over 20,000 seeds. 5 sigma above the mean of the statistic. */
static void tokens_come_as_often_as_they_should(void **state)
{
    (void)state;
    struct rng r;
    struct sample_scratch *scratch;
    assert_int_equal(sample_scratch_new(&scratch, V), OK);
    rng_seed(&r, 11);
    for (int round = 0; round < 12; round++) {
        enum { DRAWS = 20000 };
        float logits[V];
        double prob[V], n[V] = {0}, chi = 0, rest = 0, n_rest = 0;
        int cells = 0;
        struct gen_params p = random_params(&r);
        if (round == 0)
            p = plain();
        random_logits(&r, logits);
        if (reference(&p, logits, prob) < 1e-5)
            continue;
        for (uint64_t seed = 0; seed < DRAWS; seed++)
            n[once(&p, logits, seed, scratch)]++;
        for (int i = 0; i < V; i++) {
            double want = prob[i] * DRAWS;
            if (want < 10) {
                rest += want;
                n_rest += n[i];
                continue;
            }
            chi += (n[i] - want) * (n[i] - want) / want;
            cells++;
        }
        if (rest >= 10) {
            chi += (n_rest - rest) * (n_rest - rest) / rest;
            cells++;
        }
        double df = cells > 1 ? cells - 1 : 1;
        if (chi > df + 5 * sqrt(2 * df) + 1)
            fail_msg("chi-square %g with %g degrees of freedom", chi, df);
    }
    sample_scratch_free(scratch);
}

/* One sampler, many tokens: the stream of draws of one seed is as even. */
static void the_draws_of_one_seed_are_even(void **state)
{
    (void)state;
    struct sample_scratch *scratch;
    assert_int_equal(sample_scratch_new(&scratch, V), OK);
    struct gen_params p = plain();
    struct sampler s = sampler_of(&p, 5);
    double chi = 0;
    int n[V] = {0};
    for (int i = 0; i < V * 100; i++) {
        float row[V] = {0};
        n[sampler_next(&s, row, V, scratch, FALLBACK, NULL)]++;
    }
    for (int i = 0; i < V; i++)
        chi += (n[i] - 100.0) * (n[i] - 100.0) / 100.0;
    assert_true(chi < V + 5 * sqrt(2.0 * V));
    assert_true(chi > V - 5 * sqrt(2.0 * V));
    sampler_fini(&s);
    sample_scratch_free(scratch);
}

static void the_exponential_is_right_to_the_last_bits(void **state)
{
    (void)state;
    for (float x = -40.0f; x <= 0.0f; x += 0.000917f) {
        double want = exp((double)x);
        assert_true(fabs((double)sample_exp(x) - want) <= 3e-7 * want);
    }
    assert_true(sample_exp(0.0f) == 1.0f && sample_exp(-0.0f) == 1.0f);
    assert_true(sample_exp(-40.001f) == 0.0f);
    assert_true(sample_exp(-HUGE_VALF) == 0.0f && sample_exp(NAN) == 0.0f);
}

static void greedy_takes_the_highest_and_of_equals_the_first(void **state)
{
    (void)state;
    struct sample_scratch *scratch;
    float logits[V];
    assert_int_equal(sample_scratch_new(&scratch, V), OK);
    for (int i = 0; i < V; i++)
        logits[i] = -1.0f;
    logits[50] = logits[20] = logits[120] = 3.0f;
    struct gen_params p = plain();
    p.temperature = 0.0f;
    assert_int_equal(once(&p, logits, 1, scratch), 20);
    p = plain();
    p.top_p = 0.0f;
    assert_int_equal(once(&p, logits, 1, scratch), 20);
    p = plain();
    p.top_k = 1;
    assert_int_equal(once(&p, logits, 1, scratch), 20);
    /* As good as greedy, by the other way. */
    p = plain();
    p.top_p = 1e-6f;
    for (uint64_t seed = 0; seed < 50; seed++)
        assert_int_equal(once(&p, logits, seed, scratch), 20);
    p = plain();
    p.min_p = 1.0f;
    p.top_k = 2;
    for (uint64_t seed = 0; seed < 50; seed++) {
        int32_t t = once(&p, logits, seed, scratch);
        assert_true(t == 20 || t == 50);
    }
    p = plain();
    p.temperature = 1e-6f;
    logits[20] = 3.001f;
    assert_int_equal(once(&p, logits, 9, scratch), 20);
    sample_scratch_free(scratch);
}

/* By hand: prompt {1, 2}, repetition 2, frequency 0.5, presence 0.25. Each
 * row's winner shows what was added. */
static void penalties_are_those_computed_by_hand(void **state)
{
    (void)state;
    struct sample_scratch *scratch;
    struct sampler s;
    const int32_t prompt[] = {1, 2, 1};
    const struct gen_bias bias[] = {{4, 1.5f}, {5, -100.0f}};
    struct gen_params p = plain();
    p.temperature = 0.0f;
    p.repetition_penalty = 2.0f;
    p.frequency_penalty = 0.5f;
    p.presence_penalty = 0.25f;
    const struct sample_start start = {.params = &p,
                                       .bias = bias,
                                       .n_bias = 2,
                                       .prompt = prompt,
                                       .n_prompt = 3,
                                       .max_tokens = 10,
                                       .n_vocab = 8};
    assert_int_equal(sample_scratch_new(&scratch, 8), OK);
    assert_int_equal(sampler_init(&s, &start), OK);

    float a[8] = {1.0f, 4.0f, -1.0f, 2.25f, 0.0f, 50.0f, -3.0f, 0.0f};
    assert_int_equal(sampler_next(&s, a, 8, scratch, 0, NULL), 3);
    /* 4/2; -1*2; bias 0+1.5; 50-100. */
    static const float after_a[8] = {1.0f, 2.0f,   -2.0f, 2.25f,
                                     1.5f, -50.0f, -3.0f, 0.0f};
    assert_memory_equal(a, after_a, sizeof(a));

    float b[8] = {0.0f, 0.0f, 0.0f, 8.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    assert_int_equal(sampler_next(&s, b, 8, scratch, 0, NULL), 3);
    assert_true(b[3] == 8.0f / 2.0f - 0.5f - 0.25f);

    float c[8] = {0.0f, 0.0f, 0.0f, -1.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    assert_int_equal(sampler_next(&s, c, 8, scratch, 0, NULL), 4);
    assert_true(c[3] == -1.0f * 2.0f - 2 * 0.5f - 0.25f);
    sampler_fini(&s);
    sample_scratch_free(scratch);
}

/* Counting must hold for as many different tokens as can come. */
static void penalties_make_a_round_trip_of_the_vocabulary(void **state)
{
    (void)state;
    struct sample_scratch *scratch;
    struct gen_params p = plain();
    int n[V] = {0};
    p.temperature = 0.0f;
    p.presence_penalty = 1.0f;
    p.frequency_penalty = 1.0f;
    assert_int_equal(sample_scratch_new(&scratch, V), OK);
    struct sampler s = sampler_of(&p, 0);
    for (int i = 0; i < 3 * V; i++) {
        float row[V] = {0};
        n[sampler_next(&s, row, V, scratch, FALLBACK, NULL)]++;
    }
    for (int i = 0; i < V; i++)
        assert_int_equal(n[i], 3);
    sampler_fini(&s);
    sample_scratch_free(scratch);
}

static void logits_that_are_no_numbers_do_no_harm(void **state)
{
    (void)state;
    struct sample_scratch *scratch;
    struct gen_params p = plain();
    bool bad = false;
    assert_int_equal(sample_scratch_new(&scratch, V), OK);
    for (int greedy = 0; greedy < 2; greedy++) {
        p.temperature = greedy ? 0.0f : 1.0f;
        p.top_k = greedy ? 0 : 5;
        p.top_p = 0.9f;
        struct sampler s = sampler_of(&p, 1);
        float row[V];
        for (int i = 0; i < V; i++)
            row[i] = NAN;
        assert_int_equal(sampler_next(&s, row, V, scratch, FALLBACK, &bad),
                         FALLBACK);
        assert_true(bad);
        for (int i = 0; i < V; i++)
            row[i] = i % 2 ? NAN : -INFINITY;
        assert_int_equal(sampler_next(&s, row, V, scratch, FALLBACK, &bad),
                         FALLBACK);
        row[9] = 1.0f;
        for (int i = 10; i < V; i++)
            row[i] = NAN;
        assert_int_equal(sampler_next(&s, row, V, scratch, FALLBACK, &bad), 9);
        assert_false(bad);
        memset(row, 0, sizeof(row));
        row[33] = INFINITY;
        row[34] = NAN;
        assert_int_equal(sampler_next(&s, row, V, scratch, FALLBACK, &bad), 33);
        sampler_fini(&s);
    }
    sample_scratch_free(scratch);
}

/* A vocabulary of 150,000: the borders of top_k and top_p against a sort. */
static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

static void borders_are_right_in_a_large_vocabulary(void **state)
{
    (void)state;
    enum { BIG = 150000 };
    float *logits = malloc(BIG * sizeof(*logits));
    float *row = malloc(BIG * sizeof(*row)),
          *sorted = malloc(BIG * sizeof(*row));
    struct sample_scratch *scratch;
    struct rng r;
    rng_seed(&r, 1);
    assert_int_equal(sample_scratch_new(&scratch, BIG), OK);
    for (int i = 0; i < BIG; i++)
        logits[i] = sorted[i] = rng_float(&r) * 10.0f + rng_float(&r) * 10.0f;
    qsort(sorted, BIG, sizeof(*sorted), descending);
    double total = 0, before = 0;
    for (int i = 0; i < BIG; i++)
        total += exp((double)sorted[i]);
    int k = 0;
    while (before < 0.5 * total)
        before += exp((double)sorted[k++]);
    struct gen_params p = plain();
    for (int way = 0; way < 2; way++) {
        float lowest = HUGE_VALF;
        p.top_p = way ? 0.5f : 1.0f;
        p.top_k = way ? 0 : 1000;
        const struct sample_start start = {
            .params = &p, .n_vocab = BIG, .seed = 4, .max_tokens = 1};
        struct sampler s;
        assert_int_equal(sampler_init(&s, &start), OK);
        for (int i = 0; i < 300; i++) {
            memcpy(row, logits, BIG * sizeof(*row));
            int32_t t = sampler_next(&s, row, BIG, scratch, 0, NULL);
            if (logits[t] < lowest)
                lowest = logits[t];
        }
        /* None below the border, and draws come close to it. */
        int border = way ? k : 1000;
        assert_true(lowest >= sorted[border - 1]);
        assert_true(lowest <= sorted[border * 3 / 4]);
        sampler_fini(&s);
    }
    sample_scratch_free(scratch);
    free(logits);
    free(row);
    free(sorted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_is_from_the_set_a_full_sort_keeps),
        cmocka_unit_test(tokens_come_as_often_as_they_should),
        cmocka_unit_test(the_draws_of_one_seed_are_even),
        cmocka_unit_test(the_exponential_is_right_to_the_last_bits),
        cmocka_unit_test(greedy_takes_the_highest_and_of_equals_the_first),
        cmocka_unit_test(penalties_are_those_computed_by_hand),
        cmocka_unit_test(penalties_make_a_round_trip_of_the_vocabulary),
        cmocka_unit_test(logits_that_are_no_numbers_do_no_harm),
        cmocka_unit_test(borders_are_right_in_a_large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
