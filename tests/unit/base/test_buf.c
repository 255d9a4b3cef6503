#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"

static void appends_of_any_size_agree_with_plain_memory(void **state)
{
    (void)state;
    static char plain[200000];
    struct buf b = {0};
    struct rng r;
    size_t n = 0;
    rng_seed(&r, 1);
    while (n < sizeof(plain) - 1000) {
        size_t k = (size_t)rng_below(&r, 1000);
        for (size_t i = 0; i < k; i++)
            plain[n + i] = (char)rng_next(&r);
        assert_int_equal(buf_append(&b, plain + n, k), OK);
        n += k;
        assert_int_equal(b.len, n);
        assert_int_equal(b.data[n], 0);
    }
    assert_memory_equal(b.data, plain, n);
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    buf_fini(&b);
    assert_null(b.data);
}

static void a_refused_append_changes_nothing(void **state)
{
    (void)state;
    struct buf b = {.max = 10};
    assert_int_equal(buf_puts(&b, "12345"), OK);
    assert_int_equal(buf_puts(&b, "678901"), ERR_BUDGET);
    assert_int_equal(buf_printf(&b, "%d", 123456), ERR_BUDGET);
    assert_string_equal(b.data, "12345");
    assert_int_equal(buf_puts(&b, "67890"), OK);
    assert_int_equal(buf_putc(&b, 'x'), ERR_BUDGET);
    assert_string_equal(b.data, "1234567890");
    assert_int_equal(buf_reserve(&b, SIZE_MAX), ERR_NOMEM);
    buf_fini(&b);
}

static void printf_writes_what_snprintf_would(void **state)
{
    (void)state;
    struct buf b = {0};
    char long_text[500];
    memset(long_text, 'x', sizeof(long_text));
    long_text[499] = '\0';
    assert_int_equal(buf_printf(&b, "%s|%d|", long_text, -5), OK);
    assert_int_equal(b.len, 503);
    assert_memory_equal(b.data, long_text, 499);
    assert_string_equal(b.data + 499, "|-5|");
    buf_fini(&b);
}

static void taking_hands_over_the_bytes(void **state)
{
    (void)state;
    struct buf b = {0};
    char *empty = buf_take(&b);
    assert_string_equal(empty, "");
    free(empty);
    assert_int_equal(buf_puts(&b, "mine"), OK);
    char *s = buf_take(&b);
    assert_string_equal(s, "mine");
    assert_null(b.data);
    assert_int_equal(b.len, 0);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_of_any_size_agree_with_plain_memory),
        cmocka_unit_test(a_refused_append_changes_nothing),
        cmocka_unit_test(printf_writes_what_snprintf_would),
        cmocka_unit_test(taking_hands_over_the_bytes),
    };
    return cmocka_run_group_tests_name("base/buf", tests, NULL, NULL);
}
