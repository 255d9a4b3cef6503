#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/jinja_eval.h"

/* Filters of strings and numbers. Every function is a jinja_fn. */

#define FILTER(name)                                                           \
    static enum err name(struct jinja_run *r, const struct jval *self,         \
                         const struct jinja_args *args, struct jval *out)

static bool given(const struct jval *v)
{
    return v->type != JINJA_MISSING;
}

/* What soft_str() of markupsafe does: markup stays markup. */
static enum err soft(struct jinja_run *r, const struct jval *v,
                     struct jval *out)
{
    TRY(jinja_to_str(r, v, out));
    out->is_markup = v->type == JINJA_STR && v->is_markup;
    return OK;
}

static enum err recase(struct jinja_run *r, const struct jval *self,
                       const struct jinja_args *args, enum jinja_case to,
                       struct jval *out)
{
    struct jval s;
    TRY(jinja_bind(r, "a case filter", args, "", 0, NULL));
    TRY(soft(r, self, &s));
    return jinja_recase(r, &s, to, out);
}

FILTER(f_upper)
{
    return recase(r, self, args, JINJA_UPPER, out);
}

FILTER(f_lower)
{
    return recase(r, self, args, JINJA_LOWER, out);
}

FILTER(f_title)
{
    return recase(r, self, args, JINJA_TITLE_WORD, out);
}

FILTER(f_capitalize)
{
    return recase(r, self, args, JINJA_CAPITAL, out);
}

FILTER(f_trim)
{
    struct jval chars, s;
    TRY(jinja_bind(r, "trim", args, "chars", 0, &chars));
    TRY(soft(r, self, &s));
    return jinja_strip(r, &s, &chars, JINJA_STRIP_BOTH, out);
}

FILTER(f_string)
{
    TRY(jinja_bind(r, "string", args, "", 0, NULL));
    return soft(r, self, out);
}

FILTER(f_safe)
{
    TRY(jinja_bind(r, "safe", args, "", 0, NULL));
    TRY(soft(r, self, out));
    out->is_markup = true;
    return OK;
}

FILTER(f_escape)
{
    struct jval s;
    TRY(jinja_bind(r, "escape", args, "", 0, NULL));
    TRY(soft(r, self, &s));
    return jinja_escape(r, &s, out);
}

FILTER(f_forceescape)
{
    struct jval s;
    TRY(jinja_bind(r, "forceescape", args, "", 0, NULL));
    TRY(jinja_to_str(r, self, &s));
    return jinja_escape(r, &s, out);
}

FILTER(f_replace)
{
    struct jval a[3], s;
    int64_t limit = -1;
    TRY(jinja_bind(r, "replace", args, "old,new,count", 2, a));
    TRY(jinja_to_str(r, self, &s));
    TRY(jinja_to_str(r, &a[0], &a[0]));
    TRY(jinja_to_str(r, &a[1], &a[1]));
    if (jinja_is_int(&a[2]))
        limit = jinja_integer(&a[2]);
    else if (given(&a[2]) && a[2].type != JINJA_NONE)
        return jinja_fail(r, "replace takes an integer as count");
    return jinja_replace(r, &s, &a[0], &a[1], limit, out);
}

static enum err put_indent(struct jinja_sb *b, const struct jval *line,
                           const struct jval *indent, bool blank)
{
    if (line->s.n > 0 || blank)
        TRY(jinja_sb_put_part(b, indent, 0, indent->s.n));
    return jinja_sb_put_part(b, line, 0, line->s.n);
}

