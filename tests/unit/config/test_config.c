#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/kv_layout.h"
#include "base/log.h"
#include "config/config.h"

enum { WORDS = 16 };

static char model_file[] = "/tmp/ebb_config_XXXXXX";
static char conf_file[] = "/tmp/ebb_config_XXXXXX";

/* Splits at blanks into the NULL-terminated out. */
static int split(char *text, char *out[WORDS])
{
    int n = 0;
    for (char *w = strtok(text, " "); w != NULL; w = strtok(NULL, " "))
        out[n++] = w;
    out[n] = NULL;
    return n;
}

/* flags and env are words between blanks; a model is always given. */
static enum err load(struct config *c, const char *flags, const char *env,
                     struct errmsg *m)
{
    char flag_text[1024], env_text[1024];
    char *argv[WORDS], *envp[WORDS];
    snprintf(flag_text, sizeof(flag_text), "%s", flags);
    snprintf(env_text, sizeof(env_text), "EBB_MODEL=%s %s", model_file, env);
    struct config_sources s = {
        .argc = split(flag_text, argv),
        .argv = argv,
        .env = envp,
        .memory_available = 1000000000,
        .memory_total = 2000000000,
        .cpus = 3,
    };
    split(env_text, envp);
    return config_load_from(c, &s, m);
}

static void loads(struct config *c, const char *flags, const char *env)
{
    struct errmsg m = {""};
    if (load(c, flags, env, &m) != OK)
        fail_msg("%s | %s: %s", flags, env, m.text);
}

/* The sentence must hold both words. */
static void refused(const char *flags, const char *env, const char *a,
                    const char *b)
{
    struct config c;
    struct errmsg m = {""};
    assert_int_equal(load(&c, flags, env, &m), ERR_INVAL);
    if (strstr(m.text, a) == NULL || strstr(m.text, b) == NULL)
        fail_msg("'%s' should say '%s' and '%s'", m.text, a, b);
}

static void write_conf(const char *text)
{
    assert_int_equal(file_replace(conf_file, text, strlen(text), NULL), OK);
}

static const char *conf_flags(const char *more)
{
    static char text[512];
    snprintf(text, sizeof(text), "--config %s %s", conf_file, more);
    return text;
}

static void nothing_given_is_the_documented_default(void **state)
{
    (void)state;
    struct config c;
    loads(&c, "", "");
    assert_string_equal(c.model, model_file);
    assert_int_equal(c.alias.n, 1);
    assert_string_equal(c.alias.item[0], "default");
    assert_false(c.any_model);
    assert_string_equal(c.host, "127.0.0.1");
    assert_int_equal(c.port, 8080);
    assert_int_equal(c.threads, 3);
    assert_true(c.kv_memory == 400000000);
    assert_int_equal(c.kv_type, KV_F16);
    assert_int_equal(c.max_context, 0);
    assert_int_equal(c.max_running, 64);
    assert_int_equal(c.max_queue, 256);
    assert_int_equal(c.queue_timeout, 300000);
    assert_string_equal(c.policy, "");
    assert_string_equal(c.admission, "");
    assert_int_equal(c.session_tokens, 0);
    assert_int_equal(c.min_tokens_per_head, 20);
    assert_int_equal(c.protect_sinks, 4);
    assert_int_equal(c.protect_recent, 16);
    assert_float_equal(c.idle_decay, 0.05, 0);
    assert_float_equal(c.merge_alpha, 0.5, 0);
    assert_float_equal(c.merge_min_mass, 1, 0);
    assert_float_equal(c.merge_max_ratio, 4, 0);
    assert_false(c.unbounded_context);
    assert_false(c.deterministic);
    assert_true(c.max_body == 16 * 1024 * 1024);
    assert_int_equal(c.drain_timeout, 30000);
    assert_int_equal(c.cors_origin.n, 0);
    assert_int_equal(c.log_format, LOG_FORMAT_TEXT);
    assert_int_equal(c.log_level, LOG_LEVEL_INFO);
    assert_int_equal(c.warning.n, 0);
    config_fini(&c);
}

