#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "runtime/text/detok.h"
#include "tiny_vocab.h"

static struct tokenizer *make(int32_t *end, int32_t *call)
{
    struct tiny *v = tiny_new("gpt-2");
    *end = tiny_add(v, "<|e|>", TOKEN_CONTROL);
    *call = tiny_add(v, "<call>", TOKEN_USER_DEFINED);
    (void)tiny_add(v, "[PAD]", TOKEN_UNUSED);
    return tiny_take(v);
}

/* Byte tokens have the byte as id, so that text is its own list of ids. */
static void push(struct detok *d, const char *bytes, struct buf *out)
{
    for (; *bytes != '\0'; bytes++)
        assert_int_equal(detok_push(d, (unsigned char)*bytes, out), OK);
}

static void check(struct buf *out, const char *want)
{
    assert_string_equal(out->data != NULL ? out->data : "", want);
    buf_clear(out);
}

static void a_character_appears_when_its_last_byte_comes(void **state)
{
    (void)state;
    int32_t end, call;
    struct tokenizer *t = make(&end, &call);
    struct buf out = {0};
    struct detok d;
    detok_init(&d, t);
    push(&d, "a\xF0\x9F\x98", &out);
    check(&out, "a");
    push(&d, "\x80", &out);
    check(&out, "\U0001F600");
    push(&d, "\xC3", &out);
    check(&out, "");
    push(&d, "\xA9z", &out);
    check(&out, "\u00E9z");
    assert_int_equal(detok_flush(&d, &out), OK);
    check(&out, "");
    buf_fini(&out);
    tokenizer_free(t);
}

static void bytes_that_fit_nothing_become_replacement_characters(void **state)
{
    (void)state;
    int32_t end, call;
    struct tokenizer *t = make(&end, &call);
    struct buf out = {0};
    struct detok d;
    detok_init(&d, t);
    push(&d, "\x80", &out);
    check(&out, "\uFFFD");
    push(&d, "\xE2\x82z", &out);
    check(&out, "\uFFFDz");
    push(&d, "\xE2\x82\xC3\xA9", &out);
    check(&out, "\uFFFD\u00E9");
    push(&d, "\xF0\x80\x80", &out);
    check(&out, "\uFFFD\uFFFD\uFFFD");
    push(&d, "\xF0\x9F\x98", &out);
    check(&out, "");
    assert_int_equal(detok_flush(&d, &out), OK);
    check(&out, "\uFFFD");
    assert_int_equal(detok_flush(&d, &out), OK);
    check(&out, "");
    push(&d, "\x80", &out);
    check(&out, "\uFFFD");
    buf_fini(&out);
    tokenizer_free(t);
}

static void random_bytes_read_like_the_repaired_whole(void **state)
{
    (void)state;
    int32_t end, call;
    struct tokenizer *t = make(&end, &call);
    struct buf out = {0}, want = {0};
    uint64_t rng = 3;
    static const unsigned char byte[] = {'a',  0x80, 0x9F, 0xBF, 0xA0, 0xC2,
                                         0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xFF};
    for (int round = 0; round < 20000; round++) {
        char text[12];
        struct detok d;
        detok_init(&d, t);
        buf_clear(&out);
        buf_clear(&want);
        for (size_t i = 0; i < sizeof(text); i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            text[i] = (char)byte[(rng >> 33) % sizeof(byte)];
            assert_int_equal(detok_push(&d, (unsigned char)text[i], &out), OK);
            assert_true(utf8_is_valid(out.data, out.len));
            assert_true(d.n_held < UTF8_MAX_BYTES);
        }
        assert_int_equal(detok_flush(&d, &out), OK);
        assert_int_equal(utf8_append_repaired(&want, text, sizeof(text)), OK);
        assert_int_equal(out.len, want.len);
        assert_memory_equal(out.data, want.data, want.len);
    }
    buf_fini(&out);
    buf_fini(&want);
    tokenizer_free(t);
}

static void control_tokens_say_nothing_and_user_defined_ones_do(void **state)
{
    (void)state;
    int32_t end, call;
    struct tokenizer *t = make(&end, &call);
    struct buf out = {0};
    struct detok d;
    detok_init(&d, t);
    push(&d, "a\xC3", &out);
    assert_int_equal(detok_push(&d, end, &out), OK);
    assert_int_equal(detok_push(&d, call + 1, &out), OK); /* unused */
    assert_int_equal(detok_push(&d, call + 2, &out), OK); /* none such */
    assert_int_equal(detok_push(&d, -1, &out), OK);
    push(&d, "\xA9", &out);
    assert_int_equal(detok_push(&d, call, &out), OK);
    check(&out, "a\u00E9<call>");
    buf_fini(&out);
    tokenizer_free(t);
}

static void a_full_buffer_changes_nothing(void **state)
{
    (void)state;
    int32_t end, call;
    struct tokenizer *t = make(&end, &call);
    struct buf out = {.max = 4};
    struct detok d;
    detok_init(&d, t);
    push(&d, "ab\xE2\x82", &out);
    assert_int_equal(detok_push(&d, 0xAC, &out), ERR_BUDGET);
    assert_int_equal(detok_push(&d, call, &out), ERR_BUDGET);
    assert_int_equal(detok_flush(&d, &out), ERR_BUDGET);
    check(&out, "ab");
    assert_int_equal(detok_push(&d, 0xAC, &out), OK);
    check(&out, "\u20AC");
    buf_fini(&out);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_appears_when_its_last_byte_comes),
        cmocka_unit_test(bytes_that_fit_nothing_become_replacement_characters),
        cmocka_unit_test(random_bytes_read_like_the_repaired_whole),
        cmocka_unit_test(control_tokens_say_nothing_and_user_defined_ones_do),
        cmocka_unit_test(a_full_buffer_changes_nothing),
    };
    return cmocka_run_group_tests_name("detok", tests, NULL, NULL);
}
