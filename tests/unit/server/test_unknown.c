#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "server/unknown.h"

static int quiet(void **state)
{
    (void)state;
    log_setup(LOG_LEVEL_OFF, LOG_FORMAT_TEXT);
    return 0;
}

static void a_name_is_said_once(void **state)
{
    static struct unknown u;
    (void)state;
    unknown_init(&u);
    assert_true(unknown_log(&u, "mirostat"));
    assert_true(unknown_log(&u, "Mirostat"));
    assert_false(unknown_log(&u, "mirostat"));
    assert_false(unknown_log(&u, "Mirostat"));
    assert_true(unknown_log(&u, ""));
    assert_false(unknown_log(&u, ""));
    unknown_fini(&u);
}

/* Clients choose the names. */
static void names_do_not_fill_the_memory_or_the_log(void **state)
{
    static struct unknown u;
    char name[4000];
    uint32_t n = 0;
    (void)state;
    unknown_init(&u);
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    assert_true(unknown_log(&u, name));
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "field\n%d", i);
        n += unknown_log(&u, name);
    }
    assert_int_equal(n, UNKNOWN_NAMES_MAX - 1);
    assert_null(strchr(u.name[1], '\n'));
    unknown_fini(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_said_once),
        cmocka_unit_test(names_do_not_fill_the_memory_or_the_log),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
