/* utf8.h - checking, reading and repairing UTF-8 (RFC 3629).
 *
 * Strict everywhere: no overlong forms, no surrogates, nothing above
 * U+10FFFF. Threads: any; nothing is kept.
 */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum { UTF8_REPLACEMENT = 0xFFFD, UTF8_MAX_BYTES = 4 };

/* Number of bytes of the character at the start of s[0..n): 1 to 4 and its
 * code point in *cp (which may be NULL); 0 when the bytes are not UTF-8;
 * -1 when they are the beginning of a character that needs more bytes. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);

/* Writes 1 to 4 bytes and returns how many. cp must be a Unicode scalar
 * value; anything else is written as U+FFFD. */
int utf8_encode(uint32_t cp, char out[UTF8_MAX_BYTES]);

bool utf8_is_valid(const char *s, size_t n);

/* Length of the longest valid prefix: where the first wrong byte is, or n. */
size_t utf8_valid_prefix(const char *s, size_t n);

/* ERR_INVAL for what is not valid; the sentence has the first wrong byte. */
MUST_CHECK enum err utf8_check(const char *s, size_t n, struct errmsg *m);

/* Length of the longest prefix of s[0..n) that does not end inside a
 * character: what may be sent now, the rest waits for more bytes. Bytes that
 * can never become a character do not wait. */
size_t utf8_complete_prefix(const char *s, size_t n);

/* Appends s with every maximal ill-formed part replaced by one U+FFFD (the
 * practice Unicode recommends, and what Python's errors="replace" does). */
MUST_CHECK enum err utf8_append_repaired(struct buf *out, const char *s,
                                         size_t n);

#endif
