#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/rng.h"
#include "runtime/engine/schedule.h"

/* A machine with true costs and some noise. */
struct machine {
    double fixed, row, context;
    struct rng rng;
};

static double time_of(struct machine *m, uint64_t rows, uint64_t context)
{
    double noise = 0.95 + 0.1 * rng_double(&m->rng);
    /* Now and then a neighbour takes the cores. */
    if (rng_below(&m->rng, 50) == 0)
        noise *= 10;
    return noise *
           (m->fixed + m->row * (double)rows + m->context * (double)context);
}

static uint64_t context_of(uint32_t pos, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 1; i <= n; i++)
        sum += pos + i;
    return sum;
}

/* Steps with 4 decodes beside a long prompt: after a while each is planned to
 * end near its target, whatever the machine is like. */
static void steps_come_to_their_target_on_any_machine(void **state)
{
    (void)state;
    static const struct machine machines[] = {
        {6000, 1000, 1.0, {{0}}},  /* a small model on two cores */
        {20000, 1600, 0.6, {{0}}}, /* a larger one */
        {2000, 150, 0.1, {{0}}},   /* many cores */
    };
    for (int k = 0; k < 3; k++) {
        struct machine m = machines[k];
        struct schedule s;
        rng_seed(&m.rng, 5);
        schedule_init(&s, 512, 100000, false);
        double over = 0, under = 0;
        int n_steps = 0;
        for (int prompt = 0; prompt < 30; prompt++) {
            struct schedule_prefill p = {.left = 4000};
            struct schedule_prefill *pp = &p;
            uint64_t decode = 4 * 1000;
            for (int i = 0; i < 10; i++)
                schedule_observe(&s, 4, decode, time_of(&m, 4, decode));
            while (p.left > 0) {
                schedule_plan(&s, 4, decode, &pp, 1);
                assert_true(p.take > 0 && p.take <= 508);
                uint64_t context = decode + context_of(p.pos, p.take);
                double want = m.fixed + m.row * (4 + p.take) +
                              m.context * (double)context;
                schedule_observe(&s, 4 + p.take, context,
                                 time_of(&m, 4 + p.take, context));
                bool is_free =
                    p.take > SCHEDULE_LEAST && p.take < 496 && p.take < p.left;
                p.pos += p.take;
                p.left -= p.take;
                if (prompt < 10 || !is_free)
                    continue;
                n_steps++;
                over += want > 130000;
                under += want < 60000;
            }
        }
        assert_true(n_steps > 100);
        assert_true(over <= 0.05 * n_steps && under <= 0.05 * n_steps);
    }
}

/* Each row takes 50 ms: the first steps are small, and then it is known. */
static void a_large_model_is_found_out_in_two_steps(void **state)
{
    (void)state;
    struct schedule s;
    struct schedule_prefill p = {.left = 4000};
    struct schedule_prefill *pp = &p;
    schedule_init(&s, 512, 100000, false);
    for (int i = 0; i < 5; i++) {
        schedule_plan(&s, 0, 0, &pp, 1);
        assert_true(p.take <= (i < 2 ? 32 : SCHEDULE_LEAST));
        schedule_observe(&s, p.take, context_of(p.pos, p.take),
                         50000.0 * p.take);
        p.pos += p.take;
        p.left -= p.take;
    }
}

static void a_prompt_advances_also_when_decodes_take_all_the_time(void **state)
{
    (void)state;
    struct schedule s;
    struct schedule_prefill p = {.left = 100, .pos = 50};
    struct schedule_prefill *pp = &p;
    schedule_init(&s, 64, 1, true);
    schedule_plan(&s, 10, 100000000, &pp, 1);
    assert_int_equal(p.take, SCHEDULE_LEAST);
    /* Less room than a unit in the batch. */
    schedule_plan(&s, 60, 0, &pp, 1);
    assert_int_equal(p.take, 4);
    schedule_plan(&s, 63, 0, &pp, 1);
    assert_int_equal(p.take, 1);
}

/* But never so large that a cancel is noticed late. */
static void with_nobody_decoding_chunks_are_larger(void **state)
{
    (void)state;
    struct schedule s;
    struct schedule_prefill a = {.left = 1000}, b = {.left = 1000};
    struct schedule_prefill *p = &a;
    schedule_init(&s, 500, 40000, true);
    schedule_plan(&s, 1, 1, &p, 1);
    p = &b;
    schedule_plan(&s, 0, 0, &p, 1);
    assert_true(b.take >= 2 * a.take);
    assert_true(schedule_predict_us(&s, b.take, context_of(0, b.take)) <=
                SCHEDULE_ALONE_US);
}

