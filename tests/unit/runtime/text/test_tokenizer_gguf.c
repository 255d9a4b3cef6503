/* tokenizer_from_gguf on metadata written here: keys, defaults, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/buf.h"
#include "tiny_vocab.h"

/* Metadata of a file, pair by pair. */
struct meta {
    struct buf kv;
    uint64_t n;
};

static void put(struct buf *b, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(buf_putc(b, (char)(value >> (8 * i) & 0xFF)), OK);
}

static void put_string(struct buf *b, const char *s, size_t n)
{
    put(b, n, 8);
    assert_int_equal(buf_append(b, s, n), OK);
}

static void key(struct meta *w, const char *name, enum gguf_type type)
{
    char full[128];
    int n = snprintf(full, sizeof(full), "tokenizer.ggml.%s", name);
    put_string(&w->kv, full, (size_t)n);
    put(&w->kv, type, 4);
    w->n++;
}

static void key_string(struct meta *w, const char *name, const char *s)
{
    key(w, name, GGUF_STRING);
    put_string(&w->kv, s, strlen(s));
}

static void key_u32(struct meta *w, const char *name, uint32_t value)
{
    key(w, name, GGUF_U32);
    put(&w->kv, value, 4);
}

static void key_bool(struct meta *w, const char *name, bool value)
{
    key(w, name, GGUF_BOOL);
    put(&w->kv, value, 1);
}

static void key_strings(struct meta *w, const char *name,
                        const struct gguf_str *s, size_t n)
{
    key(w, name, GGUF_ARRAY);
    put(&w->kv, GGUF_STRING, 4);
    put(&w->kv, n, 8);
    for (size_t i = 0; i < n; i++)
        put_string(&w->kv, s[i].s, s[i].n);
}

static void key_types(struct meta *w, const int32_t *type, size_t n)
{
    key(w, "token_type", GGUF_ARRAY);
    put(&w->kv, GGUF_I32, 4);
    put(&w->kv, n, 8);
    for (size_t i = 0; i < n; i++)
        put(&w->kv, (uint32_t)type[i], 4);
}

/* Reads what was written as a model file; frees it. */
static enum err read(struct meta *w, struct tokenizer **t, struct errmsg *m)
{
    struct buf file = {0};
    struct gguf *g = NULL;
    assert_int_equal(buf_puts(&file, "GGUF"), OK);
    put(&file, 3, 4);
    put(&file, 0, 8);
    put(&file, w->n, 8);
    assert_int_equal(buf_append(&file, w->kv.data, w->kv.len), OK);
    enum err rc = gguf_parse(&g, (const uint8_t *)file.data, file.len, m);
    if (rc != OK)
        fail_msg("the test's file is bad: %s", m->text);
    *t = (struct tokenizer *)m;
    rc = tokenizer_from_gguf(t, g, m);
    gguf_close(g);
    buf_fini(&file);
    buf_fini(&w->kv);
    return rc;
}

/* Everything but what is named in `leave_out`. */
static struct meta good(const char *rule, const char *leave_out)
{
    struct meta w = {0};
    struct tiny *v = tiny_new(rule);
    (void)tiny_merge(v, "a", "b");
    (void)tiny_add(v, "<s>", TOKEN_CONTROL);
    if (strcmp(leave_out, "model") != 0)
        key_string(&w, "model", "gpt2");
    if (strcmp(leave_out, "pre") != 0)
        key_string(&w, "pre", rule);
    if (strcmp(leave_out, "tokens") != 0)
        key_strings(&w, "tokens", v->token, v->spec.n_tokens);
    if (strcmp(leave_out, "token_type") != 0)
        key_types(&w, v->type, v->spec.n_tokens);
    if (strcmp(leave_out, "merges") != 0)
        key_strings(&w, "merges", v->merge, v->spec.n_merges);
    free(v);
    return w;
}

static void a_whole_file_becomes_a_tokenizer(void **state)
{
    (void)state;
    struct meta w = good("smollm", "");
    struct tokenizer *t = NULL;
    struct errmsg m;
    struct tokens v = {0};
    key_u32(&w, "bos_token_id", 257);
    key_u32(&w, "eos_token_id", 'e');
    key_u32(&w, "eot_token_id", 't');
    key_u32(&w, "eom_token_id", 'm');
    key_bool(&w, "add_bos_token", true);
    assert_int_equal(read(&w, &t, &m), OK);
    assert_int_equal(tokenizer_n_vocab(t), 258);
    assert_int_equal(tokenizer_bos(t), 257);
    assert_int_equal(tokenizer_eos(t), 'e');
    size_t n = 0;
    const int32_t *end = tokenizer_eog(t, &n);
    assert_int_equal(n, 3);
    assert_int_equal(end[0], 'e');
    assert_int_equal(end[1], 'm');
    assert_int_equal(end[2], 't');
    assert_int_equal(
        tokenizer_encode(t, "ab<s>", 5,
                         TOKENIZER_ADD_BOS | TOKENIZER_PARSE_SPECIAL, &v),
        OK);
    assert_int_equal(v.n, 3);
    assert_int_equal(v.id[0], 257);
    assert_int_equal(v.id[1], 256);
    assert_int_equal(v.id[2], 257);
    tokens_fini(&v);
    tokenizer_free(t);
}

