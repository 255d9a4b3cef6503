#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"

static const int64_t NOON = 1769860800123456; /* 2026-01-31T12:00:00.123Z */

static void rendered(struct buf *b, enum log_format format, const char *event,
                     const struct log_field *field, size_t n)
{
    struct log_record r = {LOG_LEVEL_WARN, NOON, event, field, n};
    buf_clear(b);
    assert_int_equal(log_render(b, format, &r), OK);
}

static void a_record_is_one_line_of_text(void **state)
{
    (void)state;
    struct buf b = {0};
    const struct log_field f[] = {
        log_str("id", "req_1"),  log_int("n", -5),
        log_num("ms", 1.5),      log_bool("lossy", false),
        log_str("who", "a \"b"), log_str("none", NULL),
        log_str("empty", ""),    log_num("bad", (double)NAN),
    };
    rendered(&b, LOG_FORMAT_TEXT, "it is done", f, 8);
    assert_string_equal(b.data,
                        "2026-01-31T12:00:00.123Z warn it is done id=req_1 "
                        "n=-5 ms=1.5 lossy=false who=\"a \\\"b\" none=- "
                        "empty=\"\" bad=\"nan\"\n");
    buf_fini(&b);
}

static void a_json_record_parses_with_all_its_values(void **state)
{
    (void)state;
    struct buf b = {0};
    const struct log_field f[] = {
        log_str("id", "x\ny\xFF\x1b[31m"),
        log_int("n", INT64_MAX),
        log_num("inf", (double)INFINITY),
        log_bool("on", true),
        log_str("none", NULL),
    };
    rendered(&b, LOG_FORMAT_JSON, "e\"v", f, 5);
    assert_ptr_equal(strchr(b.data, '\n'), b.data + b.len - 1);
    cJSON *v = NULL;
    assert_int_equal(json_parse(&v, b.data, b.len, NULL), OK);
    assert_string_equal(json_get(v, "event")->valuestring, "e\"v");
    assert_string_equal(json_get(v, "level")->valuestring, "warn");
    assert_string_equal(json_get(v, "time")->valuestring,
                        "2026-01-31T12:00:00.123Z");
    assert_string_equal(json_get(v, "id")->valuestring,
                        "x\ny\xEF\xBF\xBD\x1b[31m");
    int64_t n = 0;
    assert_int_equal(json_int64(json_get(v, "n"), &n), OK);
    assert_true(n == INT64_MAX);
    assert_true(cJSON_IsTrue(json_get(v, "on")));
    assert_true(cJSON_IsNull(json_get(v, "none")));
    cJSON_Delete(v);
    buf_fini(&b);
}

static void no_value_can_start_a_line_or_move_the_cursor(void **state)
{
    (void)state;
    struct buf b = {0};
    for (int c = 1; c < 256; c++) {
        char value[] = {'a', (char)c, 'b', '\0'};
        const struct log_field f[] = {log_str("v", value)};
        for (int format = 0; format < 2; format++) {
            rendered(&b, (enum log_format)format, value, f, 1);
            assert_true(utf8_is_valid(b.data, b.len));
            for (size_t i = 0; i + 1 < b.len; i++)
                assert_true((unsigned char)b.data[i] >= 0x20 &&
                            b.data[i] != 0x7F);
        }
    }
    buf_fini(&b);
}

static void a_long_value_is_cut_and_marked(void **state)
{
    (void)state;
    struct buf b = {0};
    char *value = malloc(100001);
    for (size_t i = 0; i < 100000; i += 2)
        memcpy(value + i, "\xC3\xA9", 3);
    const struct log_field f[] = {log_str("v", value)};
    rendered(&b, LOG_FORMAT_JSON, "e", f, 1);
    assert_true(b.len < LOG_VALUE_MAX + 200);
    assert_non_null(strstr(b.data, "\xC3\xA9...\""));
    assert_null(strstr(b.data, "\xEF\xBF\xBD"));
    free(value);
    buf_fini(&b);
}

enum { WRITERS = 4, LINES = 200 };

static void *writer(void *arg)
{
    const char *name = arg;
    for (int i = 0; i < LINES; i++)
        log_event(LOG_LEVEL_INFO, "line", log_str("by", name), log_int("i", i));
    return NULL;
}

/* stderr goes to a file meanwhile; every line of it must be whole. */
static void lines_of_several_threads_never_mix(void **state)
{
    (void)state;
    static const char *const name[WRITERS] = {"a", "b", "c", "d"};
    pthread_t t[WRITERS];
    FILE *f = tmpfile();
    int saved = dup(2);
    fflush(stderr);
    dup2(fileno(f), 2);
    log_setup(LOG_LEVEL_INFO, LOG_FORMAT_JSON);
    for (int i = 0; i < WRITERS; i++)
        pthread_create(&t[i], NULL, writer, (void *)(uintptr_t)name[i]);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(t[i], NULL);
    log_event(LOG_LEVEL_DEBUG, "too low", log_int("i", 0));
    log_setup(LOG_LEVEL_OFF, LOG_FORMAT_JSON);
    log_msg(LOG_LEVEL_ERROR, "nothing at all");
    log_setup(LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(f);
    char line[512];
    int n = 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        cJSON *v = NULL;
        assert_int_equal(json_parse(&v, line, strlen(line), NULL), OK);
        assert_string_equal(json_get(v, "event")->valuestring, "line");
        cJSON_Delete(v);
        n++;
    }
    fclose(f);
    assert_int_equal(n, WRITERS * LINES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_one_line_of_text),
        cmocka_unit_test(a_json_record_parses_with_all_its_values),
        cmocka_unit_test(no_value_can_start_a_line_or_move_the_cursor),
        cmocka_unit_test(a_long_value_is_cut_and_marked),
        cmocka_unit_test(lines_of_several_threads_never_mix),
    };
    return cmocka_run_group_tests_name("base/log", tests, NULL, NULL);
}
