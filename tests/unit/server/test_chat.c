#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "server/chat.h"

/* "" as code: accepted. */
static void expect(const char *messages, const char *code, const char *param)
{
    struct buf text = {0};
    cJSON *body = NULL;
    const cJSON *out = NULL;
    struct api_error e = {0};
    assert_int_equal(buf_printf(&text, "{\"messages\":%s}", messages), OK);
    assert_int_equal(json_parse(&body, text.data, text.len, NULL), OK);
    enum err rc = chat_messages(&out, body, &e);
    if (strcmp(e.code, code) != 0 || strcmp(e.param, param) != 0)
        fail_msg("%s: code '%s' param '%s' (%s), wanted '%s' '%s'", messages,
                 e.code, e.param, e.message.text, code, param);
    assert_int_equal(rc, code[0] ? ERR_INVAL : OK);
    if (rc == OK)
        assert_ptr_equal(out, json_get(body, "messages"));
    cJSON_Delete(body);
    buf_fini(&text);
}

static void legal_shapes_are_let_through(void **state)
{
    static const char *const good[] = {
        "[{\"role\":\"user\",\"content\":\"hi\"}]",
        "[{\"role\":\"user\",\"content\":\"\"}]",
        "[{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
        "\"text\":\"a\",\"cache_control\":{}},{\"type\":\"text\","
        "\"text\":\"\"}]}]",
        "[{\"role\":\"assistant\"},{\"role\":\"function\",\"name\":\"f\"}]",
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":"
        "\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"4\"}]",
        "[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\","
        "\"refusal\":\"no\"}],\"refusal\":null,\"reasoning_content\":\"hm\"}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
        "\"f\",\"arguments\":{\"a\":1}}},{\"function\":{\"name\":\"g\"}}]}]",
        "[{\"role\":\"user\",\"content\":\"x\",\"name\":\"anna\",\"id\":3,"
        "\"metadata\":{}}]",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        expect(good[i], "", "");
}

static void messages_must_be_a_list_of_objects(void **state)
{
    (void)state;
    expect("null", "invalid_type", "messages");
    expect("\"hello\"", "invalid_type", "messages");
    expect("{}", "invalid_type", "messages");
    expect("[]", "empty_array", "messages");
    expect("[3]", "invalid_type", "messages[0]");
    expect("[{\"role\":\"user\",\"content\":\"a\"},\"hi\"]", "invalid_type",
           "messages[1]");
}

static void missing_messages_are_told(void **state)
{
    struct api_error e = {0};
    const cJSON *out = NULL;
    (void)state;
    cJSON *body = cJSON_CreateObject();
    assert_int_equal(chat_messages(&out, body, &e), ERR_INVAL);
    assert_string_equal(e.code, "missing_required_parameter");
    assert_string_equal(e.param, "messages");
    cJSON_Delete(body);
}

static void roles_are_a_closed_list(void **state)
{
    (void)state;
    expect("[{\"content\":\"x\"}]", "missing_required_parameter",
           "messages[0].role");
    expect("[{\"role\":null,\"content\":\"x\"}]", "invalid_type",
           "messages[0].role");
    expect("[{\"role\":\"User\",\"content\":\"x\"}]", "invalid_value",
           "messages[0].role");
    expect("[{\"role\":\"\",\"content\":\"x\"}]", "invalid_value",
           "messages[0].role");
}

static void a_message_without_text_is_refused(void **state)
{
    static const char *const bad[] = {
        "{\"role\":\"user\"}",
        "{\"role\":\"user\",\"content\":null}",
        "{\"role\":\"system\",\"content\":null}",
        "{\"role\":\"tool\",\"tool_call_id\":\"c\"}",
        "{\"role\":\"user\",\"content\":5}",
        "{\"role\":\"assistant\",\"content\":{\"a\":1}}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct buf list = {0};
        assert_int_equal(buf_printf(&list, "[%s]", bad[i]), OK);
        expect(list.data, "invalid_type", "messages[0].content");
        buf_fini(&list);
    }
    expect("[{\"role\":\"user\",\"content\":[]}]", "empty_array",
           "messages[0].content");
}

static void parts_are_checked_one_by_one(void **state)
{
    (void)state;
    expect("[{\"role\":\"user\",\"content\":[\"plain\"]}]", "invalid_type",
           "messages[0].content[0]");
    expect("[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]",
           "invalid_type", "messages[0].content[0].type");
    expect("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
           "invalid_type", "messages[0].content[0].text");
    expect("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
           "\"a\"},{\"type\":\"image_url\",\"image_url\":{}}]}]",
           "unsupported_parameter", "messages[0].content[1].type");
    expect("[{\"role\":\"user\",\"content\":[{\"type\":\"smell\"}]}]",
           "invalid_value", "messages[0].content[0].type");
    /* Only an assistant refuses. */
    expect("[{\"role\":\"user\",\"content\":[{\"type\":\"refusal\","
           "\"refusal\":\"no\"}]}]",
           "invalid_value", "messages[0].content[0].type");
}

static void a_result_names_its_call(void **state)
{
    (void)state;
    expect("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"tool\","
           "\"content\":\"4\"}]",
           "missing_required_parameter", "messages[1].tool_call_id");
    expect("[{\"role\":\"tool\",\"content\":\"4\",\"tool_call_id\":null}]",
           "missing_required_parameter", "messages[0].tool_call_id");
    expect("[{\"role\":\"tool\",\"content\":\"4\",\"tool_call_id\":7}]",
           "invalid_type", "messages[0].tool_call_id");
}

static void tool_calls_must_have_a_shape(void **state)
{
    (void)state;
    expect("[{\"role\":\"assistant\",\"tool_calls\":{}}]", "invalid_type",
           "messages[0].tool_calls");
    expect("[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "invalid_type",
           "messages[0].tool_calls[0]");
    expect("[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\"}]}]",
           "invalid_type", "messages[0].tool_calls[0].function");
    expect("[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":5,\"function\":{"
           "\"name\":\"f\"}}]}]",
           "invalid_type", "messages[0].tool_calls[0].id");
    expect("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]",
           "invalid_type", "messages[0].tool_calls[0].function.name");
    expect("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
           "\"f\",\"arguments\":5}}]}]",
           "invalid_type", "messages[0].tool_calls[0].function.arguments");
}

static void empty_lists_of_calls_are_as_none(void **state)
{
    static const char text[] =
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[]},"
        "{\"role\":\"assistant\",\"tool_calls\":null}]}";
    cJSON *body = NULL;
    const cJSON *out = NULL;
    struct api_error e = {0};
    (void)state;
    assert_int_equal(json_parse(&body, text, strlen(text), NULL), OK);
    assert_int_equal(chat_messages(&out, body, &e), OK);
    assert_null(json_get(out->child, "tool_calls"));
    assert_null(json_get(out->child->next, "tool_calls"));
    cJSON_Delete(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal_shapes_are_let_through),
        cmocka_unit_test(messages_must_be_a_list_of_objects),
        cmocka_unit_test(missing_messages_are_told),
        cmocka_unit_test(roles_are_a_closed_list),
        cmocka_unit_test(a_message_without_text_is_refused),
        cmocka_unit_test(parts_are_checked_one_by_one),
        cmocka_unit_test(a_result_names_its_call),
        cmocka_unit_test(tool_calls_must_have_a_shape),
        cmocka_unit_test(empty_lists_of_calls_are_as_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
