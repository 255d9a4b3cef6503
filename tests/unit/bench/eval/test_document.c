/* Documents: the same for the same seed, of the length asked for, and with the
 * answers in them. */
#include "tests/unit/bench/eval/rig.h"

#include <ctype.h>
#include <stdio.h>

#include "base/buf.h"
#include "bench/eval/words.h"
#include "gates/train/mix_words.h"

struct setup {
    struct tokenizer *t;
    struct document_options o;
};

static struct setup setup_new(uint64_t seed)
{
    struct setup s = {.t = tiny_tokenizer(true)};
    s.o = (struct document_options){.tokenizer = s.t,
                                    .corpus = rig_corpus(s.t, 1),
                                    .n_tokens = RIG_TOKENS,
                                    .seed = seed};
    return s;
}

static void setup_fini(struct setup *s)
{
    corpus_free(s->o.corpus);
    tokenizer_free(s->t);
}

static struct document make(const struct setup *s, enum task task, uint32_t i)
{
    struct rig r = {.document = s->o};
    return rig_document(&r, task, i);
}

static bool same_tokens(const struct tokens *a, const struct tokens *b)
{
    return a->n == b->n && memcmp(a->id, b->id, a->n * sizeof(*a->id)) == 0;
}

static bool same(const struct document *a, const struct document *b)
{
    bool is_same = same_tokens(&a->prompt, &b->prompt) &&
                   a->n_head == b->n_head && a->n_probes == b->n_probes;
    for (uint32_t i = 0; i < a->n_probes && is_same; i++)
        is_same = a->probe[i].first == b->probe[i].first &&
                  same_tokens(&a->probe[i].ids, &b->probe[i].ids);
    return is_same;
}

static void the_same_seed_makes_the_same_document(void **state)
{
    (void)state;
    struct setup s = setup_new(1), again = setup_new(1), other = setup_new(2);
    int n_same = 0; /* one window of 28 may come up again */
    for (int t = 0; t < TASK_CHATS; t++) {
        struct document a = make(&s, (enum task)t, 2);
        struct document b = make(&again, (enum task)t, 2);
        struct document c = make(&s, (enum task)t, 3);
        struct document d = make(&other, (enum task)t, 2);
        assert_true(same(&a, &b));
        assert_false(same(&a, &c));
        n_same += same(&a, &d);
        document_fini(&a);
        document_fini(&b);
        document_fini(&c);
        document_fini(&d);
    }
    assert_in_range(n_same, 0, 1);
    setup_fini(&s);
    setup_fini(&again);
    setup_fini(&other);
}

/* Text alone has exactly the length asked for; where words, or lines of a list,
 * are whole, a prompt may lack one, here of single bytes. */
static void prompts_have_the_length_asked_for(void **state)
{
    (void)state;
    struct setup s = setup_new(1);
    for (int t = 0; t < TASK_CHATS; t++)
        for (uint32_t i = 0; i < 6; i++) {
            struct document d = make(&s, (enum task)t, i);
            bool is_text = t == TASK_A || t == TASK_A2 || t == TASK_F;
            size_t least = is_text ? RIG_TOKENS : RIG_TOKENS - 40;
            assert_in_range(d.prompt.n, least, RIG_TOKENS);
            assert_int_equal(d.prompt.id[0], TINY_BOS);
            assert_true(d.n_head >= 1 && d.n_probes >= 1);
            assert_in_range(document_n_scored(&d), 1, DOCUMENT_SCORED_MAX);
            for (uint32_t p = 0; p < d.n_probes; p++) {
                assert_in_range(d.probe[p].first, 1, DOCUMENT_GIVEN_MAX);
                assert_true(d.probe[p].first < d.probe[p].ids.n);
            }
            document_fini(&d);
        }
    setup_fini(&s);
}

/* The bytes of n ids; free() them. */
static char *text_of(const struct setup *s, const int32_t *id, size_t n)
{
    struct buf b = {0};
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        const char *bytes = tokenizer_token_bytes(s->t, id[i], &k);
        assert_int_equal(buf_append(&b, bytes, k), OK);
    }
    return buf_take(&b);
}

static size_t count(const char *in, const char *what)
{
    size_t n = 0;
    for (const char *p = strstr(in, what); p != NULL; p = strstr(p + 1, what))
        n++;
    return n;
}