static void chunks_are_whole_units_except_the_last(void **state)
{
    (void)state;
    struct schedule s;
    schedule_init(&s, 500, 30000, true);
    for (uint32_t left = 1; left < 3000; left += 7) {
        struct schedule_prefill p = {.left = left};
        struct schedule_prefill *pp = &p;
        schedule_plan(&s, 1, 10, &pp, 1);
        assert_true(p.take == left || p.take % SCHEDULE_LEAST == 0);
        assert_true(p.take > 0 && p.take <= left);
    }
}

static void
the_shortest_goes_first_and_the_rest_share_what_is_left(void **state)
{
    (void)state;
    struct schedule s;
    struct schedule_prefill a = {.left = 1000, .order = 1},
                            b = {.left = 20, .order = 2},
                            c = {.left = 30, .order = 3};
    struct schedule_prefill *p[] = {&a, &b, &c};
    schedule_init(&s, 100, 1000000, true);
    schedule_plan(&s, 2, 0, p, 3);
    assert_int_equal(b.take, 20);
    assert_int_equal(c.take, 30);
    assert_int_equal(a.take, 48);
    assert_int_equal(a.passed, 50);
}

/* Short prompts without end beside a long one: it is passed by no more tokens
 * than it has, plus what one step holds. */
static void a_long_prompt_is_passed_by_no_more_tokens_than_it_has(void **state)
{
    (void)state;
    struct schedule s;
    struct schedule_prefill l = {.left = 5000}, x[2];
    uint64_t others = 0;
    schedule_init(&s, 64, 20000, true);
    for (uint32_t i = 0; i < 2; i++)
        x[i] = (struct schedule_prefill){.left = 200, .order = i + 1};
    for (uint64_t order = 3; l.left > 0; order++) {
        struct schedule_prefill *p[] = {&l, &x[0], &x[1]};
        schedule_plan(&s, 1, 100, p, 3);
        l.pos += l.take;
        l.left -= l.take;
        for (uint32_t i = 0; i < 2; i++) {
            x[i].left -= x[i].take;
            others += x[i].take;
            if (x[i].left == 0)
                x[i] = (struct schedule_prefill){.left = 200, .order = order};
        }
        assert_true(others <= 5000 + 200 + 64);
    }
}

static void the_context_of_rows_is_the_sum_over_them(void **state)
{
    (void)state;
    for (uint32_t pos = 0; pos < 100; pos += 9)
        for (uint32_t n = 0; n < 50; n++)
            assert_true(schedule_context(pos, n) == context_of(pos, n));
}

/* Garbage in the measurements must not make plans without bound. */
static void odd_measurements_do_no_harm(void **state)
{
    (void)state;
    struct schedule s;
    struct rng r;
    rng_seed(&r, 1);
    schedule_init(&s, 512, 100000, false);
    for (int i = 0; i < 5000; i++) {
        static const double odd[] = {0, -5, 1e12, NAN, INFINITY, 1, 100};
        uint64_t rows = rng_below(&r, 512);
        schedule_observe(&s, rows, rows * rng_below(&r, 9000),
                         odd[rng_below(&r, 7)]);
        struct schedule_prefill p = {.left = 3000, .pos = 3};
        struct schedule_prefill *pp = &p;
        schedule_plan(&s, 5, 500, &pp, 1);
        assert_true(p.take > 0 && p.take <= 507);
        assert_true(isfinite(schedule_predict_us(&s, 10, 1000)));
        assert_true(schedule_predict_us(&s, 10, 1000) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_come_to_their_target_on_any_machine),
        cmocka_unit_test(a_large_model_is_found_out_in_two_steps),
        cmocka_unit_test(a_prompt_advances_also_when_decodes_take_all_the_time),
        cmocka_unit_test(with_nobody_decoding_chunks_are_larger),
        cmocka_unit_test(chunks_are_whole_units_except_the_last),
        cmocka_unit_test(
            the_shortest_goes_first_and_the_rest_share_what_is_left),
        cmocka_unit_test(a_long_prompt_is_passed_by_no_more_tokens_than_it_has),
        cmocka_unit_test(the_context_of_rows_is_the_sum_over_them),
        cmocka_unit_test(odd_measurements_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
