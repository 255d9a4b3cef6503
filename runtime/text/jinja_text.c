#include "runtime/text/jinja_str.h"

#include <string.h>

#include <utf8proc.h>

enum { BYTES_PER_STEP = 32 };

/* --- Stripping --- */

static bool strips(const struct jval *chars, const char *c, size_t n,
                   uint32_t cp)
{
    if (chars->type != JINJA_STR)
        return jinja_is_space(cp);
    struct jval one = {.type = JINJA_STR};
    one.s.p = c;
    one.s.n = n;
    return jinja_find(chars, 0, chars->s.n, &one) != SIZE_MAX;
}

enum err jinja_strip(struct jinja_run *r, const struct jval *s,
                     const struct jval *chars, int sides, struct jval *out)
{
    if (chars->type > JINJA_NONE && chars->type != JINJA_STR)
        return jinja_fail(r, "strip takes a string, not '%s'",
                          jinja_type_name(chars));
    size_t cost = chars->type == JINJA_STR ? chars->s.n / 16 + 1 : 0;
    size_t from = 0, to = s->s.n;
    uint32_t cp;
    while ((sides & JINJA_STRIP_LEFT) != 0 && from < to) {
        size_t n = jinja_char(s->s.p + from, to - from, &cp);
        if (!strips(chars, s->s.p + from, n, cp))
            break;
        from += n;
        TRY(jinja_step(r, cost));
    }
    while ((sides & JINJA_STRIP_RIGHT) != 0 && from < to) {
        size_t n = jinja_char_before(s->s.p + from, to - from, &cp);
        if (!strips(chars, s->s.p + to - n, n, cp))
            break;
        to -= n;
        TRY(jinja_step(r, cost));
    }
    TRY(jinja_step(r, (s->s.n - (to - from)) / BYTES_PER_STEP));
    return jinja_str_part(r, s, from, to, out);
}

/* --- Upper and lower case --- */

static bool is_cased(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
        return true;
    default: /* Other_Lowercase and Other_Uppercase: they have a partner */
        return utf8proc_toupper((utf8proc_int32_t)cp) !=
               utf8proc_tolower((utf8proc_int32_t)cp);
    }
}

/* Characters that do not end a word where a final sigma is looked for
 * (Case_Ignorable of Unicode). */
static bool is_case_ignorable(uint32_t cp)
{
    switch (cp) {
    case '\'':
    case '.':
    case ':':
    case 0xB7:
    case 0x2018:
    case 0x2019:
    case 0x2024:
    case 0x2027:
    case 0xFE13:
    case 0xFE52:
    case 0xFE55:
    case 0xFF07:
    case 0xFF0E:
    case 0xFF1A:
        return true;
    default:
        break;
    }
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return false;
    }
}

/* Is the capital sigma at s[at..at + 2) the last letter of its word? */
static bool is_final_sigma(const char *s, size_t n, size_t at)
{
    uint32_t cp = 0;
    size_t i = at;
    bool cased = false;
    while (i > 0) {
        i -= jinja_char_before(s, i, &cp);
        if (!is_case_ignorable(cp)) {
            cased = is_cased(cp);
            break;
        }
    }
    if (!cased)
        return false;
    for (i = at + 2; i < n;) {
        i += jinja_char(s + i, n - i, &cp);
        if (!is_case_ignorable(cp))
            return !is_cased(cp);
    }
    return true;
}

enum letter_case { AS_UPPER, AS_LOWER, AS_TITLE };

