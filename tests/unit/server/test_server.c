/* The HTTP side as a whole, before a model whose answers are known. */
#include "server_bench.h"

#include "base/rng.h"

#include "server/exchange.h"
#include "server/generate.h"
#include "server/job.h"
#include "server/prepare.h"
#include "server/reply.h"
#include "server/watch.h"

static const char hello[] =
    "{\"model\":\"toy\",\"temperature\":0,\"max_tokens\":24,"
    "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}";
static const char hello_stream[] =
    "{\"model\":\"toy\",\"temperature\":0,\"max_tokens\":24,\"stream\":true,"
    "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}";
/* Ends by itself only after 400 steps: with so much time between two of them
 * not while a test looks. */
enum { ENDLESS_STEP_US = 20000 };
static const char endless[] =
    "{\"model\":\"toy\",\"temperature\":0,\"ignore_eos\":true,"
    "\"max_tokens\":400,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
static const char endless_stream[] =
    "{\"model\":\"toy\",\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
    "\"max_tokens\":400,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";

/* What the toy says to the letters of text. */
static void answer_to(struct toy_answer *a, const char *text, uint32_t max)
{
    int32_t token[64];
    uint32_t n = 0;
    for (; *text; text++)
        token[n++] = *text - 'a';
    toy_answer(a, token, n, max, false);
}

static void a_chat_gets_the_models_answer(void **state)
{
    struct bench b;
    struct toy_answer wanted;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    answer_to(&wanted, "hello", 24);
    struct buf answer = bench_ask(&b, "/v1/chat/completions", hello);
    assert_int_equal(bench_status(&answer), 200);
    cJSON *tree = bench_json(&answer);
    const cJSON *choice = json_get(tree, "choices")->child;
    assert_string_equal(
        json_get(json_get(choice, "message"), "content")->valuestring,
        wanted.text);
    assert_string_equal(json_get(choice, "finish_reason")->valuestring,
                        wanted.finish == GEN_FINISH_STOP ? "stop" : "length");
    const cJSON *usage = json_get(tree, "usage");
    assert_int_equal(json_get(usage, "prompt_tokens")->valueint, 5);
    assert_int_equal(json_get(usage, "completion_tokens")->valueint, wanted.n);
    cJSON_Delete(tree);
    buf_fini(&answer);
    bench_stop(&b);
}

static void a_stream_says_the_same_as_the_whole(void **state)
{
    struct bench b;
    struct toy_answer wanted;
    struct buf text = {0};
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    answer_to(&wanted, "hello", 24);
    struct buf answer = bench_ask(&b, "/v1/chat/completions", hello_stream);
    assert_int_equal(bench_status(&answer), 200);
    static const char mark[] = "\"delta\":{\"content\":\"";
    for (const char *p = answer.data; (p = strstr(p, mark)) != NULL;) {
        p += sizeof(mark) - 1;
        assert_int_equal(buf_append(&text, p, strcspn(p, "\"")), OK);
    }
    assert_string_equal(text.data ? text.data : "", wanted.text);
    assert_non_null(strstr(answer.data, "data: [DONE]\n\n"));
    buf_fini(&text);
    buf_fini(&answer);
    bench_stop(&b);
}

static int64_t usage_of(struct buf answer, const char *key)
{
    assert_int_equal(bench_status(&answer), 200);
    cJSON *tree = bench_json(&answer);
    int64_t n = 0;
    assert_int_equal(json_int64(json_get(json_get(tree, "usage"), key), &n),
                     OK);
    cJSON_Delete(tree);
    buf_fini(&answer);
    return n;
}

