/* Caps of sessions whose beginnings others share: what is shared cannot be
 * taken out, so it is not shared, or not any more. */
#include "toy.h"

enum { POOL = 1024, CAP = 32 };

static void forgetful(struct engine_options *o)
{
    toy_forgetful(o);
    o->max_step_rows = 128; /* all of a prompt in one step */
}

static struct gen *ask(struct toy_bench *b, const int32_t *p, uint32_t n,
                       uint32_t max_tokens, uint32_t cap)
{
    struct gen_request q = toy_request(p, n, max_tokens);
    q.params.ignore_eos = true;
    q.forget = b->e->o.forget.rules;
    q.forget.session_tokens = cap;
    return toy_submit(b->e, &q);
}

static struct gen_status finish(struct gen *g)
{
    struct gen_status s = toy_wait(g, GEN_DONE);
    gen_release(g);
    return s;
}

/* The capped request goes on from one of two histories that begin alike: that
 * one it replaces, but not the other. */
static void a_cap_holds_behind_what_a_third_shares(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[160], q[160];
    toy_set_up(&b, POOL, forgetful);
    toy_prompt(p, 160, 1);
    memcpy(q, p, sizeof(q));
    q[100] = (q[100] + 1) % TOY_END;
    (void)finish(ask(&b, p, 120, 0, 0));
    (void)finish(ask(&b, q, 120, 0, 0));
    assert_int_equal(b.e->sessions.rest.n, 2);
    struct gen_status s = finish(ask(&b, p, 140, 20, CAP));
    assert_true(s.retained_entries <= (CAP + 1) * TOY_LISTS);
    toy_check_stats(b.e);
    toy_tear_down(&b);
}

/* Alone it takes the history over, as before. */
static void a_history_of_its_own_is_taken_over(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[160];
    toy_set_up(&b, POOL, forgetful);
    toy_prompt(p, 160, 1);
    (void)finish(ask(&b, p, 120, 0, 0));
    struct gen_status s = finish(ask(&b, p, 140, 20, CAP));
    assert_int_equal(s.cached_tokens, 120);
    assert_true(s.retained_entries <= (CAP + 1) * TOY_LISTS);
    assert_int_equal(b.e->sessions.rest.n, 1);
    toy_tear_down(&b);
}

/* While it runs, others begin with what it has until then. */
static void a_cap_holds_when_others_have_joined(void **state)
{
    (void)state;
    enum { PROMPT = 90, ROOM = 92 };
    struct toy_bench b;
    int32_t p[PROMPT];
    struct gen *g[3];
    toy_set_up(&b, POOL, forgetful);
    toy_prompt(p, PROMPT, 1);
    atomic_store(&b.toy.is_held, true);
    for (uint32_t i = 0; i < 3; i++) {
        p[PROMPT - 1] = (int32_t)i;
        g[i] = ask(&b, p, PROMPT, i == 0 ? 60 : 400, i == 0 ? ROOM : 0);
        if (i == 0)
            toy_hold(&b.toy);
    }
    atomic_store(&b.toy.is_held, false);
    struct gen_status s = finish(g[0]);
    assert_int_equal(s.completion_tokens, 60);
    assert_true(s.retained_entries <= (ROOM + 1) * TOY_LISTS);
    for (uint32_t i = 1; i < 3; i++) {
        s = finish(g[i]);
        assert_int_equal(s.cached_tokens, 80);
        assert_int_equal(s.evicted_entries, 0);
    }
    toy_check_stats(b.e);
    toy_tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cap_holds_behind_what_a_third_shares),
        cmocka_unit_test(a_history_of_its_own_is_taken_over),
        cmocka_unit_test(a_cap_holds_when_others_have_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
