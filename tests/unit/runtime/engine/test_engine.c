#include "toy.h"

/* Every test gets its own toy and engine. */
struct bench {
    struct toy toy;
    struct engine *e;
};

static void set_up(struct bench *b, uint32_t pool_tokens,
                   void (*change)(struct engine_options *o))
{
    toy_init(&b->toy);
    struct engine_options o = toy_options(&b->toy, pool_tokens);
    if (change)
        change(&o);
    b->e = toy_engine(&b->toy, &o);
}

static void tear_down(struct bench *b)
{
    toy_end(&b->toy, b->e);
    toy_fini(&b->toy);
}

/* n tokens that depend on the seed only. */
static void make_prompt(int32_t *out, uint32_t n, uint64_t seed)
{
    struct rng r;
    rng_seed(&r, seed);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (int32_t)rng_below(&r, TOY_END);
}

static struct gen *ask(struct engine *e, const int32_t *prompt, uint32_t n,
                       uint32_t max_tokens)
{
    struct gen_request r = toy_request(prompt, n, max_tokens);
    return toy_submit(e, &r);
}

/* Reads an answer to its end, compares it, and lets the request go. */
static struct gen_status expect(struct gen *g, const int32_t *prompt,
                                uint32_t n, uint32_t max_tokens)
{
    struct toy_answer a;
    struct buf text = {0};
    struct gen_status s = toy_finish(g, &text);
    toy_answer(&a, prompt, n, max_tokens, false);
    assert_string_equal(text.data ? text.data : "", a.text);
    assert_int_equal(s.finish, a.finish);
    assert_int_equal(s.completion_tokens, a.n);
    assert_int_equal(s.prompt_tokens, n);
    assert_true(s.cached_tokens < n);
    buf_fini(&text);
    gen_release(g);
    return s;
}

static void an_answer_is_what_the_model_says_of_the_prompt(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1024, NULL);
    for (uint64_t seed = 0; seed < 30; seed++) {
        int32_t prompt[70];
        uint32_t n = 1 + (uint32_t)(seed * 37 % 70);
        make_prompt(prompt, n, seed);
        struct gen_status s = expect(ask(b.e, prompt, n, 40), prompt, n, 40);
        assert_true(s.admitted_us > 0 && s.first_token_us >= s.admitted_us &&
                    s.done_us >= s.first_token_us);
        assert_int_equal(s.logical_tokens, n + s.completion_tokens - 1);
        assert_int_equal(s.full_entries, s.logical_tokens * TOY_LISTS);
        assert_int_equal(s.retained_entries, s.full_entries);
        assert_int_equal(s.kv_bytes, (s.logical_tokens + KV_UNIT - 1) /
                                         KV_UNIT * TOY_LISTS *
                                         toy_unit_bytes());
        toy_check_stats(b.e);
    }
    tear_down(&b);
}

/* A prompt whose answer is exactly the tokens wanted is not needed: the stop
 * string is taken out of the middle of the true answer, across tokens. */
static void a_stop_string_cuts_the_text_where_it_begins(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1024, NULL);
    int n_cut = 0;
    for (uint64_t seed = 100; seed < 140; seed++) {
        int32_t prompt[10];
        struct toy_answer a;
        make_prompt(prompt, 10, seed);
        toy_answer(&a, prompt, 10, 40, false);
        if (strlen(a.text) < 8)
            continue;
        char stop[4] = {a.text[4], a.text[5], a.text[6], 0};
        char *at = strstr(a.text, stop);
        uint32_t used = (uint32_t)(at - a.text) + 3;
        *at = 0;

        struct gen_request r = toy_request(prompt, 10, 40);
        toy_add_stop(&r, "not in there");
        toy_add_stop(&r, stop);
        struct gen *g = toy_submit(b.e, &r);
        struct buf text = {0};
        struct gen_status s = toy_finish(g, &text);
        assert_string_equal(text.data ? text.data : "", a.text);
        assert_int_equal(s.finish, GEN_FINISH_STOP);
        assert_int_equal(s.completion_tokens, used);
        gen_release(g);
        buf_fini(&text);
        n_cut++;
    }
    assert_true(n_cut > 10);
    tear_down(&b);
}

