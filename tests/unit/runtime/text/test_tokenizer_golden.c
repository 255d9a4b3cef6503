/* Ids of the real models' tokenizers against the reference library's, on
 * 20,480 lines, as tests/tools/make_tokenizer_golden.py stored them.
 *
 * The model files are looked for in $EBB_TEST_MODELS, else in
 * ${XDG_CACHE_HOME:-$HOME/.cache}/ebb/models. Where one is missing its tests
 * are skipped, and say so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "golden_lines.h"
#include "runtime/gguf/gguf.h"
#include "runtime/text/detok.h"
#include "runtime/text/nfc.h"
#include "runtime/text/tokenizer.h"

struct fixture {
    const char *rule, *file;
    struct tokenizer *t;
    struct golden_parts *parts;
};

static void model_path(char *path, size_t room, const char *file)
{
    const char *dir = getenv("EBB_TEST_MODELS");
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (dir != NULL)
        snprintf(path, room, "%s/%s", dir, file);
    else if (cache != NULL && cache[0] != '\0')
        snprintf(path, room, "%s/ebb/models/%s", cache, file);
    else
        snprintf(path, room, "%s/.cache/ebb/models/%s",
                 home != NULL ? home : "", file);
}

static int load(void **state)
{
    struct fixture *f = *state;
    char path[4096];
    struct errmsg m = {""};
    struct gguf *g = NULL;
    model_path(path, sizeof(path), f->file);
    if (access(path, R_OK) != 0) {
        print_message("SKIPPED: no model file %s\n", path);
        return 0;
    }
    enum err rc = gguf_open(&g, path, &m);
    if (rc == OK)
        rc = tokenizer_from_gguf(&f->t, g, &m);
    gguf_close(g);
    if (rc != OK) {
        print_error("%s: %s\n", path, m.text);
        return -1;
    }
    f->parts = malloc(sizeof(*f->parts));
    golden_load(f->parts);
    return 0;
}

static int unload(void **state)
{
    struct fixture *f = *state;
    tokenizer_free(f->t);
    f->t = NULL;
    if (f->parts != NULL)
        golden_free(f->parts);
    free(f->parts);
    f->parts = NULL;
    return 0;
}

static struct fixture *need(void **state)
{
    struct fixture *f = *state;
    if (f->t == NULL)
        skip();
    return f;
}

static uint32_t fnv(uint32_t h, const int32_t *id, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ ((uint32_t)id[i] >> shift & 0xFF)) * 0x01000193u;
    return h;
}

static void encode(const struct fixture *f, const struct buf *line,
                   unsigned flags, struct tokens *out)
{
    out->n = 0;
    assert_int_equal(tokenizer_encode(f->t, line->data, line->len, flags, out),
                     OK);
}

static void print_ids(const char *what, const struct tokens *v)
{
    print_error("  %s:", what);
    for (size_t i = 0; i < v->n; i++)
        print_error(" %d", v->id[i]);
    print_error("\n");
}

static void ids_are_those_of_the_reference_on_20480_lines(void **state)
{
    struct fixture *f = need(state);
    struct buf line = {0};
    struct tokens plain = {0}, special = {0};
    char text[256];
    size_t n = 0, wrong = 0;
    static const int32_t between = -1;
    snprintf(text, sizeof(text), GOLDEN_DIR "%s.hash", f->rule);
    FILE *golden = fopen(text, "rb");
    assert_non_null(golden);
    while (fgets(text, sizeof(text), golden) != NULL) {
        if (text[0] == '#')
            continue;
        golden_line(&line, f->parts, n);
        encode(f, &line, 0, &plain);
        encode(f, &line, TOKENIZER_PARSE_SPECIAL, &special);
        uint32_t h = fnv(0x811C9DC5u, plain.id, plain.n);
        h = fnv(fnv(h, &between, 1), special.id, special.n);
        if (h != (uint32_t)strtoul(text, NULL, 16) && wrong++ < 10) {
            print_error("%s, line %zu (make_tokenizer_golden.py DIR --line "
                        "%zu shows what is right):\n",
                        f->rule, n, n);
            print_ids("plain", &plain);
            print_ids("special", &special);
        }
        n++;
    }
    fclose(golden);
    buf_fini(&line);
    tokens_fini(&plain);
    tokens_fini(&special);
    assert_int_equal(n, GOLDEN_LINES);
    assert_int_equal(wrong, 0);
}

/* What a line must come back as: repaired, normalised if the model does
 * that, without the bytes for which the vocabulary has no token. */
