#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/rng.h"

static cJSON *parsed(const char *text)
{
    cJSON *v = NULL;
    struct errmsg m = {""};
    enum err rc = json_parse(&v, text, strlen(text), &m);
    if (rc != OK)
        fail_msg("%s: %s", text, m.text);
    return v;
}

static void refused_n(const char *text, size_t n, const char *word)
{
    cJSON *v = NULL;
    struct errmsg m = {""};
    assert_int_equal(json_parse(&v, text, n, &m), ERR_INVAL);
    assert_null(v);
    if (strstr(m.text, word) == NULL)
        fail_msg("'%s' should say '%s'", m.text, word);
}

static void refused(const char *text, const char *word)
{
    refused_n(text, strlen(text), word);
}

static void what_is_no_json_is_refused_with_the_byte(void **state)
{
    (void)state;
    refused("", "empty");
    refused(" \n", "empty");
    refused("{", "too early");
    refused("{\"a\":}", "byte 5");
    refused("{'a': 1}", "byte");
    refused("hello", "byte 0");
    refused("{\"a\":\"\n", "byte 5 does not end");
    refused("[1,]", "byte 3");
    refused("{\"a\":1,}", "byte");
    refused("[1 2]", "byte 3");
    refused("\"abc\\", "does not end");
    refused("\"\\u12\"", "byte");
    refused("\"\\q\"", "byte");
    refused("]", "byte 0");
    refused("[}", "byte 1");
}

static void bytes_after_the_document_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":1} x", "byte 8");
    refused("{}{}", "byte 2");
    refused("1]", "byte 1");
    refused_n("{}\0", 3, "NUL at byte 2");
    cJSON_Delete(parsed("{} \r\n\t "));
    cJSON_Delete(parsed("\xEF\xBB\xBF{}"));
}

static void bytes_that_are_not_utf8_are_named_by_offset(void **state)
{
    (void)state;
    refused("\"caf\xe9\"", "UTF-8 at byte 4");
    refused("{\"\xc0\xaf\":1}", "UTF-8 at byte 2");
    refused("\"\xf0\x9f\x99", "UTF-8 at byte 1");
    refused("[] \xff", "UTF-8 at byte 3");
    refused("\"\xed\xa0\x80\"", "UTF-8 at byte 1");
}

static void nuls_are_refused_raw_and_escaped(void **state)
{
    (void)state;
    refused_n("\"a\0b\"", 5, "NUL at byte 2");
    refused("\"x\\u0000y\"", "u0000 at byte 2");
    cJSON *v = parsed("\"x\\\\u0000y\""); /* an escaped backslash */
    assert_string_equal(v->valuestring, "x\\u0000y");
    cJSON_Delete(v);
}