FILTER(f_indent)
{
    struct jval a[3], indent, s;
    bool first = false, blank = false;
    struct jval four = jinja_int(4, JINJA_FROM_TEMPLATE),
                space = jinja_text(" ");
    TRY(jinja_bind(r, "indent", args, "width,first,blank", 0, a));
    const struct jval *width = given(&a[0]) ? &a[0] : &four;
    if (width->type == JINJA_STR)
        indent = *width;
    else
        TRY(jinja_binary(r, JINJA_OP_MUL, &space, width, &indent));
    TRY(jinja_truth(r, &a[1], &first));
    TRY(jinja_truth(r, &a[2], &blank));
    struct jval newline = jinja_text("\n");
    TRY(jinja_binary(r, JINJA_OP_ADD, self, &newline, &s));
    struct jinja_list lines = {0};
    TRY(jinja_splitlines(r, &s, false, &lines));
    struct jinja_sb b = {.r = r};
    for (size_t i = 0; i < lines.n; i++) {
        if (i > 0)
            TRY(jinja_sb_put(&b, "\n", 1, self->origin));
        else if (first)
            TRY(jinja_sb_put_part(&b, &indent, 0, indent.s.n));
        if (i > 0)
            TRY(put_indent(&b, &lines.items[i], &indent, blank));
        else
            TRY(jinja_sb_put_part(&b, &lines.items[i], 0, lines.items[i].s.n));
    }
    TRY(jinja_sb_done(&b, out));
    out->is_markup = self->is_markup;
    return OK;
}

FILTER(f_center)
{
    struct jval a, s;
    TRY(jinja_bind(r, "center", args, "width", 0, &a));
    TRY(soft(r, self, &s));
    struct jval width = given(&a) ? a : jinja_int(80, JINJA_FROM_TEMPLATE);
    struct jinja_args pass = {.n = 1, .v = &width};
    return jinja_lookup(jinja_str_methods, "center", 6)->fn(r, &s, &pass, out);
}

FILTER(f_wordcount)
{
    struct jval s;
    TRY(jinja_bind(r, "wordcount", args, "", 0, NULL));
    TRY(soft(r, self, &s));
    bool inside = false;
    int64_t n = 0;
    for (size_t at = 0; at < s.s.n;) {
        uint32_t cp;
        at += jinja_char(s.s.p + at, s.s.n - at, &cp);
        bool word = jinja_is_word(cp);
        n += word && !inside;
        inside = word;
    }
    *out = jinja_int(n, self->origin);
    return jinja_step(r, s.s.n / 16);
}

FILTER(f_truncate)
{
    struct jval a[4];
    TRY(jinja_bind(r, "truncate", args, "length,killwords,end,leeway", 0, a));
    int64_t length = 255, leeway = 5;
    bool kill = false;
    struct jval end = given(&a[2]) ? a[2] : jinja_text("...");
    if (self->type != JINJA_STR || end.type != JINJA_STR)
        return jinja_fail(r, "truncate works on strings");
    if (jinja_is_int(&a[0]))
        length = jinja_integer(&a[0]);
    if (jinja_is_int(&a[3]))
        leeway = jinja_integer(&a[3]);
    TRY(jinja_truth(r, &a[1], &kill));
    int64_t n_end = (int64_t)jinja_count_chars(end.s.p, end.s.n);
    int64_t n = (int64_t)jinja_count_chars(self->s.p, self->s.n);
    if (length < n_end || leeway < 0)
        return jinja_fail(r, "truncate: expected length >= %lld",
                          (long long)n_end);
    *out = *self;
    if (n - leeway <= length)
        return OK;
    size_t cut =
        jinja_char_offset(self->s.p, self->s.n, (size_t)(length - n_end));
    const char *space = kill ? NULL : memrchr(self->s.p, ' ', cut);
    if (space != NULL)
        cut = (size_t)(space - self->s.p);
    struct jinja_sb b = {.r = r};
    TRY(jinja_sb_put_part(&b, self, 0, cut));
    TRY(jinja_sb_put_part(&b, &end, 0, end.s.n));
    return jinja_sb_done(&b, out);
}