/* A question names its noun; the document says stem and answer in one
 * sentence, once. */
static void the_answers_are_in_the_document(void **state)
{
    (void)state;
    struct setup s = setup_new(3);
    const enum task tasks[] = {TASK_B1, TASK_B2};
    for (int t = 0; t < 2; t++)
        for (uint32_t i = 0; i < 5; i++) {
            struct document d = make(&s, tasks[t], i);
            char *text = text_of(&s, d.prompt.id, d.prompt.n);
            assert_int_equal(d.n_probes, t == 0 ? 1 : 8);
            for (uint32_t p = 0; p < d.n_probes; p++) {
                const struct document_probe *probe = &d.probe[p];
                char *ask = text_of(&s, probe->ids.id, probe->ids.n);
                /* The answer sentence: what follows "Answer: ". */
                const char *answer = strstr(ask, "Answer: ");
                assert_non_null(answer);
                assert_int_equal(count(text, answer + 8), 1);
                /* What is predicted is the value alone. */
                char *value = text_of(&s, probe->ids.id + probe->first,
                                      probe->ids.n - probe->first);
                assert_true(value[0] == ' ' && isalnum((uint8_t)value[1]));
                assert_null(strchr(value + 1, ' '));
                free(value);
                free(ask);
            }
            free(text);
            document_fini(&d);
        }
    setup_fini(&s);
}

/* Facts lie all over the document: one in each eighth, give or take a
 * sentence. */
static void facts_are_spread(void **state)
{
    (void)state;
    struct setup s = setup_new(4);
    struct document d = make(&s, TASK_B2, 0);
    char *text = text_of(&s, d.prompt.id, d.prompt.n);
    const char *before = text;
    for (uint32_t p = 0; p < d.n_probes; p++) {
        const struct document_probe *probe = &d.probe[p];
        char *ask = text_of(&s, probe->ids.id, probe->ids.n);
        const char *at = strstr(text, strstr(ask, "Answer: ") + 8);
        assert_true(at >= before);
        before = at;
        free(ask);
    }
    assert_true(before - text > (ptrdiff_t)(strlen(text) * 3 / 4));
    free(text);
    document_fini(&d);
    setup_fini(&s);
}

static void task_a_goes_on_where_the_prompt_ends(void **state)
{
    (void)state;
    struct setup s = setup_new(5);
    struct document d = make(&s, TASK_A, 1);
    const int32_t *window = corpus_window(s.o.corpus, 1);
    size_t n = d.prompt.n - 1; /* without BOS */
    assert_memory_equal(d.prompt.id + 1, window, n * sizeof(*window));
    assert_int_equal(d.probe[0].ids.n, 257);
    assert_memory_equal(d.probe[0].ids.id, window + n, 257 * sizeof(*window));
    assert_int_equal(document_n_scored(&d), 256);
    document_fini(&d);
    setup_fini(&s);
}

static void passages_of_task_f_stand_in_the_prompt(void **state)
{
    (void)state;
    struct setup s = setup_new(6);
    struct document d = make(&s, TASK_F, 0);
    assert_int_equal(d.n_probes, 4);
    for (uint32_t p = 0; p < 4; p++) {
        size_t n_found = 0;
        const struct tokens *span = &d.probe[p].ids;
        for (size_t at = 0; at + span->n <= d.prompt.n; at++)
            n_found += memcmp(d.prompt.id + at, span->id,
                              span->n * sizeof(*span->id)) == 0;
        assert_int_equal(span->n, 32);
        assert_int_equal(d.probe[p].first, 8);
        assert_int_equal(n_found, 1);
    }
    document_fini(&d);
    setup_fini(&s);
}

/* Wrong answers follow the right one, to the same question, and differ from
 * it. */
static void wrong_answers_are_to_the_same_question(void **state)
{
    (void)state;
    struct setup s = setup_new(7);
    for (int t = 0; t < TASK_CHATS; t++) {
        struct document d = make(&s, (enum task)t, 0);
        const struct document_probe *right = NULL;
        uint32_t n_questions = 0, n_wrong = 0;
        for (uint32_t i = 0; i < d.n_probes; i++) {
            const struct document_probe *p = &d.probe[i];
            n_questions += !p->is_wrong;
            n_wrong += p->is_wrong;
            if (!p->is_wrong) {
                right = p;
                continue;
            }
            assert_non_null(right);
            assert_int_equal(p->first, right->first);
            assert_memory_equal(p->ids.id, right->ids.id,
                                p->first * sizeof(*p->ids.id));
            assert_false(same_tokens(&p->ids, &right->ids));
        }
        assert_int_equal(n_questions, d.n_questions);
        assert_int_equal(n_wrong > 0, task_info((enum task)t)->has_choices);
        document_fini(&d);
    }
    setup_fini(&s);
}

