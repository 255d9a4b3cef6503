/* Documents: the same for the same seed, of the length asked for, and with the
 * answers in them. */
#include "tests/unit/bench/eval/rig.h"

#include <ctype.h>

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
    for (int t = 0; t < TASK_COUNT; t++) {
        struct document a = make(&s, (enum task)t, 2);
        struct document b = make(&again, (enum task)t, 2);
        struct document c = make(&s, (enum task)t, 3);
        struct document d = make(&other, (enum task)t, 2);
        assert_true(same(&a, &b));
        assert_false(same(&a, &c));
        assert_false(same(&a, &d));
        document_fini(&a);
        document_fini(&b);
        document_fini(&c);
        document_fini(&d);
    }
    setup_fini(&s);
    setup_fini(&again);
    setup_fini(&other);
}

/* Equal budgets are equal bytes only when prompts have the length asked for;
 * where text is cut at words it may be one sentence less. */
static void prompts_have_the_length_asked_for(void **state)
{
    (void)state;
    struct setup s = setup_new(1);
    for (int t = 0; t < TASK_COUNT; t++)
        for (uint32_t i = 0; i < 6; i++) {
            struct document d = make(&s, (enum task)t, i);
            size_t least =
                t == TASK_A || t == TASK_F ? RIG_TOKENS : RIG_TOKENS - 16;
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
    } ours[] = {{words_nouns, words_n_nouns}, {words_names, words_n_names}},
      theirs[] = {{mix_keys, mix_n_keys}, {mix_values, mix_n_values}};
    for (int o = 0; o < 2; o++)
        for (int t = 0; t < 2; t++)
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

static void patterns_differ_from_those_of_training(void **state)
{
    (void)state;
    assert_true(shares_four_words("what is a K for", "Tell what is a k."));
    assert_false(shares_four_words("what is the K", "what is a K"));
    for (size_t i = 0; i < words_n_patterns; i++)
        for (size_t j = 0; j < mix_n_patterns; j++) {
            const char *const ours[] = {words_patterns[i].fact,
                                        words_patterns[i].question,
                                        words_patterns[i].stem};
            for (int k = 0; k < 3; k++) {
                check_apart(ours[k], mix_patterns[j].fact);
                check_apart(ours[k], mix_patterns[j].question);
            }
        }
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
        cmocka_unit_test(a_prompt_too_short_for_its_facts_is_refused),
        cmocka_unit_test(words_differ_from_those_of_training),
        cmocka_unit_test(patterns_differ_from_those_of_training),
        cmocka_unit_test(tasks_have_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
