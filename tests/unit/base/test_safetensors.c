/* Tensor files: what is written reads back, and what a hostile file says is
 * refused before a pointer to it is handed out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/safetensors.h"

/* Length, header, n_data bytes 0, 1, 2 ... */
static void make_file(struct buf *b, const char *header, size_t n_data)
{
    size_t n = strlen(header);
    buf_clear(b);
    for (int i = 0; i < 8; i++)
        assert_int_equal(buf_putc(b, (char)(n >> (8 * i) & 0xFF)), OK);
    assert_int_equal(buf_append(b, header, n), OK);
    for (size_t i = 0; i < n_data; i++)
        assert_int_equal(buf_putc(b, (char)i), OK);
}

/* The bytes in a block of exactly their size, so that a sanitizer sees every
 * step beyond. */
static enum err parse_tight(const char *data, size_t n, struct errmsg *m)
{
    struct safetensors *s = NULL;
    uint8_t *tight = malloc(n > 0 ? n : 1);
    assert_non_null(tight);
    memcpy(tight, data, n);
    enum err rc = safetensors_parse(&s, tight, n, m);
    if (rc == OK)
        safetensors_close(s);
    free(tight);
    return rc;
}

static void check_refused(const char *header, size_t n_data, enum err want,
                          const char *part)
{
    struct buf b = {0};
    struct errmsg m = {""};
    make_file(&b, header, n_data);
    enum err rc = parse_tight(b.data, b.len, &m);
    if (rc != want || strstr(m.text, part) == NULL)
        fail_msg("%s\n gave %d: %s", header, (int)rc, m.text);
    buf_fini(&b);
}

static const char GOOD[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"a \\u00e9\"},"
    "\"b\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[8,14]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
    "\"empty\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
    "\"one\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[14,16]}}  ";

static void a_file_of_other_programs_is_read(void **state)
{
    (void)state;
    struct buf b = {0};
    struct errmsg m = {""};
    struct safetensors *s = NULL;
    make_file(&b, GOOD, 16);
    assert_int_equal(safetensors_parse(&s, (const uint8_t *)b.data, b.len, &m),
                     OK);
    assert_int_equal(safetensors_count(s), 4);
    assert_string_equal(safetensors_at(s, 0)->name, "a");
    assert_string_equal(safetensors_at(s, 3)->name, "one");
    assert_string_equal(safetensors_meta(s, "format"), "pt");
    assert_string_equal(safetensors_meta(s, "note"), "a \xC3\xA9");
    assert_null(safetensors_meta(s, "Format"));
    assert_null(safetensors_find(s, "c"));
    const struct safetensors_tensor *t = safetensors_find(s, "b");
    assert_int_equal(t->type, DTYPE_F16);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->dims[0], 3);
    assert_int_equal(t->dims[1], 1);
    assert_int_equal(t->bytes, 6);
    assert_int_equal(t->data[0], 8); /* bytes count up from the data's start */
    assert_int_equal(t->data[5], 13);
    t = safetensors_find(s, "one");
    assert_int_equal(t->n_dims, 0);
    assert_int_equal(t->bytes, 2);
    safetensors_close(s);
    buf_fini(&b);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct buf b = {0};
    make_file(&b, GOOD, 16);
    for (size_t n = 0; n < b.len; n++) {
        struct errmsg m = {""};
        assert_int_not_equal(parse_tight(b.data, n, &m), OK);
        assert_int_not_equal(strlen(m.text), 0);
    }
    struct errmsg m;
    assert_int_equal(parse_tight(b.data, b.len, &m), OK);
    buf_fini(&b);
}

/* Whatever a flipped byte does, nothing is read beyond the file: the
 * sanitizers are the judges here. */
static void a_file_with_flipped_bytes_is_read_within_its_bounds(void **state)
{
    (void)state;
    struct buf b = {0};
    struct rng r;
    int n_good = 0;
    rng_seed(&r, 3);
    make_file(&b, GOOD, 16);
    for (size_t at = 0; at < b.len - 16; at++)
        for (int k = 0; k < 8; k++) {
            struct errmsg m;
            char old = b.data[at];
            b.data[at] = (char)rng_below(&r, 256);
            n_good += parse_tight(b.data, b.len, &m) == OK;
            b.data[at] = old;
        }
    assert_true(n_good > 0); /* the names and strings may change */
    buf_fini(&b);
}

