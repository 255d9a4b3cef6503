/* Caps of sessions: whose beginnings others share, so that these are not to be
 * taken out, and which come to rest however an answer can end. */
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

/* No session at rest holds more than its own cap says. */
static void check_at_rest(struct toy_bench *b, uint32_t n_sessions)
{
    const struct session *s = b->e->sessions.rest.first;
    assert_int_equal(b->e->sessions.rest.n, n_sessions);
    for (; s; s = s->next)
        if (s->rules.session_tokens > 0 && session_forgets(s))
            assert_true(table_n_entries(s->table) <=
                        (uint64_t)s->rules.session_tokens * TOY_LISTS);
    toy_check_stats(b->e);
}

/* Of a prompt that is never cut. */
static struct gen_request uncut(struct toy_bench *b, const int32_t *p,
                                uint32_t n, uint32_t max_tokens)
{
    struct gen_request q = toy_request(p, n, max_tokens);
    q.forget = b->e->o.forget.rules;
    q.forget.session_tokens = CAP;
    q.forget.admission.off = true;
    return q;
}

/* A prompt of 160 tokens whose answer begins with this token. */
static void prompt_for(int32_t first, int32_t p[160])
{
    struct toy_answer a;
    uint64_t seed = 0;
    do {
        toy_prompt(p, 160, ++seed);
        toy_answer(&a, p, 160, 1, false);
    } while (a.token[0] != first);
}

static void a_cap_holds_at_rest_after_an_answer_of_a_token(void **state)
{
    (void)state;
    enum { NO_TOKEN, ONE_TOKEN, END_OF_TURN, STOP_STRING, N };
    for (uint32_t how = 0; how < N; how++) {
        struct toy_bench b;
        int32_t p[160];
        toy_set_up(&b, POOL, forgetful);
        prompt_for(how == END_OF_TURN ? TOY_END : 0, p);
        struct gen_request q = uncut(&b, p, 160, how <= ONE_TOKEN ? how : 20);
        if (how == STOP_STRING)
            toy_add_stop(&q, "a");
        struct gen_status s = finish(toy_submit(b.e, &q));
        assert_int_equal(s.finish, how <= ONE_TOKEN ? GEN_FINISH_LENGTH
                                                    : GEN_FINISH_STOP);
        assert_int_equal(s.completion_tokens, how > NO_TOKEN);
        assert_int_equal(s.retained_entries, CAP * TOY_LISTS);
        assert_int_equal(s.retained_entries + s.evicted_entries,
                         s.full_entries);
        check_at_rest(&b, 1);
        struct engine_stats st;
        engine_stats(b.e, &st);
        assert_int_equal(st.evicted[ENGINE_CAP], s.evicted_entries);
        toy_tear_down(&b);
    }
}

/* In the middle of its prompt, whether that would be cut or not. */
static void a_cap_holds_at_rest_when_nobody_waits_any_more(void **state)
{
    (void)state;
    int32_t p[160];
    for (uint32_t off = 0; off < 2; off++) {
        struct toy_bench b;
        toy_set_up(&b, POOL, toy_forgetful);
        toy_prompt(p, 160, 1);
        struct gen_request q = uncut(&b, p, 160, 20);
        q.forget.admission.off = off;
        atomic_store(&b.toy.is_held, true);
        struct gen *g = toy_submit(b.e, &q);
        toy_hold(&b.toy);
        gen_cancel(g);
        atomic_store(&b.toy.is_held, false);
        struct gen_status s = finish(g);
        assert_int_equal(s.finish, GEN_FINISH_CANCELLED);
        assert_int_equal(s.logical_tokens, 64);
        assert_int_equal(s.retained_entries, CAP * TOY_LISTS);
        check_at_rest(&b, 1);
        toy_tear_down(&b);
    }
}