static void the_template_sees_the_variables_of_a_request(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        static const char *const more[] = {
            "", ",\"chat_template_kwargs\":{\"enable_thinking\":false}",
            ",\"chat_template_kwargs\":{\"enable_thinking\":true}"};
        char body[300];
        snprintf(body, sizeof(body),
                 "{\"model\":\"toy\",\"max_tokens\":1,\"messages\":[{"
                 "\"role\":\"user\",\"content\":\"hello\"}]%s}",
                 more[i]);
        assert_int_equal(usage_of(bench_ask(&b, "/v1/chat/completions", body),
                                  "prompt_tokens"),
                         i == 2 ? 10 : 5);
    }
    bench_stop(&b);
}

/* For a text whose answer ends by itself. */
static void a_completion_can_go_on_behind_its_end(void **state)
{
    struct bench b;
    struct toy_answer a = {0};
    char text[3] = "aa", body[200];
    (void)state;
    for (int i = 0; i < 26 * 26; i++) {
        text[0] = (char)('a' + i / 26);
        text[1] = (char)('a' + i % 26);
        answer_to(&a, text, 64);
        if (a.finish == GEN_FINISH_STOP)
            break;
    }
    assert_int_equal(a.finish, GEN_FINISH_STOP);
    bench_start(&b, 2048, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof(body),
                 "{\"model\":\"toy\",\"temperature\":0,\"prompt\":\"%s\","
                 "\"max_tokens\":64,\"ignore_eos\":%s}",
                 text, i ? "true" : "false");
        assert_int_equal(usage_of(bench_ask(&b, "/v1/completions", body),
                                  "completion_tokens"),
                         i ? 64 : a.n);
    }
    bench_stop(&b);
}

static void a_completion_continues_text_and_ids(void **state)
{
    struct bench b;
    struct toy_answer wanted;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    answer_to(&wanted, "abc", 16);
    static const char *const prompts[] = {"\"abc\"", "[\"abc\"]", "[0,1,2]",
                                          "[[0,1,2]]"};
    for (int i = 0; i < 4; i++) {
        char body[200];
        snprintf(body, sizeof(body),
                 "{\"model\":\"toy\",\"temperature\":0,\"prompt\":%s}",
                 prompts[i]);
        struct buf answer = bench_ask(&b, "/v1/completions", body);
        assert_int_equal(bench_status(&answer), 200);
        cJSON *tree = bench_json(&answer);
        const cJSON *choice = json_get(tree, "choices")->child;
        assert_string_equal(json_get(choice, "text")->valuestring, wanted.text);
        cJSON_Delete(tree);
        buf_fini(&answer);
    }
    bench_stop(&b);
}

static void bad_requests_are_told_and_harm_nobody(void **state)
{
    static const struct {
        const char *path, *body;
        int status;
        const char *code;
    } row[] = {
        {"/v1/chat/completions", "{", 400, "invalid_json"},
        {"/v1/chat/completions", "", 400, "invalid_json"},
        {"/v1/chat/completions", "null", 400, "invalid_type"},
        {"/v1/chat/completions", "{}", 400, "missing_required_parameter"},
        {"/v1/chat/completions", "{\"model\":\"x\"}", 404, "model_not_found"},
        {"/v1/chat/completions", "{\"model\":\"toy\"}", 400,
         "missing_required_parameter"},
        {"/v1/chat/completions",
         "{\"model\":\"toy\",\"messages\":[{\"role\":\"user\",\"content\":"
         "\"123\"}]}",
         400, "invalid_value"}, /* the toy knows letters only */
        {"/v1/completions", "{\"model\":\"toy\",\"prompt\":[30]}", 400,
         "invalid_value"},
        {"/v1/completions", "{\"model\":\"toy\",\"prompt\":[\"a\",\"b\"]}", 400,
         "unsupported_parameter"},
        {"/v1/nope", "{}", 404, "unknown_url"},
        {"/v1/models", "{}", 405, "method_not_allowed"},
    };
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        bench_refused(bench_ask(&b, row[i].path, row[i].body), row[i].status,
                      row[i].code);
    struct buf answer = bench_ask(&b, "/v1/chat/completions", hello);
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    bench_stop(&b);
}

