/* jinja_value.h - the values a template computes with, and the run they live
 * in.
 *
 * Values cannot change once they are built (the sandbox of the reference
 * forbids it), except for namespaces, loops and iterators, so they are passed
 * by value and shared freely. Everything a value points to is in the arena of
 * its run, in the template, or in the input tree.
 *
 * Origin of a string: where its bytes came from, all of them together. Where a
 * string mixes origins, extra->spans says which bytes have which. That of
 * other values stands for what their text would be when printed; that of a
 * list or an object for its brackets and commas, its members have their own.
 *
 * Only for the files of the module jinja. Threads: a run belongs to one.
 */
#ifndef RUNTIME_TEXT_JINJA_VALUE_H
#define RUNTIME_TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "runtime/text/jinja.h"

enum jinja_type {
    JINJA_MISSING, /* an argument that was not given; no value of templates */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_SEQ, /* list, tuple, range and the views of an object */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_ITER, /* what can be gone through once: the result of map, select */
    JINJA_LOOP, /* the variable `loop` */
    JINJA_FUNC
};

enum jinja_seq_kind {
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_RANGE,
    JINJA_KEYS,
    JINJA_VALUES,
    JINJA_ITEMS
};

/* A set: what was computed from several has all of theirs. */
typedef uint8_t jinja_origin;
enum {
    JINJA_FROM_TEMPLATE = 0,
    JINJA_FROM_INPUT = 1,
    JINJA_FROM_MARKED = 2 /* with JINJA_FROM_INPUT: below a JINJA_MARK */
};

struct jinja_span {
    size_t end; /* the span ends before this byte; it starts where the one
                   before it ends */
    jinja_origin origin;
};

/* Room behind a string that grows by concatenation, so that building a text
 * piece by piece takes linear time. The string whose end is at `used` may
 * write behind itself: nobody else's bytes are there. */
struct jinja_room {
    char *p;
    size_t used, cap;
};

struct jinja_extra {
    const struct jinja_span *spans; /* n_spans == 0: all of one origin */
    size_t n_spans;
    struct jinja_room *room; /* may be NULL */
};

struct jinja_seq;
struct jinja_dict;
struct jinja_iter;
struct jinja_loop;
struct jinja_func;

struct jval {
    uint8_t type; /* enum jinja_type */
    jinja_origin origin;
    bool is_markup; /* strings: went through |safe or |escape */
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *p; /* not terminated */
            size_t n;
            const struct jinja_extra *extra; /* may be NULL */
        } s;
        struct jinja_seq *seq;
        struct jinja_dict *dict; /* also of a namespace */
        struct jinja_iter *iter;
        struct jinja_loop *loop;
        struct jinja_func *func;
        const char *hint; /* undefined: the sentence for who uses it */
    };
};

struct jinja_seq {
    enum jinja_seq_kind kind;
    size_t n;
    struct jval *items;
    int64_t start, stop, step; /* of a range, for printing it */
    bool is_group;             /* a tuple of groupby: has .grouper and .list */
};

struct jinja_entry {
    struct jval key, value;
};

struct jinja_dict {
    size_t n, cap;
    struct jinja_entry *entries; /* in the order of insertion */
    uint32_t *index;             /* hash table of entry number + 1 */
    size_t index_cap;            /* a power of two; 0: no table, few entries */
};

struct jinja_iter {
    struct jval over;
    size_t pos; /* item of a sequence or object, byte of a string */
};

struct jinja_args {
    size_t n, n_kw;
    const struct jval *v;
    const struct jinja_kwarg *kw;
};

struct jinja_kwarg {
    const char *name;
    size_t n;
    struct jval value;
    jinja_origin origin; /* of the name: from ** of an input object */
};

struct jinja_run {
    const struct jinja_template *t;
    struct arena arena;
    uint64_t steps_left;
    size_t output_max;
    unsigned depth;
    unsigned line; /* of what is being evaluated */
    int64_t now;
    jinja_origin importing; /* of what jinja_import() meets now */
    struct jinja_scope *globals;
    struct errmsg *m;
};

/* A builtin: a filter gets its input, a method its object as *self. A test
 * gives a boolean. */
typedef enum err (*jinja_fn)(struct jinja_run *r, const struct jval *self,
                             const struct jinja_args *args, struct jval *out);

struct jinja_builtin {
    const char *name;
    jinja_fn fn;
};

struct jinja_func {
    const char *name;
    jinja_fn fn; /* NULL: a macro */
    struct jval self;
    const struct jinja_node *macro;
    struct jinja_scope *scope; /* where the macro was defined */
};

/* Propagates an error; the only macro that returns. */
#define TRY(x)                                                                 \
    do {                                                                       \
        enum err try_rc_ = (x);                                                \
        if (try_rc_ != OK)                                                     \
            return try_rc_;                                                    \
    } while (0)

/* --- The run (jinja_run.c) --- */

/* Writes the sentence with the line before it; returns ERR_INVAL. */
enum err jinja_fail(struct jinja_run *r, const char *fmt, ...)
    PRINTF_LIKE(2, 3);

/* Takes n steps from what the run may do. */
MUST_CHECK enum err jinja_step(struct jinja_run *r, size_t n);

/* Goes one level deeper; every OK is paired with r->depth--. */
MUST_CHECK enum err jinja_enter(struct jinja_run *r);

/* Zeroed memory of count * size bytes. */
MUST_CHECK enum err jinja_alloc(struct jinja_run *r, void *out, size_t count,
                                size_t size);

/* The tree as a value; strings stay where they are. */
MUST_CHECK enum err jinja_import(struct jinja_run *r, const cJSON *tree,
                                 struct jval *out);

/* --- Simple values (jinja_value.c) --- */