/* The last place that a sentence of the document names for a person is where
 * he is asked for. */
static void the_last_move_counts(void **state)
{
    (void)state;
    struct setup s = setup_new(8);
    for (uint32_t i = 0; i < 5; i++) {
        struct document d = make(&s, TASK_I, i);
        char *text = text_of(&s, d.prompt.id, d.prompt.n);
        assert_int_equal(d.n_questions, 4);
        assert_int_equal(d.n_probes, 4 * words_n_places);
        for (uint32_t p = 0; p < d.n_probes; p += (uint32_t)words_n_places) {
            char *ask = text_of(&s, d.probe[p].ids.id, d.probe[p].ids.n);
            char name[32], place[32], went[80];
            const char *last = NULL;
            assert_int_equal(sscanf(strstr(ask, "Answer: "),
                                    "Answer: %31s is now in the %31s", name,
                                    place),
                             2);
            snprintf(went, sizeof(went), "%s went to the ", name);
            for (const char *at = strstr(text, went); at != NULL;
                 at = strstr(at + 1, went))
                last = at + strlen(went);
            assert_non_null(last);
            assert_memory_equal(last, place, strlen(place));
            free(ask);
        }
        free(text);
        document_fini(&d);
    }
    setup_fini(&s);
}

/* The right answer is what was said last of a thing, the wrong one what was
 * said before. */
static void changes_replace_what_was_said(void **state)
{
    (void)state;
    struct setup s = setup_new(9);
    struct document d = make(&s, TASK_E2, 0);
    char *text = text_of(&s, d.prompt.id, d.prompt.n);
    uint32_t n_changed = 0;
    for (uint32_t p = 0; p + 1 < d.n_probes; p++) {
        if (!d.probe[p + 1].is_wrong)
            continue;
        const struct document_probe *right = &d.probe[p],
                                    *wrong = &d.probe[p + 1];
        char *now = text_of(&s, right->ids.id + right->first,
                            right->ids.n - right->first);
        char *old = text_of(&s, wrong->ids.id + wrong->first,
                            wrong->ids.n - wrong->first);
        const char *said_now = strstr(text, now), *said_old = strstr(text, old);
        assert_true(said_now != NULL && said_old != NULL);
        assert_true(said_old < said_now);
        n_changed++;
        free(now);
        free(old);
    }
    assert_int_equal(n_changed, 4);
    assert_int_equal(d.n_questions, 8);
    free(text);
    document_fini(&d);
    setup_fini(&s);
}

/* The same rule holds in the list and in what is asked: a vowel at the
 * beginning decides, and neither kind is rare. */
static void examples_follow_one_rule(void **state)
{
    (void)state;
    struct setup s = setup_new(10);
    struct document d = make(&s, TASK_G, 0);
    char label[2][32] = {"", ""};
    uint32_t n[2] = {0, 0};
    assert_int_equal(d.n_questions, 16);
    for (uint32_t p = 0; p < d.n_probes; p += 2) {
        char *line = text_of(&s, d.probe[p].ids.id, d.probe[p].ids.n);
        char word[32], got[32];
        assert_int_equal(sscanf(line, "%31[a-z]: %31s", word, got), 2);
        int kind = strchr("aeiou", word[0]) != NULL;
        if (n[kind]++ == 0)
            memcpy(label[kind], got, sizeof(got));
        assert_string_equal(got, label[kind]);
        free(line);
    }
    assert_true(n[0] >= 2 && n[1] >= 2);
    assert_string_not_equal(label[0], label[1]);
    char *text = text_of(&s, d.prompt.id, d.prompt.n);
    uint32_t n_lines = 0;
    for (char *line = strtok(text, "\n"); line != NULL;
         line = strtok(NULL, "\n")) {
        char word[32], got[32];
        if (sscanf(line, "%31[a-z]: %31s", word, got) != 2)
            continue;
        assert_string_equal(got, label[strchr("aeiou", word[0]) != NULL]);
        n_lines++;
    }
    assert_int_equal(n_lines, 48);
    free(text);
    document_fini(&d);
    setup_fini(&s);
}

