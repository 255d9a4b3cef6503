#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/params.h"

enum { VOCAB = 1000 };

struct result {
    enum err rc;
    struct params p;
    struct gen_request r;
    struct api_error e;
    cJSON *body; /* or NULL: gone already */
};

/* The server that the requests come to. */
static struct forget_options the_rules;
static bool has_gates;

static int with_gates(void **state)
{
    (void)state;
    has_gates = true;
    the_rules = (struct forget_options){
        .rules = {.policy = FORGET_DBTRIMKV,
                  .admission = {.ranking = FORGET_RANK_RETENTION},
                  .session_tokens = 300},
        .min_head = 20,
        .n_sinks = 4,
        .n_recent = 16,
    };
    return 0;
}

static struct result read_as(enum params_route route, const char *json)
{
    struct result out = {0};
    cJSON *body = NULL;
    assert_int_equal(json_parse(&body, json, strlen(json), NULL), OK);
    const struct params_server server = {.n_vocab = VOCAB,
                                         .max_context = 2048,
                                         .forget = &the_rules,
                                         .has_gates = has_gates};
    out.rc = params_read(&out.p, &out.r, body, route, &server, &out.e);
    /* Roles to pin are borrowed from it. */
    if (out.p.n_pins == 0)
        cJSON_Delete(body);
    else
        out.body = body;
    return out;
}

static void end(struct result *r)
{
    gen_request_fini(&r->r);
    cJSON_Delete(r->body);
}

static void unknown_fields_are_found(void **state)
{
    static const char json[] =
        "{\"model\":1,\"mirostat\":2,\"messages\":3,\"echo\":false,"
        "\"top_p\":1,\"Top_p\":1,\"prompt\":null}";
    const char *const chat[] = {"mirostat", "echo", "Top_p", "prompt", NULL};
    const char *const text[] = {"mirostat", "messages", "Top_p", NULL};
    cJSON *body = NULL;
    (void)state;
    assert_int_equal(json_parse(&body, json, strlen(json), NULL), OK);
    for (int k = 0; k < 2; k++) {
        const char *const *want = k == 0 ? chat : text;
        enum params_route route = k == 0 ? PARAMS_CHAT : PARAMS_TEXT;
        const cJSON *at = params_find_unknown(body->child, route);
        for (; at; at = params_find_unknown(at->next, route)) {
            assert_non_null(*want);
            assert_string_equal(at->string, *want++);
        }
        assert_null(*want);
    }
    cJSON_Delete(body);
}

/* code and param of the refusal; "" for none. */
static void expect(enum params_route route, const char *json, const char *code,
                   const char *param)
{
    struct result r = read_as(route, json);
    if (strcmp(r.e.code, code) != 0 || strcmp(r.e.param, param) != 0)
        fail_msg("%s: code '%s' param '%s' (%s), wanted '%s' '%s'", json,
                 r.e.code, r.e.param, r.e.message.text, code, param);
    assert_int_equal(r.rc, code[0] ? ERR_INVAL : OK);
    assert_int_equal(r.e.status, code[0] ? 400 : 0);
    end(&r);
}

static void expect_chat(const char *json, const char *code, const char *param)
{
    expect(PARAMS_CHAT, json, code, param);
}

static void an_empty_request_has_the_documented_defaults(void **state)
{
    (void)state;
    struct result r = read_as(PARAMS_CHAT, "{}");
    assert_int_equal(r.rc, OK);
    assert_float_equal(r.p.gen.temperature, 1, 0);
    assert_float_equal(r.p.gen.top_p, 1, 0);
    assert_float_equal(r.p.gen.repetition_penalty, 1, 0);
    assert_int_equal(r.p.gen.top_k, 0);
    assert_false(r.p.gen.has_max_tokens);
    assert_false(r.p.gen.has_seed);
    assert_false(r.p.stream);
    assert_true(r.p.add_generation_prompt);
    end(&r);
    r = read_as(PARAMS_TEXT, "{}");
    assert_true(r.p.gen.has_max_tokens);
    assert_int_equal(r.p.gen.max_tokens, 16);
    end(&r);
}

