#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "server/answer.h"

static const struct answer chat = {
    .is_chat = true,
    .id = "chatcmpl-1",
    .model = "m \"x\"",
    .fingerprint = "fp_1",
    .created = 1764432000,
};

static const struct gen_status status = {
    .state = GEN_DONE,
    .finish = GEN_FINISH_LENGTH,
    .prompt_tokens = 19,
    .cached_tokens = 16,
    .completion_tokens = 10,
    .logical_tokens = 28,
    .retained_entries = 28 * 90,
    .full_entries = 28 * 90,
    .kv_bytes = 12345,
};

static cJSON *parse(const char *s, size_t n)
{
    cJSON *tree = NULL;
    struct errmsg m;
    if (json_parse(&tree, s, n, &m) != OK)
        fail_msg("%s: %.*s", m.text, (int)n, s);
    return tree;
}

/* Checks the framing of the event at *at, and returns its JSON. */
static cJSON *next_event(const struct buf *out, size_t *at)
{
    const char *s = out->data + *at;
    assert_memory_equal(s, "data: ", 6);
    const char *end = memmem(s, out->len - *at, "\n\n", 2);
    assert_non_null(end);
    assert_null(memchr(s, '\n', (size_t)(end - s)));
    *at += (size_t)(end - s) + 2;
    return parse(s + 6, (size_t)(end - s) - 6);
}

/* The value behind a path such as "choices.0.delta.content". */
static const cJSON *at(const cJSON *tree, const char *path)
{
    char word[64];
    while (*path && tree) {
        size_t n = strcspn(path, ".");
        memcpy(word, path, n);
        word[n] = '\0';
        tree = word[0] >= '0' && word[0] <= '9'
                   ? cJSON_GetArrayItem(tree, atoi(word))
                   : json_get(tree, word);
        path += n + (path[n] == '.');
    }
    return tree;
}

static const char *string_at(const cJSON *tree, const char *path)
{
    const cJSON *v = at(tree, path);
    if (!cJSON_IsString(v))
        fail_msg("%s is no string", path);
    return v->valuestring;
}

static double number_at(const cJSON *tree, const char *path)
{
    const cJSON *v = at(tree, path);
    if (!cJSON_IsNumber(v))
        fail_msg("%s is no number", path);
    return v->valuedouble;
}

static void check_kv(const cJSON *tree)
{
    assert_true(cJSON_IsNull(at(tree, "kv.session")));
    assert_string_equal(string_at(tree, "kv.policy"), "exact");
    assert_int_equal(number_at(tree, "kv.logical_tokens"), 28);
    assert_int_equal(number_at(tree, "kv.full_entries"), 2520);
    assert_int_equal(number_at(tree, "kv.retained_entries"), 2520);
    assert_int_equal(number_at(tree, "kv.evicted_entries"), 0);
    assert_int_equal(number_at(tree, "kv.merged_entries"), 0);
    assert_float_equal(number_at(tree, "kv.retained_share"), 1, 0);
    assert_int_equal(number_at(tree, "kv.bytes"), 12345);
    assert_true(cJSON_IsFalse(at(tree, "kv.lossy")));
}

static void check_usage(const cJSON *tree)
{
    assert_int_equal(number_at(tree, "usage.prompt_tokens"), 19);
    assert_int_equal(number_at(tree, "usage.completion_tokens"), 10);
    assert_int_equal(number_at(tree, "usage.total_tokens"), 29);
    assert_int_equal(
        number_at(tree, "usage.prompt_tokens_details.cached_tokens"), 16);
    assert_int_equal(
        number_at(tree, "usage.prompt_tokens_details.audio_tokens"), 0);
    assert_int_equal(
        number_at(tree, "usage.completion_tokens_details.reasoning_tokens"), 0);
}

static void check_head(const cJSON *tree, const char *object)
{
    assert_string_equal(string_at(tree, "id"), "chatcmpl-1");
    assert_string_equal(string_at(tree, "object"), object);
    assert_string_equal(string_at(tree, "model"), "m \"x\"");
    assert_string_equal(string_at(tree, "system_fingerprint"), "fp_1");
    assert_true(number_at(tree, "created") == 1764432000.0);
    assert_null(json_get(tree, "error"));
}