static void a_prompt_far_beyond_the_context_is_counted_in_part(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    const char *const head[] = {
        "{\"model\":\"toy\",\"messages\":[{\"role\":\"user\",\"content\":\"",
        "{\"model\":\"toy\",\"prompt\":\""};
    const char *const tail[] = {"\"}]}", "\"}"};
    const char *const path[] = {"/v1/chat/completions", "/v1/completions"};
    const char *const param[] = {"messages", "prompt"};
    const uint32_t context = b.o.max_context;
    for (int i = 0; i < 4; i++) {
        /* A little beyond it is counted to the end. */
        bool far = i >= 2;
        uint32_t n = far ? 3 * context : context + 9;
        struct buf body = {0};
        char words[80];
        assert_int_equal(buf_puts(&body, head[i % 2]), OK);
        for (uint32_t k = 0; k < n; k++)
            assert_int_equal(buf_putc(&body, 'a'), OK);
        assert_int_equal(buf_puts(&body, tail[i % 2]), OK);
        struct buf answer = bench_ask(&b, path[i % 2], body.data);
        assert_int_equal(bench_status(&answer), 400);
        cJSON *tree = bench_json(&answer);
        const cJSON *e = json_get(tree, "error");
        assert_string_equal(json_get(e, "code")->valuestring,
                            "context_length_exceeded");
        assert_string_equal(json_get(e, "param")->valuestring, param[i % 2]);
        assert_int_equal(json_get(e, "n_prompt_tokens")->valueint,
                         far ? 2 * context + 1 : n);
        const char *text = json_get(e, "message")->valuestring;
        snprintf(words, sizeof(words),
                 "This model's maximum context length is %u tokens", context);
        assert_non_null(strstr(text, words));
        assert_int_equal(strstr(text, "at least") != NULL, far);
        cJSON_Delete(tree);
        buf_fini(&answer);
        buf_fini(&body);
    }
    /* Whoever refused it, it counts. */
    struct buf metrics = bench_get(&b, "GET /metrics HTTP/1.1");
    assert_non_null(strstr(metrics.data, "reason=\"context_length\"} 4\n"));
    buf_fini(&metrics);
    bench_stop(&b);
}

static void a_body_above_the_limit_is_refused_at_once(void **state)
{
    static const char head[] =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 10000000\r\n\r\n{";
    static const char chunk_head[] =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Transfer-Encoding: chunked\r\n\r\n";
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    int fd = bench_connect(&b);
    bench_send(fd, head, sizeof(head) - 1);
    bench_refused(bench_rest(fd), 413, "request_too_large");
    /* A body that does not say how long it will be. */
    char piece[1024 + 8];
    memcpy(piece, "400\r\n", 5);
    memset(piece + 5, ' ', 1024);
    memcpy(piece + 5 + 1024, "\r\n", 2);
    fd = bench_connect(&b);
    bench_send(fd, chunk_head, sizeof(chunk_head) - 1);
    for (int i = 0; i < 80; i++)
        if (send(fd, piece, 1024 + 7, MSG_NOSIGNAL) < 0)
            break;
    bench_refused(bench_rest(fd), 413, "request_too_large");
    bench_stop(&b);
}

static void encodings_that_nobody_reads_are_415(void **state)
{
    static const char *const head[] = {"Content-Encoding: zstd",
                                       "Content-Type: multipart/form-data"};
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        char text[300];
        snprintf(text, sizeof(text),
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
                 "Connection: close\r\nContent-Length: 2\r\n\r\n{}",
                 head[i]);
        int fd = bench_connect(&b);
        bench_send(fd, text, strlen(text));
        struct buf answer = bench_rest(fd);
        assert_int_equal(bench_status(&answer), 415);
        buf_fini(&answer);
    }
    bench_stop(&b);
}