static void values_arrive_where_the_engine_reads_them(void **state)
{
    (void)state;
    struct result r = read_as(
        PARAMS_CHAT,
        "{\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":7,"
        "\"presence_penalty\":-1.5,\"frequency_penalty\":1.5,"
        "\"repetition_penalty\":1.25,\"seed\":9223372036854775807,"
        "\"max_tokens\":3.0,\"ignore_eos\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true,\"x\":1},"
        "\"stop\":[\"a\",\"\",\"bc\"],\"logit_bias\":{\"0\":-100,\"999\":5.5}"
        "}");
    assert_int_equal(r.rc, OK);
    assert_memory_equal(&r.r.params, &r.p.gen, sizeof(r.p.gen));
    assert_float_equal(r.p.gen.temperature, 0.5, 0);
    assert_float_equal(r.p.gen.top_p, 0.25, 0);
    assert_float_equal(r.p.gen.min_p, 0.125, 0);
    assert_int_equal(r.p.gen.top_k, 7);
    assert_float_equal(r.p.gen.presence_penalty, -1.5, 0);
    assert_float_equal(r.p.gen.frequency_penalty, 1.5, 0);
    assert_float_equal(r.p.gen.repetition_penalty, 1.25, 0);
    assert_true(r.p.gen.has_seed);
    assert_true(r.p.gen.seed == INT64_MAX);
    assert_int_equal(r.p.gen.max_tokens, 3);
    assert_true(r.p.gen.ignore_eos);
    assert_true(r.p.stream);
    assert_true(r.p.include_usage);
    assert_int_equal(r.r.n_stops, 2);
    assert_string_equal(r.r.stop[0], "a");
    assert_string_equal(r.r.stop[1], "bc");
    assert_int_equal(r.r.stop_len[1], 2);
    assert_int_equal(r.r.n_bias, 2);
    assert_int_equal(r.r.bias[1].token, 999);
    assert_float_equal(r.r.bias[1].bias, 5.5, 0);
    end(&r);
}

static void null_is_absent_for_every_field(void **state)
{
    static const char *const names[] = {
        "temperature",
        "top_p",
        "min_p",
        "top_k",
        "n",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        "parallel_tool_calls",
        "response_format",
        "user",
        "metadata",
        "store",
        "service_tier",
        "reasoning_effort",
        "kv",
        "modalities",
        "audio",
        "echo",
        "suffix",
        "best_of",
        "ignore_eos",
        "continue_final_message",
        "add_generation_prompt",
        "chat_template_kwargs",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char json[100];
        snprintf(json, sizeof(json), "{\"%s\":null}", names[i]);
        expect_chat(json, "", "");
        expect(PARAMS_TEXT, json, "", "");
    }
}

static void a_wrong_type_is_named(void **state)
{
    (void)state;
    expect_chat("{\"temperature\":\"hot\"}", "invalid_type", "temperature");
    expect_chat("{\"temperature\":true}", "invalid_type", "temperature");
    expect_chat("{\"top_p\":{}}", "invalid_type", "top_p");
    expect_chat("{\"max_tokens\":\"8\"}", "invalid_type", "max_tokens");
    expect_chat("{\"max_tokens\":[8]}", "invalid_type", "max_tokens");
    expect_chat("{\"max_tokens\":1.5}", "invalid_type", "max_tokens");
    expect_chat("{\"stream\":1}", "invalid_type", "stream");
    expect_chat("{\"stream\":\"true\"}", "invalid_type", "stream");
    expect_chat("{\"n\":\"two\"}", "invalid_type", "n");
    expect_chat("{\"stop\":5}", "invalid_type", "stop");
    expect_chat("{\"stop\":[\"a\",2]}", "invalid_type", "stop[1]");
    expect_chat("{\"seed\":\"x\"}", "invalid_type", "seed");
    expect_chat("{\"seed\":1.5}", "invalid_type", "seed");
    expect_chat("{\"logit_bias\":[1]}", "invalid_type", "logit_bias");
    expect_chat("{\"logprobs\":\"yes\"}", "invalid_type", "logprobs");
    expect_chat("{\"logprobs\":1}", "invalid_type", "logprobs");
    expect(PARAMS_TEXT, "{\"logprobs\":true}", "invalid_type", "logprobs");
    expect_chat("{\"stream_options\":true}", "invalid_type", "stream_options");
    expect_chat("{\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
                "invalid_type", "stream_options.include_usage");
    expect_chat("{\"tools\":{}}", "invalid_type", "tools");
    expect_chat("{\"response_format\":\"text\"}", "invalid_type",
                "response_format");
    expect_chat("{\"chat_template_kwargs\":[]}", "invalid_type",
                "chat_template_kwargs");
    expect_chat("{\"kv\":[]}", "invalid_type", "kv");
}