static void with_ignore_eos_an_answer_goes_on_to_its_limit(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1024, NULL);
    int n_passed_an_end = 0;
    for (uint64_t seed = 0; seed < 10; seed++) {
        int32_t prompt[5];
        struct toy_answer a;
        make_prompt(prompt, 5, seed);
        toy_answer(&a, prompt, 5, 60, true);
        n_passed_an_end += strlen(a.text) < 60;
        struct gen_request r = toy_request(prompt, 5, 60);
        r.params.ignore_eos = true;
        struct gen *g = toy_submit(b.e, &r);
        struct buf text = {0};
        struct gen_status s = toy_finish(g, &text);
        assert_string_equal(text.data ? text.data : "", a.text);
        assert_int_equal(s.finish, GEN_FINISH_LENGTH);
        assert_int_equal(s.completion_tokens, 60);
        gen_release(g);
        buf_fini(&text);
    }
    assert_true(n_passed_an_end > 0);
    tear_down(&b);
}

static void no_tokens_asked_for_only_computes_the_prompt(void **state)
{
    (void)state;
    struct bench b;
    int32_t prompt[40];
    set_up(&b, 1024, NULL);
    make_prompt(prompt, 40, 1);
    struct gen *g = ask(b.e, prompt, 40, 0);
    struct gen_status s = toy_wait(g, GEN_DONE);
    assert_int_equal(s.finish, GEN_FINISH_LENGTH);
    assert_int_equal(s.completion_tokens, 0);
    assert_int_equal(s.first_token_us, 0);
    assert_int_equal(s.logical_tokens, 40);
    gen_release(g);
    s = expect(ask(b.e, prompt, 40, 20), prompt, 40, 20);
    assert_int_equal(s.cached_tokens, 39);
    tear_down(&b);
}

static void a_chat_computes_only_what_is_new(void **state)
{
    (void)state;
    struct bench b;
    int32_t history[400];
    uint32_t n = 20, stored = 0;
    set_up(&b, 2048, NULL);
    make_prompt(history, n, 5);
    for (int turn = 0; turn < 8; turn++) {
        struct toy_answer a;
        toy_answer(&a, history, n, 20, false);
        struct gen_status s = expect(ask(b.e, history, n, 20), history, n, 20);
        assert_int_equal(s.cached_tokens, stored);
        stored = n + a.n - 1;
        memcpy(history + n, a.token, a.n * sizeof(*history));
        n += a.n;
        make_prompt(history + n, 7, 50 + (uint64_t)turn);
        n += 7;
        /* One session at rest: a chat leaves no trail. */
        struct engine_stats st;
        engine_stats(b.e, &st);
        assert_int_equal(st.sessions_at_rest, 1);
    }
    struct engine_stats st;
    engine_stats(b.e, &st);
    assert_int_equal(st.dropped_sessions, 0);
    assert_int_equal(st.prompt_tokens, st.cached_tokens + st.prefill_tokens);
    tear_down(&b);
}

static void an_edited_history_shares_what_comes_before(void **state)
{
    (void)state;
    struct bench b;
    int32_t prompt[100], edited[100];
    set_up(&b, 1024, NULL);
    make_prompt(prompt, 100, 5);
    expect(ask(b.e, prompt, 100, 20), prompt, 100, 20);
    for (uint32_t at = 3; at < 100; at += 13) {
        memcpy(edited, prompt, sizeof(prompt));
        edited[at] = (edited[at] + 1) % TOY_END;
        struct gen_status s =
            expect(ask(b.e, edited, 100, 20), edited, 100, 20);
        assert_int_equal(s.cached_tokens, at);
        /* The old history is untouched. */
        s = expect(ask(b.e, prompt, 100, 20), prompt, 100, 20);
        assert_int_equal(s.cached_tokens, 99);
    }
    tear_down(&b);
}

