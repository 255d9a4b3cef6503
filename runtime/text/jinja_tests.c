#include <math.h>
#include <string.h>
#include <time.h>

#include "runtime/text/jinja_eval.h"

/* Tests (what stands behind `is`) and the functions every template knows.
 * Every function is a jinja_fn. */

#define TEST(name)                                                             \
    static enum err name(struct jinja_run *r, const struct jval *self,         \
                         const struct jinja_args *args, struct jval *out)

static enum err no_args(struct jinja_run *r, const struct jinja_args *args)
{
    return jinja_bind(r, "this test", args, "", 0, NULL);
}

static enum err answer(struct jinja_run *r, const struct jinja_args *args,
                       bool yes, struct jval *out)
{
    *out = jinja_bool(yes);
    return no_args(r, args);
}

TEST(t_defined)
{
    return answer(r, args, !jinja_is_undefined(self), out);
}

TEST(t_undefined)
{
    return answer(r, args, jinja_is_undefined(self), out);
}

TEST(t_none)
{
    return answer(r, args, self->type == JINJA_NONE, out);
}

TEST(t_string)
{
    return answer(r, args, self->type == JINJA_STR, out);
}

TEST(t_number)
{
    return answer(r, args, jinja_is_number(self), out);
}

TEST(t_integer)
{
    return answer(r, args, self->type == JINJA_INT, out);
}

TEST(t_float)
{
    return answer(r, args, self->type == JINJA_FLOAT, out);
}

TEST(t_boolean)
{
    return answer(r, args, self->type == JINJA_BOOL, out);
}

TEST(t_true)
{
    return answer(r, args, self->type == JINJA_BOOL && self->b, out);
}

TEST(t_false)
{
    return answer(r, args, self->type == JINJA_BOOL && !self->b, out);
}

TEST(t_mapping)
{
    return answer(r, args, self->type == JINJA_DICT, out);
}

TEST(t_iterable)
{
    return answer(r, args,
                  self->type == JINJA_UNDEFINED || self->type == JINJA_STR ||
                      self->type == JINJA_SEQ || self->type == JINJA_DICT ||
                      self->type == JINJA_ITER || self->type == JINJA_LOOP,
                  out);
}

TEST(t_sequence)
{
    return answer(
        r, args,
        self->type == JINJA_UNDEFINED || self->type == JINJA_STR ||
            self->type == JINJA_DICT ||
            (self->type == JINJA_SEQ && self->seq->kind <= JINJA_RANGE),
        out);
}

TEST(t_callable)
{
    /* Undefined and loops have a __call__ in the reference. */
    return answer(r, args,
                  self->type == JINJA_FUNC || self->type == JINJA_UNDEFINED ||
                      self->type == JINJA_LOOP,
                  out);
}

TEST(t_escaped)
{
    return answer(r, args, self->type == JINJA_STR && self->is_markup, out);
}

/* str(value).islower() or .isupper() */
static enum err has_case(struct jinja_run *r, const struct jval *self,
                         const struct jinja_args *args, const char *method,
                         struct jval *out)
{
    struct jval s;
    TRY(no_args(r, args));
    TRY(jinja_to_str(r, self, &s));
    return jinja_lookup(jinja_str_methods, method, strlen(method))
        ->fn(r, &s, args, out);
}

TEST(t_lower)
{
    return has_case(r, self, args, "islower", out);
}

TEST(t_upper)
{
    return has_case(r, self, args, "isupper", out);
}

/* self % by == rest */
static enum err remainder_is(struct jinja_run *r, const struct jval *self,
                             const struct jval *by, int64_t rest,
                             struct jval *out)
{
    struct jval m, want = jinja_int(rest, JINJA_FROM_TEMPLATE);
    bool same;
    TRY(jinja_binary(r, JINJA_OP_MOD, self, by, &m));
    TRY(jinja_equal(r, &m, &want, &same));
    *out = jinja_bool(same);
    return OK;
}

TEST(t_odd)
{
    struct jval two = jinja_int(2, JINJA_FROM_TEMPLATE);
    TRY(no_args(r, args));
    return remainder_is(r, self, &two, 1, out);
}

TEST(t_even)
{
    struct jval two = jinja_int(2, JINJA_FROM_TEMPLATE);
    TRY(no_args(r, args));
    return remainder_is(r, self, &two, 0, out);
}