static void a_value_outside_its_range_is_named(void **state)
{
    (void)state;
    expect_chat("{\"temperature\":2.5}", "decimal_above_max_value",
                "temperature");
    expect_chat("{\"temperature\":-0.1}", "decimal_below_min_value",
                "temperature");
    expect_chat("{\"top_p\":1.5}", "decimal_above_max_value", "top_p");
    expect_chat("{\"max_tokens\":0}", "integer_below_min_value", "max_tokens");
    expect(PARAMS_TEXT, "{\"max_tokens\":0}", "", "");
    expect(PARAMS_TEXT, "{\"max_tokens\":-1}", "integer_below_min_value",
           "max_tokens");
    expect_chat("{\"max_completion_tokens\":0}", "integer_below_min_value",
                "max_completion_tokens");
    expect_chat("{\"max_tokens\":-99999999999999999999}",
                "integer_below_min_value", "max_tokens");
    expect_chat("{\"n\":0}", "integer_below_min_value", "n");
    expect_chat("{\"n\":129}", "integer_above_max_value", "n");
    expect_chat("{\"seed\":9223372036854775808}", "integer_above_max_value",
                "seed");
    expect_chat("{\"seed\":-9223372036854775809}", "integer_below_min_value",
                "seed");
    expect_chat("{\"seed\":-9223372036854775808}", "", "");
    expect_chat("{\"top_k\":-2}", "integer_below_min_value", "top_k");
    expect_chat("{\"repetition_penalty\":0}", "decimal_below_min_value",
                "repetition_penalty");
    expect_chat("{\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}",
                "array_above_max_length", "stop");
    expect_chat("{\"logprobs\":true,\"top_logprobs\":21}",
                "integer_above_max_value", "top_logprobs");
    expect_chat("{\"logprobs\":true,\"top_logprobs\":-1}",
                "integer_below_min_value", "top_logprobs");
    expect_chat("{\"top_logprobs\":2}", "invalid_value", "top_logprobs");
    expect_chat("{\"stream_options\":{\"include_usage\":true}}",
                "invalid_value", "stream_options");
}

static void a_stop_has_a_longest_length(void **state)
{
    char *json = calloc(1, GEN_STOP_BYTES_MAX + 100);
    (void)state;
    memcpy(json, "{\"stop\":\"", 9);
    memset(json + 9, 's', GEN_STOP_BYTES_MAX);
    memcpy(json + 9 + GEN_STOP_BYTES_MAX, "\"}", 3);
    expect_chat(json, "", "");
    memcpy(json + 9 + GEN_STOP_BYTES_MAX, "s\"}", 4);
    expect_chat(json, "string_above_max_length", "stop");
    free(json);
}

static void huge_limits_mean_the_context(void **state)
{
    (void)state;
    struct result r = read_as(PARAMS_CHAT, "{\"max_tokens\":5000000000000}");
    assert_int_equal(r.rc, OK);
    assert_int_equal(r.p.gen.max_tokens, INT32_MAX);
    end(&r);
}

static void max_completion_tokens_wins(void **state)
{
    (void)state;
    struct result r =
        read_as(PARAMS_CHAT, "{\"max_completion_tokens\":3,\"max_tokens\":40}");
    assert_int_equal(r.p.gen.max_tokens, 3);
    end(&r);
    r = read_as(PARAMS_CHAT, "{\"max_tokens\":3,\"max_completion_tokens\":9}");
    assert_int_equal(r.p.gen.max_tokens, 9);
    end(&r);
}