static void a_whole_chat_has_every_required_key(void **state)
{
    struct buf out = {0}, text = {0};
    (void)state;
    assert_int_equal(buf_puts(&text, "a\n\"b\" \xF0\x9F\x99\x82"), OK);
    assert_int_equal(answer_whole(&out, &chat, &text, &status), OK);
    cJSON *tree = parse(out.data, out.len);
    check_head(tree, "chat.completion");
    check_usage(tree);
    check_kv(tree);
    assert_int_equal(cJSON_GetArraySize(at(tree, "choices")), 1);
    assert_int_equal(number_at(tree, "choices.0.index"), 0);
    assert_string_equal(string_at(tree, "choices.0.message.role"), "assistant");
    assert_string_equal(string_at(tree, "choices.0.message.content"),
                        text.data);
    assert_true(cJSON_IsNull(at(tree, "choices.0.message.refusal")));
    assert_null(at(tree, "choices.0.message.tool_calls"));
    assert_true(cJSON_IsNull(at(tree, "choices.0.logprobs")));
    assert_string_equal(string_at(tree, "choices.0.finish_reason"), "length");
    cJSON_Delete(tree);
    buf_fini(&out);
    buf_fini(&text);
}

static void what_was_forgotten_is_told(void **state)
{
    struct buf out = {0}, text = {0};
    struct gen_status lossy = status;
    (void)state;
    lossy.policy = FORGET_DBTRIMKV;
    lossy.retained_entries = 630; /* a quarter of 2520 */
    lossy.evicted_entries = 1890;
    lossy.merged_entries = 77;
    assert_int_equal(answer_whole(&out, &chat, &text, &lossy), OK);
    cJSON *tree = parse(out.data, out.len);
    assert_string_equal(string_at(tree, "kv.policy"), "dbtrimkv");
    assert_int_equal(number_at(tree, "kv.full_entries"), 2520);
    assert_int_equal(number_at(tree, "kv.retained_entries"), 630);
    assert_int_equal(number_at(tree, "kv.evicted_entries"), 1890);
    assert_int_equal(number_at(tree, "kv.merged_entries"), 77);
    assert_float_equal(number_at(tree, "kv.retained_share"), 0.25, 0);
    assert_true(cJSON_IsTrue(at(tree, "kv.lossy")));
    cJSON_Delete(tree);
    buf_fini(&out);
}

static void an_empty_text_completion_is_still_whole(void **state)
{
    struct answer a = chat;
    struct gen_status st = status;
    struct buf out = {0}, text = {0};
    (void)state;
    a.is_chat = false;
    st.finish = GEN_FINISH_STOP;
    assert_int_equal(answer_whole(&out, &a, &text, &st), OK);
    cJSON *tree = parse(out.data, out.len);
    check_head(tree, "text_completion");
    check_kv(tree);
    assert_string_equal(string_at(tree, "choices.0.text"), "");
    assert_null(at(tree, "choices.0.message"));
    assert_string_equal(string_at(tree, "choices.0.finish_reason"), "stop");
    cJSON_Delete(tree);
    buf_fini(&out);
}

static void a_stream_goes_role_text_finish_usage_done(void **state)
{
    struct answer a = chat;
    struct buf out = {0};
    size_t pos = 0;
    (void)state;
    a.include_usage = true;
    assert_int_equal(answer_role(&out, &a), OK);
    assert_int_equal(answer_text(&out, &a, "hi\n", 3), OK);
    assert_int_equal(answer_text(&out, &a, "", 0), OK);
    assert_int_equal(answer_finish(&out, &a, &status), OK);
    assert_int_equal(answer_usage(&out, &a, &status), OK);
    assert_int_equal(answer_done(&out), OK);

    cJSON *tree = next_event(&out, &pos);
    check_head(tree, "chat.completion.chunk");
    assert_string_equal(string_at(tree, "choices.0.delta.role"), "assistant");
    assert_string_equal(string_at(tree, "choices.0.delta.content"), "");
    assert_true(cJSON_IsNull(at(tree, "choices.0.finish_reason")));
    assert_true(cJSON_IsNull(json_get(tree, "usage")));
    cJSON_Delete(tree);

    tree = next_event(&out, &pos);
    check_head(tree, "chat.completion.chunk");
    assert_string_equal(string_at(tree, "choices.0.delta.content"), "hi\n");
    assert_null(at(tree, "choices.0.delta.role"));
    assert_null(json_get(tree, "kv"));
    cJSON_Delete(tree);

    tree = next_event(&out, &pos);
    check_head(tree, "chat.completion.chunk");
    assert_true(cJSON_IsObject(at(tree, "choices.0.delta")));
    assert_null(at(tree, "choices.0.delta")->child);
    assert_string_equal(string_at(tree, "choices.0.finish_reason"), "length");
    assert_true(cJSON_IsNull(json_get(tree, "usage")));
    check_kv(tree);
    cJSON_Delete(tree);

    tree = next_event(&out, &pos);
    check_head(tree, "chat.completion.chunk");
    assert_int_equal(cJSON_GetArraySize(at(tree, "choices")), 0);
    assert_true(cJSON_IsArray(at(tree, "choices")));
    check_usage(tree);
    cJSON_Delete(tree);
    assert_string_equal(out.data + pos, "data: [DONE]\n\n");
    buf_fini(&out);
}

