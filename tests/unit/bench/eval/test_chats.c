/* A user's conversations as documents. */
#include "tests/unit/bench/eval/rig.h"

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

static void setup_init(struct setup *s)
{
    memset(s, 0, sizeof(*s));
    s->t = tiny_tokenizer(false);
    struct prompt_spec spec = {.tokenizer = s->t,
                               .chat_template = {template, strlen(template)}};
    if (prompt_new(&s->p, &spec, &s->m) != OK)
        fail_msg("%s", s->m.text);
    snprintf(s->dir, sizeof(s->dir), "/tmp/ebb-chats-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->path, sizeof(s->path), "%s/chats.jsonl", s->dir);
}

static void setup_fini(struct setup *s)
{
    unlink(s->path);
    rmdir(s->dir);
    prompt_free(s->p);
    tokenizer_free(s->t);
}

static enum err load(struct setup *s, struct chats **out, const char *text,
                     uint32_t max_tokens)
{
    assert_int_equal(file_replace(s->path, text, strlen(text), &s->m), OK);
    return chats_load(out, s->p, s->path, max_tokens, &s->m);
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
    assert_int_equal(chats_n_passed(c), 1);
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
        "[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"assistant\",\"content\":{}}]"};
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
        cmocka_unit_test(a_wrong_line_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
