/* jinja_check.h - what the tests of templates share.
 *
 * Rendering from texts, and reading the golden files that
 * tests/tools/make_jinja_golden.py made with Python's jinja2.
 */
#ifndef TESTS_JINJA_CHECK_H
#define TESTS_JINJA_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "runtime/text/jinja.h"

static inline cJSON *json_of(const char *text)
{
    cJSON *v = NULL;
    struct errmsg m = {""};
    if (json_parse(&v, text, strlen(text), &m) != OK)
        fail_msg("%s: %s", text, m.text);
    return v;
}

/* A golden file; the tests run in the root of the repository. */
static inline cJSON *golden_of(const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "tests/golden/jinja/%s", name);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, n, f), n);
    fclose(f);
    cJSON *v = NULL;
    struct errmsg m = {""};
    if (json_parse(&v, text, n, &m) != OK)
        fail_msg("%s: %s", path, m.text);
    free(text);
    return v;
}

/* Parses and renders; either step may fail. */
static inline enum err rendered(const char *template, const cJSON *vars,
                                struct jinja_output *out, struct errmsg *m)
{
    struct jinja_template *t = NULL;
    struct jinja_input in = {.vars = vars};
    enum err rc = jinja_parse(&t, template, strlen(template), m);
    if (rc == OK)
        rc = jinja_render(out, t, &in, m);
    jinja_free(t);
    return rc;
}

/* Segments must cover the text and alternate. */
static inline void check_segments(const struct jinja_output *out)
{
    size_t at = 0;
    for (size_t i = 0; i < out->n_segments; i++) {
        assert_int_equal(out->segments[i].offset, at);
        assert_true(out->segments[i].length > 0);
        if (i > 0)
            assert_true(out->segments[i].is_template !=
                        out->segments[i - 1].is_template);
        at += out->segments[i].length;
    }
    assert_int_equal(at, out->text.len);
}

/* The text with the input parts in brackets: "<T>[user]<T>". */
static inline char *marked(const struct jinja_output *out)
{
    struct buf b = {0};
    for (size_t i = 0; i < out->n_segments; i++) {
        const struct jinja_segment *s = &out->segments[i];
        const char *open = s->is_template ? "" : "[";
        const char *close = s->is_template ? "" : "]";
        assert_int_equal(buf_puts(&b, open), OK);
        assert_int_equal(buf_append(&b, out->text.data + s->offset, s->length),
                         OK);
        assert_int_equal(buf_puts(&b, close), OK);
    }
    return buf_take(&b);
}

#endif
