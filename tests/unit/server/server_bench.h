/* server_bench.h - a real server on a free port of loopback, before the toy
 * model of the engine's tests, and a client whose every byte the test decides.
 */
#ifndef TESTS_SERVER_BENCH_H
#define TESTS_SERVER_BENCH_H

#include "tests/unit/runtime/engine/toy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "server/options.h"
#include "server/server.h"

struct bench {
    struct toy_bench toy;
    struct prompt *prompt;
    struct server *server;
    struct server_options o;
    int port;
};

static inline void bench_prompt(struct bench *b)
{
    static const char text[] = "{% if enable_thinking %}think{% endif %}"
                               "{% for m in messages %}{{ m.content }}"
                               "{% endfor %}";
    const struct prompt_spec spec = {
        .tokenizer = b->toy.toy.tokenizer,
        .chat_template = {text, sizeof(text) - 1},
    };
    struct errmsg m;
    if (prompt_new(&b->prompt, &spec, &m) != OK)
        fail_msg("%s", m.text);
}

/* change may be NULL; tokens: room of the pool. */
static inline void bench_start(struct bench *b, uint32_t tokens,
                               void (*engine)(struct engine_options *o),
                               void (*change)(struct server_options *o))
{
    struct errmsg m;
    memset(b, 0, sizeof(*b));
    log_setup(LOG_LEVEL_OFF, LOG_FORMAT_TEXT);
    toy_set_up(&b->toy, tokens, engine);
    bench_prompt(b);
    b->o = (struct server_options){
        .host = "127.0.0.1",
        .engine = b->toy.e,
        .prompt = b->prompt,
        .model_id = "toy",
        .model_created = 1,
        .arch = "toy",
        .n_layers = TOY_LAYERS,
        .n_kv_heads = TOY_HEADS,
        .max_context = engine_max_context(b->toy.e),
        .n_vocab = TOY_VOCAB,
        .fingerprint = "fp_toy",
        .version = "0",
        .cpu = "c",
        .backend = "cpu",
        .max_body = 64 * 1024,
        .max_queue = 64,
    };
    if (change)
        change(&b->o);
    if (server_new(&b->server, &b->o, &m) != OK)
        fail_msg("%s", m.text);
    b->port = atoi(strrchr(server_url(b->server), ':') + 1);
    assert_true(b->port > 0);
}

/* The order of main(): the engine ends first, the server sees it. */
static inline void bench_stop(struct bench *b)
{
    server_drain(b->server);
    server_detach_engine(b->server);
    toy_end(&b->toy.toy, b->toy.e);
    server_free(b->server);
    prompt_free(b->prompt);
    toy_fini(&b->toy.toy);
}

static inline int bench_connect(const struct bench *b)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)b->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval wait = {30, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static inline void bench_send(int fd, const char *s, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, s, n, MSG_NOSIGNAL);
        assert_true(k > 0);
        s += k;
        n -= (size_t)k;
    }
}

/* A request with a body, the connection to be closed after the answer. */
static inline void bench_post(int fd, const char *path, const char *body)
{
    struct buf text = {0};
    assert_int_equal(buf_printf(&text,
                                "POST %s HTTP/1.1\r\nHost: localhost\r\n"
                                "Connection: close\r\nContent-Length: %zu\r\n"
                                "\r\n%s",
                                path, strlen(body), body),
                     OK);
    bench_send(fd, text.data, text.len);
    buf_fini(&text);
}

/* Everything until the server closes; closes too. */
static inline struct buf bench_rest(int fd)
{
    struct buf all = {0};
    char piece[4096];
    ssize_t n;
    while ((n = recv(fd, piece, sizeof(piece), 0)) > 0)
        assert_int_equal(buf_append(&all, piece, (size_t)n), OK);
    assert_true(n == 0 || errno == ECONNRESET);
    close(fd);
    assert_int_equal(buf_puts(&all, ""), OK);
    return all;
}

/* Reads until the text has come; what came is returned. */
static inline struct buf bench_until(int fd, const char *text)
{
    struct buf all = {0};
    char c;
    while (!all.data || !strstr(all.data, text)) {
        assert_int_equal(recv(fd, &c, 1, 0), 1);
        assert_int_equal(buf_putc(&all, c), OK);
    }
    return all;
}

static inline struct buf bench_ask(const struct bench *b, const char *path,
                                   const char *body)
{
    int fd = bench_connect(b);
    bench_post(fd, path, body);
    return bench_rest(fd);
}

static inline struct buf bench_get(const struct bench *b, const char *head)
{
    int fd = bench_connect(b);
    struct buf text = {0};
    assert_int_equal(
        buf_printf(&text, "%s\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                   head),
        OK);
    bench_send(fd, text.data, text.len);
    buf_fini(&text);
    return bench_rest(fd);
}

static inline int bench_status(const struct buf *answer)
{
    int status = 0;
    if (answer->len == 0 || sscanf(answer->data, "HTTP/1.1 %d", &status) != 1)
        fail_msg("no status line: %.80s", answer->data);
    return status;
}

/* The JSON of an answer that is not a stream. */
static inline cJSON *bench_json(const struct buf *answer)
{
    const char *body = strstr(answer->data, "\r\n\r\n");
    cJSON *tree = NULL;
    struct errmsg m;
    assert_non_null(body);
    body += 4;
    if (json_parse(&tree, body, answer->len - (size_t)(body - answer->data),
                   &m) != OK)
        fail_msg("%s: %s", m.text, body);
    return tree;
}

/* code of an error answer must be this one. */
static inline void bench_refused(struct buf answer, int status,
                                 const char *code)
{
    assert_int_equal(bench_status(&answer), status);
    cJSON *tree = bench_json(&answer);
    const cJSON *v = json_get(json_get(tree, "error"), "code");
    assert_true(cJSON_IsString(v));
    assert_string_equal(v->valuestring, code);
    cJSON_Delete(tree);
    buf_fini(&answer);
}

/* The numbers of the engine, once they are as wanted; waits. */
static inline void bench_wait_running(const struct bench *b, uint32_t running,
                                      uint32_t waiting)
{
    int64_t until = clock_us() + TOY_PATIENCE_US;
    for (;;) {
        struct engine_stats s;
        engine_stats(b->toy.e, &s);
        if (s.running == running && s.waiting == waiting)
            return;
        if (clock_us() > until)
            fail_msg("%u run and %u wait, not %u and %u", s.running, s.waiting,
                     running, waiting);
        toy_sleep(500);
    }
}

#endif
