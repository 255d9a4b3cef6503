#include <string.h>

#include "runtime/text/jinja_eval.h"

/* Filters of lists and objects. Every function is a jinja_fn. */

#define FILTER(name)                                                           \
    static enum err name(struct jinja_run *r, const struct jval *self,         \
                         const struct jinja_args *args, struct jval *out)

static bool given(const struct jval *v)
{
    return v->type != JINJA_MISSING;
}

FILTER(f_length)
{
    size_t n;
    bool has;
    TRY(jinja_bind(r, "length", args, "", 0, NULL));
    TRY(jinja_length(r, self, &n, &has));
    if (!has)
        return jinja_fail(r, "object of type '%s' has no len()",
                          jinja_type_name(self));
    *out = jinja_int((int64_t)n, self->origin);
    return OK;
}

FILTER(f_first)
{
    struct jinja_iter it;
    bool has;
    TRY(jinja_bind(r, "first", args, "", 0, NULL));
    TRY(jinja_iter_init(r, *self, &it));
    TRY(jinja_iter_next(r, &it, out, &has));
    if (!has)
        *out = jinja_undefined("No first item, sequence was empty.");
    return OK;
}

FILTER(f_last)
{
    struct jinja_list l;
    TRY(jinja_bind(r, "last", args, "", 0, NULL));
    if (self->type == JINJA_ITER)
        return jinja_fail(r, "'generator' object is not reversible");
    TRY(jinja_collect(r, *self, &l));
    *out = l.n > 0 ? l.items[l.n - 1]
                   : jinja_undefined("No last item, sequence was empty.");
    return OK;
}

FILTER(f_list)
{
    struct jinja_list l;
    TRY(jinja_bind(r, "list", args, "", 0, NULL));
    TRY(jinja_collect(r, *self, &l));
    return jinja_list_done(r, &l, JINJA_LIST, self->origin, out);
}

FILTER(f_join)
{
    struct jval a[2], d = jinja_text(""), item, text;
    struct jinja_sb b = {.r = r};
    struct jinja_iter it;
    bool has, first = true;
    TRY(jinja_bind(r, "join", args, "d,attribute", 0, a));
    if (given(&a[0]))
        TRY(jinja_to_str(r, &a[0], &d));
    TRY(jinja_iter_init(r, *self, &it));
    for (;; first = false) {
        TRY(jinja_iter_next(r, &it, &item, &has));
        if (!has)
            return jinja_sb_done(&b, out);
        if (!first)
            TRY(jinja_sb_put_part(&b, &d, 0, d.s.n));
        TRY(jinja_getpath(r, &item, &a[1], &text));
        TRY(jinja_sb_put_value(&b, &text));
    }
}

FILTER(f_reverse)
{
    struct jinja_list l;
    TRY(jinja_bind(r, "reverse", args, "", 0, NULL));
    if (self->type == JINJA_STR) {
        const struct jval bound[3] = {{.type = JINJA_MISSING},
                                      {.type = JINJA_MISSING},
                                      jinja_int(-1, JINJA_FROM_TEMPLATE)};
        return jinja_slice(r, self, bound, out);
    }
    TRY(jinja_collect(r, *self, &l));
    for (size_t i = 0; i < l.n / 2; i++) {
        struct jval tmp = l.items[i];
        l.items[i] = l.items[l.n - 1 - i];
        l.items[l.n - 1 - i] = tmp;
    }
    return jinja_list_once(r, &l, out);
}

/* --- Objects --- */

static enum err pair(struct jinja_run *r, const struct jinja_entry *e,
                     struct jval *out)
{
    struct jinja_seq *s;
    TRY(jinja_seq_new(r, 2, JINJA_TUPLE, &s));
    s->items[0] = e->key;
    s->items[1] = e->value;
    *out = jinja_of_seq(s, JINJA_FROM_TEMPLATE);
    return OK;
}

