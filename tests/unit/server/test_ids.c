#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "server/ids.h"

static void ids_differ_and_carry_their_prefix(void **state)
{
    enum { N = 200 };
    char id[N][IDS_MAX];
    (void)state;
    for (int i = 0; i < N; i++) {
        ids_make(id[i], "chatcmpl-");
        assert_memory_equal(id[i], "chatcmpl-", 9);
        assert_int_equal(strlen(id[i]), 9 + 24);
        assert_true(ids_is_sane(id[i]));
        for (int j = 0; j < i; j++)
            assert_string_not_equal(id[i], id[j]);
    }
}

static void ids_that_could_inject_something_are_not_repeated(void **state)
{
    static const char *const bad[] = {
        "",    "a b", "a\rb", "a\nb", "a\"b", "a\\b",
        "a;b", "a,b", "<a>",  "\x80", "a\tb", "a'b",
    };
    char text[200];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(ids_is_sane(bad[i]));
    assert_true(ids_is_sane("7f3c/req-1:2=a+b@c_D.e"));
    memset(text, 'x', sizeof(text));
    text[128] = '\0';
    assert_true(ids_is_sane(text));
    text[128] = 'x';
    text[129] = '\0';
    assert_false(ids_is_sane(text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_differ_and_carry_their_prefix),
        cmocka_unit_test(ids_that_could_inject_something_are_not_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
