#include "runtime/text/jinja_ast.h"

#include <string.h>

/* The grammar is that of the reference, rule by rule; each function reads one
 * level of it, the loosest binding first:
 *
 *     cond    or [if or [else cond]]
 *     or, and, not
 *     compare sum ((== | != | < | <= | > | >= | in | not in) sum)*
 *     sum     concat ((+ | -) concat)*
 *     concat  product (~ product)*
 *     product power ((* | / | // | %) power)*
 *     power   unary (** unary)*          (from the left, unlike Python)
 *     unary   (- | +) unary | primary, then postfix, then filters and tests
 *             (jinja_parse_primary.c)
 */

static enum err parse_cond(struct jinja_parser *p, struct jinja_node **out);

enum err jinja_parse_expr(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(jinja_deeper(p));
    TRY(parse_cond(p, out));
    p->depth--;
    return OK;
}

enum err jinja_node_pair(struct jinja_parser *p, enum jinja_kind kind,
                         enum jinja_op op, unsigned line,
                         struct jinja_node **io, struct jinja_node *b)
{
    struct jinja_node *n;
    TRY(jinja_node_new(p, kind, line, &n));
    n->op = (uint8_t)op;
    n->a = *io;
    n->b = b;
    *io = n;
    return jinja_node_seal(p, n);
}

/* --- Operators --- */

struct op_token {
    const char *text;
    enum jinja_op op;
};

static bool find_op(const struct jinja_parser *p, const struct op_token *ops,
                    size_t n, enum jinja_op *out)
{
    for (size_t i = 0; i < n; i++) {
        if (jinja_at_op(p, ops[i].text)) {
            *out = ops[i].op;
            return true;
        }
    }
    return false;
}

static enum err parse_power(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(jinja_parse_unary(p, out));
    while (jinja_at_op(p, "**")) {
        unsigned line = p->cur.line;
        struct jinja_node *right;
        TRY(jinja_advance(p));
        TRY(jinja_parse_unary(p, &right));
        TRY(jinja_node_pair(p, JINJA_N_BINARY, JINJA_OP_POW, line, out, right));
    }
    return OK;
}

static enum err parse_product(struct jinja_parser *p, struct jinja_node **out)
{
    static const struct op_token ops[] = {{"*", JINJA_OP_MUL},
                                          {"/", JINJA_OP_DIV},
                                          {"//", JINJA_OP_FLOORDIV},
                                          {"%", JINJA_OP_MOD}};
    enum jinja_op op;
    TRY(parse_power(p, out));
    while (find_op(p, ops, sizeof(ops) / sizeof(ops[0]), &op)) {
        unsigned line = p->cur.line;
        struct jinja_node *right;
        TRY(jinja_advance(p));
        TRY(parse_power(p, &right));
        TRY(jinja_node_pair(p, JINJA_N_BINARY, op, line, out, right));
    }
    return OK;
}

static enum err parse_concat(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(parse_product(p, out));
    if (!jinja_at_op(p, "~"))
        return OK;
    struct jinja_node *n;
    TRY(jinja_node_new(p, JINJA_N_CONCAT, p->cur.line, &n));
    n->list = *out;
    struct jinja_node *tail = *out;
    while (jinja_at_op(p, "~")) {
        TRY(jinja_advance(p));
        TRY(parse_product(p, &tail->next));
        tail = tail->next;
    }
    *out = n;
    return jinja_node_seal(p, n);
}

static enum err parse_sum(struct jinja_parser *p, struct jinja_node **out)
{
    static const struct op_token ops[] = {{"+", JINJA_OP_ADD},
                                          {"-", JINJA_OP_SUB}};
    enum jinja_op op;
    TRY(parse_concat(p, out));
    while (find_op(p, ops, sizeof(ops) / sizeof(ops[0]), &op)) {
        unsigned line = p->cur.line;
        struct jinja_node *right;
        TRY(jinja_advance(p));
        TRY(parse_concat(p, &right));
        TRY(jinja_node_pair(p, JINJA_N_BINARY, op, line, out, right));
    }
    return OK;
}

