#include <string.h>

#include <utf8proc.h>

#include "runtime/text/jinja_eval.h"

/* Methods of strings, lists, objects and loops. Every function is a
 * jinja_fn; *self is the object. */

#define METHOD(name)                                                           \
    static enum err name(struct jinja_run *r, const struct jval *self,         \
                         const struct jinja_args *args, struct jval *out)

static bool given(const struct jval *v)
{
    return v->type != JINJA_MISSING;
}

static enum err want_str(struct jinja_run *r, const struct jval *v)
{
    if (jinja_is_undefined(v))
        return jinja_use_undefined(r, v);
    if (v->type == JINJA_STR)
        return OK;
    return jinja_fail(r, "a string is needed, not '%s'", jinja_type_name(v));
}

static enum err want_int(struct jinja_run *r, const struct jval *v,
                         int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (!given(v) || v->type == JINJA_NONE)
        return OK;
    if (!jinja_is_int(v))
        return jinja_fail(r, "an integer is needed, not '%s'",
                          jinja_type_name(v));
    *out = jinja_integer(v);
    return OK;
}

/* --- Case and stripping --- */

static enum err recase(struct jinja_run *r, const struct jval *self,
                       const struct jinja_args *args, enum jinja_case to,
                       struct jval *out)
{
    TRY(jinja_bind(r, "a case method", args, "", 0, NULL));
    return jinja_recase(r, self, to, out);
}

METHOD(m_upper)
{
    return recase(r, self, args, JINJA_UPPER, out);
}

METHOD(m_lower)
{
    return recase(r, self, args, JINJA_LOWER, out);
}

METHOD(m_title)
{
    return recase(r, self, args, JINJA_TITLE, out);
}

METHOD(m_capitalize)
{
    return recase(r, self, args, JINJA_CAPITAL, out);
}

static enum err strip(struct jinja_run *r, const struct jval *self,
                      const struct jinja_args *args, int sides,
                      struct jval *out)
{
    struct jval chars;
    TRY(jinja_bind(r, "strip", args, "/chars", 0, &chars));
    if (jinja_is_undefined(&chars))
        return jinja_fail(r, "strip arg must be None or str");
    return jinja_strip(r, self, &chars, sides, out);
}

METHOD(m_strip)
{
    return strip(r, self, args, JINJA_STRIP_BOTH, out);
}

METHOD(m_lstrip)
{
    return strip(r, self, args, JINJA_STRIP_LEFT, out);
}

METHOD(m_rstrip)
{
    return strip(r, self, args, JINJA_STRIP_RIGHT, out);
}

/* --- Splitting and joining --- */

static enum err split(struct jinja_run *r, const struct jval *self,
                      const struct jinja_args *args, bool from_right,
                      struct jval *out)
{
    struct jval a[2];
    int64_t limit;
    TRY(jinja_bind(r, "split", args, "sep,maxsplit", 0, a));
    TRY(want_int(r, &a[1], -1, &limit));
    return jinja_split(r, self, &a[0], limit, from_right, out);
}

METHOD(m_split)
{
    return split(r, self, args, false, out);
}

METHOD(m_rsplit)
{
    return split(r, self, args, true, out);
}

METHOD(m_splitlines)
{
    struct jval keep;
    struct jinja_list l = {0};
    bool keep_ends;
    TRY(jinja_bind(r, "splitlines", args, "keepends", 0, &keep));
    TRY(jinja_truth(r, &keep, &keep_ends));
    TRY(jinja_splitlines(r, self, keep_ends, &l));
    return jinja_list_done(r, &l, JINJA_LIST, false, out);
}

METHOD(m_join)
{
    struct jval items;
    struct jinja_list l;
    struct jinja_sb b = {.r = r};
    TRY(jinja_bind(r, "join", args, "/iterable", 1, &items));
    TRY(jinja_collect(r, items, &l));
    for (size_t i = 0; i < l.n; i++) {
        TRY(want_str(r, &l.items[i]));
        if (i > 0)
            TRY(jinja_sb_put_part(&b, self, 0, self->s.n));
        TRY(jinja_sb_put_part(&b, &l.items[i], 0, l.items[i].s.n));
    }
    return jinja_sb_done(&b, out);
}

