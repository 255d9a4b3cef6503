#include "runtime/text/jinja_ast.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* The tree of a template is at most this many times its source. */
enum { TREE_FACTOR = 400, TREE_BASE = 64 * 1024 };

enum err jinja_syntax(struct jinja_parser *p, unsigned line, const char *fmt,
                      ...)
{
    char text[ERRMSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(p->m, ERR_INVAL, "chat template, line %u: %s", line, text);
}

enum err jinja_unknown(struct jinja_parser *p, unsigned line, const char *what,
                       const char *name, size_t n)
{
    enum { SHOWN = 60 };
    return err_set(p->m, ERR_UNSUPPORTED,
                   "chat template, line %u: unknown %s '%.*s'", line, what,
                   (int)(n < SHOWN ? n : SHOWN), name);
}

/* --- Tokens --- */

enum err jinja_advance(struct jinja_parser *p)
{
    if (!p->has_ahead)
        return jinja_lex_next(&p->lx, &p->cur);
    p->cur = p->ahead;
    p->has_ahead = false;
    return OK;
}

enum err jinja_peek(struct jinja_parser *p, const struct jinja_token **out)
{
    if (!p->has_ahead)
        TRY(jinja_lex_next(&p->lx, &p->ahead));
    p->has_ahead = true;
    *out = &p->ahead;
    return OK;
}

static bool is_token(const struct jinja_token *t, enum jinja_token_type type,
                     const char *text)
{
    return t->type == type && t->n == strlen(text) &&
           memcmp(t->p, text, t->n) == 0;
}

bool jinja_at_op(const struct jinja_parser *p, const char *op)
{
    return is_token(&p->cur, JINJA_T_OP, op);
}

bool jinja_at_name(const struct jinja_parser *p, const char *name)
{
    return is_token(&p->cur, JINJA_T_NAME, name);
}

enum err jinja_skip_op(struct jinja_parser *p, const char *op, bool *was_there)
{
    *was_there = jinja_at_op(p, op);
    return *was_there ? jinja_advance(p) : OK;
}

enum err jinja_skip_name(struct jinja_parser *p, const char *name,
                         bool *was_there)
{
    *was_there = jinja_at_name(p, name);
    return *was_there ? jinja_advance(p) : OK;
}

static enum err unexpected(struct jinja_parser *p, const char *wanted)
{
    static const char *const names[] = {[JINJA_T_EOF] =
                                            "the end of the template",
                                        [JINJA_T_DATA] = "text",
                                        [JINJA_T_VAR_BEGIN] = "'{{'",
                                        [JINJA_T_VAR_END] = "'}}'",
                                        [JINJA_T_BLOCK_BEGIN] = "'{%'",
                                        [JINJA_T_BLOCK_END] = "'%}'",
                                        [JINJA_T_STRING] = "a string",
                                        [JINJA_T_INT] = "a number",
                                        [JINJA_T_FLOAT] = "a number"};
    const struct jinja_token *t = &p->cur;
    enum { SHOWN = 60 };
    if (t->type == JINJA_T_NAME || t->type == JINJA_T_OP)
        return jinja_syntax(p, t->line, "expected %s, got '%.*s'", wanted,
                            (int)(t->n < SHOWN ? t->n : SHOWN), t->p);
    return jinja_syntax(p, t->line, "expected %s, got %s", wanted,
                        names[t->type]);
}

enum err jinja_expect_op(struct jinja_parser *p, const char *op)
{
    char wanted[8];
    if (jinja_at_op(p, op))
        return jinja_advance(p);
    snprintf(wanted, sizeof(wanted), "'%s'", op);
    return unexpected(p, wanted);
}

enum err jinja_expect_name(struct jinja_parser *p, struct jinja_name *out)
{
    if (p->cur.type != JINJA_T_NAME)
        return unexpected(p, "a name");
    char *copy = arena_strndup(p->arena, p->cur.p, p->cur.n);
    if (copy == NULL)
        return err_set(p->m, ERR_NOMEM, "no memory for a chat template");
    *out = (struct jinja_name){copy, p->cur.n};
    return jinja_advance(p);
}

static enum err expect(struct jinja_parser *p, enum jinja_token_type type,
                       const char *wanted)
{
    return p->cur.type == type ? jinja_advance(p) : unexpected(p, wanted);
}

enum err jinja_deeper(struct jinja_parser *p)
{
    if (p->depth >= JINJA_NEST_MAX)
        return jinja_syntax(p, p->cur.line, "nests deeper than %d levels",
                            (int)JINJA_NEST_MAX);
    p->depth++;
    return OK;
}

/* --- Nodes --- */

enum err jinja_node_new(struct jinja_parser *p, enum jinja_kind kind,
                        unsigned line, struct jinja_node **out)
{
    struct jinja_node *n = arena_alloc(p->arena, sizeof(*n));
    if (n == NULL)
        return err_set(p->m, ERR_NOMEM, "no memory for a chat template");
    n->kind = (uint8_t)kind;
    n->line = line;
    *out = n;
    return OK;
}

static uint16_t tallest(const struct jinja_node *list, uint16_t height)
{
    for (; list != NULL; list = list->next)
        if (list->height > height)
            height = list->height;
    return height;
}

enum err jinja_node_seal(struct jinja_parser *p, struct jinja_node *n)
{
    const struct jinja_node *children[] = {n->a, n->b};
    uint16_t height = 0;
    for (size_t i = 0; i < 2; i++)
        if (children[i] != NULL && children[i]->height > height)
            height = children[i]->height;
    /* The c of an IF is the next elif, which is on the same level. */
    uint16_t level = n->kind == JINJA_N_IF ? 0 : 1;
    if (n->c != NULL && n->c->height + level > height + 1)
        height = (uint16_t)(n->c->height + level - 1);
    height = tallest(n->list, height);
    height = tallest(n->other, height);
    height = tallest(n->params, height);
    n->height = (uint16_t)(height + 1);
    if (n->height > JINJA_NEST_MAX)
        return jinja_syntax(p, n->line, "nests deeper than %d levels",
                            (int)JINJA_NEST_MAX);
    return OK;
}

enum err jinja_note(struct jinja_parser *p, struct jinja_use **list,
                    const struct jinja_node *n)
{
    struct jinja_use *u = arena_alloc(p->arena, sizeof(*u));
    if (u == NULL)
        return err_set(p->m, ERR_NOMEM, "no memory for a chat template");
    *u = (struct jinja_use){*list, n};
    *list = u;
    return OK;
}

/* --- Statements --- */

static enum err parse_body(struct jinja_parser *p, const char *const *ends,
                           struct jinja_node **out);

/* Behind the name and arguments of a tag: its body up to one of the ends,
 * whose name is then the current token. */
static enum err parse_block(struct jinja_parser *p, const char *const *ends,
                            struct jinja_node **out)
{
    bool colon;
    TRY(jinja_skip_op(p, ":", &colon));
    TRY(expect(p, JINJA_T_BLOCK_END, "'%}'"));
    TRY(jinja_deeper(p));
    TRY(parse_body(p, ends, out));
    p->depth--;
    if (p->cur.type == JINJA_T_EOF)
        return jinja_syntax(p, p->cur.line,
                            "the template ends where '%s' is missing", ends[0]);
    return OK;
}

/* The same where there is one end only, which is read too. */
static enum err parse_whole_block(struct jinja_parser *p, const char *end,
                                  struct jinja_node **out)
{
    const char *const ends[] = {end, NULL};
    TRY(parse_block(p, ends, out));
    return jinja_advance(p);
}

static enum err parse_for(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    unsigned n_macros = p->n_macros;
    bool there;
    p->n_for++;
    TRY(jinja_parse_target(p, false, "in", &n->a));
    TRY(jinja_skip_name(p, "in", &there));
    if (!there)
        return unexpected(p, "'in'");
    TRY(jinja_parse_tuple(p, false, "recursive", &n->b));
    TRY(jinja_skip_name(p, "if", &there));
    if (there)
        TRY(jinja_parse_expr(p, &n->c));
    if (jinja_at_name(p, "recursive"))
        return jinja_unknown(p, p->cur.line, "loop modifier", "recursive", 9);
    p->n_loops++;
    TRY(parse_block(p, ends, &n->list));
    p->n_loops--;
    if (jinja_at_name(p, "else")) {
        TRY(jinja_advance(p));
        TRY(parse_whole_block(p, "endfor", &n->other));
    } else {
        TRY(jinja_advance(p));
    }
    p->n_for--;
    if (p->n_macros != n_macros)
        n->flags |= JINJA_HAS_CLOSURE;
    return OK;
}

static enum err parse_if(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    struct jinja_node *branch = n;
    for (;;) {
        TRY(jinja_parse_tuple(p, false, NULL, &branch->a));
        TRY(parse_block(p, ends, &branch->list));
        if (!jinja_at_name(p, "elif"))
            break;
        struct jinja_node *next = NULL;
        TRY(jinja_node_new(p, JINJA_N_IF, p->cur.line, &next));
        TRY(jinja_advance(p));
        branch->c = next;
        branch = next;
    }
    if (jinja_at_name(p, "else")) {
        TRY(jinja_advance(p));
        TRY(parse_whole_block(p, "endif", &n->other));
    } else {
        TRY(jinja_advance(p));
    }
    /* Heights: every branch by itself, and the first the tallest of all. */
    uint16_t height = 0;
    for (branch = n; branch != NULL; branch = branch->c) {
        struct jinja_node *next = branch->c;
        branch->c = NULL;
        TRY(jinja_node_seal(p, branch));
        branch->c = next;
        if (branch->height > height)
            height = branch->height;
    }
    n->height = height;
    return OK;
}

static enum err parse_set(struct jinja_parser *p, struct jinja_node *n)
{
    bool there;
    TRY(jinja_parse_target(p, true, NULL, &n->a));
    TRY(jinja_skip_op(p, "=", &there));
    if (there)
        return jinja_parse_tuple(p, true, NULL, &n->b);
    n->kind = JINJA_N_SET_BLOCK;
    if (jinja_at_op(p, "|"))
        TRY(jinja_parse_filters(p, NULL, false, &n->b));
    return parse_whole_block(p, "endset", &n->list);
}

static enum err parse_params(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_node **tail = &n->params;
    bool defaults = false, there;
    TRY(jinja_expect_op(p, "("));
    while (!jinja_at_op(p, ")")) {
        if (tail != &n->params)
            TRY(jinja_expect_op(p, ","));
        struct jinja_node *param = NULL;
        TRY(jinja_node_new(p, JINJA_N_NAME, p->cur.line, &param));
        TRY(jinja_expect_name(p, &param->name));
        TRY(jinja_note(p, &p->names, param));
        TRY(jinja_skip_op(p, "=", &there));
        if (there)
            TRY(jinja_parse_expr(p, &param->a));
        else if (defaults)
            return jinja_syntax(p, param->line,
                                "a parameter without a default follows one "
                                "with a default");
        defaults |= there;
        TRY(jinja_node_seal(p, param));
        *tail = param;
        tail = &param->next;
    }
    return jinja_advance(p);
}

/* Parameters and body of a macro or call block: no loop around it counts. */
static enum err parse_macro_body(struct jinja_parser *p, const char *end,
                                 struct jinja_node *n)
{
    unsigned n_loops = p->n_loops;
    uint8_t seen = p->seen;
    p->n_loops = 0;
    p->n_macros++;
    p->seen = 0;
    TRY(parse_whole_block(p, end, &n->list));
    n->flags |= p->seen;
    for (const struct jinja_node *c = n->params; c != NULL; c = c->next)
        if ((p->seen & JINJA_USES_CALLER) != 0 && c->a == NULL &&
            strcmp(c->name.p, "caller") == 0)
            return jinja_syntax(p, c->line,
                                "the parameter 'caller' must be "
                                "omitted or have a default");
    p->seen |= seen;
    p->n_loops = n_loops;
    return OK;
}

static enum err parse_macro(struct jinja_parser *p, struct jinja_node *n)
{
    TRY(jinja_expect_name(p, &n->name));
    TRY(jinja_note(p, &p->names, n));
    TRY(parse_params(p, n));
    return parse_macro_body(p, "endmacro", n);
}

static enum err parse_call(struct jinja_parser *p, struct jinja_node *n)
{
    n->name = (struct jinja_name){"caller", 6};
    if (jinja_at_op(p, "("))
        TRY(parse_params(p, n));
    TRY(jinja_parse_expr(p, &n->a));
    if (n->a->kind != JINJA_N_CALL)
        return jinja_syntax(p, n->line, "expected a call");
    return parse_macro_body(p, "endcall", n);
}

static enum err parse_filter(struct jinja_parser *p, struct jinja_node *n)
{
    TRY(jinja_parse_filters(p, NULL, true, &n->b));
    return parse_whole_block(p, "endfilter", &n->list);
}

static enum err parse_with(struct jinja_parser *p, struct jinja_node *n)
{
    struct jinja_node **tail = &n->other;
    while (p->cur.type != JINJA_T_BLOCK_END) {
        struct jinja_node *set = NULL;
        if (tail != &n->other)
            TRY(jinja_expect_op(p, ","));
        TRY(jinja_node_new(p, JINJA_N_SET, p->cur.line, &set));
        TRY(jinja_parse_target(p, false, NULL, &set->a));
        TRY(jinja_expect_op(p, "="));
        TRY(jinja_parse_expr(p, &set->b));
        TRY(jinja_node_seal(p, set));
        *tail = set;
        tail = &set->next;
    }
    return parse_whole_block(p, "endwith", &n->list);
}

/* The training code marks with this tag what the assistant says; for
 * rendering it is a block that keeps its variables. */
static enum err parse_generation(struct jinja_parser *p, struct jinja_node *n)
{
    return parse_macro_body(p, "endgeneration", n);
}

static enum err parse_loop_control(struct jinja_parser *p, struct jinja_node *n)
{
    if (p->n_loops == 0)
        return jinja_syntax(p, n->line, "'%s' outside of a loop",
                            n->kind == JINJA_N_BREAK ? "break" : "continue");
    return OK;
}

static enum err parse_statement(struct jinja_parser *p, struct jinja_node **out)
{
    static const struct {
        const char *name;
        enum jinja_kind kind;
        enum err (*parse)(struct jinja_parser *, struct jinja_node *);
    } tags[] = {{"for", JINJA_N_FOR, parse_for},
                {"if", JINJA_N_IF, parse_if},
                {"set", JINJA_N_SET, parse_set},
                {"macro", JINJA_N_MACRO, parse_macro},
                {"call", JINJA_N_CALL_BLOCK, parse_call},
                {"filter", JINJA_N_FILTER_BLOCK, parse_filter},
                {"with", JINJA_N_WITH, parse_with},
                {"generation", JINJA_N_SCOPE, parse_generation},
                {"break", JINJA_N_BREAK, parse_loop_control},
                {"continue", JINJA_N_CONTINUE, parse_loop_control}};
    if (p->cur.type != JINJA_T_NAME)
        return unexpected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++) {
        if (!jinja_at_name(p, tags[i].name))
            continue;
        TRY(jinja_node_new(p, tags[i].kind, p->cur.line, out));
        TRY(jinja_advance(p));
        TRY(tags[i].parse(p, *out));
        TRY((*out)->kind == JINJA_N_IF ? OK : jinja_node_seal(p, *out));
        return expect(p, JINJA_T_BLOCK_END, "'%}'");
    }
    return jinja_unknown(p, p->cur.line, "tag", p->cur.p, p->cur.n);
}

