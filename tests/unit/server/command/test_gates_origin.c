/* What gates say about how they were made, when several files are one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/command/gates_internal.h"

#define HASH_A                                                                 \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HASH_B                                                                 \
    "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"
#define HASH_C                                                                 \
    "c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1"

/* Metadata, key and value in turn, to a NULL. */
struct file {
    const char *meta[24];
};

static const struct gates_texts no_texts;

static void add(struct gates_origin *o, const struct file *file,
                const struct gates_texts *texts, const char *sha256)
{
    struct safetensors_string meta[12];
    struct safetensors *f = NULL;
    char path[] = "/tmp/ebb-origin-XXXXXX";
    size_t n = 0;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (; file->meta[2 * n] != NULL; n++)
        meta[n] = (struct safetensors_string){file->meta[2 * n],
                                              file->meta[2 * n + 1]};
    const float number = 1.0f;
    const struct safetensors_tensor t = {.name = "t",
                                         .type = DTYPE_F32,
                                         .n_dims = 1,
                                         .dims = {1, 1, 1, 1},
                                         .data = (const uint8_t *)&number,
                                         .bytes = sizeof(number)};
    assert_int_equal(safetensors_write(path, meta, n, &t, 1, NULL), OK);
    assert_int_equal(safetensors_open(&f, path, NULL), OK);
    assert_int_equal(gates_origin_add(o, f, sha256, texts, NULL), OK);
    safetensors_close(f);
    unlink(path);
}

/* expected NULL: nothing. */
static void check_says(const struct gates_origin *o, enum gates_says what,
                       const char *expected)
{
    struct buf b = {0};
    assert_int_equal(gates_origin_join(&b, o, what, NULL), OK);
    if (expected == NULL)
        assert_int_equal(b.len, 0);
    else
        assert_string_equal(b.data, expected);
    buf_fini(&b);
}

static void what_is_equal_is_said_once_and_steps_each(void **state)
{
    (void)state;
    static const struct file same = {
        {"train_steps", "300", "train_memory", "56", "train_context", "512",
         "train_mix", "plain=1,copy=2", "train_texts", "a.txt " HASH_A}};
    struct gates_origin o = {.n = 0};
    add(&o, &same, &no_texts, HASH_A);
    add(&o, &same, &no_texts, HASH_A);
    check_says(&o, GATES_STEPS, "300 + 300");
    check_says(&o, GATES_MEMORY, "56");
    check_says(&o, GATES_CONTEXT, "512");
    check_says(&o, GATES_MIX, "plain=1,copy=2");
    check_says(&o, GATES_TEXTS, "a.txt " HASH_A);
    check_says(&o, GATES_INIT_STEPS, NULL);
    check_says(&o, GATES_INIT_RUN, NULL);
    check_says(&o, GATES_INIT_SHA256, HASH_A " + " HASH_A);
    gates_origin_fini(&o);
}

static void what_differs_is_said_in_order(void **state)
{
    (void)state;
    static const struct file one = {{"train_steps", "300", "train_memory", "56",
                                     "train_context", "512", "train_mix",
                                     "plain=1", "train_init_steps", "377"}};
    static const struct file other = {
        {"train_steps", "81", "train_memory", "104", "train_context", "512",
         "train_mix", "recall=1", "train_init_steps", "300"}};
    static const struct file silent = {{"gate", "rg10"}};
    struct gates_origin o = {.n = 0};
    add(&o, &other, &no_texts, HASH_A);
    add(&o, &one, &no_texts, HASH_B);
    check_says(&o, GATES_STEPS, "81 + 300");
    check_says(&o, GATES_MEMORY, "104 + 56");
    check_says(&o, GATES_CONTEXT, "512");
    check_says(&o, GATES_MIX, "recall=1 + plain=1");
    check_says(&o, GATES_INIT_STEPS, "300 + 377");
    /* One that says nothing leaves a gap, and nothing is invented for it. */
    add(&o, &silent, &no_texts, HASH_C);
    check_says(&o, GATES_STEPS, "81 + 300 + ?");
    check_says(&o, GATES_CONTEXT, "512 + 512 + ?");
    check_says(&o, GATES_TEXTS, NULL);
    check_says(&o, GATES_INIT_SHA256, HASH_A " + " HASH_B " + " HASH_C);
    gates_origin_fini(&o);
}

static void a_file_that_says_nothing_gives_nothing(void **state)
{
    (void)state;
    /* "0" is what copies said before copies knew their steps. */
    static const struct file old_copy = {
        {"gate", "rg10", "train_steps", "0", "train_init_sha256", HASH_C}};
    struct gates_origin o = {.n = 0};
    add(&o, &old_copy, &no_texts, HASH_A);
    for (int i = 0; i < GATES_INIT_SHA256; i++)
        check_says(&o, (enum gates_says)i, NULL);
    check_says(&o, GATES_INIT_SHA256, HASH_A);
    gates_origin_fini(&o);
}

