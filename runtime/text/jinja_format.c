#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/text/jinja_str.h"

/* format % values and format.format(values): the conversions that templates
 * use. What is not known here is an error. */

enum { WIDTH_MAX = 1000 };

struct spec {
    bool left, zero, plus, space, alt;
    jinja_origin origin;      /* the format is from the input */
    int64_t width, precision; /* -1: none */
    char type;
};

/* --- % --- */

struct values {
    const struct jval *all; /* a tuple, an object or the one value */
    size_t next;
};

static enum err next_value(struct jinja_run *r, struct values *v,
                           const struct jval **out)
{
    bool tuple = v->all->type == JINJA_SEQ && v->all->seq->kind == JINJA_TUPLE;
    size_t n = tuple ? v->all->seq->n : 1;
    if (v->next >= n)
        return jinja_fail(r, "not enough arguments for format string");
    *out = tuple ? &v->all->seq->items[v->next] : v->all;
    v->next++;
    return OK;
}

/* Digits at *at. */
static int64_t read_number(const struct jval *s, size_t *at)
{
    int64_t n = -1;
    for (; *at < s->s.n && s->s.p[*at] >= '0' && s->s.p[*at] <= '9'; ++*at) {
        n = (n < 0 ? 0 : n) * 10 + (s->s.p[*at] - '0');
        if (n > WIDTH_MAX)
            n = WIDTH_MAX;
    }
    return n;
}

static void read_flags(const struct jval *s, size_t *at, struct spec *f)
{
    for (; *at < s->s.n; ++*at) {
        switch (s->s.p[*at]) {
        case '-':
            f->left = true;
            continue;
        case '0':
            f->zero = true;
            continue;
        case '+':
            f->plus = true;
            continue;
        case ' ':
            f->space = true;
            continue;
        case '#':
            f->alt = true;
            continue;
        default:
            return;
        }
    }
}

/* Text in its field: spaces around it, or zeros behind the sign. */
static enum err put_field(struct jinja_sb *b, const struct spec *f,
                          const struct jval *text, bool numeric)
{
    int64_t n = (int64_t)jinja_count_chars(text->s.p, text->s.n);
    int64_t fill = f->width > n ? f->width - n : 0;
    size_t sign = numeric && f->zero && !f->left && text->s.n > 0 &&
                  strchr("+- ", text->s.p[0]) != NULL;
    const char *with = numeric && f->zero && !f->left ? "0" : " ";
    jinja_origin origin = f->origin | text->origin;
    TRY(jinja_sb_put_part(b, text, 0, sign));
    for (int64_t i = 0; !f->left && i < fill; i++)
        TRY(jinja_sb_puts(b, with, origin));
    TRY(jinja_sb_put_part(b, text, sign, text->s.n));
    for (int64_t i = 0; f->left && i < fill; i++)
        TRY(jinja_sb_puts(b, " ", origin));
    return OK;
}

static enum err put_number(struct jinja_sb *b, const struct spec *f,
                           const struct jval *v)
{
    enum { ROOM = 1400 }; /* %f of the largest double and WIDTH_MAX digits */
    char text[ROOM];
    const char *sign = f->plus ? "+" : f->space ? " " : "";
    struct jval number;
    if (!jinja_is_number(v))
        return jinja_fail(b->r, "%%%c format: a number is required, not %s",
                          f->type, jinja_type_name(v));
    if (strchr("di", f->type) != NULL) {
        double d = trunc(jinja_number(v));
        if (fabs(d) >= 9223372036854775808.0 || isnan(d))
            return jinja_fail(b->r, "an integer does not fit into 64 bits");
        long long i =
            v->type == JINJA_FLOAT ? (long long)d : (long long)jinja_integer(v);
        snprintf(text, sizeof(text), "%s%lld", i < 0 ? "" : sign, i);
    } else if (f->type == 'x' || f->type == 'X') {
        if (!jinja_is_int(v) || jinja_integer(v) < 0)
            return jinja_fail(b->r, "%%x takes an integer that is not "
                                    "negative");
        const char *prefix = !f->alt ? "" : f->type == 'x' ? "0x" : "0X";
        unsigned long long u = (unsigned long long)jinja_integer(v);
        snprintf(text, sizeof(text), f->type == 'x' ? "%s%s%llx" : "%s%s%llX",
                 sign, prefix, u);
    } else {
        int precision = f->precision < 0 ? 6 : (int)f->precision;
        double d = jinja_number(v);
        sign = signbit(d) ? "" : sign;
        if (f->type == 'e')
            snprintf(text, sizeof(text), "%s%.*e", sign, precision, d);
        else if (f->type == 'g')
            snprintf(text, sizeof(text), "%s%.*g", sign, precision, d);
        else
            snprintf(text, sizeof(text), "%s%.*f", sign, precision, d);
    }
    number = jinja_text(text);
    number.origin = f->origin | v->origin;
    return put_field(b, f, &number, true);
}

