#include "runtime/text/jinja_ast.h"

#include <string.h>

/* The tightest level of the grammar (jinja_parse_expr.c has the others):
 * names, literals, brackets, and what may follow them. */

static enum err parse_postfix(struct jinja_parser *p, struct jinja_node **io);

/* --- Primaries --- */

static enum err parse_name(struct jinja_parser *p, struct jinja_node *n)
{
    static const struct {
        const char *name;
        int value; /* -1: none */
    } constants[] = {{"true", 1},  {"True", 1},  {"false", 0},
                     {"False", 0}, {"none", -1}, {"None", -1}};
    static const struct {
        const char *name;
        uint8_t flag;
    } special[] = {{"caller", JINJA_USES_CALLER},
                   {"kwargs", JINJA_USES_KWARGS},
                   {"varargs", JINJA_USES_VARARGS}};
    TRY(jinja_expect_name(p, &n->name));
    n->kind = JINJA_N_NAME;
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (strcmp(n->name.p, constants[i].name) != 0)
            continue;
        n->kind = JINJA_N_CONST;
        n->value = constants[i].value < 0 ? jinja_none()
                                          : jinja_bool(constants[i].value);
    }
    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++)
        if (strcmp(n->name.p, special[i].name) == 0)
            p->seen |= special[i].flag;
    return OK;
}

/* Strings next to each other are one string. */
static enum err parse_strings(struct jinja_parser *p, struct jinja_node *n)
{
    n->value = jinja_text("");
    n->value.s.p = p->cur.p;
    n->value.s.n = p->cur.n;
    TRY(jinja_advance(p));
    while (p->cur.type == JINJA_T_STRING) {
        size_t len = n->value.s.n + p->cur.n;
        char *s = arena_alloc(p->arena, len + 1);
        if (s == NULL)
            return err_set(p->m, ERR_NOMEM, "no memory for a chat template");
        memcpy(s, n->value.s.p, n->value.s.n);
        memcpy(s + n->value.s.n, p->cur.p, p->cur.n);
        n->value.s.p = s;
        n->value.s.n = len;
        TRY(jinja_advance(p));
    }
    return OK;
}

static enum err parse_list(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_node **tail = &n->list;
    n->kind = JINJA_N_LIST;
    TRY(jinja_advance(p));
    while (!jinja_at_op(p, "]")) {
        if (tail != &n->list)
            TRY(jinja_expect_op(p, ","));
        if (jinja_at_op(p, "]"))
            break;
        TRY(jinja_parse_expr(p, tail));
        tail = &(*tail)->next;
    }
    return jinja_advance(p);
}

static enum err parse_dict(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_node **tail = &n->list;
    n->kind = JINJA_N_DICT;
    TRY(jinja_advance(p));
    while (!jinja_at_op(p, "}")) {
        if (tail != &n->list)
            TRY(jinja_expect_op(p, ","));
        if (jinja_at_op(p, "}"))
            break;
        struct jinja_node *item;
        TRY(jinja_node_new(p, JINJA_N_PAIR, p->cur.line, &item));
        TRY(jinja_parse_expr(p, &item->a));
        TRY(jinja_expect_op(p, ":"));
        TRY(jinja_parse_expr(p, &item->b));
        TRY(jinja_node_seal(p, item));
        /* A macro may be a member and be called as one. */
        if (item->a->kind == JINJA_N_CONST && item->a->value.type == JINJA_STR)
            item->name =
                (struct jinja_name){item->a->value.s.p, item->a->value.s.n};
        TRY(jinja_note(p, &p->names, item));
        *tail = item;
        tail = &item->next;
    }
    return jinja_advance(p);
}

static enum err parse_primary(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *n;
    TRY(jinja_node_new(p, JINJA_N_CONST, p->cur.line, &n));
    *out = n;
    if (p->cur.type == JINJA_T_NAME) {
        TRY(parse_name(p, n));
    } else if (p->cur.type == JINJA_T_STRING) {
        TRY(parse_strings(p, n));
    } else if (p->cur.type == JINJA_T_INT) {
        n->value = jinja_int(p->cur.i, JINJA_FROM_TEMPLATE);
        TRY(jinja_advance(p));
    } else if (p->cur.type == JINJA_T_FLOAT) {
        n->value = jinja_float(p->cur.f, JINJA_FROM_TEMPLATE);
        TRY(jinja_advance(p));
    } else if (jinja_at_op(p, "(")) {
        TRY(jinja_advance(p));
        TRY(jinja_parse_items(p, jinja_parse_expr, NULL, true, out));
        return jinja_expect_op(p, ")");
    } else if (jinja_at_op(p, "[")) {
        TRY(parse_list(p, n));
    } else if (jinja_at_op(p, "{")) {
        TRY(parse_dict(p, n));
    } else if (p->cur.type == JINJA_T_OP) {
        return jinja_syntax(p, p->cur.line, "unexpected '%.*s'", (int)p->cur.n,
                            p->cur.p);
    } else {
        return jinja_syntax(p, p->cur.line, "expected an expression");
    }
    return jinja_node_seal(p, n);
}