static enum err put_upper(struct jinja_sb *b, uint32_t cp, jinja_origin origin,
                          bool title)
{
    /* A character whose capital is several letters (0xDF: SS) is, for all of
     * Unicode, one whose case folding is several letters; their capitals are
     * what Python makes. */
    enum { FOLD_MAX = 8 };
    utf8proc_int32_t fold[FOLD_MAX];
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(
        (utf8proc_int32_t)cp, fold, FOLD_MAX, UTF8PROC_CASEFOLD, &last);
    utf8proc_int32_t up = title ? utf8proc_totitle((utf8proc_int32_t)cp)
                                : utf8proc_toupper((utf8proc_int32_t)cp);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    bool is_upper = category == UTF8PROC_CATEGORY_LU ||
                    (title && category == UTF8PROC_CATEGORY_LT);
    bool has_title = title && up != (utf8proc_int32_t)cp && cp != 0xDF;
    if (n < 2 || n > FOLD_MAX || is_upper || has_title)
        return jinja_sb_put_char(b, (uint32_t)up, origin);
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        utf8proc_int32_t c = utf8proc_toupper(fold[i]);
        TRY(jinja_sb_put_char(b, (uint32_t)c, origin));
        /* A title has one capital; marks go with it. */
        while (title && c != fold[i] && i + 1 < n)
            TRY(jinja_sb_put_char(b, (uint32_t)fold[++i], origin));
    }
    return OK;
}

/* One character of s, at `at`, in another case. Context of a sigma is
 * s[from..to). */
static enum err put_case(struct jinja_sb *b, const struct jval *s, size_t from,
                         size_t to, size_t at, enum letter_case as)
{
    uint32_t cp;
    size_t len = jinja_char(s->s.p + at, to - at, &cp);
    jinja_origin origin = jinja_str_origin(s, at);
    if (len == 1 && (unsigned char)s->s.p[at] >= 0x80)
        return jinja_sb_put_part(b, s, at, at + 1); /* not a character */
    if (as != AS_LOWER)
        return put_upper(b, cp, origin, as == AS_TITLE);
    if (cp == 0x3A3 && is_final_sigma(s->s.p + from, to - from, at - from))
        return jinja_sb_put_char(b, 0x3C2, origin);
    if (cp == 0x130)
        return jinja_sb_puts(b, "i\xCC\x87", origin);
    return jinja_sb_put_char(
        b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), origin);
}

/* What ends a word for the filter `title`. */
static bool splits_title(uint32_t cp)
{
    return cp == '-' || jinja_is_space(cp) || cp == '(' || cp == '{' ||
           cp == '[' || cp == '<';
}

struct casing {
    enum jinja_case to;
    bool inside; /* of a word, or behind the first character */
    size_t word; /* where the word starts */
};

static enum letter_case choose(struct casing *c, uint32_t cp, size_t at,
                               size_t len)
{
    bool was_inside = c->inside;
    switch (c->to) {
    case JINJA_UPPER:
        return AS_UPPER;
    case JINJA_LOWER:
        return AS_LOWER;
    case JINJA_CAPITAL:
        c->inside = true;
        return was_inside ? AS_LOWER : AS_TITLE;
    case JINJA_TITLE:
        c->inside = is_cased(cp);
        return was_inside ? AS_LOWER : AS_TITLE;
    case JINJA_TITLE_WORD:
        break;
    }
    /* The reference splits at runs of separators; a run is an item too, which
     * has no case, so each side starts afresh. */
    c->inside = !splits_title(cp);
    if (!c->inside)
        c->word = at + len;
    return was_inside ? AS_LOWER : AS_UPPER;
}

enum err jinja_recase(struct jinja_run *r, const struct jval *s,
                      enum jinja_case to, struct jval *out)
{
    struct jinja_sb b = {.r = r};
    struct casing c = {.to = to};
    const char *p = s->s.p;
    TRY(jinja_step(r, s->s.n / 4));
    for (size_t at = 0; at < s->s.n;) {
        uint32_t cp;
        size_t len = jinja_char(p + at, s->s.n - at, &cp);
        enum letter_case as = choose(&c, cp, at, len);
        /* A word of `title` is lowered as a string of its own, which starts
         * behind its first letter. */
        size_t from = 0;
        if (to == JINJA_TITLE_WORD) {
            uint32_t first;
            from = c.word;
            if (at > from)
                from += jinja_char(p + from, s->s.n - from, &first);
        }
        TRY(put_case(&b, s, from, s->s.n, at, as));
        at += len;
    }
    TRY(jinja_sb_done(&b, out));
    out->is_markup = s->is_markup;
    return OK;
}

