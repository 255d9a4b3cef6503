#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/gguf/gguf.h"
#include "tests/unit/runtime/gguf/gguf_writer.h"

static void expect_error(const struct file *f, enum err code, const char *part)
{
    struct gguf *g = (struct gguf *)1;
    struct errmsg m = {""};
    /* In memory of exactly this size, so that a sanitizer sees every byte
     * read past the end. */
    uint8_t *copy = malloc(f->n > 0 ? f->n : 1);
    assert_non_null(copy);
    memcpy(copy, f->b, f->n);
    enum err rc = gguf_parse(&g, copy, f->n, &m);
    if (rc != code || strstr(m.text, part) == NULL)
        fail_msg("got %s '%s', wanted %s '%s'", err_name(rc), m.text,
                 err_name(code), part);
    assert_null(g);
    assert_int_equal(gguf_parse(&g, copy, f->n, NULL), code);
    free(copy);
}

static void a_file_that_is_not_gguf_is_refused(void **state)
{
    (void)state;
    struct file f = {.n = 0};
    expect_error(&f, ERR_INVAL, "the file is empty");
    put_bytes(&f, "GGU", 3);
    expect_error(&f, ERR_INVAL, "3 bytes are too few");
    f.n = 0;
    put_bytes(&f, "PK\x03\x04____________________", 24);
    expect_error(&f, ERR_INVAL, "50 4b 03 04");
}

static void other_versions_and_byte_orders_are_refused_by_name(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 8; v++) {
        struct file f = {.n = 0};
        put_header(&f, v, 0, 0);
        char part[64];
        snprintf(part, sizeof(part), "version %u cannot be read", v);
        if (v != 2 && v != 3)
            expect_error(&f, ERR_UNSUPPORTED, part);
    }
    struct file f = {.n = 0};
    put_header(&f, 3u << 24, 0, 0);
    expect_error(&f, ERR_UNSUPPORTED, "big-endian");
}

static void counts_that_the_file_cannot_hold_are_refused(void **state)
{
    (void)state;
    static const uint64_t hostile[] = {1, 65537, 262145, UINT64_MAX / 14,
                                       UINT64_MAX};
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        struct file f = {.n = 0};
        put_header(&f, 3, hostile[i], 0);
        expect_error(&f, ERR_INVAL, "the tensor count");
        f.n = 0;
        put_header(&f, 3, 0, hostile[i]);
        expect_error(&f, ERR_INVAL, "the key count");
    }
}

static void bad_keys_are_refused(void **state)
{
    (void)state;
    struct file f = {.n = 0};
    put_header(&f, 3, 0, 1);
    put_u64(&f, 1000);
    put_bytes(&f, "abcdefgh", 8);
    expect_error(&f, ERR_INVAL, "key 0: its name (offset 24, length 1000)");

    f.n = 0;
    put_header(&f, 3, 0, 1);
    put_u64(&f, UINT64_MAX);
    put_bytes(&f, "abcdefgh", 8);
    expect_error(&f, ERR_INVAL, "passes the end of the file at 40");

    f.n = 0;
    put_header(&f, 3, 0, 1);
    put_kv_u32(&f, "", 1);
    expect_error(&f, ERR_INVAL, "a name of 0 bytes");

    f.n = 0;
    put_header(&f, 3, 0, 1);
    put_text(&f, "a\0b", 3);
    put_u32(&f, GGUF_U32);
    put_u32(&f, 1);
    expect_error(&f, ERR_INVAL, "zero byte");

    f.n = 0;
    put_header(&f, 3, 0, 3);
    put_kv_u32(&f, "b", 1);
    put_kv_u32(&f, "a", 1);
    put_kv_u32(&f, "b", 1);
    expect_error(&f, ERR_INVAL, "key 'b' is there twice");
}

static void a_key_may_not_be_longer_than_the_format_allows(void **state)
{
    (void)state;
    static char name[GGUF_KEY_MAX + 2];
    struct gguf *g = NULL;
    struct errmsg m = {""};
    memset(name, 'k', sizeof(name) - 1);
    for (size_t extra = 0; extra < 2; extra++) {
        struct file f = {.n = 0};
        put_header(&f, 3, 0, 1);
        put_text(&f, name, GGUF_KEY_MAX + extra);
        put_u32(&f, GGUF_U32);
        put_u32(&f, 7);
        if (extra == 1) {
            expect_error(&f, ERR_INVAL, "a name of 65536 bytes");
            continue;
        }
        assert_int_equal(gguf_parse(&g, f.b, f.n, &m), OK);
        gguf_close(g);
    }
}