static void requests_with_one_prompt_compute_it_once(void **state)
{
    (void)state;
    struct bench b;
    struct gen *g[6];
    int32_t prompt[6][120];
    set_up(&b, 2048, NULL);
    atomic_store(&b.toy.is_held, true);
    for (uint32_t i = 0; i < 6; i++) {
        make_prompt(prompt[i], 120, 9);
        prompt[i][119] = (int32_t)i;
        g[i] = ask(b.e, prompt[i], 120, 30);
    }
    atomic_store(&b.toy.is_held, false);
    for (uint32_t i = 0; i < 6; i++) {
        struct gen_status s = expect(g[i], prompt[i], 120, 30);
        /* All but the first wait for what the first computes anyway. */
        assert_true(i == 0 ? s.cached_tokens == 0
                           : s.cached_tokens > 119 - ENGINE_HOLD_LEAST - 16);
    }
    tear_down(&b);
}

static void refusal(struct bench *b, struct gen_request r,
                    enum gen_refusal expected, enum err code, const char *part)
{
    struct gen *g = NULL;
    struct errmsg m = {""};
    enum gen_refusal why = GEN_REFUSED_NOT;
    int32_t *tokens = r.tokens;
    assert_int_equal(engine_submit(b->e, &r, &g, &why, &m), code);
    assert_int_equal(why, expected);
    assert_null(g);
    assert_ptr_equal(r.tokens, tokens);
    if (!strstr(m.text, part))
        fail_msg("\"%s\" is not in: %s", part, m.text);
    gen_request_fini(&r);
}

static void what_can_never_fit_is_refused_with_the_numbers(void **state)
{
    (void)state;
    struct bench b;
    int32_t prompt[600];
    set_up(&b, 256, NULL); /* the context is 512 */
    make_prompt(prompt, 600, 1);
    refusal(&b, toy_request(prompt, 512, 1), GEN_REFUSED_CONTEXT, ERR_INVAL,
            "512 tokens");
    refusal(&b, toy_request(prompt, 600, 1), GEN_REFUSED_CONTEXT, ERR_INVAL,
            "600");
    refusal(&b, toy_request(prompt, 200, 58), GEN_REFUSED_KV, ERR_INVAL,
            "holds 256");
    refusal(&b, toy_request(prompt, 257, 1), GEN_REFUSED_KV, ERR_INVAL, "257");
    struct gen_request r = toy_request(prompt, 257, 0);
    r.params.has_max_tokens = false;
    refusal(&b, r, GEN_REFUSED_KV, ERR_INVAL, "257");
    r = toy_request(prompt, 1, 1);
    r.tokens[0] = TOY_VOCAB;
    refusal(&b, r, GEN_REFUSED_NOT, ERR_INVAL, "token 30");
    r = toy_request(prompt, 1, 1);
    r.tokens[0] = -1;
    refusal(&b, r, GEN_REFUSED_NOT, ERR_INVAL, "token -1");
    refusal(&b, toy_request(prompt, 0, 1), GEN_REFUSED_NOT, ERR_INVAL,
            "no tokens");
    struct engine_stats s;
    engine_stats(b.e, &s);
    assert_int_equal(s.refused_context, 2);
    assert_int_equal(s.refused_kv, 3);
    /* What fits to the last unit runs. */
    expect(ask(b.e, prompt, 200, 57), prompt, 200, 57);
    expect(ask(b.e, prompt, 256, 1), prompt, 256, 1);
    tear_down(&b);
}

static void
an_answer_without_a_limit_ends_where_context_or_pool_end(void **state)
{
    (void)state;
    for (uint32_t pool = 256; pool <= 1024; pool *= 4) {
        struct bench b;
        int32_t prompt[100];
        set_up(&b, pool, NULL);
        make_prompt(prompt, 100, 3);
        struct gen_request r = toy_request(prompt, 100, 0);
        r.params.has_max_tokens = false;
        r.params.ignore_eos = true;
        struct gen *g = toy_submit(b.e, &r);
        struct gen_status s = toy_wait(g, GEN_DONE);
        assert_int_equal(s.finish, GEN_FINISH_LENGTH);
        assert_int_equal(s.completion_tokens, pool == 256 ? 157 : 412);
        gen_release(g);
        /* A limit beyond the context is cut to it. */
        r = toy_request(prompt, 100, 5000);
        r.params.ignore_eos = true;
        if (pool == 256) {
            refusal(&b, r, GEN_REFUSED_KV, ERR_INVAL, "412");
        } else {
            g = toy_submit(b.e, &r);
            s = toy_wait(g, GEN_DONE);
            assert_int_equal(s.completion_tokens, 412);
            gen_release(g);
        }
        tear_down(&b);
    }
}