static enum err put_percent(struct jinja_sb *b, const struct spec *f,
                            const struct jval *v)
{
    struct jval text;
    if (f->type == 's') {
        TRY(jinja_to_str(b->r, v, &text));
    } else if (f->type == 'r') {
        struct jinja_sb own = {.r = b->r};
        TRY(jinja_put_repr(&own, v));
        TRY(jinja_sb_done(&own, &text));
    } else if (strchr("dixXfFeg", f->type) != NULL) {
        return put_number(b, f, v);
    } else {
        return jinja_fail(b->r, "unsupported format character '%c'", f->type);
    }
    if (f->precision >= 0)
        text.s.n = jinja_char_offset(text.s.p, text.s.n, (size_t)f->precision);
    return put_field(b, f, &text, false);
}

/* One conversion; *at is behind the percent sign. */
static enum err one_percent(struct jinja_sb *b, const struct jval *s,
                            size_t *at, struct values *values, bool *named)
{
    struct spec f = {.precision = -1, .origin = s->origin};
    const struct jval *v = NULL;
    if (*at < s->s.n && s->s.p[*at] == '%') {
        ++*at;
        return jinja_sb_put_part(b, s, *at - 1, *at);
    }
    if (*at < s->s.n && s->s.p[*at] == '(') {
        const char *name = s->s.p + *at + 1;
        const char *end = memchr(name, ')', s->s.n - *at - 1);
        if (end == NULL || values->all->type != JINJA_DICT)
            return jinja_fail(b->r, "format requires a mapping");
        TRY(jinja_dict_get_text(b->r, values->all->dict, name,
                                (size_t)(end - name), &v));
        if (v == NULL)
            return jinja_fail(b->r, "format names a key that is not there");
        *at = (size_t)(end + 1 - s->s.p);
        *named = true;
    }
    read_flags(s, at, &f);
    f.width = read_number(s, at);
    if (*at < s->s.n && s->s.p[*at] == '.') {
        ++*at;
        f.precision = read_number(s, at);
        if (f.precision < 0)
            f.precision = 0;
    }
    if (*at >= s->s.n)
        return jinja_fail(b->r, "incomplete format");
    f.type = s->s.p[(*at)++];
    if (v == NULL)
        TRY(next_value(b->r, values, &v));
    return put_percent(b, &f, v);
}

enum err jinja_percent(struct jinja_run *r, const struct jval *s,
                       const struct jval *args, struct jval *out)
{
    struct jinja_sb b = {.r = r};
    struct values values = {.all = args};
    bool named = false;
    for (size_t at = 0; at < s->s.n;) {
        const char *p = memchr(s->s.p + at, '%', s->s.n - at);
        size_t end = p != NULL ? (size_t)(p - s->s.p) : s->s.n;
        TRY(jinja_sb_put_part(&b, s, at, end));
        at = end + 1;
        TRY(jinja_step(r, 1));
        if (p != NULL)
            TRY(one_percent(&b, s, &at, &values, &named));
    }
    bool tuple = args->type == JINJA_SEQ && args->seq->kind == JINJA_TUPLE;
    bool optional = args->type == JINJA_DICT || args->type == JINJA_SEQ ||
                    args->type == JINJA_UNDEFINED;
    if (!named && ((tuple && values.next < args->seq->n) ||
                   (!optional && values.next == 0)))
        return jinja_fail(r, "not all arguments converted during string "
                             "formatting");
    return jinja_sb_done(&b, out);
}