static void a_client_that_leaves_stops_the_work(void **state)
{
    static const char *const body[] = {endless, endless_stream};
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    atomic_store(&b.toy.toy.delay_us, ENDLESS_STEP_US);
    for (int stream = 0; stream < 2; stream++) {
        for (int reset = 0; reset < 2; reset++) {
            struct linger hard = {1, 0};
            int fd = bench_connect(&b);
            bench_post(fd, "/v1/chat/completions", body[stream]);
            bench_wait_running(&b, 1, 0);
            if (reset)
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
            close(fd);
            bench_wait_running(&b, 0, 0);
        }
    }
    struct engine_stats st;
    engine_stats(b.toy.e, &st);
    /* Not one of the four went on to its end. */
    assert_true(st.generation_tokens < 400);
    bench_stop(&b);
}

/* What came and the end come to the server together, so that it reads once. */
static void a_client_that_ends_in_the_middle_is_let_go(void **state)
{
    static const char *const part[] = {
        "",
        "GET",
        "\r\n\r\n",
        "GET /health HTTP/1.1\r\nHo",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    };
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        int64_t start = clock_us();
        int fd = bench_connect(&b);
        bench_send(fd, part[i], strlen(part[i]));
        shutdown(fd, SHUT_WR);
        struct buf rest = bench_rest(fd);
        assert_int_equal(rest.len, 0);
        buf_fini(&rest);
        assert_true(clock_us() - start < 15 * 1000000);
    }
    bench_stop(&b);
}

/* At all moments of a request's way, by chance; most of them are refused. */
static void clients_that_leave_at_once_harm_nobody(void **state)
{
    static const char *const body[] = {
        "{\"model\":\"toy\",\"temperature\":9}", "{", hello, endless_stream,
        "{\"model\":\"toy\",\"prompt\":\"abc\"}"};
    struct bench b;
    struct rng r;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    rng_seed(&r, 1);
    for (int i = 0; i < 1500; i++) {
        struct linger hard = {1, 0};
        int fd = bench_connect(&b);
        const char *path = i % 2 ? "/v1/completions" : "/v1/chat/completions";
        bench_post(fd, path, body[rng_below(&r, 5)]);
        if (rng_below(&r, 2))
            toy_sleep((unsigned)rng_below(&r, 300));
        if (rng_below(&r, 2))
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
        close(fd);
    }
    bench_wait_running(&b, 0, 0);
    struct buf answer = bench_ask(&b, "/v1/chat/completions", hello);
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    bench_stop(&b);
}

static void one_at_a_time(struct engine_options *o)
{
    o->max_running = 1;
    o->max_queue = 1;
}

static void a_queued_client_that_leaves_frees_its_place_only(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, one_at_a_time, NULL);
    atomic_store(&b.toy.toy.is_held, true);
    int first = bench_connect(&b), second = bench_connect(&b);
    bench_post(first, "/v1/chat/completions", hello);
    bench_wait_running(&b, 1, 0);
    bench_post(second, "/v1/chat/completions", hello_stream);
    /* A stream that waits has its status already. */
    struct buf head = bench_until(second, "\r\n\r\n");
    assert_int_equal(bench_status(&head), 200);
    buf_fini(&head);
    bench_wait_running(&b, 1, 1);
    bench_refused(bench_ask(&b, "/v1/chat/completions", hello), 429,
                  "rate_limit_exceeded");
    close(second);
    atomic_store(&b.toy.toy.is_held, false);
    struct buf answer = bench_rest(first);
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    bench_wait_running(&b, 0, 0);
    bench_stop(&b);
}

static void the_state_is_told_while_the_model_works(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    atomic_store(&b.toy.toy.is_held, true);
    int fd = bench_connect(&b);
    bench_post(fd, "/v1/chat/completions", endless);
    bench_wait_running(&b, 1, 0);
    struct buf answer = bench_get(&b, "GET /health HTTP/1.1");
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    answer = bench_get(&b, "GET /metrics HTTP/1.1");
    assert_non_null(
        strstr(answer.data, "\nebb_requests_running{tenant=\"default\"} 1\n"));
    buf_fini(&answer);
    atomic_store(&b.toy.toy.is_held, false);
    close(fd);
    bench_stop(&b);
}