static void one_runs_two_wait(struct engine_options *o)
{
    o->max_running = 1;
    o->max_queue = 2;
}

static void a_full_queue_refuses_and_the_waiting_are_served(void **state)
{
    (void)state;
    struct bench b;
    struct gen *g[3];
    int32_t prompt[4][10];
    set_up(&b, 1024, one_runs_two_wait);
    atomic_store(&b.toy.is_held, true);
    for (uint32_t i = 0; i < 4; i++)
        make_prompt(prompt[i], 10, i);
    for (uint32_t i = 0; i < 3; i++)
        g[i] = ask(b.e, prompt[i], 10, 30);
    refusal(&b, toy_request(prompt[3], 10, 30), GEN_REFUSED_QUEUE, ERR_BUSY,
            "2 requests");
    assert_false(engine_is_idle(b.e));
    toy_wait(g[0], GEN_PREFILL);
    refusal(&b, toy_request(prompt[3], 10, 30), GEN_REFUSED_QUEUE, ERR_BUSY,
            "2 requests");
    struct engine_stats s;
    engine_stats(b.e, &s);
    assert_int_equal(s.running, 1);
    assert_int_equal(s.waiting, 2);
    assert_int_equal(s.refused_queue, 2);
    atomic_store(&b.toy.is_held, false);
    for (uint32_t i = 0; i < 3; i++)
        expect(g[i], prompt[i], 10, 30);
    engine_stats(b.e, &s);
    assert_int_equal(s.running + s.waiting, 0);
    assert_true(engine_is_idle(b.e));
    expect(ask(b.e, prompt[3], 10, 30), prompt[3], 10, 30);
    tear_down(&b);
}

static void no_queue(struct engine_options *o)
{
    o->max_running = 2;
    o->max_queue = 0;
}

static void without_a_queue_free_slots_are_still_used(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[10];
    set_up(&b, 128, no_queue);
    make_prompt(p, 10, 1);
    atomic_store(&b.toy.is_held, true);
    struct gen *g0 = ask(b.e, p, 10, 50), *g1 = ask(b.e, p, 10, 50);
    refusal(&b, toy_request(p, 10, 5), GEN_REFUSED_QUEUE, ERR_BUSY, "0 req");
    atomic_store(&b.toy.is_held, false);
    expect(g0, p, 10, 50);
    expect(g1, p, 10, 50);
    /* A slot alone is no start: there must be room as well. */
    atomic_store(&b.toy.is_held, true);
    g0 = ask(b.e, p, 10, 100);
    refusal(&b, toy_request(p, 10, 100), GEN_REFUSED_QUEUE, ERR_BUSY, "0 req");
    atomic_store(&b.toy.is_held, false);
    expect(g0, p, 10, 100);
    tear_down(&b);
}

static void one_runs(struct engine_options *o)
{
    o->max_running = 1;
    o->max_step_rows = 16;
}

static void cancelled(struct gen *g)
{
    struct gen_status s = toy_wait(g, GEN_DONE);
    assert_int_equal(s.finish, GEN_FINISH_CANCELLED);
    gen_cancel(g);
    gen_release(g);
}