static void bad_values_are_refused_and_the_key_named(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, elem;
        uint64_t count;
        enum err code;
        const char *part;
    } cases[] = {
        {13, 0, 0, ERR_INVAL, "key 'k': its value type 13 is not known"},
        {UINT32_MAX, 0, 0, ERR_INVAL, "its value type 4294967295"},
        {GGUF_ARRAY, 13, 1, ERR_INVAL, "its element type 13 is not known"},
        {GGUF_ARRAY, GGUF_ARRAY, 1, ERR_UNSUPPORTED, "array of arrays"},
        {GGUF_ARRAY, GGUF_U8, 9, ERR_INVAL, "its array of 9 elements"},
        {GGUF_ARRAY, GGUF_U64, 2, ERR_INVAL, "its array of 2 elements"},
        {GGUF_ARRAY, GGUF_U64, UINT64_MAX / 8 + 2, ERR_INVAL, "its array of"},
        {GGUF_ARRAY, GGUF_STRING, 2, ERR_INVAL, "its array of 2 elements"},
        {GGUF_ARRAY, GGUF_STRING, UINT64_MAX, ERR_INVAL, "its array of"},
        {GGUF_ARRAY, GGUF_BOOL, 8, ERR_INVAL, "a bool is 255, not 0 or 1"},
        {GGUF_ARRAY, GGUF_STRING, 1, ERR_INVAL, "string 0 (offset 49, length"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct file f = {.n = 0};
        put_header(&f, 3, 0, 1);
        put_text(&f, "k", 1);
        put_u32(&f, cases[i].type);
        put_u32(&f, cases[i].elem);
        put_u64(&f, cases[i].count);
        put_u64(&f, UINT64_MAX);
        expect_error(&f, cases[i].code, cases[i].part);
    }
}

static void a_string_or_bool_outside_its_bounds_is_refused(void **state)
{
    (void)state;
    struct file f = {.n = 0};
    put_header(&f, 3, 0, 1);
    put_text(&f, "k", 1);
    put_u32(&f, GGUF_STRING);
    put_u64(&f, 5);
    put_bytes(&f, "four", 4);
    expect_error(&f, ERR_INVAL, "key 'k': its string (offset 37 + 5 bytes)");
    f.n = 0;
    put_header(&f, 3, 0, 1);
    put_text(&f, "k", 1);
    put_u32(&f, GGUF_BOOL);
    put_bytes(&f, "\2", 1);
    expect_error(&f, ERR_INVAL, "key 'k': a bool is 2");
}

static void a_bad_alignment_is_refused(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 12, 24, 33, UINT32_MAX};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct file f = {.n = 0};
        put_header(&f, 3, 0, 1);
        put_kv_u32(&f, "general.alignment", bad[i]);
        expect_error(&f, ERR_INVAL, "key 'general.alignment'");
    }
    struct file f = {.n = 0};
    put_header(&f, 3, 0, 1);
    put_kv_string(&f, "general.alignment", "32");
    expect_error(&f, ERR_INVAL, "found string, wanted u32");
}

/* A file with one tensor `w` of 64 data bytes, or its beginning when that
 * many dimensions are not allowed. */
static struct file one_tensor(uint32_t n_dims, const uint64_t *dims,
                              uint32_t type, uint64_t offset)
{
    struct file f = {.n = 0};
    put_header(&f, 3, 1, 0);
    put_tensor(&f, "w", n_dims, dims, type, offset);
    put_data(&f, 32, 64);
    return f;
}

