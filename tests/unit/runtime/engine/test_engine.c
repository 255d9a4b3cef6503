/* Answers, what they share, and what is refused. */
#include "toy.h"

#include "base/log.h"

static void an_answer_is_what_the_model_says_of_the_prompt(void **state)
{
    (void)state;
    struct toy_bench b;
    toy_set_up(&b, 1024, NULL);
    for (uint64_t seed = 0; seed < 30; seed++) {
        int32_t prompt[70];
        uint32_t n = 1 + (uint32_t)(seed * 37 % 70);
        toy_prompt(prompt, n, seed);
        struct gen_status s =
            toy_expect(toy_ask(b.e, prompt, n, 40), prompt, n, 40);
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
    toy_tear_down(&b);
}

/* A prompt whose answer is exactly the tokens wanted is not needed: the stop
 * string is taken out of the middle of the true answer, across tokens. */
static void a_stop_string_cuts_the_text_where_it_begins(void **state)
{
    (void)state;
    struct toy_bench b;
    toy_set_up(&b, 1024, NULL);
    int n_cut = 0;
    for (uint64_t seed = 100; seed < 140; seed++) {
        int32_t prompt[10];
        struct toy_answer a;
        toy_prompt(prompt, 10, seed);
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
    toy_tear_down(&b);
}

static void with_ignore_eos_an_answer_goes_on_to_its_limit(void **state)
{
    (void)state;
    struct toy_bench b;
    toy_set_up(&b, 1024, NULL);
    int n_passed_an_end = 0;
    for (uint64_t seed = 0; seed < 10; seed++) {
        int32_t prompt[5];
        struct toy_answer a;
        toy_prompt(prompt, 5, seed);
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
    toy_tear_down(&b);
}

static void no_tokens_asked_for_only_computes_the_prompt(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t prompt[40];
    toy_set_up(&b, 1024, NULL);
    toy_prompt(prompt, 40, 1);
    struct gen *g = toy_ask(b.e, prompt, 40, 0);
    struct gen_status s = toy_wait(g, GEN_DONE);
    assert_int_equal(s.finish, GEN_FINISH_LENGTH);
    assert_int_equal(s.completion_tokens, 0);
    assert_int_equal(s.first_token_us, 0);
    assert_int_equal(s.logical_tokens, 40);
    gen_release(g);
    s = toy_expect(toy_ask(b.e, prompt, 40, 20), prompt, 40, 20);
    assert_int_equal(s.cached_tokens, 39);
    toy_tear_down(&b);
}

static void a_chat_computes_only_what_is_new(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t history[400];
    uint32_t n = 20, stored = 0;
    toy_set_up(&b, 2048, NULL);
    toy_prompt(history, n, 5);
    for (int turn = 0; turn < 8; turn++) {
        struct toy_answer a;
        toy_answer(&a, history, n, 20, false);
        struct gen_status s =
            toy_expect(toy_ask(b.e, history, n, 20), history, n, 20);
        assert_int_equal(s.cached_tokens, stored);
        stored = n + a.n - 1;
        memcpy(history + n, a.token, a.n * sizeof(*history));
        n += a.n;
        toy_prompt(history + n, 7, 50 + (uint64_t)turn);
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
    toy_tear_down(&b);
}

static void an_edited_history_shares_what_comes_before(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t prompt[100], edited[100];
    toy_set_up(&b, 1024, NULL);
    toy_prompt(prompt, 100, 5);
    toy_expect(toy_ask(b.e, prompt, 100, 20), prompt, 100, 20);
    for (uint32_t at = 3; at < 100; at += 13) {
        memcpy(edited, prompt, sizeof(prompt));
        edited[at] = (edited[at] + 1) % TOY_END;
        struct gen_status s =
            toy_expect(toy_ask(b.e, edited, 100, 20), edited, 100, 20);
        assert_int_equal(s.cached_tokens, at);
        /* The old history is untouched. */
        s = toy_expect(toy_ask(b.e, prompt, 100, 20), prompt, 100, 20);
        assert_int_equal(s.cached_tokens, 99);
    }
    toy_tear_down(&b);
}

static void requests_with_one_prompt_compute_it_once(void **state)
{
    (void)state;
    struct toy_bench b;
    struct gen *g[6];
    int32_t prompt[6][120];
    toy_set_up(&b, 2048, NULL);
    atomic_store(&b.toy.is_held, true);
    for (uint32_t i = 0; i < 6; i++) {
        toy_prompt(prompt[i], 120, 9);
        prompt[i][119] = (int32_t)i;
        g[i] = toy_ask(b.e, prompt[i], 120, 30);
    }
    atomic_store(&b.toy.is_held, false);
    for (uint32_t i = 0; i < 6; i++) {
        struct gen_status s = toy_expect(g[i], prompt[i], 120, 30);
        /* All but the first wait for what the first computes anyway. */
        assert_true(i == 0 ? s.cached_tokens == 0
                           : s.cached_tokens > 119 - ENGINE_HOLD_LEAST - 16);
    }
    toy_tear_down(&b);
}

static void what_can_never_fit_is_refused_with_the_numbers(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t prompt[600];
    toy_set_up(&b, 256, NULL); /* the context is 512 */
    toy_prompt(prompt, 600, 1);
    toy_refusal(&b, toy_request(prompt, 512, 1), GEN_REFUSED_CONTEXT, ERR_INVAL,
                "512 tokens");
    toy_refusal(&b, toy_request(prompt, 600, 1), GEN_REFUSED_CONTEXT, ERR_INVAL,
                "600");
    toy_refusal(&b, toy_request(prompt, 200, 58), GEN_REFUSED_KV, ERR_INVAL,
                "holds 256");
    toy_refusal(&b, toy_request(prompt, 257, 1), GEN_REFUSED_KV, ERR_INVAL,
                "257");
    struct gen_request r = toy_request(prompt, 257, 0);
    r.params.has_max_tokens = false;
    toy_refusal(&b, r, GEN_REFUSED_KV, ERR_INVAL, "257");
    r = toy_request(prompt, 1, 1);
    r.tokens[0] = TOY_VOCAB;
    toy_refusal(&b, r, GEN_REFUSED_NOT, ERR_INVAL, "token 30");
    r = toy_request(prompt, 1, 1);
    r.tokens[0] = -1;
    toy_refusal(&b, r, GEN_REFUSED_NOT, ERR_INVAL, "token -1");
    toy_refusal(&b, toy_request(prompt, 0, 1), GEN_REFUSED_NOT, ERR_INVAL,
                "no tokens");
    struct engine_stats s;
    engine_stats(b.e, &s);
    assert_int_equal(s.refused_context, 2);
    assert_int_equal(s.refused_kv, 3);
    /* What fits to the last unit runs. */
    toy_expect(toy_ask(b.e, prompt, 200, 57), prompt, 200, 57);
    toy_expect(toy_ask(b.e, prompt, 256, 1), prompt, 256, 1);
    toy_tear_down(&b);
}

static void
an_answer_without_a_limit_ends_where_context_or_pool_end(void **state)
{
    (void)state;
    for (uint32_t pool = 256; pool <= 1024; pool *= 4) {
        struct toy_bench b;
        int32_t prompt[100];
        toy_set_up(&b, pool, NULL);
        toy_prompt(prompt, 100, 3);
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
            toy_refusal(&b, r, GEN_REFUSED_KV, ERR_INVAL, "412");
        } else {
            g = toy_submit(b.e, &r);
            s = toy_wait(g, GEN_DONE);
            assert_int_equal(s.completion_tokens, 412);
            gen_release(g);
        }
        toy_tear_down(&b);
    }
}

static void logits_without_numbers_harm_only_their_own_answer(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[10], bad[3] = {1, 2, TOY_NAN};
    toy_set_up(&b, 1024, NULL);
    toy_prompt(p, 10, 1);
    struct gen *g = toy_ask(b.e, p, 10, 50);
    struct gen *h = toy_ask(b.e, bad, 3, 50);
    struct gen_status s = toy_wait(h, GEN_DONE);
    /* The defined token is the one that ends answers. */
    assert_int_equal(s.finish, GEN_FINISH_STOP);
    assert_int_equal(s.completion_tokens, 1);
    gen_release(h);
    toy_expect(g, p, 10, 50);
    toy_tear_down(&b);
}

/* Sampling with a seed gives one text, alone and beside others. */
static void a_seed_gives_one_answer_whatever_else_runs(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[20];
    struct buf first = {0};
    toy_set_up(&b, 2048, NULL);
    toy_prompt(p, 20, 1);
    for (int round = 0; round < 10; round++) {
        struct gen *others[5];
        for (int i = 0; i < (round > 0 ? 5 : 0); i++) {
            int32_t q[30];
            toy_prompt(q, 30, (uint64_t)round * 10 + (uint64_t)i);
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
    toy_tear_down(&b);
}

/* A request whose answer is the one token that the bias names. */
static struct gen_request biased(int32_t token, uint32_t max_tokens)
{
    static const int32_t prompt[] = {1, 2, 3};
    struct gen_request r = toy_request(prompt, 3, max_tokens);
    r.bias = malloc(sizeof(*r.bias));
    r.bias[0] = (struct gen_bias){token, 1000.0f};
    r.n_bias = 1;
    return r;
}

static void a_bias_decides_and_half_characters_do_not_come_out(void **state)
{
    (void)state;
    struct toy_bench b;
    toy_set_up(&b, 1024, NULL);
    const struct {
        int32_t token;
        uint32_t max_tokens;
        const char *stop, *text;
        enum gen_finish finish;
    } cases[] = {
        {3, 4, NULL, "dddd", GEN_FINISH_LENGTH},
        {TOY_C3, 2, NULL, "\uFFFD\uFFFD", GEN_FINISH_LENGTH},
        {TOY_A9, 1, NULL, "\uFFFD", GEN_FINISH_LENGTH},
        /* What the end of the text brings out can be a stop string too. */
        {TOY_C3, 1, "\uFFFD", "", GEN_FINISH_STOP},
        {3, 4, "ddddd", "dddd", GEN_FINISH_LENGTH},
        {3, 4, "dddd", "", GEN_FINISH_STOP},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gen_request r = biased(cases[i].token, cases[i].max_tokens);
        if (cases[i].stop)
            toy_add_stop(&r, cases[i].stop);
        struct gen *g = toy_submit(b.e, &r);
        struct buf text = {0};
        struct gen_status s = toy_finish(g, &text);
        assert_string_equal(text.data ? text.data : "", cases[i].text);
        assert_int_equal(s.finish, cases[i].finish);
        assert_int_equal(s.completion_tokens, cases[i].max_tokens);
        gen_release(g);
        buf_fini(&text);
    }
    toy_tear_down(&b);
}

static uint64_t sum_of(const struct engine_histogram *h)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= h->n; i++)
        n += h->count[i];
    return n;
}

static void the_statistics_count_what_happened(void **state)
{
    (void)state;
    struct toy_bench b;
    enum { N = 20 };
    uint64_t prompt = 0, answer = 0, cached = 0;
    toy_set_up(&b, 1024, NULL);
    for (uint32_t i = 0; i < N; i++) {
        int32_t p[40];
        toy_prompt(p, 40, i / 2);
        uint32_t n = 20 + i;
        struct gen_status s =
            toy_expect(toy_ask(b.e, p, n, 1 + i), p, n, 1 + i);
        prompt += n;
        answer += s.completion_tokens;
        cached += s.cached_tokens;
    }
    struct engine_stats s;
    engine_stats(b.e, &s);
    assert_true(cached > 0);
    assert_int_equal(s.prompt_tokens, prompt);
    assert_int_equal(s.cached_tokens, cached);
    assert_int_equal(s.prefill_tokens, prompt - cached);
    assert_int_equal(s.generation_tokens, answer);
    assert_int_equal(s.step_prefill_tokens, prompt - cached);
    /* The first token of an answer comes out of its prompt. */
    assert_int_equal(s.step_decode_tokens, answer - N);
    assert_int_equal(s.steps, atomic_load(&b.toy.n_steps));
    assert_int_equal(sum_of(&s.step_seconds), s.steps);
    assert_int_equal(sum_of(&s.first_token_seconds), N);
    assert_int_equal(sum_of(&s.inter_token_seconds), answer - N);
    assert_int_equal(sum_of(&s.request_seconds), N);
    assert_int_equal(sum_of(&s.queue_seconds), N);
    toy_tear_down(&b);
}

static void without_a_seed_answers_differ(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[20];
    struct buf text[2] = {{0}, {0}};
    toy_set_up(&b, 2048, NULL);
    toy_prompt(p, 20, 1);
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
    toy_tear_down(&b);
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
        struct toy_bench b;
        struct gen *g[6];
        toy_set_up(&b, 4096, be_deterministic);
        atomic_store(&b.toy.is_held, true);
        int32_t first[4] = {1, 2, 3, 4};
        struct gen *hold = toy_ask(b.e, first, 4, 3);
        toy_wait(hold, GEN_PREFILL);
        for (uint32_t i = 0; i < 6; i++) {
            int32_t p[300];
            toy_prompt(p, 50 * (i + 1), i);
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
        toy_tear_down(&b);
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
    const struct lm lm = {.self = &toy,
                          .n_vocab = TOY_VOCAB,
                          .n_layers = TOY_LAYERS,
                          .n_kv_heads = TOY_HEADS,
                          .head_dim = TOY_DIM,
                          .step = toy_step,
                          .reposition = toy_reposition};
    struct engine *e = NULL;
    struct errmsg m;
    o.kv_bytes--;
    assert_int_equal(engine_new_lm(&e, &o, &lm, &m), ERR_BUDGET);
    assert_non_null(strstr(m.text, "64 tokens"));
    o.kv_bytes++;
    o.max_step_rows = 7;
    assert_int_equal(engine_new_lm(&e, &o, &lm, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "7 rows"));
    o.max_step_rows = 8;
    assert_int_equal(engine_new_lm(&e, &o, &lm, &m), OK);
    assert_int_equal(engine_max_context(e), 512);
    assert_int_equal(engine_n_vocab(e), TOY_VOCAB);
    /* A row of logits for each running answer, and what a pass and cuts need
     * for three threads and a dozen sessions. */
    uint64_t logits = o.max_running * TOY_VOCAB * sizeof(float);
    assert_in_range(engine_memory_bytes(e), logits, logits + (1280 << 10));
    engine_free(e);
    toy_fini(&toy);
}

int main(void)
{
    log_setup(LOG_LEVEL_OFF, LOG_FORMAT_TEXT);
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
        cmocka_unit_test(logits_without_numbers_harm_only_their_own_answer),
        cmocka_unit_test(a_seed_gives_one_answer_whatever_else_runs),
        cmocka_unit_test(a_bias_decides_and_half_characters_do_not_come_out),
        cmocka_unit_test(the_statistics_count_what_happened),
        cmocka_unit_test(without_a_seed_answers_differ),
        cmocka_unit_test(deterministic_plans_do_not_depend_on_time),
        cmocka_unit_test(a_budget_too_small_for_one_request_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