static void a_cancel_ends_a_request_in_every_state(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[300];
    set_up(&b, 1024, one_runs);
    make_prompt(p, 300, 1);
    atomic_store(&b.toy.delay_us, 2000);

    /* Prefilling: 300 tokens are 19 steps of 2 ms; and one that waits. */
    struct gen *first = ask(b.e, p, 300, 100);
    struct gen *second = ask(b.e, p, 10, 100);
    struct gen *third = ask(b.e, p, 12, 20);
    toy_wait(first, GEN_PREFILL);
    gen_cancel(second);
    cancelled(second);
    struct gen_status s;
    gen_status(first, &s);
    assert_int_equal(s.state, GEN_PREFILL);
    int steps = atomic_load(&b.toy.n_steps);
    gen_cancel(first);
    cancelled(first);
    assert_true(atomic_load(&b.toy.n_steps) <= steps + 2);
    expect(third, p, 12, 20);

    /* Streaming, with text that nobody reads. */
    struct gen_request r = toy_request(p, 5, 400);
    r.params.ignore_eos = true;
    struct gen *g = toy_submit(b.e, &r);
    toy_wait(g, GEN_DECODE);
    gen_cancel(g);
    cancelled(g);

    /* Let go of without a word, in each state. */
    for (int i = 0; i < 3; i++) {
        r = toy_request(p, 200, 300);
        r.params.ignore_eos = true;
        g = toy_submit(b.e, &r);
        r = toy_request(p, 20, 300);
        struct gen *waiting = toy_submit(b.e, &r);
        toy_wait(g, (enum gen_state)i);
        gen_release(waiting);
        gen_release(g);
    }
    expect(ask(b.e, p, 12, 20), p, 12, 20);
    assert_true(engine_is_idle(b.e));
    struct engine_stats st;
    engine_stats(b.e, &st);
    assert_int_equal(st.live_bytes, 0);
    assert_int_equal(st.reserved_bytes, 0);
    assert_int_equal(st.running, 0);
    toy_check_stats(b.e);
    tear_down(&b);
}

static void a_cancelled_prompt_is_cached_as_far_as_it_came(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[300];
    set_up(&b, 1024, one_runs);
    make_prompt(p, 300, 1);
    atomic_store(&b.toy.delay_us, 1000);
    struct gen *g = ask(b.e, p, 300, 10);
    while (atomic_load(&b.toy.n_steps) < 5)
        toy_sleep(100);
    gen_cancel(g);
    cancelled(g);
    atomic_store(&b.toy.delay_us, 0);
    struct gen_status s = expect(ask(b.e, p, 300, 10), p, 300, 10);
    assert_true(s.cached_tokens >= 80 && s.cached_tokens < 299);
    tear_down(&b);
}

/* Small ones keep coming; the big one at the head needs all of the pool. */
static void a_big_request_is_not_starved_by_small_ones(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[300], q[8];
    enum { SMALL = 200 };
    struct gen *small[SMALL], *big = NULL;
    set_up(&b, 256, NULL);
    make_prompt(p, 300, 1);
    atomic_store(&b.toy.is_held, true);
    uint32_t n = 0, n_before = 0;
    for (; n < 40; n++) {
        make_prompt(q, 8, 1000 + n);
        small[n] = ask(b.e, q, 8, 20);
        if (n == 3)
            big = ask(b.e, p, 200, 56);
    }
    atomic_store(&b.toy.is_held, false);
    struct gen_status s, t;
    s = toy_wait(big, GEN_DONE);
    for (uint32_t i = 0; i < n; i++) {
        t = toy_wait(small[i], GEN_DONE);
        assert_true(t.finish == GEN_FINISH_STOP ||
                    t.finish == GEN_FINISH_LENGTH);
        n_before += t.admitted_us < s.admitted_us;
        gen_release(small[i]);
    }
    assert_true(s.finish == GEN_FINISH_STOP || s.finish == GEN_FINISH_LENGTH);
    assert_true(s.completion_tokens > 0);
    /* 4 were there before it, up to 16 may pass it. */
    assert_true(n_before <= 4 + QUEUE_PASSES);
    assert_true(n_before >= 5);
    gen_release(big);
    tear_down(&b);
}

/* A stream of short prompts, always two of them waiting, each of which would
 * go first if the shortest always did. */
static void a_long_prompt_is_not_starved_by_short_ones(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[480], q[100];
    struct gen *s[2];
    set_up(&b, 4096, NULL);
    atomic_store(&b.toy.row_us, 30);
    make_prompt(p, 480, 1);
    struct gen *g = ask(b.e, p, 480, 1);
    uint32_t n = 0;
    for (; n < 2; n++) {
        make_prompt(q, 100, 2000 + n);
        s[n] = ask(b.e, q, 100, 1);
    }
    for (;;) {
        struct gen_status st;
        gen_status(g, &st);
        if (st.state == GEN_DONE)
            break;
        assert_true(n < 100);
        gen_status(s[n % 2], &st);
        if (st.state != GEN_DONE) {
            toy_sleep(50);
            continue;
        }
        gen_release(s[n % 2]);
        make_prompt(q, 100, 2000 + n);
        s[n % 2] = ask(b.e, q, 100, 1);
        n++;
    }
    expect(g, p, 480, 1);
    for (int i = 0; i < 2; i++) {
        toy_wait(s[i], GEN_DONE);
        gen_release(s[i]);
    }
    tear_down(&b);
}