/* Every line of a list has a key of its own, and those that are asked for are
 * in it. */
static void keys_of_a_list_are_different(void **state)
{
    (void)state;
    enum { LINES_MAX = 200 };
    struct setup s = setup_new(11);
    struct document d = make(&s, TASK_C, 1);
    char *text = text_of(&s, d.prompt.id, d.prompt.n), *key[LINES_MAX];
    size_t n = 0;
    for (char *line = strtok(text + 3, "\n"); line != NULL;
         line = strtok(NULL, "\n"))
        if (strchr(line, ':') != NULL) {
            assert_true(n < LINES_MAX);
            key[n++] = line;
        }
    assert_in_range(n, 30, LINES_MAX);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(strncmp(key[i], key[j], strcspn(key[i], ":") + 1) != 0);
    for (uint32_t p = 0; p < d.n_probes; p++) {
        char *ask = text_of(&s, d.probe[p].ids.id, d.probe[p].ids.n);
        size_t n_found = 0;
        for (size_t i = 0; i < n; i++)
            n_found += strcmp(strstr(ask, "Answer: ") + 8, key[i]) == 0;
        assert_int_equal(n_found, 1);
        free(ask);
    }
    free(text);
    document_fini(&d);
    setup_fini(&s);
}

/* A book in which people have names: those are what changes. */
static void a_retelling_changes_names_alone(void **state)
{
    (void)state;
    struct setup s = {.t = tiny_tokenizer(true)};
    struct buf book = {0};
    for (int i = 0; i < 400; i++)
        assert_int_equal(
            buf_printf(&book,
                       "Then the old Captain met Hortensia near the mill, and "
                       "Balthazar said %d times no. ",
                       i),
            OK);
    s.o = (struct document_options){
        .tokenizer = s.t, .n_tokens = RIG_TOKENS, .seed = 1};
    assert_int_equal(
        corpus_from_text(&s.o.corpus, s.t, book.data, book.len, NULL), OK);
    struct document d = make(&s, TASK_A2, 0);
    char *told = text_of(&s, d.probe[0].ids.id, d.probe[0].ids.n);
    assert_null(strstr(told, "Hortensia"));
    assert_non_null(strstr(told, "Captain met "));
    assert_non_null(strstr(told, " near the mill, and "));
    const char *other = strstr(told, "Captain met ") + 12;
    size_t n_names = 0;
    for (size_t i = 0; i < words_n_names; i++)
        n_names += strncmp(other, words_names[i], strlen(words_names[i])) == 0;
    assert_int_equal(n_names, 1);
    free(told);
    buf_fini(&book);
    document_fini(&d);
    setup_fini(&s);
}

static void a_prompt_too_short_for_its_facts_is_refused(void **state)
{
    (void)state;
    struct setup s = setup_new(1);
    struct document d;
    struct errmsg m = {""};
    size_t n = 0;
    s.o.n_tokens = 330; /* of one byte each */
    assert_int_equal(document_deal(&s.o, TASK_B2, &n), OK);
    assert_int_equal(document_make(&d, &s.o, TASK_B2, 0, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "330"));
    setup_fini(&s);
}

static bool same_word(const char *a, const char *b)
{
    while (*a != '\0' && tolower((uint8_t)*a) == tolower((uint8_t)*b)) {
        a++;
        b++;
    }
    return *a == '\0' && *b == '\0';
}

static void words_differ_from_those_of_training(void **state)
{
    (void)state;
    const struct {
        const char *const *word;
        size_t n;
    } ours[] = {{words_nouns, words_n_nouns},
                {words_names, words_n_names},
                {words_places, words_n_places},
                {words_relations, words_n_relations},
                {&words_labels[0][0], 2 * words_n_labels}},
      theirs[] = {{mix_keys, mix_n_keys},
                  {mix_things, mix_n_things},
                  {mix_measures, mix_n_measures},
                  {mix_roles, mix_n_roles},
                  {mix_values, mix_n_values}};
    for (int o = 0; o < 5; o++)
        for (int t = 0; t < 5; t++)
            for (size_t i = 0; i < ours[o].n; i++)
                for (size_t j = 0; j < theirs[t].n; j++)
                    if (same_word(ours[o].word[i], theirs[t].word[j]))
                        fail_msg("%s", ours[o].word[i]);
}

