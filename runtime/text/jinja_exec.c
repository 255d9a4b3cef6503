#include <stdlib.h>
#include <string.h>

#include "runtime/text/jinja_eval.h"

/* --- Scopes --- */

enum err jinja_scope_new(struct jinja_run *r, struct jinja_scope *parent,
                         struct jinja_scope **out)
{
    TRY(jinja_alloc(r, out, 1, sizeof(**out)));
    (*out)->parent = parent;
    return OK;
}

static struct jinja_var *find_var(const struct jinja_scope *s,
                                  struct jinja_name name, size_t *looked_at)
{
    for (struct jinja_var *v = s->vars; v != NULL; v = v->next, ++*looked_at)
        if (v->name.n == name.n && memcmp(v->name.p, name.p, name.n) == 0)
            return v;
    return NULL;
}

enum err jinja_scope_set(struct jinja_run *r, struct jinja_scope *s,
                         struct jinja_name name, const struct jval *v)
{
    size_t n = 0;
    struct jinja_var *var = find_var(s, name, &n);
    TRY(jinja_step(r, n / 8));
    if (var == NULL) {
        var = s->spare;
        if (var != NULL)
            s->spare = var->next;
        else
            TRY(jinja_alloc(r, &var, 1, sizeof(*var)));
        var->name = name;
        var->next = s->vars;
        s->vars = var;
    }
    var->value = *v;
    return OK;
}

enum err jinja_scope_get(struct jinja_run *r, const struct jinja_scope *s,
                         struct jinja_name name, const struct jval **out)
{
    size_t n = 0;
    *out = NULL;
    for (; s != NULL && *out == NULL; s = s->parent, n++) {
        const struct jinja_var *var = find_var(s, name, &n);
        if (var != NULL)
            *out = &var->value;
    }
    return jinja_step(r, n / 8);
}

/* Forgets the variables, keeps their memory for the next round. */
static void scope_clear(struct jinja_scope *s)
{
    while (s->vars != NULL) {
        struct jinja_var *v = s->vars;
        s->vars = v->next;
        v->next = s->spare;
        s->spare = v;
    }
}

/* --- Assignment --- */

static enum err assign_tuple(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *target,
                             const struct jval *v)
{
    struct jinja_list l;
    size_t i = 0, n = 0;
    for (const struct jinja_node *c = target->list; c != NULL; c = c->next)
        n++;
    if (jinja_is_undefined(v) && n > 0)
        return jinja_use_undefined(r, v);
    TRY(jinja_collect(r, *v, &l));
    if (l.n != n)
        return jinja_fail(r, "cannot unpack %zu values into %zu names", l.n, n);
    for (const struct jinja_node *c = target->list; c != NULL; c = c->next)
        TRY(jinja_assign(r, s, c, &l.items[i++]));
    return OK;
}

enum err jinja_assign(struct jinja_run *r, struct jinja_scope *s,
                      const struct jinja_node *target, const struct jval *v)
{
    if (target->kind == JINJA_N_TUPLE)
        return assign_tuple(r, s, target, v);
    if (target->kind == JINJA_N_NAME)
        return jinja_scope_set(r, s, target->name, v);
    const struct jval *ns;
    TRY(jinja_scope_get(r, s, target->name, &ns));
    if (ns == NULL || ns->type != JINJA_NAMESPACE)
        return jinja_fail(r, "cannot assign attribute on non-namespace "
                             "object");
    return jinja_dict_put(r, ns->dict, &target->value, v);
}

/* --- Loops --- */

/* The next item that the condition of the loop lets through. */
static enum err loop_pull(struct jinja_run *r, struct jinja_loop *l,
                          struct jval *out, bool *has)
{
    for (;;) {
        TRY(jinja_iter_next(r, &l->it, out, has));
        if (!*has || l->node->c == NULL)
            return OK;
        struct jinja_scope *s;
        struct jval v;
        bool truth;
        TRY(jinja_scope_new(r, l->outer, &s));
        TRY(jinja_assign(r, s, l->node->a, out));
        TRY(jinja_eval(r, s, l->node->c, &v));
        TRY(jinja_truth(r, &v, &truth));
        if (truth)
            return OK;
    }
}