/* The model takes 50 us a row; a step with a decode aims at 2 ms, so chunks
 * must come down to about 40 rows, though 256 are possible. */
static void big_steps(struct engine_options *o)
{
    o->max_step_rows = 256;
    o->step_target_us = 2000;
}

static void a_long_prompt_does_not_stall_its_neighbour(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[480];
    set_up(&b, 8192, big_steps);
    atomic_store(&b.toy.row_us, 50);
    make_prompt(p, 480, 1);
    struct gen_request r = toy_request(p, 5, 500);
    r.params.ignore_eos = true;
    struct gen *chat = toy_submit(b.e, &r);
    toy_wait(chat, GEN_DECODE);
    /* What a row costs is learnt from the first prompts. */
    for (uint64_t i = 0; i < 3; i++) {
        make_prompt(p, 480, i);
        struct gen *g = ask(b.e, p, 480, 1);
        if (i == 2)
            atomic_store(&b.toy.rows_max, 0);
        toy_wait(g, GEN_DONE);
        gen_release(g);
    }
    struct gen_status s;
    gen_status(chat, &s);
    assert_int_equal(s.state, GEN_DECODE);
    assert_true(atomic_load(&b.toy.rows_max) <= 64);
    gen_release(chat);
    tear_down(&b);
}

static void draining_refuses_new_requests_and_ends_old_ones(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[10];
    set_up(&b, 1024, one_runs);
    make_prompt(p, 10, 1);
    atomic_store(&b.toy.is_held, true);
    struct gen *g0 = ask(b.e, p, 10, 30), *g1 = ask(b.e, p, 9, 30);
    engine_drain(b.e);
    refusal(&b, toy_request(p, 10, 5), GEN_REFUSED_DRAINING, ERR_BUDGET,
            "shutting down");
    assert_false(engine_is_idle(b.e));
    atomic_store(&b.toy.is_held, false);
    expect(g0, p, 10, 30);
    expect(g1, p, 9, 30);
    assert_true(engine_is_idle(b.e));
    tear_down(&b);
}

static void a_shutdown_ends_what_is_left_and_leaves_it_readable(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[10];
    set_up(&b, 1024, one_runs);
    atomic_store(&b.toy.delay_us, 1000);
    make_prompt(p, 10, 1);
    struct gen_request r = toy_request(p, 10, 400);
    r.params.ignore_eos = true;
    struct gen *running = toy_submit(b.e, &r);
    struct gen *waiting = ask(b.e, p, 9, 30);
    toy_wait(running, GEN_DECODE);
    toy_sleep(5000);
    engine_free(b.e);
    struct gen_status s;
    struct buf text = {0};
    assert_int_equal(gen_read(running, &text, &s), OK);
    assert_int_equal(s.state, GEN_DONE);
    assert_int_equal(s.finish, GEN_FINISH_SHUTDOWN);
    assert_true(text.len > 0);
    gen_status(waiting, &s);
    assert_int_equal(s.finish, GEN_FINISH_SHUTDOWN);
    gen_cancel(waiting);
    gen_release(waiting);
    gen_release(running);
    buf_fini(&text);
    assert_int_equal(atomic_load(&b.toy.n_faults), 0);
    toy_fini(&b.toy);
}

static void a_thousand_short_requests_pass_through_a_tiny_pool(void **state)
{
    (void)state;
    struct bench b;
    struct gen *g[50];
    int32_t p[50][20];
    set_up(&b, 128, NULL);
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < 50; i++) {
            make_prompt(p[i], 20, round * 50 + i);
            g[i] = ask(b.e, p[i], 20, 25);
        }
        for (uint32_t i = 0; i < 50; i++)
            expect(g[i], p[i], 20, 25);
    }
    struct engine_stats s;
    engine_stats(b.e, &s);
    assert_true(s.dropped_sessions > 900);
    toy_check_stats(b.e);
    tear_down(&b);
}