FILTER(f_items)
{
    struct jinja_list l = {0};
    struct jval item;
    TRY(jinja_bind(r, "items", args, "", 0, NULL));
    if (self->type != JINJA_DICT && !jinja_is_undefined(self))
        return jinja_fail(r, "Can only get item pairs from a mapping.");
    for (size_t i = 0; self->type == JINJA_DICT && i < self->dict->n; i++) {
        TRY(pair(r, &self->dict->entries[i], &item));
        TRY(jinja_list_add(r, &l, item));
    }
    return jinja_list_once(r, &l, out);
}

/* What strings are compared by where case does not matter. */
static enum err fold(struct jinja_run *r, bool case_sensitive, struct jval *key)
{
    if (case_sensitive || key->type != JINJA_STR)
        return OK;
    return jinja_recase(r, key, JINJA_LOWER, key);
}

FILTER(f_dictsort)
{
    struct jval a[3], *keys;
    struct jinja_list l = {0};
    bool sensitive, reverse, by_value = false;
    TRY(jinja_bind(r, "dictsort", args, "case_sensitive,by,reverse", 0, a));
    TRY(jinja_truth(r, &a[0], &sensitive));
    TRY(jinja_truth(r, &a[2], &reverse));
    if (given(&a[1])) {
        by_value = jinja_is_text(&a[1], "value");
        if (!by_value && !jinja_is_text(&a[1], "key"))
            return jinja_fail(r, "You can only sort by either \"key\" or "
                                 "\"value\"");
    }
    if (jinja_is_undefined(self))
        return jinja_use_undefined(r, self);
    if (self->type != JINJA_DICT)
        return jinja_fail(r, "dictsort takes an object, not '%s'",
                          jinja_type_name(self));
    TRY(jinja_alloc(r, &keys, self->dict->n, sizeof(*keys)));
    for (size_t i = 0; i < self->dict->n; i++) {
        const struct jinja_entry *e = &self->dict->entries[i];
        struct jval item;
        TRY(pair(r, e, &item));
        TRY(jinja_list_add(r, &l, item));
        keys[i] = by_value ? e->value : e->key;
        TRY(fold(r, sensitive, &keys[i]));
    }
    TRY(jinja_sort(r, l.items, keys, l.n, reverse));
    return jinja_list_done(r, &l, JINJA_LIST, self->origin, out);
}

/* --- Sorting and picking --- */

/* The key of one item: a list of what the paths between commas lead to. */
static enum err sort_key(struct jinja_run *r, const struct jval *item,
                         struct jval *path, bool sensitive, struct jval *out)
{
    struct jval comma = jinja_text(","), split;
    struct jinja_list l = {0}, paths = {.items = path, .n = 1};
    if (path->type == JINJA_STR) {
        TRY(jinja_split(r, path, &comma, -1, false, &split));
        paths.items = split.seq->items;
        paths.n = split.seq->n;
    }
    for (size_t i = 0; i < paths.n; i++) {
        struct jval key;
        TRY(jinja_getpath(r, item, &paths.items[i], &key));
        TRY(fold(r, sensitive, &key));
        TRY(jinja_list_add(r, &l, key));
    }
    return jinja_list_done(r, &l, JINJA_LIST, false, out);
}

FILTER(f_sort)
{
    struct jval a[3], *keys;
    struct jinja_list l;
    bool reverse, sensitive;
    TRY(jinja_bind(r, "sort", args, "reverse,case_sensitive,attribute", 0, a));
    TRY(jinja_truth(r, &a[0], &reverse));
    TRY(jinja_truth(r, &a[1], &sensitive));
    TRY(jinja_collect(r, *self, &l));
    TRY(jinja_alloc(r, &keys, l.n, sizeof(*keys)));
    for (size_t i = 0; i < l.n; i++)
        TRY(sort_key(r, &l.items[i], &a[2], sensitive, &keys[i]));
    TRY(jinja_sort(r, l.items, keys, l.n, reverse));
    return jinja_list_done(r, &l, JINJA_LIST, self->origin, out);
}

