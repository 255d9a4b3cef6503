#include "server_bench.h"

#include "base/file.h"
#include "server/metrics.h"
#include "server/metrics_text.h"

static void labels_are_escaped(void **state)
{
    struct buf out = {0};
    struct metrics_text t = {&out, false};
    const struct metrics_label labels[] = {
        {"a", "x\"y\\z\n"}, {"b", NULL}, {NULL, NULL}};
    (void)state;
    assert_int_equal(metrics_text_labels(&t, "n", labels), OK);
    assert_int_equal(metrics_text_uint(&t, UINT64_MAX), OK);
    assert_string_equal(
        out.data, "n{a=\"x\\\"y\\\\z\\n\",b=\"\"} 18446744073709551615\n");
    buf_fini(&out);
}

static void numbers_need_not_be_finite(void **state)
{
    struct buf out = {0};
    struct metrics_text t = {&out, false};
    (void)state;
    assert_int_equal(metrics_text_real(&t, -0.25), OK);
    assert_int_equal(metrics_text_real(&t, -INFINITY), OK);
    assert_int_equal(metrics_text_real(&t, INFINITY), OK);
    assert_int_equal(metrics_text_real(&t, NAN), OK);
    assert_string_equal(out.data, " -0.25\n -Inf\n +Inf\n NaN\n");
    buf_fini(&out);
}

static void a_histogram_is_cumulative(void **state)
{
    const double le[] = {0.25, 1, 20};
    const struct engine_histogram h = {
        .n = 3, .le = le, .count = {2, 0, 5, 1}, .sum = 12.5};
    struct buf out = {0};
    struct metrics_text t = {&out, true};
    (void)state;
    assert_int_equal(metrics_text_histogram(&t, "x_seconds", "Help.", &h), OK);
    assert_int_equal(metrics_text_end(&t), OK);
    assert_string_equal(out.data, "# HELP x_seconds Help.\n"
                                  "# TYPE x_seconds histogram\n"
                                  "x_seconds_bucket{le=\"0.25\"} 2\n"
                                  "x_seconds_bucket{le=\"1.0\"} 2\n"
                                  "x_seconds_bucket{le=\"20.0\"} 7\n"
                                  "x_seconds_bucket{le=\"+Inf\"} 8\n"
                                  "x_seconds_sum 12.5\n"
                                  "x_seconds_count 8\n"
                                  "# EOF\n");
    buf_fini(&out);
}

static void a_counters_family_is_named_by_the_format(void **state)
{
    struct buf out = {0};
    struct metrics_text t = {&out, false};
    (void)state;
    assert_int_equal(metrics_text_family(&t, "x", METRICS_COUNTER, "H."), OK);
    t.openmetrics = true;
    assert_int_equal(metrics_text_family(&t, "x", METRICS_COUNTER, "H."), OK);
    assert_string_equal(out.data, "# HELP x_total H.\n# TYPE x_total counter\n"
                                  "# HELP x H.\n# TYPE x counter\n");
    buf_fini(&out);
}