static void logits_without_numbers_harm_only_their_own_answer(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[10], bad[3] = {1, 2, TOY_NAN};
    set_up(&b, 1024, NULL);
    make_prompt(p, 10, 1);
    struct gen *g = ask(b.e, p, 10, 50);
    struct gen *h = ask(b.e, bad, 3, 50);
    struct gen_status s = toy_wait(h, GEN_DONE);
    /* The defined token is the one that ends answers. */
    assert_int_equal(s.finish, GEN_FINISH_STOP);
    assert_int_equal(s.completion_tokens, 1);
    gen_release(h);
    expect(g, p, 10, 50);
    tear_down(&b);
}

/* Sampling with a seed gives one text, alone and beside others. */
static void a_seed_gives_one_answer_whatever_else_runs(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[20];
    struct buf first = {0};
    set_up(&b, 2048, NULL);
    make_prompt(p, 20, 1);
    for (int round = 0; round < 10; round++) {
        struct gen *others[5];
        for (int i = 0; i < (round > 0 ? 5 : 0); i++) {
            int32_t q[30];
            make_prompt(q, 30, (uint64_t)(round * 10 + i));
            struct gen_request o = toy_request(q, 30, 30);
            o.params.temperature = 1.0f;
            others[i] = toy_submit(b.e, &o);
        }
        struct gen_request r = toy_request(p, 20, 40);
        r.params.temperature = 1.3f;
        r.params.top_p = 0.9f;
        r.params.frequency_penalty = 0.5f;
        r.params.has_seed = true;
        r.params.seed = 42;
        r.params.ignore_eos = true;
        struct gen *g = toy_submit(b.e, &r);
        struct buf text = {0};
        toy_finish(g, &text);
        gen_release(g);
        if (round == 0)
            assert_int_equal(buf_append(&first, text.data, text.len), OK);
        else
            assert_string_equal(text.data, first.data);
        buf_fini(&text);
        for (int i = 0; i < (round > 0 ? 5 : 0); i++)
            gen_release(others[i]);
    }
    assert_true(first.len > 10);
    buf_fini(&first);
    tear_down(&b);
}

static void without_a_seed_answers_differ(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[20];
    struct buf text[2] = {{0}, {0}};
    set_up(&b, 2048, NULL);
    make_prompt(p, 20, 1);
    for (int i = 0; i < 2; i++) {
        struct gen_request r = toy_request(p, 20, 40);
        r.params.temperature = 1.5f;
        r.params.ignore_eos = true;
        struct gen *g = toy_submit(b.e, &r);
        toy_finish(g, &text[i]);
        gen_release(g);
    }
    assert_string_not_equal(text[0].data, text[1].data);
    buf_fini(&text[0]);
    buf_fini(&text[1]);
    tear_down(&b);
}

static void an_idle_engine_sleeps(void **state)
{
    (void)state;
    struct bench b;
    int32_t p[20];
    set_up(&b, 2048, NULL);
    make_prompt(p, 20, 1);
    expect(ask(b.e, p, 20, 5), p, 20, 5);
    clockid_t clock;
    struct timespec t0, t1;
    assert_int_equal(pthread_getcpuclockid(b.e->thread, &clock), 0);
    toy_sleep(20000);
    clock_gettime(clock, &t0);
    toy_sleep(200000);
    clock_gettime(clock, &t1);
    double ms = (double)(t1.tv_sec - t0.tv_sec) * 1e3 +
                (double)(t1.tv_nsec - t0.tv_nsec) / 1e6;
    assert_true(ms < 5.0);
    tear_down(&b);
}

static void be_deterministic(struct engine_options *o)
{
    o->deterministic = true;
    o->step_target_us = 60000;
}

/* The plan depends on the requests alone: with all of them there at the
 * start, two runs take the same steps, however long these last. */