static enum err parse_signed(struct jinja_parser *p, bool with_filter,
                             struct jinja_node **out)
{
    bool neg = jinja_at_op(p, "-");
    if (neg || jinja_at_op(p, "+")) {
        struct jinja_node *n;
        TRY(jinja_node_new(p, neg ? JINJA_N_NEG : JINJA_N_POS, p->cur.line,
                           &n));
        TRY(jinja_advance(p));
        TRY(jinja_deeper(p));
        TRY(parse_signed(p, false, &n->a));
        p->depth--;
        TRY(jinja_node_seal(p, n));
        *out = n;
    } else {
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    return with_filter ? jinja_parse_filters(p, *out, false, out) : OK;
}

enum err jinja_parse_unary(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_signed(p, true, out);
}

/* --- What follows a primary --- */

static enum err slice_part(struct jinja_parser *p, struct jinja_node **out)
{
    if (jinja_at_op(p, ":") || jinja_at_op(p, "]") || jinja_at_op(p, ","))
        return OK;
    return jinja_parse_expr(p, out);
}

static enum err parse_subscribed(struct jinja_parser *p,
                                 struct jinja_node **out)
{
    struct jinja_node *n;
    bool there;
    TRY(jinja_node_new(p, JINJA_N_SLICE, p->cur.line, &n));
    if (!jinja_at_op(p, ":"))
        TRY(jinja_parse_expr(p, &n->a));
    TRY(jinja_skip_op(p, ":", &there));
    if (!there) {
        *out = n->a;
        return OK;
    }
    TRY(slice_part(p, &n->b));
    TRY(jinja_skip_op(p, ":", &there));
    if (there)
        TRY(slice_part(p, &n->c));
    *out = n;
    return jinja_node_seal(p, n);
}

/* [ ... ] behind an expression. */
static enum err parse_subscript(struct jinja_parser *p, struct jinja_node **io)
{
    struct jinja_node *key = NULL, **tail = &key;
    unsigned line = p->cur.line;
    TRY(jinja_advance(p));
    while (!jinja_at_op(p, "]")) {
        if (key != NULL)
            TRY(jinja_expect_op(p, ","));
        TRY(parse_subscribed(p, tail));
        tail = &(*tail)->next;
    }
    if (key == NULL || key->next != NULL) {
        struct jinja_node *tuple;
        for (const struct jinja_node *k = key; k != NULL; k = k->next)
            if (k->kind == JINJA_N_SLICE)
                return jinja_syntax(p, line, "a slice of several dimensions");
        TRY(jinja_node_new(p, JINJA_N_TUPLE, line, &tuple));
        tuple->list = key;
        TRY(jinja_node_seal(p, tuple));
        key = tuple;
    }
    TRY(jinja_advance(p));
    return jinja_node_pair(p, JINJA_N_GETITEM, JINJA_OP_ADD, line, io, key);
}

static enum err parse_attribute(struct jinja_parser *p, struct jinja_node **io)
{
    unsigned line = p->cur.line;
    struct jinja_node *n;
    TRY(jinja_advance(p));
    if (p->cur.type == JINJA_T_INT) {
        TRY(jinja_node_new(p, JINJA_N_CONST, line, &n));
        n->value = jinja_int(p->cur.i, JINJA_FROM_TEMPLATE);
        TRY(jinja_node_seal(p, n));
        TRY(jinja_advance(p));
        return jinja_node_pair(p, JINJA_N_GETITEM, JINJA_OP_ADD, line, io, n);
    }
    TRY(jinja_node_new(p, JINJA_N_GETATTR, line, &n));
    TRY(jinja_expect_name(p, &n->name));
    n->a = *io;
    *io = n;
    return jinja_node_seal(p, n);
}

static enum err parse_arg(struct jinja_parser *p, struct jinja_node **out,
                          enum jinja_kind *latest)
{
    const struct jinja_token *next;
    enum jinja_kind kind = JINJA_N_CONST; /* stands for: by position */
    if (jinja_at_op(p, "*"))
        kind = JINJA_N_STAR;
    else if (jinja_at_op(p, "**"))
        kind = JINJA_N_STARSTAR;
    else if (p->cur.type == JINJA_T_NAME) {
        TRY(jinja_peek(p, &next));
        if (next->type == JINJA_T_OP && next->n == 1 && next->p[0] == '=')
            kind = JINJA_N_KWARG;
    }
    if (*latest == JINJA_N_STARSTAR ||
        (*latest != JINJA_N_CONST && kind == JINJA_N_CONST) ||
        (*latest == JINJA_N_STAR && kind == JINJA_N_STAR))
        return jinja_syntax(p, p->cur.line, "arguments in the wrong order");
    /* The reference takes a keyword in front of *args; a later positional
     * argument is still wrong. */
    *latest = kind;
    if (kind == JINJA_N_CONST)
        return jinja_parse_expr(p, out);
    TRY(jinja_node_new(p, kind, p->cur.line, out));
    if (kind == JINJA_N_KWARG) {
        TRY(jinja_expect_name(p, &(*out)->name));
        TRY(jinja_note(p, &p->names, *out));
    }
    TRY(jinja_advance(p));
    TRY(jinja_parse_expr(p, &(*out)->a));
    return jinja_node_seal(p, *out);
}

/* ( ... ) with arguments. */
static enum err parse_args(struct jinja_parser *p, struct jinja_node **list)
{
    struct jinja_node **tail = list;
    enum jinja_kind latest = JINJA_N_CONST;
    TRY(jinja_expect_op(p, "("));
    while (!jinja_at_op(p, ")")) {
        if (tail != list)
            TRY(jinja_expect_op(p, ","));
        if (jinja_at_op(p, ")"))
            break;
        TRY(parse_arg(p, tail, &latest));
        tail = &(*tail)->next;
    }
    return jinja_advance(p);
}

static enum err parse_call(struct jinja_parser *p, struct jinja_node **io)
{
    struct jinja_node *n;
    TRY(jinja_node_new(p, JINJA_N_CALL, p->cur.line, &n));
    n->a = *io;
    TRY(parse_args(p, &n->list));
    TRY(jinja_note(p, &p->calls, n));
    *io = n;
    return jinja_node_seal(p, n);
}

static enum err parse_postfix(struct jinja_parser *p, struct jinja_node **io)
{
    for (;;) {
        if (jinja_at_op(p, "."))
            TRY(parse_attribute(p, io));
        else if (jinja_at_op(p, "["))
            TRY(parse_subscript(p, io));
        else if (jinja_at_op(p, "("))
            TRY(parse_call(p, io));
        else
            return OK;
    }
}

/* --- Filters and tests --- */

static enum err parse_filter(struct jinja_parser *p, struct jinja_node **io)
{
    struct jinja_node *n;
    TRY(jinja_node_new(p, JINJA_N_FILTER, p->cur.line, &n));
    TRY(jinja_expect_name(p, &n->name));
    n->builtin = jinja_find_filter(n->name.p, n->name.n);
    if (n->builtin == NULL)
        return jinja_unknown(p, n->line, "filter", n->name.p, n->name.n);
    if (jinja_at_op(p, "("))
        TRY(parse_args(p, &n->list));
    n->a = *io;
    *io = n;
    return jinja_node_seal(p, n);
}

/* Is the token the beginning of an argument without brackets, as in
 * `x is divisibleby 3`? */
static bool starts_test_arg(const struct jinja_parser *p)
{
    switch (p->cur.type) {
    case JINJA_T_NAME:
        return !jinja_at_name(p, "else") && !jinja_at_name(p, "or") &&
               !jinja_at_name(p, "and");
    case JINJA_T_STRING:
    case JINJA_T_INT:
    case JINJA_T_FLOAT:
        return true;
    default:
        return jinja_at_op(p, "[") || jinja_at_op(p, "{");
    }
}

static enum err parse_test(struct jinja_parser *p, struct jinja_node **io)
{
    struct jinja_node *n;
    bool negated;
    TRY(jinja_node_new(p, JINJA_N_TEST, p->cur.line, &n));
    TRY(jinja_advance(p));
    TRY(jinja_skip_name(p, "not", &negated));
    TRY(jinja_expect_name(p, &n->name));
    n->builtin = jinja_find_test(n->name.p, n->name.n);
    if (n->builtin == NULL)
        return jinja_unknown(p, n->line, "test", n->name.p, n->name.n);
    n->a = *io;
    if (jinja_at_op(p, "(")) {
        TRY(parse_args(p, &n->list));
    } else if (starts_test_arg(p)) {
        if (jinja_at_name(p, "is"))
            return jinja_syntax(p, n->line, "tests cannot be chained");
        TRY(jinja_deeper(p));
        TRY(parse_primary(p, &n->list));
        TRY(parse_postfix(p, &n->list));
        p->depth--;
    }
    if (strcmp(n->name.p, "defined") == 0 ||
        strcmp(n->name.p, "undefined") == 0)
        TRY(jinja_note(p, &p->names, n->a)); /* a call of it is guarded */
    TRY(jinja_node_seal(p, n));
    *io = n;
    return negated ? jinja_node_pair(p, JINJA_N_NOT, JINJA_OP_ADD, n->line, io,
                                     NULL)
                   : OK;
}

enum err jinja_parse_filters(struct jinja_parser *p, struct jinja_node *inner,
                             bool at_name, struct jinja_node **out)
{
    bool block = inner == NULL;
    *out = inner;
    for (;;) {
        bool pipe = false;
        if (!at_name)
            TRY(jinja_skip_op(p, "|", &pipe));
        if (pipe || at_name)
            TRY(parse_filter(p, out));
        else if (!block && jinja_at_name(p, "is"))
            TRY(parse_test(p, out));
        else if (!block && jinja_at_op(p, "("))
            TRY(parse_call(p, out));
        else
            return OK;
        at_name = false;
    }
}
