#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"

/* Values published with the standard (FIPS 180-4 examples). */
static void digests_are_those_of_the_standard(void **state)
{
    (void)state;
    static const struct {
        const char *in, *hex;
    } row[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb924"
             "27ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223"
                "b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        uint8_t out[HASH_BYTES];
        char hex[HASH_HEX];
        size_t n = strlen(row[i].in);
        assert_int_equal(hash_sha256(out, row[i].in, n), OK);
        hash_hex(hex, out, sizeof(out));
        assert_string_equal(hex, row[i].hex);
        struct hash h;
        assert_int_equal(hash_init(&h), OK);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(hash_update(&h, row[i].in + k, 1), OK);
        assert_int_equal(hash_final(&h, out), OK);
        hash_fini(&h);
        hash_hex(hex, out, sizeof(out));
        assert_string_equal(hex, row[i].hex);
    }
    struct hash none = {0};
    hash_fini(&none);
}

static void random_bytes_differ_from_call_to_call(void **state)
{
    (void)state;
    uint8_t a[32] = {0}, b[32] = {0}, zero[32] = {0};
    assert_int_equal(hash_random(a, sizeof(a)), OK);
    assert_int_equal(hash_random(b, sizeof(b)), OK);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_memory_not_equal(a, zero, sizeof(a));
    assert_int_equal(hash_random(a, 0), OK);
}

static void comparison_sees_every_byte(void **state)
{
    (void)state;
    uint8_t a[32] = {0}, b[32] = {0};
    assert_true(hash_equal(a, b, 32));
    for (size_t i = 0; i < 32; i++) {
        b[i] = 1;
        assert_false(hash_equal(a, b, 32));
        assert_true(hash_equal(a, b, i));
        b[i] = 0;
    }
}

static void a_file_has_the_digest_of_its_bytes(void **state)
{
    (void)state;
    char hex[HASH_HEX] = "", path[] = "/tmp/ebb-hash-XXXXXX";
    struct errmsg m = {""};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "abc", 3), 3);
    close(fd);
    assert_int_equal(hash_file(hex, path, &m), OK);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223"
                             "b00361a396177a9cb410ff61f20015ad");
    unlink(path);
    assert_int_not_equal(hash_file(hex, path, &m), OK);
    assert_non_null(strstr(m.text, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_those_of_the_standard),
        cmocka_unit_test(a_file_has_the_digest_of_its_bytes),
        cmocka_unit_test(random_bytes_differ_from_call_to_call),
        cmocka_unit_test(comparison_sees_every_byte),
    };
    return cmocka_run_group_tests_name("base/hash", tests, NULL, NULL);
}
