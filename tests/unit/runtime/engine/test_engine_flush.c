/* Sessions at rest that are dropped on request. */
#include "toy.h"

static void count(void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
}

static void a_flush_leaves_nothing_at_rest(void **state)
{
    (void)state;
    struct toy_bench b;
    struct engine_stats empty, s;
    int32_t prompt[100];
    atomic_int told = 0;
    toy_set_up(&b, 1024, NULL);
    engine_stats(b.e, &empty);
    toy_prompt(prompt, 100, 5);
    toy_expect(toy_ask(b.e, prompt, 100, 20), prompt, 100, 20);
    engine_stats(b.e, &s);
    assert_true(s.prefix_bytes > 0 && s.sessions_at_rest == 1);

    assert_int_equal(engine_flush(b.e, count, &told), OK);
    toy_wait_count(&told, 1);
    engine_stats(b.e, &s);
    assert_true(s.free_bytes == empty.free_bytes && s.prefix_bytes == 0);
    assert_true(s.sessions_at_rest == 0 && s.entries_retained == 0);
    /* Nobody needed the room. */
    assert_true(s.dropped_sessions == 0);
    struct gen_status st =
        toy_expect(toy_ask(b.e, prompt, 100, 20), prompt, 100, 20);
    assert_int_equal(st.cached_tokens, 0);
    toy_tear_down(&b);
}

static void running_answers_stay_whole(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t prompt[120];
    atomic_int told = 0;
    toy_set_up(&b, 1024, NULL);
    toy_prompt(prompt, 120, 6);
    toy_expect(toy_ask(b.e, prompt, 100, 1), prompt, 100, 1);
    /* This one stands on what is at rest, and is in the middle each time. */
    atomic_store(&b.toy.is_held, true);
    struct gen *g = toy_ask(b.e, prompt, 120, 200);
    for (int i = 1; i <= 5; i++) {
        toy_hold_after(&b.toy, 2);
        assert_int_equal(engine_flush(b.e, count, &told), OK);
    }
    struct gen_status now;
    gen_status(g, &now);
    assert_int_equal(now.state, GEN_DECODE);
    atomic_store(&b.toy.is_held, false);
    toy_wait_count(&told, 5);
    struct gen_status st = toy_expect(g, prompt, 120, 200);
    assert_int_equal(st.cached_tokens, 100);
    toy_tear_down(&b);
}

static void many_that_ask_at_once_are_all_told(void **state)
{
    (void)state;
    struct toy_bench b;
    atomic_int told = 0;
    toy_set_up(&b, 256, NULL);
    for (int i = 0; i < 100; i++)
        assert_int_equal(engine_flush(b.e, count, &told), OK);
    toy_tear_down(&b); /* the end tells those that are left */
    assert_int_equal(atomic_load(&told), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flush_leaves_nothing_at_rest),
        cmocka_unit_test(running_answers_stay_whole),
        cmocka_unit_test(many_that_ask_at_once_are_all_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
