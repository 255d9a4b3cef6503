/* chats.h - a user's own conversations as documents.
 *
 * A file has one conversation a line: an array of messages as in OpenAI's
 * API, or an object with it under "messages". Every answer of the assistant is
 * a document: what was said before it is the prompt, its first 256 tokens are
 * predicted.
 *
 * Owns the parsed messages. Threads: one at a time.
 */
#ifndef BENCH_EVAL_CHATS_H
#define BENCH_EVAL_CHATS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "bench/eval/document.h"
#include "runtime/engine/prompt.h"

enum { CHATS_TOKENS_MIN = 64 };

/* Answers whose prompts have CHATS_TOKENS_MIN to max_tokens tokens; others are
 * passed by. The prompt is borrowed. ERR_INVAL: a line is no conversation, or
 * the template refuses it; the sentence has its number. */
MUST_CHECK enum err chats_load(struct chats **out, const struct prompt *prompt,
                               const char *path, uint32_t max_tokens,
                               struct errmsg *m);
void chats_free(struct chats *c); /* NULL is allowed */

/* Answers that are documents, and those that were passed by. */
size_t chats_count(const struct chats *c);
size_t chats_n_passed(const struct chats *c);
/* SHA-256 of the file, in hexadecimal. */
const char *chats_hash(const struct chats *c);

/* Answer i as a document. On OK the caller ends it with document_fini(). */
MUST_CHECK enum err chats_document(struct document *out, const struct chats *c,
                                   size_t i, struct errmsg *m);

#endif