static void a_flag_beats_a_variable_beats_the_file(void **state)
{
    (void)state;
    struct config c;
    write_conf("{\"port\": 1, \"max_queue\": 2, \"max_running\": 3}");
    loads(&c, conf_flags("--port 7"), "EBB_PORT=5 EBB_MAX_QUEUE=6");
    assert_int_equal(c.port, 7);
    assert_int_equal(c.max_queue, 6);
    assert_int_equal(c.max_running, 3);
    config_fini(&c);
    loads(&c, "--port 1 --port=2", "");
    assert_int_equal(c.port, 2);
    config_fini(&c);
}

static void a_list_replaces_the_one_below(void **state)
{
    (void)state;
    struct config c;
    write_conf("{\"alias\": [\"f1\", \"f2\"]}");
    loads(&c, conf_flags(""), "");
    assert_int_equal(c.alias.n, 3);
    assert_string_equal(c.alias.item[1], "f2");
    assert_string_equal(c.alias.item[2], "default"); /* is always there */
    config_fini(&c);
    loads(&c, conf_flags(""), "EBB_ALIAS=e1,e2,e3");
    assert_int_equal(c.alias.n, 4);
    assert_string_equal(c.alias.item[2], "e3");
    config_fini(&c);
    loads(&c, "--alias default --alias=b", "");
    assert_int_equal(c.alias.n, 2);
    config_fini(&c);
    loads(&c, conf_flags("--alias a --alias=b"), "EBB_ALIAS=e1");
    assert_int_equal(c.alias.n, 3);
    assert_string_equal(c.alias.item[0], "a");
    assert_string_equal(c.alias.item[1], "b");
    config_fini(&c);
}

static void sizes_have_units_and_percentages(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } row[] = {
        {"64MiB", 64ull << 20}, {"1gib", 1ull << 30}, {"1048576", 1 << 20},
        {"1.5GiB", 3ull << 29}, {"100MB", 100000000}, {"300000B", 300000},
        {"40%", 400000000},     {"12.5%", 125000000}, {"100%", 1000000000},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct config c;
        char flags[64];
        snprintf(flags, sizeof(flags), "--kv-memory %s", row[i].text);
        loads(&c, flags, "");
        assert_true(c.kv_memory == row[i].bytes);
        config_fini(&c);
    }
    static const char *const bad[] = {
        "64Mi",  "x", "-1", "1e9",  "0x10000", "101%",       "inf",
        "1_GiB", "",  "%",  "1..5", "4KiB",    "99999999TiB"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char flags[64];
        snprintf(flags, sizeof(flags), "--kv-memory=%s", bad[i]);
        refused(flags, "", "--kv-memory", "");
    }
    refused("--kv-memory 64Mi", "", "'64Mi'", "64MiB");
    refused("--kv-memory 4KiB", "", "'4KiB'", "65536");
    refused("--kv-memory 0.0001%", "", "1000 bytes", "65536");
}

static void times_need_a_unit(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int ms;
    } row[] = {{"500ms", 500},  {"30s", 30000}, {"5m", 300000},
               {"1h", 3600000}, {"0s", 0},      {"1.5s", 1500}};
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct config c;
        char flags[64];
        snprintf(flags, sizeof(flags), "--drain-timeout %s", row[i].text);
        loads(&c, flags, "");
        assert_int_equal(c.drain_timeout, row[i].ms);
        config_fini(&c);
    }
    refused("--drain-timeout 30", "", "'30'", "30s");
    refused("--drain-timeout 30x", "", "'30x'", "--drain-timeout");
    refused("--drain-timeout 25h", "", "'25h'", "86400000");
}

static void unknown_options_are_named_with_the_nearest(void **state)
{
    (void)state;
    refused("--kv-memroy 1GiB", "", "'--kv-memroy'", "'--kv-memory'");
    refused("--kv_memory 1GiB", "", "'--kv_memory'", "'--kv-memory'");
    refused("--prot=1", "", "'--prot'", "'--port'");
    refused("--max-quue 1", "", "'--max-quue'", "'--max-queue'");
    refused("--loglevel info", "", "'--loglevel'", "'--log-level'");
    refused("stray", "", "unexpected", "'stray'");
    refused("-p 1", "", "unexpected", "'-p'");
    refused("--", "", "unexpected", "'--'");
    refused("--port", "", "--port", "needs a value");
    refused("--port --host x", "", "--port", "needs a value");
    char line[700] = "--";
    memset(line + 2, 'x', 600);
    refused(line, "", "unknown option", "nearest");
}

