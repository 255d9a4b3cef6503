/* jinja_ast.h - tokens and the tree that a template is parsed into.
 *
 * All of it lives in the arena of the template. Only for the files of the
 * module jinja. Threads: nothing changes after jinja_parse().
 */
#ifndef RUNTIME_TEXT_JINJA_AST_H
#define RUNTIME_TEXT_JINJA_AST_H

#include "base/arena.h"
#include "base/err.h"
#include "runtime/text/jinja_value.h"

enum jinja_token_type {
    JINJA_T_EOF,
    JINJA_T_DATA, /* text outside of tags */
    JINJA_T_VAR_BEGIN,
    JINJA_T_VAR_END,
    JINJA_T_BLOCK_BEGIN,
    JINJA_T_BLOCK_END,
    JINJA_T_NAME,
    JINJA_T_STRING,
    JINJA_T_INT,
    JINJA_T_FLOAT,
    JINJA_T_OP /* p[0..n) is the operator */
};

struct jinja_token {
    enum jinja_token_type type;
    unsigned line;
    const char *p;
    size_t n;
    int64_t i; /* JINJA_T_INT */
    double f;  /* JINJA_T_FLOAT */
};

enum { JINJA_QUEUE = 3 };

struct jinja_lexer {
    const char *s; /* newlines are \n; one at the end is gone */
    size_t n, pos;
    unsigned line;
    bool line_starting; /* what was read last ended in a newline */
    enum { JINJA_IN_TEXT, JINJA_IN_VAR, JINJA_IN_BLOCK } state;
    char open[JINJA_NEST_MAX]; /* brackets */
    unsigned n_open;
    struct jinja_token queue[JINJA_QUEUE]; /* read, not handed out yet */
    unsigned n_queue;
    struct arena *arena;
    struct errmsg *m;
};

/* Makes the lexer's own copy of the source. */
MUST_CHECK enum err jinja_lex_init(struct jinja_lexer *lx, struct arena *a,
                                   const char *source, size_t n,
                                   struct errmsg *m);
MUST_CHECK enum err jinja_lex_next(struct jinja_lexer *lx,
                                   struct jinja_token *out);
/* The value of a string literal: lit[0..n) is what stands between the
 * quotes. */
MUST_CHECK enum err jinja_unescape(struct jinja_lexer *lx, const char *lit,
                                   size_t n, struct jinja_token *out);

enum jinja_kind {
    /* Expressions: what is in a, b, c, list. */
    JINJA_N_CONST,    /* value */
    JINJA_N_NAME,     /* name */
    JINJA_N_LIST,     /* list */
    JINJA_N_TUPLE,    /* list */
    JINJA_N_DICT,     /* list of PAIR */
    JINJA_N_PAIR,     /* a: key, b: value */
    JINJA_N_GETATTR,  /* a . name */
    JINJA_N_GETITEM,  /* a [ b ] */
    JINJA_N_SLICE,    /* a : b : c, each may be NULL; only as b of GETITEM */
    JINJA_N_CALL,     /* a ( list ) */
    JINJA_N_KWARG,    /* in a list of arguments: name = a */
    JINJA_N_STAR,     /* * a */
    JINJA_N_STARSTAR, /* ** a */
    JINJA_N_FILTER,   /* a | builtin ( list ); a NULL: the text of a block */
    JINJA_N_TEST,     /* a is builtin ( list ) */
    JINJA_N_NOT,      /* a */
    JINJA_N_NEG,      /* a */
    JINJA_N_POS,      /* a */
    JINJA_N_BINARY,   /* a op b */
    JINJA_N_AND,      /* a, b */
    JINJA_N_OR,       /* a, b */
    JINJA_N_CONCAT,   /* list */
    JINJA_N_COMPARE,  /* a, list of OPERAND */
    JINJA_N_OPERAND,  /* op a */
    JINJA_N_COND,     /* a if b else c; c may be NULL */
    JINJA_N_NSREF,    /* target of set: name . attr (in value) */
    /* Statements. */
    JINJA_N_TEXT,  /* value */
    JINJA_N_PRINT, /* a */
    JINJA_N_FOR,   /* a: target, b: what, c: condition or NULL, list, other */
    JINJA_N_IF,    /* a: condition, list, c: next elif or NULL, other: else */
    JINJA_N_SET,   /* a: target, b: value */
    JINJA_N_SET_BLOCK,    /* a: target, b: filters or NULL, list */
    JINJA_N_FILTER_BLOCK, /* b: filters, list */
    JINJA_N_MACRO,        /* name, params, list */
    JINJA_N_CALL_BLOCK,   /* a: call, params, list */
    JINJA_N_WITH,         /* other: list of SET, list */
    JINJA_N_SCOPE,        /* list, with variables of its own */
    JINJA_N_BREAK,
    JINJA_N_CONTINUE
};

enum jinja_op {
    JINJA_OP_ADD,
    JINJA_OP_SUB,
    JINJA_OP_MUL,
    JINJA_OP_DIV,
    JINJA_OP_FLOORDIV,
    JINJA_OP_MOD,
    JINJA_OP_POW,
    JINJA_OP_EQ,
    JINJA_OP_NE,
    JINJA_OP_LT,
    JINJA_OP_LE,
    JINJA_OP_GT,
    JINJA_OP_GE,
    JINJA_OP_IN,
    JINJA_OP_NOT_IN
};

struct jinja_name {
    const char *p; /* terminated too */
    size_t n;
};

