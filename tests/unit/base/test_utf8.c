#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "base/rng.h"
#include "base/utf8.h"

/* The second way: build every character from its definition (RFC 3629
 * section 3) and see that exactly these are accepted. */
static int plain_encode(uint32_t cp, unsigned char *out)
{
    if (cp < 0x80) {
        out[0] = (unsigned char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (unsigned char)(0xC0 + cp / 64);
        out[1] = (unsigned char)(0x80 + cp % 64);
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (unsigned char)(0xE0 + cp / 4096);
        out[1] = (unsigned char)(0x80 + cp / 64 % 64);
        out[2] = (unsigned char)(0x80 + cp % 64);
        return 3;
    }
    out[0] = (unsigned char)(0xF0 + cp / 262144);
    out[1] = (unsigned char)(0x80 + cp / 4096 % 64);
    out[2] = (unsigned char)(0x80 + cp / 64 % 64);
    out[3] = (unsigned char)(0x80 + cp % 64);
    return 4;
}

static bool is_scalar(uint32_t cp)
{
    return cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF);
}

static void every_character_is_read_and_written(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x120000; cp++) {
        unsigned char plain[4];
        char ours[4];
        uint32_t back = 0;
        int n = plain_encode(cp, plain);
        int got = utf8_decode((const char *)plain, 4, &back);
        if (!is_scalar(cp)) {
            assert_int_equal(got, 0);
            assert_int_equal(utf8_encode(cp, ours), 3);
            assert_memory_equal(ours, "\xEF\xBF\xBD", 3);
            continue;
        }
        assert_int_equal(got, n);
        assert_int_equal(back, cp);
        assert_int_equal(utf8_encode(cp, ours), n);
        assert_memory_equal(ours, plain, (size_t)n);
        for (int cut = 1; cut < n; cut++)
            assert_int_equal(
                utf8_decode((const char *)plain, (size_t)cut, NULL), -1);
    }
}

static void the_first_wrong_byte_is_found(void **state)
{
    (void)state;
    assert_int_equal(utf8_valid_prefix("", 0), 0);
    assert_int_equal(utf8_valid_prefix("\xC3\xA9z", 3), 3);
    assert_int_equal(utf8_valid_prefix("\xC3\xA9z\xE9t\xC3", 6), 3);
    assert_int_equal(utf8_valid_prefix("\xC3\xA9\xC3", 3), 2);
    assert_int_equal(utf8_decode("", 0, NULL), -1);
    struct errmsg m = {""};
    assert_int_equal(utf8_check("\xC3\xA9z", 3, &m), OK);
    assert_int_equal(utf8_check("\xC3\xA9\xC3", 3, &m), ERR_INVAL);
    assert_string_equal(m.text, "it is not UTF-8 at byte 2");
}

static void overlong_forms_are_refused(void **state)
{
    (void)state;
    assert_false(utf8_is_valid("\xC0\xAF", 2));
    assert_false(utf8_is_valid("\xC1\xBF", 2));
    assert_false(utf8_is_valid("\xE0\x9F\xBF", 3));
    assert_false(utf8_is_valid("\xF0\x8F\xBF\xBF", 4));
    assert_false(utf8_is_valid("\xF5\x80\x80\x80", 4));
    assert_false(utf8_is_valid("\x80", 1));
    assert_true(utf8_is_valid("", 0));
    assert_true(utf8_is_valid("a\0b", 3));
}

static void repair_puts_one_mark_for_each_broken_part(void **state)
{
    (void)state;
    /* What Python's bytes.decode("utf-8", "replace") gives; R stands for
     * U+FFFD. */
    static const struct {
        const char *in, *out;
    } row[] = {
        {"ok \xC3\xA9", "ok \xC3\xA9"},
        {"caf\xE9", "cafR"},
        {"\xF0\x9F\x98", "R"},
        {"\xF0\x9F\x98x", "Rx"},
        {"\xF0\x80\x80", "RRR"},
        {"\xED\xA0\x80", "RRR"},
        {"\xE2\x82\xE2\x82\xAC", "R\xE2\x82\xAC"},
        {"\xC0\xAF", "RR"},
        {"\x80\x80", "RR"},
        {"\xF4\x90\x80\x80", "RRRR"},
        {"a\xFF"
         "b\xFE",
         "aRbR"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct buf got = {0}, want = {0};
        assert_int_equal(
            utf8_append_repaired(&got, row[i].in, strlen(row[i].in)), OK);
        for (const char *p = row[i].out; *p != '\0'; p++)
            assert_int_equal(*p == 'R' ? buf_puts(&want, "\xEF\xBF\xBD")
                                       : buf_putc(&want, *p),
                             OK);
        assert_string_equal(got.data, want.data);
        buf_fini(&got);
        buf_fini(&want);
    }
}

static void repaired_bytes_are_always_valid(void **state)
{
    (void)state;
    static const char odd[] = "ab\x80\xBF\xC2\xE0\xA0\xED\x9F\xF0\x90\xF4\x8F";
    struct rng r;
    rng_seed(&r, 3);
    for (int round = 0; round < 100000; round++) {
        char text[12];
        size_t n = (size_t)rng_below(&r, sizeof(text) + 1);
        for (size_t i = 0; i < n; i++)
            text[i] = odd[rng_below(&r, sizeof(odd) - 1)];
        struct buf b = {0};
        assert_int_equal(utf8_append_repaired(&b, text, n), OK);
        assert_true(utf8_is_valid(b.data, b.len));
        if (utf8_is_valid(text, n))
            assert_int_equal(b.len, n);
        buf_fini(&b);
    }
}

static void a_prefix_waits_only_for_what_can_still_come(void **state)
{
    (void)state;
    assert_int_equal(utf8_complete_prefix("", 0), 0);
    assert_int_equal(utf8_complete_prefix("abc", 3), 3);
    assert_int_equal(utf8_complete_prefix("a\xC3", 2), 1);
    assert_int_equal(utf8_complete_prefix("a\xC3\xA9", 3), 3);
    assert_int_equal(utf8_complete_prefix("\xF0\x9F\x98", 3), 0);
    assert_int_equal(utf8_complete_prefix("x\xF0\x9F\x98\x80", 5), 5);
    assert_int_equal(utf8_complete_prefix("a\xFF", 2), 2);
    assert_int_equal(utf8_complete_prefix("a\xED\xA0", 3), 3);
    assert_int_equal(utf8_complete_prefix("\x80\x80\x80\x80\x80", 5), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_is_read_and_written),
        cmocka_unit_test(the_first_wrong_byte_is_found),
        cmocka_unit_test(overlong_forms_are_refused),
        cmocka_unit_test(repair_puts_one_mark_for_each_broken_part),
        cmocka_unit_test(repaired_bytes_are_always_valid),
        cmocka_unit_test(a_prefix_waits_only_for_what_can_still_come),
    };
    return cmocka_run_group_tests_name("base/utf8", tests, NULL, NULL);
}
