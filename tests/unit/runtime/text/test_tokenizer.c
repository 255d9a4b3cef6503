/* The tokenizer on small vocabularies, with ids worked out by hand or by a
 * plain search for the best pair; what real models give is in
 * test_tokenizer_golden.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>

#include "runtime/text/pretok.h"
#include "tiny_vocab.h"

static void check_ids(const struct tokens *got, const int32_t *want, size_t n)
{
    assert_int_equal(got->n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got->id[i], want[i]);
}

#define IDS(...)                                                               \
    (const int32_t[]){__VA_ARGS__},                                            \
        sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static void check_text(const struct tokenizer *t, const char *text,
                       unsigned flags, const int32_t *want, size_t n)
{
    struct tokens got = {0};
    assert_int_equal(tokenizer_encode(t, text, strlen(text), flags, &got), OK);
    check_ids(&got, want, n);
    tokens_fini(&got);
}

static void merges_go_by_rank_then_from_the_left(void **state)
{
    (void)state;
    struct tiny *v = tiny_new("gpt-2");
    int32_t bc = tiny_merge(v, "b", "c");
    int32_t ab = tiny_merge(v, "a", "b");
    int32_t abc = tiny_merge(v, "a", "bc");
    int32_t aa = tiny_merge(v, "a", "a");
    int32_t aaaa = tiny_merge(v, "aa", "aa");
    struct tokenizer *t = tiny_take(v);
    check_text(t, "abc", 0,
               IDS(abc)); /* bc first, although ab is on the left */
    check_text(t, "abd", 0, IDS(ab, 'd'));
    check_text(t, "aaa", 0, IDS(aa, 'a'));
    check_text(t, "aaaaa", 0, IDS(aaaa, 'a'));
    check_text(t, "aaaaaa", 0, IDS(aaaa, aa));
    check_text(t, "bcbc", 0, IDS(bc, bc));
    check_text(t, "ab bc", 0, IDS(ab, ' ', bc));
    check_text(t, "", 0, NULL, 0);
    tokenizer_free(t);
}

/* The plainest BPE: again and again the best pair, over strings. */
struct naive {
    char part[64][TINY_TEXT];
    size_t n;
};

static void naive_bpe(struct naive *w, const struct tiny *v, const char *word)
{
    w->n = strlen(word);
    assert(w->n <= 64);
    for (size_t i = 0; i < w->n; i++) {
        w->part[i][0] = word[i];
        w->part[i][1] = '\0';
    }
    for (size_t k = 0; k < v->spec.n_merges;) {
        char pair[2 * TINY_TEXT + 1];
        size_t i = 0;
        for (; i + 1 < w->n; i++) {
            snprintf(pair, sizeof(pair), "%s %s", w->part[i], w->part[i + 1]);
            if (strcmp(pair, v->merge_text[k]) == 0)
                break;
        }
        if (i + 1 >= w->n) {
            k++;
            continue;
        }
        size_t k_left = strlen(w->part[i]);
        assert(k_left + strlen(w->part[i + 1]) < TINY_TEXT);
        snprintf(w->part[i] + k_left, TINY_TEXT - k_left, "%s",
                 pair + k_left + 1);
        memmove(w->part[i + 1], w->part[i + 2],
                (w->n - i - 2) * sizeof(w->part[0]));
        w->n--;
        k = 0; /* the new symbol may be part of a better pair */
    }
}

static uint64_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

static bool knows(const struct tiny *v, const char *text)
{
    for (size_t i = 0; i < v->spec.n_tokens; i++)
        if (strcmp(v->text[i], text) == 0)
            return true;
    return false;
}

/* Letters only, so that a word is never split and the alphabet changes
 * nothing. */
static struct tiny *random_vocab(uint64_t *rng, size_t n_merges)
{
    struct tiny *v = tiny_new("gpt-2");
    while (v->spec.n_merges < n_merges) {
        char side[2][TINY_TEXT], both[2 * TINY_TEXT];
        for (int k = 0; k < 2; k++) {
            size_t pick = (size_t)next(rng) % (4 + v->spec.n_merges);
            snprintf(side[k], TINY_TEXT, "%s",
                     v->text[pick < 4 ? 'a' + pick : 256 + pick - 4]);
        }
        snprintf(both, sizeof(both), "%s%s", side[0], side[1]);
        if (strlen(both) <= 9 && !knows(v, both))
            (void)tiny_merge(v, side[0], side[1]);
    }
    return v;
}

