#include <string.h>

#include "runtime/text/jinja_eval.h"

static enum err eval_list(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jval *out)
{
    struct jinja_seq *seq;
    size_t count = 0, i = 0;
    for (const struct jinja_node *c = n->list; c != NULL; c = c->next)
        count++;
    TRY(jinja_seq_new(
        r, count, n->kind == JINJA_N_LIST ? JINJA_LIST : JINJA_TUPLE, &seq));
    for (const struct jinja_node *c = n->list; c != NULL; c = c->next)
        TRY(jinja_eval(r, s, c, &seq->items[i++]));
    *out = jinja_of_seq(seq, JINJA_FROM_TEMPLATE);
    return OK;
}

static enum err eval_dict(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jval *out)
{
    struct jinja_dict *d;
    TRY(jinja_dict_new(r, 0, &d));
    for (const struct jinja_node *c = n->list; c != NULL; c = c->next) {
        struct jval key, value;
        TRY(jinja_eval(r, s, c->a, &key));
        TRY(jinja_eval(r, s, c->b, &value));
        TRY(jinja_dict_put(r, d, &key, &value));
    }
    *out = (struct jval){.type = JINJA_DICT, .dict = d};
    return OK;
}

static enum err eval_name(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jval *out)
{
    const struct jval *v;
    TRY(jinja_scope_get(r, s, n->name, &v));
    if (v != NULL && v->type != JINJA_MISSING) {
        *out = *v;
        return OK;
    }
    const struct jinja_builtin *b = jinja_find_global(n->name.p, n->name.n);
    if (b != NULL)
        return jinja_func_new(r, b, NULL, out);
    static const char tail[] = "' is undefined";
    char *hint;
    TRY(jinja_alloc(r, &hint, n->name.n + 1 + sizeof(tail), 1));
    hint[0] = '\'';
    memcpy(hint + 1, n->name.p, n->name.n);
    memcpy(hint + 1 + n->name.n, tail, sizeof(tail));
    *out = jinja_undefined(hint);
    return OK;
}

static enum err eval_slice(struct jinja_run *r, struct jinja_scope *s,
                           const struct jinja_node *n, const struct jval *v,
                           struct jval *out)
{
    const struct jinja_node *const parts[] = {n->a, n->b, n->c};
    struct jval bound[3] = {{.type = JINJA_MISSING},
                            {.type = JINJA_MISSING},
                            {.type = JINJA_MISSING}};
    for (size_t i = 0; i < 3; i++)
        if (parts[i] != NULL)
            TRY(jinja_eval(r, s, parts[i], &bound[i]));
    if (jinja_is_undefined(v))
        return jinja_use_undefined(r, v);
    if (v->type == JINJA_STR ||
        (v->type == JINJA_SEQ && v->seq->kind <= JINJA_RANGE))
        return jinja_slice(r, v, bound, out);
    return jinja_fail(r, "'%s' object cannot be sliced", jinja_type_name(v));
}

static enum err eval_getitem(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *n, struct jval *out)
{
    struct jval v, key;
    TRY(jinja_eval(r, s, n->a, &v));
    if (n->b->kind == JINJA_N_SLICE)
        return eval_slice(r, s, n->b, &v, out);
    TRY(jinja_eval(r, s, n->b, &key));
    return jinja_getitem(r, &v, &key, out);
}

/* --- Arguments --- */

static enum err add_kwarg(struct jinja_run *r, struct jinja_args *args,
                          size_t *cap, struct jinja_kwarg kw)
{
    struct jinja_kwarg *all;
    for (size_t i = 0; i < args->n_kw; i++)
        if (args->kw[i].n == kw.n &&
            memcmp(args->kw[i].name, kw.name, kw.n) == 0)
            return jinja_fail(r, "an argument is given twice");
    TRY(jinja_step(r, 1 + args->n_kw / 8));
    if (args->n_kw == *cap) {
        *cap = *cap == 0 ? 4 : 2 * *cap;
        TRY(jinja_alloc(r, &all, *cap, sizeof(*all)));
        if (args->n_kw > 0)
            memcpy(all, args->kw, args->n_kw * sizeof(*all));
        args->kw = all;
    }
    all = (struct jinja_kwarg *)args->kw;
    all[args->n_kw++] = kw;
    return OK;
}