/* What the choices of a request have in common is shared while they run. */
static void a_cap_holds_at_rest_for_each_choice(void **state)
{
    (void)state;
    struct toy_bench b;
    struct gen *g[3];
    int32_t p[160];
    toy_set_up(&b, POOL, forgetful);
    prompt_for(0, p);
    atomic_store(&b.toy.is_held, true);
    for (uint32_t i = 0; i < 3; i++) {
        struct gen_request q = uncut(&b, p, 160, 1);
        q.params.temperature = 1.0f;
        q.params.has_seed = true;
        q.params.seed = i;
        g[i] = toy_submit(b.e, &q);
    }
    atomic_store(&b.toy.is_held, false);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(finish(g[i]).retained_entries, CAP * TOY_LISTS);
    check_at_rest(&b, b.e->sessions.rest.n);
    toy_tear_down(&b);
}

/* The other goes on with all that they had in common. */
static void a_cap_holds_at_rest_of_what_another_shares(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[160];
    toy_set_up(&b, POOL, forgetful);
    prompt_for(0, p);
    atomic_store(&b.toy.is_held, true);
    struct gen_request q = uncut(&b, p, 160, 1);
    struct gen *g = toy_submit(b.e, &q);
    toy_hold(&b.toy);
    struct gen *other = ask(&b, p, 160, 40, 0);
    atomic_store(&b.toy.is_held, false);
    assert_int_equal(finish(g).retained_entries, CAP * TOY_LISTS);
    assert_int_equal(finish(other).evicted_entries, 0);
    check_at_rest(&b, 1);
    toy_tear_down(&b);
}

/* A prompt that waits to be cut, slice by slice, beside an answer that goes on:
 * it gets the answer that it gets when all is done at once. */
static void run_beside(struct buf *text, struct gen_status *s, uint64_t slice,
                       uint64_t *n_looks)
{
    struct toy_bench b;
    struct engine_stats st;
    int32_t p[160], q[20];
    struct gen *g[3];
    toy_set_up(&b, POOL, forgetful);
    b.e->slice = slice;
    toy_prompt(p, 160, 3);
    toy_prompt(q, 20, 4);
    atomic_store(&b.toy.is_held, true);
    g[0] = ask(&b, q, 20, 300, 0);
    toy_hold(&b.toy);
    g[1] = ask(&b, p, 160, 40, CAP);
    p[0]++;
    g[2] = ask(&b, p, 160, 0, CAP);
    atomic_store(&b.toy.is_held, false);
    *s = toy_finish(g[1], text);
    gen_release(g[1]);
    for (int i = 0; i < 3; i += 2)
        (void)finish(g[i]);
    check_at_rest(&b, 3);
    engine_stats(b.e, &st);
    *n_looks = 0;
    for (int i = 0; i <= ENGINE_BUCKETS_MAX; i++)
        *n_looks += st.evict_seconds.count[i];
    toy_tear_down(&b);
}

static void who_waits_to_be_cut_gets_the_same_answer(void **state)
{
    (void)state;
    struct buf text[2] = {{0}, {0}};
    struct gen_status s[2];
    uint64_t n_looks[2];
    /* A cap of a quarter of a slice leaves no headroom below it. */
    run_beside(&text[0], &s[0], ENGINE_SLICE, &n_looks[0]);
    run_beside(&text[1], &s[1], 4 * CAP * TOY_LISTS, &n_looks[1]);
    assert_true(text[0].len > 0);
    assert_string_equal(text[0].data, text[1].data);
    assert_int_equal(s[0].retained_entries, s[1].retained_entries);
    assert_int_equal(s[0].evicted_entries, s[1].evicted_entries);
    assert_true(s[1].retained_entries <= CAP * TOY_LISTS);
    /* It was worked on in slices: two of these prompts in eight lists. */
    assert_true(n_looks[1] >= n_looks[0] + 8);
    buf_fini(&text[0]);
    buf_fini(&text[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cap_holds_behind_what_a_third_shares),
        cmocka_unit_test(a_history_of_its_own_is_taken_over),
        cmocka_unit_test(a_cap_holds_when_others_have_joined),
        cmocka_unit_test(a_cap_holds_at_rest_after_an_answer_of_a_token),
        cmocka_unit_test(a_cap_holds_at_rest_when_nobody_waits_any_more),
        cmocka_unit_test(a_cap_holds_at_rest_for_each_choice),
        cmocka_unit_test(a_cap_holds_at_rest_of_what_another_shares),
        cmocka_unit_test(who_waits_to_be_cut_gets_the_same_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
