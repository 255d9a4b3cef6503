/* Training sequences: the same for the same step, exactly as long as asked,
 * and each kind what it says. */
#include "tests/unit/gates/train/tiny.h"

#include <stdio.h>

#include "base/buf.h"
#include "gates/train/mix.h"
#include "gates/train/mix_internal.h"
#include "gates/train/mix_words.h"

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

enum { N = 512, STEPS = 60, TEXT_BYTES = 20000 };

struct setup {
    struct tokenizer *t;
    struct mix *x;
    char *text;
};

static void setup_init(struct setup *s, const uint32_t share[MIX_KINDS],
                       uint64_t seed, bool adds_bos)
{
    struct mix_options o = {.seed = seed};
    memcpy(o.share, share, sizeof(o.share));
    s->t = tiny_tokenizer(adds_bos);
    o.tokenizer = s->t;
    s->text = tiny_text(TEXT_BYTES, 9);
    assert_int_equal(mix_new(&s->x, &o, NULL), OK);
    assert_int_equal(mix_add_text(s->x, s->text, TEXT_BYTES / 2, NULL), OK);
    assert_int_equal(
        mix_add_text(s->x, s->text + TEXT_BYTES / 2, TEXT_BYTES / 2, NULL), OK);
}

static void setup_fini(struct setup *s)
{
    mix_free(s->x);
    tokenizer_free(s->t);
    free(s->text);
}

/* Writes the text of the ids, terminated; returns its length. */
static size_t text_of(const struct tokenizer *t, const int32_t *id, size_t n,
                      char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k;
        const char *s = tokenizer_token_bytes(t, id[i], &k);
        assert_non_null(s);
        memcpy(out + len, s, k);
        len += k;
    }
    out[len] = '\0';
    return len;
}

static const uint32_t ALL[MIX_KINDS] = {1, 1, 1, 1, 1, 1};

static void a_step_gives_the_same_sequence_whatever_came_before(void **state)
{
    (void)state;
    struct setup a, b;
    int32_t first[STEPS][N], again[N];
    enum mix_kind kind[STEPS], k;
    int seen[MIX_KINDS] = {0}, n_same = 0;
    setup_init(&a, ALL, 7, false);
    setup_init(&b, ALL, 7, false);
    assert_int_equal(mix_n_tokens(a.x), TEXT_BYTES); /* a token a byte */
    for (uint64_t i = 0; i < STEPS; i++)
        assert_int_equal(mix_sequence(a.x, i, N, first[i], &kind[i], NULL), OK);
    for (uint64_t i = STEPS; i-- > 0;) {
        assert_int_equal(mix_sequence(b.x, i, N, again, &k, NULL), OK);
        assert_int_equal(k, kind[i]);
        assert_memory_equal(again, first[i], sizeof(again));
        seen[k]++;
    }
    for (int i = 0; i < MIX_KINDS; i++)
        assert_true(seen[i] > 2);
    for (int i = 1; i < STEPS; i++)
        n_same += memcmp(first[i], first[i - 1], sizeof(first[i])) == 0;
    assert_int_equal(n_same, 0);
    setup_fini(&b);
    setup_init(&b, ALL, 8, false); /* another seed */
    for (uint64_t i = 0; i < STEPS; i++) {
        assert_int_equal(mix_sequence(b.x, i, N, again, &k, NULL), OK);
        n_same += memcmp(first[i], again, sizeof(again)) == 0;
    }
    assert_int_equal(n_same, 0);
    setup_fini(&a);
    setup_fini(&b);
}

static void sequences_are_as_long_as_asked_and_hold_valid_ids(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {MIX_TOKENS_MIN, 65, 200, 1000, 3000};
    for (int bos = 0; bos < 2; bos++) {
        struct setup s;
        int32_t out[3002];
        setup_init(&s, ALL, 1, bos == 1);
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
            for (uint64_t i = 0; i < STEPS; i++) {
                uint32_t n = lengths[l];
                for (uint32_t k = 0; k < n + 2; k++)
                    out[k] = -7;
                assert_int_equal(mix_sequence(s.x, i, n, out, NULL, NULL), OK);
                for (uint32_t k = 0; k < n; k++)
                    assert_true(out[k] >= 0 && out[k] < TINY_VOCAB &&
                                (out[k] == TINY_BOS) == (bos == 1 && k == 0));
                assert_int_equal(out[n], -7);
            }
        setup_fini(&s);
    }
}

