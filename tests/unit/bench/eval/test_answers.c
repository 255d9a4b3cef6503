/* Single answers as lines of JSON. */
#include "tests/unit/bench/eval/rig.h"

#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "bench/eval/answers.h"

struct setup {
    struct tokenizer *tokenizer; /* single bytes */
    char dir[64], path[96];
    struct document d;
    struct scored scored[8];
    struct errmsg m;
};

static void push(struct tokens *t, const int32_t *id, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tokens_push(t, id[i]), OK);
}

/* Two questions, of which the first has a wrong answer to choose. */
static void setup_init(struct setup *s)
{
    static const int32_t ids[] = {5, 6, 7, 8, 9, 10};
    memset(s, 0, sizeof(*s));
    snprintf(s->dir, sizeof(s->dir), "/tmp/ebb-answers-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->path, sizeof(s->path), "%s/a.jsonl", s->dir);
    s->tokenizer = tiny_tokenizer(true);
    s->d.n_probes = 3;
    s->d.n_questions = 2;
    push(&s->d.prompt, ids, 4);
    push(&s->d.probe[0].ids, ids, 5);
    push(&s->d.probe[1].ids, ids, 4);
    push(&s->d.probe[2].ids, ids + 2, 2);
    s->d.probe[0].first = 2;
    s->d.probe[1].first = 2;
    s->d.probe[2].first = 1;
    s->d.probe[1].is_wrong = true;
    /* Probe 0: three tokens, 1: two, 2: one. */
    for (int i = 0; i < 6; i++) {
        s->scored[i].best = 20 + i;
        s->scored[i].nll = 0.5 * i;
    }
}

static void setup_fini(struct setup *s)
{
    document_fini(&s->d);
    tokenizer_free(s->tokenizer);
    unlink(s->path);
    rmdir(s->dir);
}

static cJSON *line_of(const struct buf *text, int i)
{
    cJSON *out = NULL;
    struct errmsg m = {""};
    const char *s = text->data;
    for (; i > 0; i--)
        s = strchr(s, '\n') + 1;
    if (json_parse(&out, s, strcspn(s, "\n"), &m) != OK)
        fail_msg("%s", m.text);
    return out;
}

static void check_ids(const cJSON *of, const char *name, const int32_t *want,
                      int n)
{
    const cJSON *ids = json_get(json_get(of, name), "ids");
    assert_int_equal(cJSON_GetArraySize(ids), n);
    for (int i = 0; i < n; i++)
        assert_int_equal(cJSON_GetArrayItem(ids, i)->valueint, want[i]);
    assert_true(cJSON_IsString(json_get(json_get(of, name), "text")));
}

static void check_document(const cJSON *line)
{
    static const int32_t ids[] = {5, 6, 7, 8, 9, 10};
    assert_string_equal(cJSON_GetStringValue(json_get(line, "task")), "B2");
    assert_int_equal(json_get(line, "doc")->valueint, 4);
    check_ids(line, "prompt", ids, 4);
    const cJSON *questions = json_get(line, "questions");
    assert_int_equal(cJSON_GetArraySize(questions), 2);
    check_ids(cJSON_GetArrayItem(questions, 0), "given", ids, 2);
    check_ids(cJSON_GetArrayItem(questions, 0), "right", ids + 2, 3);
    check_ids(cJSON_GetArrayItem(questions, 1), "given", ids + 2, 1);
    check_ids(cJSON_GetArrayItem(questions, 1), "right", ids + 3, 1);
}

static void check_answers(const cJSON *line)
{
    static const int32_t said[] = {20, 21, 22, 23, 24, 25};
    assert_string_equal(cJSON_GetStringValue(json_get(line, "policy")),
                        "keydiff+merge");
    assert_true(json_get(line, "budget")->valuedouble == 0.25);
    assert_true(json_get(line, "entries")->valuedouble == 128);
    const cJSON *answers = json_get(line, "answers");
    assert_int_equal(cJSON_GetArraySize(answers), 2);
    check_ids(cJSON_GetArrayItem(answers, 0), "said", said, 3);
    /* The wrong answer's two tokens are passed by. */
    check_ids(cJSON_GetArrayItem(answers, 1), "said", said + 5, 1);
    const cJSON *nll = json_get(cJSON_GetArrayItem(answers, 1), "nll");
    assert_int_equal(cJSON_GetArraySize(nll), 1);
    assert_true(cJSON_GetArrayItem(nll, 0)->valuedouble == 2.5);
}

static void questions_and_answers_are_lines(void **state)
{
    (void)state;
    struct setup s;
    struct answers *a = NULL;
    struct buf text = {0};
    setup_init(&s);
    struct choice choice = rig_choice("keydiff+merge", 0.25);
    const struct answers_cell cell = {.task = TASK_B2,
                                      .doc = 4,
                                      .choice = &choice,
                                      .n_entries = 128,
                                      .scored = s.scored};
    assert_int_equal(answers_open(&a, s.path, s.tokenizer, &s.m), OK);
    assert_int_equal(answers_document(a, TASK_B2, 4, &s.d, &s.m), OK);
    assert_int_equal(answers_add(a, &s.d, &cell, &s.m), OK);
    answers_close(a);
    assert_int_equal(file_read_all(&text, s.path, 1 << 20, &s.m), OK);
    cJSON *document = line_of(&text, 0), *answers = line_of(&text, 1);
    check_document(document);
    check_answers(answers);
    cJSON_Delete(document);
    cJSON_Delete(answers);
    buf_fini(&text);
    setup_fini(&s);
}

static void a_place_that_cannot_be_written_is_told(void **state)
{
    (void)state;
    struct answers *a = NULL;
    struct errmsg m = {""};
    assert_int_equal(answers_open(&a, "/nowhere/a.jsonl", NULL, &m), ERR_IO);
    assert_non_null(strstr(m.text, "/nowhere/a.jsonl"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(questions_and_answers_are_lines),
        cmocka_unit_test(a_place_that_cannot_be_written_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
