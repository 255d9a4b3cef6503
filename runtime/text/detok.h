/* detok.h - token ids to text, one at a time, never half a character.
 *
 * A token of a byte-level vocabulary can end inside a character. A detok
 * holds such bytes back (3 at most) until the next token completes them, so
 * that what it appends is valid UTF-8 at every moment. Bytes that cannot
 * become a character any more turn into U+FFFD, one per maximal ill-formed
 * part, so that the whole text is what utf8_append_repaired would make of all
 * bytes together.
 *
 * Threads: one at a time per detok.
 */
#ifndef RUNTIME_TEXT_DETOK_H
#define RUNTIME_TEXT_DETOK_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/utf8.h"
#include "runtime/text/tokenizer.h"

struct detok {
    const struct tokenizer *t; /* borrowed */
    char held[UTF8_MAX_BYTES]; /* the beginning of a character */
    size_t n_held;
};

/* Owns nothing: there is no _fini. */
void detok_init(struct detok *d, const struct tokenizer *t);

/* Appends to *out what can be said now. Control, unknown and unused tokens
 * and ids that do not exist give nothing, and end no character that was begun.
 * ERR_NOMEM and ERR_BUDGET leave d and *out as they were. */
MUST_CHECK enum err detok_push(struct detok *d, int32_t id, struct buf *out);

/* The end of the text: held bytes become one U+FFFD. d is as after
 * detok_init. The same errors, the same way. */
MUST_CHECK enum err detok_flush(struct detok *d, struct buf *out);

#endif
