/* tokenizer.h - text to token ids and back, as the model's makers did it.
 *
 * Byte-level BPE. Text goes through four steps:
 *   1. special tokens (<|im_start|> ...) are cut out where that is allowed,
 *      leftmost first, of several at one place the longest;
 *   2. what lies between is normalised if the model wants it (NFC) and
 *   3. split into words by the model's own rule (pretok.h), and
 *   4. the bytes of each word are merged pair by pair, the pair that stands
 *      first in the model's list of merges first, the leftmost on a tie.
 * Ids are those of the Hugging Face `tokenizers` library for the same
 * vocabulary, merges and rules. Like there, a byte for which the vocabulary
 * has no token disappears.
 *
 * User text never becomes a special token: special tokens are recognised only
 * in text that the caller marks, and neither merges nor whole-word look-ups
 * give them.
 *
 * Kinds of tokens (tokenizer.ggml.token_type). Normal (1) and byte (6) tokens
 * are text in the byte-level alphabet. Special are control (3), unknown (2)
 * and user-defined (4) tokens; their text stands in the file as it is. Unused
 * ones (5) have no use at all: no text becomes one.
 *
 * Threads: a tokenizer never changes after it is made; any number of threads
 * may use it at once.
 */
#ifndef RUNTIME_TEXT_TOKENIZER_H
#define RUNTIME_TEXT_TOKENIZER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "runtime/gguf/gguf.h"

enum {
    TOKENIZER_PARSE_SPECIAL = 1, /* text of special tokens becomes them */
    TOKENIZER_ADD_BOS = 2        /* begin with BOS if the model wants one */
};

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

struct tokenizer; /* opaque: fields are in tokenizer_internal.h */

/* What a tokenizer is made of. Everything is borrowed for the time of
 * tokenizer_new only. */
struct tokenizer_spec {
    struct gguf_str pre;          /* rule to split words: see pretok.h */
    const struct gguf_str *token; /* text of each token, as in the file */
    const int32_t *type;          /* enum token_type; NULL: all are normal */
    size_t n_tokens;
    const struct gguf_str *merge; /* "left right", best first */
    size_t n_merges;
    int32_t bos, eos, eot, eom; /* -1: none */
    bool add_bos;
};

/* Which tokens hold marked text, ascending, disjoint, never empty. A zeroed one
 * is valid and empty; free with token_ranges_fini. */
struct token_range {
    size_t from, to; /* `to` is the first outside */
};

struct token_ranges {
    struct token_range *v;
    size_t n, cap;
};

void token_ranges_fini(struct token_ranges *r); /* leaves a valid empty one */

/* Token ids, growing. A zeroed one is valid and empty; free with
 * tokens_fini. */
struct tokens {
    int32_t *id;
    size_t n;
    size_t cap;
    size_t max; /* 0: unlimited; else more than this is ERR_BUDGET */
    /* Or NULL: once it is true, encoding into this list ends soon with
     * ERR_CANCELLED. Borrowed. */
    const atomic_bool *stop;
    /* Or NULL: gets the tokens of marked segments. Borrowed. */
    struct token_ranges *marked;
};

void tokens_fini(struct tokens *v); /* leaves a valid empty one */

/* ERR_NOMEM or ERR_BUDGET leave the content as it was. */
MUST_CHECK enum err tokens_push(struct tokens *v, int32_t id);

/* A piece of text for tokenizer_encode_segments. */
struct text_segment {
    const char *s;
    size_t n;
    bool special; /* special tokens are recognised in it */
    bool marked;  /* its tokens are wanted in out->marked */
};

/* On OK the caller owns *out and ends it with tokenizer_free(); on error *out
 * is NULL. ERR_UNSUPPORTED: a split rule that we do not have; the sentence
 * names it. ERR_INVAL: empty or duplicate tokens, types or ids out of range,
 * merges that do not consist of two known tokens that make a third; the
 * sentence has the index and what was found. ERR_NOMEM. */