FILTER(f_unique)
{
    struct jval a[2], item, key, yes = jinja_bool(true);
    struct jinja_list l = {0};
    struct jinja_dict *seen;
    struct jinja_iter it;
    bool has, sensitive;
    TRY(jinja_bind(r, "unique", args, "case_sensitive,attribute", 0, a));
    TRY(jinja_truth(r, &a[0], &sensitive));
    TRY(jinja_dict_new(r, 0, &seen));
    TRY(jinja_iter_init(r, *self, &it));
    for (;;) {
        const struct jval *known;
        TRY(jinja_iter_next(r, &it, &item, &has));
        if (!has)
            return jinja_list_once(r, &l, out);
        TRY(jinja_getpath(r, &item, &a[1], &key));
        TRY(fold(r, sensitive, &key));
        TRY(jinja_dict_get(r, seen, &key, &known));
        if (known != NULL)
            continue;
        TRY(jinja_dict_put(r, seen, &key, &yes));
        TRY(jinja_list_add(r, &l, item));
    }
}

static enum err extreme(struct jinja_run *r, const struct jval *self,
                        const struct jinja_args *args, int sign,
                        struct jval *out)
{
    struct jval a[2], item, key, best;
    struct jinja_iter it;
    bool has, sensitive, first = true;
    TRY(jinja_bind(r, "min and max", args, "case_sensitive,attribute", 0, a));
    TRY(jinja_truth(r, &a[0], &sensitive));
    TRY(jinja_iter_init(r, *self, &it));
    *out = jinja_undefined("No aggregated item, sequence was empty.");
    for (;; first = false) {
        int order = -sign;
        TRY(jinja_iter_next(r, &it, &item, &has));
        if (!has)
            return OK;
        TRY(jinja_getpath(r, &item, &a[1], &key));
        TRY(fold(r, sensitive, &key));
        if (!first)
            TRY(jinja_order(r, &key, &best, sign < 0 ? "<" : ">", &order));
        if (first || order == sign) {
            best = key;
            *out = item;
        }
    }
}

FILTER(f_min)
{
    return extreme(r, self, args, -1, out);
}

FILTER(f_max)
{
    return extreme(r, self, args, 1, out);
}

FILTER(f_sum)
{
    struct jval a[2], item, sum = jinja_int(0, JINJA_FROM_TEMPLATE);
    struct jinja_iter it;
    bool has;
    TRY(jinja_bind(r, "sum", args, "attribute,start", 0, a));
    if (given(&a[1]))
        sum = a[1];
    if (sum.type == JINJA_STR)
        return jinja_fail(r, "sum() can't sum strings");
    TRY(jinja_iter_init(r, *self, &it));
    for (;;) {
        TRY(jinja_iter_next(r, &it, &item, &has));
        if (!has)
            break;
        TRY(jinja_getpath(r, &item, &a[0], &item));
        TRY(jinja_binary(r, JINJA_OP_ADD, &sum, &item, &sum));
    }
    *out = sum;
    return OK;
}

/* --- map, select, reject --- */

/* The arguments behind the first n. */
static struct jinja_args rest(const struct jinja_args *args, size_t n)
{
    struct jinja_args out = *args;
    if (n > 0) /* v may be NULL */
        out.v += n;
    out.n -= n;
    return out;
}

/* A filter or test that is named at run time. */
static enum err find_named(struct jinja_run *r, const struct jval *name,
                           bool test, const struct jinja_builtin **out)
{
    *out = NULL;
    if (name->type == JINJA_STR)
        *out = test ? jinja_find_test(name->s.p, name->s.n)
                    : jinja_find_filter(name->s.p, name->s.n);
    if (*out != NULL)
        return OK;
    int n = name->type == JINJA_STR && name->s.n < 60 ? (int)name->s.n : 0;
    return jinja_fail(r, "No %s named '%.*s'.", test ? "test" : "filter", n,
                      n > 0 ? name->s.p : "");
}

