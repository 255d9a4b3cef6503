#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "server/api_error.h"

/* The rendered object, parsed again; *error is inside the returned tree. */
static cJSON *rendered(const struct api_error *e, const cJSON **error)
{
    struct buf out = {0};
    cJSON *tree = NULL;
    assert_int_equal(api_error_render(&out, e), OK);
    assert_int_equal(json_parse(&tree, out.data, out.len, NULL), OK);
    *error = json_get(tree, "error");
    assert_true(cJSON_IsObject(*error));
    buf_fini(&out);
    return tree;
}

static const char *text_of(const cJSON *error, const char *key)
{
    const cJSON *v = json_get(error, key);
    assert_non_null(v);
    if (cJSON_IsNull(v))
        return NULL;
    assert_true(cJSON_IsString(v));
    return v->valuestring;
}

static void all_four_keys_are_there_as_string_or_null(void **state)
{
    struct api_error e;
    const cJSON *error = NULL;
    (void)state;
    assert_int_equal(
        api_error_set(&e, 400, "invalid_value", "a[0]", "not %d", 7),
        ERR_INVAL);
    cJSON *tree = rendered(&e, &error);
    assert_string_equal(text_of(error, "message"), "not 7");
    assert_string_equal(text_of(error, "type"), "invalid_request_error");
    assert_string_equal(text_of(error, "param"), "a[0]");
    assert_string_equal(text_of(error, "code"), "invalid_value");
    cJSON_Delete(tree);
    api_error_set(&e, 500, NULL, NULL, "x");
    tree = rendered(&e, &error);
    assert_null(text_of(error, "param"));
    assert_null(text_of(error, "code"));
    cJSON_Delete(tree);
}

static void types_follow_from_the_status(void **state)
{
    const struct {
        int status;
        const char *code, *type;
        int retry_from, retry_to;
    } row[] = {
        {400, "invalid_value", "invalid_request_error", 0, 0},
        {401, "invalid_api_key", "authentication_error", 0, 0},
        {403, NULL, "permission_error", 0, 0},
        {404, "unknown_url", "not_found_error", 0, 0},
        {404, "model_not_found", "invalid_request_error", 0, 0},
        {405, NULL, "invalid_request_error", 0, 0},
        {408, NULL, "invalid_request_error", 0, 0},
        {409, NULL, "conflict_error", 0, 0},
        {413, NULL, "invalid_request_error", 0, 0},
        {429, "rate_limit_exceeded", "rate_limit_error", 1, 60},
        {500, NULL, "server_error", 0, 0},
        {503, "overloaded", "server_error", 1, 60},
        {503, "draining", "server_error", 1, 60},
    };
    struct api_error e;
    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        api_error_set(&e, row[i].status, row[i].code, NULL, "x");
        assert_string_equal(api_error_type(&e), row[i].type);
        assert_in_range(api_error_retry_after(&e), row[i].retry_from,
                        row[i].retry_to);
    }
}

/* style.md: INVAL 400, BUSY 429, BUDGET, NOMEM and DEVICE 503, the rest 500
 * without the inner sentence. */
static void codes_of_modules_become_statuses(void **state)
{
    const struct errmsg m = {"the inner sentence"};
    const struct {
        enum err code;
        int status;
    } row[] = {
        {ERR_INVAL, 400},    {ERR_UNSUPPORTED, 400}, {ERR_NOTFOUND, 404},
        {ERR_CONFLICT, 409}, {ERR_BUSY, 429},        {ERR_BUDGET, 503},
        {ERR_NOMEM, 503},    {ERR_DEVICE, 503},      {ERR_IO, 500},
        {ERR_INTERNAL, 500},
    };
    struct api_error e;
    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        api_error_from(&e, row[i].code, &m);
        assert_int_equal(e.status, row[i].status);
        bool shows = strstr(e.message.text, m.text) != NULL;
        assert_int_equal(shows, row[i].status != 500);
        api_error_from(&e, row[i].code, NULL);
        assert_int_equal(e.status, row[i].status);
        assert_true(e.message.text[0] != '\0');
    }
}