static void bad_offsets_are_refused(void **state)
{
    (void)state;
#define ONE(rest) "{\"t\":{\"dtype\":\"F32\"," rest "}}"
    check_refused(ONE("\"shape\":[2],\"data_offsets\":[0,12]"), 8, ERR_INVAL,
                  "within the 8 bytes");
    check_refused(ONE("\"shape\":[2],\"data_offsets\":[-8,0]"), 8, ERR_INVAL,
                  "'t'");
    check_refused(ONE("\"shape\":[2],\"data_offsets\":[8,0]"), 8, ERR_INVAL,
                  "'t'");
    check_refused(ONE("\"shape\":[1],\"data_offsets\":[0,8]"), 8, ERR_INVAL,
                  "needs 4 bytes");
    check_refused(ONE("\"shape\":[2],\"data_offsets\":[0]"), 8, ERR_INVAL,
                  "two numbers");
    check_refused(ONE("\"shape\":[2],\"data_offsets\":[0,8.5]"), 8, ERR_INVAL,
                  "two numbers");
    check_refused(ONE("\"shape\":[2]"), 8, ERR_INVAL, "two numbers");
    check_refused(
        ONE("\"shape\":[2],\"data_offsets\":[0,18446744073709551624]"), 8,
        ERR_INVAL, "two numbers");
    check_refused(ONE("\"shape\":[1],\"data_offsets\":[4,8]"), 8, ERR_INVAL,
                  "begins at byte 4");
    check_refused(ONE("\"shape\":[1],\"data_offsets\":[0,4]"), 8, ERR_INVAL,
                  "4 bytes after the last tensor");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":"
                  "[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],"
                  "\"data_offsets\":[0,8]}}",
                  8, ERR_INVAL, "begins at byte 0");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":"
                  "[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
                  "\"data_offsets\":[4,8]}}",
                  8, ERR_INVAL, "begins at byte 4");
}

static void bad_shapes_and_types_are_refused(void **state)
{
    (void)state;
#define AT ",\"data_offsets\":[0,8]"
    check_refused(ONE("\"shape\":[4611686018427387904,4]" AT), 8, ERR_INVAL,
                  "overflows");
    check_refused(ONE("\"shape\":[3037000500,3037000500]" AT), 8, ERR_INVAL,
                  "overflows");
    check_refused(ONE("\"shape\":[-2]" AT), 8, ERR_INVAL, "dimension 0");
    check_refused(ONE("\"shape\":[1.5]" AT), 8, ERR_INVAL, "dimension 0");
    check_refused(ONE("\"shape\":[\"2\"]" AT), 8, ERR_INVAL, "dimension 0");
    check_refused(ONE("\"shape\":2" AT), 8, ERR_INVAL, "not an array");
    check_refused(ONE("\"shape\":[1,1,1,1,2]" AT), 8, ERR_UNSUPPORTED,
                  "more than 4 dimensions");
    check_refused("{\"t\":{\"dtype\":\"I64\",\"shape\":[1]" AT "}}", 8,
                  ERR_UNSUPPORTED, "I64");
    check_refused("{\"t\":{\"dtype\":4,\"shape\":[1]" AT "}}", 8, ERR_INVAL,
                  "dtype");
    check_refused("{\"t\":7}", 8, ERR_INVAL, "dtype");
}

static void a_header_that_is_no_object_of_tensors_is_refused(void **state)
{
    (void)state;
    check_refused("[]", 0, ERR_INVAL, "not an object");
    check_refused("7", 0, ERR_INVAL, "not an object");
    check_refused("{", 0, ERR_INVAL, "");
    check_refused("", 0, ERR_INVAL, "");
    check_refused("{\"__metadata__\":[]}", 0, ERR_INVAL, "__metadata__");
    check_refused("{\"__metadata__\":{\"a\":1}}", 0, ERR_INVAL, "'a'");
    check_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":"
                  "[0,0]},\"t\":{\"dtype\":\"F32\",\"shape\":[0],"
                  "\"data_offsets\":[0,0]}}",
                  0, ERR_INVAL, "t");
}

