/* A user's conversations as documents. */
#include "tests/unit/bench/eval/rig.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "bench/eval/chats.h"

static const char template[] =
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}";

static const char long_text[] =
    "The tide was slow and grey over sand, and a wind had risen.";

struct setup {
    struct tokenizer *t;
    struct prompt *p;
    char dir[64], path[96];
    struct errmsg m;
};

static void setup_init_with(struct setup *s, const char *form, int32_t eot)
{
    memset(s, 0, sizeof(*s));
    s->t = tiny_tokenizer_with(false, eot);
    struct prompt_spec spec = {.tokenizer = s->t,
                               .chat_template = {form, strlen(form)}};
    if (prompt_new(&s->p, &spec, &s->m) != OK)
        fail_msg("%s", s->m.text);
    snprintf(s->dir, sizeof(s->dir), "/tmp/ebb-chats-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->path, sizeof(s->path), "%s/chats.jsonl", s->dir);
}

static void setup_init(struct setup *s)
{
    setup_init_with(s, template, -1);
}

static void setup_fini(struct setup *s)
{
    unlink(s->path);
    rmdir(s->dir);
    prompt_free(s->p);
    tokenizer_free(s->t);
}

/* A file of n bytes. */
static enum err load_bytes(struct setup *s, struct chats **out,
                           const char *text, size_t n,
                           const struct chats_options *o)
{
    assert_int_equal(file_replace(s->path, text, n, &s->m), OK);
    return chats_load(out, o, s->path, &s->m);
}

static enum err load_with(struct setup *s, struct chats **out, const char *text,
                          uint32_t max_tokens, size_t max_answers,
                          const atomic_bool *stop)
{
    const struct chats_options o = {.tokenizer = s->t,
                                    .prompt = s->p,
                                    .max_tokens = max_tokens,
                                    .max_answers = max_answers,
                                    .stop = stop};
    return load_bytes(s, out, text, strlen(text), &o);
}

static enum err load(struct setup *s, struct chats **out, const char *text,
                     uint32_t max_tokens)
{
    return load_with(s, out, text, max_tokens, 100, NULL);
}

static char *text_of(const struct setup *s, const struct tokens *v)
{
    struct buf b = {0};
    for (size_t i = 0; i < v->n; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_token_bytes(s->t, v->id[i], &n);
        assert_int_equal(buf_append(&b, bytes, n), OK);
    }
    return buf_take(&b);
}

/* One byte is one token: texts can be counted. The prompt's last token is the
 * first of the probe. */
static void every_answer_is_a_document(void **state)
{
    (void)state;
    struct setup s;
    struct chats *c = NULL;
    struct buf b = {0};
    setup_init(&s);
    assert_int_equal(
        buf_printf(&b,
                   "[{\"role\":\"user\",\"content\":\"%s\"},"
                   "{\"role\":\"assistant\",\"content\":\"Cold.\"},"
                   "{\"role\":\"user\",\"content\":\"Why?\"},"
                   "{\"role\":\"assistant\",\"content\":\"Winter.\"}]\n\n"
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
                   "{\"role\":\"assistant\",\"content\":\"Too short.\"}]}\n",
                   long_text),
        OK);
    if (load(&s, &c, b.data, 1000) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 2);
    assert_int_equal(chats_passed(c).n_short, 1);
    struct document_options o = {.tokenizer = s.t, .chats = c};
    size_t n_docs = 0;
    assert_int_equal(document_deal(&o, TASK_CHATS, &n_docs), OK);
    assert_int_equal(n_docs, 2);
    static const char *const answers[] = {" Cold.\n", " Winter.\n"};
    for (size_t i = 0; i < 2; i++) {
        struct document d;
        char want[300];
        assert_int_equal(document_make(&d, &o, TASK_CHATS, (uint32_t)i, &s.m),
                         OK);
        snprintf(want, sizeof(want), "[user] %s\n%s[assistant]", long_text,
                 i == 0 ? "" : "[assistant] Cold.\n[user] Why?\n");
        char *prompt = text_of(&s, &d.prompt);
        char *probe = text_of(&s, &d.probe[0].ids);
        assert_string_equal(prompt, want);
        assert_string_equal(probe, answers[i]);
        assert_int_equal(d.probe[0].first, 1);
        assert_int_equal(document_n_scored(&d), strlen(answers[i]) - 1);
        free(prompt);
        free(probe);
        document_fini(&d);
    }
    chats_free(c);
    buf_fini(&b);
    setup_fini(&s);
}

static void long_prompts_are_passed_by_and_long_answers_cut(void **state)
{
    (void)state;
    struct setup s;
    struct chats *c = NULL;
    struct buf b = {0};
    struct document d;
    setup_init(&s);
    assert_int_equal(buf_printf(&b,
                                "[{\"role\":\"user\",\"content\":\"%s\"},"
                                "{\"role\":\"assistant\",\"content\":\"%s%s%s"
                                "%s%s%s\"}]\n",
                                long_text, long_text, long_text, long_text,
                                long_text, long_text, long_text),
                     OK);
    uint32_t n = (uint32_t)strlen(long_text) + 20; /* "[user] " and so on */
    assert_int_equal(load(&s, &c, b.data, n - 1), OK);
    assert_int_equal(chats_count(c), 0);
    assert_int_equal(chats_passed(c).n_long, 1);
    chats_free(c);
    assert_int_equal(load(&s, &c, b.data, n), OK);
    assert_int_equal(chats_count(c), 1);
    assert_int_equal(chats_document(&d, c, 0, &s.m), OK);
    assert_int_equal(document_n_scored(&d), DOCUMENT_SCORED_MAX);
    document_fini(&d);
    chats_free(c);
    buf_fini(&b);
    setup_fini(&s);
}

/* The template's line end after the token that ends a turn is no part of the
 * answer: no model says it. */
static void an_answer_ends_with_its_turn(void **state)
{
    (void)state;
    static const char form[] =
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}<s>\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}";
    struct setup s;
    struct chats *c = NULL;
    struct document d;
    char text[300];
    setup_init_with(&s, form, TINY_BOS);
    snprintf(text, sizeof(text),
             "[{\"role\":\"user\",\"content\":\"%s\"},"
             "{\"role\":\"assistant\",\"content\":\"Cold <s>.\"}]\n",
             long_text);
    if (load(&s, &c, text, 1000) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 1);
    assert_int_equal(chats_document(&d, c, 0, &s.m), OK);
    char *probe = text_of(&s, &d.probe[0].ids);
    assert_string_equal(probe, " Cold <s>.<s>");
    assert_int_equal(document_n_scored(&d), strlen(" Cold <s>."));
    assert_int_equal(d.probe[0].ids.id[d.probe[0].ids.n - 1], TINY_BOS);
    free(probe);
    document_fini(&d);
    chats_free(c);
    setup_fini(&s);
}