TEST(t_divisibleby)
{
    struct jval by;
    TRY(jinja_bind(r, "divisibleby", args, "num", 1, &by));
    return remainder_is(r, self, &by, 0, out);
}

static enum err compare(struct jinja_run *r, enum jinja_op op,
                        const struct jval *self, const struct jinja_args *args,
                        struct jval *out)
{
    struct jval other;
    bool holds;
    TRY(jinja_bind(r, "a comparing test", args, "other", 1, &other));
    TRY(jinja_compare(r, op, self, &other, &holds));
    *out = jinja_bool(holds);
    return OK;
}

TEST(t_eq)
{
    return compare(r, JINJA_OP_EQ, self, args, out);
}

TEST(t_ne)
{
    return compare(r, JINJA_OP_NE, self, args, out);
}

TEST(t_lt)
{
    return compare(r, JINJA_OP_LT, self, args, out);
}

TEST(t_le)
{
    return compare(r, JINJA_OP_LE, self, args, out);
}

TEST(t_gt)
{
    return compare(r, JINJA_OP_GT, self, args, out);
}

TEST(t_ge)
{
    return compare(r, JINJA_OP_GE, self, args, out);
}

TEST(t_in)
{
    return compare(r, JINJA_OP_IN, self, args, out);
}

/* The same object; for what has no identity here, equal and of one type. */
TEST(t_sameas)
{
    struct jval other;
    bool same = false;
    TRY(jinja_bind(r, "sameas", args, "other", 1, &other));
    if (self->type == other.type) {
        if (self->type <= JINJA_STR)
            TRY(jinja_equal(r, self, &other, &same));
        else
            same = self->seq == other.seq; /* the pointers of the union */
    }
    *out = jinja_bool(same);
    return OK;
}

static enum err is_known(struct jinja_run *r, const struct jval *self,
                         const struct jinja_args *args, bool test,
                         struct jval *out)
{
    bool known = self->type == JINJA_STR &&
                 (test ? jinja_find_test(self->s.p, self->s.n)
                       : jinja_find_filter(self->s.p, self->s.n)) != NULL;
    return answer(r, args, known, out);
}

TEST(t_filter)
{
    return is_known(r, self, args, false, out);
}

TEST(t_test)
{
    return is_known(r, self, args, true, out);
}

const struct jinja_builtin jinja_tests[] = {{"defined", t_defined},
                                            {"undefined", t_undefined},
                                            {"none", t_none},
                                            {"string", t_string},
                                            {"number", t_number},
                                            {"integer", t_integer},
                                            {"float", t_float},
                                            {"boolean", t_boolean},
                                            {"true", t_true},
                                            {"false", t_false},
                                            {"mapping", t_mapping},
                                            {"iterable", t_iterable},
                                            {"sequence", t_sequence},
                                            {"callable", t_callable},
                                            {"escaped", t_escaped},
                                            {"lower", t_lower},
                                            {"upper", t_upper},
                                            {"odd", t_odd},
                                            {"even", t_even},
                                            {"divisibleby", t_divisibleby},
                                            {"eq", t_eq},
                                            {"equalto", t_eq},
                                            {"==", t_eq},
                                            {"ne", t_ne},
                                            {"!=", t_ne},
                                            {"lt", t_lt},
                                            {"lessthan", t_lt},
                                            {"<", t_lt},
                                            {"le", t_le},
                                            {"<=", t_le},
                                            {"gt", t_gt},
                                            {"greaterthan", t_gt},
                                            {">", t_gt},
                                            {"ge", t_ge},
                                            {">=", t_ge},
                                            {"in", t_in},
                                            {"sameas", t_sameas},
                                            {"filter", t_filter},
                                            {"test", t_test},
                                            {NULL, NULL}};

/* --- Functions --- */

TEST(g_raise_exception)
{
    struct jval message, text;
    (void)self;
    TRY(jinja_bind(r, "raise_exception", args, "message", 1, &message));
    TRY(jinja_to_str(r, &message, &text));
    int n = (int)(text.s.n < ERRMSG_MAX ? text.s.n : ERRMSG_MAX);
    *out = jinja_none();
    return err_set(r->m, ERR_INVAL, "%.*s", n, text.s.p);
}