static void what_can_never_be_is_400_and_what_may_later_is_not(void **state)
{
    const struct errmsg m = {"numbers"};
    struct api_error e;
    (void)state;
    api_error_refused(&e, GEN_REFUSED_CONTEXT, ERR_INVAL, &m, "prompt");
    assert_int_equal(e.status, 400);
    assert_string_equal(e.code, "context_length_exceeded");
    assert_string_equal(e.param, "prompt");
    api_error_refused(&e, GEN_REFUSED_KV, ERR_INVAL, &m, "messages");
    assert_int_equal(e.status, 400);
    assert_string_equal(e.code, "kv_budget_exceeded");
    api_error_refused(&e, GEN_REFUSED_QUEUE, ERR_BUSY, &m, "messages");
    assert_int_equal(e.status, 429);
    api_error_refused(&e, GEN_REFUSED_DRAINING, ERR_BUDGET, &m, "messages");
    assert_int_equal(e.status, 503);
    api_error_refused(&e, GEN_REFUSED_NOT, ERR_NOMEM, &m, "messages");
    assert_int_equal(e.status, 503);
}

static void who_waited_too_long_may_try_again(void **state)
{
    struct api_error e;
    (void)state;
    assert_false(api_error_finish(&e, GEN_FINISH_STOP, 1));
    assert_false(api_error_finish(&e, GEN_FINISH_LENGTH, 1));
    assert_true(api_error_finish(&e, GEN_FINISH_BUSY, 7000000));
    assert_int_equal(e.status, 429);
    assert_non_null(strstr(e.message.text, "7 s"));
    assert_in_range(api_error_retry_after(&e), 1, 60);
    assert_true(api_error_finish(&e, GEN_FINISH_NO_ROOM, 7000000));
    assert_int_equal(e.status, 503);
    assert_string_equal(e.code, "overloaded");
    assert_non_null(strstr(e.message.text, "KV memory"));
    assert_in_range(api_error_retry_after(&e), 1, 60);
    assert_true(api_error_finish(&e, GEN_FINISH_SHUTDOWN, 1));
    assert_string_equal(e.code, "draining");
}

/* LiteLLM and aider look for this sentence, llama.cpp's suite for the
 * numbers. */
static void an_overflow_is_recognised_by_agents(void **state)
{
    struct api_error e;
    const cJSON *error = NULL;
    int64_t n = 0;
    (void)state;
    api_error_context(&e, "messages", 300, 256);
    cJSON *tree = rendered(&e, &error);
    assert_non_null(strstr(text_of(error, "message"),
                           "This model's maximum context length is 256 "
                           "tokens"));
    assert_int_equal(json_int64(json_get(error, "n_prompt_tokens"), &n), OK);
    assert_int_equal(n, 300);
    assert_int_equal(json_int64(json_get(error, "n_ctx"), &n), OK);
    assert_int_equal(n, 256);
    cJSON_Delete(tree);
}

static void a_hostile_value_is_shown_short_and_clean(void **state)
{
    char in[500], out[API_SHOWN_MAX + 4];
    (void)state;
    api_error_shown(out, "plain \xC3\xA9", 8);
    assert_string_equal(out, "plain \xC3\xA9");
    api_error_shown(out, "a\r\n\x1b[31m\xFF\xC3", 10);
    assert_string_equal(out, "a???[31m??");
    for (size_t shift = 0; shift < 4; shift++) {
        size_t n = shift;
        memset(in, 'x', shift);
        while (n + 4 < sizeof(in)) {
            memcpy(in + n, "\xF0\x9F\x99\x82", 4);
            n += 4;
        }
        api_error_shown(out, in, n);
        assert_true(strlen(out) < sizeof(out));
        assert_true(utf8_is_valid(out, strlen(out)));
        assert_string_equal(out + strlen(out) - 3, "...");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_four_keys_are_there_as_string_or_null),
        cmocka_unit_test(types_follow_from_the_status),
        cmocka_unit_test(codes_of_modules_become_statuses),
        cmocka_unit_test(what_can_never_be_is_400_and_what_may_later_is_not),
        cmocka_unit_test(who_waited_too_long_may_try_again),
        cmocka_unit_test(an_overflow_is_recognised_by_agents),
        cmocka_unit_test(a_hostile_value_is_shown_short_and_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
