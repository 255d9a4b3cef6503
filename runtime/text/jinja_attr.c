#include <stdio.h>
#include <string.h>

#include "runtime/text/jinja_eval.h"

const struct jinja_builtin *jinja_lookup(const struct jinja_builtin *table,
                                         const char *name, size_t n)
{
    for (; table->name != NULL; table++)
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0)
            return table;
    return NULL;
}

const struct jinja_builtin *jinja_find_filter(const char *name, size_t n)
{
    const struct jinja_builtin *b = jinja_lookup(jinja_text_filters, name, n);
    return b != NULL ? b : jinja_lookup(jinja_seq_filters, name, n);
}

const struct jinja_builtin *jinja_find_test(const char *name, size_t n)
{
    return jinja_lookup(jinja_tests, name, n);
}

const struct jinja_builtin *jinja_find_global(const char *name, size_t n)
{
    return jinja_lookup(jinja_globals, name, n);
}

enum err jinja_length(struct jinja_run *r, const struct jval *v, size_t *out,
                      bool *has)
{
    *has = true;
    *out = 0;
    switch ((enum jinja_type)v->type) {
    case JINJA_UNDEFINED:
        return OK;
    case JINJA_STR:
        *out = jinja_count_chars(v->s.p, v->s.n);
        return jinja_step(r, v->s.n / 16);
    case JINJA_SEQ:
        *out = v->seq->n;
        return OK;
    case JINJA_DICT:
        *out = v->dict->n;
        return OK;
    case JINJA_LOOP:
        return jinja_loop_length(r, v->loop, out);
    default:
        *has = false;
        return OK;
    }
}

enum err jinja_func_new(struct jinja_run *r,
                        const struct jinja_builtin *builtin,
                        const struct jval *self, struct jval *out)
{
    struct jinja_func *f;
    TRY(jinja_alloc(r, &f, 1, sizeof(*f)));
    f->name = builtin->name;
    f->fn = builtin->fn;
    if (self != NULL)
        f->self = *self;
    *out = (struct jval){.type = JINJA_FUNC, .func = f};
    return OK;
}

/* --- Attributes --- */

/* Undefined, with the sentence of the reference. */
static enum err missing(struct jinja_run *r, const struct jval *v,
                        const char *name, size_t n, bool unsafe,
                        struct jval *out)
{
    enum { SHOWN = 60, ROOM = 160 };
    char *hint;
    int shown = (int)(n < SHOWN ? n : SHOWN);
    TRY(jinja_alloc(r, &hint, ROOM, 1));
    if (unsafe)
        snprintf(hint, ROOM,
                 "access to attribute '%.*s' of '%s' object is unsafe.", shown,
                 name, jinja_type_name(v));
    else
        snprintf(hint, ROOM, "'%s' has no attribute '%.*s'",
                 v->type == JINJA_NONE ? "None" : jinja_type_name(v), shown,
                 name);
    *out = jinja_undefined(hint);
    return OK;
}

static const struct jinja_builtin *find_method(const struct jval *v,
                                               const char *name, size_t n)
{
    switch ((enum jinja_type)v->type) {
    case JINJA_STR:
        return jinja_lookup(jinja_str_methods, name, n);
    case JINJA_DICT:
        return jinja_lookup(jinja_dict_methods, name, n);
    case JINJA_SEQ:
        if (v->seq->kind > JINJA_TUPLE)
            return NULL;
        return jinja_lookup(jinja_list_methods, name, n);
    default:
        return NULL;
    }
}

/* The methods that change a list or an object: there, but out of bounds. */
enum { OF_LIST = 1, OF_DICT = 2 };

static int mutator(const char *name, size_t n)
{
    static const struct {
        const char *name;
        int of;
    } all[] = {{"append", OF_LIST},        {"clear", OF_LIST | OF_DICT},
               {"extend", OF_LIST},        {"insert", OF_LIST},
               {"pop", OF_LIST | OF_DICT}, {"popitem", OF_DICT},
               {"remove", OF_LIST},        {"reverse", OF_LIST},
               {"setdefault", OF_DICT},    {"sort", OF_LIST},
               {"update", OF_DICT}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strlen(all[i].name) == n && memcmp(all[i].name, name, n) == 0)
            return all[i].of;
    return 0;
}

