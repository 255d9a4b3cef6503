#include "runtime/text/jinja_str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/jinja_ast.h"
#include "runtime/text/jinja_eval.h"

/* --- Numbers --- */

/* Digits without a point, and the power of ten of the first one. */
static int shortest(double v, char digits[32])
{
    char text[48];
    enum { DIGITS_MAX = 17 };
    for (int n = 1; n <= DIGITS_MAX; n++) {
        snprintf(text, sizeof(text), "%.*e", n - 1, v);
        if (strtod(text, NULL) == v)
            break;
    }
    size_t k = 0;
    const char *s = text;
    for (; *s != 'e'; s++)
        if (*s >= '0' && *s <= '9')
            digits[k++] = *s;
    while (k > 1 && digits[k - 1] == '0')
        k--;
    digits[k] = '\0';
    return atoi(s + 1);
}

void jinja_float_text(double v, char out[JINJA_FLOAT_TEXT])
{
    if (isnan(v) || isinf(v)) {
        snprintf(out, JINJA_FLOAT_TEXT, "%s",
                 isnan(v) ? "nan"
                 : v > 0  ? "inf"
                          : "-inf");
        return;
    }
    char digits[32];
    int exp = shortest(fabs(v), digits), n = (int)strlen(digits);
    const char *sign = signbit(v) ? "-" : "";
    size_t room = JINJA_FLOAT_TEXT;
    /* repr() of Python: an exponent from 1e16 on and below 1e-4. */
    if (exp < -4 || exp >= 16)
        snprintf(out, room, "%s%c%s%se%c%02d", sign, digits[0],
                 n > 1 ? "." : "", digits + 1, exp < 0 ? '-' : '+', abs(exp));
    else if (exp < 0)
        snprintf(out, room, "%s0.%.*s%s", sign, -exp - 1, "0000", digits);
    else if (n > exp + 1)
        snprintf(out, room, "%s%.*s.%s", sign, exp + 1, digits,
                 digits + exp + 1);
    else
        snprintf(out, room, "%s%s%.*s.0", sign, digits, exp + 1 - n,
                 "0000000000000000");
}

static enum err put_int(struct jinja_sb *b, int64_t i, jinja_origin origin)
{
    char text[24];
    snprintf(text, sizeof(text), "%lld", (long long)i);
    return jinja_sb_puts(b, text, origin);
}

static enum err put_float(struct jinja_sb *b, double f, jinja_origin origin)
{
    char text[JINJA_FLOAT_TEXT];
    jinja_float_text(f, text);
    return jinja_sb_puts(b, text, origin);
}

/* --- repr() --- */

static enum err put_char_repr(struct jinja_sb *b, uint32_t cp, char quote,
                              jinja_origin origin)
{
    char text[16];
    if (cp == (uint32_t)quote || cp == '\\')
        snprintf(text, sizeof(text), "\\%c", (int)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        snprintf(text, sizeof(text), "\\%c",
                 cp == '\n'   ? 'n'
                 : cp == '\r' ? 'r'
                              : 't');
    else if (jinja_is_printable(cp))
        return jinja_sb_put_char(b, cp, origin);
    else if (cp < 0x100)
        snprintf(text, sizeof(text), "\\x%02x", cp);
    else if (cp < 0x10000)
        snprintf(text, sizeof(text), "\\u%04x", cp);
    else
        snprintf(text, sizeof(text), "\\U%08x", cp);
    return jinja_sb_puts(b, text, origin);
}

static enum err put_str_repr(struct jinja_sb *b, const struct jval *v)
{
    const char *s = v->s.p;
    size_t n = v->s.n;
    bool single = n > 0 && memchr(s, '\'', n) != NULL;
    bool dbl = n > 0 && memchr(s, '"', n) != NULL;
    char quote = single && !dbl ? '"' : '\'';
    TRY(jinja_step(b->r, n / 16));
    TRY(jinja_sb_put(b, &quote, 1, v->origin));
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t len = jinja_char(s + at, n - at, &cp);
        TRY(put_char_repr(b, cp, quote, jinja_str_origin(v, at)));
        at += len;
    }
    return jinja_sb_put(b, &quote, 1, v->origin);
}

