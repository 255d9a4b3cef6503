#include "runtime/text/jinja_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { ALLOC_STEP = 256 };

enum err jinja_fail(struct jinja_run *r, const char *fmt, ...)
{
    char text[ERRMSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(r->m, ERR_INVAL, "chat template, line %u: %s", r->line,
                   text);
}

enum err jinja_step(struct jinja_run *r, size_t n)
{
    if (n >= r->steps_left) {
        r->steps_left = 0;
        return jinja_fail(r, "the template takes too many steps");
    }
    r->steps_left -= n;
    return OK;
}

enum err jinja_enter(struct jinja_run *r)
{
    if (r->depth >= JINJA_CALL_MAX)
        return jinja_fail(r, "calls or values nest deeper than %d levels",
                          (int)JINJA_CALL_MAX);
    r->depth++;
    return OK;
}

enum err jinja_alloc(struct jinja_run *r, void *out, size_t count, size_t size)
{
    void *p = arena_array(&r->arena, count, size);
    if (p == NULL)
        return jinja_fail(r, "the template needs more memory than %zu bytes",
                          r->arena.limit);
    memcpy(out, &p, sizeof(p));
    return jinja_step(r, count * size / ALLOC_STEP);
}

/* --- The input --- */

static struct jval import_number(const struct jinja_run *r, const cJSON *n)
{
    int64_t i;
    if (json_int64(n, &i) == OK)
        return jinja_int(i, r->importing);
    return jinja_float(n->valuedouble, r->importing);
}

static struct jval import_text(const char *s, jinja_origin origin)
{
    struct jval v = jinja_text(s != NULL ? s : "");
    v.origin = origin;
    return v;
}

static enum err import_array(struct jinja_run *r, const cJSON *tree,
                             struct jval *out)
{
    struct jinja_seq *seq;
    size_t n = 0;
    for (const cJSON *c = tree->child; c != NULL; c = c->next)
        n++;
    TRY(jinja_seq_new(r, n, JINJA_LIST, &seq));
    size_t i = 0;
    for (const cJSON *c = tree->child; c != NULL; c = c->next)
        TRY(jinja_import(r, c, &seq->items[i++]));
    *out = jinja_of_seq(seq, r->importing);
    return OK;
}

static enum err import_object(struct jinja_run *r, const cJSON *tree,
                              struct jval *out)
{
    struct jinja_dict *d;
    size_t n = 0;
    for (const cJSON *c = tree->child; c != NULL; c = c->next)
        n++;
    TRY(jinja_dict_new(r, n, &d));
    for (const cJSON *c = tree->child; c != NULL; c = c->next) {
        struct jval key = import_text(c->string, r->importing), value;
        TRY(jinja_import(r, c, &value));
        TRY(jinja_dict_put(r, d, &key, &value));
    }
    *out = (struct jval){.type = JINJA_DICT, .origin = r->importing, .dict = d};
    return OK;
}

static enum err import(struct jinja_run *r, const cJSON *tree, struct jval *out)
{
    switch (tree->type & 0xFF) {
    case cJSON_False:
    case cJSON_True:
        *out = jinja_bool((tree->type & 0xFF) == cJSON_True);
        out->origin = r->importing;
        return OK;
    case cJSON_NULL:
        *out = jinja_none();
        out->origin = r->importing;
        return OK;
    case cJSON_Number:
        *out = import_number(r, tree);
        return OK;
    case cJSON_String:
        *out = import_text(tree->valuestring, (tree->type & JINJA_TRUSTED) != 0
                                                  ? JINJA_FROM_TEMPLATE
                                                  : r->importing);
        return OK;
    case cJSON_Array:
    case cJSON_Object: {
        TRY(jinja_enter(r));
        enum err rc = cJSON_IsArray(tree) ? import_array(r, tree, out)
                                          : import_object(r, tree, out);
        r->depth--;
        return rc;
    }
    default:
        return jinja_fail(r, "the input holds a value of unknown type");
    }
}

enum err jinja_import(struct jinja_run *r, const cJSON *tree, struct jval *out)
{
    jinja_origin outer = r->importing;
    if ((tree->type & JINJA_MARK) != 0)
        r->importing = JINJA_FROM_INPUT | JINJA_FROM_MARKED;
    enum err rc = import(r, tree, out);
    r->importing = outer;
    return rc;
}