static enum err add_star_star(struct jinja_run *r, struct jinja_args *args,
                              size_t *cap, const struct jval *v)
{
    if (v->type != JINJA_DICT)
        return jinja_fail(r, "** needs an object, not '%s'",
                          jinja_type_name(v));
    for (size_t i = 0; i < v->dict->n; i++) {
        const struct jinja_entry *e = &v->dict->entries[i];
        if (e->key.type != JINJA_STR)
            return jinja_fail(r, "keywords must be strings");
        TRY(add_kwarg(r, args, cap,
                      (struct jinja_kwarg){e->key.s.p, e->key.s.n, e->value,
                                           e->key.origin}));
    }
    return OK;
}

enum err jinja_eval_args(struct jinja_run *r, struct jinja_scope *s,
                         const struct jinja_node *list, struct jinja_args *out)
{
    struct jinja_list pos = {0}, more;
    size_t cap = 0;
    *out = (struct jinja_args){0};
    for (const struct jinja_node *c = list; c != NULL; c = c->next) {
        struct jval v;
        bool named = c->kind == JINJA_N_KWARG || c->kind == JINJA_N_STAR ||
                     c->kind == JINJA_N_STARSTAR;
        TRY(jinja_eval(r, s, named ? c->a : c, &v));
        if (c->kind == JINJA_N_KWARG) {
            TRY(add_kwarg(
                r, out, &cap,
                (struct jinja_kwarg){c->name.p, c->name.n, v, false}));
        } else if (c->kind == JINJA_N_STARSTAR) {
            TRY(add_star_star(r, out, &cap, &v));
        } else if (c->kind == JINJA_N_STAR) {
            TRY(jinja_collect(r, v, &more));
            for (size_t i = 0; i < more.n; i++)
                TRY(jinja_list_add(r, &pos, more.items[i]));
        } else {
            TRY(jinja_list_add(r, &pos, v));
        }
    }
    out->v = pos.items;
    out->n = pos.n;
    return OK;
}

static enum err eval_call(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jval *out)
{
    struct jval callee;
    struct jinja_args args;
    TRY(jinja_eval(r, s, n->a, &callee));
    TRY(jinja_eval_args(r, s, n->list, &args));
    r->line = n->line;
    return jinja_call(r, &callee, &args, out);
}

enum err jinja_eval_filters(struct jinja_run *r, struct jinja_scope *s,
                            const struct jinja_node *n, const struct jval *text,
                            struct jval *out)
{
    struct jval input = *text;
    struct jinja_args args;
    if (n->a != NULL && n->a->kind == JINJA_N_FILTER) {
        TRY(jinja_enter(r));
        enum err rc = jinja_eval_filters(r, s, n->a, text, &input);
        r->depth--;
        TRY(rc);
    }
    TRY(jinja_eval_args(r, s, n->list, &args));
    r->line = n->line;
    return n->builtin->fn(r, &input, &args, out);
}

static enum err eval_builtin(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *n, struct jval *out)
{
    struct jval input;
    struct jinja_args args;
    TRY(jinja_eval(r, s, n->a, &input));
    TRY(jinja_eval_args(r, s, n->list, &args));
    r->line = n->line;
    return n->builtin->fn(r, &input, &args, out);
}

/* --- Operators --- */

static enum err eval_sign(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jval *out)
{
    struct jval v;
    TRY(jinja_eval(r, s, n->a, &v));
    if (jinja_is_undefined(&v))
        return jinja_use_undefined(r, &v);
    if (!jinja_is_number(&v))
        return jinja_fail(r, "bad operand type for unary sign: '%s'",
                          jinja_type_name(&v));
    if (v.type == JINJA_FLOAT) {
        *out = jinja_float(n->kind == JINJA_N_NEG ? -v.f : v.f, v.origin);
        return OK;
    }
    struct jval zero = jinja_int(0, v.origin);
    return jinja_binary(r, n->kind == JINJA_N_NEG ? JINJA_OP_SUB : JINJA_OP_ADD,
                        &zero, &v, out);
}