static enum err partition(struct jinja_run *r, const struct jval *self,
                          const struct jinja_args *args, bool from_right,
                          struct jval *out)
{
    struct jval sep;
    struct jinja_seq *s;
    size_t n = self->s.n, hit;
    TRY(jinja_bind(r, "partition", args, "/sep", 1, &sep));
    TRY(want_str(r, &sep));
    if (sep.s.n == 0)
        return jinja_fail(r, "empty separator");
    TRY(jinja_seq_new(r, 3, JINJA_TUPLE, &s));
    TRY(jinja_step(r, n / 32));
    if (from_right)
        TRY(jinja_rfind(r, self, 0, n, &sep, &hit));
    else
        hit = jinja_find(self, 0, n, &sep);
    for (size_t i = 0; i < 3; i++)
        s->items[i] = jinja_text("");
    if (hit == SIZE_MAX) {
        s->items[from_right ? 2 : 0] = *self;
    } else {
        s->items[1] = sep;
        TRY(jinja_str_part(r, self, 0, hit, &s->items[0]));
        TRY(jinja_str_part(r, self, hit + sep.s.n, n, &s->items[2]));
    }
    *out = jinja_of_seq(s, JINJA_FROM_TEMPLATE);
    return OK;
}

METHOD(m_partition)
{
    return partition(r, self, args, false, out);
}

METHOD(m_rpartition)
{
    return partition(r, self, args, true, out);
}

METHOD(m_replace)
{
    struct jval a[3];
    int64_t limit;
    TRY(jinja_bind(r, "replace", args, "/old,new,count", 2, a));
    TRY(want_str(r, &a[0]));
    TRY(want_str(r, &a[1]));
    TRY(want_int(r, &a[2], -1, &limit));
    return jinja_replace(r, self, &a[0], &a[1], limit, out);
}

/* --- Searching --- */

/* The range of bytes that the bounds a[1] and a[2], in characters, mean. */
static enum err search_range(struct jinja_run *r, const struct jval *self,
                             const struct jval a[3], size_t *from, size_t *to)
{
    *from = 0;
    *to = self->s.n;
    if (!given(&a[1]) && !given(&a[2]))
        return OK;
    int64_t n = (int64_t)jinja_count_chars(self->s.p, self->s.n), start, end;
    TRY(jinja_step(r, self->s.n / 16));
    TRY(want_int(r, &a[1], 0, &start));
    TRY(want_int(r, &a[2], n, &end));
    start = start < -n ? 0 : start < 0 ? start + n : start;
    end = end < -n ? 0 : end < 0 ? end + n : end > n ? n : end;
    /* Beyond the end nothing is found, not even an empty string. */
    *from = start > n ? SIZE_MAX
                      : jinja_char_offset(self->s.p, self->s.n, (size_t)start);
    *to = jinja_char_offset(self->s.p, self->s.n, (size_t)end);
    return OK;
}

static enum err find(struct jinja_run *r, const struct jval *self,
                     const struct jinja_args *args, bool from_right,
                     struct jval *out)
{
    struct jval a[3];
    size_t from, to, hit = SIZE_MAX;
    TRY(jinja_bind(r, "find", args, "/sub,start,end", 1, a));
    TRY(want_str(r, &a[0]));
    TRY(search_range(r, self, a, &from, &to));
    TRY(jinja_step(r, self->s.n / 16));
    if (from_right)
        TRY(jinja_rfind(r, self, from, to, &a[0], &hit));
    else
        hit = jinja_find(self, from, to, &a[0]);
    int64_t at =
        hit == SIZE_MAX ? -1 : (int64_t)jinja_count_chars(self->s.p, hit);
    *out = jinja_int(at, self->origin);
    return OK;
}

METHOD(m_find)
{
    return find(r, self, args, false, out);
}

METHOD(m_rfind)
{
    return find(r, self, args, true, out);
}

static enum err found(struct jinja_run *r, const struct jval *out)
{
    return out->i >= 0 ? OK : jinja_fail(r, "substring not found");
}

METHOD(m_index)
{
    TRY(find(r, self, args, false, out));
    return found(r, out);
}

METHOD(m_rindex)
{
    TRY(find(r, self, args, true, out));
    return found(r, out);
}