FILTER(f_format)
{
    struct jval s, values;
    struct jinja_list l = {0};
    struct jinja_dict *d;
    TRY(soft(r, self, &s));
    if (args->n > 0 && args->n_kw > 0)
        return jinja_fail(r, "format takes values by position or by name");
    for (size_t i = 0; i < args->n; i++)
        TRY(jinja_list_add(r, &l, args->v[i]));
    TRY(jinja_list_done(r, &l, JINJA_TUPLE, false, &values));
    if (args->n_kw > 0) {
        TRY(jinja_dict_new(r, args->n_kw, &d));
        for (size_t i = 0; i < args->n_kw; i++) {
            struct jval key = jinja_text("");
            key.s.p = args->kw[i].name;
            key.s.n = args->kw[i].n;
            key.origin = args->kw[i].origin;
            TRY(jinja_dict_put(r, d, &key, &args->kw[i].value));
        }
        values = (struct jval){.type = JINJA_DICT, .dict = d};
    }
    return jinja_percent(r, &s, &values, out);
}

/* --- JSON --- */

static enum err json_style(struct jinja_run *r, const struct jval a[4],
                           struct jinja_json_style *style)
{
    struct jval space = jinja_text(" ");
    style->pretty = a[1].type > JINJA_NONE;
    style->indent = jinja_text("");
    if (a[1].type == JINJA_STR)
        style->indent = a[1];
    else if (style->pretty)
        TRY(jinja_binary(r, JINJA_OP_MUL, &space, &a[1], &style->indent));
    style->comma = jinja_text(style->pretty ? "," : ", ");
    style->colon = jinja_text(": ");
    TRY(jinja_truth(r, &a[0], &style->ascii));
    TRY(jinja_truth(r, &a[3], &style->sort));
    if (a[2].type <= JINJA_NONE)
        return OK;
    struct jinja_list l;
    TRY(jinja_collect(r, a[2], &l));
    if (l.n != 2 || l.items[0].type != JINJA_STR ||
        l.items[1].type != JINJA_STR)
        return jinja_fail(r, "tojson takes two strings as separators");
    style->comma = l.items[0];
    style->colon = l.items[1];
    return OK;
}

FILTER(f_tojson)
{
    struct jval a[4];
    struct jinja_json_style style;
    struct jinja_sb b = {.r = r};
    TRY(jinja_bind(r, "tojson", args,
                   "ensure_ascii,indent,separators,sort_keys", 0, a));
    TRY(json_style(r, a, &style));
    TRY(jinja_put_json(&b, self, &style));
    return jinja_sb_done(&b, out);
}

/* --- Numbers --- */

FILTER(f_abs)
{
    TRY(jinja_bind(r, "abs", args, "", 0, NULL));
    if (jinja_is_undefined(self))
        return jinja_use_undefined(r, self);
    if (!jinja_is_number(self))
        return jinja_fail(r, "bad operand type for abs(): '%s'",
                          jinja_type_name(self));
    if (self->type == JINJA_FLOAT) {
        *out = jinja_float(fabs(self->f), self->origin);
        return OK;
    }
    struct jval zero = jinja_int(0, self->origin);
    return jinja_binary(r,
                        jinja_integer(self) < 0 ? JINJA_OP_SUB : JINJA_OP_ADD,
                        &zero, self, out);
}

enum { DIGITS_MAX = 500 };

/* The digits of a number literal in a string as Python reads one: without
 * white space around it and with single underscores between digits taken
 * out. False: it is none, or longer than anything sensible. */
static bool number_text(const struct jval *v, char text[DIGITS_MAX + 1])
{
    const char *s = v->s.p;
    size_t from = 0, to = v->s.n, k = 0;
    uint32_t cp;
    while (from < to && jinja_is_space((unsigned char)s[from]))
        from++;
    while (to > from && jinja_char_before(s + from, to - from, &cp) == 1 &&
           jinja_is_space(cp))
        to--;
    if (to - from > DIGITS_MAX || from == to)
        return false;
    for (size_t i = from; i < to; i++) {
        bool between = i > from && i + 1 < to && s[i - 1] != '_' &&
                       strchr("+-.", s[i - 1]) == NULL && s[i + 1] != '.';
        if (s[i] == '\0' || (s[i] == '_' && !between))
            return false;
        if (s[i] != '_')
            text[k++] = s[i];
    }
    text[k] = '\0';
    return k > 0;
}