static enum err loop_peek(struct jinja_run *r, struct jinja_loop *l, bool *has)
{
    if (!l->has_next)
        TRY(loop_pull(r, l, &l->next, &l->has_next));
    *has = l->has_next;
    return OK;
}

static enum err loop_next(struct jinja_run *r, struct jinja_loop *l, bool *has)
{
    struct jval item = l->next;
    *has = true;
    if (!l->has_next)
        TRY(loop_pull(r, l, &item, has));
    l->has_next = false;
    if (!*has)
        return OK;
    l->index0++;
    l->before = l->current;
    l->current = item;
    return OK;
}

enum err jinja_loop_length(struct jinja_run *r, struct jinja_loop *l,
                           size_t *out)
{
    bool has = false;
    if (!l->has_length && l->node->c == NULL && l->it.over.type != JINJA_ITER)
        TRY(jinja_length(r, &l->it.over, &l->length, &has));
    if (!l->has_length && !has) { /* all that is left has to be read */
        struct jinja_list rest = {0};
        struct jval item, list;
        for (;;) {
            TRY(loop_pull(r, l, &item, &has));
            if (!has)
                break;
            TRY(jinja_list_add(r, &rest, item));
        }
        TRY(jinja_list_done(r, &rest, JINJA_LIST, false, &list));
        l->it = (struct jinja_iter){.over = list};
        l->length = rest.n + (size_t)(l->index0 + 1) + l->has_next;
        static const struct jinja_node unconditional = {.kind = JINJA_N_FOR};
        l->node = &unconditional;
    }
    l->has_length = true;
    *out = l->length;
    return OK;
}

static enum err loop_neighbour(struct jinja_run *r, struct jinja_loop *l,
                               bool next, struct jval *out)
{
    bool has = l->index0 > 0;
    if (next)
        TRY(loop_peek(r, l, &has));
    if (!has)
        *out = jinja_undefined(next ? "there is no next item"
                                    : "there is no previous item");
    else
        *out = next ? l->next : l->before;
    return OK;
}

enum err jinja_loop_attr(struct jinja_run *r, struct jinja_loop *l,
                         const char *name, size_t n, struct jval *out,
                         bool *has)
{
    static const char *const names[] = {
        "index0",   "index",    "first",    "last",   "length", "revindex0",
        "revindex", "previtem", "nextitem", "depth0", "depth"};
    enum { N_NAMES = sizeof(names) / sizeof(names[0]) };
    size_t i = 0, length = 0;
    bool more;
    while (i < N_NAMES &&
           (strlen(names[i]) != n || memcmp(names[i], name, n) != 0))
        i++;
    *has = true;
    if (i >= 4 && i <= 6)
        TRY(jinja_loop_length(r, l, &length));
    int64_t count = (int64_t)length;
    switch (i) {
    case 0:
    case 1:
        *out = jinja_int(l->index0 + (i == 1), JINJA_FROM_TEMPLATE);
        return OK;
    case 2:
        *out = jinja_bool(l->index0 == 0);
        return OK;
    case 3:
        TRY(loop_peek(r, l, &more));
        *out = jinja_bool(!more);
        return OK;
    case 4:
        *out = jinja_int(count, JINJA_FROM_TEMPLATE);
        return OK;
    case 5:
    case 6:
        *out = jinja_int(count - l->index0 - (i == 5), JINJA_FROM_TEMPLATE);
        return OK;
    case 7:
    case 8:
        return loop_neighbour(r, l, i == 8, out);
    case 9:
    case 10:
        *out = jinja_int(i == 10, JINJA_FROM_TEMPLATE);
        return OK;
    default:
        break;
    }
    const struct jinja_builtin *b = jinja_lookup(jinja_loop_methods, name, n);
    *has = b != NULL;
    struct jval self = {.type = JINJA_LOOP, .loop = l};
    return *has ? jinja_func_new(r, b, &self, out) : OK;
}

