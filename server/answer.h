/* answer.h - the JSON of answers, whole and as events of a stream.
 *
 * Every event is one line of JSON behind "data: " and ends with a blank line.
 * The order of a stream's events is the caller's business: role (chat only),
 * text, finish, usage if asked for, done (docs/design, api 1.9).
 *
 * All functions append; an error leaves *out longer or as it was, and the
 * answer is lost. Threads: any; nothing is kept.
 */
#ifndef SERVER_ANSWER_H
#define SERVER_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "runtime/engine/engine.h"
#include "server/api_error.h"

enum { ANSWER_TEXT_MAX = 2048 }; /* bytes of text in one event */

/* What all parts of one answer have in common. Strings are borrowed. */
struct answer {
    bool is_chat; /* else a text completion */
    bool include_usage;
    const char *id, *model, *fingerprint;
    int64_t created; /* seconds since 1970 */
};

/* The whole object of a request that did not ask for a stream. */
MUST_CHECK enum err answer_whole(struct buf *out, const struct answer *a,
                                 const struct buf *text,
                                 const struct gen_status *st);

MUST_CHECK enum err answer_role(struct buf *out, const struct answer *a);

/* As many events as it takes; none for an empty text. text is UTF-8, and no
 * character is cut. */
MUST_CHECK enum err answer_text(struct buf *out, const struct answer *a,
                                const char *text, size_t n);
MUST_CHECK enum err answer_finish(struct buf *out, const struct answer *a,
                                  const struct gen_status *st);
MUST_CHECK enum err answer_usage(struct buf *out, const struct answer *a,
                                 const struct gen_status *st);

/* A fault after the 200 was sent. */
MUST_CHECK enum err answer_error(struct buf *out, const struct api_error *e);
MUST_CHECK enum err answer_done(struct buf *out);
MUST_CHECK enum err answer_keep_alive(struct buf *out);

/* Length of the longest prefix of s[0..n) that is at most max bytes and ends
 * with an event; max (or n) where the first event alone is longer. */
size_t answer_whole_events(const char *s, size_t n, size_t max);

#endif