static void random_words_agree_with_a_plain_search(void **state)
{
    (void)state;
    uint64_t rng = 5;
    static struct naive want;
    for (int round = 0; round < 60; round++) {
        struct tiny *v = random_vocab(&rng, 5 + (size_t)round);
        struct tokenizer *t = NULL;
        assert_int_equal(tokenizer_new(&t, &v->spec, NULL), OK);
        for (int k = 0; k < 100; k++) {
            char word[64];
            size_t n = 1 + (size_t)next(&rng) % 40;
            for (size_t i = 0; i < n; i++)
                word[i] = (char)('a' + next(&rng) % 4);
            word[n] = '\0';
            naive_bpe(&want, v, word);
            struct tokens got = {0};
            assert_int_equal(tokenizer_encode(t, word, n, 0, &got), OK);
            assert_int_equal(got.n, want.n);
            for (size_t i = 0; i < got.n; i++)
                assert_string_equal(v->text[got.id[i]], want.part[i]);
            tokens_fini(&got);
        }
        tokenizer_free(t);
        free(v);
    }
}

static void a_word_that_is_a_token_is_not_merged_with_llama_bpe(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct tiny *v = tiny_new(llama ? "llama-bpe" : "gpt-2");
        int32_t ab = tiny_merge(v, "a", "b");
        int32_t abc = tiny_add(v, "abc", TOKEN_NORMAL); /* no merge makes it */
        struct tokenizer *t = tiny_take(v);
        if (llama)
            check_text(t, "abc", 0, IDS(abc));
        else
            check_text(t, "abc", 0, IDS(ab, 'c'));
        check_text(t, "abcd", 0, IDS(ab, 'c', 'd'));
        tokenizer_free(t);
    }
}

static void a_byte_without_a_token_disappears(void **state)
{
    (void)state;
    struct tiny *v = tiny_new("gpt-2");
    v->type['b'] = TOKEN_UNUSED;
    int32_t ac = tiny_merge(v, "a", "c");
    struct tokenizer *t = tiny_take(v);
    check_text(t, "xabcb", 0, IDS('x', ac));
    check_text(t, "b", 0, NULL, 0);
    tokenizer_free(t);
}

static void ill_formed_text_is_read_as_replacement_characters(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_take(tiny_new("gpt-2"));
    check_text(t, "a\xFF", 0, IDS('a', 0xEF, 0xBF, 0xBD));
    check_text(t,
               "\xE2\x82"
               "b",
               0, IDS(0xEF, 0xBF, 0xBD, 'b'));
    tokenizer_free(t);
}

struct specials {
    struct tokenizer *t;
    int32_t end, longer, call, unused;
};

static struct specials with_specials(void)
{
    struct specials s;
    struct tiny *v = tiny_new("gpt-2");
    s.end = tiny_add(v, "<|e|>", TOKEN_CONTROL);
    s.longer = tiny_add(v, "<|e|>+", TOKEN_CONTROL);
    s.call = tiny_add(v, "<call>", TOKEN_USER_DEFINED);
    s.unused = tiny_add(v, "[PAD]", TOKEN_UNUSED);
    v->spec.eos = s.end;
    s.t = tiny_take(v);
    return s;
}

static void special_tokens_come_from_marked_text_only(void **state)
{
    (void)state;
    struct specials s = with_specials();
    check_text(s.t, "<|e|>", 0, IDS('<', '|', 'e', '|', '>'));
    check_text(s.t, "<call>", 0, IDS('<', 'c', 'a', 'l', 'l', '>'));
    unsigned special = TOKENIZER_PARSE_SPECIAL;
    check_text(s.t, "a<|e|>b<call>", special, IDS('a', s.end, 'b', s.call));
    check_text(s.t, "<|e|>+<|e|>", special, IDS(s.longer, s.end));
    check_text(s.t, "<<|e|>|e|>", special, IDS('<', s.end, '|', 'e', '|', '>'));
    check_text(s.t, "<|e|[PAD]", special,
               IDS('<', '|', 'e', '|', '[', 'P', 'A', 'D', ']'));
    tokenizer_free(s.t);
}