/* Where a sentence of the training follows a pattern up to `stop`: %K and %R
 * are any word. Returns its end in text, or NULL. */
static const char *follow(const char *text, const char *pattern,
                          const char *stop)
{
    for (; pattern < stop; pattern++) {
        if (pattern[0] != '%') {
            if (*text++ != *pattern)
                return NULL;
            continue;
        }
        size_t n = strspn(text, LETTERS);
        if (n == 0)
            return NULL;
        text += n;
        pattern++;
    }
    return text;
}

/* A fact of some pattern in [text, end) with this value. */
static bool is_told(const char *text, const char *end, const char *value,
                    size_t n)
{
    for (const char *at = text; at < end; at++)
        for (size_t i = 0; i < mix_n_patterns; i++) {
            const char *p = mix_patterns[i].fact;
            const char *v = follow(at, p, strstr(p, "%V"));
            if (v != NULL && strspn(v, LETTERS DIGITS) == n &&
                memcmp(v, value, n) == 0)
                return true;
        }
    return false;
}

/* What is marked as an answer stands behind a question's answer up to there,
 * and a fact with it stands in the first two thirds, before. Returns how many
 * answers there are. */
static int check_answers(const struct setup *s, const int32_t *id, size_t n)
{
    const uint8_t *is_answer = mix_answers(s->x);
    char text[4096];
    int n_answers = 0;
    assert_true(n < sizeof(text));
    text_of(s->t, id, n, text); /* a byte a token */
    for (size_t i = 1; i < n; i++) {
        bool begins = false;
        if (is_answer[i] == 0 || is_answer[i - 1] != 0)
            continue;
        assert_int_equal(text[i - 1], ' ');
        for (size_t p = 0; p < mix_n_patterns; p++) {
            const char *stem = strchr(mix_patterns[p].question, '?') + 2;
            for (size_t from = i > 80 ? i - 80 : 0; from + 1 < i; from++)
                begins = begins || follow(text + from, stem,
                                          stem + strlen(stem)) == text + i - 1;
        }
        assert_true(begins);
        size_t len = strspn(text + i, LETTERS DIGITS);
        size_t before = i < n * 2 / 3 ? i : n * 2 / 3;
        assert_true(is_told(text, text + before, text + i, len));
        for (size_t k = 0; k < len; k++)
            assert_int_equal(is_answer[i + k], 1);
        assert_int_equal(text[i + len], '.');
        n_answers++;
        i += len - 1;
    }
    return n_answers;
}

static void recall_documents_hold_facts_questions_and_answers(void **state)
{
    (void)state;
    static const uint32_t only[MIX_KINDS] = {[MIX_RECALL] = 1};
    struct setup s;
    int32_t out[2048];
    char text[2049];
    int most = 0;
    setup_init(&s, only, 5, false);
    for (uint64_t i = 0; i < STEPS; i++) {
        enum mix_kind kind;
        /* A token a byte here, four with real tokenizers: 2,048 is short. */
        assert_int_equal(mix_sequence(s.x, i, 2048, out, &kind, NULL), OK);
        assert_int_equal(kind, MIX_RECALL);
        text_of(s.t, out, 2048, text);
        int n = check_answers(&s, out, 2048);
        assert_true(n >= 2 && n <= 8);
        most = n > most ? n : most;
    }
    assert_true(most >= 6);
    setup_fini(&s);
}

/* A phrase with a drawn end early in the text; at the end the phrase again,
 * and what is marked as the answer is that end. */