static void unknown_values_are_named_with_the_nearest(void **state)
{
    (void)state;
    refused("--kv-type q8", "", "'q8'", "'q8_0'");
    refused("--log-format jsn", "", "'jsn'", "'json'");
    refused("", "EBB_LOG_LEVEL=inof", "EBB_LOG_LEVEL", "'info'");
    refused("--any-model=maybe", "", "'maybe'", "true or false");
    refused("--port 65536", "", "'65536'", "65535");
    refused("--port -1", "", "'-1'", "from 0");
    refused("--port 80x", "", "'80x'", "whole number");
    refused("--port 99999999999999999999", "", "99999999999999999999", "");
    refused("--max-running 0", "", "'0'", "from 1");
}

/* A script's empty variable; the file may say "" for what it leaves open. */
static void a_name_or_list_that_is_empty_is_refused(void **state)
{
    (void)state;
    struct config c;
    refused("--alias=", "", "--alias:", "is empty");
    refused("--cors-origin=", "", "--cors-origin:", "is empty");
    refused("--policy=", "", "--policy:", "is empty");
    refused("--alias=a,,b", "", "--alias:", "'a,,b'");
    refused("", "EBB_ALIAS=a,", "EBB_ALIAS:", "'a,'");
    write_conf("{\"alias\": \"\", \"cors_origin\": [], \"policy\": \"\"}");
    loads(&c, conf_flags(""), "EBB_CORS_ORIGIN=");
    assert_int_equal(c.alias.n, 1);
    assert_int_equal(c.cors_origin.n, 0);
    config_fini(&c);
    write_conf("{\"alias\": [\"a,\"]}");
    refused(conf_flags(""), "", "\"alias\"", "'a,'");
}

static void what_is_kept_and_what_forgets_must_fit_together(void **state)
{
    (void)state;
    struct config c;
    refused("--min-tokens-per-head 19", "", "19", "20 tokens");
    refused("--protect-recent 20 --min-tokens-per-head 23", "",
            "--min-tokens-per-head", "24 tokens");
    loads(&c, "--protect-recent 20", "");
    assert_int_equal(c.min_tokens_per_head, 24);
    config_fini(&c);
    loads(&c, "--protect-sinks 3 --protect-recent 7", "");
    assert_int_equal(c.min_tokens_per_head, 20);
    config_fini(&c);
    loads(&c, "--protect-recent 20 --min-tokens-per-head 24", "");
    config_fini(&c);
    refused("--session-tokens 19", "", "--session-tokens", "20 tokens");
    loads(&c, "--session-tokens 20", "");
    config_fini(&c);
    refused("--session-tokens 100 --policy exact", "", "--session-tokens",
            "--policy exact");
    refused("--unbounded-context --policy none", "", "--unbounded-context",
            "--policy none");
    loads(&c, "--policy none", "");
    config_fini(&c);
    refused("--idle-decay -0.1", "", "'-0.1'", "--idle-decay");
    refused("--idle-decay nan", "", "'nan'", "--idle-decay");
    write_conf("{\"idle_decay\": 0.25, \"policy\": \"trimkv\"}");
    loads(&c, conf_flags(""), "");
    assert_float_equal(c.idle_decay, 0.25, 0);
    assert_string_equal(c.policy, "trimkv");
    config_fini(&c);
}

/* Off may be what was left open, or what somebody wants. */
static void it_is_known_whether_columns_were_said_to_be_off(void **state)
{
    (void)state;
    static const struct {
        const char *file, *env, *flags;
        bool is_on, is_off;
    } row[] = {
        {"{}", "", "", false, false},
        {"{\"watch_columns\": false}", "", "", false, true},
        {"{\"watch_columns\": true}", "", "", true, false},
        {"{}", "EBB_WATCH_COLUMNS=no", "", false, true},
        {"{}", "", "--watch-columns=off", false, true},
        {"{}", "", "--watch-columns", true, false},
        {"{\"watch_columns\": false}", "EBB_WATCH_COLUMNS=off",
         "--watch-columns", true, false},
        {"{\"watch_columns\": true}", "", "--watch-columns=off", false, true},
        {"{\"reposition\": false}", "", "--per-head-sets=off", false, false},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct config c;
        write_conf(row[i].file);
        loads(&c, conf_flags(row[i].flags), row[i].env);
        assert_int_equal(c.watch_columns, row[i].is_on);
        assert_int_equal(c.watch_columns_is_off, row[i].is_off);
        config_fini(&c);
    }
}