static void a_draining_server_takes_nothing_and_ends_what_runs(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    atomic_store(&b.toy.toy.delay_us, ENDLESS_STEP_US);
    int stream = bench_connect(&b), whole = bench_connect(&b);
    bench_post(stream, "/v1/chat/completions", endless_stream);
    bench_post(whole, "/v1/chat/completions", endless);
    struct buf begin = bench_until(stream, "\"content\":\"");
    bench_wait_running(&b, 2, 0);
    assert_false(server_is_idle(b.server));
    server_drain(b.server);
    bench_refused(bench_ask(&b, "/v1/chat/completions", hello), 503,
                  "draining");
    bench_refused(bench_get(&b, "GET /health HTTP/1.1"), 503, "draining");
    server_detach_engine(b.server);
    toy_end(&b.toy.toy, b.toy.e);
    struct buf rest = bench_rest(stream);
    assert_non_null(strstr(rest.data, "data: {\"error\":{"));
    assert_non_null(strstr(rest.data, "data: [DONE]\n\n"));
    buf_fini(&rest);
    bench_refused(bench_rest(whole), 503, "draining");
    struct buf metrics = bench_get(&b, "GET /metrics HTTP/1.1");
    assert_non_null(strstr(metrics.data, "\nebb_engine_up 0\n"));
    /* Both unfinished answers; the one that came too late was not begun. */
    assert_non_null(
        strstr(metrics.data, "route=\"chat\",outcome=\"error\"} 2\n"));
    assert_non_null(
        strstr(metrics.data, "route=\"chat\",outcome=\"rejected\"} 1\n"));
    buf_fini(&metrics);
    buf_fini(&begin);
    int64_t until = clock_us() + TOY_PATIENCE_US;
    while (!server_is_idle(b.server) && clock_us() < until)
        toy_sleep(1000);
    assert_true(server_is_idle(b.server));
    server_free(b.server);
    prompt_free(b.prompt);
    toy_fini(&b.toy.toy);
}

static void a_server_can_end_while_clients_wait(void **state)
{
    struct bench b;
    int fd[4];
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    atomic_store(&b.toy.toy.delay_us, ENDLESS_STEP_US);
    fd[0] = bench_connect(&b); /* says nothing */
    fd[1] = bench_connect(&b);
    bench_send(fd[1], "POST /v1/completions HTTP/1.1\r\nContent-Le", 41);
    fd[2] = bench_connect(&b);
    bench_post(fd[2], "/v1/chat/completions", endless_stream);
    fd[3] = bench_connect(&b);
    bench_post(fd[3], "/v1/chat/completions", endless);
    bench_wait_running(&b, 2, 0);
    bench_stop(&b);
    for (int i = 0; i < 4; i++) {
        struct buf rest = bench_rest(fd[i]);
        buf_fini(&rest);
    }
}

static void many_clients_get_their_own_answers(void **state)
{
    enum { N = 40 };
    struct bench b;
    int fd[N];
    (void)state;
    bench_start(&b, 4096, NULL, NULL);
    for (int i = 0; i < N; i++) {
        char body[200];
        snprintf(body, sizeof(body),
                 "{\"model\":\"toy\",\"temperature\":0,\"prompt\":\"%c%c%c\"}",
                 'a' + i % 26, 'a' + i % 7, 'a' + i % 3);
        fd[i] = bench_connect(&b);
        bench_post(fd[i], "/v1/completions", body);
    }
    for (int i = 0; i < N; i++) {
        const char text[] = {(char)('a' + i % 26), (char)('a' + i % 7),
                             (char)('a' + i % 3), 0};
        struct toy_answer wanted;
        answer_to(&wanted, text, 16);
        struct buf answer = bench_rest(fd[i]);
        assert_int_equal(bench_status(&answer), 200);
        cJSON *tree = bench_json(&answer);
        assert_string_equal(
            json_get(json_get(tree, "choices")->child, "text")->valuestring,
            wanted.text);
        cJSON_Delete(tree);
        buf_fini(&answer);
    }
    bench_stop(&b);
}