static void cloze_documents_tell_a_phrase_and_its_end_twice(void **state)
{
    (void)state;
    static const uint32_t only[MIX_KINDS] = {[MIX_CLOZE] = 1};
    struct setup s;
    int32_t out[2048];
    char text[2049];
    int n_answers = 0;
    setup_init(&s, only, 5, false);
    for (uint64_t i = 0; i < STEPS; i++) {
        enum mix_kind kind;
        assert_int_equal(mix_sequence(s.x, i, 2048, out, &kind, NULL), OK);
        assert_int_equal(kind, MIX_CLOZE);
        const uint8_t *is_answer = mix_answers(s.x);
        text_of(s.t, out, 2048, text); /* a byte a token */
        for (size_t at = 1; at < 2048; at++) {
            if (is_answer[at] == 0 || is_answer[at - 1] != 0)
                continue;
            /* Four words before it, at least. */
            size_t from = at, n_words = 0,
                   len = strspn(text + at, LETTERS DIGITS);
            while (from > 0 && strchr("\n?", text[from - 1]) == NULL)
                n_words += text[--from] == ' ';
            if (text[from] == ' ') { /* behind the question mark */
                from++;
                n_words--;
            }
            assert_true(n_words >= 4);
            for (size_t b = 0; b < len; b++)
                assert_int_equal(is_answer[at + b], 1);
            assert_int_equal(text[at + len], '.');
            /* The same bytes in the first two thirds. */
            char said[256];
            snprintf(said, sizeof(said), "%.*s", (int)(at + len - from),
                     text + from);
            const char *first = strstr(text, said);
            assert_true(first < text + 2048 * 2 / 3);
            assert_true(first < text + from);
            n_answers++;
        }
    }
    assert_true(n_answers > 2 * STEPS);
    setup_fini(&s);
}

static void a_phrase_is_asked_for_by_its_first_words(void **state)
{
    (void)state;
    assert_int_equal(mix_first_words("One two three four", 3), 13);
    assert_int_equal(mix_first_words("One two", 3), 7);
    assert_int_equal(mix_first_words("", 3), 0);
}

static void copies_come_again_in_the_second_half(void **state)
{
    (void)state;
    static const uint32_t only[MIX_KINDS] = {[MIX_COPY] = 1};
    struct setup s;
    int32_t out[N];
    setup_init(&s, only, 5, false);
    for (uint64_t i = 0; i < STEPS; i++) {
        int longest = 0;
        assert_int_equal(mix_sequence(s.x, i, N, out, NULL, NULL), OK);
        for (int a = 0; a < N / 2; a++)
            for (int b = N / 2; b < N; b++) {
                int len = 0;
                while (b + len < N && a + len < N / 2 &&
                       out[a + len] == out[b + len])
                    len++;
                longest = len > longest ? len : longest;
            }
        assert_true(longest >= 24);
    }
    setup_fini(&s);
}

static void plain_text_is_text(void **state)
{
    (void)state;
    static const uint32_t only[MIX_KINDS] = {[MIX_PLAIN] = 1};
    struct setup s;
    int32_t out[N];
    char text[N + 1];
    setup_init(&s, only, 5, false);
    for (uint64_t i = 0; i < STEPS; i++) {
        assert_int_equal(mix_sequence(s.x, i, N, out, NULL, NULL), OK);
        text_of(s.t, out, N, text);
        assert_non_null(strstr(s.text, text));
    }
    setup_fini(&s);
}

/* "<1text>" and "<0text>": a template that leaves the turns readable. */
static enum err open_chat(void *ctx, const struct mix_turn *turns,
                          size_t n_turns, struct tokens *out, struct errmsg *m)
{
    struct buf b = {0};
    enum err rc = OK;
    (void)m;
    for (size_t i = 0; i < n_turns && rc == OK; i++)
        rc = buf_printf(&b, "<%d%.*s>", turns[i].is_user, (int)turns[i].n,
                        turns[i].text);
    if (rc == OK)
        rc = tokenizer_encode(ctx, b.data, b.len, 0, out);
    buf_fini(&b);
    return rc;
}