static void lone_surrogates_become_the_replacement_character(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } row[] = {
        {"\"half \\ud83d end\"", "half \xEF\xBF\xBD end"},
        {"\"\\ud83d\"", "\xEF\xBF\xBD"},
        {"\"\\uDE00x\"", "\xEF\xBF\xBDx"},
        {"\"\\ud83d\\ud83d\\ude00\"", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
        {"\"\\ud83d\\u0041\"", "\xEF\xBF\xBD"
                               "A"},
        {"\"\\ud83d\\n\"", "\xEF\xBF\xBD\n"},
        {"\"\\ud83d\\ude00\"", "\xF0\x9F\x98\x80"},
        {"\"\\u00e9\\uFFFF\"", "\xC3\xA9\xEF\xBF\xBF"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        cJSON *v = parsed(row[i].in);
        assert_string_equal(v->valuestring, row[i].out);
        cJSON_Delete(v);
    }
}

static char *nested(size_t depth)
{
    char *text = malloc(2 * depth + 1);
    memset(text, '[', depth);
    memset(text + depth, ']', depth);
    text[2 * depth] = '\0';
    return text;
}

static void nesting_up_to_1000_passes_and_beyond_is_refused(void **state)
{
    (void)state;
    char *text = nested(1000);
    cJSON_Delete(parsed(text));
    free(text);
    static const size_t deep[] = {1001, 200000};
    for (int i = 0; i < 2; i++) {
        text = nested(deep[i]);
        refused(text, "1000 levels");
        refused_n(text, deep[i], "1000 levels");
        free(text);
    }
}

static void numbers_that_are_none_are_refused(void **state)
{
    (void)state;
    refused("1e400", "too large");
    refused("[-1e999]", "byte 1");
    refused("NaN", "byte 0");
    refused("{\"a\":Infinity}", "byte 5");
    refused("01", "'01' at byte 0");
    refused("[1.]", "'1.' at byte 1");
    refused("-", "'-'");
    refused("1e", "'1e'");
    refused("+1", "byte 0");
    refused(".5", "byte 0");
    refused("1.2.3", "'1.2.3'");
    cJSON *v = parsed("[1e-400, -0.5, 1E+2, 0, 1.7976931348623157e308]");
    assert_true(cJSON_GetArrayItem(v, 0)->valuedouble == 0);
    assert_true(cJSON_GetArrayItem(v, 2)->valuedouble == 100);
    assert_true(cJSON_GetArrayItem(v, 4)->valuedouble ==
                0x1.fffffffffffffp1023);
    cJSON_Delete(v);
}

static void a_number_of_400_digits_is_read_like_strtod_does(void **state)
{
    (void)state;
    char text[512];
    memset(text, '1', sizeof(text));
    memcpy(text, "[0.", 3);
    memcpy(text + 400, ",7 ]", 5);
    cJSON *v = parsed(text);
    assert_true(cJSON_GetArrayItem(v, 0)->valuedouble ==
                strtod(text + 1, NULL));
    assert_true(cJSON_GetArrayItem(v, 1)->valuedouble == 7);
    cJSON_Delete(v);
    memset(text, '1', 400);
    text[400] = '\0';
    refused(text, "too large");
}

static void duplicate_keys_are_named(void **state)
{
    (void)state;
    refused("{\"a\":1,\"b\":2,\"a\":3}", "\"a\"");
    refused("{\"x\":[{\"k\":1,\"\\u006b\":2}]}", "\"k\"");
    refused("{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,"
            "\"8\":0,\"9\":0,\"q\":0,\"10\":0,\"q\":0}",
            "\"q\"");
    cJSON_Delete(parsed("{\"a\":{\"a\":1},\"A\":[{\"a\":1},{\"a\":1}]}"));
}

/* Time of this thread alone, for an object of n keys. */
static double seconds_for_keys(int n)
{
    struct buf b = {0};
    struct timespec start, end;
    assert_int_equal(buf_putc(&b, '{'), OK);
    for (int i = 0; i < n; i++)
        assert_int_equal(buf_printf(&b, "%s\"k%d\":%d", i ? "," : "", i, i),
                         OK);
    assert_int_equal(buf_putc(&b, '}'), OK);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    cJSON *v = parsed(b.data);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    cJSON_Delete(v);
    buf_fini(&b);
    return (double)(end.tv_sec - start.tv_sec) +
           (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
}

static void a_hundred_thousand_keys_take_no_quadratic_time(void **state)
{
    (void)state;
    double few = seconds_for_keys(5000);
    for (int i = 0; i < 4; i++)
        few = fmin(few, seconds_for_keys(5000));
    double many = seconds_for_keys(100000);
    /* 20 times the keys: in quadratic time it would be 400. */
    print_message("%.4f s and %.4f s\n", few, many);
    assert_true(many < 100 * few);
}

static void too_many_values_are_refused(void **state)
{
    (void)state;
    size_t n = (size_t)JSON_VALUES_MAX;
    char *text = malloc(2 * n + 4);
    for (size_t i = 0; i < 2 * n; i += 2)
        memcpy(text + i, "0,", 2);
    text[0] = '[';
    memcpy(text + 2 * n, "0]", 3);
    refused(text, "values");
    free(text);
}

static void getters_mind_the_case_and_null(void **state)
{
    (void)state;
    cJSON *v = parsed("{\"Seed\":1,\"seed\":2,\"none\":null}");
    assert_true(json_get(v, "seed")->valuedouble == 2);
    assert_true(json_get(v, "Seed")->valuedouble == 1);
    assert_null(json_get(v, "SEED"));
    assert_non_null(json_get(v, "none"));
    assert_null(json_get_set(v, "none"));
    assert_non_null(json_get_set(v, "seed"));
    assert_null(json_get(NULL, "a"));
    assert_null(json_get(json_get(v, "seed"), "a"));
    cJSON_Delete(v);
}

static void whole_numbers_are_exact_over_all_of_int64(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum err rc;
        int64_t v;
    } row[] = {
        {"0", OK, 0},
        {"-7", OK, -7},
        {"3.0", OK, 3},
        {"3e2", OK, 300},
        {"9007199254740993", OK, 9007199254740993},
        {"-9007199254740993.000", OK, -9007199254740993},
        {"9223372036854775807", OK, INT64_MAX},
        {"-9223372036854775808", OK, INT64_MIN},
        {"9223372036854775808", ERR_UNSUPPORTED, 0},
        {"-9223372036854775809", ERR_UNSUPPORTED, 0},
        {"1e18", OK, 1000000000000000000},
        {"1e19", ERR_UNSUPPORTED, 0},
        {"1e300", ERR_UNSUPPORTED, 0},
        {"3.5", ERR_INVAL, 0},
        {"0.1234567890123456789", ERR_INVAL, 0},
        {"\"3\"", ERR_INVAL, 0},
        {"true", ERR_INVAL, 0},
        {"null", ERR_INVAL, 0},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        cJSON *v = parsed(row[i].text);
        int64_t got = 0;
        assert_int_equal(json_int64(v, &got), row[i].rc);
        assert_true(got == row[i].v);
        cJSON_Delete(v);
    }
    int64_t none;
    assert_int_equal(json_int64(NULL, &none), ERR_INVAL);
}

static void digits_stay_with_their_numbers_wherever_they_stand(void **state)
{
    (void)state;
    cJSON *v = parsed("{\"1\":\"22 \\\" 33\",\"a\":[1,{\"9\":-2},"
                      "1234567890123456789],\"b\":5.5,"
                      "\"c\":-8765432109876543210,\"d\":4}");
    int64_t got = 0;
    const cJSON *a = json_get(v, "a");
    assert_int_equal(json_int64(cJSON_GetArrayItem(a, 2), &got), OK);
    assert_true(got == 1234567890123456789);
    assert_int_equal(json_int64(json_get(v, "c"), &got), OK);
    assert_true(got == -8765432109876543210);
    assert_int_equal(json_int64(json_get(v, "d"), &got), OK);
    assert_true(got == 4);
    assert_null(json_get(v, "b")->valuestring);
    struct buf b = {0};
    assert_int_equal(json_put_value(&b, v), OK);
    assert_string_equal(b.data, "{\"1\":\"22 \\\" 33\",\"a\":[1,{\"9\":-2},"
                                "1234567890123456789],\"b\":5.5,"
                                "\"c\":-8765432109876543210,\"d\":4}");
    buf_fini(&b);
    cJSON_Delete(v);
}

static void strings_are_written_as_one_line_of_valid_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } row[] = {
        {"", 0, "\"\""},
        {"a\"b\\c", 5, "\"a\\\"b\\\\c\""},
        {"\n\r\t\b\f\x01", 6, "\"\\n\\r\\t\\b\\f\\u0001\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\x7f\xC2\x85\xE2\x80\xA8\xE2\x80\xA9", 9,
         "\"\\u007f\\u0085\\u2028\\u2029\""},
        {"caf\xe9", 4, "\"caf\xEF\xBF\xBD\""},
        {"\xF0\x9F\x98\x80\xE2\x82", 6, "\"\xF0\x9F\x98\x80\xEF\xBF\xBD\""},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct buf b = {0};
        assert_int_equal(json_put_string(&b, row[i].in, row[i].n), OK);
        assert_string_equal(b.data, row[i].out);
        buf_fini(&b);
    }
}

