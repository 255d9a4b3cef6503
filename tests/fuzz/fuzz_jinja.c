/* Fuzz target: any bytes as a chat template. Built and run by `make fuzz`.
 *
 * Fails by assert: an error must come with a sentence and leave nothing; the
 * segments of a success must cover the text; and what came from the input is
 * never said to be of the template. For that the strings of the input hold
 * only circled digits, whose first byte a template must not have. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "runtime/text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { CIRCLED = 0xE2 };

static const char vars[] =
    "{\"s\": \" ①②\\n③ \", \"w\": \"①-②\", \"u\": \"①②③④\", \"e\": \"\","
    " \"n\": 5, \"x\": 2.5, \"neg\": -7, \"big\": 123456789012, \"t\": true,"
    " \"f\": false, \"no\": null, \"l\": [3, 1, 2], \"names\": [\"②\", \"①\"],"
    " \"d\": {\"a\": 1, \"b\": \"①\", \"items\": \"②\"},"
    " \"nest\": {\"a\": {\"b\": [1, {\"c\": \"③\"}]}, \"list\": [[1, 2], [3, "
    "4]]},"
    " \"messages\": [{\"role\": \"①\", \"content\": \"②\"},"
    " {\"role\": \"③\", \"content\": null, \"tool_calls\": [{\"function\":"
    " {\"name\": \"①\", \"arguments\": {\"a\": [true, null, 1.5]}}}]}],"
    " \"tools\": [{\"type\": \"④\", \"function\": {\"name\": \"①\"}}],"
    " \"add_generation_prompt\": true}";

static void check_segments(const struct jinja_output *out, bool origins)
{
    size_t at = 0;
    for (size_t i = 0; i < out->n_segments; i++) {
        const struct jinja_segment *s = &out->segments[i];
        assert(s->offset == at && s->length > 0);
        assert(i == 0 || s->is_template != s[-1].is_template ||
               s->is_marked != s[-1].is_marked);
        at += s->length;
        assert(at <= out->text.len);
        assert(!origins || !s->is_template ||
               memchr(out->text.data + s->offset, CIRCLED, s->length) == NULL);
    }
    assert(at == out->text.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    struct jinja_template *t = NULL;
    struct errmsg m = {""};
    enum err rc = jinja_parse(&t, text, n, &m);
    assert(rc == OK || (t == NULL && m.text[0] != '\0'));
    if (rc != OK)
        return 0;
    cJSON *tree = NULL;
    rc = json_parse(&tree, vars, sizeof(vars) - 1, NULL);
    assert(rc == OK);
    struct jinja_input in = {
        .vars = tree, .limits = {100 * 1000, 64 * 1024, 4 * 1024 * 1024}};
    struct jinja_output out = {0};
    rc = jinja_render(&out, t, &in, &m);
    assert(rc == OK || rc == ERR_INVAL);
    assert(rc == OK || out.text.data == NULL);
    /* An escape may make a circled digit. */
    check_segments(&out, memchr(data, CIRCLED, n) == NULL &&
                             memchr(data, '\\', n) == NULL);
    jinja_output_fini(&out);
    jinja_free(t);
    cJSON_Delete(tree);
    return 0;
}