static enum err put_items(struct jinja_sb *b, const struct jinja_seq *s,
                          jinja_origin origin, const char *open,
                          const char *close)
{
    TRY(jinja_sb_puts(b, open, origin));
    for (size_t i = 0; i < s->n; i++) {
        if (i > 0)
            TRY(jinja_sb_puts(b, ", ", origin));
        TRY(jinja_put_repr(b, &s->items[i]));
    }
    if (s->kind == JINJA_TUPLE && s->n == 1)
        TRY(jinja_sb_puts(b, ",", origin));
    return jinja_sb_puts(b, close, origin);
}

static enum err put_seq_repr(struct jinja_sb *b, const struct jval *v)
{
    static const char *const open[] = {[JINJA_LIST] = "[",
                                       [JINJA_TUPLE] = "(",
                                       [JINJA_RANGE] = "",
                                       [JINJA_KEYS] = "dict_keys([",
                                       [JINJA_VALUES] = "dict_values([",
                                       [JINJA_ITEMS] = "dict_items(["};
    static const char *const close[] = {
        [JINJA_LIST] = "]",  [JINJA_TUPLE] = ")",   [JINJA_RANGE] = "",
        [JINJA_KEYS] = "])", [JINJA_VALUES] = "])", [JINJA_ITEMS] = "])"};
    const struct jinja_seq *s = v->seq;
    if (s->kind != JINJA_RANGE)
        return put_items(b, s, v->origin, open[s->kind], close[s->kind]);
    TRY(jinja_sb_puts(b, "range(", v->origin));
    TRY(put_int(b, s->start, v->origin));
    TRY(jinja_sb_puts(b, ", ", v->origin));
    TRY(put_int(b, s->stop, v->origin));
    if (s->step != 1) {
        TRY(jinja_sb_puts(b, ", ", v->origin));
        TRY(put_int(b, s->step, v->origin));
    }
    return jinja_sb_puts(b, ")", v->origin);
}

static enum err put_dict_repr(struct jinja_sb *b, const struct jval *v)
{
    TRY(jinja_sb_puts(b, "{", v->origin));
    for (size_t i = 0; i < v->dict->n; i++) {
        if (i > 0)
            TRY(jinja_sb_puts(b, ", ", v->origin));
        TRY(jinja_put_repr(b, &v->dict->entries[i].key));
        TRY(jinja_sb_puts(b, ": ", v->origin));
        TRY(jinja_put_repr(b, &v->dict->entries[i].value));
    }
    return jinja_sb_puts(b, "}", v->origin);
}

static enum err put_loop_repr(struct jinja_sb *b, const struct jval *v)
{
    size_t n = 0;
    bool has;
    TRY(jinja_length(b->r, v, &n, &has));
    TRY(jinja_sb_puts(b, "<LoopContext ", JINJA_FROM_TEMPLATE));
    TRY(put_int(b, v->loop->index0 + 1, false));
    TRY(jinja_sb_puts(b, "/", JINJA_FROM_TEMPLATE));
    TRY(put_int(b, (int64_t)n, false));
    return jinja_sb_puts(b, ">", JINJA_FROM_TEMPLATE);
}

/* What the reference shows with an address in it can't be the same twice. */
static enum err put_func_repr(struct jinja_sb *b, const struct jval *v)
{
    bool macro = v->func->fn == NULL;
    TRY(jinja_sb_puts(b, macro ? "<Macro '" : "<function ",
                      JINJA_FROM_TEMPLATE));
    TRY(jinja_sb_puts(b, v->func->name, JINJA_FROM_TEMPLATE));
    return jinja_sb_puts(b, macro ? "'>" : ">", JINJA_FROM_TEMPLATE);
}

static enum err put_deep_repr(struct jinja_sb *b, const struct jval *v)
{
    enum err rc;
    TRY(jinja_enter(b->r));
    if (v->type == JINJA_SEQ)
        rc = put_seq_repr(b, v);
    else
        rc = put_dict_repr(b, v);
    b->r->depth--;
    return rc;
}