static void bad_tensors_are_refused_and_named(void **state)
{
    (void)state;
    enum { Q2_K = 10, MXFP4 = 39 };
    static const struct {
        uint32_t n_dims;
        uint64_t dims[5];
        uint32_t type;
        uint64_t offset;
        enum err code;
        const char *part;
    } cases[] = {
        {0, {0}, DTYPE_F32, 0, ERR_INVAL, "'w': 0 dimensions"},
        {5, {1, 1, 1, 1, 1}, DTYPE_F32, 0, ERR_INVAL, "'w': 5 dimensions"},
        {UINT32_MAX, {0}, DTYPE_F32, 0, ERR_INVAL, "4294967295 dimensions"},
        {2, {4, 0}, DTYPE_F32, 0, ERR_INVAL, "'w': dimension 1 is 0"},
        {1, {256}, Q2_K, 0, ERR_UNSUPPORTED, "'w': type Q2_K (10)"},
        {1, {32}, MXFP4, 0, ERR_UNSUPPORTED, "'w': type MXFP4 (39)"},
        {1, {32}, 4000, 0, ERR_UNSUPPORTED, "'w': type unknown (4000)"},
        {1, {33}, DTYPE_Q8_0, 0, ERR_INVAL, "'w': a row of 33 elements"},
        {2, {32, 8}, DTYPE_Q6_K, 0, ERR_INVAL, "multiple of 256"},
        {1, {UINT64_MAX}, DTYPE_F32, 0, ERR_INVAL, "overflows"},
        {2, {1ull << 62, 2}, DTYPE_F32, 0, ERR_INVAL, "overflows"},
        {4,
         {1 << 16, 1 << 16, 1 << 16, 1 << 16},
         DTYPE_F16,
         0,
         ERR_INVAL,
         "overflows"},
        {4, {1, 1, 1ull << 62, 4}, DTYPE_F32, 0, ERR_INVAL, "overflows"},
        {1,
         {17},
         DTYPE_F32,
         0,
         ERR_INVAL,
         "'w': offset 0 + 68 bytes, from 64 on, passes the end of the file "
         "at 128"},
        {1, {16}, DTYPE_F32, 32, ERR_INVAL, "'w': offset 32 + 64 bytes"},
        {1, {1}, DTYPE_F32, 96, ERR_INVAL, "'w': offset 96 + 4 bytes"},
        {1, {8}, DTYPE_F32, UINT64_MAX - 31, ERR_INVAL, "passes the end"},
        {1, {1}, DTYPE_F32, 4, ERR_INVAL, "'w': its data offset 4"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct file f = one_tensor(cases[i].n_dims, cases[i].dims,
                                   cases[i].type, cases[i].offset);
        expect_error(&f, cases[i].code, cases[i].part);
    }
}

static void bad_tensor_names_are_refused(void **state)
{
    (void)state;
    char name[GGUF_NAME_MAX + 2];
    uint64_t dim = 1;
    memset(name, 'n', sizeof(name));
    name[GGUF_NAME_MAX + 1] = '\0';
    struct file f = {.n = 0};
    put_header(&f, 3, 1, 0);
    put_tensor(&f, "", 1, &dim, DTYPE_F32, 0);
    put_data(&f, 32, 64);
    expect_error(&f, ERR_INVAL, "tensor 0: a name of 0 bytes");
    f.n = 0;
    put_header(&f, 3, 1, 0);
    put_tensor(&f, name, 1, &dim, DTYPE_F32, 0);
    put_data(&f, 32, 64);
    expect_error(&f, ERR_INVAL, "tensor 0: a name of 256 bytes");
    f.n = 0;
    put_header(&f, 3, 1, 0);
    put_text(&f, "a\0b", 3);
    put_data(&f, 32, 64);
    expect_error(&f, ERR_INVAL, "zero byte");
    f.n = 0;
    put_header(&f, 3, 1, 0);
    put_u64(&f, 1ull << 40);
    put_data(&f, 32, 64);
    expect_error(&f, ERR_INVAL, "tensor 0: its name (offset 24");
}

static void tensors_that_share_a_name_or_bytes_are_refused(void **state)
{
    (void)state;
    uint64_t dim = 9; /* 36 bytes: reaches over the next multiple of 32 */
    struct file f = {.n = 0};
    put_header(&f, 3, 3, 0);
    put_tensor(&f, "b", 1, &dim, DTYPE_F32, 0);
    put_tensor(&f, "a", 1, &dim, DTYPE_F32, 64);
    put_tensor(&f, "b", 1, &dim, DTYPE_F32, 128);
    put_data(&f, 32, 256);
    expect_error(&f, ERR_INVAL, "tensor 'b' is there twice");
    f.n = 0;
    put_header(&f, 3, 3, 0);
    put_tensor(&f, "b", 1, &dim, DTYPE_F32, 96);
    put_tensor(&f, "a", 1, &dim, DTYPE_F32, 0);
    put_tensor(&f, "c", 1, &dim, DTYPE_F32, 64);
    put_data(&f, 32, 256);
    expect_error(&f, ERR_INVAL,
                 "tensor 'b': its data overlaps that of tensor 'c'");
}

static struct gguf *parse(const struct file *f)
{
    struct gguf *g = NULL;
    struct errmsg m = {""};
    if (gguf_parse(&g, f->b, f->n, &m) != OK)
        fail_msg("%s", m.text);
    return g;
}

static void numbers_come_back_in_every_type_they_fit(void **state)
{
    (void)state;
    struct file f = {.n = 0};
    put_header(&f, 3, 0, 10);
    put_kv_number(&f, "u8", GGUF_U8, 200, 1);
    put_kv_number(&f, "i8", GGUF_I8, (uint64_t)-3, 1);
    put_kv_number(&f, "u16", GGUF_U16, 65535, 2);
    put_kv_number(&f, "i16", GGUF_I16, 30000, 2);
    put_kv_number(&f, "u32", GGUF_U32, UINT32_MAX, 4);
    put_kv_number(&f, "i32", GGUF_I32, (uint64_t)INT32_MIN, 4);
    put_kv_number(&f, "u64", GGUF_U64, UINT64_MAX, 8);
    put_kv_number(&f, "i64", GGUF_I64, 1ull << 32, 8);
    put_kv_number(&f, "true", GGUF_BOOL, 1, 1);
    put_kv_number(&f, "false", GGUF_BOOL, 0, 1);
    struct gguf *g = parse(&f);
    struct errmsg m = {""};
    uint32_t u = 1;
    uint64_t w = 1;
    bool b = false;
    assert_int_equal(gguf_u32(g, "u8", &u, &m), OK);
    assert_int_equal(u, 200);
    assert_int_equal(gguf_u32(g, "u16", &u, &m), OK);
    assert_int_equal(u, 65535);
    assert_int_equal(gguf_u32(g, "i16", &u, &m), OK);
    assert_int_equal(u, 30000);
    assert_int_equal(gguf_u32(g, "u32", &u, &m), OK);
    assert_int_equal(u, UINT32_MAX);
    assert_int_equal(gguf_u64(g, "u64", &w, &m), OK);
    assert_int_equal(w, UINT64_MAX);
    assert_int_equal(gguf_u64(g, "i64", &w, &m), OK);
    assert_int_equal(w, 1ull << 32);
    assert_int_equal(gguf_bool(g, "true", &b, &m), OK);
    assert_true(b);
    assert_int_equal(gguf_bool(g, "false", &b, &m), OK);
    assert_false(b);
    assert_int_equal(gguf_u32(g, "i8", &u, &m), ERR_INVAL);
    assert_string_equal(m.text, "key 'i8': -3 does not fit into u32");
    assert_int_equal(gguf_u64(g, "i32", &w, &m), ERR_INVAL);
    assert_string_equal(m.text, "key 'i32': -2147483648 does not fit into u64");
    assert_int_equal(gguf_u32(g, "i64", &u, &m), ERR_INVAL);
    assert_string_equal(m.text, "key 'i64': 4294967296 does not fit into u32");
    assert_int_equal(gguf_u32(g, "true", &u, &m), ERR_INVAL);
    assert_string_equal(m.text, "key 'true': found bool, wanted u32");
    assert_int_equal(gguf_bool(g, "u8", &b, &m), ERR_INVAL);
    assert_int_equal(gguf_u32(g, "u", &u, &m), ERR_NOTFOUND);
    assert_string_equal(m.text, "the file has no key 'u'");
    assert_int_equal(u, UINT32_MAX); /* errors left it alone */
    gguf_close(g);
}

static void floats_come_back_rounded_to_f32(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        double value;
        enum err code;
    } cases[] = {{"small", 1e-6, OK},
                 {"third", 1.0 / 3.0, OK},
                 {"huge", 1e300, ERR_INVAL},
                 {"nan", (double)NAN, ERR_INVAL}};
    enum { N = sizeof(cases) / sizeof(cases[0]) };
    struct file f = {.n = 0};
    put_header(&f, 3, 0, 2 * N + 1);
    for (size_t i = 0; i < N; i++) {
        char key[16];
        uint64_t bits = 0;
        float x = (float)cases[i].value;
        memcpy(&bits, &cases[i].value, 8);
        put_kv_number(&f, cases[i].key, GGUF_F64, bits, 8);
        snprintf(key, sizeof(key), "%s32", cases[i].key);
        bits = 0;
        memcpy(&bits, &x, 4);
        put_kv_number(&f, key, GGUF_F32, bits, 4);
    }
    put_kv_u32(&f, "int", 1);
    struct gguf *g = parse(&f);
    for (size_t i = 0; i < N; i++) {
        char key[16];
        float x = 0, y = 0;
        snprintf(key, sizeof(key), "%s32", cases[i].key);
        assert_int_equal(gguf_f32(g, cases[i].key, &x, NULL), cases[i].code);
        assert_int_equal(gguf_f32(g, key, &y, NULL), cases[i].code);
        if (cases[i].code == OK)
            assert_true(x == (float)cases[i].value && y == x);
    }
    float x = 0;
    struct errmsg m = {""};
    assert_int_equal(gguf_f32(g, "int", &x, &m), ERR_INVAL);
    assert_string_equal(m.text, "key 'int': found u32, wanted f32");
    gguf_close(g);
}