static enum err map_attribute(struct jinja_run *r, const struct jval *item,
                              const struct jval a[2], struct jval *out)
{
    struct jval dot = jinja_text("."), parts, from;
    bool has_default = given(&a[1]) && a[1].type != JINJA_NONE;
    if (a[0].type != JINJA_STR || !has_default) {
        TRY(jinja_getpath(r, item, &a[0], out));
        if (has_default && jinja_is_undefined(out))
            *out = a[1];
        return OK;
    }
    /* The default takes the place of any step that is missing. */
    TRY(jinja_split(r, &a[0], &dot, -1, false, &parts));
    *out = *item;
    for (size_t i = 0; i < parts.seq->n; i++) {
        from = *out;
        TRY(jinja_getpath(r, &from, &parts.seq->items[i], out));
        if (jinja_is_undefined(out))
            *out = a[1];
    }
    return OK;
}

FILTER(f_map)
{
    struct jval a[2], item, v;
    struct jinja_list l = {0};
    struct jinja_iter it;
    const struct jinja_builtin *f = NULL;
    struct jinja_args pass = {0};
    bool has, some;
    TRY(jinja_truth(r, self, &some));
    if (!some) /* none and 0 too */
        return jinja_list_once(r, &l, out);
    if (args->n == 0)
        TRY(jinja_bind(r, "map", args, "attribute,default", 1, a));
    if (args->n > 0) {
        TRY(find_named(r, &args->v[0], false, &f));
        pass = rest(args, 1);
    }
    TRY(jinja_iter_init(r, *self, &it));
    for (;;) {
        TRY(jinja_iter_next(r, &it, &item, &has));
        if (!has)
            return jinja_list_once(r, &l, out);
        TRY(f != NULL ? f->fn(r, &item, &pass, &v)
                      : map_attribute(r, &item, a, &v));
        TRY(jinja_list_add(r, &l, v));
    }
}

/* wanted: keep the items whose test has this result. */
static enum err select(struct jinja_run *r, const struct jval *self,
                       const struct jinja_args *args, bool by_attr, bool wanted,
                       struct jval *out)
{
    struct jval item, v, result, path = {.type = JINJA_MISSING};
    struct jinja_list l = {0};
    struct jinja_iter it;
    const struct jinja_builtin *test = NULL;
    size_t off = by_attr ? 1 : 0;
    bool has, truth, some;
    TRY(jinja_truth(r, self, &some));
    if (!some) /* none and 0 too */
        return jinja_list_once(r, &l, out);
    if (args->n < off)
        return jinja_fail(r, "Missing parameter for attribute name");
    if (by_attr)
        path = args->v[0];
    struct jinja_args pass = rest(args, args->n > off ? off + 1 : off);
    if (args->n > off)
        TRY(find_named(r, &args->v[off], true, &test));
    TRY(jinja_iter_init(r, *self, &it));
    for (;;) {
        TRY(jinja_iter_next(r, &it, &item, &has));
        if (!has)
            return jinja_list_once(r, &l, out);
        TRY(jinja_getpath(r, &item, &path, &v));
        result = v;
        if (test != NULL)
            TRY(test->fn(r, &v, &pass, &result));
        TRY(jinja_truth(r, &result, &truth));
        if (truth == wanted)
            TRY(jinja_list_add(r, &l, item));
    }
}

FILTER(f_select)
{
    return select(r, self, args, false, true, out);
}

FILTER(f_reject)
{
    return select(r, self, args, false, false, out);
}

FILTER(f_selectattr)
{
    return select(r, self, args, true, true, out);
}

FILTER(f_rejectattr)
{
    return select(r, self, args, true, false, out);
}

/* --- Grouping --- */

static enum err close_group(struct jinja_run *r, struct jinja_list *groups,
                            const struct jval *key,
                            const struct jinja_list *members)
{
    struct jinja_seq *s;
    TRY(jinja_seq_new(r, 2, JINJA_TUPLE, &s));
    s->items[0] = *key;
    TRY(jinja_list_done(r, members, JINJA_LIST, false, &s->items[1]));
    s->is_group = true;
    return jinja_list_add(r, groups, jinja_of_seq(s, JINJA_FROM_TEMPLATE));
}