static void request_ids_are_repeated_or_made(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    struct buf answer =
        bench_get(&b, "GET /health HTTP/1.1\r\nX-Request-ID: my-id.7");
    assert_non_null(strstr(answer.data, "\r\nx-request-id: my-id.7\r\n"));
    buf_fini(&answer);
    answer = bench_get(&b, "GET /nope HTTP/1.1\r\nX-Request-ID: my id");
    assert_non_null(strstr(answer.data, "\r\nx-request-id: req_"));
    buf_fini(&answer);
    bench_stop(&b);
}

static void pages_are_told_what_they_may_read(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    struct buf answer = bench_get(
        &b, "OPTIONS /v1/anything HTTP/1.1\r\nOrigin: http://localhost:3000\r\n"
            "Access-Control-Request-Headers: authorization, x-new");
    assert_int_equal(bench_status(&answer), 204);
    assert_non_null(strstr(answer.data, "\r\nAccess-Control-Allow-Origin: "
                                        "http://localhost:3000\r\n"));
    assert_non_null(strstr(answer.data, "\r\nAccess-Control-Allow-Headers: "
                                        "authorization, x-new\r\n"));
    assert_non_null(strstr(answer.data, "\r\nVary: Origin\r\n"));
    buf_fini(&answer);
    /* A browser that needs no header at all may say so. */
    answer = bench_get(
        &b, "OPTIONS /v1/anything HTTP/1.1\r\nOrigin: http://localhost:3000\r\n"
            "Access-Control-Request-Headers: ");
    assert_int_equal(bench_status(&answer), 204);
    assert_null(strstr(answer.data, "Access-Control-Allow-Headers"));
    buf_fini(&answer);
    answer = bench_get(&b, "GET /nope HTTP/1.1\r\nOrigin: https://evil.test");
    assert_null(strstr(answer.data, "Access-Control-Allow-Origin"));
    buf_fini(&answer);
    bench_stop(&b);
}

static void heads_are_judged_before_bodies(void **state)
{
    static const struct {
        const char *head;
        int status;
        const char *word;
    } row[] = {
        {"GET /health HTTP/1.1\r\nHost: evil.example", 403, "host_not_allowed"},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
         "Origin: https://evil.example\r\nContent-Type: text/plain\r\n"
         "Content-Length: 2",
         403, "permission_error"},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
         "Origin: null\r\nContent-Length: 2",
         403, "origin_not_allowed"},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
         "Origin: http://localhost:5173\r\nContent-Length: 2",
         400, "missing_required_parameter"},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
         "Content-Length: 2\r\nContent-Length: 1",
         400, "two Content-Length"},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
         "Content-Length : 2",
         400, "blank"},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
         "Transfer-Encoding\t: chunked",
         400, "blank"},
        {"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
         "Transfer-Encoding: gzip",
         400, "gzip"},
        {"GET /health%00x HTTP/1.1\r\nHost: localhost", 404, "/health%00x"},
        {"GET http://localhost:80/health HTTP/1.1\r\nHost: localhost", 200,
         "ok"},
        {"GET /health HTTP/1.1", 200, "ok"},
    };
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        int fd = bench_connect(&b);
        bench_send(fd, row[i].head, strlen(row[i].head));
        static const char end[] = "\r\nConnection: close\r\n\r\n{}";
        bench_send(fd, end, sizeof(end) - 1);
        struct buf answer = bench_rest(fd);
        if (bench_status(&answer) != row[i].status ||
            !strstr(answer.data, row[i].word))
            fail_msg("%s: %s", row[i].head, answer.data);
        buf_fini(&answer);
    }
    bench_stop(&b);
}

