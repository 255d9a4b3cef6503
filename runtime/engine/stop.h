/* stop.h - stop strings over the borders of tokens.
 *
 * Text arrives in pieces; what may be shown leaves at once. The longest tail
 * that is a beginning of some stop string is held back until it is decided.
 *
 * Which match counts does not depend on the pieces: the one that is complete
 * first, that is, ends first; where two end at the same byte, the longer one.
 * The text is cut where that match begins.
 *
 * The held tail needs no memory: it is a prefix of a stop string.
 *
 * Owns its tables, borrows the strings. Threads: one at a time.
 */
#ifndef RUNTIME_ENGINE_STOP_H
#define RUNTIME_ENGINE_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "runtime/engine/engine.h"

struct stop {
    uint32_t n;
    const char *text[GEN_STOPS_MAX]; /* borrowed */
    uint32_t len[GEN_STOPS_MAX];
    /* fail[i][k]: length of the longest proper prefix of stop i that its
     * first k + 1 bytes end with (Knuth, Morris, Pratt 1977). */
    uint16_t *fail[GEN_STOPS_MAX];
    uint32_t at[GEN_STOPS_MAX]; /* bytes of stop i that the text ends with */
    bool matched;
};

/* n at most GEN_STOPS_MAX, lengths 1 to GEN_STOP_BYTES_MAX. ERR_NOMEM leaves
 * *s as one that stop_fini() accepts. */
MUST_CHECK enum err stop_init(struct stop *s, const char *const *text,
                              const size_t *len, uint32_t n);
void stop_fini(struct stop *s); /* a zeroed one is allowed */

/* Takes the next n bytes of text and appends to *out what can be shown now.
 * Returns OK also when a match was found: then s->matched is true, *out ends
 * right before it, and nothing more may be pushed. On ERR_NOMEM the piece is
 * lost and the text incomplete. */
MUST_CHECK enum err stop_push(struct stop *s, const char *text, size_t n,
                              struct buf *out);

/* The text has ended without a match: what was held back is shown. */
MUST_CHECK enum err stop_flush(struct stop *s, struct buf *out);

#endif