/* int(text, base); false: Python would raise. */
static bool parse_int(const char *text, int64_t base, int64_t *out)
{
    const char *s = text + (text[0] == '-' || text[0] == '+');
    char letter = (char)(s[0] == '0' ? s[1] | 0x20 : 0);
    int64_t prefix = letter == 'x'   ? 16
                     : letter == 'o' ? 8
                     : letter == 'b' ? 2
                                     : 0;
    if (prefix != 0 && (base == prefix || base == 0)) {
        s += 2;
        base = prefix;
    }
    if (base == 0)
        base = 10;
    if (base < 2 || base > 36 || s[0] == '\0' || s[0] == '-' || s[0] == '+' ||
        jinja_is_space((unsigned char)s[0]))
        return false;
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, (int)base);
    if (base == 16 && s[0] == '0' && (s[1] | 0x20) == 'x')
        return false;
    if (*end != '\0' || errno == ERANGE)
        return false;
    *out = text[0] == '-' ? -v : v;
    return true;
}

/* float(text) */
static bool parse_float(const char *text, double *out)
{
    const char *s = text + (text[0] == '-' || text[0] == '+');
    char *end;
    if (s[0] == '0' && (s[1] | 0x20) == 'x')
        return false; /* C reads hexadecimal floats, Python does not */
    if (s[0] == '-' || s[0] == '+' || strchr(s, '(') != NULL)
        return false;
    *out = strtod(text, &end);
    return end != text && *end == '\0';
}

/* int(float(...)); *fits is false where it has no integer. */
static enum err whole(struct jinja_run *r, double d, bool *fits, int64_t *out)
{
    *fits = !isnan(d) && !isinf(d);
    if (!*fits)
        return OK;
    d = trunc(d);
    if (fabs(d) >= 9223372036854775808.0)
        return jinja_fail(r, "an integer does not fit into 64 bits");
    *out = (int64_t)d;
    return OK;
}

FILTER(f_int)
{
    struct jval a[2];
    char text[DIGITS_MAX + 1];
    int64_t i = 0;
    double d = 0;
    bool ok = false;
    TRY(jinja_bind(r, "int", args, "default,base", 0, a));
    if (jinja_is_undefined(self))
        return jinja_use_undefined(r, self);
    if (jinja_is_int(self)) {
        i = jinja_integer(self);
        ok = true;
    } else if (self->type == JINJA_FLOAT) {
        TRY(whole(r, self->f, &ok, &i));
        if (!ok && isinf(self->f))
            return jinja_fail(r, "cannot convert float infinity to integer");
    } else if (self->type == JINJA_STR && number_text(self, text)) {
        ok = parse_int(text, jinja_is_int(&a[1]) ? jinja_integer(&a[1]) : 10,
                       &i);
        if (!ok && parse_float(text, &d))
            TRY(whole(r, d, &ok, &i));
    }
    *out = ok             ? jinja_int(i, self->origin)
           : given(&a[0]) ? a[0]
                          : jinja_int(0, JINJA_FROM_TEMPLATE);
    return OK;
}

FILTER(f_float)
{
    struct jval a;
    char text[DIGITS_MAX + 1];
    double d = 0;
    bool ok = true;
    TRY(jinja_bind(r, "float", args, "default", 0, &a));
    if (jinja_is_undefined(self))
        return jinja_use_undefined(r, self);
    if (jinja_is_number(self))
        d = jinja_number(self);
    else
        ok = self->type == JINJA_STR && number_text(self, text) &&
             parse_float(text, &d);
    *out = ok          ? jinja_float(d, self->origin)
           : given(&a) ? a
                       : jinja_float(0.0, JINJA_FROM_TEMPLATE);
    return OK;
}