static void random_strings_come_back_as_they_were(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 5);
    for (int round = 0; round < 2000; round++) {
        char text[64];
        size_t n = (size_t)rng_below(&r, sizeof(text) - 1);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(1 + rng_below(&r, 127));
        text[n] = '\0';
        struct buf b = {0};
        assert_int_equal(json_put_string(&b, text, n), OK);
        assert_null(strchr(b.data, '\n'));
        cJSON *v = parsed(b.data);
        assert_string_equal(v->valuestring, text);
        cJSON_Delete(v);
        buf_fini(&b);
    }
}

static void doubles_read_back_the_same_and_infinities_are_refused(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 6);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = rng_next(&r);
        double d;
        float f;
        memcpy(&d, &bits, sizeof(d));
        memcpy(&f, &bits, sizeof(f));
        struct buf b = {0};
        assert_int_equal(json_put_double(&b, d), isfinite(d) ? OK : ERR_INVAL);
        if (isfinite(d))
            assert_true(strtod(b.data, NULL) == d);
        else
            assert_int_equal(b.len, 0);
        buf_clear(&b);
        assert_int_equal(json_put_float(&b, f), isfinite(f) ? OK : ERR_INVAL);
        if (isfinite(f))
            assert_true(strtof(b.data, NULL) == f);
        buf_fini(&b);
    }
    struct buf b = {0};
    assert_int_equal(json_put_double(&b, 0.1), OK);
    assert_int_equal(json_put_float(&b, 0.1f), OK);
    assert_string_equal(b.data, "0.10.1");
    buf_fini(&b);
}