/* Reads a comparison operator if there is one. */
static enum err compare_op(struct jinja_parser *p, enum jinja_op *op,
                           bool *there)
{
    static const struct op_token ops[] = {
        {"==", JINJA_OP_EQ}, {"!=", JINJA_OP_NE}, {"<", JINJA_OP_LT},
        {"<=", JINJA_OP_LE}, {">", JINJA_OP_GT},  {">=", JINJA_OP_GE}};
    *there = find_op(p, ops, sizeof(ops) / sizeof(ops[0]), op);
    if (*there)
        return jinja_advance(p);
    *op = JINJA_OP_IN;
    TRY(jinja_skip_name(p, "in", there));
    if (*there || !jinja_at_name(p, "not"))
        return OK;
    const struct jinja_token *next;
    TRY(jinja_peek(p, &next));
    *there = next->type == JINJA_T_NAME && next->n == 2 &&
             memcmp(next->p, "in", 2) == 0;
    if (!*there)
        return OK;
    *op = JINJA_OP_NOT_IN;
    TRY(jinja_advance(p));
    return jinja_advance(p);
}

static enum err parse_compare(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *n = NULL, **tail = NULL;
    TRY(parse_sum(p, out));
    for (;;) {
        unsigned line = p->cur.line;
        enum jinja_op op;
        bool there;
        TRY(compare_op(p, &op, &there));
        if (!there)
            break;
        if (n == NULL) {
            TRY(jinja_node_new(p, JINJA_N_COMPARE, line, &n));
            n->a = *out;
            tail = &n->list;
        }
        TRY(jinja_node_new(p, JINJA_N_OPERAND, line, tail));
        (*tail)->op = (uint8_t)op;
        TRY(parse_sum(p, &(*tail)->a));
        TRY(jinja_node_seal(p, *tail));
        tail = &(*tail)->next;
    }
    if (n == NULL)
        return OK;
    *out = n;
    return jinja_node_seal(p, n);
}

static enum err parse_not(struct jinja_parser *p, struct jinja_node **out)
{
    if (!jinja_at_name(p, "not"))
        return parse_compare(p, out);
    struct jinja_node *n;
    TRY(jinja_node_new(p, JINJA_N_NOT, p->cur.line, &n));
    TRY(jinja_advance(p));
    TRY(jinja_deeper(p));
    TRY(parse_not(p, &n->a));
    p->depth--;
    *out = n;
    return jinja_node_seal(p, n);
}

static enum err parse_and(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(parse_not(p, out));
    while (jinja_at_name(p, "and")) {
        unsigned line = p->cur.line;
        struct jinja_node *right;
        TRY(jinja_advance(p));
        TRY(parse_not(p, &right));
        TRY(jinja_node_pair(p, JINJA_N_AND, JINJA_OP_ADD, line, out, right));
    }
    return OK;
}

static enum err parse_or(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(parse_and(p, out));
    while (jinja_at_name(p, "or")) {
        unsigned line = p->cur.line;
        struct jinja_node *right;
        TRY(jinja_advance(p));
        TRY(parse_and(p, &right));
        TRY(jinja_node_pair(p, JINJA_N_OR, JINJA_OP_ADD, line, out, right));
    }
    return OK;
}

static enum err parse_cond(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(parse_or(p, out));
    while (jinja_at_name(p, "if")) {
        struct jinja_node *n;
        bool there;
        TRY(jinja_node_new(p, JINJA_N_COND, p->cur.line, &n));
        TRY(jinja_advance(p));
        n->b = *out;
        TRY(parse_or(p, &n->a));
        TRY(jinja_skip_name(p, "else", &there));
        if (there)
            TRY(jinja_parse_expr(p, &n->c));
        TRY(jinja_node_seal(p, n));
        *out = n;
    }
    return OK;
}

