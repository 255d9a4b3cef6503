#include "runtime/text/jinja_value.h"

#include <string.h>

#include "runtime/text/jinja_str.h"

struct jval jinja_none(void)
{
    return (struct jval){.type = JINJA_NONE};
}

struct jval jinja_bool(bool b)
{
    return (struct jval){.type = JINJA_BOOL, .b = b};
}

struct jval jinja_int(int64_t i, jinja_origin origin)
{
    return (struct jval){.type = JINJA_INT, .origin = origin, .i = i};
}

struct jval jinja_float(double f, jinja_origin origin)
{
    return (struct jval){.type = JINJA_FLOAT, .origin = origin, .f = f};
}

struct jval jinja_text(const char *s)
{
    struct jval v = {.type = JINJA_STR};
    v.s.p = s;
    v.s.n = strlen(s);
    return v;
}

struct jval jinja_undefined(const char *hint)
{
    return (struct jval){.type = JINJA_UNDEFINED, .hint = hint};
}

struct jval jinja_of_seq(struct jinja_seq *s, jinja_origin origin)
{
    return (struct jval){.type = JINJA_SEQ, .origin = origin, .seq = s};
}

bool jinja_is_undefined(const struct jval *v)
{
    return v->type == JINJA_UNDEFINED;
}

bool jinja_is_int(const struct jval *v)
{
    return v->type == JINJA_BOOL || v->type == JINJA_INT;
}

bool jinja_is_number(const struct jval *v)
{
    return jinja_is_int(v) || v->type == JINJA_FLOAT;
}

int64_t jinja_integer(const struct jval *v)
{
    return v->type == JINJA_BOOL ? v->b : v->i;
}

double jinja_number(const struct jval *v)
{
    return v->type == JINJA_FLOAT ? v->f : (double)jinja_integer(v);
}

bool jinja_is_text(const struct jval *v, const char *s)
{
    return v->type == JINJA_STR && v->s.n == strlen(s) &&
           memcmp(v->s.p, s, v->s.n) == 0;
}

const char *jinja_type_name(const struct jval *v)
{
    static const char *const seq[] = {
        [JINJA_LIST] = "list",          [JINJA_TUPLE] = "tuple",
        [JINJA_RANGE] = "range",        [JINJA_KEYS] = "dict_keys",
        [JINJA_VALUES] = "dict_values", [JINJA_ITEMS] = "dict_items"};
    static const char *const names[] = {
        [JINJA_MISSING] = "missing", [JINJA_UNDEFINED] = "Undefined",
        [JINJA_NONE] = "NoneType",   [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",         [JINJA_FLOAT] = "float",
        [JINJA_STR] = "str",         [JINJA_SEQ] = "list",
        [JINJA_DICT] = "dict",       [JINJA_NAMESPACE] = "Namespace",
        [JINJA_ITER] = "generator",  [JINJA_LOOP] = "LoopContext",
        [JINJA_FUNC] = "function"};
    return v->type == JINJA_SEQ ? seq[v->seq->kind] : names[v->type];
}

enum err jinja_use_undefined(struct jinja_run *r, const struct jval *v)
{
    return jinja_fail(r, "%s", v->hint != NULL ? v->hint : "undefined value");
}

enum err jinja_truth(struct jinja_run *r, const struct jval *v, bool *out)
{
    switch ((enum jinja_type)v->type) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        *out = false;
        return OK;
    case JINJA_BOOL:
        *out = v->b;
        return OK;
    case JINJA_INT:
        *out = v->i != 0;
        return OK;
    case JINJA_FLOAT:
        *out = v->f != 0.0;
        return OK;
    case JINJA_NAMESPACE:
    case JINJA_ITER:
    case JINJA_FUNC:
        *out = true;
        return OK;
    default:
        break;
    }
    size_t n = 0;
    bool has = v->type == JINJA_STR;
    if (has)
        n = v->s.n;
    else
        TRY(jinja_length(r, v, &n, &has));
    *out = n > 0;
    return OK;
}

/* --- Comparing --- */

/* Bytes of UTF-8 order as their code points do. */
static int order_text(const struct jval *a, const struct jval *b)
{
    size_t n = a->s.n < b->s.n ? a->s.n : b->s.n;
    int c = n > 0 ? memcmp(a->s.p, b->s.p, n) : 0;
    if (c == 0)
        c = (a->s.n > b->s.n) - (a->s.n < b->s.n);
    return (c > 0) - (c < 0);
}