struct jval jinja_none(void);
struct jval jinja_bool(bool b);
struct jval jinja_int(int64_t i, jinja_origin origin);
struct jval jinja_float(double f, jinja_origin origin);
struct jval jinja_text(const char *s); /* template origin */
struct jval jinja_undefined(const char *hint);
struct jval jinja_of_seq(struct jinja_seq *s, jinja_origin origin);

bool jinja_is_undefined(const struct jval *v);
bool jinja_is_number(const struct jval *v); /* bool, int or float */
double jinja_number(const struct jval *v);
bool jinja_is_int(const struct jval *v); /* bool or int */
int64_t jinja_integer(const struct jval *v);

/* Of a string, compares the bytes. */
bool jinja_is_text(const struct jval *v, const char *s);

/* What the reference calls the type: "str", "int", "Undefined". */
const char *jinja_type_name(const struct jval *v);

/* ERR_INVAL with the sentence that use of this undefined value deserves. */
enum err jinja_use_undefined(struct jinja_run *r, const struct jval *v);

MUST_CHECK enum err jinja_truth(struct jinja_run *r, const struct jval *v,
                                bool *out);
MUST_CHECK enum err jinja_equal(struct jinja_run *r, const struct jval *a,
                                const struct jval *b, bool *out);

/* -1, 0, 1; an error where Python cannot order the two. op is for it. */
MUST_CHECK enum err jinja_order(struct jinja_run *r, const struct jval *a,
                                const struct jval *b, const char *op, int *out);

/* needle in haystack. */
MUST_CHECK enum err jinja_contains(struct jinja_run *r,
                                   const struct jval *haystack,
                                   const struct jval *needle, bool *out);

/* --- Lists, objects, going through them (jinja_seq.c) --- */

MUST_CHECK enum err jinja_seq_new(struct jinja_run *r, size_t n,
                                  enum jinja_seq_kind kind,
                                  struct jinja_seq **out);

/* A list that grows; `items` is replaced when it is full. */
struct jinja_list {
    struct jval *items;
    size_t n, cap;
};
MUST_CHECK enum err jinja_list_add(struct jinja_run *r, struct jinja_list *l,
                                   struct jval v);
MUST_CHECK enum err jinja_list_done(struct jinja_run *r,
                                    const struct jinja_list *l,
                                    enum jinja_seq_kind kind,
                                    jinja_origin origin, struct jval *out);
/* The same items as something that can be gone through only once. */
MUST_CHECK enum err jinja_list_once(struct jinja_run *r,
                                    const struct jinja_list *l,
                                    struct jval *out);

MUST_CHECK enum err jinja_dict_new(struct jinja_run *r, size_t expected,
                                   struct jinja_dict **out);
/* An equal key keeps its place and gets the value. */
MUST_CHECK enum err jinja_dict_put(struct jinja_run *r, struct jinja_dict *d,
                                   const struct jval *key,
                                   const struct jval *value);
/* *out is NULL where there is no such key. An error: a key that cannot be
 * one, such as a list. */
MUST_CHECK enum err jinja_dict_get(struct jinja_run *r,
                                   const struct jinja_dict *d,
                                   const struct jval *key,
                                   const struct jval **out);
MUST_CHECK enum err jinja_dict_get_text(struct jinja_run *r,
                                        const struct jinja_dict *d,
                                        const char *key, size_t n,
                                        const struct jval **out);

/* An error where v cannot be gone through. */
MUST_CHECK enum err jinja_iter_init(struct jinja_run *r, struct jval v,
                                    struct jinja_iter *it);
MUST_CHECK enum err jinja_iter_next(struct jinja_run *r, struct jinja_iter *it,
                                    struct jval *out, bool *has);

/* All that is left of v. */
MUST_CHECK enum err jinja_collect(struct jinja_run *r, struct jval v,
                                  struct jinja_list *out);

/* len(v). *has is false where v has none. */
MUST_CHECK enum err jinja_length(struct jinja_run *r, const struct jval *v,
                                 size_t *out, bool *has);

/* v[i] and v[from:to:step] as Python reads them; a bound may be MISSING or
 * none. */
MUST_CHECK enum err jinja_slice(struct jinja_run *r, const struct jval *v,
                                const struct jval bound[3], struct jval *out);

/* Stable, in the order of keys[i] (which belongs to items[i]). */
MUST_CHECK enum err jinja_sort(struct jinja_run *r, struct jval *items,
                               struct jval *keys, size_t n, bool reverse);

/* --- Looking into values and calling them (jinja_attr.c, jinja_call.c) --- */

/* v.name and v[key], with the fallbacks of the reference. */
MUST_CHECK enum err jinja_getattr(struct jinja_run *r, const struct jval *v,
                                  const char *name, size_t n, struct jval *out);
MUST_CHECK enum err jinja_getitem(struct jinja_run *r, const struct jval *v,
                                  const struct jval *key, struct jval *out);

/* The value behind a path such as "function.name" or 0, as the filters that
 * take attribute= read it. A missing path is the value itself. */
MUST_CHECK enum err jinja_getpath(struct jinja_run *r, const struct jval *v,
                                  const struct jval *path, struct jval *out);

MUST_CHECK enum err jinja_call(struct jinja_run *r, const struct jval *callee,
                               const struct jinja_args *args, struct jval *out);

/* Sorts the arguments into slot[], one for each name of the comma separated
 * list; those not given stay MISSING. An error: too many, unknown, twice, or
 * one of the first `required` is missing. A slash in front of the names: only
 * by position. */
MUST_CHECK enum err jinja_bind(struct jinja_run *r, const char *what,
                               const struct jinja_args *args, const char *names,
                               size_t required, struct jval *slot);

#endif