static void a_merge_never_makes_a_special_token(void **state)
{
    (void)state;
    struct tiny *v = tiny_new("gpt-2");
    int32_t ab = tiny_merge(v, "a", "b");
    int32_t abc = tiny_merge(v, "ab", "c");
    v->type[ab] = TOKEN_CONTROL;
    struct tokenizer *t = tiny_take(v);
    check_text(t, "abc", 0, IDS('a', 'b', 'c'));
    check_text(t, "abc", TOKENIZER_PARSE_SPECIAL, IDS(ab, 'c'));
    assert_int_equal(tokenizer_find(t, "abc", 3), abc);
    tokenizer_free(t);
}

static void check_segments(const struct tokenizer *t,
                           const struct text_segment *seg, size_t n_segs,
                           const int32_t *want, size_t n)
{
    struct tokens got = {0};
    assert_int_equal(tokenizer_encode_segments(t, seg, n_segs, 0, &got), OK);
    check_ids(&got, want, n);
    tokens_fini(&got);
}

static void a_special_token_must_lie_in_segments_that_allow_it(void **state)
{
    (void)state;
    struct specials s = with_specials();
    const struct text_segment user[] = {{"<|e|>", 5, true, false},
                                        {"<|e|>", 5, false, false},
                                        {"<|e|>", 5, true, false}};
    check_segments(s.t, user, 3, IDS(s.end, '<', '|', 'e', '|', '>', s.end));
    const struct text_segment half[] = {{"<|", 2, true, false},
                                        {"e|>", 3, false, false}};
    check_segments(s.t, half, 2, IDS('<', '|', 'e', '|', '>'));
    const struct text_segment half_user[] = {{"<|", 2, false, false},
                                             {"e|>", 3, true, false}};
    check_segments(s.t, half_user, 2, IDS('<', '|', 'e', '|', '>'));
    const struct text_segment both[] = {
        {"<|", 2, true, false}, {"", 0, false, false}, {"e|>", 3, true, false}};
    check_segments(s.t, both, 3, IDS(s.end));
    check_segments(s.t, NULL, 0, NULL, 0);
    tokenizer_free(s.t);
}

static void words_and_merges_run_across_segments(void **state)
{
    (void)state;
    struct tiny *v = tiny_new("gpt-2");
    int32_t ab = tiny_merge(v, "a", "b");
    int32_t sp = tiny_merge(v, " ", "ab");
    struct tokenizer *t = tiny_take(v);
    const struct text_segment seg[] = {{" ", 1, true, false},
                                       {"a", 1, false, false},
                                       {"b", 1, true, false},
                                       {"ab", 2, false, false}};
    check_segments(t, seg, 4, IDS(sp, ab));
    tokenizer_free(t);
}

/* Every word that the rule splits, asked for here a second time: its tokens
 * (the vocabulary has bytes only) are marked if a byte of it is. */
static void expect_marks(const char *text, size_t n, const bool *is_marked,
                         const struct token_ranges *got)
{
    struct pretok *rule = NULL;
    struct pretok_scan scan;
    size_t begin, end, in_ranges = 0;
    enum err rc;
    assert_int_equal(pretok_new(&rule, "gpt-2", 5, NULL), OK);
    assert_int_equal(pretok_scan_init(&scan, rule), OK);
    pretok_scan_start(&scan, text, n);
    while (pretok_scan_next(&scan, &begin, &end, &rc)) {
        bool wanted = false, found = false;
        for (size_t i = begin; i < end; i++)
            wanted |= is_marked[i];
        for (size_t i = 0; i < got->n; i++)
            found |= got->v[i].from <= begin && got->v[i].to >= end;
        assert_int_equal(found, wanted);
        in_ranges += wanted ? end - begin : 0;
    }
    for (size_t i = 0; i < got->n; i++) {
        assert_true(got->v[i].from < got->v[i].to);
        assert_true(i == 0 || got->v[i - 1].to < got->v[i].from);
        in_ranges -= got->v[i].to - got->v[i].from;
    }
    assert_int_equal(in_ranges, 0);
    pretok_scan_fini(&scan);
    pretok_free(rule);
}

