#include "tests/unit/runtime/text/jinja_check.h"

#include "runtime/text/chat.h"

/* --- Against transformers' way, for many chats --- */

static struct chat_template *template_of(const char *text)
{
    struct chat_template *ct = NULL;
    struct errmsg m = {""};
    struct chat_spec spec = {.text = text, .bos = "<s>", .eos = "</s>"};
    spec.n_text = text != NULL ? strlen(text) : 0;
    if (chat_template_new(&ct, &spec, &m) != OK)
        fail_msg("%s", m.text);
    return ct;
}

static enum err render_request(const struct chat_template *ct,
                               const cJSON *request, struct jinja_output *out,
                               struct errmsg *m)
{
    struct chat_options o = {.tools = json_get(request, "tools"),
                             .kwargs = json_get(request, "kwargs"),
                             .add_generation_prompt = cJSON_IsTrue(
                                 json_get(request, "add_generation_prompt")),
                             .continue_final_message = cJSON_IsTrue(
                                 json_get(request, "continue_final_message"))};
    return chat_render(out, ct, json_get(request, "messages"), &o, m);
}

/* 1 if the result is what the golden file says. */
static int check_result(const cJSON *golden, const cJSON *result)
{
    const char *name = json_get(result, "template")->valuestring;
    int i_chat = json_get(result, "chat")->valueint;
    const cJSON *text = json_get(result, "text");
    const cJSON *request =
        cJSON_GetArrayItem(json_get(golden, "chats"), i_chat);
    struct chat_template *ct =
        template_of(json_get(json_get(golden, "templates"), name)->valuestring);
    struct jinja_output out = {0};
    struct errmsg m = {""};
    enum err rc = render_request(ct, request, &out, &m);
    int right = (rc == OK) == (text != NULL) &&
                (rc != OK ||
                 (strlen(text->valuestring) == out.text.len &&
                  memcmp(text->valuestring, out.text.data, out.text.len) == 0));
    if (rc != OK)
        assert_int_equal(rc, ERR_INVAL);
    if (!right)
        print_message("%s, chat %d\n  want: %s\n   got: %s\n", name, i_chat,
                      text != NULL ? text->valuestring : "(an error)",
                      rc == OK ? out.text.data : m.text);
    check_segments(&out);
    jinja_output_fini(&out);
    chat_template_free(ct);
    return right;
}

static void chats_render_as_in_transformers(void **state)
{
    (void)state;
    cJSON *golden = golden_of("chats.json");
    int right = 0, all = 0;
    for (const cJSON *c = json_get(golden, "results")->child; c; c = c->next) {
        right += check_result(golden, c);
        all++;
    }
    int n_chats = cJSON_GetArraySize(json_get(golden, "chats"));
    int n_templates = cJSON_GetArraySize(json_get(golden, "templates"));
    cJSON_Delete(golden);
    print_message("%d chats, %d templates\n", n_chats, n_templates);
    assert_int_equal(right, all);
    assert_true(all > 300 && n_chats >= 40 && n_templates >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chats_render_as_in_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