static enum err eval_concat(struct jinja_run *r, struct jinja_scope *s,
                            const struct jinja_node *n, struct jval *out)
{
    struct jval whole = jinja_text("");
    for (const struct jinja_node *c = n->list; c != NULL; c = c->next) {
        struct jval v, text;
        TRY(jinja_eval(r, s, c, &v));
        TRY(jinja_to_str(r, &v, &text));
        if (c == n->list)
            whole = text;
        else
            TRY(jinja_str_concat(r, &whole, &text, &whole));
    }
    *out = whole;
    return OK;
}

static enum err eval_compare(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *n, struct jval *out)
{
    struct jval left, right;
    bool holds = true;
    TRY(jinja_eval(r, s, n->a, &left));
    for (const struct jinja_node *c = n->list; c != NULL && holds;
         c = c->next) {
        TRY(jinja_eval(r, s, c->a, &right));
        TRY(jinja_compare(r, (enum jinja_op)c->op, &left, &right, &holds));
        left = right;
    }
    *out = jinja_bool(holds);
    return OK;
}

/* and, or: the value that decides, as in Python. */
static enum err eval_logic(struct jinja_run *r, struct jinja_scope *s,
                           const struct jinja_node *n, struct jval *out)
{
    bool truth;
    TRY(jinja_eval(r, s, n->a, out));
    TRY(jinja_truth(r, out, &truth));
    if (truth == (n->kind == JINJA_N_OR))
        return OK;
    return jinja_eval(r, s, n->b, out);
}

static enum err eval_cond(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jval *out)
{
    struct jval v;
    bool truth;
    TRY(jinja_eval(r, s, n->a, &v));
    TRY(jinja_truth(r, &v, &truth));
    if (truth)
        return jinja_eval(r, s, n->b, out);
    if (n->c != NULL)
        return jinja_eval(r, s, n->c, out);
    *out = jinja_undefined("the inline if-expression evaluated to false and "
                           "no else section was defined");
    return OK;
}

static enum err eval_node(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jval *out)
{
    struct jval a, b;
    bool truth;
    switch ((enum jinja_kind)n->kind) {
    case JINJA_N_CONST:
        *out = n->value;
        return OK;
    case JINJA_N_NAME:
        return eval_name(r, s, n, out);
    case JINJA_N_LIST:
    case JINJA_N_TUPLE:
        return eval_list(r, s, n, out);
    case JINJA_N_DICT:
        return eval_dict(r, s, n, out);
    case JINJA_N_GETATTR:
        TRY(jinja_eval(r, s, n->a, &a));
        return jinja_getattr(r, &a, n->name.p, n->name.n, out);
    case JINJA_N_GETITEM:
        return eval_getitem(r, s, n, out);
    case JINJA_N_CALL:
        return eval_call(r, s, n, out);
    case JINJA_N_FILTER:
    case JINJA_N_TEST:
        return eval_builtin(r, s, n, out);
    case JINJA_N_NOT:
        TRY(jinja_eval(r, s, n->a, &a));
        TRY(jinja_truth(r, &a, &truth));
        *out = jinja_bool(!truth);
        return OK;
    case JINJA_N_NEG:
    case JINJA_N_POS:
        return eval_sign(r, s, n, out);
    case JINJA_N_BINARY:
        TRY(jinja_eval(r, s, n->a, &a));
        TRY(jinja_eval(r, s, n->b, &b));
        r->line = n->line;
        return jinja_binary(r, (enum jinja_op)n->op, &a, &b, out);
    case JINJA_N_AND:
    case JINJA_N_OR:
        return eval_logic(r, s, n, out);
    case JINJA_N_CONCAT:
        return eval_concat(r, s, n, out);
    case JINJA_N_COMPARE:
        return eval_compare(r, s, n, out);
    case JINJA_N_COND:
        return eval_cond(r, s, n, out);
    default:
        return jinja_fail(r, "internal: node %d is no expression", n->kind);
    }
}

enum err jinja_eval(struct jinja_run *r, struct jinja_scope *s,
                    const struct jinja_node *n, struct jval *out)
{
    TRY(jinja_step(r, 1));
    TRY(jinja_enter(r));
    r->line = n->line;
    enum err rc = eval_node(r, s, n, out);
    r->depth--;
    return rc;
}