static void strings_and_arrays_come_back_whole(void **state)
{
    (void)state;
    static const int32_t ints[] = {INT32_MIN, -1, 0, INT32_MAX};
    struct file f = {.n = 0};
    put_header(&f, 2, 0, 5);
    put_kv_string(&f, "s", "text");
    put_array_head(&f, "strings", GGUF_STRING, 3);
    put_text(&f, "", 0);
    put_text(&f, "a\0b", 3);
    put_text(&f, "c", 1);
    put_array_head(&f, "ints", GGUF_I32, 4);
    put_bytes(&f, ints, sizeof(ints));
    put_array_head(&f, "big", GGUF_U32, 1);
    put_u32(&f, 1u << 31);
    put_array_head(&f, "none", GGUF_STRING, 0);
    struct gguf *g = parse(&f);
    struct errmsg m = {""};
    struct gguf_str s, strings[3];
    int32_t out[4];
    enum gguf_type elem;
    size_t count = 9;
    assert_int_equal(gguf_version(g), 2);
    assert_int_equal(gguf_string(g, "s", &s, &m), OK);
    assert_int_equal(s.n, 4);
    assert_memory_equal(s.s, "text", 4);
    assert_int_equal(gguf_string(g, "ints", &s, &m), ERR_INVAL);
    assert_string_equal(m.text,
                        "key 'ints': found an array of i32, wanted string");
    assert_int_equal(gguf_array_info(g, "strings", &elem, &count, &m), OK);
    assert_true(elem == GGUF_STRING && count == 3);
    assert_int_equal(gguf_array_strings(g, "strings", strings, 3, &m), OK);
    assert_true(strings[0].n == 0 && strings[1].n == 3 && strings[2].n == 1);
    assert_memory_equal(strings[1].s, "a\0b", 3);
    assert_memory_equal(strings[2].s, "c", 1);
    assert_int_equal(gguf_array_strings(g, "strings", strings, 2, &m),
                     ERR_INVAL);
    assert_string_equal(m.text,
                        "key 'strings': the array has 3 elements, wanted 2");
    assert_int_equal(gguf_array_i32(g, "ints", out, 4, &m), OK);
    assert_memory_equal(out, ints, sizeof(ints));
    assert_int_equal(gguf_array_i32(g, "big", out, 1, &m), ERR_INVAL);
    assert_string_equal(m.text, "key 'big': 2147483648 does not fit into i32");
    assert_int_equal(gguf_array_strings(g, "ints", strings, 4, &m), ERR_INVAL);
    assert_int_equal(gguf_array_strings(g, "none", NULL, 0, &m), OK);
    assert_int_equal(gguf_array_info(g, "s", &elem, &count, &m), ERR_INVAL);
    assert_int_equal(gguf_array_info(g, "x", &elem, &count, &m), ERR_NOTFOUND);
    gguf_close(g);
}