static bool is_unsafe(const struct jval *v, const char *name, size_t n)
{
    bool is_list = v->type == JINJA_SEQ && v->seq->kind == JINJA_LIST;
    int of = is_list ? OF_LIST : v->type == JINJA_DICT ? OF_DICT : 0;
    return (mutator(name, n) & of) != 0;
}

bool jinja_is_method(const char *name, size_t n)
{
    const struct jinja_builtin *const tables[] = {
        jinja_str_methods, jinja_dict_methods, jinja_list_methods,
        jinja_loop_methods};
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if (jinja_lookup(tables[i], name, n) != NULL)
            return true;
    return mutator(name, n) != 0;
}

/* getattr() of Python. *has is false where it would raise. */
static enum err python_attr(struct jinja_run *r, const struct jval *v,
                            const char *name, size_t n, struct jval *out,
                            bool *has)
{
    const struct jinja_builtin *b = find_method(v, name, n);
    const struct jval *member;
    *has = true;
    if (b != NULL)
        return jinja_func_new(r, b, v, out);
    if (is_unsafe(v, name, n))
        return missing(r, v, name, n, true, out);
    *has = false;
    if (v->type == JINJA_NAMESPACE) {
        TRY(jinja_dict_get_text(r, v->dict, name, n, &member));
        *has = member != NULL;
        if (*has && name[0] == '_')
            return missing(r, v, name, n, true, out);
        if (*has)
            *out = *member;
    }
    if (v->type == JINJA_SEQ && v->seq->is_group) {
        *has = (n == 7 && memcmp(name, "grouper", n) == 0) ||
               (n == 4 && memcmp(name, "list", n) == 0);
        if (*has)
            *out = v->seq->items[n == 4];
    }
    if (v->type == JINJA_LOOP)
        return jinja_loop_attr(r, v->loop, name, n, out, has);
    return OK;
}

enum err jinja_getattr(struct jinja_run *r, const struct jval *v,
                       const char *name, size_t n, struct jval *out)
{
    bool has;
    if (jinja_is_undefined(v))
        return jinja_use_undefined(r, v);
    TRY(python_attr(r, v, name, n, out, &has));
    if (has)
        return OK;
    if (v->type == JINJA_DICT) {
        const struct jval *member;
        TRY(jinja_dict_get_text(r, v->dict, name, n, &member));
        if (member != NULL) {
            *out = *member;
            return OK;
        }
    }
    return missing(r, v, name, n, false, out);
}

/* v[i] of a string or list. */
static enum err index_item(struct jinja_run *r, const struct jval *v, int64_t i,
                           struct jval *out)
{
    size_t n;
    bool has;
    TRY(jinja_length(r, v, &n, &has));
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (size_t)i >= n)
        return missing(r, v, "index", 5, false, out);
    if (v->type == JINJA_SEQ) {
        *out = v->seq->items[i];
        return OK;
    }
    uint32_t cp;
    size_t at = jinja_char_offset(v->s.p, v->s.n, (size_t)i);
    size_t len = jinja_char(v->s.p + at, v->s.n - at, &cp);
    return jinja_str_part(r, v, at, at + len, out);
}

enum err jinja_getitem(struct jinja_run *r, const struct jval *v,
                       const struct jval *key, struct jval *out)
{
    if (jinja_is_undefined(v))
        return jinja_use_undefined(r, v);
    bool may_be_key = key->type <= JINJA_STR ||
                      (key->type == JINJA_SEQ && key->seq->kind == JINJA_TUPLE);
    if (v->type == JINJA_DICT && may_be_key) {
        const struct jval *member;
        TRY(jinja_dict_get(r, v->dict, key, &member));
        if (member != NULL) {
            *out = *member;
            return OK;
        }
    } else if ((v->type == JINJA_STR ||
                (v->type == JINJA_SEQ && v->seq->kind <= JINJA_RANGE)) &&
               jinja_is_int(key)) {
        return index_item(r, v, jinja_integer(key), out);
    }
    if (key->type != JINJA_STR)
        return missing(r, v, jinja_type_name(key), strlen(jinja_type_name(key)),
                       false, out);
    bool has;
    TRY(python_attr(r, v, key->s.p, key->s.n, out, &has));
    return has ? OK : missing(r, v, key->s.p, key->s.n, false, out);
}