static enum err parse_text(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(jinja_node_new(p, JINJA_N_TEXT, p->cur.line, out));
    (*out)->value = jinja_text("");
    (*out)->value.s.p = p->cur.p;
    (*out)->value.s.n = p->cur.n;
    return jinja_advance(p);
}

static enum err parse_print(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(jinja_node_new(p, JINJA_N_PRINT, p->cur.line, out));
    TRY(jinja_advance(p));
    TRY(jinja_parse_tuple(p, true, NULL, &(*out)->a));
    TRY(jinja_node_seal(p, *out));
    return expect(p, JINJA_T_VAR_END, "'}}'");
}

static enum err parse_body(struct jinja_parser *p, const char *const *ends,
                           struct jinja_node **out)
{
    struct jinja_node **tail = out;
    *out = NULL;
    while (p->cur.type != JINJA_T_EOF) {
        if (p->cur.type == JINJA_T_DATA) {
            TRY(parse_text(p, tail));
        } else if (p->cur.type == JINJA_T_VAR_BEGIN) {
            TRY(parse_print(p, tail));
        } else {
            TRY(jinja_advance(p)); /* the lexer gives nothing else here */
            for (size_t i = 0; ends != NULL && ends[i] != NULL; i++)
                if (jinja_at_name(p, ends[i]))
                    return OK;
            TRY(parse_statement(p, tail));
        }
        tail = &(*tail)->next;
    }
    return OK;
}

