#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "runtime/text/nfc.h"

static void check(const char *text, const char *want)
{
    struct buf out = {0};
    assert_int_equal(nfc_append(&out, text, strlen(text)), OK);
    assert_string_equal(out.data, want);
    buf_fini(&out);
}

/* From the composition rules of the Unicode standard, annex 15. */
static void composes_what_the_standard_composes(void **state)
{
    (void)state;
    check("", "");
    check("plain text", "plain text");
    check("e\u0301", "\u00E9");
    check("xe\u0301y\u0308z", "x\u00E9\u00FFz");
    check("\u212B\u2126", "\u00C5\u03A9");
    check("s\u0307\u0323", "\u1E69");
    check("s\u0323\u0307", "\u1E69");
    check("\u1E9B\u0323", "\u1E9B\u0323");
    check("d\u0307\u0323", "\u1E0D\u0307");
    check("\u0344", "\u0308\u0301");
    check("\u1100\u1161\u11A8", "\uAC01");
    check("\uAC00\u11A8", "\uAC01");
    check("\uAC00\u11A7", "\uAC00\u11A7"); /* 11A7 is no trailing consonant */
    check("\u0958", "\u0915\u093C");       /* excluded from composition */
    check("\u0301e", "\u0301e");
    check("a\u034F\u0301", "a\u034F\u0301");
    check("\uFB01\u00B2", "\uFB01\u00B2"); /* no compatibility forms */
    check("\U0001D15E", "\U0001D157\U0001D165");
}

/* The reference knows Unicode 9: U+1AC0 (class 220 since Unicode 13) is a
 * letter to it, so that the acute does not pass it. */
static void characters_newer_than_the_reference_stop_marks(void **state)
{
    (void)state;
    check("a\u1AC0\u0301", "a\u1AC0\u0301");
    check("a\u0301\u1AC0", "\u00E1\u1AC0");
    check("q\u0345\u1AC0\u0323", "q\u0345\u1AC0\u0323");
    check("\U00011935\U00011930", "\U00011935\U00011930");
}

/* Against utf8proc's own NFC, whose ordering is another program. */
static void random_text_agrees_with_the_library(void **state)
{
    (void)state;
    static const struct {
        uint32_t lo, hi;
    } from[] = {{'a', 'z'},       {0xC0, 0x17F},    {0x300, 0x34E},
                {0x300, 0x34E},   {0x591, 0x5BD},   {0x64B, 0x655},
                {0x915, 0x94D},   {0x1100, 0x1112}, {0x1161, 0x1175},
                {0x11A8, 0x11C2}, {0xAC00, 0xAC1C}, {0x1E00, 0x1EFF},
                {0x1F00, 0x1FBC}, {0xF900, 0xF910}, {0x1D15E, 0x1D169}};
    uint64_t rng = 11;
    for (int round = 0; round < 50000; round++) {
        char text[4 * 12 + 1];
        size_t n = 0;
        struct buf out = {0};
        for (int i = 0; i < 12; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            size_t k = (size_t)(rng >> 40) % (sizeof(from) / sizeof(from[0]));
            uint32_t c = from[k].lo +
                         (uint32_t)(rng >> 33) % (from[k].hi - from[k].lo + 1);
            n += (size_t)utf8_encode(c, text + n);
        }
        text[n] = '\0';
        char *want = (char *)utf8proc_NFC((const utf8proc_uint8_t *)text);
        assert_non_null(want);
        assert_int_equal(nfc_append(&out, text, n), OK);
        assert_string_equal(out.data, want);
        free(want);
        buf_fini(&out);
    }
}

/* Half a million marks of three classes, out of order: sorted by class, equal
 * ones in their order; a quadratic sort would not come back. */