static enum err exec_for(struct jinja_run *r, struct jinja_scope *outer,
                         const struct jinja_node *n, struct jinja_sb *b,
                         enum jinja_flow *flow)
{
    struct jinja_loop *l;
    struct jinja_scope *s = NULL;
    struct jval over;
    bool has, finished = false;
    TRY(jinja_eval(r, outer, n->b, &over));
    TRY(jinja_alloc(r, &l, 1, sizeof(*l)));
    TRY(jinja_iter_init(r, over, &l->it));
    l->node = n;
    l->outer = outer;
    l->index0 = -1;
    struct jval self = {.type = JINJA_LOOP, .loop = l};
    for (;;) {
        TRY(loop_next(r, l, &has));
        if (!has)
            break;
        if (s == NULL || (n->flags & JINJA_HAS_CLOSURE) != 0)
            TRY(jinja_scope_new(r, outer, &s));
        scope_clear(s);
        TRY(jinja_scope_set(r, s, (struct jinja_name){"loop", 4}, &self));
        TRY(jinja_assign(r, s, n->a, &l->current));
        enum jinja_flow inner = JINJA_NEXT;
        TRY(jinja_exec(r, s, n->list, b, &inner));
        /* The reference notes at the end of a body that one was run, so
         * after break or continue alone the else branch still comes. */
        finished |= inner == JINJA_NEXT;
        if (inner == JINJA_BREAK)
            break;
    }
    if (finished || n->other == NULL)
        return OK;
    TRY(jinja_scope_new(r, outer, &s));
    return jinja_exec(r, s, n->other, b, flow);
}

/* --- Macros --- */

static enum err macro_new(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jval *out)
{
    struct jinja_func *f;
    TRY(jinja_alloc(r, &f, 1, sizeof(*f)));
    f->name = n->name.p;
    f->macro = n;
    f->scope = s;
    *out = (struct jval){.type = JINJA_FUNC, .func = f};
    return OK;
}

static bool kwarg_is(const struct jinja_kwarg *kw, struct jinja_name name)
{
    return kw->n == name.n && memcmp(kw->name, name.p, name.n) == 0;
}

/* Takes a keyword argument out of the list; MISSING if it is not there. */
static struct jval take_kwarg(struct jinja_kwarg *kw, size_t *n_kw,
                              struct jinja_name name)
{
    for (size_t i = 0; i < *n_kw; i++) {
        if (!kwarg_is(&kw[i], name))
            continue;
        struct jval v = kw[i].value;
        memmove(kw + i, kw + i + 1, (*n_kw - i - 1) * sizeof(*kw));
        --*n_kw;
        return v;
    }
    return (struct jval){.type = JINJA_MISSING};
}

static enum err bind_params(struct jinja_run *r, struct jinja_scope *s,
                            const struct jinja_node *n,
                            const struct jinja_args *args,
                            struct jinja_kwarg *kw, size_t *n_kw)
{
    size_t i = 0;
    for (const struct jinja_node *p = n->params; p != NULL; p = p->next, i++) {
        struct jval v =
            i < args->n ? args->v[i] : take_kwarg(kw, n_kw, p->name);
        TRY(jinja_step(r, 1 + *n_kw / 8));
        TRY(jinja_scope_set(r, s, p->name, &v));
    }
    /* Defaults are expressions that see all parameters. */
    for (const struct jinja_node *p = n->params; p != NULL; p = p->next) {
        const struct jval *v;
        struct jval d = jinja_undefined("a parameter was not provided");
        TRY(jinja_scope_get(r, s, p->name, &v));
        if (v->type != JINJA_MISSING)
            continue;
        if (p->a != NULL)
            TRY(jinja_eval(r, s, p->a, &d));
        TRY(jinja_scope_set(r, s, p->name, &d));
    }
    return OK;
}