static void a_bad_bias_never_reaches_the_engine(void **state)
{
    static const char *const bad[] = {
        "{\"1000\":1}", "{\"1000000000000\":1}", "{\"-1\":1}", "{\"AI\":1}",
        "{\"\":1}",     "{\"1.5\":1}",           "{\"05\":1}", "{\" 5\":1}",
        "{\"+5\":1}",
    };
    char json[100];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(json, sizeof(json), "{\"logit_bias\":%s}", bad[i]);
        expect_chat(json, "invalid_value", "logit_bias");
    }
    expect_chat("{\"logit_bias\":{\"5\":101}}", "decimal_above_max_value",
                "logit_bias");
    expect_chat("{\"logit_bias\":{\"5\":-100.5}}", "decimal_below_min_value",
                "logit_bias");
    expect_chat("{\"logit_bias\":{\"5\":\"x\"}}", "invalid_type", "logit_bias");
    expect_chat("{\"logit_bias\":{}}", "", "");
}

static void what_would_change_the_answer_is_refused(void **state)
{
    (void)state;
    expect_chat("{\"n\":2}", "unsupported_parameter", "n");
    expect_chat("{\"logprobs\":true}", "unsupported_parameter", "logprobs");
    expect_chat("{\"tools\":[{\"type\":\"function\"}]}",
                "unsupported_parameter", "tools");
    expect_chat("{\"tool_choice\":\"required\"}", "unsupported_parameter",
                "tool_choice");
    expect_chat("{\"tool_choice\":{\"type\":\"function\"}}",
                "unsupported_parameter", "tool_choice");
    expect_chat("{\"tool_choice\":\"maybe\"}", "invalid_value", "tool_choice");
    expect_chat("{\"response_format\":{\"type\":\"json_object\"}}",
                "unsupported_parameter", "response_format");
    expect_chat("{\"response_format\":{\"type\":\"json_schema\"}}",
                "invalid_type", "response_format.json_schema");
    expect_chat("{\"response_format\":{\"type\":\"sound\"}}", "invalid_value",
                "response_format.type");
    expect_chat("{\"audio\":{\"voice\":\"a\"}}", "unsupported_parameter",
                "audio");
    expect_chat("{\"modalities\":[\"text\",\"audio\"]}",
                "unsupported_parameter", "modalities");
    expect_chat("{\"previous_response_id\":\"r\"}", "unsupported_parameter",
                "previous_response_id");
    expect(PARAMS_TEXT, "{\"echo\":true}", "unsupported_parameter", "echo");
    expect(PARAMS_TEXT, "{\"logprobs\":0}", "unsupported_parameter",
           "logprobs");
    expect(PARAMS_TEXT, "{\"suffix\":\"x\"}", "unsupported_parameter",
           "suffix");
    expect(PARAMS_TEXT, "{\"best_of\":3}", "unsupported_parameter", "best_of");
}