static void a_long_run_of_marks_is_sorted_and_stable(void **state)
{
    (void)state;
    static const char *const mark[] = {"\u0345", "\u0301", "\u0334", "\u0300"};
    enum { N = 500000 };
    struct buf text = {0}, want = {0}, out = {0};
    assert_int_equal(buf_puts(&text, "q"), OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(buf_puts(&text, mark[i % 4]), OK);
    assert_int_equal(buf_puts(&want, "q"), OK);
    for (int i = 0; i < N / 4; i++)
        assert_int_equal(buf_puts(&want, "\u0334"), OK);
    for (int i = 0; i < N / 4; i++)
        assert_int_equal(buf_puts(&want, "\u0301\u0300"), OK);
    for (int i = 0; i < N / 4; i++)
        assert_int_equal(buf_puts(&want, "\u0345"), OK);
    assert_int_equal(nfc_append(&out, text.data, text.len), OK);
    assert_int_equal(out.len, want.len);
    assert_memory_equal(out.data, want.data, want.len);
    buf_fini(&text);
    buf_fini(&want);
    buf_fini(&out);
}

static void text_below_u0300_is_trivial(void **state)
{
    (void)state;
    assert_true(nfc_is_trivial("", 0));
    assert_true(nfc_is_trivial("a\u00E9\u02FF", 5));
    assert_false(nfc_is_trivial("a\u0300", 3));
    assert_false(nfc_is_trivial("\u4E2D", 3));
}

static void a_full_buffer_and_bad_text_are_errors(void **state)
{
    (void)state;
    struct buf out = {.max = 3};
    assert_int_equal(nfc_append(&out, "e\u0301e\u0301", 6), ERR_BUDGET);
    buf_fini(&out);
    out.max = 0;
    assert_int_equal(nfc_append(&out, "a\xFF", 2), ERR_INVAL);
    assert_int_equal(nfc_append(&out, "a\xE2\x82", 3), ERR_INVAL);
    buf_fini(&out);
}

/* Bytes of what a decomposed character may have been written as: the longest
 * character that is only another name for it. */
static int longest_spelling(const uint8_t *spelling, utf8proc_int32_t cp)
{
    char bytes[UTF8_MAX_BYTES];
    int own = utf8_encode((uint32_t)cp, bytes);
    return spelling[cp] > own ? spelling[cp] : own;
}

static void no_character_shrinks_by_more_than_is_said(void **state)
{
    (void)state;
    enum { CODES = 0x110000, PARTS_MAX = 8 };
    uint8_t *spelling = calloc(CODES, 1);
    char bytes[UTF8_MAX_BYTES];
    utf8proc_int32_t part[PARTS_MAX];
    int most = 0, boundary = 0;
    assert_non_null(spelling);
    for (int pass = 0; pass < 2; pass++) {
        for (utf8proc_int32_t c = 0; c < CODES; c++) {
            if (c >= 0xD800 && c < 0xE000)
                continue;
            utf8proc_ssize_t n = utf8proc_decompose_char(
                c, part, PARTS_MAX, UTF8PROC_DECOMPOSE, &boundary);
            int own = utf8_encode((uint32_t)c, bytes), sum = 0;
            assert_true(n >= 1 && n <= PARTS_MAX);
            if (pass == 0 && n == 1 && own > spelling[part[0]])
                spelling[part[0]] = (uint8_t)own;
            for (utf8proc_ssize_t i = 0; pass == 1 && i < n; i++)
                sum += longest_spelling(spelling, part[i]);
            if (pass == 1 && n > 1)
                assert_true(own <= sum);
            if ((sum + own - 1) / own > most)
                most = (sum + own - 1) / own;
        }
    }
    assert_int_equal(most, NFC_SHRINK_MAX);
    free(spelling);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(composes_what_the_standard_composes),
        cmocka_unit_test(characters_newer_than_the_reference_stop_marks),
        cmocka_unit_test(random_text_agrees_with_the_library),
        cmocka_unit_test(a_long_run_of_marks_is_sorted_and_stable),
        cmocka_unit_test(text_below_u0300_is_trivial),
        cmocka_unit_test(no_character_shrinks_by_more_than_is_said),
        cmocka_unit_test(a_full_buffer_and_bad_text_are_errors),
    };
    return cmocka_run_group_tests_name("nfc", tests, NULL, NULL);
}