static bool has_param(const struct jinja_node *n, const char *name)
{
    for (const struct jinja_node *p = n->params; p != NULL; p = p->next)
        if (strcmp(p->name.p, name) == 0)
            return true;
    return false;
}

/* caller, kwargs and varargs: variables of those macros that mention them. */
static enum err bind_special(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *n,
                             const struct jinja_args *args,
                             struct jinja_kwarg *kw, size_t n_kw)
{
    static const struct jinja_name caller = {"caller", 6};
    size_t n_params = 0;
    for (const struct jinja_node *p = n->params; p != NULL; p = p->next)
        n_params++;
    if ((n->flags & JINJA_USES_CALLER) != 0 && !has_param(n, "caller")) {
        struct jval v = take_kwarg(kw, &n_kw, caller);
        if (v.type == JINJA_MISSING)
            v = jinja_undefined("No caller defined");
        TRY(jinja_scope_set(r, s, caller, &v));
    }
    if ((n->flags & JINJA_USES_KWARGS) != 0 && !has_param(n, "kwargs")) {
        struct jinja_dict *d;
        TRY(jinja_dict_new(r, n_kw, &d));
        for (size_t i = 0; i < n_kw; i++) {
            struct jval key = jinja_text("");
            key.s.p = kw[i].name;
            key.s.n = kw[i].n;
            key.origin = kw[i].origin;
            TRY(jinja_dict_put(r, d, &key, &kw[i].value));
        }
        struct jval v = {.type = JINJA_DICT, .dict = d};
        TRY(jinja_scope_set(r, s, (struct jinja_name){"kwargs", 6}, &v));
    } else if (n_kw > 0) {
        return jinja_fail(r, "macro '%s' takes no keyword argument '%.*s'",
                          n->name.p, (int)(kw[0].n < 60 ? kw[0].n : 60),
                          kw[0].name);
    }
    bool more = args->n > n_params;
    if ((n->flags & JINJA_USES_VARARGS) != 0 && !has_param(n, "varargs")) {
        struct jinja_list l = {0};
        struct jval v;
        for (size_t i = n_params; i < args->n; i++)
            TRY(jinja_list_add(r, &l, args->v[i]));
        TRY(jinja_list_done(r, &l, JINJA_TUPLE, false, &v));
        TRY(jinja_scope_set(r, s, (struct jinja_name){"varargs", 7}, &v));
    } else if (more) {
        return jinja_fail(r, "macro '%s' takes not more than %zu argument(s)",
                          n->name.p, n_params);
    }
    return OK;
}

enum err jinja_call_macro(struct jinja_run *r, const struct jinja_func *f,
                          const struct jinja_args *args, struct jval *out)
{
    const struct jinja_node *n = f->macro;
    struct jinja_scope *s;
    struct jinja_kwarg *kw;
    size_t n_kw = args->n_kw;
    TRY(jinja_scope_new(r, f->scope, &s));
    TRY(jinja_alloc(r, &kw, n_kw, sizeof(*kw)));
    if (n_kw > 0)
        memcpy(kw, args->kw, n_kw * sizeof(*kw));
    TRY(bind_params(r, s, n, args, kw, &n_kw));
    TRY(bind_special(r, s, n, args, kw, n_kw));
    struct jinja_sb b = {.r = r};
    enum jinja_flow flow = JINJA_NEXT;
    TRY(jinja_exec(r, s, n->list, &b, &flow));
    return jinja_sb_done(&b, out);
}