static int order_number(const struct jval *a, const struct jval *b)
{
    if (jinja_is_int(a) && jinja_is_int(b)) {
        int64_t x = jinja_integer(a), y = jinja_integer(b);
        return (x > y) - (x < y);
    }
    double x = jinja_number(a), y = jinja_number(b);
    return (x > y) - (x < y);
}

static enum err equal_seq(struct jinja_run *r, const struct jinja_seq *a,
                          const struct jinja_seq *b, bool *out)
{
    *out = a == b;
    if (a == b || a->kind != b->kind || a->n != b->n || a->kind == JINJA_VALUES)
        return OK;
    *out = true;
    for (size_t i = 0; i < a->n && *out; i++)
        TRY(jinja_equal(r, &a->items[i], &b->items[i], out));
    return OK;
}

static enum err equal_dict(struct jinja_run *r, const struct jinja_dict *a,
                           const struct jinja_dict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        const struct jval *other;
        TRY(jinja_dict_get(r, b, &a->entries[i].key, &other));
        *out = other != NULL;
        if (*out)
            TRY(jinja_equal(r, &a->entries[i].value, other, out));
    }
    return OK;
}

enum err jinja_equal(struct jinja_run *r, const struct jval *a,
                     const struct jval *b, bool *out)
{
    TRY(jinja_step(r, 1));
    *out = false;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = order_number(a, b) == 0 && jinja_number(a) == jinja_number(a) &&
               jinja_number(b) == jinja_number(b);
        return OK;
    }
    if (a->type != b->type)
        return OK;
    enum err rc = OK;
    switch ((enum jinja_type)a->type) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        *out = true;
        break;
    case JINJA_STR:
        TRY(jinja_step(r, a->s.n / 256));
        *out = a->s.n == b->s.n && order_text(a, b) == 0;
        break;
    case JINJA_SEQ:
        TRY(jinja_enter(r));
        rc = equal_seq(r, a->seq, b->seq, out);
        r->depth--;
        break;
    case JINJA_DICT:
        TRY(jinja_enter(r));
        rc = equal_dict(r, a->dict, b->dict, out);
        r->depth--;
        break;
    default:
        *out = a->seq == b->seq; /* the pointers of the union */
        break;
    }
    return rc;
}

static enum err order_seq(struct jinja_run *r, const struct jinja_seq *a,
                          const struct jinja_seq *b, const char *op, int *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        TRY(jinja_equal(r, &a->items[i], &b->items[i], &same));
        if (!same)
            return jinja_order(r, &a->items[i], &b->items[i], op, out);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return OK;
}

enum err jinja_order(struct jinja_run *r, const struct jval *a,
                     const struct jval *b, const char *op, int *out)
{
    TRY(jinja_step(r, 1));
    if (jinja_is_undefined(a) || jinja_is_undefined(b))
        return jinja_use_undefined(r, jinja_is_undefined(a) ? a : b);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = order_number(a, b);
        return OK;
    }
    if (a->type == JINJA_STR && b->type == JINJA_STR) {
        TRY(jinja_step(r, (a->s.n < b->s.n ? a->s.n : b->s.n) / 256));
        *out = order_text(a, b);
        return OK;
    }
    if (a->type == JINJA_SEQ && b->type == JINJA_SEQ &&
        a->seq->kind == b->seq->kind && a->seq->kind <= JINJA_TUPLE) {
        TRY(jinja_enter(r));
        enum err rc = order_seq(r, a->seq, b->seq, op, out);
        r->depth--;
        return rc;
    }
    return jinja_fail(r, "'%s' not supported between '%s' and '%s'", op,
                      jinja_type_name(a), jinja_type_name(b));
}

enum err jinja_contains(struct jinja_run *r, const struct jval *haystack,
                        const struct jval *needle, bool *out)
{
    *out = false;
    if (haystack->type == JINJA_STR) {
        if (needle->type != JINJA_STR)
            return jinja_fail(r, "'in' in a string needs a string, not '%s'",
                              jinja_type_name(needle));
        TRY(jinja_step(r, haystack->s.n / 64));
        *out = jinja_find(haystack, 0, haystack->s.n, needle) != SIZE_MAX;
        return OK;
    }
    if (haystack->type == JINJA_DICT) {
        const struct jval *v;
        TRY(jinja_dict_get(r, haystack->dict, needle, &v));
        *out = v != NULL;
        return OK;
    }
    struct jinja_iter it;
    struct jval item;
    bool has;
    TRY(jinja_iter_init(r, *haystack, &it));
    for (;;) {
        TRY(jinja_iter_next(r, &it, &item, &has));
        if (!has || *out)
            return OK;
        TRY(jinja_equal(r, &item, needle, out));
    }
}