static void marks_tell_the_tokens_of_marked_words(void **state)
{
    enum { ROUNDS = 2000, LONG = 64 };
    (void)state;
    uint64_t rng = 11;
    struct tokenizer *t = tiny_take(tiny_new("gpt-2"));
    for (int round = 0; round < ROUNDS; round++) {
        char text[LONG];
        bool is_marked[LONG];
        struct text_segment seg[LONG];
        size_t n = (size_t)next(&rng) % LONG, n_segs = 0;
        for (size_t i = 0; i < n; i++) {
            text[i] = "ab 1.\n"[next(&rng) % 6];
            bool starts = i == 0 || next(&rng) % 5 == 0;
            is_marked[i] = starts ? next(&rng) % 2 : is_marked[i - 1];
            if (starts)
                seg[n_segs++] = (struct text_segment){
                    text + i, 0, next(&rng) % 2, is_marked[i]};
            seg[n_segs - 1].n++;
        }
        struct token_ranges marks = {0};
        struct tokens got = {.marked = &marks};
        assert_int_equal(tokenizer_encode_segments(t, seg, n_segs, 0, &got),
                         OK);
        assert_int_equal(got.n, n);
        expect_marks(text, n, is_marked, &marks);
        tokens_fini(&got);
        token_ranges_fini(&marks);
    }
    tokenizer_free(t);
}

static void marks_find_their_tokens_behind_special_ones(void **state)
{
    (void)state;
    struct specials s = with_specials();
    const struct text_segment seg[] = {
        {"<|e|>ab", 7, true, false},    {"<|e|>", 5, false, true},
        {"<|e|>", 5, true, false},      {"c", 1, false, true},
        {"<|e|><|e|>", 10, true, true}, {"", 0, false, true},
        {" d", 2, false, false},
    };
    struct token_ranges marks = {0};
    struct tokens got = {.marked = &marks};
    assert_int_equal(tokenizer_encode_segments(s.t, seg, 7, 0, &got), OK);
    /* e ab<|e|> e c e e " d": the word <| is a word of its own, and no word
     * at all of a special token is marked. */
    assert_int_equal(marks.n, 2);
    assert_int_equal(marks.v[0].from, 3);
    assert_int_equal(marks.v[0].to, 8);
    assert_int_equal(marks.v[1].from, 9);
    assert_int_equal(marks.v[1].to, 10);
    tokens_fini(&got);
    token_ranges_fini(&marks);
    tokenizer_free(s.t);
}

/* Two bytes more before the border than the normal form has. */
static void marks_stay_in_place_under_nfc(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_take(tiny_new("qwen2"));
    const struct text_segment seg[] = {
        {"e\xCC\x81\n", 4, false, false}, {"xo\xCC\x88\n", 5, false, true},
        {"e\xCC\x81\n", 4, false, false}, {"y", 1, false, true},
        {"\n", 1, false, false},
    };
    struct token_ranges marks = {0};
    struct tokens got = {.marked = &marks};
    assert_int_equal(tokenizer_encode_segments(t, seg, 5, 0, &got), OK);
    check_ids(&got, IDS(0xC3, 0xA9, '\n', 'x', 0xC3, 0xB6, '\n', 0xC3, 0xA9,
                        '\n', 'y', '\n'));
    assert_int_equal(marks.n, 2);
    assert_int_equal(marks.v[0].from, 3);
    assert_int_equal(marks.v[0].to, 7);
    assert_int_equal(marks.v[1].from, 10);
    assert_int_equal(marks.v[1].to, 11);
    /* A mark that is composed with what stands before it. */
    const struct text_segment across[] = {{"a\ne", 3, false, false},
                                          {"\xCC\x81", 2, false, true},
                                          {"\nb", 2, false, false}};
    got.n = marks.n = 0;
    assert_int_equal(tokenizer_encode_segments(t, across, 3, 0, &got), OK);
    check_ids(&got, IDS('a', '\n', 0xC3, 0xA9, '\n', 'b'));
    assert_int_equal(marks.n, 1);
    assert_int_equal(marks.v[0].from, 2);
    assert_int_equal(marks.v[0].to, 4);
    tokens_fini(&got);
    token_ranges_fini(&marks);
    tokenizer_free(t);
}

