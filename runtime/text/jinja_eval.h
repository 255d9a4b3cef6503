/* jinja_eval.h - running a parsed template.
 *
 * Only for the files of the module jinja. Threads: as jinja_value.h.
 */
#ifndef RUNTIME_TEXT_JINJA_EVAL_H
#define RUNTIME_TEXT_JINJA_EVAL_H

#include "runtime/text/jinja_ast.h"
#include "runtime/text/jinja_str.h"

struct jinja_var {
    struct jinja_var *next;
    struct jinja_name name;
    struct jval value;
};

/* A name that a scope does not have is looked up in its parent; it is always
 * set in the innermost scope. */
struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_var *vars;
    struct jinja_var *spare; /* nodes of an earlier round of a loop */
};

MUST_CHECK enum err jinja_scope_new(struct jinja_run *r,
                                    struct jinja_scope *parent,
                                    struct jinja_scope **out);
MUST_CHECK enum err jinja_scope_set(struct jinja_run *r, struct jinja_scope *s,
                                    struct jinja_name name,
                                    const struct jval *v);
/* NULL where no scope has it. */
MUST_CHECK enum err jinja_scope_get(struct jinja_run *r,
                                    const struct jinja_scope *s,
                                    struct jinja_name name,
                                    const struct jval **out);

/* The variable `loop`. Reads one item ahead only when it is asked for what
 * needs that, because the condition of a loop may depend on its body. */
struct jinja_loop {
    struct jinja_iter it;
    const struct jinja_node *node; /* a FOR; its condition filters */
    struct jinja_scope *outer;
    int64_t index0; /* -1 before the first round */
    bool has_length, has_next, has_last_change;
    size_t length;
    struct jval before, current, next;
    struct jval last_change;
};

MUST_CHECK enum err jinja_loop_attr(struct jinja_run *r, struct jinja_loop *l,
                                    const char *name, size_t n,
                                    struct jval *out, bool *has);
MUST_CHECK enum err jinja_loop_length(struct jinja_run *r, struct jinja_loop *l,
                                      size_t *out);

MUST_CHECK enum err jinja_eval(struct jinja_run *r, struct jinja_scope *s,
                               const struct jinja_node *n, struct jval *out);

/* The filters of a block over its text. */
MUST_CHECK enum err jinja_eval_filters(struct jinja_run *r,
                                       struct jinja_scope *s,
                                       const struct jinja_node *n,
                                       const struct jval *text,
                                       struct jval *out);
MUST_CHECK enum err jinja_eval_args(struct jinja_run *r, struct jinja_scope *s,
                                    const struct jinja_node *list,
                                    struct jinja_args *out);

enum jinja_flow { JINJA_NEXT, JINJA_BREAK, JINJA_CONTINUE };

/* Executes a list of statements, writing to *b. */
MUST_CHECK enum err jinja_exec(struct jinja_run *r, struct jinja_scope *s,
                               const struct jinja_node *list,
                               struct jinja_sb *b, enum jinja_flow *flow);

MUST_CHECK enum err jinja_assign(struct jinja_run *r, struct jinja_scope *s,
                                 const struct jinja_node *target,
                                 const struct jval *v);

MUST_CHECK enum err jinja_call_macro(struct jinja_run *r,
                                     const struct jinja_func *f,
                                     const struct jinja_args *args,
                                     struct jval *out);

/* a op b for the operators that compute. */
MUST_CHECK enum err jinja_binary(struct jinja_run *r, enum jinja_op op,
                                 const struct jval *a, const struct jval *b,
                                 struct jval *out);
MUST_CHECK enum err jinja_compare(struct jinja_run *r, enum jinja_op op,
                                  const struct jval *a, const struct jval *b,
                                  bool *out);

MUST_CHECK enum err jinja_func_new(struct jinja_run *r,
                                   const struct jinja_builtin *builtin,
                                   const struct jval *self, struct jval *out);

/* The tables of builtins, ended by a NULL name. */
extern const struct jinja_builtin jinja_text_filters[];
extern const struct jinja_builtin jinja_seq_filters[];
extern const struct jinja_builtin jinja_tests[];
extern const struct jinja_builtin jinja_globals[];
extern const struct jinja_builtin jinja_str_methods[];
extern const struct jinja_builtin jinja_dict_methods[];
extern const struct jinja_builtin jinja_list_methods[];
extern const struct jinja_builtin jinja_loop_methods[];

const struct jinja_builtin *jinja_lookup(const struct jinja_builtin *table,
                                         const char *name, size_t n);

#endif
