/* tokenizer_internal.h - what the files behind tokenizer.h share.
 *
 * tokenizer_vocab.c builds the tables, tokenizer_bpe.c merges one word,
 * tokenizer_encode.c takes text apart, tokenizer.c has the rest.
 */
#ifndef RUNTIME_TEXT_TOKENIZER_INTERNAL_H
#define RUNTIME_TEXT_TOKENIZER_INTERNAL_H

#include "runtime/text/pretok.h"
#include "runtime/text/tokenizer.h"

enum {
    TOKENIZER_VOCAB_MAX = 1 << 22, /* tokens, and merges */
    TOKENIZER_TOKEN_MAX = 1 << 16, /* bytes of one token's text */
    TOKENIZER_BLOB_MAX = 1 << 28,  /* bytes of all of them */
    TOKENIZER_ALPHABET_BYTES = 2   /* a letter of the byte-level alphabet
                                    * takes at most as many in UTF-8 */
};

struct token {
    uint32_t at, n; /* bytes blob[at .. at + n) */
    uint8_t type;   /* enum token_type */
    bool lookup;    /* normal, and in the byte-level alphabet */
};

struct merge {
    int32_t left, right, result;
};

/* Open addressing; sizes are powers of two, at most half full. */
struct tokenizer {
    char *blob;
    struct token *token;
    size_t n_tokens;

    int32_t *by_text; /* normal tokens by their bytes; -1: free */
    size_t text_mask;

    struct merge *merge; /* index = rank */
    size_t n_merges;
    int32_t *by_pair; /* ranks by (left, right); -1: free */
    size_t pair_mask;

    int32_t byte_id[256]; /* the token of each byte; -1: none */
    bool has_all_bytes;   /* no byte of a text disappears */
    uint32_t longest;     /* bytes of the longest token */
    /* Bytes of the longest token that is made by merging and begins so. */
    uint32_t longest_from[256];

    int32_t *special; /* ids of special tokens, sorted by their bytes */
    size_t n_special;
    bool special_first[256]; /* some special token begins with this byte */

    int32_t *eog; /* ascending */
    size_t n_eog;

    struct pretok *pretok;
    int32_t bos, eos;
    bool add_bos;
};

/* Fills everything but pretok from spec, into a zeroed t. On an error t holds
 * what tokenizer_free() can end. */
MUST_CHECK enum err tokenizer_build(struct tokenizer *t,
                                    const struct tokenizer_spec *spec,
                                    struct errmsg *m);

/* The normal token with these bytes; -1: none. n > 0. */
int32_t tokenizer_lookup(const struct tokenizer *t, const char *s, size_t n);

/* Rank of the merge of two tokens; -1: none. */
int32_t tokenizer_rank(const struct tokenizer *t, int32_t left, int32_t right);

/* The longest special token at the start of s[0..n), its length in *len; -1:
 * none. */
int32_t tokenizer_match_special(const struct tokenizer *t, const char *s,
                                size_t n, size_t *len);

/* ERR_CANCELLED once the owner of the list wants no more, else OK. */
MUST_CHECK enum err tokens_check_stop(const struct tokens *v);

/* Working memory of the merging, reused from word to word. Zeroed at first. */
struct bpe_scratch {
    struct bpe_symbol *sym;
    size_t sym_cap;
    uint64_t *heap;
    size_t n_heap, heap_cap;
};

void tokenizer_bpe_fini(struct bpe_scratch *w);

/* Appends the ids of one word s[0..n). ERR_NOMEM, ERR_BUDGET, ERR_CANCELLED:
 * *out may hold a part of it. */
MUST_CHECK enum err tokenizer_bpe(const struct tokenizer *t,
                                  struct bpe_scratch *w, const char *s,
                                  size_t n, struct tokens *out);

#endif