/* Questions that are a whole turn of the user, with an answer behind. */
static int count_talk(const char *text)
{
    int n = 0;
    for (const char *at = text; *at != '\0'; at++) {
        bool is_asked = false;
        for (size_t i = 0; i < mix_n_patterns && !is_asked; i++) {
            const char *q = mix_patterns[i].question;
            const char *end = strchr(q, '?') + 1;
            const char *asked =
                strncmp(at, "<1", 2) == 0 ? follow(at + 2, q, end) : NULL;
            is_asked = asked != NULL && strncmp(asked, "><0", 3) == 0 &&
                       follow(asked + 3, end + 1, q + strlen(q)) != NULL;
        }
        n += is_asked;
    }
    return n;
}

static void facts_are_told_and_asked_for_in_chats(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_tokenizer(false);
    struct setup s = {.t = t, .text = tiny_text(TEXT_BYTES, 2)};
    int32_t out[4000];
    char text[4001];
    int n_talks = 0;
    struct mix_options o = {.tokenizer = t,
                            .chat = open_chat,
                            .chat_ctx = t,
                            .share = {[MIX_RECALL] = 1}};
    assert_int_equal(mix_new(&s.x, &o, NULL), OK);
    assert_int_equal(mix_add_text(s.x, s.text, TEXT_BYTES, NULL), OK);
    for (uint64_t i = 0; i < STEPS; i++) {
        assert_int_equal(mix_sequence(s.x, i, 4000, out, NULL, NULL), OK);
        text_of(t, out, 4000, text);
        int n = check_answers(&s, out, 4000), n_asked = count_talk(text);
        assert_true(n >= 2 && n <= 8);
        assert_true(n_asked == 0 || n_asked == n);
        n_talks += n_asked > 0;
    }
    /* Two forms of three are chats. */
    assert_true(n_talks > STEPS / 2 && n_talks < STEPS * 5 / 6);
    setup_fini(&s);
}

/* A template's tokens are used as they are, after one BOS. */
static enum err fake_chat(void *ctx, const struct mix_turn *turns,
                          size_t n_turns, struct tokens *out, struct errmsg *m)
{
    (void)m;
    int *calls = ctx;
    ++*calls;
    enum err rc = tokens_push(out, TINY_BOS);
    for (size_t i = 0; i < n_turns && rc == OK; i++) {
        assert_int_equal(turns[i].is_user, i % 2 == 0);
        rc = tokens_push(out, (int32_t)i);
    }
    assert_int_equal(n_turns % 2, 0);
    return rc;
}

static void chats_go_through_the_template(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_tokenizer(true);
    char *text = tiny_text(TEXT_BYTES, 2);
    int32_t out[MIX_TOKENS_MIN];
    int calls = 0;
    struct mix *x = NULL;
    struct mix_options o = {.tokenizer = t,
                            .chat = fake_chat,
                            .chat_ctx = &calls,
                            .share = {[MIX_CHAT] = 1}};
    assert_int_equal(mix_new(&x, &o, NULL), OK);
    assert_int_equal(mix_add_text(x, text, TEXT_BYTES, NULL), OK);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(mix_sequence(x, i, MIX_TOKENS_MIN, out, NULL, NULL),
                         OK);
        assert_int_equal(out[0], TINY_BOS);
        assert_int_equal(out[1], 0);
        assert_int_equal(out[2], 1);
    }
    assert_int_equal(calls, 5);
    mix_free(x);
    tokenizer_free(t);
    free(text);
}

static enum err failing_chat(void *ctx, const struct mix_turn *turns,
                             size_t n_turns, struct tokens *out,
                             struct errmsg *m)
{
    (void)ctx;
    (void)turns;
    (void)n_turns;
    (void)out;
    return err_set(m, ERR_INVAL, "roles must alternate");
}