/* Of a call of a tool, a refusal and an empty text nothing can be predicted;
 * neither is there anything in lines of blanks. */
static void what_says_nothing_is_passed_by(void **state)
{
    (void)state;
    static const char *const contents[] = {
        "null",
        "\"\"",
        "\" \\n\\t \"",
        "[]",
        "[{\"type\":\"text\",\"text\":\"\"}]",
        "null,\"refusal\":\"no\"",
        ("null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]")};
    enum { N = sizeof(contents) / sizeof(contents[0]) };
    struct setup s;
    struct chats *c = NULL;
    struct buf b = {0};
    setup_init(&s);
    for (size_t i = 0; i <= N; i++)
        assert_int_equal(
            buf_printf(&b,
                       "[{\"role\":\"user\",\"content\":\"%s\"},"
                       "{\"role\":\"assistant\",\"content\":%s}]\r\n\r\n \t\n",
                       long_text, i < N ? contents[i] : "\"Cold.\""),
            OK);
    if (load(&s, &c, b.data, 1000) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 1);
    assert_int_equal(chats_passed(c).n_empty, N);
    chats_free(c);
    buf_fini(&b);
    setup_fini(&s);
}

/* A NUL ends no line, and is no JSON. */
static void a_nul_is_no_end_of_a_line(void **state)
{
    (void)state;
    struct setup s;
    struct chats *c = NULL;
    static const char text[] = "[]\n[]\0\n[]\n";
    setup_init(&s);
    const struct chats_options o = {.tokenizer = s.t, .prompt = s.p};
    assert_int_equal(load_bytes(&s, &c, text, sizeof(text) - 1, &o), ERR_INVAL);
    assert_non_null(strstr(s.m.text, ", line 2: "));
    setup_fini(&s);
}

/* One conversation that cannot be read costs no other, nor what was said in it
 * before. */
static void what_is_no_text_is_passed_by(void **state)
{
    (void)state;
    static const char *const contents[] = {
        "{}", "7", "[\"Cold.\"]",
        ("[{\"type\":\"text\",\"text\":\"Cold.\"},"
         "{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]")};
    enum { N = sizeof(contents) / sizeof(contents[0]) };
    struct setup s;
    struct chats *c = NULL;
    struct buf b = {0};
    setup_init(&s);
    for (size_t i = 0; i < 2 * N; i++)
        assert_int_equal(
            buf_printf(&b,
                       "[{\"role\":\"user\",\"content\":\"%s\"},"
                       "{\"role\":\"assistant\",\"content\":\"Cold.\"},"
                       "{\"role\":\"%s\",\"content\":%s},"
                       "{\"role\":\"assistant\",\"content\":\"Yes.\"}]\n",
                       long_text, i < N ? "user" : "assistant",
                       contents[i % N]),
            OK);
    if (load(&s, &c, b.data, 1000) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 2 * N);
    assert_int_equal(chats_passed(c).n_unread, N + 2 * N);
    chats_free(c);
    buf_fini(&b);
    setup_fini(&s);
}