enum err jinja_getpath(struct jinja_run *r, const struct jval *v,
                       const struct jval *path, struct jval *out)
{
    *out = *v;
    if (path->type == JINJA_MISSING || path->type == JINJA_NONE)
        return OK;
    if (path->type != JINJA_STR)
        return jinja_getitem(r, v, path, out);
    const char *s = path->s.p, *end = s + path->s.n;
    for (;;) {
        const char *dot = memchr(s, '.', (size_t)(end - s));
        size_t n = (size_t)((dot != NULL ? dot : end) - s);
        struct jval key = jinja_text(""), from = *out;
        key.s.p = s;
        key.s.n = n;
        int64_t i = 0;
        bool digits = n > 0 && n < 10;
        for (size_t k = 0; k < n && digits; k++) {
            digits = s[k] >= '0' && s[k] <= '9';
            i = i * 10 + (s[k] - '0');
        }
        if (digits)
            key = jinja_int(i, JINJA_FROM_TEMPLATE);
        TRY(jinja_getitem(r, &from, &key, out));
        if (dot == NULL)
            return OK;
        s = dot + 1;
    }
}

/* --- Calls --- */

enum err jinja_call(struct jinja_run *r, const struct jval *callee,
                    const struct jinja_args *args, struct jval *out)
{
    if (jinja_is_undefined(callee))
        return jinja_use_undefined(r, callee);
    if (callee->type != JINJA_FUNC)
        return jinja_fail(r, "'%s' object is not callable",
                          jinja_type_name(callee));
    const struct jinja_func *f = callee->func;
    TRY(jinja_enter(r));
    enum err rc = f->fn != NULL ? f->fn(r, &f->self, args, out)
                                : jinja_call_macro(r, f, args, out);
    r->depth--;
    return rc;
}

/* Length of the first name of a comma separated list. */
static size_t name_length(const char *names)
{
    return strcspn(names, ",");
}

static enum err bind_keyword(struct jinja_run *r, const char *what,
                             const struct jinja_kwarg *kw, const char *names,
                             struct jval *slot)
{
    for (size_t i = 0; *names != '\0'; i++) {
        size_t n = name_length(names);
        if (n == kw->n && memcmp(names, kw->name, n) == 0) {
            if (slot[i].type != JINJA_MISSING)
                return jinja_fail(r, "%s got two values for '%.*s'", what,
                                  (int)n, names);
            slot[i] = kw->value;
            return OK;
        }
        names += n + (names[n] == ',');
    }
    return jinja_fail(r, "%s takes no argument '%.*s'", what,
                      (int)(kw->n < 60 ? kw->n : 60), kw->name);
}

enum err jinja_bind(struct jinja_run *r, const char *what,
                    const struct jinja_args *args, const char *names,
                    size_t required, struct jval *slot)
{
    size_t n_names = 0;
    if (names[0] == '/') {
        if (args->n_kw > 0)
            return jinja_fail(r, "%s takes no keyword arguments", what);
        names++;
    }
    for (const char *s = names; *s != '\0'; n_names++)
        s += name_length(s) + (s[name_length(s)] == ',');
    if (args->n > n_names)
        return jinja_fail(r, "%s takes %zu arguments, not %zu", what, n_names,
                          args->n);
    for (size_t i = 0; i < n_names; i++)
        slot[i] =
            i < args->n ? args->v[i] : (struct jval){.type = JINJA_MISSING};
    for (size_t i = 0; i < args->n_kw; i++)
        TRY(bind_keyword(r, what, &args->kw[i], names, slot));
    for (size_t i = 0; i < required; i++)
        if (slot[i].type == JINJA_MISSING)
            return jinja_fail(r, "%s needs at least %zu arguments", what,
                              required);
    return OK;
}