static void missing_ids_and_types_have_defaults(void **state)
{
    (void)state;
    struct meta w = good("qwen2", "token_type");
    struct tokenizer *t = NULL;
    struct errmsg m;
    size_t n = 1;
    assert_int_equal(read(&w, &t, &m), OK);
    assert_int_equal(tokenizer_bos(t), -1);
    assert_int_equal(tokenizer_eos(t), -1);
    assert_false(tokenizer_adds_bos(t));
    assert_false(tokenizer_is_special(t, 257));
    (void)tokenizer_eog(t, &n);
    assert_int_equal(n, 0);
    tokenizer_free(t);
}

static void llama_bpe_wants_bos_unless_the_file_says_no(void **state)
{
    (void)state;
    for (int says_no = 0; says_no < 2; says_no++) {
        struct meta w = good("llama-bpe", "");
        struct tokenizer *t = NULL;
        struct errmsg m;
        key_u32(&w, "bos_token_id", 257);
        if (says_no)
            key_bool(&w, "add_bos_token", false);
        assert_int_equal(read(&w, &t, &m), OK);
        assert_int_equal(tokenizer_adds_bos(t), !says_no);
        tokenizer_free(t);
    }
}

static void refuses(struct meta w, enum err code, const char *say)
{
    struct tokenizer *t = NULL;
    struct errmsg m = {""};
    assert_int_equal(read(&w, &t, &m), code);
    assert_null(t);
    if (strstr(m.text, say) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", m.text, say);
}

static void a_missing_key_is_named(void **state)
{
    (void)state;
    static const char *const name[] = {"model", "pre", "tokens", "merges"};
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        char say[64];
        snprintf(say, sizeof(say), "tokenizer.ggml.%s", name[i]);
        refuses(good("smollm", name[i]), ERR_NOTFOUND, say);
    }
}

static void other_kinds_of_tokenizer_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const model[] = {"llama", "bert", "t5", "rwkv", "gpt-2"};
    for (size_t i = 0; i < sizeof(model) / sizeof(model[0]); i++) {
        struct meta w = good("smollm", "model");
        char say[32];
        key_string(&w, "model", model[i]);
        snprintf(say, sizeof(say), "\"%s\"", model[i]);
        refuses(w, ERR_UNSUPPORTED, say);
    }
    struct meta w = good("smollm", "pre");
    key_string(&w, "pre", "tekken");
    refuses(w, ERR_UNSUPPORTED, "\"tekken\"");
}

static void keys_of_a_wrong_type_or_length_are_refused(void **state)
{
    (void)state;
    static const int32_t types[3] = {1, 1, 1};
    struct meta w = good("smollm", "token_type");
    key_types(&w, types, 3);
    refuses(w, ERR_INVAL, "token_type has 3 elements for 258 tokens");
    w = good("smollm", "token_type");
    key_string(&w, "token_type", "normal");
    refuses(w, ERR_INVAL, "token_type");
    w = good("smollm", "tokens");
    key_u32(&w, "tokens", 3);
    refuses(w, ERR_INVAL, "tokens");
    w = good("smollm", "tokens");
    key_strings(&w, "tokens", NULL, 0);
    refuses(w, ERR_INVAL, "for 0 tokens");
    w = good("smollm", "pre");
    key_u32(&w, "pre", 1);
    refuses(w, ERR_INVAL, "pre");
    w = good("smollm", "");
    key_string(&w, "eos_token_id", "x");
    refuses(w, ERR_INVAL, "eos_token_id");
    w = good("smollm", "");
    key_u32(&w, "eos_token_id", 258);
    refuses(w, ERR_INVAL, "eos_token_id is 258");
    w = good("smollm", "");
    key_u32(&w, "bos_token_id", UINT32_MAX);
    refuses(w, ERR_INVAL, "bos_token_id is 4294967295");
    w = good("smollm", "");
    key_u32(&w, "add_bos_token", 1);
    refuses(w, ERR_INVAL, "add_bos_token");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_file_becomes_a_tokenizer),
        cmocka_unit_test(missing_ids_and_types_have_defaults),
        cmocka_unit_test(llama_bpe_wants_bos_unless_the_file_says_no),
        cmocka_unit_test(a_missing_key_is_named),
        cmocka_unit_test(other_kinds_of_tokenizer_are_refused_by_name),
        cmocka_unit_test(keys_of_a_wrong_type_or_length_are_refused),
    };
    return cmocka_run_group_tests_name("tokenizer_gguf", tests, NULL, NULL);
}
