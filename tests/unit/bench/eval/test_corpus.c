/* Windows of the texts: apart from each other, in an order that only seed and
 * length decide. */
#include "tests/unit/bench/eval/rig.h"

#include <stdio.h>
#include <unistd.h>

#include "base/file.h"

static size_t deal(struct corpus *c, uint32_t n_tokens, uint64_t seed)
{
    size_t n = 0;
    assert_int_equal(corpus_deal(c, n_tokens, seed, &n), OK);
    return n;
}

static void windows_are_apart(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_tokenizer(false);
    struct corpus *c = rig_corpus(t, 1);
    size_t n = deal(c, 700, 5);
    /* One token a byte. */
    assert_int_equal(n, RIG_TEXT_BYTES / 700);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) {
            ptrdiff_t gap = corpus_window(c, i) - corpus_window(c, j);
            assert_true(gap >= 700 || gap <= -700);
        }
    corpus_free(c);
    tokenizer_free(t);
}

static void the_seed_shuffles(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_tokenizer(false);
    struct corpus *a = rig_corpus(t, 1), *b = rig_corpus(t, 1);
    size_t n = deal(a, 500, 5), n_moved = 0;
    assert_int_equal(deal(b, 500, 5), n);
    for (size_t i = 0; i < n; i++)
        assert_memory_equal(corpus_window(a, i), corpus_window(b, i),
                            500 * sizeof(int32_t));
    assert_int_equal(deal(b, 500, 6), n);
    for (size_t i = 0; i < n; i++)
        n_moved += memcmp(corpus_window(a, i), corpus_window(b, i),
                          500 * sizeof(int32_t)) != 0;
    assert_true(n_moved > n / 2);
    corpus_free(a);
    corpus_free(b);
    tokenizer_free(t);
}

static void no_window_crosses_a_text(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_tokenizer(false);
    char dir[] = "/tmp/ebb-corpus-XXXXXX", path[2][64];
    char *list[] = {path[0], path[1]}, text[1000];
    struct errmsg m = {""};
    struct corpus *c = NULL;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof(path[i]), "%s/%d", dir, i);
        memset(text, 'a' + i, sizeof(text));
        assert_int_equal(file_replace(path[i], text, sizeof(text), &m), OK);
    }
    assert_int_equal(corpus_load(&c, t, list, 2, &m), OK);
    assert_int_equal(deal(c, 300, 1), 6); /* three in each; 2000 / 300 is 6 */
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 1; j < 300; j++)
            assert_int_equal(corpus_window(c, i)[j], corpus_window(c, i)[0]);
    assert_int_equal(deal(c, 1001, 1), 0);
    corpus_free(c);
    unlink(path[0]);
    assert_int_equal(corpus_load(&c, t, list, 2, &m), ERR_NOTFOUND);
    assert_non_null(strstr(m.text, path[0]));
    unlink(path[1]);
    rmdir(dir);
    tokenizer_free(t);
}

static void a_text_that_is_not_utf8_is_named(void **state)
{
    (void)state;
    static const char text[] = "caf\xC3\xA9, caf\xE9 and so on";
    struct tokenizer *t = tiny_tokenizer(false);
    char path[] = "/tmp/ebb-corpus-XXXXXX", *list[] = {path}, want[64];
    struct errmsg m = {""};
    struct corpus *c = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(file_replace(path, text, strlen(text), &m), OK);
    assert_int_equal(corpus_load(&c, t, list, 1, &m), ERR_INVAL);
    snprintf(want, sizeof(want), "%s: it is not UTF-8 at byte 10", path);
    assert_string_equal(m.text, want);
    unlink(path);
    tokenizer_free(t);
}

/* The same tokens, cut elsewhere, give other windows. */
static void the_hash_is_of_where_texts_end(void **state)
{
    (void)state;
    static const char words[] = "one two three four";
    struct tokenizer *t = tiny_tokenizer(false);
    char dir[] = "/tmp/ebb-corpus-XXXXXX", path[2][64], hash[3][65];
    char *list[] = {path[0], path[1]};
    struct errmsg m = {""};
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++)
        snprintf(path[i], sizeof(path[i]), "%s/%d", dir, i);
    static const size_t cut[] = {3, 7, sizeof(words) - 1};
    for (int i = 0; i < 3; i++) {
        struct corpus *c = NULL;
        size_t n = sizeof(words) - 1 - cut[i];
        assert_int_equal(file_replace(path[0], words, cut[i], &m), OK);
        assert_int_equal(file_replace(path[1], words + cut[i], n, &m), OK);
        assert_int_equal(corpus_load(&c, t, list, n > 0 ? 2 : 1, &m), OK);
        snprintf(hash[i], sizeof(hash[i]), "%s", corpus_hash(c));
        corpus_free(c);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(hash[i], hash[k]);
    }
    assert_int_equal(file_replace(path[1], words, sizeof(words) - 1, &m), OK);
    struct corpus *c = NULL;
    assert_int_equal(corpus_load(&c, t, list, 2, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "/0 and "));
    assert_non_null(strstr(m.text, "/1 are the same text"));
    unlink(path[0]);
    unlink(path[1]);
    rmdir(dir);
    tokenizer_free(t);
}

static void the_hash_is_of_the_texts(void **state)
{
    (void)state;
    struct tokenizer *t = tiny_tokenizer(false);
    struct corpus *a = rig_corpus(t, 1), *b = rig_corpus(t, 1),
                  *c = rig_corpus(t, 2);
    assert_int_equal(strlen(corpus_hash(a)), 64);
    assert_string_equal(corpus_hash(a), corpus_hash(b));
    assert_string_not_equal(corpus_hash(a), corpus_hash(c));
    corpus_free(a);
    corpus_free(b);
    corpus_free(c);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_are_apart),
        cmocka_unit_test(the_seed_shuffles),
        cmocka_unit_test(no_window_crosses_a_text),
        cmocka_unit_test(a_text_that_is_not_utf8_is_named),
        cmocka_unit_test(the_hash_is_of_the_texts),
        cmocka_unit_test(the_hash_is_of_where_texts_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