static void the_settings_can_be_shown(void **state)
{
    (void)state;
    struct config c;
    struct buf text = {0};
    cJSON *tree = NULL;
    loads(&c,
          "--alias a --alias b\"c --kv-memory 3MiB --drain-timeout 2s "
          "--idle-decay 0.125 --kv-type q8_0 --any-model",
          "");
    assert_int_equal(config_set_string(&c.policy, "trimkv"), OK);
    assert_int_equal(config_put_json(&text, &c), OK);
    assert_int_equal(json_parse(&tree, text.data, text.len, NULL), OK);
    assert_true(json_get(tree, "kv_memory")->valuedouble == 3145728);
    assert_true(json_get(tree, "drain_timeout")->valuedouble == 2000);
    assert_true(json_get(tree, "idle_decay")->valuedouble == 0.125);
    assert_true(json_get(tree, "port")->valuedouble == 8080);
    assert_true(cJSON_IsTrue(json_get(tree, "any_model")));
    assert_true(cJSON_IsFalse(json_get(tree, "deterministic")));
    assert_string_equal(json_get(tree, "kv_type")->valuestring, "q8_0");
    assert_string_equal(json_get(tree, "policy")->valuestring, "trimkv");
    const cJSON *alias = json_get(tree, "alias");
    assert_int_equal(cJSON_GetArraySize(alias), 3);
    assert_string_equal(cJSON_GetArrayItem(alias, 1)->valuestring, "b\"c");
    cJSON_Delete(tree);
    buf_fini(&text);
    config_fini(&c);
}

static void the_file_has_comments_and_its_keys_are_checked(void **state)
{
    (void)state;
    struct config c;
    write_conf("// first\n{ // here\n  \"host\": \"a//b\", // \"port\": 1\n"
               "  \"kv_memory\": \"1GiB\", \"any_model\": true,\n"
               "  \"max_body\": 2048, \"port\": 9.0,\n"
               "  \"cors_origin\": [\"*\"], \"log_format\": \"json\"\n}\n//");
    loads(&c, conf_flags(""), "");
    assert_string_equal(c.host, "a//b");
    assert_true(c.kv_memory == 1ull << 30);
    assert_true(c.any_model);
    assert_true(c.max_body == 2048);
    assert_int_equal(c.port, 9);
    assert_int_equal(c.log_format, LOG_FORMAT_JSON);
    assert_string_equal(c.cors_origin.item[0], "*");
    config_fini(&c);
    static const struct {
        const char *text, *a, *b;
    } bad[] = {
        {"{\"kv_memry\": 1}", "\"kv_memry\"", "\"kv_memory\""},
        {"{\"Port\": 1}", "\"Port\"", "\"port\""},
        {"{\"config\": \"x\"}", "\"config\"", "only be a flag"},
        {"{\"port\": \"x\"}", "\"port\"", "'x'"},
        {"{\"port\": 1.5}", "\"port\"", "'1.5'"},
        {"{\"port\": true}", "\"port\"", "number"},
        {"{\"host\": 1}", "\"host\"", "string"},
        {"{\"any_model\": 1}", "\"any_model\"", "true or false"},
        {"{\"alias\": [1]}", "\"alias\"", "strings"},
        {"{\"drain_timeout\": 30}", "\"drain_timeout\"", "string"},
        {"{\"port\": 1, \"port\": 2}", "\"port\"", "twice"},
        {"{\"port\": 1", "early", ""},
        {"[]", "object", ""},
        {"", "empty", ""},
        {"{\"port\": /* x */ 1}", "byte 9", ""},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_conf(bad[i].text);
        refused(conf_flags(""), "", bad[i].a, bad[i].b);
        refused(conf_flags(""), "", conf_file, "");
    }
    struct errmsg m;
    assert_int_equal(load(&c, "--config /nowhere/x", "", &m), ERR_NOTFOUND);
    assert_non_null(strstr(m.text, "/nowhere/x"));
}