METHOD(m_count)
{
    struct jval a[3];
    size_t from, to;
    int64_t n = 0;
    TRY(jinja_bind(r, "count", args, "/sub,start,end", 1, a));
    TRY(want_str(r, &a[0]));
    TRY(search_range(r, self, a, &from, &to));
    TRY(jinja_step(r, self->s.n / 16));
    if (a[0].s.n == 0 && from <= to)
        n = (int64_t)jinja_count_chars(self->s.p + from, to - from) + 1;
    for (size_t at = from; a[0].s.n > 0; n++) {
        size_t hit = jinja_find(self, at, to, &a[0]);
        if (hit == SIZE_MAX)
            break;
        at = hit + a[0].s.n;
        TRY(jinja_step(r, 1));
    }
    *out = jinja_int(n, self->origin);
    return OK;
}

static bool affix_at(const struct jval *self, const struct jval *affix,
                     size_t from, size_t to, bool at_end)
{
    size_t n = affix->s.n;
    if (from > to || n > to - from)
        return false;
    return n == 0 ||
           memcmp(self->s.p + (at_end ? to - n : from), affix->s.p, n) == 0;
}

static enum err has_affix(struct jinja_run *r, const struct jval *self,
                          const struct jinja_args *args, bool at_end,
                          struct jval *out)
{
    struct jval a[3];
    size_t from, to;
    bool yes = false;
    TRY(jinja_bind(r, "startswith", args, "/affix,start,end", 1, a));
    TRY(search_range(r, self, a, &from, &to));
    if (a[0].type == JINJA_SEQ && a[0].seq->kind == JINJA_TUPLE) {
        for (size_t i = 0; i < a[0].seq->n && !yes; i++) {
            TRY(want_str(r, &a[0].seq->items[i]));
            TRY(jinja_step(r, 1));
            yes = affix_at(self, &a[0].seq->items[i], from, to, at_end);
        }
    } else {
        TRY(want_str(r, &a[0]));
        yes = affix_at(self, &a[0], from, to, at_end);
    }
    *out = jinja_bool(yes);
    return OK;
}

METHOD(m_startswith)
{
    return has_affix(r, self, args, false, out);
}

METHOD(m_endswith)
{
    return has_affix(r, self, args, true, out);
}

static enum err remove_affix(struct jinja_run *r, const struct jval *self,
                             const struct jinja_args *args, bool at_end,
                             struct jval *out)
{
    struct jval affix;
    size_t n = self->s.n;
    TRY(jinja_bind(r, "removeprefix", args, "/affix", 1, &affix));
    TRY(want_str(r, &affix));
    *out = *self;
    if (!affix_at(self, &affix, 0, n, at_end))
        return OK;
    return at_end ? jinja_str_part(r, self, 0, n - affix.s.n, out)
                  : jinja_str_part(r, self, affix.s.n, n, out);
}

METHOD(m_removeprefix)
{
    return remove_affix(r, self, args, false, out);
}

METHOD(m_removesuffix)
{
    return remove_affix(r, self, args, true, out);
}

/* --- Kinds of characters --- */

enum kind { IS_ALPHA, IS_DIGIT, IS_ALNUM, IS_SPACE };

static bool is_kind(uint32_t cp, enum kind kind)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    bool alpha = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    bool digit = c == UTF8PROC_CATEGORY_ND;
    switch (kind) {
    case IS_ALPHA:
        return alpha;
    case IS_DIGIT:
        return digit;
    case IS_ALNUM:
        return alpha || digit;
    default:
        return jinja_is_space(cp);
    }
}

static enum err all_are(struct jinja_run *r, const struct jval *self,
                        const struct jinja_args *args, enum kind kind,
                        struct jval *out)
{
    bool yes = self->s.n > 0;
    TRY(jinja_bind(r, "a method", args, "", 0, NULL));
    TRY(jinja_step(r, self->s.n / 16));
    for (size_t at = 0; at < self->s.n && yes;) {
        uint32_t cp;
        at += jinja_char(self->s.p + at, self->s.n - at, &cp);
        yes = is_kind(cp, kind);
    }
    *out = jinja_bool(yes);
    return OK;
}

METHOD(m_isalpha)
{
    return all_are(r, self, args, IS_ALPHA, out);
}

METHOD(m_isdigit)
{
    return all_are(r, self, args, IS_DIGIT, out);
}