static void usage_is_absent_when_nobody_asked(void **state)
{
    struct buf out = {0};
    size_t pos = 0;
    (void)state;
    assert_int_equal(answer_text(&out, &chat, "x", 1), OK);
    cJSON *tree = next_event(&out, &pos);
    assert_null(json_get(tree, "usage"));
    cJSON_Delete(tree);
    buf_fini(&out);
}

static void streamed_text_has_no_delta(void **state)
{
    struct answer a = chat;
    struct buf out = {0};
    size_t pos = 0;
    (void)state;
    a.is_chat = false;
    assert_int_equal(answer_text(&out, &a, "x", 1), OK);
    assert_int_equal(answer_finish(&out, &a, &status), OK);
    cJSON *tree = next_event(&out, &pos);
    check_head(tree, "text_completion");
    assert_string_equal(string_at(tree, "choices.0.text"), "x");
    assert_null(at(tree, "choices.0.delta"));
    cJSON_Delete(tree);
    tree = next_event(&out, &pos);
    assert_string_equal(string_at(tree, "choices.0.text"), "");
    assert_string_equal(string_at(tree, "choices.0.finish_reason"), "length");
    cJSON_Delete(tree);
    buf_fini(&out);
}

/* Pieces of any text joined are the text, and none ends inside a character. */
static void a_long_text_is_cut_between_characters(void **state)
{
    static const char *const unit[] = {"a", "\xC3\xA9", "\xE6\x97\xA5",
                                       "\xF0\x9F\x99\x82", "\""};
    struct buf text = {0}, out = {0}, joined = {0};
    size_t pos = 0;
    (void)state;
    for (unsigned i = 0; text.len < 5 * ANSWER_TEXT_MAX; i++)
        assert_int_equal(buf_puts(&text, unit[i * i % 5]), OK);
    assert_int_equal(answer_text(&out, &chat, text.data, text.len), OK);
    while (pos < out.len) {
        cJSON *tree = next_event(&out, &pos);
        const char *s = string_at(tree, "choices.0.delta.content");
        assert_in_range(strlen(s), 1, ANSWER_TEXT_MAX);
        assert_true(utf8_is_valid(s, strlen(s)));
        assert_int_equal(buf_puts(&joined, s), OK);
        cJSON_Delete(tree);
    }
    assert_string_equal(joined.data, text.data);
    buf_fini(&joined);
    buf_fini(&out);
    buf_fini(&text);
}

static void events_are_never_split(void **state)
{
    static const char s[] = "data: one\n\n: keep-alive\n\ndata: two\n\n";
    const size_t n = sizeof(s) - 1;
    (void)state;
    assert_int_equal(answer_whole_events(s, n, 1000), n);
    assert_int_equal(answer_whole_events(s, n, n), n);
    assert_int_equal(answer_whole_events(s, n, n - 1), 25);
    assert_int_equal(answer_whole_events(s, n, 24), 11);
    assert_int_equal(answer_whole_events(s, n, 11), 11);
    /* One that is longer than the room has to be. */
    assert_int_equal(answer_whole_events(s, n, 10), 10);
}

static void a_fault_inside_a_stream_is_an_error_event(void **state)
{
    struct api_error e;
    struct buf out = {0};
    size_t pos = 0;
    (void)state;
    api_error_set(&e, 503, "draining", NULL, "going down");
    assert_int_equal(answer_error(&out, &e), OK);
    cJSON *tree = next_event(&out, &pos);
    assert_string_equal(string_at(tree, "error.message"), "going down");
    assert_string_equal(string_at(tree, "error.type"), "server_error");
    cJSON_Delete(tree);
    buf_clear(&out);
    assert_int_equal(answer_keep_alive(&out), OK);
    assert_string_equal(out.data, ": keep-alive\n\n");
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_chat_has_every_required_key),
        cmocka_unit_test(what_was_forgotten_is_told),
        cmocka_unit_test(an_empty_text_completion_is_still_whole),
        cmocka_unit_test(a_stream_goes_role_text_finish_usage_done),
        cmocka_unit_test(usage_is_absent_when_nobody_asked),
        cmocka_unit_test(streamed_text_has_no_delta),
        cmocka_unit_test(a_long_text_is_cut_between_characters),
        cmocka_unit_test(events_are_never_split),
        cmocka_unit_test(a_fault_inside_a_stream_is_an_error_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