static void the_file_may_be_named_by_a_variable(void **state)
{
    (void)state;
    struct config c;
    char env[128];
    write_conf("{\"port\": 77}");
    snprintf(env, sizeof(env), "EBB_CONFIG=%s", conf_file);
    loads(&c, "", env);
    assert_int_equal(c.port, 77);
    assert_string_equal(c.config, conf_file);
    config_fini(&c);
}

static void rules_between_options_hold(void **state)
{
    (void)state;
    refused("--kv-memory 2000000001", "", "2000000001", "2000000000");
    refused("--cors-origin chat.example", "", "'chat.example'", "--cors");
    refused("--cors-origin https://a.b/path", "", "path", "--cors-origin");
    refused("--host=", "", "--host", "empty");
    refused("--policy=", "", "--policy", "empty");
    refused("--gates=", "", "--gates", "empty");
    write_conf("{\"gates\": \"\"}");
    refused(conf_flags(""), "", "--gates", "empty");
    refused("--max-context 1", "", "--max-context", "no prompt");
    refused("", "EBB_ALIAS=a,b\x01", "--alias", "control");
    struct config c;
    loads(&c, "--cors-origin https://a.b:8 --cors-origin *", "");
    assert_int_equal(c.cors_origin.n, 2);
    config_fini(&c);
}

static void unknown_variables_are_a_warning(void **state)
{
    (void)state;
    struct config c;
    loads(&c, "",
          "EBB_SERVICE_HOST=1 EBB_PORT=5 HOME=/x EBB_PORT_X= EBB_A,,B=1");
    assert_int_equal(c.warning.n, 3);
    assert_non_null(strstr(c.warning.item[2], "EBB_A,,B"));
    assert_non_null(strstr(c.warning.item[0], "EBB_SERVICE_HOST"));
    assert_non_null(strstr(c.warning.item[1], "EBB_PORT_X"));
    assert_int_equal(c.port, 5);
    config_fini(&c);
}

static void without_a_model_the_cached_default_is_taken(void **state)
{
    (void)state;
    char home[] = "EBB_X=1";
    char *env[] = {home, "HOME=/nowhere", NULL};
    struct config c;
    struct errmsg m;
    struct config_sources s = {.env = env, .memory_available = 1 << 30};
    assert_int_equal(config_load_from(&c, &s, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "/nowhere/.cache/ebb/models/"));
    assert_non_null(strstr(m.text, "make setup"));
    env[0] = "XDG_CACHE_HOME=/cache";
    assert_int_equal(config_load_from(&c, &s, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "/cache/ebb/models/"));
    assert_non_null(strstr(m.text, "--model PATH"));
    env[0] = home;
    env[1] = NULL;
    assert_int_equal(config_load_from(&c, &s, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "neither HOME nor XDG_CACHE_HOME"));
}

static void unknown_memory_only_matters_for_percentages(void **state)
{
    (void)state;
    char *argv[] = {"--model", model_file, "--kv-memory", "1GiB"};
    struct config c;
    struct errmsg m;
    struct config_sources s = {.argc = 4, .argv = argv, .cpus = 0};
    assert_int_equal(config_load_from(&c, &s, &m), OK);
    assert_true(c.kv_memory == 1ull << 30);
    assert_int_equal(c.threads, 1);
    config_fini(&c);
    s.argc = 2;
    assert_int_equal(config_load_from(&c, &s, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "40%"));
}

static void help_is_asked_for_wherever_it_stands(void **state)
{
    (void)state;
    struct config c;
    loads(&c, "--nonsense --help", "");
    assert_true(c.help);
    config_fini(&c);
    struct buf b = {0};
    assert_int_equal(config_put_help(&b), OK);
    assert_non_null(strstr(b.data, "--kv-memory SIZE"));
    assert_non_null(strstr(b.data, "--kv-type f16|q8_0|f32"));
    for (char *p = b.data, *end; (end = strchr(p, '\n')) != NULL; p = end + 1)
        assert_true(end - p < 80);
    buf_fini(&b);
}