static void random_bytes_never_crash_the_parser(void **state)
{
    (void)state;
    static const char bits[] = "{}[]\",:\\u0dD8e-.1 tnfa\xC3\xA9";
    struct rng r;
    rng_seed(&r, 7);
    for (int round = 0; round < 50000; round++) {
        char text[40];
        size_t n = (size_t)rng_below(&r, sizeof(text));
        for (size_t i = 0; i < n; i++)
            text[i] = bits[rng_below(&r, sizeof(bits) - 1)];
        /* A block of its own size lets the sanitizer see a byte too many. */
        char *exact = malloc(n + 1);
        memcpy(exact, text, n);
        cJSON *v = NULL;
        if (json_parse(&v, exact, n, NULL) == OK)
            cJSON_Delete(v);
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_json_is_refused_with_the_byte),
        cmocka_unit_test(bytes_after_the_document_are_refused),
        cmocka_unit_test(bytes_that_are_not_utf8_are_named_by_offset),
        cmocka_unit_test(nuls_are_refused_raw_and_escaped),
        cmocka_unit_test(lone_surrogates_become_the_replacement_character),
        cmocka_unit_test(nesting_up_to_1000_passes_and_beyond_is_refused),
        cmocka_unit_test(numbers_that_are_none_are_refused),
        cmocka_unit_test(a_number_of_400_digits_is_read_like_strtod_does),
        cmocka_unit_test(duplicate_keys_are_named),
        cmocka_unit_test(a_hundred_thousand_keys_take_no_quadratic_time),
        cmocka_unit_test(too_many_values_are_refused),
        cmocka_unit_test(getters_mind_the_case_and_null),
        cmocka_unit_test(whole_numbers_are_exact_over_all_of_int64),
        cmocka_unit_test(digits_stay_with_their_numbers_wherever_they_stand),
        cmocka_unit_test(strings_are_written_as_one_line_of_valid_utf8),
        cmocka_unit_test(random_strings_come_back_as_they_were),
        cmocka_unit_test(doubles_read_back_the_same_and_infinities_are_refused),
        cmocka_unit_test(random_bytes_never_crash_the_parser),
    };
    return cmocka_run_group_tests_name("base/json", tests, NULL, NULL);
}