/* --- Checks of names, once all of them are known --- */

static bool is_made(const struct jinja_parser *p, struct jinja_name name)
{
    if (strcmp(name.p, "caller") == 0)
        return true; /* undefined where no call block gives it */
    for (const struct jinja_use *u = p->names; u != NULL; u = u->older)
        if (u->node->name.n == name.n &&
            memcmp(u->node->name.p, name.p, name.n) == 0)
            return true;
    return false;
}

/* A call of what neither we nor the template define would fail at the first
 * chat that reaches it. */
static enum err check_calls(struct jinja_parser *p)
{
    for (const struct jinja_use *u = p->calls; u != NULL; u = u->older) {
        const struct jinja_node *f = u->node->a;
        const char *s = f->name.p;
        size_t n = f->name.n;
        if (f->kind == JINJA_N_NAME && jinja_find_global(s, n) == NULL &&
            !is_made(p, f->name))
            return jinja_unknown(p, f->line, "function", s, n);
        if (f->kind == JINJA_N_GETATTR && !jinja_is_method(s, n) &&
            !is_made(p, f->name))
            return jinja_unknown(p, f->line, "method", s, n);
    }
    return OK;
}

enum err jinja_parse(struct jinja_template **out, const char *source, size_t n,
                     struct errmsg *m)
{
    if (n > JINJA_SOURCE_MAX)
        return err_set(m, ERR_INVAL,
                       "the chat template has %zu bytes; %d are allowed", n,
                       (int)JINJA_SOURCE_MAX);
    if (!utf8_is_valid(source, n))
        return err_set(m, ERR_INVAL, "the chat template is not UTF-8");
    struct jinja_template *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return err_set(m, ERR_NOMEM, "no memory for a chat template");
    arena_init(&t->arena, TREE_BASE + n * TREE_FACTOR);
    struct jinja_parser p = {.arena = &t->arena, .m = m};
    enum err rc = jinja_lex_init(&p.lx, &t->arena, source, n, m);
    if (rc == OK)
        rc = jinja_advance(&p);
    if (rc == OK)
        rc = parse_body(&p, NULL, &t->body);
    if (rc == OK)
        rc = check_calls(&p);
    if (rc != OK) {
        jinja_free(t);
        return rc;
    }
    t->source = p.lx.s;
    *out = t;
    return OK;
}

void jinja_free(struct jinja_template *t)
{
    if (t == NULL)
        return;
    arena_fini(&t->arena);
    free(t);
}

bool jinja_mentions(const struct jinja_template *t, const char *word)
{
    return strstr(t->source, word) != NULL;
}
