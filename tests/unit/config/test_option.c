#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "config/option.h"

static void every_row_is_complete_and_named_once(void **state)
{
    (void)state;
    size_t n;
    const struct option *o = option_table(&n);
    for (size_t i = 0; i < n; i++) {
        assert_true(strlen(o[i].name) < OPTION_NAME_MAX);
        assert_int_equal(strspn(o[i].name, "abcdefghijklmnopqrstuvwxyz_"),
                         strlen(o[i].name));
        assert_non_null(o[i].dflt);
        assert_true(strlen(o[i].help) > 20);
        assert_int_equal(o[i].help[strlen(o[i].help) - 1], '.');
        assert_true((o[i].type == OPT_CHOICE) == (o[i].choices != NULL));
        assert_true((o[i].type == OPT_BOOL || o[i].type == OPT_CHOICE) ==
                    (o[i].word == NULL));
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(o[i].name, o[k].name);
        assert_ptr_equal(option_find(o[i].name), &o[i]);
    }
    assert_null(option_find("nothing"));
    assert_null(option_find(""));
}

static void names_become_flags_and_variables(void **state)
{
    (void)state;
    char text[OPTION_NAME_MAX + 8];
    option_flag(text, option_find("kv_memory"));
    assert_string_equal(text, "--kv-memory");
    option_variable(text, option_find("kv_memory"));
    assert_string_equal(text, "EBB_KV_MEMORY");
}

static void distance_counts_single_steps(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        int d;
    } row[] = {
        {"", "", 0},         {"abc", "abc", 0},        {"abc", "", 3},
        {"port", "prot", 1}, {"port", "ports", 1},     {"port", "pot", 1},
        {"port", "part", 1}, {"kitten", "sitting", 3}, {"ab", "ba", 1},
        {"flaw", "lawn", 2},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        assert_int_equal(option_distance(row[i].a, row[i].b), row[i].d);
        assert_int_equal(option_distance(row[i].b, row[i].a), row[i].d);
    }
    char long_text[1000];
    memset(long_text, 'x', sizeof(long_text));
    long_text[999] = '\0';
    assert_int_equal(option_distance(long_text, ""), OPTION_NAME_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_complete_and_named_once),
        cmocka_unit_test(names_become_flags_and_variables),
        cmocka_unit_test(distance_counts_single_steps),
    };
    return cmocka_run_group_tests_name("config/option", tests, NULL, NULL);
}
