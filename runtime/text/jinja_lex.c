#include "runtime/text/jinja_ast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "runtime/text/jinja_str.h"

static enum err lex_error(struct jinja_lexer *lx, const char *what)
{
    return err_set(lx->m, ERR_INVAL, "chat template, line %u: %s", lx->line,
                   what);
}

enum err jinja_lex_init(struct jinja_lexer *lx, struct arena *a,
                        const char *source, size_t n, struct errmsg *m)
{
    *lx = (struct jinja_lexer){
        .line = 1, .line_starting = true, .arena = a, .m = m};
    char *s = arena_alloc(a, n + 1);
    if (s == NULL)
        return err_set(m, ERR_NOMEM, "no memory for a chat template");
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            s[k++] = '\n';
            if (i + 1 < n && source[i + 1] == '\n')
                i++;
        } else {
            s[k++] = source[i];
        }
    }
    /* keep_trailing_newline is off in the reference: one newline goes. */
    if (k > 0 && s[k - 1] == '\n')
        k--;
    s[k] = '\0';
    lx->s = s;
    lx->n = k;
    return OK;
}

static size_t skip_space(const struct jinja_lexer *lx, size_t at)
{
    while (at < lx->n) {
        uint32_t cp;
        size_t len = jinja_char(lx->s + at, lx->n - at, &cp);
        if (!jinja_is_space(cp))
            break;
        at += len;
    }
    return at;
}

static bool has(const struct jinja_lexer *lx, size_t at, const char *text)
{
    size_t n = strlen(text);
    return at + n <= lx->n && memcmp(lx->s + at, text, n) == 0;
}

static bool is_sign(const struct jinja_lexer *lx, size_t at)
{
    return at < lx->n && (lx->s[at] == '-' || lx->s[at] == '+');
}

/* Everything between pos and `to` was read. */
static void move_to(struct jinja_lexer *lx, size_t to)
{
    for (size_t i = lx->pos; i < to; i++)
        lx->line += lx->s[i] == '\n';
    if (to > lx->pos)
        lx->line_starting = lx->s[to - 1] == '\n';
    lx->pos = to;
}

static void push(struct jinja_lexer *lx, enum jinja_token_type type,
                 size_t from, size_t to)
{
    lx->queue[lx->n_queue++] = (struct jinja_token){
        .type = type, .line = lx->line, .p = lx->s + from, .n = to - from};
}

/* Text [from, to) in front of a tag, less what the sign of the tag ('-', '+'
 * or 0) and lstrip_blocks take away. */
static void push_text(struct jinja_lexer *lx, size_t from, size_t to, char sign,
                      bool is_var)
{
    if (sign == '-') {
        while (to > from) {
            uint32_t cp;
            size_t len = jinja_char_before(lx->s + from, to - from, &cp);
            if (!jinja_is_space(cp))
                break;
            to -= len;
        }
    } else if (sign != '+' && !is_var) {
        size_t line = to;
        while (line > from && lx->s[line - 1] != '\n')
            line--;
        if ((line > from || lx->line_starting) && skip_space(lx, line) >= to)
            to = line;
    }
    if (to > from)
        push(lx, JINJA_T_DATA, from, to);
}

/* The end of a tag at `at`: "-%}" takes white space along, "%}" one newline
 * (trim_blocks), "+%}" nothing. 0: no end here. */
static size_t tag_end(const struct jinja_lexer *lx, size_t at,
                      const char *close)
{
    if (at < lx->n && lx->s[at] == '-' && has(lx, at + 1, close))
        return skip_space(lx, at + 3);
    if (at < lx->n && lx->s[at] == '+' && has(lx, at + 1, close))
        return at + 3;
    if (!has(lx, at, close))
        return 0;
    at += 2;
    return at < lx->n && lx->s[at] == '\n' ? at + 1 : at;
}

/* At the very end of a template, an opening without anything behind it is
 * nothing to the reference. */
static enum err lex_comment(struct jinja_lexer *lx, size_t at)
{
    for (size_t i = at; i + 1 < lx->n; i++) {
        size_t end = tag_end(lx, i, "#}");
        if (end != 0) {
            move_to(lx, end);
            return OK;
        }
    }
    return at == lx->n ? OK : lex_error(lx, "a comment is not closed");
}