/* {% call(...) macro(...) %}: the macro gets the body as `caller`. */
static enum err exec_call(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *n, struct jinja_sb *b)
{
    struct jval callee, result;
    struct jinja_args args;
    struct jinja_kwarg *kw;
    TRY(jinja_eval(r, s, n->a->a, &callee));
    TRY(jinja_eval_args(r, s, n->a->list, &args));
    TRY(jinja_alloc(r, &kw, args.n_kw + 1, sizeof(*kw)));
    if (args.n_kw > 0)
        memcpy(kw, args.kw, args.n_kw * sizeof(*kw));
    kw[args.n_kw] = (struct jinja_kwarg){.name = "caller", .n = 6};
    TRY(macro_new(r, s, n, &kw[args.n_kw].value));
    args.kw = kw;
    args.n_kw++;
    r->line = n->line;
    TRY(jinja_call(r, &callee, &args, &result));
    return jinja_sb_put_value(b, &result);
}

/* --- Statements --- */

/* A body with variables of its own, as a string, after the filters. */
static enum err capture(struct jinja_run *r, struct jinja_scope *outer,
                        const struct jinja_node *n, struct jval *out,
                        enum jinja_flow *flow)
{
    struct jinja_scope *s;
    struct jinja_sb b = {.r = r};
    TRY(jinja_scope_new(r, outer, &s));
    TRY(jinja_exec(r, s, n->list, &b, flow));
    TRY(jinja_sb_done(&b, out));
    return n->b != NULL ? jinja_eval_filters(r, s, n->b, out, out) : OK;
}

static enum err exec_if(struct jinja_run *r, struct jinja_scope *s,
                        const struct jinja_node *n, struct jinja_sb *b,
                        enum jinja_flow *flow)
{
    for (const struct jinja_node *branch = n; branch != NULL;
         branch = branch->c) {
        struct jval v;
        bool truth;
        TRY(jinja_eval(r, s, branch->a, &v));
        TRY(jinja_truth(r, &v, &truth));
        if (truth)
            return jinja_exec(r, s, branch->list, b, flow);
    }
    return jinja_exec(r, s, n->other, b, flow);
}

static enum err exec_with(struct jinja_run *r, struct jinja_scope *outer,
                          const struct jinja_node *n, struct jinja_sb *b,
                          enum jinja_flow *flow)
{
    struct jinja_scope *s;
    struct jval v;
    TRY(jinja_scope_new(r, outer, &s));
    for (const struct jinja_node *c = n->other; c != NULL; c = c->next) {
        TRY(jinja_eval(r, outer, c->b, &v));
        TRY(jinja_assign(r, s, c->a, &v));
    }
    return jinja_exec(r, s, n->list, b, flow);
}

static enum err exec_one(struct jinja_run *r, struct jinja_scope *s,
                         const struct jinja_node *n, struct jinja_sb *b,
                         enum jinja_flow *flow)
{
    struct jval v;
    struct jinja_scope *inner;
    switch ((enum jinja_kind)n->kind) {
    case JINJA_N_TEXT:
        return jinja_sb_put_part(b, &n->value, 0, n->value.s.n);
    case JINJA_N_PRINT:
        TRY(jinja_eval(r, s, n->a, &v));
        return jinja_sb_put_value(b, &v);
    case JINJA_N_FOR:
        return exec_for(r, s, n, b, flow);
    case JINJA_N_IF:
        return exec_if(r, s, n, b, flow);
    case JINJA_N_SET:
        TRY(jinja_eval(r, s, n->b, &v));
        return jinja_assign(r, s, n->a, &v);
    case JINJA_N_SET_BLOCK:
        TRY(capture(r, s, n, &v, flow));
        return *flow == JINJA_NEXT ? jinja_assign(r, s, n->a, &v) : OK;
    case JINJA_N_FILTER_BLOCK:
        TRY(capture(r, s, n, &v, flow));
        return *flow == JINJA_NEXT ? jinja_sb_put_value(b, &v) : OK;
    case JINJA_N_MACRO:
        TRY(macro_new(r, s, n, &v));
        return jinja_scope_set(r, s, n->name, &v);
    case JINJA_N_CALL_BLOCK:
        return exec_call(r, s, n, b);
    case JINJA_N_WITH:
        return exec_with(r, s, n, b, flow);
    case JINJA_N_SCOPE:
        TRY(jinja_scope_new(r, s, &inner));
        return jinja_exec(r, inner, n->list, b, flow);
    case JINJA_N_BREAK:
        *flow = JINJA_BREAK;
        return OK;
    case JINJA_N_CONTINUE:
        *flow = JINJA_CONTINUE;
        return OK;
    default:
        return jinja_fail(r, "internal: node %d is no statement", n->kind);
    }
}