static void deterministic_plans_do_not_depend_on_time(void **state)
{
    (void)state;
    struct engine_stats st[2];
    char text[2][200];
    for (int run = 0; run < 2; run++) {
        struct bench b;
        struct gen *g[6];
        set_up(&b, 4096, be_deterministic);
        atomic_store(&b.toy.is_held, true);
        int32_t first[4] = {1, 2, 3, 4};
        struct gen *hold = ask(b.e, first, 4, 3);
        toy_wait(hold, GEN_PREFILL);
        for (uint32_t i = 0; i < 6; i++) {
            int32_t p[300];
            make_prompt(p, 50 * (i + 1), i);
            struct gen_request r = toy_request(p, 50 * (i + 1), 30);
            r.params.temperature = 1.0f;
            g[i] = toy_submit(b.e, &r);
        }
        atomic_store(&b.toy.row_us, run == 0 ? 0 : 40);
        atomic_store(&b.toy.is_held, false);
        struct buf all = {0};
        for (uint32_t i = 0; i < 6; i++) {
            toy_finish(g[i], &all);
            gen_release(g[i]);
        }
        gen_release(hold);
        engine_stats(b.e, &st[run]);
        snprintf(text[run], sizeof(text[run]), "%s", all.data);
        buf_fini(&all);
        tear_down(&b);
    }
    assert_int_equal(st[0].steps, st[1].steps);
    assert_string_equal(text[0], text[1]);
}

static void a_budget_too_small_for_one_request_is_refused(void **state)
{
    (void)state;
    struct toy toy;
    toy_init(&toy);
    struct engine_options o = toy_options(&toy, 64);
    const struct lm lm = {&toy,      TOY_VOCAB, TOY_LAYERS,
                          TOY_HEADS, TOY_DIM,   toy_step};
    struct engine *e = NULL;
    struct errmsg m;
    o.kv_bytes--;
    assert_int_equal(engine_new_lm(&e, &o, &lm, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "64 tokens"));
    o.kv_bytes++;
    o.max_step_rows = 7;
    assert_int_equal(engine_new_lm(&e, &o, &lm, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "7 rows"));
    o.max_step_rows = 8;
    assert_int_equal(engine_new_lm(&e, &o, &lm, &m), OK);
    assert_int_equal(engine_max_context(e), 512);
    assert_int_equal(engine_n_vocab(e), TOY_VOCAB);
    engine_free(e);
    toy_fini(&toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_what_the_model_says_of_the_prompt),
        cmocka_unit_test(a_stop_string_cuts_the_text_where_it_begins),
        cmocka_unit_test(with_ignore_eos_an_answer_goes_on_to_its_limit),
        cmocka_unit_test(no_tokens_asked_for_only_computes_the_prompt),
        cmocka_unit_test(a_chat_computes_only_what_is_new),
        cmocka_unit_test(an_edited_history_shares_what_comes_before),
        cmocka_unit_test(requests_with_one_prompt_compute_it_once),
        cmocka_unit_test(what_can_never_fit_is_refused_with_the_numbers),
        cmocka_unit_test(
            an_answer_without_a_limit_ends_where_context_or_pool_end),
        cmocka_unit_test(a_full_queue_refuses_and_the_waiting_are_served),
        cmocka_unit_test(without_a_queue_free_slots_are_still_used),
        cmocka_unit_test(a_cancel_ends_a_request_in_every_state),
        cmocka_unit_test(a_cancelled_prompt_is_cached_as_far_as_it_came),
        cmocka_unit_test(a_big_request_is_not_starved_by_small_ones),
        cmocka_unit_test(a_long_prompt_is_not_starved_by_short_ones),
        cmocka_unit_test(a_long_prompt_does_not_stall_its_neighbour),
        cmocka_unit_test(draining_refuses_new_requests_and_ends_old_ones),
        cmocka_unit_test(a_shutdown_ends_what_is_left_and_leaves_it_readable),
        cmocka_unit_test(a_thousand_short_requests_pass_through_a_tiny_pool),
        cmocka_unit_test(logits_without_numbers_harm_only_their_own_answer),
        cmocka_unit_test(a_seed_gives_one_answer_whatever_else_runs),
        cmocka_unit_test(without_a_seed_answers_differ),
        cmocka_unit_test(an_idle_engine_sleeps),
        cmocka_unit_test(deterministic_plans_do_not_depend_on_time),
        cmocka_unit_test(a_budget_too_small_for_one_request_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
