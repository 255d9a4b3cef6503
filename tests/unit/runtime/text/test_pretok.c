#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "runtime/text/pretok.h"

/* Words of the text, each followed by a bar. */
static void check(const char *rule, const char *text, const char *want)
{
    struct pretok *p = NULL;
    struct pretok_scan it;
    struct buf got = {0};
    size_t begin, end;
    enum err rc = OK;
    assert_int_equal(pretok_new(&p, rule, strlen(rule), NULL), OK);
    assert_int_equal(pretok_scan_init(&it, p), OK);
    pretok_scan_start(&it, text, strlen(text));
    while (pretok_scan_next(&it, &begin, &end, &rc)) {
        assert_int_equal(buf_append(&got, text + begin, end - begin), OK);
        assert_int_equal(buf_putc(&got, '|'), OK);
    }
    assert_int_equal(rc, OK);
    assert_string_equal(got.data != NULL ? got.data : "", want);
    buf_fini(&got);
    pretok_scan_fini(&it);
    pretok_free(p);
}

static void gpt2_splits_words_numbers_and_marks(void **state)
{
    (void)state;
    check("gpt-2", "", "");
    check("gpt-2", "Hello world", "Hello| world|");
    check("gpt-2", "it's THEY'RE x'll", "it|'s| THEY|'|RE| x|'ll|");
    check("gpt-2", "a1234 56", "a|1234| 56|");
    check("gpt-2", "a  b", "a| | b|");
    check("gpt-2", "a   ", "a|   |");
    check("gpt-2", "a\n\n b", "a|\n\n| b|");
    check("gpt-2", "x==y!", "x|==|y|!|");
    check("gpt-2", "\u00E9t\u00E9 \u4E2D\u6587\u3002",
          "\u00E9t\u00E9| \u4E2D\u6587|\u3002|");
    check("gpt-2", "\u00A0a\t\u2028b", "\u00A0|a|\t|\u2028|b|");
}

static void smollm_takes_every_digit_alone(void **state)
{
    (void)state;
    check("smollm", "a123b", "a|1|2|3|b|");
    check("smollm", "a 12", "a| |1|2|");
    check("smollm", "a  12", "a|  |1|2|"); /* the piece ends at the digit */
    check("smollm", "a  b", "a| | b|");
    check("smollm", "9", "9|");
    check("smollm", "x\u0663\u00BD\u2167y", "x|\u0663|\u00BD|\u2167|y|");
    check("smollm", "'s1's", "'s|1|'s|");
}

static void qwen2_keeps_line_ends_together(void **state)
{
    (void)state;
    check("qwen2", "It's IT'S we'LL", "It|'s| IT|'S| we|'LL|");
    check("qwen2", "a123", "a|1|2|3|");
    check("qwen2", "x();\n\n  y", "x|();\n\n| | y|");
    check("qwen2", " \n \n  z", " \n \n| | z|");
    check("qwen2", ".word _w", ".word| _|w|"); /* one mark joins a word */
    check("qwen2", "\tif (a)", "\tif| (|a|)|");
    check("qwen2", "a\r\nb", "a|\r\n|b|");
    check("qwen2", "'\u017F", "'\u017F|"); /* long s is an s in any case */
}

static void llama_takes_up_to_three_digits(void **state)
{
    (void)state;
    check("llama-bpe", "a1234567 8", "a|123|456|7| |8|");
    check("llama-bpe", "x();\n y", "x|();\n| y|");
}

/* U+180E was white space once, and is to PCRE2's \s; U+200B never was. */
static void white_space_is_what_unicode_says_now(void **state)
{
    (void)state;
    static const char *const rule[] = {"gpt-2", "smollm", "qwen2", "llama-bpe"};
    for (size_t i = 0; i < 4; i++) {
        check(rule[i], "! \u180E!", "!| \u180E!|");
        check(rule[i], "! \u200B!", "!| \u200B!|");
        check(rule[i], "! \u3000!", "!| |\u3000|!|");
        check(rule[i], "! \xC2\x85!", "!| |\xC2\x85|!|");
    }
}