static void two_ways_to_tell_a_length_end_the_connection(void **state)
{
    static const char text[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        "2\r\n{}\r\n0\r\n\r\n"
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    int fd = bench_connect(&b);
    bench_send(fd, text, sizeof(text) - 1);
    struct buf answer = bench_rest(fd);
    assert_int_equal(bench_status(&answer), 400);
    assert_non_null(strstr(answer.data, "Connection: close"));
    assert_null(strstr(answer.data + 1, "HTTP/1.1"));
    buf_fini(&answer);
    bench_stop(&b);
}

static void a_port_in_use_is_told(void **state)
{
    struct bench b;
    struct server *second = NULL;
    struct errmsg m = {0};
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    struct server_options o = b.o;
    o.port = (uint16_t)b.port;
    assert_int_equal(server_new(&second, &o, &m), ERR_IO);
    assert_non_null(strstr(m.text, "127.0.0.1"));
    o.host = "no host has this name";
    assert_int_equal(server_new(&second, &o, &m), ERR_IO);
    assert_non_null(strstr(m.text, "no host has this name"));
    bench_stop(&b);
}

static void a_small_pool(struct server_options *o)
{
    o->pool_tokens = 20;
    o->forget.rules.policy = FORGET_STREAMINGLLM;
    o->forget.min_head = 5;
}

static void pins_have_a_limit(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, a_small_pool);
    static const struct {
        const char *kv;
        int status;
    } row[] = {
        {"{\"pin\":[\"system\"]}", 200}, /* 10 of 20 */
        {"{\"pin\":[\"user\"]}", 400},   /* 11 */
        {"{\"pin\":[\"user\"],\"policy\":\"exact\"}", 200},
        {"{\"pin\":[\"system\"],\"session_tokens\":15}", 200},
        {"{\"pin\":[\"system\"],\"session_tokens\":14}", 400},
        {"{\"pin\":[\"assistant\"],\"session_tokens\":5}", 200},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        char body[512];
        snprintf(body, sizeof(body),
                 "{\"model\":\"toy\",\"max_tokens\":2,\"kv\":%s,\"messages\":["
                 "{\"role\":\"system\",\"content\":\"abcdefghij\"},"
                 "{\"role\":\"user\",\"content\":\"\\nabcdefghijk\"}]}",
                 row[i].kv);
        struct buf answer = bench_ask(&b, "/v1/chat/completions", body);
        if (row[i].status == 400) {
            bench_refused(answer, 400, "pin_limit");
            continue;
        }
        assert_int_equal(bench_status(&answer), 200);
        buf_fini(&answer);
    }
    bench_stop(&b);
}

static void show_settings(struct server_options *o)
{
    o->config_json = "{\"kv_memory\":1}";
}

static void listen_to_all(struct server_options *o)
{
    o->host = "0.0.0.0";
}

static void bench_get_is(const struct bench *b, const char *head,
                         const char *body)
{
    struct buf answer = bench_get(b, head);
    assert_int_equal(bench_status(&answer), 200);
    assert_string_equal(strstr(answer.data, "\r\n\r\n") + 4, body);
    buf_fini(&answer);
}

static void the_operator_sees_settings_and_can_flush(void **state)
{
    struct bench b;
    struct engine_stats before, s;
    (void)state;
    bench_start(&b, 2048, NULL, show_settings);
    bench_get_is(&b, "GET /admin/config HTTP/1.1", "{\"kv_memory\":1}");
    engine_stats(b.toy.e, &before);
    struct buf answer =
        bench_ask(&b, "/v1/completions",
                  "{\"model\":\"toy\",\"prompt\":\"abcdefghijk\""
                  ",\"max_tokens\":20}");
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    engine_stats(b.toy.e, &s);
    assert_true(s.free_bytes < before.free_bytes);
    answer = bench_ask(&b, "/admin/flush", "");
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    engine_stats(b.toy.e, &s);
    assert_true(s.free_bytes == before.free_bytes);
    bench_stop(&b);
}

