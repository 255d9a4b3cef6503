#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/json.h"
#include "server/models.h"

static const char *const aliases[] = {"default", "team/chat"};

static struct server_options options(bool any)
{
    return (struct server_options){
        .model_id = "Smol.Q4_1",
        .aliases = aliases,
        .n_aliases = 2,
        .any_model = any,
        .model_created = 1700000000,
        .max_context = 8192,
    };
}

static void names_are_strict_unless_told_otherwise(void **state)
{
    static const char *const wrong[] = {
        "", " ", "gpt-4o", "DEFAULT", "smol.q4_1", "default ", "../models"};
    struct server_options strict = options(false), any = options(true);
    (void)state;
    assert_string_equal(models_find(&strict, "Smol.Q4_1"), "Smol.Q4_1");
    assert_string_equal(models_find(&strict, "default"), "default");
    assert_string_equal(models_find(&strict, "team/chat"), "team/chat");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_null(models_find(&strict, wrong[i]));
        assert_string_equal(models_find(&any, wrong[i]), "Smol.Q4_1");
    }
    assert_string_equal(models_find(&any, "default"), "default");
}

static void check_entry(const cJSON *m, const char *id)
{
    assert_string_equal(json_get(m, "id")->valuestring, id);
    assert_string_equal(json_get(m, "object")->valuestring, "model");
    assert_int_equal(json_get(m, "created")->valueint, 1700000000);
    assert_true(cJSON_IsString(json_get(m, "owned_by")));
    assert_int_equal(json_get(m, "context_length")->valueint, 8192);
}

static void the_list_begins_with_the_own_id(void **state)
{
    struct server_options o = options(false);
    struct buf out = {0};
    cJSON *tree = NULL;
    (void)state;
    assert_int_equal(models_list(&out, &o), OK);
    assert_int_equal(json_parse(&tree, out.data, out.len, NULL), OK);
    assert_string_equal(json_get(tree, "object")->valuestring, "list");
    const cJSON *data = json_get(tree, "data");
    assert_int_equal(cJSON_GetArraySize(data), 3);
    check_entry(cJSON_GetArrayItem(data, 0), "Smol.Q4_1");
    check_entry(cJSON_GetArrayItem(data, 1), "default");
    cJSON_Delete(tree);
    buf_fini(&out);
}

static void a_name_is_listed_once(void **state)
{
    static const char *const twice[] = {"default", "a", "Smol.Q4_1", "a"};
    struct server_options o = options(true);
    struct buf out = {0};
    cJSON *tree = NULL;
    (void)state;
    o.aliases = twice;
    o.n_aliases = 4;
    assert_int_equal(models_list(&out, &o), OK);
    assert_int_equal(json_parse(&tree, out.data, out.len, NULL), OK);
    const cJSON *data = json_get(tree, "data");
    assert_int_equal(cJSON_GetArraySize(data), 3);
    check_entry(cJSON_GetArrayItem(data, 0), "Smol.Q4_1");
    check_entry(cJSON_GetArrayItem(data, 1), "default");
    check_entry(cJSON_GetArrayItem(data, 2), "a");
    cJSON_Delete(tree);
    buf_fini(&out);
}

static void one_model_is_found_or_told_missing(void **state)
{
    struct server_options o = options(false);
    struct api_error e = {0};
    struct buf out = {0};
    cJSON *tree = NULL;
    (void)state;
    assert_int_equal(models_one(&out, &o, "team/chat", &e), OK);
    assert_int_equal(json_parse(&tree, out.data, out.len, NULL), OK);
    check_entry(tree, "team/chat");
    cJSON_Delete(tree);
    buf_clear(&out);
    assert_int_equal(models_one(&out, &o, "gpt-\x01x", &e), ERR_INVAL);
    assert_int_equal(e.status, 404);
    assert_string_equal(e.code, "model_not_found");
    assert_string_equal(e.message.text,
                        "The model `gpt-?x` does not exist or you do not have "
                        "access to it.");
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_strict_unless_told_otherwise),
        cmocka_unit_test(the_list_begins_with_the_own_id),
        cmocka_unit_test(a_name_is_listed_once),
        cmocka_unit_test(one_model_is_found_or_told_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