enum err jinja_put_repr(struct jinja_sb *b, const struct jval *v)
{
    TRY(jinja_step(b->r, 1));
    switch ((enum jinja_type)v->type) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
        return jinja_sb_puts(b, "Undefined", JINJA_FROM_TEMPLATE);
    case JINJA_NONE:
        return jinja_sb_puts(b, "None", v->origin);
    case JINJA_BOOL:
        return jinja_sb_puts(b, v->b ? "True" : "False", v->origin);
    case JINJA_INT:
        return put_int(b, v->i, v->origin);
    case JINJA_FLOAT:
        return put_float(b, v->f, v->origin);
    case JINJA_STR:
        if (!v->is_markup)
            return put_str_repr(b, v);
        TRY(jinja_sb_puts(b, "Markup(", false));
        TRY(put_str_repr(b, v));
        return jinja_sb_puts(b, ")", false);
    case JINJA_SEQ:
    case JINJA_DICT:
        return put_deep_repr(b, v);
    case JINJA_NAMESPACE:
        TRY(jinja_sb_puts(b, "<Namespace ", JINJA_FROM_TEMPLATE));
        TRY(put_deep_repr(b, v));
        return jinja_sb_puts(b, ">", JINJA_FROM_TEMPLATE);
    case JINJA_ITER:
        return jinja_sb_puts(b, "<generator object>", JINJA_FROM_TEMPLATE);
    case JINJA_LOOP:
        return put_loop_repr(b, v);
    case JINJA_FUNC:
        return put_func_repr(b, v);
    }
    return OK;
}

enum err jinja_sb_put_value(struct jinja_sb *b, const struct jval *v)
{
    if (v->type == JINJA_STR)
        return jinja_sb_put_part(b, v, 0, v->s.n);
    if (v->type == JINJA_UNDEFINED)
        return OK;
    return jinja_put_repr(b, v);
}

enum err jinja_to_str(struct jinja_run *r, const struct jval *v,
                      struct jval *out)
{
    if (v->type == JINJA_STR) {
        *out = *v;
        out->is_markup = false;
        return OK;
    }
    struct jinja_sb b = {.r = r};
    TRY(jinja_sb_put_value(&b, v));
    return jinja_sb_done(&b, out);
}

/* --- json.dumps() --- */

static enum err put_json_char(struct jinja_sb *b, uint32_t cp, bool ascii,
                              jinja_origin origin)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    char text[16];
    const char *at = cp != 0 && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (at != NULL)
        snprintf(text, sizeof(text), "\\%c", to[at - from]);
    else if (cp >= 0x20 && (cp < 0x7F || !ascii))
        return jinja_sb_put_char(b, cp, origin);
    else if (cp < 0x10000)
        snprintf(text, sizeof(text), "\\u%04x", cp);
    else
        snprintf(text, sizeof(text), "\\u%04x\\u%04x",
                 0xD800 + ((cp - 0x10000) >> 10),
                 0xDC00 + ((cp - 0x10000) & 0x3FF));
    return jinja_sb_puts(b, text, origin);
}

static enum err put_json_str(struct jinja_sb *b, const struct jval *v,
                             bool ascii)
{
    TRY(jinja_step(b->r, v->s.n / 16));
    TRY(jinja_sb_puts(b, "\"", v->origin));
    for (size_t at = 0; at < v->s.n;) {
        uint32_t cp;
        size_t len = jinja_char(v->s.p + at, v->s.n - at, &cp);
        TRY(put_json_char(b, cp, ascii, jinja_str_origin(v, at)));
        at += len;
    }
    return jinja_sb_puts(b, "\"", v->origin);
}

static enum err put_json(struct jinja_sb *b, const struct jval *v,
                         const struct jinja_json_style *style, unsigned level);

static enum err new_line(struct jinja_sb *b,
                         const struct jinja_json_style *style, unsigned level,
                         jinja_origin origin)
{
    if (!style->pretty)
        return OK;
    TRY(jinja_sb_puts(b, "\n", origin));
    for (unsigned i = 0; i < level; i++)
        TRY(jinja_sb_put(b, style->indent.s.p, style->indent.s.n,
                         origin | style->indent.origin));
    return OK;
}

static enum err put_json_scalar(struct jinja_sb *b, const struct jval *v,
                                const struct jinja_json_style *style)
{
    switch ((enum jinja_type)v->type) {
    case JINJA_NONE:
        return jinja_sb_puts(b, "null", v->origin);
    case JINJA_BOOL:
        return jinja_sb_puts(b, v->b ? "true" : "false", v->origin);
    case JINJA_INT:
        return put_int(b, v->i, v->origin);
    case JINJA_FLOAT:
        if (isnan(v->f))
            return jinja_sb_puts(b, "NaN", v->origin);
        if (isinf(v->f))
            return jinja_sb_puts(b, v->f > 0 ? "Infinity" : "-Infinity",
                                 v->origin);
        return put_float(b, v->f, v->origin);
    case JINJA_STR:
        return put_json_str(b, v, style->ascii);
    default:
        return jinja_fail(b->r, "Object of type %s is not JSON serializable",
                          jinja_type_name(v));
    }
}

