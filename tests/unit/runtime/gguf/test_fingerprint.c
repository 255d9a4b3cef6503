#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "runtime/gguf/gguf.h"
#include "tests/unit/runtime/gguf/gguf_writer.h"

/* A tiny model; what a test varies. */
struct spec {
    const char *architecture;
    uint32_t layers, kv_heads, width;
    uint64_t vocabulary;
    enum dtype weight_type;
    float last_norm; /* the last value of output_norm.weight */
    bool other_order;
    const char *left_out; /* a key that is not written */
};

static const struct spec usual = {.architecture = "llama",
                                  .layers = 2,
                                  .kv_heads = 3,
                                  .width = 32,
                                  .vocabulary = 5,
                                  .weight_type = DTYPE_F16,
                                  .last_norm = 0.25f};

static void put_key(struct file *f, const struct spec *s, const char *name,
                    uint32_t value)
{
    char key[128];
    snprintf(key, sizeof(key), "%s.%s", s->architecture, name);
    if (s->left_out == NULL || strcmp(s->left_out, name) != 0)
        put_kv_u32(f, key, value);
}

static void norm_values(const struct spec *s, const char *name, float *out)
{
    for (uint32_t i = 0; i < s->width; i++)
        out[i] = (float)i + (float)strlen(name);
    if (strcmp(name, "output_norm.weight") == 0)
        out[s->width - 1] = s->last_norm;
}

static uint64_t embd_bytes(const struct spec *s)
{
    const struct dtype_info *info = dtype_info(s->weight_type);
    return s->width / info->block_elems * info->block_bytes * s->vocabulary;
}

static void build(const struct spec *s, struct file *f)
{
    static const char *const norms[] = {"output_norm.weight",
                                        "blk.1.attn_norm.weight",
                                        "blk.0.ffn_norm.weight"};
    float values[64];
    uint64_t dims[2] = {s->width, s->vocabulary};
    uint64_t step = (s->width * sizeof(float) + 31) / 32 * 32;
    f->n = 0;
    put_header(f, 3, 5, s->left_out != NULL ? 4 : 5);
    put_kv_string(f, "general.architecture", s->architecture);
    put_key(f, s, "block_count", s->layers);
    put_key(f, s, "attention.head_count", 9);
    put_key(f, s, "attention.head_count_kv", s->kv_heads);
    put_key(f, s, "embedding_length", s->width);
    for (uint64_t i = 0; i < 3; i++) {
        const char *name = norms[s->other_order ? 2 - i : i];
        put_tensor(f, name, 1, dims, DTYPE_F32, i * step);
    }
    /* F32, but not a norm: its values are not part of the fingerprint. */
    put_tensor(f, "blk.0.attn_q.bias", 1, dims, DTYPE_F32, 3 * step);
    put_tensor(f, "token_embd.weight", 2, dims, s->weight_type, 4 * step);
    put_data(f, 32, 0);
    for (size_t i = 0; i < 3; i++) {
        norm_values(s, norms[s->other_order ? 2 - i : i], values);
        put_bytes(f, values, s->width * sizeof(float));
        put_data(f, 32, 0);
    }
    put_data(f, 32, step + embd_bytes(s));
}

static enum err fingerprint(const struct spec *s, uint8_t out[HASH_BYTES],
                            struct errmsg *m)
{
    static struct file f;
    struct gguf *g = NULL;
    build(s, &f);
    if (gguf_parse(&g, f.b, f.n, m) != OK)
        fail_msg("%s", m->text);
    enum err rc = gguf_fingerprint(g, out, m);
    gguf_close(g);
    return rc;
}

static void it_is_the_sha256_of_what_the_header_says(void **state)
{
    (void)state;
    static const char *const sorted[] = {"blk.0.ffn_norm.weight",
                                         "blk.1.attn_norm.weight",
                                         "output_norm.weight"};
    uint8_t text[2048], want[HASH_BYTES], got[HASH_BYTES];
    float values[64];
    struct errmsg m = {""};
    size_t n = (size_t)snprintf(
        (char *)text, sizeof(text),
        "ebb base llama layers 2 kv_heads 3 width 32 vocabulary 5\n");
    for (size_t i = 0; i < 3; i++) {
        n += (size_t)snprintf((char *)text + n, sizeof(text) - n, "%s 128\n",
                              sorted[i]);
        norm_values(&usual, sorted[i], values);
        memcpy(text + n, values, 128);
        n += 128;
    }
    SHA256(text, n, want);
    assert_int_equal(fingerprint(&usual, got, &m), OK);
    assert_memory_equal(got, want, HASH_BYTES);
}

static void quantisation_and_order_of_tensors_do_not_matter(void **state)
{
    (void)state;
    uint8_t a[HASH_BYTES], b[HASH_BYTES];
    struct errmsg m = {""};
    struct spec s = usual;
    assert_int_equal(fingerprint(&s, a, &m), OK);
    s.weight_type = DTYPE_Q4_1;
    s.other_order = true;
    assert_int_equal(fingerprint(&s, b, &m), OK);
    assert_memory_equal(a, b, HASH_BYTES);
}

static void every_part_of_the_base_model_matters(void **state)
{
    (void)state;
    struct spec s[7] = {usual, usual, usual, usual, usual, usual, usual};
    uint8_t prints[7][HASH_BYTES];
    struct errmsg m = {""};
    s[1].architecture = "qwen2";
    s[2].layers++;
    s[3].kv_heads++;
    s[4].width = 64;
    s[5].vocabulary++;
    s[6].last_norm = 0.2500001f;
    for (int i = 0; i < 7; i++) {
        assert_int_equal(fingerprint(&s[i], prints[i], &m), OK);
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(prints[i], prints[k], HASH_BYTES);
    }
}

static void without_kv_heads_the_query_heads_count(void **state)
{
    (void)state;
    uint8_t a[HASH_BYTES], b[HASH_BYTES];
    struct errmsg m = {""};
    struct spec s = usual;
    s.left_out = "attention.head_count_kv";
    assert_int_equal(fingerprint(&s, a, &m), OK);
    s = usual;
    s.kv_heads = 9;
    assert_int_equal(fingerprint(&s, b, &m), OK);
    assert_memory_equal(a, b, HASH_BYTES);
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    uint8_t out[HASH_BYTES];
    struct errmsg m = {""};
    struct spec s = usual;
    s.left_out = "block_count";
    assert_int_equal(fingerprint(&s, out, &m), ERR_NOTFOUND);
    assert_non_null(strstr(m.text, "llama.block_count"));
    s = usual;
    s.architecture = "a name that is much too long for an architecture of any "
                     "model that there is";
    assert_int_equal(fingerprint(&s, out, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "general.architecture"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_sha256_of_what_the_header_says),
        cmocka_unit_test(quantisation_and_order_of_tensors_do_not_matter),
        cmocka_unit_test(every_part_of_the_base_model_matters),
        cmocka_unit_test(without_kv_heads_the_query_heads_count),
        cmocka_unit_test(what_is_missing_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