static void what_cannot_be_made_is_an_error_that_says_why(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_tokenizer(false);
    char *text = tiny_text(TEXT_BYTES, 2);
    int32_t out[N];
    struct mix *x = NULL;
    struct errmsg m = {""};
    struct mix_options o = {.tokenizer = t, .chat = failing_chat};
    assert_int_equal(mix_new(&x, &o, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "zero"));
    o.share[MIX_CHAT] = 3;
    assert_int_equal(mix_new(&x, &o, &m), OK);
    assert_int_equal(mix_sequence(x, 0, N, out, NULL, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "0 texts"));
    assert_int_equal(mix_add_text(x, text, MIX_TEXT_MIN - 1, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "1023"));
    memset(text, 1, MIX_TEXT_MIN); /* bytes without a token */
    assert_int_equal(mix_add_text(x, text, MIX_TEXT_MIN, &m), ERR_INVAL);
    memset(text, 'a', MIX_TEXT_MIN);
    text[7] = (char)0xFF;
    assert_int_equal(mix_add_text(x, text, MIX_TEXT_MIN, &m), ERR_INVAL);
    assert_string_equal(m.text, "it is not UTF-8 at byte 7");
    text[7] = 'a';
    assert_int_equal(mix_add_text(x, text, MIX_TEXT_MIN, &m), OK);
    assert_int_equal(mix_sequence(x, 0, MIX_TOKENS_MIN - 1, out, NULL, &m),
                     ERR_INVAL);
    assert_int_equal(mix_sequence(x, 4, N, out, NULL, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "sequence 4 (chat): roles must alternate"));
    mix_free(x);
    mix_free(NULL);
    tokenizer_free(t);
    free(text);
}

static void words_are_single_and_differ(void **state)
{
    (void)state;
    assert_true(mix_n_patterns >= 10);
    assert_true(mix_n_keys >= 8 * 7); /* seven for each of eight facts */
    assert_true(mix_n_things >= 8 * 7);
    for (size_t i = 0; i < mix_n_things; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(mix_things[i], mix_things[k]);
    for (size_t i = 0; i < mix_n_keys; i++) {
        assert_null(strchr(mix_keys[i], ' '));
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(mix_keys[i], mix_keys[k]);
        for (size_t k = 0; k < mix_n_values; k++)
            assert_string_not_equal(mix_keys[i], mix_values[k]);
    }
    for (size_t i = 0; i < mix_n_values; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(mix_values[i], mix_values[k]);
    for (size_t i = 0; i < mix_n_patterns; i++) {
        assert_non_null(strstr(mix_patterns[i].fact, "%K"));
        assert_non_null(strstr(mix_patterns[i].fact, "%V"));
        assert_non_null(strstr(mix_patterns[i].question, "%K"));
        assert_null(strstr(mix_patterns[i].question, "%V"));
    }
}

/* The evaluation's patterns and words (docs/design, evaluation 3.2): passkeys,
 * special numbers, pets. Gates that had seen them would know too much. */
static void training_uses_no_pattern_of_the_evaluation(void **state)
{
    (void)state;
    static const char *const theirs[] = {"special", "passkey", "number of",
                                         "magic",   "My dog",  "is called"};
    for (size_t i = 0; i < mix_n_patterns; i++)
        for (size_t k = 0; k < sizeof(theirs) / sizeof(theirs[0]); k++) {
            assert_null(strstr(mix_patterns[i].fact, theirs[k]));
            assert_null(strstr(mix_patterns[i].question, theirs[k]));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_gives_the_same_sequence_whatever_came_before),
        cmocka_unit_test(sequences_are_as_long_as_asked_and_hold_valid_ids),
        cmocka_unit_test(recall_documents_hold_facts_questions_and_answers),
        cmocka_unit_test(cloze_documents_tell_a_phrase_and_its_end_twice),
        cmocka_unit_test(a_phrase_is_asked_for_by_its_first_words),
        cmocka_unit_test(facts_are_told_and_asked_for_in_chats),
        cmocka_unit_test(copies_come_again_in_the_second_half),
        cmocka_unit_test(plain_text_is_text),
        cmocka_unit_test(chats_go_through_the_template),
        cmocka_unit_test(what_cannot_be_made_is_an_error_that_says_why),
        cmocka_unit_test(words_are_single_and_differ),
        cmocka_unit_test(training_uses_no_pattern_of_the_evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