/* A field that means the same on both routes is read by the same rule. */
static void both_routes_read_the_same_fields(void **state)
{
    static const struct {
        const char *json, *code, *param;
    } row[] = {
        {"{\"tools\":[{\"type\":\"function\"}]}", "unsupported_parameter",
         "tools"},
        {"{\"tools\":5}", "invalid_type", "tools"},
        {"{\"tool_choice\":\"required\"}", "unsupported_parameter",
         "tool_choice"},
        {"{\"functions\":[{}]}", "unsupported_parameter", "functions"},
        {"{\"function_call\":7}", "invalid_type", "function_call"},
        {"{\"modalities\":[\"audio\"]}", "unsupported_parameter", "modalities"},
        {"{\"parallel_tool_calls\":1}", "invalid_type", "parallel_tool_calls"},
        {"{\"reasoning_effort\":1}", "invalid_type", "reasoning_effort"},
        {"{\"max_completion_tokens\":\"5\"}", "invalid_type",
         "max_completion_tokens"},
        {"{\"max_completion_tokens\":-1}", "integer_below_min_value",
         "max_completion_tokens"},
        {"{\"ignore_eos\":\"yes\"}", "invalid_type", "ignore_eos"},
        {"{\"n\":2}", "unsupported_parameter", "n"},
        {"{\"response_format\":{\"type\":\"json_object\"}}",
         "unsupported_parameter", "response_format"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        expect_chat(row[i].json, row[i].code, row[i].param);
        expect(PARAMS_TEXT, row[i].json, row[i].code, row[i].param);
    }
    struct result r = read_as(
        PARAMS_TEXT, "{\"max_completion_tokens\":40,\"ignore_eos\":true}");
    assert_int_equal(r.p.gen.max_tokens, 40);
    assert_true(r.p.gen.ignore_eos);
    end(&r);
}

static void a_number_is_told_as_it_was_sent(void **state)
{
    (void)state;
    struct result r = read_as(PARAMS_CHAT, "{\"temperature\":2.1}");
    assert_non_null(strstr(r.e.message.text, "got 2.1 instead"));
    end(&r);
    r = read_as(PARAMS_CHAT, "{\"seed\":0.3}");
    assert_non_null(strstr(r.e.message.text, "number 0.3."));
    end(&r);
}

static void what_asks_for_nothing_is_accepted(void **state)
{
    (void)state;
    expect_chat("{\"n\":1,\"logprobs\":false,\"tools\":[],"
                "\"tool_choice\":\"none\",\"modalities\":[\"text\"],"
                "\"response_format\":{\"type\":\"text\"},\"functions\":[],"
                "\"parallel_tool_calls\":false,\"store\":true,\"user\":\"u\","
                "\"verbosity\":\"low\",\"prediction\":{\"type\":\"content\"},"
                "\"brand_new\":{\"a\":[1]},\"MAX_TOKENS\":\"x\","
                "\"min_tokens\":0,\"suffix\":5}",
                "", "");
    expect(PARAMS_TEXT, "{\"echo\":false,\"suffix\":\"\",\"best_of\":1}", "",
           "");
    /* Fields of the other route are unknown here. */
    expect(PARAMS_TEXT, "{\"continue_final_message\":5,\"top_logprobs\":-1}",
           "", "");
}

static void the_kv_object_knows_its_fields(void **state)
{
    (void)state;
    expect_chat("{\"kv\":{}}", "", "");
    expect_chat("{\"kv\":{\"policy\":\"none\",\"session\":null,"
                "\"append\":false,\"priority\":0,\"pin\":[]}}",
                "", "");
    expect_chat("{\"kv\":[]}", "invalid_type", "kv");
    expect_chat("{\"kv\":{\"policy\":\"snapkv\"}}", "", "");
    expect_chat("{\"kv\":{\"policy\":\"h2o\"}}", "unsupported_value",
                "kv.policy");
    expect_chat("{\"kv\":{\"admission\":\"h2o+drop\"}}", "", "");
    expect_chat("{\"kv\":{\"policy\":\"dbtrimkw\"}}", "invalid_value",
                "kv.policy");
    expect_chat("{\"kv\":{\"policy\":1}}", "invalid_type", "kv.policy");
    expect_chat("{\"kv\":{\"session\":\"chat-1\"}}", "unsupported_parameter",
                "kv.session");
    expect_chat("{\"kv\":{\"session\":7}}", "invalid_type", "kv.session");
    expect_chat("{\"kv\":{\"append\":true}}", "unsupported_parameter",
                "kv.append");
    expect_chat("{\"kv\":{\"append\":\"yes\"}}", "invalid_type", "kv.append");
    expect_chat("{\"kv\":{\"priority\":3}}", "unsupported_parameter",
                "kv.priority");
    expect_chat("{\"kv\":{\"priority\":11}}", "integer_above_max_value",
                "kv.priority");
    expect_chat("{\"kv\":{\"session_token\":5}}", "unknown_parameter",
                "kv.session_token");
    expect(PARAMS_TEXT, "{\"kv\":{\"Policy\":\"exact\"}}", "unknown_parameter",
           "kv.Policy");
}

static struct forget_rules rules_of(const char *kv)
{
    char json[256];
    snprintf(json, sizeof(json), "{\"kv\":%s}", kv);
    struct result r = read_as(PARAMS_CHAT, json);
    struct forget_rules rules = r.r.forget;
    if (r.rc != OK)
        fail_msg("%s: %s", kv, r.e.message.text);
    end(&r);
    return rules;
}

static void a_request_gets_the_servers_rules_but_for_what_it_asks(void **state)
{
    (void)state;
    struct result none = read_as(PARAMS_TEXT, "{}");
    assert_int_equal(none.r.forget.policy, FORGET_DBTRIMKV);
    assert_int_equal(none.r.forget.session_tokens, 300);
    end(&none);
    struct forget_rules r = rules_of("{\"session_tokens\":0}");
    assert_int_equal(r.policy, FORGET_DBTRIMKV);
    assert_int_equal(r.admission.ranking, FORGET_RANK_RETENTION);
    assert_int_equal(r.session_tokens, 0);
    /* The order of the fields does not count. */
    r = rules_of("{\"admission\":\"streamingllm+drop\",\"session_tokens\":20,"
                 "\"policy\":\"streamingllm\"}");
    assert_int_equal(r.policy, FORGET_STREAMINGLLM);
    assert_int_equal(r.admission.ranking, FORGET_STREAMINGLLM);
    assert_int_equal(r.session_tokens, 20);
    r = rules_of("{\"admission\":\"none\"}");
    assert_true(r.admission.off);
    r = rules_of("{\"policy\":\"exact\",\"admission\":\"retention+drop\"}");
    assert_int_equal(r.policy, FORGET_EXACT);
    assert_true(r.admission.off);
    assert_int_equal(r.session_tokens, 0);
}

static void a_cap_is_something_that_can_be_kept(void **state)
{
    (void)state;
    static const char name[] = "kv.session_tokens";
    expect_chat("{\"kv\":{\"session_tokens\":-1}}", "integer_below_min_value",
                name);
    expect_chat("{\"kv\":{\"session_tokens\":19}}", "integer_below_min_value",
                name);
    expect_chat("{\"kv\":{\"session_tokens\":1e12}}", "integer_above_max_value",
                name);
    /* The limit is the option's, and a whole number is shown as one. */
    expect_chat("{\"kv\":{\"session_tokens\":16777216}}", "", "");
    struct result r =
        read_as(PARAMS_CHAT, "{\"kv\":{\"session_tokens\":16777217}}");
    assert_string_equal(r.e.code, "integer_above_max_value");
    assert_non_null(strstr(r.e.message.text, "<= 16777216, but got 16777217"));
    end(&r);
    expect_chat("{\"kv\":{\"session_tokens\":20.5}}", "invalid_type", name);
    expect_chat("{\"kv\":{\"session_tokens\":\"20\"}}", "invalid_type", name);
    expect_chat("{\"kv\":{\"session_tokens\":20,\"policy\":\"exact\"}}",
                "invalid_value", name);
    expect_chat("{\"kv\":{\"session_tokens\":0,\"policy\":\"exact\"}}", "", "");
    expect_chat("{\"kv\":{\"session_tokens\":4000}}", "", "");
    the_rules.unbounded_context = true;
    expect_chat("{\"kv\":{\"session_tokens\":2048}}", "integer_above_max_value",
                name);
    expect_chat("{\"kv\":{\"session_tokens\":2047}}", "", "");
}

static void without_gates_what_needs_them_is_refused(void **state)
{
    (void)state;
    static const char *const policies[] = {"dbtrimkv", "trimkv"};
    has_gates = false;
    the_rules.rules = forget_default_rules(false, false);
    for (size_t i = 0; i < 2; i++) {
        char json[80];
        snprintf(json, sizeof(json), "{\"kv\":{\"policy\":\"%s\"}}",
                 policies[i]);
        expect_chat(json, "unsupported_value", "kv.policy");
        struct result r = read_as(PARAMS_CHAT, json);
        assert_non_null(strstr(r.e.message.text, policies[i]));
        assert_non_null(strstr(r.e.message.text, "gates"));
        end(&r);
    }
    expect_chat("{\"kv\":{\"admission\":\"retention+drop\"}}",
                "unsupported_value", "kv.admission");
    expect_chat("{\"kv\":{\"admission\":\"trimkv+drop\"}}", "unsupported_value",
                "kv.admission");
    expect_chat("{\"kv\":{\"admission\":\"selkv+drop\"}}", "", "");
    expect_chat("{\"kv\":{\"admission\":\"selkv+glue\"}}", "invalid_value",
                "kv.admission");
    expect_chat("{\"kv\":{\"policy\":\"streamingllm\"}}", "", "");
}

static void roles_are_pinned_by_name(void **state)
{
    (void)state;
    struct result r = read_as(
        PARAMS_CHAT, "{\"kv\":{\"pin\":[\"system\",\"tool\",\"system\"]}}");
    assert_int_equal(r.rc, OK);
    assert_int_equal(r.p.n_pins, 2);
    assert_string_equal(r.p.pin[0], "system");
    assert_string_equal(r.p.pin[1], "tool");
    end(&r);
    expect_chat("{\"kv\":{\"pin\":[\"system\",\"developer\",\"user\","
                "\"assistant\",\"tool\",\"function\",\"user\"]}}",
                "", "");
    expect_chat("{\"kv\":{\"pin\":\"system\"}}", "invalid_type", "kv.pin");
    expect_chat("{\"kv\":{\"pin\":[\"user\",1]}}", "invalid_type", "kv.pin[1]");
    expect_chat("{\"kv\":{\"pin\":[\"System\"]}}", "invalid_value",
                "kv.pin[0]");
    expect(PARAMS_TEXT, "{\"kv\":{\"pin\":[\"system\"]}}",
           "unsupported_parameter", "kv.pin");
    expect(PARAMS_TEXT, "{\"kv\":{\"pin\":[]}}", "", "");
}

static void a_continued_message_opens_no_turn(void **state)
{
    (void)state;
    struct result r = read_as(PARAMS_CHAT, "{\"continue_final_message\":true}");
    assert_int_equal(r.rc, OK);
    assert_true(r.p.continue_final_message);
    assert_false(r.p.add_generation_prompt);
    end(&r);
    r = read_as(PARAMS_CHAT, "{\"add_generation_prompt\":false}");
    assert_false(r.p.add_generation_prompt);
    end(&r);
    expect_chat("{\"continue_final_message\":true,"
                "\"add_generation_prompt\":true}",
                "invalid_value", "continue_final_message");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_fields_are_found),
        cmocka_unit_test(an_empty_request_has_the_documented_defaults),
        cmocka_unit_test(values_arrive_where_the_engine_reads_them),
        cmocka_unit_test(null_is_absent_for_every_field),
        cmocka_unit_test(a_wrong_type_is_named),
        cmocka_unit_test(a_value_outside_its_range_is_named),
        cmocka_unit_test(a_stop_has_a_longest_length),
        cmocka_unit_test(huge_limits_mean_the_context),
        cmocka_unit_test(max_completion_tokens_wins),
        cmocka_unit_test(a_bad_bias_never_reaches_the_engine),
        cmocka_unit_test(what_would_change_the_answer_is_refused),
        cmocka_unit_test(both_routes_read_the_same_fields),
        cmocka_unit_test(a_number_is_told_as_it_was_sent),
        cmocka_unit_test(what_asks_for_nothing_is_accepted),
        cmocka_unit_test(the_kv_object_knows_its_fields),
        cmocka_unit_test_setup(
            a_request_gets_the_servers_rules_but_for_what_it_asks, with_gates),
        cmocka_unit_test_setup(a_cap_is_something_that_can_be_kept, with_gates),
        cmocka_unit_test_setup(without_gates_what_needs_them_is_refused,
                               with_gates),
        cmocka_unit_test_setup(roles_are_pinned_by_name, with_gates),
        cmocka_unit_test(a_continued_message_opens_no_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