/* --- Replacing and splitting --- */

/* An empty `old` matches between all characters. */
static enum err replace_empty(struct jinja_sb *b, const struct jval *s,
                              const struct jval *new_text, int64_t limit)
{
    uint32_t cp;
    for (size_t at = 0;; limit--) {
        if (limit != 0)
            TRY(jinja_sb_put_part(b, new_text, 0, new_text->s.n));
        if (at >= s->s.n)
            return OK;
        size_t len = limit == 0 ? s->s.n - at
                                : jinja_char(s->s.p + at, s->s.n - at, &cp);
        TRY(jinja_sb_put_part(b, s, at, at + len));
        TRY(jinja_step(b->r, 1));
        at += len;
        if (limit == 0)
            return OK;
    }
}

enum err jinja_replace(struct jinja_run *r, const struct jval *s,
                       const struct jval *old, const struct jval *new_text,
                       int64_t limit, struct jval *out)
{
    struct jinja_sb b = {.r = r};
    size_t at = 0;
    TRY(jinja_step(r, s->s.n / BYTES_PER_STEP));
    if (old->s.n == 0) {
        TRY(replace_empty(&b, s, new_text, limit));
        return jinja_sb_done(&b, out);
    }
    for (; limit != 0; limit--) {
        size_t hit = jinja_find(s, at, s->s.n, old);
        if (hit == SIZE_MAX)
            break;
        TRY(jinja_step(r, 1));
        TRY(jinja_sb_put_part(&b, s, at, hit));
        TRY(jinja_sb_put_part(&b, new_text, 0, new_text->s.n));
        at = hit + old->s.n;
    }
    TRY(jinja_sb_put_part(&b, s, at, s->s.n));
    return jinja_sb_done(&b, out);
}

static enum err add_part(struct jinja_run *r, struct jinja_list *l,
                         const struct jval *s, size_t from, size_t to)
{
    struct jval part;
    TRY(jinja_str_part(r, s, from, to, &part));
    return jinja_list_add(r, l, part);
}

static size_t skip_spaces(const struct jval *s, size_t at)
{
    uint32_t cp;
    while (at < s->s.n) {
        size_t n = jinja_char(s->s.p + at, s->s.n - at, &cp);
        if (!jinja_is_space(cp))
            break;
        at += n;
    }
    return at;
}

static size_t skip_word(const struct jval *s, size_t at)
{
    uint32_t cp;
    while (at < s->s.n) {
        size_t n = jinja_char(s->s.p + at, s->s.n - at, &cp);
        if (jinja_is_space(cp))
            break;
        at += n;
    }
    return at;
}

static enum err split_words(struct jinja_run *r, const struct jval *s,
                            int64_t limit, struct jinja_list *l)
{
    size_t at = skip_spaces(s, 0);
    while (at < s->s.n) {
        size_t end = limit == 0 ? s->s.n : skip_word(s, at);
        if (limit-- == 0)
            return add_part(r, l, s, at, end);
        TRY(add_part(r, l, s, at, end));
        at = skip_spaces(s, end);
    }
    return OK;
}

static enum err rsplit_words(struct jinja_run *r, const struct jval *s,
                             int64_t limit, struct jinja_list *l)
{
    size_t end = s->s.n;
    uint32_t cp;
    for (;; limit--) {
        size_t n;
        while (end > 0 && (n = jinja_char_before(s->s.p, end, &cp)) > 0 &&
               jinja_is_space(cp))
            end -= n;
        size_t from = end;
        while (from > 0 && (n = jinja_char_before(s->s.p, from, &cp)) > 0 &&
               !jinja_is_space(cp))
            from -= n;
        if (end == 0)
            return OK;
        if (limit == 0)
            return add_part(r, l, s, 0, end);
        TRY(add_part(r, l, s, from, end));
        end = from;
    }
}