/* The word at s without punctuation, lower case; returns where the next one
 * begins, NULL at the end. */
static const char *next_word(const char *s, char out[64])
{
    size_t n = 0;
    while (*s == ' ')
        s++;
    for (; *s != '\0' && *s != ' '; s++)
        if (isalpha((uint8_t)*s) && n < 63)
            out[n++] = (char)tolower((uint8_t)*s);
    out[n] = '\0';
    return n > 0 || *s != '\0' ? s : NULL;
}

/* Whether the four words at a stand somewhere in b. Keys and values (%K, %V)
 * are words too: "k" and "v". */
static bool shares_four_words(const char *a, const char *b)
{
    char x[64], y[64];
    for (; b != NULL; b = next_word(b, y)) {
        const char *p = a, *q = b;
        int n = 0;
        while (n < 4 && p != NULL && q != NULL) {
            p = next_word(p, x);
            q = next_word(q, y);
            if (p == NULL || q == NULL || strcmp(x, y) != 0)
                break;
            n++;
        }
        if (n == 4)
            return true;
    }
    return false;
}

static void check_apart(const char *ours, const char *theirs)
{
    char word[64];
    for (const char *p = ours; p != NULL; p = next_word(p, word))
        if (shares_four_words(p, theirs))
            fail_msg("\"%s\" is too near to \"%s\" of the training", ours,
                     theirs);
}

static void check_pattern(const char *ours)
{
    for (size_t i = 0; i < mix_n_patterns; i++) {
        check_apart(ours, mix_patterns[i].fact);
        check_apart(ours, mix_patterns[i].question);
    }
}

static void patterns_differ_from_those_of_training(void **state)
{
    (void)state;
    const struct {
        const struct words_pattern *p;
        size_t n;
    } ours[] = {{words_patterns, words_n_patterns},
                {words_sayings, words_n_sayings},
                {&words_move, 1}};
    assert_true(shares_four_words("what is a K for", "Tell what is a k."));
    assert_false(shares_four_words("what is the K", "what is a K"));
    for (int o = 0; o < 3; o++)
        for (size_t i = 0; i < ours[o].n; i++) {
            check_pattern(ours[o].p[i].fact);
            check_pattern(ours[o].p[i].question);
            check_pattern(ours[o].p[i].stem);
        }
    check_pattern(words_chain.first);
    check_pattern(words_chain.next);
    check_pattern(words_chain.question);
    check_pattern(words_chain.stem);
    check_pattern(words_correction);
}

static void tasks_have_names(void **state)
{
    (void)state;
    enum task t;
    for (int i = 0; i < TASK_COUNT; i++) {
        const char *name = task_info((enum task)i)->name;
        assert_int_equal(task_find(&t, name, strlen(name)), OK);
        assert_int_equal(t, i);
    }
    assert_int_equal(task_find(&t, "A9", 2), ERR_NOTFOUND);
    assert_int_equal(task_find(&t, "B", 1), ERR_NOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_makes_the_same_document),
        cmocka_unit_test(prompts_have_the_length_asked_for),
        cmocka_unit_test(the_answers_are_in_the_document),
        cmocka_unit_test(facts_are_spread),
        cmocka_unit_test(task_a_goes_on_where_the_prompt_ends),
        cmocka_unit_test(passages_of_task_f_stand_in_the_prompt),
        cmocka_unit_test(wrong_answers_are_to_the_same_question),
        cmocka_unit_test(the_last_move_counts),
        cmocka_unit_test(changes_replace_what_was_said),
        cmocka_unit_test(examples_follow_one_rule),
        cmocka_unit_test(keys_of_a_list_are_different),
        cmocka_unit_test(a_retelling_changes_names_alone),
        cmocka_unit_test(a_prompt_too_short_for_its_facts_is_refused),
        cmocka_unit_test(words_differ_from_those_of_training),
        cmocka_unit_test(patterns_differ_from_those_of_training),
        cmocka_unit_test(tasks_have_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