/* The escape itself, not one of a backslash before u0000. */
static void a_nul_is_passed_by(void **state)
{
    (void)state;
    static const char *const said[] = {"\\u0000", "\\\\u0000", "\\\\\\u0000"};
    struct setup s;
    struct chats *c = NULL;
    struct buf b = {0};
    struct document d;
    setup_init(&s);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(
            buf_printf(&b,
                       "[{\"role\":\"user\",\"content\":\"%s\"},"
                       "{\"role\":\"assistant\",\"content\":\"%s\"}]\n",
                       long_text, said[i]),
            OK);
    if (load(&s, &c, b.data, 1000) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 1);
    assert_int_equal(chats_passed(c).n_unread, 2);
    assert_int_equal(chats_document(&d, c, 0, &s.m), OK);
    char *probe = text_of(&s, &d.probe[0].ids);
    assert_string_equal(probe, " \\u0000\n");
    free(probe);
    document_fini(&d);
    chats_free(c);
    buf_fini(&b);
    setup_fini(&s);
}

static void a_greeting_is_passed_by(void **state)
{
    (void)state;
    struct setup s;
    struct chats *c = NULL;
    char text[400];
    setup_init(&s);
    snprintf(text, sizeof(text),
             "[{\"role\":\"assistant\",\"content\":\"Hello.\"},"
             "{\"role\":\"user\",\"content\":\"%s\"},"
             "{\"role\":\"assistant\",\"content\":\"Cold.\"}]\n",
             long_text);
    if (load(&s, &c, text, 1000) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 1);
    assert_int_equal(chats_passed(c).n_first, 1);
    chats_free(c);
    setup_fini(&s);
}

/* A template that refuses more messages than must be rendered. */
static void no_more_is_rendered_than_needed(void **state)
{
    (void)state;
    static const char form[] =
        "{% if messages|length > 4 %}{{ raise_exception('many') }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}";
    struct setup s;
    struct chats *c = NULL;
    struct buf b = {0};
    atomic_bool stop = true;
    uint32_t n = (uint32_t)strlen(long_text) + 20;
    setup_init_with(&s, form, -1);
    for (int i = 0; i < 50; i++)
        assert_int_equal(buf_printf(&b,
                                    "%s{\"role\":\"user\",\"content\":\"%s\"},"
                                    "{\"role\":\"assistant\",\"content\":"
                                    "\"Cold.\"}",
                                    i == 0 ? "[" : ",", long_text),
                         OK);
    assert_int_equal(buf_puts(&b, "]\n"), OK);
    /* The second prompt is too long, and so are all others. */
    if (load(&s, &c, b.data, n) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 1);
    assert_int_equal(chats_passed(c).n_long, 49);
    assert_int_equal(chats_left_out(c), 0);
    chats_free(c);
    /* More than two were not wanted. */
    if (load_with(&s, &c, b.data, 10000, 2, NULL) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 2);
    assert_int_equal(chats_passed(c).n_long, 0);
    assert_int_equal(chats_left_out(c), 48);
    chats_free(c);
    assert_int_equal(load(&s, &c, b.data, 10000), ERR_INVAL);
    assert_int_equal(load_with(&s, &c, b.data, 10000, 2, &stop), ERR_CANCELLED);
    buf_fini(&b);
    setup_fini(&s);
}

/* A template that writes an answer otherwise when it is over. */
static void an_answer_that_does_not_go_on(void **state)
{
    (void)state;
    static const char form[] =
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] <think>{% endif %}";
    struct setup s;
    struct chats *c = NULL;
    char text[300];
    setup_init_with(&s, form, -1);
    snprintf(text, sizeof(text),
             "[{\"role\":\"user\",\"content\":\"%s\"},"
             "{\"role\":\"assistant\",\"content\":\"Cold.\"}]\n",
             long_text);
    if (load(&s, &c, text, 1000) != OK)
        fail_msg("%s", s.m.text);
    assert_int_equal(chats_count(c), 0);
    assert_int_equal(chats_passed(c).n_apart, 1);
    chats_free(c);
    setup_fini(&s);
}

static void a_wrong_line_is_named(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "hello",
        "{}",
        "7",
        "{\"messages\":{}}",
        "[{\"content\":\"x\"}]",
        "[3]",
        "[\\u0000]",
        "{\"messages\":\"\\u0000\"}",
        "[{\"content\":\"\\u0000\"}]",
        "[{\"role\":\"user\",\"content\":{}},{}]"};
    struct setup s;
    setup_init(&s);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct chats *c = NULL;
        char text[200];
        snprintf(text, sizeof(text), "[]\n%s\n", wrong[i]);
        assert_int_equal(load(&s, &c, text, 100), ERR_INVAL);
        assert_non_null(strstr(s.m.text, "line 2"));
    }
    setup_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_is_a_document),
        cmocka_unit_test(long_prompts_are_passed_by_and_long_answers_cut),
        cmocka_unit_test(an_answer_ends_with_its_turn),
        cmocka_unit_test(what_says_nothing_is_passed_by),
        cmocka_unit_test(a_nul_is_no_end_of_a_line),
        cmocka_unit_test(what_is_no_text_is_passed_by),
        cmocka_unit_test(a_nul_is_passed_by),
        cmocka_unit_test(a_greeting_is_passed_by),
        cmocka_unit_test(no_more_is_rendered_than_needed),
        cmocka_unit_test(an_answer_that_does_not_go_on),
        cmocka_unit_test(a_wrong_line_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