static void bos_is_added_once_where_the_model_wants_it(void **state)
{
    (void)state;
    for (int wants = 0; wants < 2; wants++) {
        struct tiny *v = tiny_new("gpt-2");
        int32_t bos = tiny_add(v, "<s>", TOKEN_CONTROL);
        v->spec.bos = bos;
        v->spec.add_bos = wants;
        struct tokenizer *t = tiny_take(v);
        unsigned both = TOKENIZER_ADD_BOS | TOKENIZER_PARSE_SPECIAL;
        assert_int_equal(tokenizer_bos(t), bos);
        assert_int_equal(tokenizer_adds_bos(t), wants);
        if (wants) {
            check_text(t, "a", TOKENIZER_ADD_BOS, IDS(bos, 'a'));
            check_text(t, "", TOKENIZER_ADD_BOS, IDS(bos));
            check_text(t, "<s>a", both, IDS(bos, 'a'));
            check_text(t, "a<s>", both, IDS(bos, 'a', bos));
            check_text(t, "<s>", TOKENIZER_ADD_BOS, IDS(bos, '<', 's', '>'));
        } else {
            check_text(t, "a", both, IDS('a'));
        }
        check_text(t, "a", 0, IDS('a'));
        tokenizer_free(t);
    }
}

static void kinds_names_and_bytes_of_tokens_can_be_asked_for(void **state)
{
    (void)state;
    struct specials s = with_specials();
    size_t n = 0;
    assert_int_equal(tokenizer_n_vocab(s.t), 260);
    const char *p = tokenizer_token_bytes(s.t, 0x0A, &n);
    assert_int_equal(n, 1);
    assert_int_equal(p[0], '\n');
    p = tokenizer_token_bytes(s.t, s.end, &n);
    assert_int_equal(n, 5);
    assert_memory_equal(p, "<|e|>", 5);
    assert_null(tokenizer_token_bytes(s.t, 260, &n));
    assert_null(tokenizer_token_bytes(s.t, -1, &n));
    assert_true(tokenizer_is_special(s.t, s.end));
    assert_true(tokenizer_is_special(s.t, s.call));
    assert_false(tokenizer_is_special(s.t, s.unused));
    assert_false(tokenizer_is_special(s.t, 'a'));
    assert_false(tokenizer_is_special(s.t, 260));
    assert_true(tokenizer_is_control(s.t, s.end));
    assert_false(tokenizer_is_control(s.t, s.call));
    assert_true(tokenizer_is_control(s.t, s.unused));
    assert_false(tokenizer_is_control(s.t, 'a'));
    assert_true(tokenizer_is_control(s.t, 260));
    assert_int_equal(tokenizer_find(s.t, "<|e|>", 5), s.end);
    assert_int_equal(tokenizer_find(s.t, "<|e|", 4), -1);
    assert_int_equal(tokenizer_find(s.t, "\xFF", 1), 255);
    assert_int_equal(tokenizer_find(s.t, "", 0), -1);
    assert_int_equal(tokenizer_find(s.t, "[PAD]", 5), -1);
    tokenizer_free(s.t);
}

