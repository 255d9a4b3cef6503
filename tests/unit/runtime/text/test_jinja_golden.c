#include "tests/unit/runtime/text/jinja_check.h"

enum { SHOWN = 40 };

struct tally {
    int right, wrong;
};

static void complain(struct tally *t, const char *template, const char *want,
                     const char *got)
{
    if (t->wrong++ < SHOWN)
        print_message("template: %s\n  want: %s\n   got: %s\n", template, want,
                      got);
}

static void check_case(struct tally *t, const cJSON *c, const cJSON *vars)
{
    const char *template = json_get(c, "template")->valuestring;
    const cJSON *text = json_get(c, "text");
    struct jinja_output out = {0};
    struct errmsg m = {""};
    enum err rc = rendered(template, vars, &out, &m);
    if (rc != OK && text != NULL)
        complain(t, template, text->valuestring, m.text);
    else if (rc == OK && text == NULL)
        complain(t, template, "(an error)", out.text.data);
    else if (rc == OK &&
             (strlen(text->valuestring) != out.text.len ||
              memcmp(text->valuestring, out.text.data, out.text.len) != 0))
        complain(t, template, text->valuestring, out.text.data);
    else
        t->right++;
    if (rc == OK)
        check_segments(&out);
    jinja_output_fini(&out);
}

static void check_file(const char *name)
{
    cJSON *golden = golden_of(name);
    struct tally t = {0};
    const cJSON *vars = json_get(golden, "vars");
    for (const cJSON *c = json_get(golden, "cases")->child; c; c = c->next)
        check_case(&t, c, vars);
    cJSON_Delete(golden);
    print_message("%s: %d right, %d wrong\n", name, t.right, t.wrong);
    assert_int_equal(t.wrong, 0);
    assert_true(t.right > 300);
}

static void every_feature_renders_as_in_python(void **state)
{
    (void)state;
    check_file("snippets.json");
}

static void random_expressions_render_as_in_python(void **state)
{
    (void)state;
    check_file("random.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_feature_renders_as_in_python),
        cmocka_unit_test(random_expressions_render_as_in_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