/* --- Lists of expressions --- */

static bool at_tuple_end(const struct jinja_parser *p, const char *end)
{
    return p->cur.type == JINJA_T_VAR_END || p->cur.type == JINJA_T_BLOCK_END ||
           jinja_at_op(p, ")") || (end != NULL && jinja_at_name(p, end));
}

enum err jinja_parse_items(struct jinja_parser *p, jinja_item_fn item,
                           const char *end, bool may_be_empty,
                           struct jinja_node **out)
{
    struct jinja_node *list = NULL, **tail = &list;
    unsigned line = p->cur.line;
    bool comma = false;
    while (!at_tuple_end(p, end)) {
        TRY(item(p, tail));
        tail = &(*tail)->next;
        bool more;
        TRY(jinja_skip_op(p, ",", &more));
        comma |= more;
        if (!more)
            break;
    }
    if (list != NULL && !comma) {
        *out = list;
        return OK;
    }
    if (list == NULL && !may_be_empty)
        return jinja_syntax(p, line, "expected an expression");
    TRY(jinja_node_new(p, JINJA_N_TUPLE, line, out));
    (*out)->list = list;
    return jinja_node_seal(p, *out);
}

static enum err parse_plain(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(jinja_deeper(p));
    TRY(parse_or(p, out));
    p->depth--;
    return OK;
}

enum err jinja_parse_tuple(struct jinja_parser *p, bool with_cond,
                           const char *end, struct jinja_node **out)
{
    return jinja_parse_items(p, with_cond ? jinja_parse_expr : parse_plain, end,
                             false, out);
}

static enum err check_target_name(struct jinja_parser *p,
                                  const struct jinja_node *n)
{
    static const char *const constants[] = {"true", "false", "none",
                                            "True", "False", "None"};
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
        if (strcmp(n->name.p, constants[i]) == 0)
            return jinja_syntax(p, n->line, "cannot assign to '%s'", n->name.p);
    if (p->n_for > 0 && strcmp(n->name.p, "loop") == 0)
        return jinja_syntax(p, n->line, "cannot assign to 'loop' in a loop");
    return jinja_note(p, &p->names, n);
}

static enum err parse_target_item(struct jinja_parser *p, bool with_namespace,
                                  struct jinja_node **out);

static enum err parse_name_target(struct jinja_parser *p,
                                  struct jinja_node **out)
{
    return parse_target_item(p, false, out);
}

static enum err parse_ns_target(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_target_item(p, true, out);
}

static enum err parse_target_item(struct jinja_parser *p, bool with_namespace,
                                  struct jinja_node **out)
{
    bool there;
    TRY(jinja_skip_op(p, "(", &there));
    if (there) {
        TRY(jinja_deeper(p));
        TRY(jinja_parse_items(p, parse_name_target, NULL, true, out));
        p->depth--;
        return jinja_expect_op(p, ")");
    }
    TRY(jinja_node_new(p, JINJA_N_NAME, p->cur.line, out));
    TRY(jinja_expect_name(p, &(*out)->name));
    if (with_namespace)
        TRY(jinja_skip_op(p, ".", &there));
    if (there) {
        struct jinja_node *attr;
        TRY(jinja_node_new(p, JINJA_N_NAME, p->cur.line, &attr));
        TRY(jinja_expect_name(p, &attr->name));
        TRY(jinja_note(p, &p->names, attr));
        (*out)->kind = JINJA_N_NSREF;
        (*out)->value = jinja_text(attr->name.p);
    } else {
        TRY(check_target_name(p, *out));
    }
    return jinja_node_seal(p, *out);
}

enum err jinja_parse_target(struct jinja_parser *p, bool with_namespace,
                            const char *end, struct jinja_node **out)
{
    return jinja_parse_items(
        p, with_namespace ? parse_ns_target : parse_name_target, end, false,
        out);
}
