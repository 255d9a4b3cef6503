/* nfc.h - Unicode normalisation form C in linear time.
 *
 * Decomposition, classes and composition come from libutf8proc; the ordering
 * of marks is our own, because the library's takes quadratic time for a long
 * run of marks, which any client could send.
 *
 * Characters that are newer than the reference tokenizer's tables (it knows
 * Unicode 9) stay as they are and stop marks from moving past them, as there:
 * tests/tools/make_unicode_tables.py.
 *
 * Threads: any; nothing is kept.
 */
#ifndef RUNTIME_TEXT_NFC_H
#define RUNTIME_TEXT_NFC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

/* The NFC form of n bytes has at least n / NFC_SHRINK_MAX. The worst is 3.5:
 * U+1FBE, another name of iota, with two marks has seven bytes and becomes
 * U+0390, which has two. */
enum { NFC_SHRINK_MAX = 4 };

/* All characters lie below U+0300: the text is NFC already. False says
 * nothing. s need not be valid UTF-8. */
bool nfc_is_trivial(const char *s, size_t n);

/* Appends the NFC form of s[0..n), which must be valid UTF-8 and not lie in
 * *out. ERR_NOMEM or ERR_BUDGET may leave a part of it appended. Memory: four
 * bytes for each character of the longest stretch without one below U+0300. */
MUST_CHECK enum err nfc_append(struct buf *out, const char *s, size_t n);

#endif