static void a_page_with_a_name_of_its_own_is_no_operator(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, listen_to_all);
    int fd = bench_connect(&b);
    static const char foreign[] =
        "GET /admin/config HTTP/1.1\r\nHost: evil.example:80\r\n"
        "Connection: close\r\n\r\n";
    bench_send(fd, foreign, sizeof(foreign) - 1);
    bench_refused(bench_rest(fd), 403, "admin_not_allowed");
    /* Whatever origins may use the model: here every one. */
    bench_refused(bench_get(&b, "GET /admin/config HTTP/1.1\r\n"
                                "Origin: https://evil.example"),
                  403, "admin_not_allowed");
    bench_get_is(&b, "GET /admin/config HTTP/1.1\r\nOrigin: http://localhost:9",
                 "{}");
    struct buf answer = bench_get(&b, "GET /admin/config HTTP/1.1");
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    answer = bench_get(&b, "GET /admin/flush HTTP/1.1");
    assert_int_equal(bench_status(&answer), 405);
    buf_fini(&answer);
    bench_stop(&b);
}

static void a_flush_that_nobody_waits_for_harms_nobody(void **state)
{
    struct bench b;
    (void)state;
    bench_start(&b, 2048, NULL, NULL);
    atomic_store(&b.toy.toy.is_held, true);
    int busy = bench_connect(&b);
    bench_post(busy, "/v1/completions",
               "{\"model\":\"toy\",\"prompt\":\"abc\",\"max_tokens\":5}");
    bench_wait_running(&b, 1, 0);
    for (int i = 0; i < 8; i++) {
        int fd = bench_connect(&b);
        bench_post(fd, "/admin/flush", "");
        if (i % 2)
            close(fd);
    }
    toy_sleep(20000);
    atomic_store(&b.toy.toy.is_held, false);
    struct buf answer = bench_rest(busy);
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    answer = bench_ask(&b, "/admin/flush", "");
    assert_int_equal(bench_status(&answer), 200);
    buf_fini(&answer);
    bench_stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_gets_the_models_answer),
        cmocka_unit_test(a_stream_says_the_same_as_the_whole),
        cmocka_unit_test(the_template_sees_the_variables_of_a_request),
        cmocka_unit_test(a_completion_can_go_on_behind_its_end),
        cmocka_unit_test(a_completion_continues_text_and_ids),
        cmocka_unit_test(bad_requests_are_told_and_harm_nobody),
        cmocka_unit_test(a_prompt_far_beyond_the_context_is_counted_in_part),
        cmocka_unit_test(a_body_above_the_limit_is_refused_at_once),
        cmocka_unit_test(encodings_that_nobody_reads_are_415),
        cmocka_unit_test(a_client_that_leaves_stops_the_work),
        cmocka_unit_test(a_client_that_ends_in_the_middle_is_let_go),
        cmocka_unit_test(clients_that_leave_at_once_harm_nobody),
        cmocka_unit_test(a_queued_client_that_leaves_frees_its_place_only),
        cmocka_unit_test(the_state_is_told_while_the_model_works),
        cmocka_unit_test(a_draining_server_takes_nothing_and_ends_what_runs),
        cmocka_unit_test(a_server_can_end_while_clients_wait),
        cmocka_unit_test(many_clients_get_their_own_answers),
        cmocka_unit_test(request_ids_are_repeated_or_made),
        cmocka_unit_test(pages_are_told_what_they_may_read),
        cmocka_unit_test(heads_are_judged_before_bodies),
        cmocka_unit_test(two_ways_to_tell_a_length_end_the_connection),
        cmocka_unit_test(a_port_in_use_is_told),
        cmocka_unit_test(the_operator_sees_settings_and_can_flush),
        cmocka_unit_test(a_page_with_a_name_of_its_own_is_no_operator),
        cmocka_unit_test(a_flush_that_nobody_waits_for_harms_nobody),
        cmocka_unit_test(pins_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
