/* What becomes of requests that cannot start: they wait, and after a time they
 * are sent away with the reason. Who runs goes on. */
#include "toy.h"

enum { WAIT_US = 100 * 1000 };

static void one_at_a_time(struct engine_options *o)
{
    o->max_running = 1;
    o->queue_us = WAIT_US;
}

static void impatient(struct engine_options *o)
{
    o->queue_us = WAIT_US;
}

static struct gen_status end_of(struct gen *g)
{
    struct gen_status s = toy_wait(g, GEN_DONE);
    gen_release(g);
    return s;
}

/* A step that takes longer than anybody may wait, however busy the machine. */
static void let_time_pass(struct toy_bench *b)
{
    toy_sleep(WAIT_US + WAIT_US / 2);
    atomic_store(&b->toy.is_held, false);
}

static void nothing_was_done(const struct gen_status *s)
{
    assert_int_equal(s->completion_tokens, 0);
    assert_int_equal(s->admitted_us, 0);
    assert_true(s->done_us >= WAIT_US);
}

static void a_turn_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[3][20];
    struct gen *g[3];
    toy_set_up(&b, 1024, one_at_a_time);
    atomic_store(&b.toy.is_held, true);
    for (uint64_t i = 0; i < 3; i++) {
        toy_prompt(p[i], 20, i + 1);
        struct gen_request r = toy_request(p[i], 20, 200);
        r.params.ignore_eos = i == 0;
        g[i] = toy_submit(b.e, &r);
        if (i == 0)
            toy_hold(&b.toy);
    }
    let_time_pass(&b);
    for (int i = 1; i < 3; i++) {
        struct gen_status s = end_of(g[i]);
        assert_int_equal(s.finish, GEN_FINISH_BUSY);
        nothing_was_done(&s);
    }
    struct gen_status s = end_of(g[0]);
    assert_int_equal(s.finish, GEN_FINISH_LENGTH);
    assert_int_equal(s.completion_tokens, 200);
    struct engine_stats st;
    engine_stats(b.e, &st);
    assert_int_equal(st.expired_busy, 2);
    assert_int_equal(st.expired_no_room, 0);
    assert_int_equal(st.waiting, 0);
    /* Its turn comes at once now. */
    toy_expect(toy_ask(b.e, p[1], 20, 5), p[1], 20, 5);
    toy_tear_down(&b);
}

/* Everything is promised to one exact answer. */
static void room_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[60], q[60];
    toy_set_up(&b, 256, impatient);
    toy_prompt(p, 60, 1);
    toy_prompt(q, 60, 2);
    struct gen_request r = toy_request(p, 60, 190);
    r.params.ignore_eos = true;
    atomic_store(&b.toy.is_held, true);
    struct gen *first = toy_submit(b.e, &r);
    toy_hold(&b.toy);
    struct gen *second = toy_ask(b.e, q, 60, 40);
    r = toy_request(q, 60, 40);
    r.forget = (struct forget_rules){.policy = FORGET_STREAMINGLLM};
    struct gen *third = toy_submit(b.e, &r);
    let_time_pass(&b);
    struct gen_status s = end_of(second);
    assert_int_equal(s.finish, GEN_FINISH_NO_ROOM);
    nothing_was_done(&s);
    s = end_of(third);
    assert_int_equal(s.finish, GEN_FINISH_NO_ROOM);
    s = end_of(first);
    assert_int_equal(s.completion_tokens, 190);
    struct engine_stats st;
    engine_stats(b.e, &st);
    assert_int_equal(st.expired_busy, 0);
    assert_int_equal(st.expired_no_room, 2);
    toy_expect(toy_ask(b.e, q, 60, 40), q, 60, 40);
    toy_check_stats(b.e);
    toy_tear_down(&b);
}

/* Without a limit of time, and where the wait is shorter than it. */
static void who_gets_a_turn_in_time_gets_an_answer(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct toy_bench b;
        struct gen *g[6];
        int32_t p[6][20];
        toy_set_up(&b, 1024, one_at_a_time);
        b.e->o.queue_us = k == 0 ? 0 : 600 * 1000 * 1000;
        for (uint64_t i = 0; i < 6; i++) {
            toy_prompt(p[i], 20, i + 1);
            g[i] = toy_ask(b.e, p[i], 20, 20);
        }
        for (int i = 0; i < 6; i++)
            toy_expect(g[i], p[i], 20, 20);
        toy_tear_down(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_is_not_waited_for_for_ever),
        cmocka_unit_test(room_is_not_waited_for_for_ever),
        cmocka_unit_test(who_gets_a_turn_in_time_gets_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