static enum err put_json_key(struct jinja_sb *b, const struct jval *key,
                             const struct jinja_json_style *style)
{
    if (key->type == JINJA_STR)
        return put_json_str(b, key, style->ascii);
    if (key->type != JINJA_NONE && !jinja_is_number(key))
        return jinja_fail(b->r, "keys of JSON must be strings, not %s",
                          jinja_type_name(key));
    TRY(jinja_sb_puts(b, "\"", key->origin));
    TRY(put_json_scalar(b, key, style));
    return jinja_sb_puts(b, "\"", key->origin);
}

static enum err put_json_list(struct jinja_sb *b, const struct jval *v,
                              const struct jinja_json_style *style,
                              unsigned level)
{
    const struct jinja_seq *s = v->seq;
    if (s->kind > JINJA_TUPLE)
        return put_json_scalar(b, v, style);
    if (s->n == 0)
        return jinja_sb_puts(b, "[]", v->origin);
    TRY(jinja_sb_puts(b, "[", v->origin));
    for (size_t i = 0; i < s->n; i++) {
        if (i > 0)
            TRY(jinja_sb_put(b, style->comma.s.p, style->comma.s.n,
                             v->origin | style->comma.origin));
        TRY(new_line(b, style, level + 1, v->origin));
        TRY(put_json(b, &s->items[i], style, level + 1));
    }
    TRY(new_line(b, style, level, v->origin));
    return jinja_sb_puts(b, "]", v->origin);
}

/* The entries in the order they are to be written in. */
static enum err json_order(struct jinja_run *r, const struct jinja_dict *d,
                           bool sort, struct jinja_entry **out)
{
    *out = d->entries;
    if (!sort || d->n == 0)
        return OK;
    struct jval *keys, *at;
    struct jinja_entry *entries;
    TRY(jinja_alloc(r, &keys, d->n, sizeof(*keys)));
    TRY(jinja_alloc(r, &at, d->n, sizeof(*at)));
    TRY(jinja_alloc(r, &entries, d->n, sizeof(*entries)));
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->entries[i].key;
        at[i] = jinja_int((int64_t)i, JINJA_FROM_TEMPLATE);
    }
    TRY(jinja_sort(r, at, keys, d->n, false));
    for (size_t i = 0; i < d->n; i++)
        entries[i] = d->entries[at[i].i];
    *out = entries;
    return OK;
}

static enum err put_json_dict(struct jinja_sb *b, const struct jval *v,
                              const struct jinja_json_style *style,
                              unsigned level)
{
    struct jinja_entry *e;
    if (v->dict->n == 0)
        return jinja_sb_puts(b, "{}", v->origin);
    TRY(json_order(b->r, v->dict, style->sort, &e));
    TRY(jinja_sb_puts(b, "{", v->origin));
    for (size_t i = 0; i < v->dict->n; i++) {
        if (i > 0)
            TRY(jinja_sb_put(b, style->comma.s.p, style->comma.s.n,
                             v->origin | style->comma.origin));
        TRY(new_line(b, style, level + 1, v->origin));
        TRY(put_json_key(b, &e[i].key, style));
        TRY(jinja_sb_put(b, style->colon.s.p, style->colon.s.n,
                         v->origin | style->colon.origin));
        TRY(put_json(b, &e[i].value, style, level + 1));
    }
    TRY(new_line(b, style, level, v->origin));
    return jinja_sb_puts(b, "}", v->origin);
}

static enum err put_json(struct jinja_sb *b, const struct jval *v,
                         const struct jinja_json_style *style, unsigned level)
{
    TRY(jinja_step(b->r, 1));
    if (v->type != JINJA_SEQ && v->type != JINJA_DICT)
        return put_json_scalar(b, v, style);
    TRY(jinja_enter(b->r));
    enum err rc = v->type == JINJA_SEQ ? put_json_list(b, v, style, level)
                                       : put_json_dict(b, v, style, level);
    b->r->depth--;
    return rc;
}

enum err jinja_put_json(struct jinja_sb *b, const struct jval *v,
                        const struct jinja_json_style *style)
{
    return put_json(b, v, style, 0);
}