MUST_CHECK enum err tokenizer_new(struct tokenizer **out,
                                  const struct tokenizer_spec *spec,
                                  struct errmsg *m);

/* The same from the metadata of a model file (keys tokenizer.ggml.*); g is
 * not needed afterwards. Also ERR_UNSUPPORTED for a tokenizer.ggml.model that
 * is not "gpt2" (byte-level BPE). A key that is missing: ERR_NOTFOUND, unless
 * it has a default: token_type (all normal), bos/eos/eot/eom ids (none),
 * add_bos_token (no; with llama-bpe yes). */
MUST_CHECK enum err tokenizer_from_gguf(struct tokenizer **out,
                                        const struct gguf *g, struct errmsg *m);

void tokenizer_free(struct tokenizer *t); /* NULL is allowed */

/* Appends the ids of text[0..n) to *out. flags: TOKENIZER_PARSE_SPECIAL and
 * TOKENIZER_ADD_BOS, or 0. A BOS that the text itself begins with (as a
 * special token) is not doubled. Ill-formed UTF-8 is read as U+FFFD
 * (utf8_append_repaired). Time O(n log n), memory O(n).
 * On error *out is as it was: ERR_BUDGET more than out->max ids, which is told
 * before any work where the number of bytes alone proves it; ERR_CANCELLED
 * out->stop became true; ERR_INVAL the text is longer than
 * TOKENIZER_TEXT_MAX; ERR_NOMEM; ERR_INTERNAL when the regular expression
 * engine gave up. */
MUST_CHECK enum err tokenizer_encode(const struct tokenizer *t,
                                     const char *text, size_t n, unsigned flags,
                                     struct tokens *out);

/* The same for text in pieces, as a chat template makes it: the ids are those
 * of the pieces joined, except that a special token is recognised only where
 * all of it lies in segments that allow it. Words and merges run across the
 * borders. flags: TOKENIZER_ADD_BOS or 0. A character must not be cut by a
 * border (each segment is repaired on its own). Into out->marked go the tokens
 * of every word that holds a byte of a marked segment; where the model wants
 * NFC and a character at the border may be composed, those of its neighbours
 * too. */
MUST_CHECK enum err tokenizer_encode_segments(const struct tokenizer *t,
                                              const struct text_segment *seg,
                                              size_t n_segs, unsigned flags,
                                              struct tokens *out);

enum { TOKENIZER_TEXT_MAX = 1 << 28 }; /* bytes of one text */

/* A text of n valid bytes never has fewer tokens than this. 0 where nothing
 * can be said: the vocabulary lacks a byte, which then disappears. */
size_t tokenizer_least_tokens(const struct tokenizer *t, size_t n);

/* Number of tokens; valid ids are 0 to n_vocab - 1. */
size_t tokenizer_n_vocab(const struct tokenizer *t);

/* The bytes a token stands for (special tokens: their text), not terminated;
 * *n is how many. Borrowed from t. NULL when there is no such id. A token may
 * hold a part of a character only. */
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id,
                                  size_t *n);

/* Control, unknown or user-defined: it comes from marked text only. False
 * for an id that does not exist. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* It gives no text in an answer: control, unknown and unused tokens (and
 * every id that does not exist). User-defined ones such as <tool_call> are
 * special but give their text. */
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);

/* -1 when the model names none. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);

/* The tokens that end an answer, ascending; *n is how many. They are the
 * file's eos, eot and eom ids and every control token with one of the names
 * that model families use for it: <|im_end|>, <|endoftext|>, <|eot_id|>,
 * <|eom_id|>, <|end_of_text|>, <|end|>, <|return|>, <end_of_turn>, </s>.
 * Borrowed from t. */
const int32_t *tokenizer_eog(const struct tokenizer *t, size_t *n);
bool tokenizer_is_eog(const struct tokenizer *t, int32_t id);

/* The token with exactly these bytes, a special one before a normal one; -1
 * when there is none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n);

#endif
