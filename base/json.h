/* json.h - reading and writing JSON without the traps of the library below.
 *
 * Reading is cJSON behind checks of our own (docs/design, api 1.4): the whole
 * text must be UTF-8, one document, without NULs, nesting above
 * JSON_DEPTH_MAX, more than JSON_VALUES_MAX values, numbers that are not
 * finite, or an object that has a key twice. A lone surrogate escape becomes
 * U+FFFD. Control characters inside strings are accepted as they are.
 *
 * In a parsed tree a whole number of 16 digits and more has its digits in
 * valuestring, because a double would lose some: json_int64() reads them.
 * Everything else of a tree is as cJSON documents it. Look members up with
 * json_get(), never with cJSON_GetObjectItem(), which ignores case.
 *
 * Writing appends to a struct buf; nothing goes through a tree.
 *
 * Threads: any; a tree and a buf belong to one thread at a time.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/buf.h"
#include "base/err.h"

enum { JSON_DEPTH_MAX = 1000, JSON_VALUES_MAX = 1000000 };

/* Parses text[0..n), which needs no NUL after it. On OK the caller owns *out
 * and ends it with cJSON_Delete(). ERR_INVAL: the sentence says what is wrong
 * at which byte. Time O(n log n), memory O(n). */
MUST_CHECK enum err json_parse(cJSON **out, const char *text, size_t n,
                               struct errmsg *m);

/* The member with exactly this key; NULL where there is none or where obj is
 * NULL or no object. */
const cJSON *json_get(const cJSON *obj, const char *key);

/* The same, but a member that is null counts as absent: what every optional
 * field of a request wants. */
const cJSON *json_get_set(const cJSON *obj, const char *key);

/* A whole number, exactly; 3.0 and 3e2 count. ERR_INVAL: not a number, or one
 * with a fraction. ERR_UNSUPPORTED: a whole number that no int64 can hold. */
MUST_CHECK enum err json_int64(const cJSON *item, int64_t *out);

/* Appends a quoted string. Bytes that are not UTF-8 become U+FFFD; control
 * characters, and what some readers take for a line end (U+0085, U+2028,
 * U+2029), are escaped, so the result is always one line. */
MUST_CHECK enum err json_put_string(struct buf *b, const char *s, size_t n);
MUST_CHECK enum err json_put_text(struct buf *b, const char *s); /* to NUL */

/* "key": with the colon, for a key that is a plain C string. */
MUST_CHECK enum err json_put_key(struct buf *b, const char *key);

MUST_CHECK enum err json_put_int(struct buf *b, int64_t v);
MUST_CHECK enum err json_put_uint(struct buf *b, uint64_t v);
MUST_CHECK enum err json_put_bool(struct buf *b, bool v);

enum { JSON_DOUBLE_MAX = 40 }; /* bytes of a double as text, with its NUL */

/* The shortest digits that read back as the same double (or float), for a
 * sentence. */
void json_format_double(char out[JSON_DOUBLE_MAX], double v);
void json_format_float(char out[JSON_DOUBLE_MAX], float v);

/* The shortest digits that read back as the same double (or float).
 * ERR_INVAL, nothing written, for an infinity or a NaN: JSON has none, and
 * null would be a lie. */
MUST_CHECK enum err json_put_double(struct buf *b, double v);
MUST_CHECK enum err json_put_float(struct buf *b, float v);

/* A whole tree, compact, with the rules above (whole numbers that were parsed
 * keep all digits). Recursion is bounded by JSON_DEPTH_MAX; deeper is
 * ERR_INVAL. */
MUST_CHECK enum err json_put_value(struct buf *b, const cJSON *v);

#endif
