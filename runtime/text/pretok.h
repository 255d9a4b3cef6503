/* pretok.h - splits text into words, the way a model's tokenizer was trained.
 *
 * Merges never cross a word border, so the rule decides the token ids. A rule
 * is known by the name that GGUF gives it (tokenizer.ggml.pre):
 *   gpt-2      the regular expression of GPT-2
 *   smollm     every digit alone, then GPT-2's expression on what is between
 *   llama-bpe  Llama 3's expression; a word that is a token is not merged
 *   qwen2      NFC first, then Qwen2's expression
 * Classes (letters, numbers, white space) are those of the reference, the
 * `tokenizers` library, whatever Unicode version PCRE2 was built with:
 * tests/tools/make_unicode_tables.py.
 *
 * Threads: a pretok never changes after it is made; a pretok_scan belongs to
 * one thread.
 */
#ifndef RUNTIME_TEXT_PRETOK_H
#define RUNTIME_TEXT_PRETOK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct pretok;

/* name[0..n) is one of the above; else ERR_UNSUPPORTED with the name in *m.
 * On OK the caller owns *out and ends it with pretok_free(). */
MUST_CHECK enum err pretok_new(struct pretok **out, const char *name, size_t n,
                               struct errmsg *m);
void pretok_free(struct pretok *p); /* NULL is allowed */

bool pretok_wants_nfc(const struct pretok *p);
/* A whole word that is a token becomes it, without merging. */
bool pretok_ignores_merges(const struct pretok *p);

/* Walks over one text. Fields are private to pretok.c. */
struct pretok_scan {
    const struct pretok *p;
    void *match; /* pcre2_match_data */
    void *limit; /* pcre2_match_context */
    const char *s;
    size_t n, at;
    size_t piece_end; /* words end here at the latest */
};

/* pretok_scan_init allocates (ERR_NOMEM); end it with pretok_scan_fini, also
 * after an error. One scan serves any number of texts. */
MUST_CHECK enum err pretok_scan_init(struct pretok_scan *it,
                                     const struct pretok *p);
void pretok_scan_fini(struct pretok_scan *it);

/* Begins a text, which must be valid UTF-8 and stay until it is done. */
void pretok_scan_start(struct pretok_scan *it, const char *s, size_t n);

/* The next word: s[*begin..*end) of the text, never empty; words follow each
 * other without a gap. False at the end, or on an error, which *rc tells apart
 * (OK, ERR_NOMEM, ERR_INTERNAL). All words together cost O(n). */
bool pretok_scan_next(struct pretok_scan *it, size_t *begin, size_t *end,
                      enum err *rc);

#endif
