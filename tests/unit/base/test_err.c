#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "base/utf8.h"

static void the_code_comes_back_and_the_sentence_is_kept(void **state)
{
    (void)state;
    struct errmsg m;
    assert_int_equal(err_set(&m, ERR_BUSY, "%d of %s", 3, "x"), ERR_BUSY);
    assert_string_equal(m.text, "3 of x");
    assert_int_equal(err_set(NULL, ERR_IO, "nobody listens"), ERR_IO);
}

static void bytes_that_cannot_be_printed_become_question_marks(void **state)
{
    (void)state;
    struct errmsg m;
    (void)err_set(&m, ERR_INVAL, "a%sb", "\n\x1b\xff\x7f\xC3\xA9");
    assert_string_equal(m.text, "a????\xC3\xA9"
                                "b");
}

static void a_long_sentence_is_cut_between_characters(void **state)
{
    (void)state;
    char text[2 * ERRMSG_MAX];
    /* Each start offset puts another byte of a character at the border. */
    for (size_t shift = 0; shift < 4; shift++) {
        struct errmsg m;
        memset(text, 'x', shift);
        for (size_t i = shift; i + 4 < sizeof(text); i += 4)
            memcpy(text + i, "\xF0\x9F\x98\x80", 5);
        (void)err_set(&m, ERR_INVAL, "%s", text);
        size_t n = strlen(m.text);
        assert_true(n < ERRMSG_MAX && n > ERRMSG_MAX - 8);
        assert_true(utf8_is_valid(m.text, n));
        assert_string_equal(m.text + n - 3, "...");
        assert_null(strchr(m.text, '?'));
    }
}

static void every_code_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (int i = OK; i <= ERR_INTERNAL; i++) {
        assert_string_not_equal(err_name((enum err)i), "unknown");
        for (int k = OK; k < i; k++)
            assert_string_not_equal(err_name((enum err)i),
                                    err_name((enum err)k));
    }
    assert_string_equal(err_name((enum err)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_code_comes_back_and_the_sentence_is_kept),
        cmocka_unit_test(bytes_that_cannot_be_printed_become_question_marks),
        cmocka_unit_test(a_long_sentence_is_cut_between_characters),
        cmocka_unit_test(every_code_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests_name("base/err", tests, NULL, NULL);
}