static void a_header_longer_than_the_file_or_the_limit_is_refused(void **state)
{
    (void)state;
    struct errmsg m;
    char data[16] = {0};
    memset(data, 0xFF, 8);
    assert_int_equal(parse_tight(data, sizeof(data), &m), ERR_INVAL);
    memset(data, 0, 8);
    data[0] = 9;
    assert_int_equal(parse_tight(data, sizeof(data), &m), ERR_INVAL);
    size_t n = SAFETENSORS_HEADER_MAX + 1;
    char *big = calloc(n + 8, 1);
    assert_non_null(big);
    for (int i = 0; i < 8; i++)
        big[i] = (char)(n >> (8 * i) & 0xFF);
    memset(big + 8, ' ', n);
    memcpy(big + 8, "{}", 2);
    assert_int_equal(parse_tight(big, n + 8, &m), ERR_INVAL);
    free(big);
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    char path[] = "/tmp/ebb-safetensors-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const float f[6] = {1, -2, 3, 0.5f, 1e-30f, 7};
    const uint16_t h[3] = {0x3C00, 0xC000, 0x7BFF};
    const struct safetensors_tensor t[] = {{.name = "x.weight",
                                            .type = DTYPE_F32,
                                            .n_dims = 2,
                                            .dims = {2, 3, 1, 1},
                                            .data = (const uint8_t *)f,
                                            .bytes = sizeof(f)},
                                           {.name = "a \"quoted\" \xC3\xA9",
                                            .type = DTYPE_F16,
                                            .n_dims = 1,
                                            .dims = {3, 1, 1, 1},
                                            .data = (const uint8_t *)h,
                                            .bytes = sizeof(h)}};
    const struct safetensors_string meta[] = {{"format", "pt"},
                                              {"line", "a\nb"}};
    struct safetensors *s = NULL;
    struct errmsg m = {""};
    assert_int_equal(safetensors_write(path, meta, 2, t, 2, &m), OK);
    assert_int_equal(safetensors_open(&s, path, &m), OK);
    assert_int_equal(safetensors_count(s), 2);
    assert_string_equal(safetensors_meta(s, "line"), "a\nb");
    for (int i = 0; i < 2; i++) {
        const struct safetensors_tensor *got = safetensors_find(s, t[i].name);
        assert_non_null(got);
        assert_int_equal(got->type, t[i].type);
        assert_int_equal(got->n_dims, t[i].n_dims);
        assert_memory_equal(got->dims, t[i].dims, sizeof(t[i].dims));
        assert_int_equal(got->bytes, t[i].bytes);
        assert_memory_equal(got->data, t[i].data, t[i].bytes);
    }
    safetensors_close(s);
    /* As other programs lay it out: the data begins at a multiple of 8. */
    struct buf b = {0};
    assert_int_equal(file_read_all(&b, path, 1 << 20, &m), OK);
    assert_int_equal((b.len - sizeof(f) - sizeof(h)) % 8, 0);
    assert_int_equal(b.data[8], '{');
    buf_fini(&b);
    unlink(path);
}

static void a_file_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct safetensors *s = NULL;
    struct errmsg m = {""};
    assert_int_equal(safetensors_open(&s, "/nowhere/x.safetensors", &m),
                     ERR_NOTFOUND);
    assert_non_null(strstr(m.text, "/nowhere/x.safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_of_other_programs_is_read),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_file_with_flipped_bytes_is_read_within_its_bounds),
        cmocka_unit_test(bad_offsets_are_refused),
        cmocka_unit_test(bad_shapes_and_types_are_refused),
        cmocka_unit_test(a_header_that_is_no_object_of_tensors_is_refused),
        cmocka_unit_test(a_header_longer_than_the_file_or_the_limit_is_refused),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(a_file_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
