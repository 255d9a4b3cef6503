#include "toy.h"

static void letters(int32_t *out, const char *text)
{
    for (; *text; text++)
        *out++ = *text - 'a';
}

static void an_answer_is_what_the_model_says_of_the_prompt(void **state)
{
    (void)state;
    struct toy toy;
    toy_init(&toy);
    struct engine_options o = toy_options(&toy, 1024);
    struct engine *e = toy_engine(&toy, &o);
    int32_t prompt[5];
    letters(prompt, "hello");
    struct gen_request r = toy_request(prompt, 5, 50);
    struct gen *g = toy_submit(e, &r);
    assert_null(r.tokens);
    struct buf text = {0};
    struct gen_status s = toy_finish(g, &text);
    struct toy_answer a;
    toy_answer(&a, prompt, 5, 50, false);
    assert_string_equal(text.data ? text.data : "", a.text);
    assert_int_equal(s.finish, a.finish);
    assert_int_equal(s.completion_tokens, a.n);
    assert_int_equal(s.prompt_tokens, 5);
    assert_int_equal(s.cached_tokens, 0);
    assert_true(s.admitted_us > 0 && s.first_token_us >= s.admitted_us &&
                s.done_us >= s.first_token_us);
    toy_check_stats(e);
    gen_release(g);
    buf_fini(&text);
    engine_free(e);
    toy_fini(&toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_what_the_model_says_of_the_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