enum {                        /* jinja_node.flags */
       JINJA_HAS_CLOSURE = 1, /* a loop whose body defines a macro */
       JINJA_USES_CALLER = 2, /* a macro that mentions these names */
       JINJA_USES_KWARGS = 4,
       JINJA_USES_VARARGS = 8
};

struct jinja_node {
    uint8_t kind; /* enum jinja_kind */
    uint8_t op;   /* enum jinja_op */
    uint8_t flags;
    uint16_t height; /* of the tree below; bounded by JINJA_NEST_MAX */
    unsigned line;
    struct jinja_node *next; /* in the list it is part of */
    struct jinja_node *a, *b, *c;
    struct jinja_node *list, *other;
    struct jinja_node *params; /* list of NAME; a: default or NULL */
    struct jinja_name name;
    const struct jinja_builtin *builtin;
    struct jval value;
};

struct jinja_template {
    struct arena arena;
    const char *source; /* as the lexer has it; terminated */
    struct jinja_node *body;
};

/* --- The parser: statements in jinja_parse.c, expressions in
 * jinja_parse_expr.c and jinja_parse_primary.c --- */

/* A name that is used, for the checks after parsing. */
struct jinja_use {
    struct jinja_use *older;
    const struct jinja_node *node;
};

struct jinja_parser {
    struct jinja_lexer lx;
    struct jinja_token cur, ahead;
    bool has_ahead;
    struct arena *arena;
    struct errmsg *m;
    unsigned depth;          /* of the parser's own recursion */
    unsigned n_loops;        /* loops that a break here may leave */
    unsigned n_for;          /* loops around this place, macros or not */
    unsigned n_macros;       /* seen so far, call blocks too */
    uint8_t seen;            /* JINJA_USES_*: names read since it was cleared */
    struct jinja_use *calls; /* CALL nodes */
    struct jinja_use *names; /* what is set, tested or is a parameter */
};

MUST_CHECK enum err jinja_syntax(struct jinja_parser *p, unsigned line,
                                 const char *fmt, ...) PRINTF_LIKE(3, 4);
MUST_CHECK enum err jinja_unknown(struct jinja_parser *p, unsigned line,
                                  const char *what, const char *name, size_t n);
MUST_CHECK enum err jinja_advance(struct jinja_parser *p);
MUST_CHECK enum err jinja_peek(struct jinja_parser *p,
                               const struct jinja_token **out);
bool jinja_at_op(const struct jinja_parser *p, const char *op);
bool jinja_at_name(const struct jinja_parser *p, const char *name);
MUST_CHECK enum err jinja_skip_op(struct jinja_parser *p, const char *op,
                                  bool *was_there);
MUST_CHECK enum err jinja_skip_name(struct jinja_parser *p, const char *name,
                                    bool *was_there);
MUST_CHECK enum err jinja_expect_op(struct jinja_parser *p, const char *op);
MUST_CHECK enum err jinja_expect_name(struct jinja_parser *p,
                                      struct jinja_name *out);
MUST_CHECK enum err jinja_deeper(struct jinja_parser *p);

MUST_CHECK enum err jinja_node_new(struct jinja_parser *p, enum jinja_kind kind,
                                   unsigned line, struct jinja_node **out);
/* Once its children are there: bounds the height of the tree. */
MUST_CHECK enum err jinja_node_seal(struct jinja_parser *p,
                                    struct jinja_node *n);
/* A node with two children; *io becomes its first and then the node. */
MUST_CHECK enum err jinja_node_pair(struct jinja_parser *p,
                                    enum jinja_kind kind, enum jinja_op op,
                                    unsigned line, struct jinja_node **io,
                                    struct jinja_node *b);
MUST_CHECK enum err jinja_note(struct jinja_parser *p, struct jinja_use **list,
                               const struct jinja_node *n);

MUST_CHECK enum err jinja_parse_expr(struct jinja_parser *p,
                                     struct jinja_node **out);
/* with_cond: `x if y` may be part of it. end: a name that ends it, or NULL. */
MUST_CHECK enum err jinja_parse_tuple(struct jinja_parser *p, bool with_cond,
                                      const char *end, struct jinja_node **out);
MUST_CHECK enum err jinja_parse_unary(struct jinja_parser *p,
                                      struct jinja_node **out);
typedef enum err (*jinja_item_fn)(struct jinja_parser *p,
                                  struct jinja_node **out);
/* One item, or a tuple of them where there is a comma. */
MUST_CHECK enum err jinja_parse_items(struct jinja_parser *p,
                                      jinja_item_fn item, const char *end,
                                      bool may_be_empty,
                                      struct jinja_node **out);
MUST_CHECK enum err jinja_parse_target(struct jinja_parser *p,
                                       bool with_namespace, const char *end,
                                       struct jinja_node **out);
/* inner NULL: the filters of a block. Reads `| name(args) | ...`; with
 * at_name the first one's name is next. */
MUST_CHECK enum err jinja_parse_filters(struct jinja_parser *p,
                                        struct jinja_node *inner, bool at_name,
                                        struct jinja_node **out);

/* The names that a template may call without having made them itself. */
const struct jinja_builtin *jinja_find_filter(const char *name, size_t n);
const struct jinja_builtin *jinja_find_test(const char *name, size_t n);
const struct jinja_builtin *jinja_find_global(const char *name, size_t n);
/* Does some type of object have it, even if calling it is refused? */
bool jinja_is_method(const char *name, size_t n);

#endif