/* round() of Python, which rounds what the digits say, half to even. */
static double round_digits(double v, int digits)
{
    enum { ROOM = 400 };
    char text[ROOM];
    if (digits < 0) {
        double unit = pow(10, -digits);
        return nearbyint(v / unit) * unit;
    }
    if (digits > 22 || fabs(v) > 1e22)
        return v;
    snprintf(text, sizeof(text), "%.*f", digits, v);
    return strtod(text, NULL);
}

FILTER(f_round)
{
    struct jval a[2];
    TRY(jinja_bind(r, "round", args, "precision,method", 0, a));
    if (jinja_is_undefined(self))
        return jinja_use_undefined(r, self);
    if (!jinja_is_number(self))
        return jinja_fail(r, "round takes a number, not '%s'",
                          jinja_type_name(self));
    int64_t digits = jinja_is_int(&a[0]) ? jinja_integer(&a[0]) : 0;
    if ((given(&a[0]) && !jinja_is_int(&a[0])) || digits > 300 || digits < -300)
        return jinja_fail(r, "round takes an integer as precision");
    double v = jinja_number(self);
    if (!given(&a[1]) || jinja_is_text(&a[1], "common")) {
        double rounded = round_digits(v, (int)digits);
        bool is_int = jinja_is_int(self);
        if (is_int && digits >= 0)
            *out = jinja_int(jinja_integer(self), self->origin);
        else
            *out = is_int ? jinja_int((int64_t)rounded, self->origin)
                          : jinja_float(rounded, self->origin);
        return OK;
    }
    double unit = pow(10, (double)digits);
    if (jinja_is_text(&a[1], "ceil"))
        *out = jinja_float(ceil(v * unit) / unit, self->origin);
    else if (jinja_is_text(&a[1], "floor"))
        *out = jinja_float(floor(v * unit) / unit, self->origin);
    else
        return jinja_fail(r, "method must be common, ceil or floor");
    return OK;
}

/* --- Any value --- */

FILTER(f_default)
{
    struct jval a[2];
    bool boolean, truth = true;
    TRY(jinja_bind(r, "default", args, "default_value,boolean", 0, a));
    TRY(jinja_truth(r, &a[1], &boolean));
    if (boolean)
        TRY(jinja_truth(r, self, &truth));
    *out = *self;
    if (jinja_is_undefined(self) || !truth)
        *out = given(&a[0]) ? a[0] : jinja_text("");
    return OK;
}

FILTER(f_attr)
{
    struct jval a;
    TRY(jinja_bind(r, "attr", args, "name", 1, &a));
    if (a.type != JINJA_STR)
        return jinja_fail(r, "attr takes a string");
    /* Only attributes, never the members of an object. */
    if (self->type == JINJA_DICT &&
        jinja_lookup(jinja_dict_methods, a.s.p, a.s.n) == NULL) {
        *out = jinja_undefined("an object has no such attribute");
        return OK;
    }
    return jinja_getattr(r, self, a.s.p, a.s.n, out);
}

const struct jinja_builtin jinja_text_filters[] = {
    {"upper", f_upper},
    {"lower", f_lower},
    {"title", f_title},
    {"capitalize", f_capitalize},
    {"trim", f_trim},
    {"string", f_string},
    {"safe", f_safe},
    {"escape", f_escape},
    {"e", f_escape},
    {"forceescape", f_forceescape},
    {"replace", f_replace},
    {"indent", f_indent},
    {"center", f_center},
    {"wordcount", f_wordcount},
    {"truncate", f_truncate},
    {"format", f_format},
    {"tojson", f_tojson},
    {"abs", f_abs},
    {"int", f_int},
    {"float", f_float},
    {"round", f_round},
    {"default", f_default},
    {"d", f_default},
    {"attr", f_attr},
    {NULL, NULL}};