enum err jinja_exec(struct jinja_run *r, struct jinja_scope *s,
                    const struct jinja_node *list, struct jinja_sb *b,
                    enum jinja_flow *flow)
{
    TRY(jinja_enter(r));
    for (; list != NULL && *flow == JINJA_NEXT; list = list->next) {
        TRY(jinja_step(r, 1));
        r->line = list->line;
        TRY(exec_one(r, s, list, b, flow));
    }
    r->depth--;
    return OK;
}

/* --- The whole --- */

static enum err set_globals(struct jinja_run *r, struct jinja_scope *s,
                            const cJSON *vars)
{
    for (const cJSON *c = vars->child; c != NULL; c = c->next) {
        struct jval v;
        TRY(jinja_import(r, c, &v));
        TRY(jinja_scope_set(
            r, s, (struct jinja_name){c->string, strlen(c->string)}, &v));
    }
    return OK;
}

static enum err hand_over(struct jinja_run *r, const struct jinja_sb *b,
                          struct jinja_output *out)
{
    enum err rc = buf_append(&out->text, b->p, b->n);
    out->segments = malloc((b->n_spans + 1) * sizeof(*out->segments));
    if (rc != OK || out->segments == NULL)
        return err_set(r->m, ERR_NOMEM, "no memory for a rendered template");
    size_t from = 0;
    for (size_t i = 0; i < b->n_spans; i++) {
        const struct jinja_span *span = &b->spans[i];
        out->segments[i] = (struct jinja_segment){
            .offset = from,
            .length = span->end - from,
            .is_template = span->origin == JINJA_FROM_TEMPLATE,
            .is_marked = (span->origin & JINJA_FROM_MARKED) != 0,
        };
        from = span->end;
    }
    out->n_segments = b->n_spans;
    return OK;
}

static enum err run(struct jinja_run *r, const cJSON *vars,
                    struct jinja_output *out)
{
    struct jinja_scope *globals, *s;
    struct jinja_sb b = {.r = r, .max = r->output_max};
    enum jinja_flow flow = JINJA_NEXT;
    TRY(jinja_scope_new(r, NULL, &globals));
    TRY(set_globals(r, globals, vars));
    TRY(jinja_scope_new(r, globals, &s));
    TRY(jinja_exec(r, s, r->t->body, &b, &flow));
    return hand_over(r, &b, out);
}

enum err jinja_render(struct jinja_output *out, const struct jinja_template *t,
                      const struct jinja_input *in, struct errmsg *m)
{
    const struct jinja_limits *l = &in->limits;
    struct jinja_run r = {.t = t,
                          .steps_left = l->steps,
                          .output_max = l->output_bytes,
                          .line = 1,
                          .importing = JINJA_FROM_INPUT,
                          .now = in->now,
                          .m = m};
    if (r.steps_left == 0)
        r.steps_left = JINJA_STEPS_DEFAULT;
    if (r.output_max == 0)
        r.output_max = JINJA_OUTPUT_DEFAULT;
    jinja_output_fini(out);
    if (!cJSON_IsObject(in->vars))
        return err_set(m, ERR_INVAL, "the input of a template is no object");
    arena_init(&r.arena,
               l->memory_bytes != 0 ? l->memory_bytes : JINJA_MEMORY_DEFAULT);
    enum err rc = run(&r, in->vars, out);
    arena_fini(&r.arena);
    if (rc != OK)
        jinja_output_fini(out);
    return rc;
}

void jinja_output_fini(struct jinja_output *out)
{
    buf_fini(&out->text);
    free(out->segments);
    out->segments = NULL;
    out->n_segments = 0;
}