static void answers_end_at_the_named_ids_and_the_usual_names(void **state)
{
    (void)state;
    size_t n = 0;
    struct tiny *v = tiny_new("qwen2");
    int32_t end = tiny_add(v, "<|im_end|>", TOKEN_CONTROL);
    int32_t other = tiny_add(v, "<|im_start|>", TOKEN_CONTROL);
    int32_t user = tiny_add(v, "<|endoftext|>", TOKEN_USER_DEFINED);
    v->spec.eos = 'e';
    v->spec.eot = 't';
    struct tokenizer *t = tiny_take(v);
    const int32_t *id = tokenizer_eog(t, &n);
    assert_int_equal(n, 3);
    assert_int_equal(id[0], 'e');
    assert_int_equal(id[1], 't');
    assert_int_equal(id[2], end);
    assert_true(tokenizer_is_eog(t, end));
    assert_false(tokenizer_is_eog(t, other));
    assert_false(tokenizer_is_eog(t, user));
    assert_int_equal(tokenizer_eos(t), 'e');
    tokenizer_free(t);
}

static void too_many_ids_or_bytes_are_refused_and_nothing_is_added(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_take(tiny_new("gpt-2"));
    struct tokens v = {.max = 4};
    assert_int_equal(tokenizer_encode(t, "ab", 2, 0, &v), OK);
    assert_int_equal(tokenizer_encode(t, "cde", 3, 0, &v), ERR_BUDGET);
    check_ids(&v, IDS('a', 'b'));
    assert_int_equal(tokenizer_encode(t, "cd", 2, 0, &v), OK);
    check_ids(&v, IDS('a', 'b', 'c', 'd'));
    assert_int_equal(
        tokenizer_encode(t, "", (size_t)TOKENIZER_TEXT_MAX + 1, 0, &v),
        ERR_INVAL);
    struct text_segment huge[] = {{"a", 1, true, false},
                                  {"", TOKENIZER_TEXT_MAX, true, false}};
    assert_int_equal(tokenizer_encode_segments(t, huge, 2, 0, &v), ERR_INVAL);
    tokens_fini(&v);
    tokenizer_free(t);
}

static void a_text_is_refused_unread_when_its_bytes_prove_too_much(void **state)
{
    (void)state;
    struct tiny *v = tiny_new("gpt-2");
    (void)tiny_add(v, "<|twelve!!|>", TOKEN_CONTROL);
    struct tokenizer *t = tiny_take(v);
    assert_int_equal(tokenizer_least_tokens(t, 120), 10);
    assert_int_equal(tokenizer_least_tokens(t, 119), 9);
    /* Had it been read, the flag would have ended it. */
    atomic_bool stop = true;
    struct tokens out = {.max = 9, .stop = &stop};
    char text[120];
    memset(text, 'a', sizeof(text));
    assert_int_equal(tokenizer_encode(t, text, 120, 0, &out), ERR_BUDGET);
    assert_int_equal(tokenizer_encode(t, text, 119, 0, &out), ERR_CANCELLED);
    assert_int_equal(out.n, 0);
    tokens_fini(&out);
    tokenizer_free(t);

    v = tiny_new("gpt-2");
    v->type['a'] = TOKEN_CONTROL; /* a text of this letter has no token */
    t = tiny_take(v);
    assert_int_equal(tokenizer_least_tokens(t, 1000), 0);
    tokenizer_free(t);
}

/* Long tokens of other letters do not help a word. */
static void a_long_word_is_refused_by_its_letters(void **state)
{
    (void)state;
    enum { BYTES = 6000 };
    struct tiny *v = tiny_new("gpt-2");
    (void)tiny_merge(v, "a", "a");
    (void)tiny_merge(v, "b", "b");
    (void)tiny_merge(v, "bb", "bb");
    struct tokenizer *t = tiny_take(v);
    char text[BYTES];
    atomic_bool stop = false;
    memset(text, 'a', BYTES);
    for (int i = 0; i < 2; i++) {
        struct tokens out = {.max = BYTES / 2 - (i == 0), .stop = &stop};
        assert_int_equal(tokenizer_encode(t, text, BYTES, 0, &out),
                         i == 0 ? ERR_BUDGET : OK);
        assert_int_equal(out.n, i == 0 ? 0 : BYTES / 2);
        tokens_fini(&out);
    }
    text[BYTES - 1] = 'b';
    struct tokens out = {.max = BYTES / 2 + 1, .stop = &stop};
    assert_int_equal(tokenizer_encode(t, text, BYTES, 0, &out), OK);
    assert_int_equal(out.n, BYTES / 2 + 1); /* an odd one, and the b */
    tokens_fini(&out);
    tokenizer_free(t);
}

