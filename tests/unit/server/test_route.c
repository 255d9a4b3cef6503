#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "server/route.h"

static struct route find(const char *method, const char *path)
{
    struct route r;
    route_find(&r, method, path);
    return r;
}

static void careless_spellings_reach_the_same_route(void **state)
{
    static const char *const paths[] = {
        "/v1/chat/completions",  "/chat/completions",
        "/v1/chat/completions/", "//v1/chat/completions",
        "/v1//chat/completions", "/v1/chat//completions///",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct route r = find("POST", paths[i]);
        assert_int_equal(r.id, ROUTE_CHAT);
        assert_true(r.method_fits);
    }
}

static void what_is_no_route_is_unknown(void **state)
{
    static const char *const paths[] = {
        "",
        "/",
        "/v1",
        "/v1/",
        "/v1/chat",
        "/v1/chat/completions/extra",
        "/v1x",
        "/v1/v1/models",
        "chat/completions",
        "/CHAT/completions",
        "/v2/models",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct route r = find("GET", paths[i]);
        assert_int_equal(r.id, ROUTE_UNKNOWN);
        assert_null(r.allow);
    }
}

static void the_sessions_api_has_its_own_refusal(void **state)
{
    (void)state;
    static const char *const paths[] = {"/v1/sessions", "/sessions/",
                                        "/v1/sessions/a/map"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        assert_int_equal(find("DELETE", paths[i]).id, ROUTE_SESSIONS);
    assert_int_equal(find("GET", "/v1/sessionsx").id, ROUTE_UNKNOWN);
}

static void a_model_id_may_hold_slashes_and_colons(void **state)
{
    (void)state;
    struct route r = find("GET", "/v1/models/org/name:q4");
    assert_int_equal(r.id, ROUTE_MODEL);
    assert_string_equal(r.rest, "org/name:q4");
    r = find("GET", "/models/x");
    assert_string_equal(r.rest, "x");
    assert_int_equal(find("GET", "/v1/models/").id, ROUTE_MODELS);
}

static void a_wrong_method_is_told_what_is_allowed(void **state)
{
    (void)state;
    struct route r = find("GET", "/v1/completions");
    assert_int_equal(r.id, ROUTE_COMPLETIONS);
    assert_false(r.method_fits);
    assert_string_equal(r.allow, "POST, OPTIONS");
    assert_false(find("POST", "/v1/models").method_fits);
    assert_true(find("HEAD", "/health").method_fits);
    assert_false(find("HEAD", "/v1/chat/completions").method_fits);
    assert_false(find("get", "/health").method_fits);
    assert_false(find("DELETE", "/v1/models/x").method_fits);
}

static void an_endless_path_is_unknown(void **state)
{
    char path[4 * ROUTE_PATH_MAX];
    (void)state;
    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    memcpy(path, "/v1/models/", 11);
    assert_int_equal(find("GET", path).id, ROUTE_UNKNOWN);
    memset(path + 11, '/', sizeof(path) - 12);
    assert_int_equal(find("GET", path).id, ROUTE_MODELS);
}

static void every_route_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (int i = 0; i < ROUTE_COUNT; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(route_name((enum route_id)i),
                                    route_name((enum route_id)j));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(careless_spellings_reach_the_same_route),
        cmocka_unit_test(what_is_no_route_is_unknown),
        cmocka_unit_test(the_sessions_api_has_its_own_refusal),
        cmocka_unit_test(a_model_id_may_hold_slashes_and_colons),
        cmocka_unit_test(a_wrong_method_is_told_what_is_allowed),
        cmocka_unit_test(an_endless_path_is_unknown),
        cmocka_unit_test(every_route_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