static void float_arrays_keep_infinities(void **state)
{
    (void)state;
    static const float floats[] = {1.5f, -INFINITY};
    static const double doubles[] = {0.1, 1e300};
    struct file f = {.n = 0};
    put_header(&f, 3, 0, 3);
    put_array_head(&f, "f32", GGUF_F32, 2);
    put_bytes(&f, floats, sizeof(floats));
    put_array_head(&f, "f64", GGUF_F64, 2);
    put_bytes(&f, doubles, sizeof(doubles));
    put_array_head(&f, "u8", GGUF_U8, 1);
    put_bytes(&f, "\1", 1);
    struct gguf *g = parse(&f);
    float out[2];
    assert_int_equal(gguf_array_f32(g, "f32", out, 2, NULL), OK);
    assert_memory_equal(out, floats, sizeof(floats));
    assert_int_equal(gguf_array_f32(g, "f64", out, 2, NULL), OK);
    assert_true(out[0] == 0.1f && isinf(out[1]));
    assert_int_equal(gguf_array_f32(g, "u8", out, 1, NULL), ERR_INVAL);
    assert_int_equal(gguf_array_i32(g, "f32", (int32_t *)(void *)out, 2, NULL),
                     ERR_INVAL);
    gguf_close(g);
}

static void keys_and_tensors_stand_in_the_order_of_the_file(void **state)
{
    (void)state;
    static const uint64_t dims[] = {32, 3};
    struct file f = {.n = 0};
    put_header(&f, 3, 2, 3);
    put_kv_u32(&f, "general.alignment", 64);
    put_kv_u32(&f, "z", 1);
    put_array_head(&f, "a", GGUF_U8, 2);
    put_bytes(&f, "\1\2", 2);
    put_tensor(&f, "w", 2, dims, DTYPE_Q8_0, 64);
    put_tensor(&f, "b", 1, dims, DTYPE_F16, 0);
    put_data(&f, 64, 64 + 3 * 34);
    struct gguf *g = parse(&f);
    assert_int_equal(gguf_n_kv(g), 3);
    struct gguf_kv kv = gguf_kv_at(g, 1);
    assert_true(kv.key.n == 1 && kv.key.s[0] == 'z');
    assert_true(kv.type == GGUF_U32 && kv.elem == GGUF_U32 && kv.count == 1);
    kv = gguf_kv_at(g, 2);
    assert_true(kv.type == GGUF_ARRAY && kv.elem == GGUF_U8 && kv.count == 2);
    assert_int_equal(gguf_n_tensors(g), 2);
    const struct gguf_tensor *w = gguf_tensor_at(g, 0);
    assert_string_equal(w->name, "w");
    assert_true(w->type == DTYPE_Q8_0 && w->n_dims == 2 && w->bytes == 102);
    assert_true(w->dims[0] == 32 && w->dims[1] == 3 && w->dims[2] == 1);
    assert_ptr_equal(w->data, f.b + f.n - 102);
    const struct gguf_tensor *b = gguf_tensor_find(g, "b");
    assert_ptr_equal(b, gguf_tensor_at(g, 1));
    assert_ptr_equal(b->data, w->data - 64);
    assert_int_equal((b->data - f.b) % 64, 0);
    assert_null(gguf_tensor_find(g, "bb"));
    assert_null(gguf_tensor_find(g, ""));
    gguf_close(g);
}