TEST(g_strftime_now)
{
    enum { ROOM = 512 };
    struct jval format, text;
    char fmt[ROOM], shown[ROOM];
    (void)self;
    TRY(jinja_bind(r, "strftime_now", args, "format", 1, &format));
    if (format.type != JINJA_STR || format.s.n >= ROOM)
        return jinja_fail(r, "strftime_now takes a short string");
    memcpy(fmt, format.s.p, format.s.n);
    fmt[format.s.n] = '\0';
    time_t now = (time_t)r->now;
    struct tm tm;
    if (localtime_r(&now, &tm) == NULL)
        return jinja_fail(r, "the time of day cannot be told");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(shown, sizeof(shown), fmt, &tm);
#pragma GCC diagnostic pop
    struct jinja_sb b = {.r = r};
    TRY(jinja_sb_put(&b, shown, n, format.origin));
    TRY(jinja_sb_done(&b, &text));
    *out = text;
    return OK;
}

TEST(g_range)
{
    enum { RANGE_MAX = 100000 }; /* MAX_RANGE of the sandbox */
    struct jval a[3];
    int64_t v[3] = {0, 0, 1};
    (void)self;
    TRY(jinja_bind(r, "range", args, "start,stop,step", 1, a));
    for (size_t i = 0; i < 3; i++) {
        if (a[i].type == JINJA_MISSING)
            continue;
        if (!jinja_is_int(&a[i]))
            return jinja_fail(r, "range takes integers, not '%s'",
                              jinja_type_name(&a[i]));
        v[i] = jinja_integer(&a[i]);
    }
    if (a[1].type == JINJA_MISSING) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0)
        return jinja_fail(r, "range() arg 3 must not be zero");
    double width = ((double)v[1] - (double)v[0]) / (double)v[2];
    double n = width > 0 ? ceil(width) : 0;
    if (n > RANGE_MAX)
        return jinja_fail(r,
                          "Range too big. The sandbox blocks ranges larger "
                          "than MAX_RANGE (%d).",
                          (int)RANGE_MAX);
    struct jinja_seq *s;
    TRY(jinja_seq_new(r, (size_t)n, JINJA_RANGE, &s));
    s->start = v[0];
    s->stop = v[1];
    s->step = v[2];
    for (size_t i = 0; i < s->n; i++)
        s->items[i] = jinja_int(v[0] + (int64_t)i * v[2], JINJA_FROM_TEMPLATE);
    *out = jinja_of_seq(s, JINJA_FROM_TEMPLATE);
    return OK;
}

/* An object from another one, or from pairs, and from keywords. */
static enum err fill_dict(struct jinja_run *r, const struct jinja_args *args,
                          struct jinja_dict *d)
{
    if (args->n > 1)
        return jinja_fail(r, "expected at most 1 argument, got %zu", args->n);
    if (args->n == 1 && args->v[0].type == JINJA_DICT) {
        const struct jinja_dict *from = args->v[0].dict;
        for (size_t i = 0; i < from->n; i++)
            TRY(jinja_dict_put(r, d, &from->entries[i].key,
                               &from->entries[i].value));
    } else if (args->n == 1) {
        struct jinja_list l, two;
        TRY(jinja_collect(r, args->v[0], &l));
        for (size_t i = 0; i < l.n; i++) {
            TRY(jinja_collect(r, l.items[i], &two));
            if (two.n != 2)
                return jinja_fail(r, "an object is made from pairs");
            TRY(jinja_dict_put(r, d, &two.items[0], &two.items[1]));
        }
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        struct jval key = jinja_text("");
        key.s.p = args->kw[i].name;
        key.s.n = args->kw[i].n;
        key.origin = args->kw[i].origin;
        TRY(jinja_dict_put(r, d, &key, &args->kw[i].value));
    }
    return OK;
}

TEST(g_dict)
{
    struct jinja_dict *d;
    (void)self;
    TRY(jinja_dict_new(r, 0, &d));
    TRY(fill_dict(r, args, d));
    *out = (struct jval){.type = JINJA_DICT, .dict = d};
    return OK;
}

TEST(g_namespace)
{
    TRY(g_dict(r, self, args, out));
    out->type = JINJA_NAMESPACE;
    return OK;
}

const struct jinja_builtin jinja_globals[] = {
    {"raise_exception", g_raise_exception},
    {"strftime_now", g_strftime_now},
    {"range", g_range},
    {"dict", g_dict},
    {"namespace", g_namespace},
    {NULL, NULL}};
