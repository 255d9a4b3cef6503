#include "server_bench.h"

#include "server/completions.h"

/* The tokens as text "0,1,2", or the code of the refusal. */
static void expect(const struct prompt *p, const char *prompt,
                   const char *wanted)
{
    struct buf json = {0}, got = {0};
    struct tokens out = {0};
    struct api_error e = {0};
    cJSON *body = NULL;
    assert_int_equal(buf_printf(&json, "{\"prompt\":%s}", prompt), OK);
    assert_int_equal(json_parse(&body, json.data, json.len, NULL), OK);
    enum err rc = completions_prompt(&out, body, p, TOY_VOCAB, &e);
    for (size_t i = 0; rc == OK && i < out.n; i++)
        assert_int_equal(buf_printf(&got, "%s%d", i ? "," : "", out.id[i]), OK);
    const char *text = rc == OK ? got.data : e.code;
    if (strcmp(text, wanted) != 0)
        fail_msg("%s gave %s, wanted %s", prompt, text, wanted);
    assert_int_equal(e.status, rc == OK ? 0 : 400);
    tokens_fini(&out);
    cJSON_Delete(body);
    buf_fini(&json);
    buf_fini(&got);
}

static void prompts_come_in_four_shapes(void **state)
{
    struct toy toy;
    struct prompt *p = NULL;
    (void)state;
    toy_init(&toy);
    const struct prompt_spec spec = {.tokenizer = toy.tokenizer};
    assert_int_equal(prompt_new(&p, &spec, NULL), OK);
    expect(p, "\"abc\"", "0,1,2");
    expect(p, "[\"abc\"]", "0,1,2");
    expect(p, "[25,0,3.0]", "25,0,3");
    expect(p, "[[7]]", "7");
    /* Special tokens in the text of a completion are special. */
    expect(p, "\"a<|end|>b\"", "0,26,1");
    /* Nothing to start from but the token that ends a text. */
    expect(p, "null", "26");
    expect(p, "\"\"", "26");
    expect(p, "\"123\"", "26");
    /* In a list it is the same prompt. */
    expect(p, "[\"\"]", "26");
    expect(p, "[\"123\"]", "26");
    prompt_free(p);
    toy_fini(&toy);
}

static void other_shapes_are_refused(void **state)
{
    static const struct {
        const char *prompt, *code;
    } row[] = {
        {"[]", "empty_array"},
        {"[[]]", "empty_array"},
        {"[1000000000]", "invalid_value"},
        {"[30]", "invalid_value"},
        {"[-1]", "invalid_value"},
        {"[99999999999999999999]", "invalid_value"},
        {"[[1,2],[-7]]", "invalid_value"},
        {"[1.5]", "invalid_type"},
        {"{\"a\":1}", "invalid_type"},
        {"5", "invalid_type"},
        {"[null]", "invalid_type"},
        {"[[\"a\"]]", "invalid_type"},
        {"[true]", "invalid_type"},
        {"[1,\"a\"]", "invalid_type"},
        {"[\"a\",1]", "invalid_type"},
        {"[\"a\",\"b\"]", "unsupported_parameter"},
        {"[[1],[2]]", "unsupported_parameter"},
    };
    struct toy toy;
    struct prompt *p = NULL;
    (void)state;
    toy_init(&toy);
    const struct prompt_spec spec = {.tokenizer = toy.tokenizer};
    assert_int_equal(prompt_new(&p, &spec, NULL), OK);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        expect(p, row[i].prompt, row[i].code);
    prompt_free(p);
    toy_fini(&toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_come_in_four_shapes),
        cmocka_unit_test(other_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
