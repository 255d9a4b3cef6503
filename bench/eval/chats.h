/* chats.h - a user's own conversations as documents.
 *
 * A file has one conversation a line: an array of messages as in OpenAI's
 * API, or an object with it under "messages"; lines of blanks are none. Every
 * answer of the assistant is a document: what was said before it is the prompt,
 * its first 256 tokens are predicted, up to the one that ends its turn.
 *
 * Owns the parsed messages. Threads: one at a time.
 */
#ifndef BENCH_EVAL_CHATS_H
#define BENCH_EVAL_CHATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "bench/eval/document.h"
#include "runtime/engine/prompt.h"

enum { CHATS_TOKENS_MIN = 64 };

struct chats_options {
    const struct tokenizer *tokenizer; /* both borrowed */
    const struct prompt *prompt;
    uint32_t max_tokens;     /* of a prompt */
    size_t max_answers;      /* the first ones; the rest is only counted */
    const atomic_bool *stop; /* may be NULL */
};

/* Answers that were passed by, and why. The first three need no template, and
 * are of the whole file; the others of what is before the last that was taken.
 */
struct chats_passed {
    size_t n_first;  /* nothing is before them */
    size_t n_empty;  /* they say nothing: a call of a tool, a refusal */
    size_t n_unread; /* in them or before them is what no template reads: an
                        image, content that is no text; a conversation with a
                        NUL anywhere (\u0000) */
    size_t n_short;  /* less than CHATS_TOKENS_MIN tokens before them */
    size_t n_long;   /* more than max_tokens */
    size_t n_apart;  /* the template writes them otherwise once they are said */
};

/* Answers whose prompts have CHATS_TOKENS_MIN to max_tokens tokens; others are
 * passed by. ERR_INVAL: a line is no conversation, or the template refuses it;
 * the sentence has its number. ERR_CANCELLED: stopped. Renders no conversation
 * further than to the first prompt that is too long. */
MUST_CHECK enum err chats_load(struct chats **out,
                               const struct chats_options *o, const char *path,
                               struct errmsg *m);
void chats_free(struct chats *c); /* NULL is allowed */

/* Answers that are documents. */
size_t chats_count(const struct chats *c);
/* Answers after them, that max_answers leaves out. */
size_t chats_left_out(const struct chats *c);
struct chats_passed chats_passed(const struct chats *c);
/* SHA-256 of the file, in hexadecimal. */
const char *chats_hash(const struct chats *c);

/* Answer i as a document. On OK the caller ends it with document_fini(). */
MUST_CHECK enum err chats_document(struct document *out, const struct chats *c,
                                   size_t i, struct errmsg *m);

#endif