static void expected_text(const struct fixture *f, const struct buf *line,
                          struct buf *out)
{
    struct buf a = {0}, b = {0};
    MUST(utf8_append_repaired(&a, line->data, line->len));
    if (strcmp(f->rule, "qwen2") == 0) {
        MUST(nfc_append(&b, a.data, a.len));
        buf_clear(&a);
        MUST(buf_append(&a, b.data, b.len));
        buf_clear(&b);
    }
    for (size_t i = 0; i < a.len; i++)
        if (tokenizer_find(f->t, a.data + i, 1) >= 0)
            MUST(buf_putc(&b, a.data[i]));
    MUST(utf8_append_repaired(out, b.data, b.len));
    buf_fini(&a);
    buf_fini(&b);
}

static void every_line_comes_back_as_it_was(void **state)
{
    struct fixture *f = need(state);
    struct buf line = {0}, want = {0}, got = {0};
    struct tokens ids = {0};
    for (size_t i = 0; i < GOLDEN_LINES; i++) {
        struct detok d;
        golden_line(&line, f->parts, i);
        encode(f, &line, 0, &ids);
        buf_clear(&want);
        buf_clear(&got);
        expected_text(f, &line, &want);
        detok_init(&d, f->t);
        for (size_t k = 0; k < ids.n; k++) {
            MUST(detok_push(&d, ids.id[k], &got));
            if (!utf8_is_valid(got.data, got.len))
                fail_msg("line %zu, token %zu: half a character", i, k);
        }
        MUST(detok_flush(&d, &got));
        if (got.len != want.len ||
            (got.len > 0 && memcmp(got.data, want.data, got.len) != 0))
            fail_msg("line %zu comes back as \"%s\"", i, got.data);
    }
    buf_fini(&line);
    buf_fini(&want);
    buf_fini(&got);
    tokens_fini(&ids);
}

/* Cuts a line at random character borders. All pieces plain, or all marked:
 * the ids of the whole. */
static void segments_give_the_ids_of_the_text_joined(void **state)
{
    struct fixture *f = need(state);
    struct buf line = {0}, text = {0};
    struct tokens want = {0}, got = {0};
    uint64_t rng = 7;
    for (size_t i = 0; i < GOLDEN_LINES; i += 3) {
        struct text_segment seg[64];
        bool special = golden_below(&rng, 2) == 0;
        size_t n = 0, begin = 0;
        golden_line(&line, f->parts, i);
        buf_clear(&text);
        MUST(utf8_append_repaired(&text, line.data, line.len));
        for (size_t at = 0; at < text.len && n < 63; at++) {
            if (((unsigned char)text.data[at] & 0xC0) == 0x80 ||
                golden_below(&rng, 4) != 0)
                continue;
            seg[n++] = (struct text_segment){text.data + begin, at - begin,
                                             special, false};
            begin = at;
        }
        seg[n++] = (struct text_segment){text.data + begin, text.len - begin,
                                         special, false};
        encode(f, &line, special ? TOKENIZER_PARSE_SPECIAL : 0, &want);
        got.n = 0;
        assert_int_equal(tokenizer_encode_segments(f->t, seg, n, 0, &got), OK);
        if (got.n != want.n ||
            (got.n > 0 &&
             memcmp(got.id, want.id, got.n * sizeof(*got.id)) != 0))
            fail_msg("line %zu in %zu segments differs", i, n);
    }
    buf_fini(&line);
    buf_fini(&text);
    tokens_fini(&want);
    tokens_fini(&got);
}