METHOD(m_isalnum)
{
    return all_are(r, self, args, IS_ALNUM, out);
}

METHOD(m_isspace)
{
    return all_are(r, self, args, IS_SPACE, out);
}

/* Some character has this case and none has the other. */
static enum err is_case(struct jinja_run *r, const struct jval *self,
                        const struct jinja_args *args, bool upper,
                        struct jval *out)
{
    bool some = false, other = false;
    TRY(jinja_bind(r, "a method", args, "", 0, NULL));
    TRY(jinja_step(r, self->s.n / 16));
    for (size_t at = 0; at < self->s.n;) {
        uint32_t cp;
        at += jinja_char(self->s.p + at, self->s.n - at, &cp);
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        bool is_upper =
            c == UTF8PROC_CATEGORY_LU || utf8proc_isupper((utf8proc_int32_t)cp);
        bool is_lower =
            c == UTF8PROC_CATEGORY_LL || utf8proc_islower((utf8proc_int32_t)cp);
        some |= upper ? is_upper : is_lower;
        other |= c == UTF8PROC_CATEGORY_LT || (upper ? is_lower : is_upper);
    }
    *out = jinja_bool(some && !other);
    return OK;
}

METHOD(m_isupper)
{
    return is_case(r, self, args, true, out);
}

METHOD(m_islower)
{
    return is_case(r, self, args, false, out);
}

/* --- Padding --- */

enum side { PAD_LEFT, PAD_RIGHT, PAD_BOTH };

static enum err pad(struct jinja_run *r, const struct jval *self,
                    const struct jinja_args *args, enum side side,
                    struct jval *out)
{
    struct jval a[2];
    int64_t width, n = (int64_t)jinja_count_chars(self->s.p, self->s.n);
    TRY(jinja_bind(r, "padding", args, "/width,fillchar", 1, a));
    TRY(want_int(r, &a[0], 0, &width));
    struct jval fill = given(&a[1]) ? a[1] : jinja_text(" ");
    if (fill.type != JINJA_STR || jinja_count_chars(fill.s.p, fill.s.n) != 1)
        return jinja_fail(r, "a fill character is one character");
    int64_t total = width > n ? width - n : 0;
    /* str.center() of CPython gives the odd one to the left of odd widths. */
    int64_t left = side == PAD_LEFT    ? total
                   : side == PAD_RIGHT ? 0
                                       : total / 2 + (total & width & 1);
    struct jinja_sb b = {.r = r};
    for (int64_t i = 0; i <= total; i++) {
        if (i == left)
            TRY(jinja_sb_put_part(&b, self, 0, self->s.n));
        if (i < total)
            TRY(jinja_sb_put_part(&b, &fill, 0, fill.s.n));
        TRY(jinja_step(r, 1));
    }
    return jinja_sb_done(&b, out);
}

METHOD(m_ljust)
{
    return pad(r, self, args, PAD_RIGHT, out);
}

METHOD(m_rjust)
{
    return pad(r, self, args, PAD_LEFT, out);
}

METHOD(m_center)
{
    return pad(r, self, args, PAD_BOTH, out);
}

METHOD(m_format)
{
    return jinja_format(r, self, args, out);
}

const struct jinja_builtin jinja_str_methods[] = {
    {"upper", m_upper},
    {"lower", m_lower},
    {"title", m_title},
    {"capitalize", m_capitalize},
    {"strip", m_strip},
    {"lstrip", m_lstrip},
    {"rstrip", m_rstrip},
    {"split", m_split},
    {"rsplit", m_rsplit},
    {"splitlines", m_splitlines},
    {"join", m_join},
    {"partition", m_partition},
    {"rpartition", m_rpartition},
    {"replace", m_replace},
    {"find", m_find},
    {"rfind", m_rfind},
    {"index", m_index},
    {"rindex", m_rindex},
    {"count", m_count},
    {"startswith", m_startswith},
    {"endswith", m_endswith},
    {"removeprefix", m_removeprefix},
    {"removesuffix", m_removesuffix},
    {"isalpha", m_isalpha},
    {"isdigit", m_isdigit},
    {"isdecimal", m_isdigit},
    {"isnumeric", m_isdigit},
    {"isalnum", m_isalnum},
    {"isspace", m_isspace},
    {"isupper", m_isupper},
    {"islower", m_islower},
    {"ljust", m_ljust},
    {"rjust", m_rjust},
    {"center", m_center},
    {"format", m_format},
    {NULL, NULL}};