static enum err split_at(struct jinja_run *r, const struct jval *s,
                         const struct jval *sep, int64_t limit,
                         struct jinja_list *l)
{
    size_t at = 0;
    for (; limit != 0; limit--) {
        size_t hit = jinja_find(s, at, s->s.n, sep);
        if (hit == SIZE_MAX)
            break;
        TRY(add_part(r, l, s, at, hit));
        at = hit + sep->s.n;
    }
    return add_part(r, l, s, at, s->s.n);
}

static enum err rsplit_at(struct jinja_run *r, const struct jval *s,
                          const struct jval *sep, int64_t limit,
                          struct jinja_list *l)
{
    size_t end = s->s.n;
    for (; limit != 0; limit--) {
        size_t hit;
        TRY(jinja_rfind(r, s, 0, end, sep, &hit));
        TRY(jinja_step(r, end / BYTES_PER_STEP));
        if (hit == SIZE_MAX)
            break;
        TRY(add_part(r, l, s, hit + sep->s.n, end));
        end = hit;
    }
    return add_part(r, l, s, 0, end);
}

enum err jinja_split(struct jinja_run *r, const struct jval *s,
                     const struct jval *sep, int64_t limit, bool from_right,
                     struct jval *out)
{
    struct jinja_list l = {0};
    TRY(jinja_step(r, s->s.n / BYTES_PER_STEP));
    if (sep->type <= JINJA_NONE && sep->type != JINJA_UNDEFINED) {
        TRY(from_right ? rsplit_words(r, s, limit, &l)
                       : split_words(r, s, limit, &l));
    } else if (sep->type != JINJA_STR) {
        return jinja_fail(r, "a separator must be a string, not '%s'",
                          jinja_type_name(sep));
    } else if (sep->s.n == 0) {
        return jinja_fail(r, "empty separator");
    } else {
        TRY(from_right ? rsplit_at(r, s, sep, limit, &l)
                       : split_at(r, s, sep, limit, &l));
    }
    for (size_t i = 0; from_right && i < l.n / 2; i++) {
        struct jval tmp = l.items[i];
        l.items[i] = l.items[l.n - 1 - i];
        l.items[l.n - 1 - i] = tmp;
    }
    return jinja_list_done(r, &l, JINJA_LIST, false, out);
}

static bool ends_line(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) ||
           cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

enum err jinja_splitlines(struct jinja_run *r, const struct jval *s,
                          bool keep_ends, struct jinja_list *out)
{
    size_t from = 0;
    TRY(jinja_step(r, s->s.n / BYTES_PER_STEP));
    for (size_t at = 0; at < s->s.n;) {
        uint32_t cp;
        size_t end = at, n = jinja_char(s->s.p + at, s->s.n - at, &cp);
        at += n;
        if (!ends_line(cp))
            continue;
        if (cp == '\r' && at < s->s.n && s->s.p[at] == '\n')
            at++;
        TRY(add_part(r, out, s, from, keep_ends ? at : end));
        from = at;
    }
    return from < s->s.n ? add_part(r, out, s, from, s->s.n) : OK;
}

enum err jinja_escape(struct jinja_run *r, const struct jval *s,
                      struct jval *out)
{
    static const char special[] = "&<>'\"";
    static const char *const entity[] = {"&amp;", "&lt;", "&gt;", "&#39;",
                                         "&#34;"};
    struct jinja_sb b = {.r = r};
    size_t from = 0;
    for (size_t i = 0; i < s->s.n && !s->is_markup; i++) {
        const char *at = s->s.p[i] != '\0' ? strchr(special, s->s.p[i]) : NULL;
        if (at == NULL)
            continue;
        TRY(jinja_sb_put_part(&b, s, from, i));
        TRY(jinja_sb_puts(&b, entity[at - special], jinja_str_origin(s, i)));
        from = i + 1;
    }
    TRY(jinja_sb_put_part(&b, s, from, s->s.n));
    TRY(jinja_sb_done(&b, out));
    out->is_markup = true;
    return OK;
}
