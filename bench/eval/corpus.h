/* corpus.h - held-out texts as tokens, dealt out in windows.
 *
 * Every document of an evaluation is made from a window of its own, so that
 * no two documents of a task share text and the bootstrap may treat them as
 * independent. Which window is number i depends on the seed and on the length
 * of the windows, not on how many are asked for: more documents leave the
 * first ones as they are.
 *
 * Owns the tokens. Threads: one at a time.
 */
#ifndef BENCH_EVAL_CORPUS_H
#define BENCH_EVAL_CORPUS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "runtime/text/tokenizer.h"

struct corpus;

/* Reads the files and tokenises them. At least one text. The tokenizer is
 * borrowed. On OK the caller ends *out with corpus_free(). ERR_INVAL: a text
 * is not UTF-8, and the sentence has the file and the byte; or two are the
 * same. */
MUST_CHECK enum err corpus_load(struct corpus **out, const struct tokenizer *t,
                                char *const *path, size_t n, struct errmsg *m);
/* The same from one text in memory. */
MUST_CHECK enum err corpus_from_text(struct corpus **out,
                                     const struct tokenizer *t,
                                     const char *text, size_t n,
                                     struct errmsg *m);
void corpus_free(struct corpus *c); /* NULL is allowed */

/* SHA-256 over the tokens of all texts and where they end, in hexadecimal: what
 * the documents depend on. */
const char *corpus_hash(const struct corpus *c);

/* Cuts the texts into windows of n_tokens, none across two texts, and shuffles
 * them. Returns how many there are; 0 where no text is that long. */
MUST_CHECK enum err corpus_deal(struct corpus *c, uint32_t n_tokens,
                                uint64_t seed, size_t *n_windows);

/* Window i of the last deal, below its number. Borrowed from c. */
const int32_t *corpus_window(const struct corpus *c, size_t i);

#endif