/* --- format() --- */

/* The value a field such as "0", "name" or "" means. */
static enum err field_value(struct jinja_run *r, const char *name, size_t n,
                            const struct jinja_args *args, size_t *next,
                            const struct jval **out)
{
    size_t index = 0;
    bool digits = n > 0 && n < 6;
    for (size_t i = 0; i < n && digits; i++) {
        digits = name[i] >= '0' && name[i] <= '9';
        index = index * 10 + (size_t)(name[i] - '0');
    }
    if (n == 0)
        index = (*next)++;
    if (n == 0 || digits) {
        if (index >= args->n)
            return jinja_fail(r, "format: index out of range");
        *out = &args->v[index];
        return OK;
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        if (args->kw[i].n == n && memcmp(args->kw[i].name, name, n) == 0) {
            *out = &args->kw[i].value;
            return OK;
        }
    }
    return jinja_fail(r, "format: no value for '%.*s'", (int)(n < 60 ? n : 60),
                      name);
}

/* {name:spec} with a spec of [<>0][width][.precision][type] */
static enum err put_braces(struct jinja_sb *b, const struct jval *s,
                           size_t from, size_t to, const struct jval *v)
{
    struct jval spec = *s;
    struct spec f = {.precision = -1, .origin = s->origin};
    bool numeric = jinja_is_number(v) && v->type != JINJA_BOOL;
    spec.s.n = to;
    f.left = !numeric;
    if (from < to && (s->s.p[from] == '<' || s->s.p[from] == '>'))
        f.left = s->s.p[from++] == '<';
    f.zero = from < to && s->s.p[from] == '0';
    f.width = read_number(&spec, &from);
    if (from < to && s->s.p[from] == '.') {
        from++;
        f.precision = read_number(&spec, &from);
    }
    f.type = from < to ? s->s.p[from++] : 's';
    if (from != to || strchr("sdxXfFeg", f.type) == NULL)
        return jinja_fail(b->r, "format: this format is not supported");
    if (f.type == 's' && numeric && f.precision >= 0)
        return jinja_fail(b->r, "format: this format is not supported");
    if (f.type == 'd' && v->type == JINJA_FLOAT)
        return jinja_fail(b->r, "format: 'd' needs an integer");
    if (jinja_is_undefined(v) && to > 0 && f.width > 0)
        return jinja_use_undefined(b->r, v);
    return put_percent(b, &f, v);
}

static enum err one_field(struct jinja_sb *b, const struct jval *s, size_t at,
                          size_t end, const struct jinja_args *args,
                          size_t *next)
{
    const char *name = s->s.p + at;
    const char *colon = memchr(name, ':', end - at);
    size_t n = colon != NULL ? (size_t)(colon - name) : end - at;
    const struct jval *v = NULL;
    if (memchr(name, '!', n) != NULL || memchr(name, '.', n) != NULL ||
        memchr(name, '[', n) != NULL)
        return jinja_fail(b->r, "format: this field is not supported");
    TRY(field_value(b->r, name, n, args, next, &v));
    return put_braces(b, s, at + n + (colon != NULL), end, v);
}

enum err jinja_format(struct jinja_run *r, const struct jval *s,
                      const struct jinja_args *args, struct jval *out)
{
    struct jinja_sb b = {.r = r};
    size_t next = 0;
    for (size_t at = 0; at < s->s.n;) {
        char c = s->s.p[at];
        bool twice = at + 1 < s->s.n && s->s.p[at + 1] == c;
        TRY(jinja_step(r, 1));
        if (c != '{' && c != '}') {
            TRY(jinja_sb_put_part(&b, s, at, at + 1));
            at++;
        } else if (twice) {
            TRY(jinja_sb_put_part(&b, s, at, at + 1));
            at += 2;
        } else {
            const char *end = memchr(s->s.p + at, '}', s->s.n - at);
            if (c == '}' || end == NULL)
                return jinja_fail(r, "format: single brace in a string");
            size_t to = (size_t)(end - s->s.p);
            TRY(one_field(&b, s, at + 1, to, args, &next));
            at = to + 1;
        }
    }
    return jinja_sb_done(&b, out);
}
