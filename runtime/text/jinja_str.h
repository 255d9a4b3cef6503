/* jinja_str.h - strings that know where their bytes came from.
 *
 * Positions and lengths are bytes unless a name says chars; a byte that is
 * part of no UTF-8 character counts as a character of its own.
 *
 * Only for the files of the module jinja. Threads: as jinja_value.h.
 */
#ifndef RUNTIME_TEXT_JINJA_STR_H
#define RUNTIME_TEXT_JINJA_STR_H

#include "runtime/text/jinja_value.h"

/* Builds a string from pieces; zeroed except for r. Everything is in the
 * arena of the run. */
struct jinja_sb {
    struct jinja_run *r;
    char *p;
    size_t n, cap;
    size_t max; /* 0: the arena is the only limit */
    struct jinja_span *spans;
    size_t n_spans, cap_spans;
};

MUST_CHECK enum err jinja_sb_put(struct jinja_sb *b, const char *s, size_t n,
                                 jinja_origin origin);
MUST_CHECK enum err jinja_sb_puts(struct jinja_sb *b, const char *s,
                                  jinja_origin origin);
MUST_CHECK enum err jinja_sb_put_char(struct jinja_sb *b, uint32_t cp,
                                      jinja_origin origin);
/* Bytes [from, to) of a string with their origins. */
MUST_CHECK enum err jinja_sb_put_part(struct jinja_sb *b, const struct jval *v,
                                      size_t from, size_t to);
/* str(v) */
MUST_CHECK enum err jinja_sb_put_value(struct jinja_sb *b,
                                       const struct jval *v);
MUST_CHECK enum err jinja_sb_done(struct jinja_sb *b, struct jval *out);

/* Origin of one byte. */
jinja_origin jinja_str_origin(const struct jval *v, size_t at);
MUST_CHECK enum err jinja_str_part(struct jinja_run *r, const struct jval *v,
                                   size_t from, size_t to, struct jval *out);
/* a + b, without a copy of `a` where there is room behind it. */
MUST_CHECK enum err jinja_str_concat(struct jinja_run *r, const struct jval *a,
                                     const struct jval *b, struct jval *out);

/* Bytes of the character at s[0..n), n > 0, and its code point. */
size_t jinja_char(const char *s, size_t n, uint32_t *cp);
size_t jinja_char_before(const char *s, size_t end, uint32_t *cp);
size_t jinja_count_chars(const char *s, size_t n);
/* The byte at which character number `chars` starts; n if there are fewer. */
size_t jinja_char_offset(const char *s, size_t n, size_t chars);

/* First (last) place of needle in s[from..to); SIZE_MAX if there is none. */
size_t jinja_find(const struct jval *s, size_t from, size_t to,
                  const struct jval *needle);
MUST_CHECK enum err jinja_rfind(struct jinja_run *r, const struct jval *s,
                                size_t from, size_t to,
                                const struct jval *needle, size_t *out);

bool jinja_is_space(uint32_t cp);     /* str.isspace() of one character */
bool jinja_is_word(uint32_t cp);      /* \w of Python's re */
bool jinja_is_printable(uint32_t cp); /* str.isprintable() */

enum { JINJA_STRIP_LEFT = 1, JINJA_STRIP_RIGHT = 2, JINJA_STRIP_BOTH = 3 };

/* chars: a string of characters to take away; MISSING or none: white space. */
MUST_CHECK enum err jinja_strip(struct jinja_run *r, const struct jval *s,
                                const struct jval *chars, int sides,
                                struct jval *out);

enum jinja_case {
    JINJA_UPPER,
    JINJA_LOWER,
    JINJA_CAPITAL,   /* str.capitalize() */
    JINJA_TITLE,     /* str.title(): every run of letters */
    JINJA_TITLE_WORD /* the filter `title`: words as it sees them */
};
MUST_CHECK enum err jinja_recase(struct jinja_run *r, const struct jval *s,
                                 enum jinja_case to, struct jval *out);

/* Like str.replace(); limit < 0: all. */
MUST_CHECK enum err jinja_replace(struct jinja_run *r, const struct jval *s,
                                  const struct jval *old,
                                  const struct jval *new_text, int64_t limit,
                                  struct jval *out);
/* Like str.split() or, from_right, str.rsplit(); sep may be MISSING. */
MUST_CHECK enum err jinja_split(struct jinja_run *r, const struct jval *s,
                                const struct jval *sep, int64_t limit,
                                bool from_right, struct jval *out);
MUST_CHECK enum err jinja_splitlines(struct jinja_run *r, const struct jval *s,
                                     bool keep_ends, struct jinja_list *out);
/* Replaces & < > ' " as markupsafe does. */
MUST_CHECK enum err jinja_escape(struct jinja_run *r, const struct jval *s,
                                 struct jval *out);
/* format % args */
MUST_CHECK enum err jinja_percent(struct jinja_run *r, const struct jval *s,
                                  const struct jval *args, struct jval *out);
/* format.format(...) */
MUST_CHECK enum err jinja_format(struct jinja_run *r, const struct jval *s,
                                 const struct jinja_args *args,
                                 struct jval *out);

/* --- Values as text (jinja_print.c) --- */

enum { JINJA_FLOAT_TEXT = 64 };

/* repr(v) of a float: the shortest digits that read back the same. */
void jinja_float_text(double v, char out[JINJA_FLOAT_TEXT]);
MUST_CHECK enum err jinja_to_str(struct jinja_run *r, const struct jval *v,
                                 struct jval *out);
MUST_CHECK enum err jinja_put_repr(struct jinja_sb *b, const struct jval *v);

struct jinja_json_style {
    bool ascii, sort;
    bool pretty; /* on lines of their own, indented by: */
    struct jval indent;
    struct jval comma, colon;
};
MUST_CHECK enum err jinja_put_json(struct jinja_sb *b, const struct jval *v,
                                   const struct jinja_json_style *style);

#endif