static void *stop_soon(void *arg)
{
    struct timespec wait = {0, 20 * 1000000};
    nanosleep(&wait, NULL);
    atomic_store((atomic_bool *)arg, true);
    return NULL;
}

static void one_endless_word_can_be_stopped(void **state)
{
    (void)state;
    enum { BYTES = 32 << 20 };
    struct tiny *v = tiny_new("gpt-2");
    (void)tiny_merge(v, "a", "a");
    (void)tiny_merge(v, "aa", "aa");
    struct tokenizer *t = tiny_take(v);
    char *text = malloc(BYTES);
    assert_non_null(text);
    memset(text, 'a', BYTES);
    atomic_bool stop = false;
    struct tokens out = {.stop = &stop};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &stop), 0);
    assert_int_equal(tokenizer_encode(t, text, BYTES, 0, &out), ERR_CANCELLED);
    assert_int_equal(out.n, 0);
    pthread_join(thread, NULL);
    free(text);
    tokens_fini(&out);
    tokenizer_free(t);
}

/* Spoils one thing of a good vocabulary: it must be refused, and the
 * sentence must hold `say`. */
static void refuses(struct tiny *v, enum err code, const char *say)
{
    struct errmsg m = {""};
    struct tokenizer *t = (struct tokenizer *)&m;
    assert_int_equal(tokenizer_new(&t, &v->spec, &m), code);
    assert_null(t);
    if (strstr(m.text, say) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", m.text, say);
    free(v);
}

static struct tiny *good(void)
{
    struct tiny *v = tiny_new("smollm");
    (void)tiny_merge(v, "a", "b");
    (void)tiny_add(v, "<s>", TOKEN_CONTROL);
    return v;
}

static void set_merge(struct tiny *v, const char *text)
{
    v->merge[0] = (struct gguf_str){text, strlen(text)};
}

static void an_impossible_vocabulary_is_refused_with_the_reason(void **state)
{
    (void)state;
    struct tiny *v = good();
    v->spec.n_tokens = 0;
    refuses(v, ERR_INVAL, "0 tokens");
    v = good();
    v->token[7].n = 0;
    refuses(v, ERR_INVAL, "token 7 is empty");
    v = good();
    v->token[7] = v->token[9];
    refuses(v, ERR_INVAL, "tokens 7 and 9");
    v = good();
    (void)tiny_add(v, "<s>", TOKEN_USER_DEFINED);
    refuses(v, ERR_INVAL, "are both \"<s>\"");
    v = good();
    v->type[3] = 0;
    refuses(v, ERR_INVAL, "token 3 has the type 0");
    v = good();
    v->type[3] = 7;
    refuses(v, ERR_INVAL, "token 3 has the type 7");
    v = good();
    v->spec.eos = 258;
    refuses(v, ERR_INVAL, "eos_token_id is 258");
    v = good();
    v->spec.bos = -2;
    refuses(v, ERR_INVAL, "bos_token_id is -2");
    v = good();
    v->spec.n_tokens = SIZE_MAX;
    refuses(v, ERR_INVAL, "tokens");
    v = good();
    v->spec.n_merges = SIZE_MAX;
    refuses(v, ERR_INVAL, "merges");
    v = good();
    v->token[7].n = 1 << 20;
    refuses(v, ERR_INVAL, "token 7 has 1048576 bytes");
}

static void an_impossible_merge_is_refused_with_its_index(void **state)
{
    (void)state;
    static const char *const merge[] = {
        "",     " ",    "a",    "a ",   " b",      "a b c",
        "a  b", "zz b", "a zz", "b a",  "\xFF b",  "a \xC3",
        "ab",   " a b", "a b ", "a\tb", "\u4E2D b"};
    for (size_t i = 0; i < sizeof(merge) / sizeof(merge[0]); i++) {
        struct tiny *v = good();
        set_merge(v, merge[i]);
        refuses(v, ERR_INVAL, "merge 0");
    }
    struct tiny *v = good();
    v->merge[0].n = 1 << 20;
    refuses(v, ERR_INVAL, "merge 0 has 1048576 bytes");
}

static void an_unknown_rule_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const name[] = {"", "tekken", "qwen", "qwen22",
                                       "default"};
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        struct tiny *v = good();
        v->spec.pre = (struct gguf_str){name[i], strlen(name[i])};
        char say[32];
        snprintf(say, sizeof(say), "\"%s\"", name[i]);
        refuses(v, ERR_UNSUPPORTED, say);
    }
}

