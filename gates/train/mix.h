/* mix.h - the sequences that gates are trained on.
 *
 * Six kinds, in shares that the caller sets: plain text; the same text as a
 * chat; recall documents (facts told early, asked for at the end: as one text,
 * as a chat about a text, or each in a turn of its own); text in which an
 * earlier span comes again; lists of examples of one rule; and recall
 * documents whose facts are of no pattern, but words of the text with an end
 * that is drawn (cloze). Plain text alone teaches what matters for the next
 * word, the others what matters later.
 *
 * Sequence number `step` is a function of seed and step alone, so that a run
 * that was killed continues with the sequences it would have seen.
 *
 * Words, names and sentence patterns of the recall documents are those of
 * mix_words.c; the evaluation's are others, or it would measure what was
 * learned by heart.
 *
 * Threads: one at a time.
 */
#ifndef GATES_TRAIN_MIX_H
#define GATES_TRAIN_MIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "runtime/text/tokenizer.h"

enum mix_kind {
    MIX_PLAIN,
    MIX_CHAT,
    MIX_RECALL,
    MIX_COPY,
    MIX_LIST,
    MIX_CLOZE,
    MIX_KINDS
};

struct mix_turn {
    bool is_user;     /* else the assistant */
    const char *text; /* n bytes of UTF-8 */
    size_t n;
};

/* Appends a whole conversation as the model's template writes it. */
typedef enum err (*mix_chat_fn)(void *ctx, const struct mix_turn *turns,
                                size_t n_turns, struct tokens *out,
                                struct errmsg *m);

struct mix_options {
    const struct tokenizer *tokenizer;
    mix_chat_fn chat; /* NULL: chats are written as plain "User:" text */
    void *chat_ctx;
    uint32_t share[MIX_KINDS]; /* relative; not all zero */
    uint64_t seed;
};

struct mix;

/* On OK the caller owns *out; the tokenizer is borrowed. ERR_INVAL where no
 * kind has a share. */
MUST_CHECK enum err mix_new(struct mix **out, const struct mix_options *o,
                            struct errmsg *m);
void mix_free(struct mix *x); /* NULL is allowed */

/* Takes a text in. ERR_INVAL for one of fewer than MIX_TEXT_MIN bytes, and for
 * one that is not UTF-8; the sentence has the byte. */
enum { MIX_TEXT_MIN = 1024, MIX_TEXT_MAX = 256 << 20, MIX_TOKENS_MIN = 64 };
MUST_CHECK enum err mix_add_text(struct mix *x, const char *text, size_t n,
                                 struct errmsg *m);

/* Tokens of all texts. */
size_t mix_n_tokens(const struct mix *x);

/* Writes exactly n_tokens ids (at least MIX_TOKENS_MIN) of sequence `step`
 * into out, the first of them BOS where the model wants one. At least one text
 * was added. *kind (may be NULL) says what it is. */
MUST_CHECK enum err mix_sequence(struct mix *x, uint64_t step,
                                 uint32_t n_tokens, int32_t *out,
                                 enum mix_kind *kind, struct errmsg *m);

/* Of the sequence that was made last, which tokens answer what is asked in it:
 * [its n_tokens], 1 for a token of an answer, else 0. Of recall and cloze
 * documents only. Borrowed, until the next sequence. */
const uint8_t *mix_answers(const struct mix *x);

/* "plain", "chat", "recall", "copy", "list", "cloze". */
const char *mix_kind_name(enum mix_kind kind);

#endif