static void the_format_follows_the_accept_header(void **state)
{
    (void)state;
    assert_false(metrics_wants_openmetrics(NULL));
    assert_false(metrics_wants_openmetrics("text/plain; version=0.0.4"));
    assert_true(metrics_wants_openmetrics(
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1"));
    assert_non_null(strstr(metrics_content_type(false), "version=0.0.4"));
    assert_non_null(strstr(metrics_content_type(true), "openmetrics"));
}

/* The value of the line that begins so; fails without one. */
static double value_of(const char *text, const char *begin)
{
    const char *at = strstr(text, begin);
    if (!at)
        fail_msg("no sample %s", begin);
    return strtod(at + strlen(begin), NULL);
}

static void requests_are_counted_by_route_and_outcome(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    const char *bodies[] = {
        "{\"model\":\"toy\",\"prompt\":\"abc\",\"max_tokens\":5,"
        "\"ignore_eos\":true}",
        "{\"model\":\"toy\",\"prompt\":\"abc\",\"max_tokens\":7,"
        "\"ignore_eos\":true}",
        "{\"model\":\"toy\",\"temperature\":9}",
    };
    for (int i = 0; i < 3; i++) {
        struct buf answer = bench_ask(&b, "/v1/completions", bodies[i]);
        buf_fini(&answer);
    }
    struct buf answer = bench_get(&b, "GET /metrics HTTP/1.1");
    const char *t = answer.data;
    assert_true(value_of(t, "\nebb_requests_total{tenant=\"default\",route="
                            "\"completions\",outcome=\"ok\"} ") == 2);
    assert_true(value_of(t, "\nebb_requests_total{tenant=\"default\",route="
                            "\"completions\",outcome=\"bad_request\"} ") == 1);
    assert_true(value_of(t, "\nebb_generation_tokens_total{tenant="
                            "\"default\"} ") == 12);
    assert_true(value_of(t, "\nebb_prompt_tokens_total{tenant=\"default\"} ") ==
                6);
    double sum = value_of(t, "\nebb_kv_bytes{state=\"live\"} ") +
                 value_of(t, "\nebb_kv_bytes{state=\"idle\"} ") +
                 value_of(t, "\nebb_kv_bytes{state=\"prefix\"} ") +
                 value_of(t, "\nebb_kv_bytes{state=\"reserved\"} ") +
                 value_of(t, "\nebb_kv_bytes{state=\"free\"} ");
    assert_true(sum == value_of(t, "\nebb_kv_budget_bytes "));
    assert_true(value_of(t, "\nebb_request_seconds_count ") == 2);
    assert_true(value_of(t, "\nebb_sessions{tenant=\"default\",state="
                            "\"prefix\"} ") >= 1);
    assert_true(value_of(t, "\nebb_sessions{tenant=\"default\",state="
                            "\"live\"} ") == 0);
    buf_fini(&answer);
    bench_stop(&b);
}

enum { QUEUE_US = 100 * 1000 };

static void one_at_a_time(struct engine_options *o)
{
    o->max_running = 1;
    o->queue_us = QUEUE_US;
}

/* A stream has begun by then, so its error is an event. */
static void who_waited_too_long_is_rejected(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, one_at_a_time, NULL);
    int first = bench_connect(&b);
    atomic_store(&b.toy.toy.is_held, true);
    bench_post(first, "/v1/completions",
               "{\"model\":\"toy\",\"prompt\":\"abc\",\"max_tokens\":200,"
               "\"ignore_eos\":true}");
    toy_hold(&b.toy.toy);
    int second = bench_connect(&b), third = bench_connect(&b);
    bench_post(second, "/v1/completions",
               "{\"model\":\"toy\",\"prompt\":\"bcd\"}");
    bench_post(third, "/v1/completions",
               "{\"model\":\"toy\",\"prompt\":\"cde\",\"stream\":true}");
    bench_wait_running(&b, 1, 2);
    toy_sleep(QUEUE_US + QUEUE_US / 2);
    atomic_store(&b.toy.toy.is_held, false);
    struct buf answer = bench_rest(second);
    assert_non_null(strstr(answer.data, "HTTP/1.1 429"));
    assert_non_null(strstr(answer.data, "Retry-After: "));
    buf_fini(&answer);
    answer = bench_rest(third);
    assert_non_null(strstr(answer.data, "data: {\"error\":{\"message\":\"The "
                                        "request waited"));
    assert_non_null(strstr(answer.data, "data: [DONE]"));
    assert_null(strstr(answer.data, "choices"));
    buf_fini(&answer);
    answer = bench_rest(first);
    assert_non_null(strstr(answer.data, "\"completion_tokens\":200"));
    buf_fini(&answer);
    answer = bench_get(&b, "GET /metrics HTTP/1.1");
    const char *t = answer.data;
    assert_true(value_of(t, "\nebb_requests_total{tenant=\"default\",route="
                            "\"completions\",outcome=\"rejected\"} ") == 2);
    assert_true(value_of(t, "\nebb_admission_rejections_total{tenant="
                            "\"default\",reason=\"queue_timeout\"} ") == 2);
    assert_true(value_of(t, "\nebb_admission_rejections_total{tenant="
                            "\"default\",reason=\"kv_timeout\"} ") == 0);
    assert_true(value_of(t, "\nebb_requests_waiting{tenant=\"default\"} ") ==
                0);
    assert_true(value_of(t, "\nebb_queue_seconds_count ") == 1);
    buf_fini(&answer);
    bench_stop(&b);
}

/* Names that follow `mark`, each with a newline behind it. */
static struct buf names_after(const char *text, const char *mark)
{
    struct buf out = {0};
    for (const char *at = text; (at = strstr(at, mark)) != NULL;) {
        at += strlen(mark);
        assert_int_equal(buf_append(&out, at, strcspn(at, " `\n")), OK);
        assert_int_equal(buf_putc(&out, '\n'), OK);
    }
    return out;
}

static void the_page_lists_what_is_served(void **state)
{
    struct bench b;
    struct buf page = {0};
    (void)state;
    assert_int_equal(file_read_all(&page, "docs/metrics.md", 1 << 20, NULL),
                     OK);
    bench_start(&b, 2048, NULL, NULL);
    struct buf answer = bench_get(&b, "GET /metrics HTTP/1.1");
    struct buf served = names_after(answer.data, "\n# TYPE ");
    struct buf listed = names_after(page.data, "\n| `");
    assert_true(served.len > 400);
    assert_string_equal(served.data, listed.data);
    buf_fini(&served);
    buf_fini(&listed);
    buf_fini(&answer);
    buf_fini(&page);
    bench_stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_escaped),
        cmocka_unit_test(numbers_need_not_be_finite),
        cmocka_unit_test(a_histogram_is_cumulative),
        cmocka_unit_test(a_counters_family_is_named_by_the_format),
        cmocka_unit_test(the_format_follows_the_accept_header),
        cmocka_unit_test(the_page_lists_what_is_served),
        cmocka_unit_test(requests_are_counted_by_route_and_outcome),
        cmocka_unit_test(who_waited_too_long_is_rejected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