static void
normal_tokens_outside_the_alphabet_are_kept_but_never_made(void **state)
{
    (void)state;
    struct tiny *v = tiny_new("gpt-2");
    int32_t raw = tiny_add(v, "\u4E2D", TOKEN_NORMAL);
    struct tokenizer *t = tiny_take(v);
    size_t n = 0;
    const char *s = tokenizer_token_bytes(t, raw, &n);
    assert_int_equal(n, 3);
    assert_memory_equal(s, "\u4E2D", 3);
    check_text(t, "\u4E2D", TOKENIZER_PARSE_SPECIAL, IDS(0xE4, 0xB8, 0xAD));
    tokenizer_free(t);
}

static void *encode_often(void *arg)
{
    const struct tokenizer *t = arg;
    static const char text[] = "abab 12 ab <|e|> it's\n\n  aab";
    struct tokens first = {0}, v = {0};
    size_t differs = tokenizer_encode(t, text, sizeof(text) - 1, 0, &first);
    for (int i = 0; i < 300; i++) {
        v.n = 0;
        differs += tokenizer_encode(t, text, sizeof(text) - 1, 0, &v) != OK ||
                   v.n != first.n ||
                   memcmp(v.id, first.id, v.n * sizeof(*v.id)) != 0;
    }
    tokens_fini(&first);
    tokens_fini(&v);
    return differs == 0 ? NULL : arg;
}

static void threads_may_share_a_tokenizer(void **state)
{
    (void)state;
    struct tiny *v = tiny_new("smollm");
    (void)tiny_merge(v, "a", "b");
    struct tokenizer *t = tiny_take(v);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *bad = t;
        assert_int_equal(pthread_join(thread[i], &bad), 0);
        assert_null(bad);
    }
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_go_by_rank_then_from_the_left),
        cmocka_unit_test(random_words_agree_with_a_plain_search),
        cmocka_unit_test(a_word_that_is_a_token_is_not_merged_with_llama_bpe),
        cmocka_unit_test(a_byte_without_a_token_disappears),
        cmocka_unit_test(ill_formed_text_is_read_as_replacement_characters),
        cmocka_unit_test(special_tokens_come_from_marked_text_only),
        cmocka_unit_test(a_merge_never_makes_a_special_token),
        cmocka_unit_test(a_special_token_must_lie_in_segments_that_allow_it),
        cmocka_unit_test(words_and_merges_run_across_segments),
        cmocka_unit_test(marks_tell_the_tokens_of_marked_words),
        cmocka_unit_test(marks_find_their_tokens_behind_special_ones),
        cmocka_unit_test(marks_stay_in_place_under_nfc),
        cmocka_unit_test(bos_is_added_once_where_the_model_wants_it),
        cmocka_unit_test(kinds_names_and_bytes_of_tokens_can_be_asked_for),
        cmocka_unit_test(answers_end_at_the_named_ids_and_the_usual_names),
        cmocka_unit_test(
            too_many_ids_or_bytes_are_refused_and_nothing_is_added),
        cmocka_unit_test(
            a_text_is_refused_unread_when_its_bytes_prove_too_much),
        cmocka_unit_test(a_long_word_is_refused_by_its_letters),
        cmocka_unit_test(one_endless_word_can_be_stopped),
        cmocka_unit_test(an_impossible_vocabulary_is_refused_with_the_reason),
        cmocka_unit_test(an_impossible_merge_is_refused_with_its_index),
        cmocka_unit_test(an_unknown_rule_is_refused_by_name),
        cmocka_unit_test(
            normal_tokens_outside_the_alphabet_are_kept_but_never_made),
        cmocka_unit_test(threads_may_share_a_tokenizer),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