static void no_user_text_becomes_a_special_token(void **state)
{
    struct fixture *f = need(state);
    struct buf line = {0};
    struct tokens ids = {0};
    size_t n_vocab = tokenizer_n_vocab(f->t), n_special = 0;
    for (size_t i = 0; i < GOLDEN_LINES; i++) {
        golden_line(&line, f->parts, i);
        encode(f, &line, 0, &ids);
        for (size_t k = 0; k < ids.n; k++)
            assert_false(tokenizer_is_special(f->t, ids.id[k]));
    }
    for (size_t i = 0; i < n_vocab; i++) {
        int32_t id = (int32_t)i;
        if (!tokenizer_is_special(f->t, id))
            continue;
        n_special++;
        buf_clear(&line);
        size_t len = 0;
        const char *s = tokenizer_token_bytes(f->t, id, &len);
        MUST(buf_append(&line, s, len));
        assert_int_equal(tokenizer_find(f->t, s, len), id);
        encode(f, &line, TOKENIZER_PARSE_SPECIAL, &ids);
        assert_int_equal(ids.n, 1);
        assert_int_equal(ids.id[0], id);
        encode(f, &line, 0, &ids);
        assert_true(ids.n > 1);
        for (size_t k = 0; k < ids.n; k++)
            assert_false(tokenizer_is_special(f->t, ids.id[k]));
    }
    assert_true(n_special > 10);
    buf_fini(&line);
    tokens_fini(&ids);
}

static void a_chat_ends_at_im_end_and_endoftext(void **state)
{
    struct fixture *f = need(state);
    size_t n = 0;
    int32_t end = tokenizer_find(f->t, "<|im_end|>", 10);
    int32_t text = tokenizer_find(f->t, "<|endoftext|>", 13);
    assert_true(end >= 0 && text >= 0);
    assert_int_equal(tokenizer_eos(f->t), end);
    (void)tokenizer_eog(f->t, &n);
    assert_int_equal(n, 2);
    assert_true(tokenizer_is_eog(f->t, end));
    assert_true(tokenizer_is_eog(f->t, text));
    assert_true(tokenizer_is_control(f->t, end));
    assert_false(tokenizer_adds_bos(f->t));
}

/* A megabyte of anything: each would take minutes or overflow a stack if
 * time were quadratic or the work recursive. The alarm ends a test that
 * hangs. */
static void a_megabyte_of_one_thing_is_quick(void **state)
{
    struct fixture *f = need(state);
    static const char *const unit[] = {"a",
                                       " ",
                                       "\n",
                                       "\t",
                                       " \n",
                                       "7",
                                       "<",
                                       "<|im_end",
                                       "<|im_end|>",
                                       "'s",
                                       "\u0301",
                                       "\u1100",
                                       "e\u0301",
                                       "\u0345\u0334",
                                       "\u6F22",
                                       "\U0001F600",
                                       "\U0001F468\u200D\U0001F469",
                                       "\xC3",
                                       "\xF0\x9F\x98"};
    struct buf text = {0}, want = {0}, got = {0};
    struct tokens ids = {0};
    alarm(300);
    for (size_t u = 0; u < sizeof(unit) / sizeof(unit[0]); u++) {
        buf_clear(&text);
        while (text.len < 1000000)
            MUST(buf_puts(&text, unit[u]));
        encode(f, &text, 0, &ids);
        buf_clear(&want);
        buf_clear(&got);
        expected_text(f, &text, &want);
        struct detok d;
        detok_init(&d, f->t);
        for (size_t k = 0; k < ids.n; k++)
            MUST(detok_push(&d, ids.id[k], &got));
        MUST(detok_flush(&d, &got));
        assert_int_equal(got.len, want.len);
        assert_memory_equal(got.data, want.data, got.len);
        encode(f, &text, TOKENIZER_PARSE_SPECIAL, &ids);
    }
    alarm(0);
    buf_fini(&text);
    buf_fini(&want);
    buf_fini(&got);
    tokens_fini(&ids);
}

static int run(const char *rule, const char *file)
{
    struct fixture f = {.rule = rule, .file = file};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(ids_are_those_of_the_reference_on_20480_lines,
                                  &f),
        cmocka_unit_test_prestate(every_line_comes_back_as_it_was, &f),
        cmocka_unit_test_prestate(segments_give_the_ids_of_the_text_joined, &f),
        cmocka_unit_test_prestate(no_user_text_becomes_a_special_token, &f),
        cmocka_unit_test_prestate(a_chat_ends_at_im_end_and_endoftext, &f),
        cmocka_unit_test_prestate(a_megabyte_of_one_thing_is_quick, &f),
    };
    void *state = &f;
    if (load(&state) != 0)
        return 1;
    int failed = cmocka_run_group_tests_name(rule, tests, NULL, NULL);
    (void)unload(&state);
    return failed;
}

int main(void)
{
    int failed = run("smollm", "SmolLM2-135M-Instruct.Q4_1.gguf");
    failed += run("qwen2", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
    return failed;
}