/* Letters of Unicode 15 and 16 (CJK extension H and I, Kawi, Garay), which
 * PCRE2 of Unicode 14 does not know as such. */
static void letters_and_digits_are_those_of_unicode_16(void **state)
{
    (void)state;
    check("gpt-2", "a\U00031350\U0002EBF0!", "a\U00031350\U0002EBF0|!|");
    check("qwen2", "\U00011F04a\U00010D4A!", "\U00011F04a\U00010D4A|!|");
    check("smollm", "a\U00011F50\U00011DE0!", "a|\U00011F50|\U00011DE0|!|");
    check("gpt-2", "a\U00011F50\U00010D40!", "a|\U00011F50\U00010D40|!|");
}

static void an_unknown_rule_is_named_in_the_error(void **state)
{
    (void)state;
    struct pretok *p = NULL;
    struct errmsg m;
    assert_int_equal(pretok_new(&p, "mpt\n", 4, &m), ERR_UNSUPPORTED);
    assert_null(p);
    assert_non_null(strstr(m.text, "\"mpt?\""));
    assert_int_equal(pretok_new(&p, NULL, 0, &m), ERR_UNSUPPORTED);
    assert_int_equal(pretok_new(&p, "gpt-2x", 5, NULL), OK);
    assert_false(pretok_wants_nfc(p));
    assert_false(pretok_ignores_merges(p));
    pretok_free(p);
    pretok_free(NULL);
}

static void only_qwen2_normalises_and_only_llama_ignores_merges(void **state)
{
    (void)state;
    static const char *const rule[] = {"gpt-2", "smollm", "qwen2", "llama-bpe"};
    for (size_t i = 0; i < 4; i++) {
        struct pretok *p = NULL;
        assert_int_equal(pretok_new(&p, rule[i], strlen(rule[i]), NULL), OK);
        assert_int_equal(pretok_wants_nfc(p), i == 2);
        assert_int_equal(pretok_ignores_merges(p), i == 3);
        pretok_free(p);
    }
}

/* One scan serves several texts; words lie end to end and cover all. */
static void long_texts_are_covered_without_gaps(void **state)
{
    (void)state;
    static const char *const unit[] = {
        " ", "a", "\n", " \n", "1", "a1 \u3000", "\U0001F600", "'s", "<|"};
    static const char *const rule[] = {"gpt-2", "smollm", "qwen2", "llama-bpe"};
    for (size_t r = 0; r < 4; r++) {
        struct pretok *p = NULL;
        struct pretok_scan it;
        assert_int_equal(pretok_new(&p, rule[r], strlen(rule[r]), NULL), OK);
        assert_int_equal(pretok_scan_init(&it, p), OK);
        for (size_t u = 0; u < sizeof(unit) / sizeof(unit[0]); u++) {
            struct buf text = {0};
            size_t at = 0, begin, end;
            enum err rc;
            while (text.len < 1000000)
                assert_int_equal(buf_puts(&text, unit[u]), OK);
            pretok_scan_start(&it, text.data, text.len);
            while (pretok_scan_next(&it, &begin, &end, &rc)) {
                assert_int_equal(begin, at);
                assert_true(end > begin);
                at = end;
            }
            assert_int_equal(rc, OK);
            assert_int_equal(at, text.len);
            buf_fini(&text);
        }
        pretok_scan_fini(&it);
        pretok_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_splits_words_numbers_and_marks),
        cmocka_unit_test(smollm_takes_every_digit_alone),
        cmocka_unit_test(qwen2_keeps_line_ends_together),
        cmocka_unit_test(llama_takes_up_to_three_digits),
        cmocka_unit_test(white_space_is_what_unicode_says_now),
        cmocka_unit_test(letters_and_digits_are_those_of_unicode_16),
        cmocka_unit_test(an_unknown_rule_is_named_in_the_error),
        cmocka_unit_test(only_qwen2_normalises_and_only_llama_ignores_merges),
        cmocka_unit_test(long_texts_are_covered_without_gaps),
    };
    return cmocka_run_group_tests_name("pretok", tests, NULL, NULL);
}