static void the_example_file_says_what_the_defaults_are(void **state)
{
    (void)state;
    struct buf b = {0};
    struct config c, plain;
    assert_int_equal(config_put_example(&b), OK);
    write_conf(b.data);
    buf_fini(&b);
    loads(&c, conf_flags(""), "");
    loads(&plain, "", "");
    assert_string_equal(c.host, plain.host);
    assert_int_equal(c.port, plain.port);
    assert_int_equal(c.threads, plain.threads);
    assert_true(c.kv_memory == plain.kv_memory);
    assert_int_equal(c.kv_type, plain.kv_type);
    assert_int_equal(c.max_running, plain.max_running);
    assert_int_equal(c.drain_timeout, plain.drain_timeout);
    assert_true(c.max_body == plain.max_body);
    assert_int_equal(c.alias.n, plain.alias.n);
    assert_string_equal(c.alias.item[0], plain.alias.item[0]);
    assert_int_equal(c.cors_origin.n, 0);
    config_fini(&c);
    config_fini(&plain);
}

static void the_real_environment_is_read(void **state)
{
    (void)state;
    struct config c;
    struct errmsg m = {""};
    char *argv[] = {"--model", model_file, "--kv-memory=1MiB"};
    setenv("EBB_MAX_QUEUE", "17", 1);
    assert_int_equal(config_load(&c, 3, argv, &m), OK);
    assert_int_equal(c.max_queue, 17);
    assert_true(c.threads >= 1);
    config_fini(&c);
    unsetenv("EBB_MAX_QUEUE");
}

static void files_of_the_cache_folder(void **state)
{
    (void)state;
    char path[64];
    struct errmsg m;
    const char *names[] = {"XDG_CACHE_HOME", "HOME"};
    char *old[2];
    for (int i = 0; i < 2; i++) {
        old[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
        unsetenv(names[i]);
    }
    assert_int_equal(config_cache_path(path, sizeof(path), "texts/a", &m),
                     ERR_NOTFOUND);
    setenv("HOME", "/home/x", 1);
    assert_int_equal(config_cache_path(path, sizeof(path), "texts/a", &m), OK);
    assert_string_equal(path, "/home/x/.cache/ebb/texts/a");
    assert_int_equal(config_cache_path(path, 10, "texts/a", &m), ERR_INVAL);
    setenv("XDG_CACHE_HOME", "", 1); /* as if it were not set */
    assert_int_equal(config_cache_path(path, sizeof(path), "texts/a", &m), OK);
    assert_string_equal(path, "/home/x/.cache/ebb/texts/a");
    setenv("XDG_CACHE_HOME", "/c", 1);
    assert_int_equal(config_cache_path(path, sizeof(path), "texts/a", &m), OK);
    assert_string_equal(path, "/c/ebb/texts/a");
    for (int i = 0; i < 2; i++) {
        if (old[i])
            setenv(names[i], old[i], 1);
        else
            unsetenv(names[i]);
        free(old[i]);
    }
}

static int set_up(void **state)
{
    (void)state;
    int a = mkstemp(model_file), b = mkstemp(conf_file);
    if (a < 0 || b < 0)
        return -1;
    close(a);
    close(b);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(model_file) | unlink(conf_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_given_is_the_documented_default),
        cmocka_unit_test(a_flag_beats_a_variable_beats_the_file),
        cmocka_unit_test(a_list_replaces_the_one_below),
        cmocka_unit_test(files_of_the_cache_folder),
        cmocka_unit_test(sizes_have_units_and_percentages),
        cmocka_unit_test(times_need_a_unit),
        cmocka_unit_test(unknown_options_are_named_with_the_nearest),
        cmocka_unit_test(unknown_values_are_named_with_the_nearest),
        cmocka_unit_test(what_is_kept_and_what_forgets_must_fit_together),
        cmocka_unit_test(it_is_known_whether_columns_were_said_to_be_off),
        cmocka_unit_test(the_settings_can_be_shown),
        cmocka_unit_test(the_file_has_comments_and_its_keys_are_checked),
        cmocka_unit_test(the_file_may_be_named_by_a_variable),
        cmocka_unit_test(rules_between_options_hold),
        cmocka_unit_test(a_name_or_list_that_is_empty_is_refused),
        cmocka_unit_test(unknown_variables_are_a_warning),
        cmocka_unit_test(without_a_model_the_cached_default_is_taken),
        cmocka_unit_test(unknown_memory_only_matters_for_percentages),
        cmocka_unit_test(help_is_asked_for_wherever_it_stands),
        cmocka_unit_test(the_example_file_says_what_the_defaults_are),
        cmocka_unit_test(the_real_environment_is_read),
    };
    return cmocka_run_group_tests_name("config", tests, set_up, tear_down);
}