FILTER(f_groupby)
{
    struct jval a[3], *keys, value;
    struct jinja_list l, groups = {0}, members = {0};
    bool sensitive;
    TRY(jinja_bind(r, "groupby", args, "attribute,default,case_sensitive", 1,
                   a));
    TRY(jinja_truth(r, &a[2], &sensitive));
    TRY(jinja_collect(r, *self, &l));
    TRY(jinja_alloc(r, &keys, l.n, sizeof(*keys)));
    for (size_t i = 0; i < l.n; i++) {
        TRY(map_attribute(r, &l.items[i], a, &keys[i]));
        TRY(fold(r, sensitive, &keys[i]));
    }
    TRY(jinja_sort(r, l.items, keys, l.n, false));
    for (size_t i = 0; i < l.n; i++) {
        struct jval first, last;
        bool same = members.n > 0;
        TRY(map_attribute(r, &l.items[i], a, &value));
        if (same) {
            TRY(map_attribute(r, &members.items[0], a, &first));
            last = value;
            TRY(fold(r, sensitive, &first));
            TRY(fold(r, sensitive, &last));
            TRY(jinja_equal(r, &first, &last, &same));
        }
        if (!same && members.n > 0) {
            TRY(map_attribute(r, &members.items[0], a, &first));
            TRY(close_group(r, &groups, &first, &members));
            members = (struct jinja_list){0};
        }
        TRY(jinja_list_add(r, &members, l.items[i]));
    }
    if (members.n > 0) {
        TRY(map_attribute(r, &members.items[0], a, &value));
        TRY(close_group(r, &groups, &value, &members));
    }
    return jinja_list_done(r, &groups, JINJA_LIST, false, out);
}

FILTER(f_batch)
{
    struct jval a[2], item, row;
    struct jinja_list rows = {0}, l = {0};
    struct jinja_iter it;
    bool has;
    TRY(jinja_bind(r, "batch", args, "linecount,fill_with", 1, a));
    if (!jinja_is_int(&a[0]))
        return jinja_fail(r, "batch takes an integer");
    int64_t size = jinja_integer(&a[0]);
    bool fill = given(&a[1]) && a[1].type != JINJA_NONE;
    TRY(jinja_iter_init(r, *self, &it));
    for (;;) {
        TRY(jinja_iter_next(r, &it, &item, &has));
        while (!has && fill && l.n > 0 && (int64_t)l.n < size)
            TRY(jinja_list_add(r, &l, a[1]));
        if (l.n > 0 && (!has || (int64_t)l.n == size)) {
            TRY(jinja_list_done(r, &l, JINJA_LIST, false, &row));
            TRY(jinja_list_add(r, &rows, row));
            l = (struct jinja_list){0};
        }
        if (!has)
            return jinja_list_once(r, &rows, out);
        TRY(jinja_list_add(r, &l, item));
    }
}

const struct jinja_builtin jinja_seq_filters[] = {{"length", f_length},
                                                  {"count", f_length},
                                                  {"first", f_first},
                                                  {"last", f_last},
                                                  {"list", f_list},
                                                  {"join", f_join},
                                                  {"reverse", f_reverse},
                                                  {"items", f_items},
                                                  {"dictsort", f_dictsort},
                                                  {"sort", f_sort},
                                                  {"unique", f_unique},
                                                  {"min", f_min},
                                                  {"max", f_max},
                                                  {"sum", f_sum},
                                                  {"map", f_map},
                                                  {"select", f_select},
                                                  {"reject", f_reject},
                                                  {"selectattr", f_selectattr},
                                                  {"rejectattr", f_rejectattr},
                                                  {"groupby", f_groupby},
                                                  {"batch", f_batch},
                                                  {NULL, NULL}};