/* --- Objects --- */

METHOD(m_get)
{
    struct jval a[2];
    const struct jval *v;
    TRY(jinja_bind(r, "get", args, "/key,default", 1, a));
    TRY(jinja_dict_get(r, self->dict, &a[0], &v));
    *out = v != NULL ? *v : given(&a[1]) ? a[1] : jinja_none();
    return OK;
}

static enum err view(struct jinja_run *r, const struct jval *self,
                     const struct jinja_args *args, enum jinja_seq_kind kind,
                     struct jval *out)
{
    struct jinja_seq *s, *pair;
    size_t n = self->dict->n;
    TRY(jinja_bind(r, "a view of an object", args, "", 0, NULL));
    TRY(jinja_seq_new(r, n, kind, &s));
    for (size_t i = 0; i < n; i++) {
        const struct jinja_entry *e = &self->dict->entries[i];
        s->items[i] = kind == JINJA_KEYS ? e->key : e->value;
        if (kind != JINJA_ITEMS)
            continue;
        TRY(jinja_seq_new(r, 2, JINJA_TUPLE, &pair));
        pair->items[0] = e->key;
        pair->items[1] = e->value;
        s->items[i] = jinja_of_seq(pair, self->origin);
    }
    *out = jinja_of_seq(s, self->origin);
    return jinja_step(r, n);
}

METHOD(m_keys)
{
    return view(r, self, args, JINJA_KEYS, out);
}

METHOD(m_values)
{
    return view(r, self, args, JINJA_VALUES, out);
}

METHOD(m_items)
{
    return view(r, self, args, JINJA_ITEMS, out);
}

/* Values cannot change, so a copy is the value itself. */
METHOD(m_copy)
{
    TRY(jinja_bind(r, "copy", args, "", 0, NULL));
    *out = *self;
    return OK;
}

const struct jinja_builtin jinja_dict_methods[] = {
    {"get", m_get},     {"keys", m_keys}, {"values", m_values},
    {"items", m_items}, {"copy", m_copy}, {NULL, NULL}};

/* --- Lists --- */

METHOD(m_list_count)
{
    struct jval what;
    int64_t n = 0;
    TRY(jinja_bind(r, "count", args, "/value", 1, &what));
    for (size_t i = 0; i < self->seq->n; i++) {
        bool same;
        TRY(jinja_equal(r, &self->seq->items[i], &what, &same));
        n += same;
    }
    *out = jinja_int(n, self->origin);
    return OK;
}

METHOD(m_list_index)
{
    struct jval what;
    TRY(jinja_bind(r, "index", args, "/value", 1, &what));
    for (size_t i = 0; i < self->seq->n; i++) {
        bool same;
        TRY(jinja_equal(r, &self->seq->items[i], &what, &same));
        *out = jinja_int((int64_t)i, self->origin);
        if (same)
            return OK;
    }
    return jinja_fail(r, "the value is not in the list");
}

const struct jinja_builtin jinja_list_methods[] = {{"count", m_list_count},
                                                   {"index", m_list_index},
                                                   {"copy", m_copy},
                                                   {NULL, NULL}};

/* --- Loops --- */

METHOD(m_cycle)
{
    if (args->n == 0 || args->n_kw > 0)
        return jinja_fail(r, "no items for cycling given");
    *out = args->v[(size_t)self->loop->index0 % args->n];
    return OK;
}

METHOD(m_changed)
{
    struct jinja_loop *l = self->loop;
    struct jinja_list values = {0};
    struct jval now;
    bool same = false;
    for (size_t i = 0; i < args->n; i++)
        TRY(jinja_list_add(r, &values, args->v[i]));
    TRY(jinja_list_done(r, &values, JINJA_TUPLE, false, &now));
    if (l->has_last_change)
        TRY(jinja_equal(r, &l->last_change, &now, &same));
    l->has_last_change = true;
    l->last_change = now;
    *out = jinja_bool(!same);
    return OK;
}

const struct jinja_builtin jinja_loop_methods[] = {
    {"cycle", m_cycle}, {"changed", m_changed}, {NULL, NULL}};