static void an_empty_file_of_lists_is_valid(void **state)
{
    (void)state;
    struct file f = {.n = 0};
    put_header(&f, 3, 0, 0);
    struct gguf *g = parse(&f);
    uint32_t u;
    assert_int_equal(gguf_n_kv(g), 0);
    assert_int_equal(gguf_n_tensors(g), 0);
    assert_int_equal(gguf_u32(g, "a", &u, NULL), ERR_NOTFOUND);
    assert_null(gguf_tensor_find(g, "a"));
    gguf_close(g);
    gguf_close(NULL);
}

static void hostile_names_in_messages_are_made_printable(void **state)
{
    (void)state;
    struct file f = {.n = 0};
    char name[GGUF_NAME_MAX + 1];
    uint64_t dim = 0;
    memset(name, '\x1b', GGUF_NAME_MAX);
    name[GGUF_NAME_MAX] = '\0';
    put_header(&f, 3, 1, 0);
    put_tensor(&f, name, 1, &dim, DTYPE_F32, 0);
    put_data(&f, 32, 32);
    expect_error(&f, ERR_INVAL, "???\?\': dimension 0 is 0");
}

static void opening_says_what_is_wrong_with_the_path(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        enum err code;
        const char *part;
    } cases[] = {
        {"no/such/file.gguf", ERR_NOTFOUND, "cannot open no/such/file.gguf"},
        {"tests", ERR_INVAL, "tests is not a regular file"},
        {"/dev/null", ERR_INVAL, "/dev/null is not a regular file"},
        {"Makefile", ERR_INVAL, "Makefile: not a GGUF file"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gguf *g = NULL;
        struct errmsg m = {""};
        assert_int_equal(gguf_open(&g, cases[i].path, &m), cases[i].code);
        assert_non_null(strstr(m.text, cases[i].part));
        assert_null(g);
    }
}