/* "{%- raw -%}" at `at`: where the raw text starts, or 0. */
static size_t raw_begin(const struct jinja_lexer *lx, size_t at)
{
    at += 2;
    if (is_sign(lx, at))
        at++;
    at = skip_space(lx, at);
    if (!has(lx, at, "raw"))
        return 0;
    at = skip_space(lx, at + 3);
    if (has(lx, at, "-%}"))
        return skip_space(lx, at + 3);
    return has(lx, at, "%}") ? at + 2 : 0;
}

static enum err lex_raw(struct jinja_lexer *lx, size_t text)
{
    move_to(lx, text);
    for (size_t i = text; i + 1 < lx->n; i++) {
        if (!has(lx, i, "{%"))
            continue;
        size_t at = i + 2;
        char sign = is_sign(lx, at) ? lx->s[at++] : '\0';
        at = skip_space(lx, at);
        if (!has(lx, at, "endraw"))
            continue;
        size_t end = tag_end(lx, skip_space(lx, at + 6), "%}");
        if (end == 0)
            continue;
        push_text(lx, text, i, sign, false);
        move_to(lx, end);
        return OK;
    }
    return text == lx->n ? OK : lex_error(lx, "a raw block is not closed");
}

/* Text up to the next tag, and the beginning of that tag. */
static enum err lex_text(struct jinja_lexer *lx)
{
    size_t from = lx->pos, i = from;
    while (i + 1 < lx->n &&
           !(lx->s[i] == '{' && strchr("{%#", lx->s[i + 1]) != NULL))
        i++;
    if (i + 1 >= lx->n) {
        if (from < lx->n)
            push(lx, JINJA_T_DATA, from, lx->n);
        else
            push(lx, JINJA_T_EOF, from, from);
        move_to(lx, lx->n);
        return OK;
    }
    char what = lx->s[i + 1];
    char sign = is_sign(lx, i + 2) ? lx->s[i + 2] : '\0';
    size_t at = i + 2 + (sign != '\0');
    size_t raw = what == '%' ? raw_begin(lx, i) : 0;
    push_text(lx, from, i, sign, what == '{');
    if (raw != 0)
        return lex_raw(lx, raw);
    move_to(lx, at);
    if (what == '#')
        return lex_comment(lx, at);
    lx->state = what == '{' ? JINJA_IN_VAR : JINJA_IN_BLOCK;
    push(lx, what == '{' ? JINJA_T_VAR_BEGIN : JINJA_T_BLOCK_BEGIN, i, at);
    return OK;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* (digits _)* digits at `at`: where they end; `at` if there are none. */
static size_t digits(const struct jinja_lexer *lx, size_t at)
{
    size_t end = at;
    while (end < lx->n && (is_digit(lx->s[end]) ||
                           (lx->s[end] == '_' && end > at && end + 1 < lx->n &&
                            is_digit(lx->s[end + 1]))))
        end++;
    return end;
}

/* A float at pos: where it ends, or 0. */
static size_t float_end(const struct jinja_lexer *lx)
{
    if (lx->pos > 0 && lx->s[lx->pos - 1] == '.')
        return 0;
    size_t end = digits(lx, lx->pos);
    if (end == lx->pos)
        return 0;
    size_t after = end;
    if (after < lx->n && lx->s[after] == '.' &&
        digits(lx, after + 1) > after + 1)
        after = digits(lx, after + 1);
    if (after < lx->n && (lx->s[after] | 0x20) == 'e') {
        size_t exp = after + 1 + is_sign(lx, after + 1);
        if (digits(lx, exp) > exp)
            return digits(lx, exp);
    }
    return after > end ? after : 0;
}

/* An integer at pos: where it ends. */
static size_t int_end(const struct jinja_lexer *lx, int *base)
{
    static const struct {
        char letter;
        int base;
        const char *digits;
    } prefix[] = {{'b', 2, "01"},
                  {'o', 8, "01234567"},
                  {'x', 16, "0123456789abcdefABCDEF"}};
    const char *s = lx->s;
    size_t at = lx->pos;
    *base = 10;
    if (s[at] != '0')
        return digits(lx, at);
    for (size_t i = 0; i < 3; i++) {
        if (at + 1 >= lx->n || (s[at + 1] | 0x20) != prefix[i].letter)
            continue;
        size_t end = at + 2;
        while (end < lx->n) {
            size_t d = end + (s[end] == '_');
            if (d >= lx->n || strchr(prefix[i].digits, s[d]) == NULL)
                break;
            end = d + 1;
        }
        if (end > at + 2) {
            *base = prefix[i].base;
            return end;
        }
    }
    size_t end = at + 1;
    while (end < lx->n && (s[end] == '0' || (s[end] == '_' && end + 1 < lx->n &&
                                             s[end + 1] == '0')))
        end += s[end] == '_' ? 2 : 1;
    return end;
}

static enum err lex_number(struct jinja_lexer *lx, struct jinja_token *t)
{
    enum { LONGEST = 400 };
    char text[LONGEST + 1];
    int base = 10;
    size_t end = float_end(lx), n = 0;
    t->type = end != 0 ? JINJA_T_FLOAT : JINJA_T_INT;
    if (end == 0)
        end = int_end(lx, &base);
    for (size_t i = lx->pos; i < end; i++) {
        if (lx->s[i] == '_')
            continue;
        if (n == LONGEST)
            return lex_error(lx, "a number has too many digits");
        text[n++] = lx->s[i];
    }
    text[n] = '\0';
    errno = 0;
    if (t->type == JINJA_T_FLOAT)
        t->f = strtod(text, NULL);
    else
        t->i = strtoll(base == 10 ? text : text + 2, NULL, base);
    if (t->type == JINJA_T_INT && errno == ERANGE)
        return lex_error(lx, "an integer does not fit into 64 bits");
    move_to(lx, end);
    return OK;
}

static enum err lex_string(struct jinja_lexer *lx, struct jinja_token *t)
{
    char quote = lx->s[lx->pos];
    size_t from = lx->pos + 1, i = from;
    while (i < lx->n && lx->s[i] != quote)
        i += lx->s[i] == '\\' ? 2 : 1;
    if (i >= lx->n)
        return lex_error(lx, "a string is not closed");
    t->type = JINJA_T_STRING;
    TRY(jinja_unescape(lx, lx->s + from, i - from, t));
    move_to(lx, i + 1);
    return OK;
}

/* Brackets must pair up: "}}" inside of a dict is not the end of the tag. */
static enum err bracket(struct jinja_lexer *lx, char c)
{
    static const char opening[] = "([{", closing[] = ")]}";
    const char *at;
    if ((at = strchr(opening, c)) != NULL) {
        if (lx->n_open == JINJA_NEST_MAX)
            return lex_error(lx, "brackets nest too deep");
        lx->open[lx->n_open++] = closing[at - opening];
    } else if (strchr(closing, c) != NULL) {
        if (lx->n_open == 0 || lx->open[lx->n_open - 1] != c)
            return err_set(lx->m, ERR_INVAL,
                           "chat template, line %u: unexpected '%c'", lx->line,
                           c);
        lx->n_open--;
    }
    return OK;
}

static enum err lex_op(struct jinja_lexer *lx, struct jinja_token *t)
{
    static const char *const ops[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (!has(lx, lx->pos, ops[i]))
            continue;
        t->type = JINJA_T_OP;
        t->n = strlen(ops[i]);
        TRY(bracket(lx, ops[i][0]));
        move_to(lx, lx->pos + t->n);
        return OK;
    }
    uint32_t cp;
    size_t n = jinja_char(lx->s + lx->pos, lx->n - lx->pos, &cp);
    return err_set(lx->m, ERR_INVAL,
                   "chat template, line %u: unexpected character '%.*s'",
                   lx->line, (int)n, lx->s + lx->pos);
}

/* One token inside of a tag; nothing is queued where only space was left. */
static enum err lex_tag(struct jinja_lexer *lx)
{
    bool in_var = lx->state == JINJA_IN_VAR;
    for (;;) {
        size_t end = 0;
        if (lx->n_open == 0)
            end = tag_end(lx, lx->pos, in_var ? "}}" : "%}");
        /* "}}" knows no plus sign and keeps the newline after it. */
        if (end != 0 && in_var) {
            if (lx->s[lx->pos] == '+')
                end = 0;
            else if (lx->s[lx->pos] == '}')
                end = lx->pos + 2;
        }
        if (end != 0) {
            push(lx, in_var ? JINJA_T_VAR_END : JINJA_T_BLOCK_END, lx->pos,
                 end);
            move_to(lx, end);
            lx->state = JINJA_IN_TEXT;
            return OK;
        }
        size_t next = skip_space(lx, lx->pos);
        if (next == lx->pos)
            break;
        move_to(lx, next);
    }
    struct jinja_token t = {.line = lx->line, .p = lx->s + lx->pos};
    if (lx->pos >= lx->n) {
        t.type = JINJA_T_EOF;
    } else if (is_digit(lx->s[lx->pos])) {
        TRY(lex_number(lx, &t));
    } else if (lx->s[lx->pos] == '"' || lx->s[lx->pos] == '\'') {
        TRY(lex_string(lx, &t));
    } else {
        size_t end = lx->pos;
        uint32_t cp;
        while (end < lx->n) {
            size_t len = jinja_char(lx->s + end, lx->n - end, &cp);
            if (!jinja_is_word(cp))
                break;
            end += len;
        }
        t.type = JINJA_T_NAME;
        t.n = end - lx->pos;
        if (t.n == 0)
            TRY(lex_op(lx, &t));
        else
            move_to(lx, end);
    }
    lx->queue[lx->n_queue++] = t;
    return OK;
}

enum err jinja_lex_next(struct jinja_lexer *lx, struct jinja_token *out)
{
    while (lx->n_queue == 0)
        TRY(lx->state == JINJA_IN_TEXT ? lex_text(lx) : lex_tag(lx));
    *out = lx->queue[0];
    lx->n_queue--;
    memmove(lx->queue, lx->queue + 1, lx->n_queue * sizeof(lx->queue[0]));
    return OK;
}

/* --- String literals --- */

static int hex(char c)
{
    if (is_digit(c))
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \x41 \u0041 \U00000041 \101: s[*i] is behind the backslash. */
static enum err numeric_escape(struct jinja_lexer *lx, const char *s, size_t n,
                               size_t *i, uint32_t *cp)
{
    char c = s[*i];
    *cp = 0;
    if (c >= '0' && c <= '7') {
        size_t end = *i + 3;
        for (; *i < n && *i < end && s[*i] >= '0' && s[*i] <= '7'; ++*i)
            *cp = *cp * 8 + (uint32_t)(s[*i] - '0');
        return OK;
    }
    size_t want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    ++*i;
    for (size_t k = 0; k < want; k++, ++*i) {
        int d = *i < n ? hex(s[*i]) : -1;
        if (d < 0)
            return lex_error(lx, "a string has a truncated \\x, \\u or \\U");
        *cp = *cp * 16 + (uint32_t)d;
    }
    if (*cp > 0x10FFFF || (*cp >= 0xD800 && *cp <= 0xDFFF))
        return lex_error(lx, "a string escapes what is not a character");
    return OK;
}

/* The reference encodes with backslashreplace and then decodes escapes, so a
 * backslash before a character beyond ASCII shows that character's escape. */
static size_t quirk(uint32_t cp, char *out)
{
    enum { ROOM = 12 };
    if (cp < 0x100)
        return (size_t)snprintf(out, ROOM, "\\x%02x", cp);
    if (cp < 0x10000)
        return (size_t)snprintf(out, ROOM, "\\u%04x", cp);
    return (size_t)snprintf(out, ROOM, "\\U%08x", cp);
}

static enum err one_escape(struct jinja_lexer *lx, const char *s, size_t n,
                           size_t *i, char *out, size_t *k)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[*i];
    const char *simple = c != '\0' ? strchr(from, c) : NULL;
    uint32_t cp;
    if (c == '\n') {
        ++*i;
    } else if (simple != NULL) {
        out[(*k)++] = to[simple - from];
        ++*i;
    } else if (c == 'x' || c == 'u' || c == 'U' || (c >= '0' && c <= '7')) {
        TRY(numeric_escape(lx, s, n, i, &cp));
        *k += (size_t)utf8_encode(cp, out + *k);
    } else if (c == 'N') {
        return lex_error(lx, "a string has \\N{...}, which is not supported");
    } else if ((unsigned char)c >= 0x80) {
        *i += jinja_char(s + *i, n - *i, &cp);
        *k += quirk(cp, out + *k);
    } else {
        out[(*k)++] = '\\';
    }
    return OK;
}

enum err jinja_unescape(struct jinja_lexer *lx, const char *lit, size_t n,
                        struct jinja_token *out)
{
    out->p = lit;
    out->n = n;
    if (memchr(lit, '\\', n) == NULL)
        return OK;
    /* The quirk above makes at most 10 bytes of 3 ("\" and two more). */
    char *s = arena_array(lx->arena, n + 1, 4);
    if (s == NULL)
        return err_set(lx->m, ERR_NOMEM, "no memory for a chat template");
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        if (lit[i] != '\\' || i + 1 >= n) {
            s[k++] = lit[i++];
            continue;
        }
        i++;
        TRY(one_escape(lx, lit, n, &i, s, &k));
    }
    out->p = s;
    out->n = k;
    return OK;
}