static void texts_are_a_union(void **state)
{
    (void)state;
    static const struct file one = {
        {"train_texts", "a, b.txt " HASH_A ", b.txt " HASH_B}};
    static const struct file two = {
        {"train_texts", "c.txt " HASH_C ", d.txt " HASH_B}};
    static const struct file silent = {{"gate", "rg10"}};
    struct gates_origin o = {.n = 0};
    add(&o, &one, &no_texts, HASH_A);
    add(&o, &two, &no_texts, HASH_B);
    check_says(&o, GATES_TEXTS,
               "a, b.txt " HASH_A ", b.txt " HASH_B ", c.txt " HASH_C);
    add(&o, &silent, &no_texts, HASH_C);
    check_says(&o, GATES_TEXTS,
               "a, b.txt " HASH_A ", b.txt " HASH_B ", c.txt " HASH_C ", ?");
    gates_origin_fini(&o);
}

#define SETTINGS                                                               \
    "model=m texts=" HASH_C " mix=plain=20,chat=20 init=none layers=2 "        \
    "steps=970 tokens=512 memory=56.100000000000001 seed=12"

/* A checkpoint says its step, not the steps that its run was to have. */
static void a_checkpoint_says_what_its_run_was_given(void **state)
{
    (void)state;
    static const struct file run = {{"kind", "ebb checkpoint", "step", "219",
                                     "settings", SETTINGS, "train_texts", "",
                                     "train_init_steps", ""}};
    static const struct file old_copy = {{"gate", "rg10", "train_steps", "0",
                                          "train_init_run",
                                          SETTINGS " step=257"}};
    static const struct file old_mean = {
        {"gate", "rg10", "train_steps", "0", "train_init_run",
         SETTINGS " step=257 + " SETTINGS " step=263"}};
    static const struct file new_run = {
        {"kind", "ebb checkpoint", "step", "277", "settings", SETTINGS,
         "train_texts", "a.txt " HASH_A, "train_init_steps", "92"}};
    struct gates_origin o = {.n = 0};
    add(&o, &run, &no_texts, HASH_A);
    check_says(&o, GATES_STEPS, "219");
    check_says(&o, GATES_MEMORY, "56.1");
    check_says(&o, GATES_CONTEXT, "512");
    check_says(&o, GATES_MIX, "plain=20,chat=20");
    check_says(&o, GATES_TEXTS, NULL);
    check_says(&o, GATES_INIT_STEPS, NULL);
    check_says(&o, GATES_INIT_RUN, SETTINGS " step=219");
    add(&o, &old_copy, &no_texts, HASH_B);
    check_says(&o, GATES_STEPS, "219 + 257");
    check_says(&o, GATES_MEMORY, "56.1");
    add(&o, &old_mean, &no_texts, HASH_C);
    add(&o, &new_run, &no_texts, HASH_C);
    check_says(&o, GATES_STEPS, "219 + 257 + ? + 277");
    check_says(&o, GATES_INIT_STEPS, "? + ? + ? + 92");
    check_says(&o, GATES_TEXTS, "a.txt " HASH_A ", ?");
    assert_false(o.knows_texts);
    gates_origin_fini(&o);
}

static void texts_that_are_given_are_named_where_their_hash_fits(void **state)
{
    (void)state;
    static const struct file run = {
        {"kind", "ebb checkpoint", "step", "219", "settings", SETTINGS}};
    struct gates_origin o = {.n = 0};
    struct gates_texts texts = {.sha256 = HASH_B};
    assert_int_equal(buf_puts(&texts.list, "a.txt " HASH_A), OK);
    add(&o, &run, &texts, HASH_A);
    check_says(&o, GATES_TEXTS, NULL);
    assert_false(o.knows_texts);
    memcpy(texts.sha256, HASH_C, sizeof(texts.sha256));
    add(&o, &run, &texts, HASH_A);
    check_says(&o, GATES_TEXTS, "a.txt " HASH_A ", ?");
    assert_true(o.knows_texts);
    gates_origin_fini(&o);
    buf_fini(&texts.list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_equal_is_said_once_and_steps_each),
        cmocka_unit_test(what_differs_is_said_in_order),
        cmocka_unit_test(a_file_that_says_nothing_gives_nothing),
        cmocka_unit_test(texts_are_a_union),
        cmocka_unit_test(a_checkpoint_says_what_its_run_was_given),
        cmocka_unit_test(texts_that_are_given_are_named_where_their_hash_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