static void a_file_on_disk_reads_like_the_same_bytes_in_memory(void **state)
{
    (void)state;
    char path[] = "/tmp/ebb-test-gguf-XXXXXX";
    uint64_t dim = 16;
    struct file f = {.n = 0};
    put_header(&f, 3, 1, 1);
    put_kv_u32(&f, "k", 77);
    put_tensor(&f, "w", 1, &dim, DTYPE_F32, 0);
    put_data(&f, 32, 64);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    struct gguf *g = NULL;
    struct errmsg m = {""};
    assert_int_equal(gguf_open(&g, path, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "the file is empty"));
    assert_int_equal(write(fd, f.b, f.n), f.n);
    close(fd);
    assert_int_equal(gguf_open(&g, path, &m), OK);
    uint32_t u = 0;
    assert_int_equal(gguf_u32(g, "k", &u, &m), OK);
    assert_int_equal(u, 77);
    assert_memory_equal(gguf_tensor_at(g, 0)->data, f.b + f.n - 64, 64);
    gguf_close(g);
    assert_int_equal(truncate(path, (off_t)f.n - 1), 0);
    assert_int_equal(gguf_open(&g, path, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, path));
    assert_non_null(strstr(m.text, "tensor 'w'"));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_is_not_gguf_is_refused),
        cmocka_unit_test(other_versions_and_byte_orders_are_refused_by_name),
        cmocka_unit_test(counts_that_the_file_cannot_hold_are_refused),
        cmocka_unit_test(bad_keys_are_refused),
        cmocka_unit_test(a_key_may_not_be_longer_than_the_format_allows),
        cmocka_unit_test(bad_values_are_refused_and_the_key_named),
        cmocka_unit_test(a_string_or_bool_outside_its_bounds_is_refused),
        cmocka_unit_test(a_bad_alignment_is_refused),
        cmocka_unit_test(bad_tensors_are_refused_and_named),
        cmocka_unit_test(bad_tensor_names_are_refused),
        cmocka_unit_test(tensors_that_share_a_name_or_bytes_are_refused),
        cmocka_unit_test(numbers_come_back_in_every_type_they_fit),
        cmocka_unit_test(floats_come_back_rounded_to_f32),
        cmocka_unit_test(strings_and_arrays_come_back_whole),
        cmocka_unit_test(float_arrays_keep_infinities),
        cmocka_unit_test(keys_and_tensors_stand_in_the_order_of_the_file),
        cmocka_unit_test(an_empty_file_of_lists_is_valid),
        cmocka_unit_test(hostile_names_in_messages_are_made_printable),
        cmocka_unit_test(opening_says_what_is_wrong_with_the_path),
        cmocka_unit_test(a_file_on_disk_reads_like_the_same_bytes_in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
