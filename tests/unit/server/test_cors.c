#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/cors.h"

static void pages_of_this_machine_are_local(void **state)
{
    static const char *const yes[] = {
        "http://localhost",      "http://localhost:3000",
        "https://localhost:443", "http://127.0.0.1:8080",
        "http://127.1.2.3",      "http://[::1]",
        "http://[::1]:5173",     "http://app.localhost:80",
        "http://LOCALHOST:1",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        assert_true(cors_is_local(yes[i]));
}

static void other_pages_are_not(void **state)
{
    static const char *const no[] = {
        "",
        "null",
        "https://evil.example",
        "http://localhost.evil.example",
        "http://evil-localhost",
        "http://evillocalhost",
        "http://.localhost",
        "http://localhost@evil.example",
        "http://localhost:80@evil.example",
        "http://127.0.0.1.evil.example",
        "http://127.0.0",
        "http://127.0.0.1.2",
        "http://127..0.1",
        "http://128.0.0.1",
        "http://localhost/",
        "http://localhost:",
        "http://localhost:80a",
        "http://localhost\r\nX: y",
        "file://localhost",
        "localhost",
        "http://",
    };
    (void)state;
    assert_false(cors_is_local(NULL));
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        assert_false(cors_is_local(no[i]));
}

static void a_loopback_server_knows_its_names(void **state)
{
    static const char *const yes[] = {
        "localhost",   "localhost:8080", "127.0.0.1:1",    "127.9.8.7",
        "[::1]",       "[::1]:8080",     "MyBox:8080",     "mybox",
        "LOCALHOST",   "a.localhost:80", "chat.example:9", "x",
        "gpubox:8080",
    };
    static const char *const no[] = {
        "",           "evil.example",      "evil.example:8080",
        "localhost.", "127.0.0.1.evil",    "mybox.evil",
        "[::2]",      "localhost:80@evil", "localhost/evil",
        "10.0.0.1",   "chat.example.evil", "localhost:",
    };
    const char *const list[] = {"https://chat.example"};
    const char *const all[] = {"*"};
    (void)state;
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        assert_true(cors_host_allowed(yes[i], "mybox", list, 1));
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        assert_false(cors_host_allowed(no[i], "mybox", list, 1));
    assert_true(cors_host_allowed("evil.example", "mybox", all, 1));
}

static void a_page_of_the_same_host_is_known(void **state)
{
    (void)state;
    assert_true(cors_is_same("https://chat.example", "chat.example"));
    assert_true(cors_is_same("http://10.0.0.1:8080", "10.0.0.1:8080"));
    assert_false(cors_is_same("http://10.0.0.1:8081", "10.0.0.1:8080"));
    assert_false(cors_is_same("null", "null"));
    assert_false(cors_is_same("https://", ""));
    assert_false(cors_is_same(NULL, "a"));
    assert_false(cors_is_same("http://a", NULL));
}

static void a_list_replaces_the_local_pages(void **state)
{
    const char *const list[] = {"https://chat.example", "http://b:1"};
    const char *const all[] = {"*"};
    (void)state;
    assert_true(cors_allows("https://chat.example", list, 2));
    assert_true(cors_allows("http://b:1", list, 2));
    assert_false(cors_allows("https://chat.example:444", list, 2));
    assert_false(cors_allows("http://localhost", list, 2));
    assert_true(cors_allows("http://localhost", NULL, 0));
    assert_false(cors_allows("https://chat.example", NULL, 0));
    assert_true(cors_allows("https://x.example", all, 1));
    assert_false(cors_allows(NULL, all, 1));
}

static void only_lists_of_names_are_echoed(void **state)
{
    (void)state;
    assert_true(cors_is_header_list("authorization, x-stainless-os,a_b"));
    assert_false(cors_is_header_list("")); /* there is nothing to allow */
    assert_false(cors_is_header_list(NULL));
    assert_false(cors_is_header_list("a: b"));
    assert_false(cors_is_header_list("a\r\nb"));
    assert_false(cors_is_header_list("a;b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_this_machine_are_local),
        cmocka_unit_test(other_pages_are_not),
        cmocka_unit_test(a_loopback_server_knows_its_names),
        cmocka_unit_test(a_page_of_the_same_host_is_known),
        cmocka_unit_test(a_list_replaces_the_local_pages),
        cmocka_unit_test(only_lists_of_names_are_echoed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
