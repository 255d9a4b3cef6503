/* mix_internal.h - what the makers of training sequences share.
 */
#ifndef GATES_TRAIN_MIX_INTERNAL_H
#define GATES_TRAIN_MIX_INTERNAL_H

#include "base/buf.h"
#include "base/rng.h"
#include "gates/train/mix.h"

struct text {
    char *s;
    size_t n;
    struct tokens tokens;
};

struct mix {
    struct mix_options o;
    struct text *text;
    size_t n_texts;
    size_t n_tokens;
    struct tokens scratch;
    struct buf doc;
    uint8_t *answer; /* of the sequence last made */
    size_t n_answer; /* bytes there are */
};

/* What one sequence is made with. */
struct maker {
    struct mix *x;
    struct rng rng;
    uint32_t n_tokens;
    uint8_t *answer; /* [n_tokens], zero at first */
    struct errmsg *m;
};

/* Below n, uniform. */
uint64_t mix_pick(struct maker *k, uint64_t n);

/* Up to n bytes of some text, beginning and ending at words. Borrowed. */
void mix_passage(struct maker *k, size_t n, const char **s, size_t *len);
/* The same and a newline at the end of b. */
enum err mix_add_passage(struct maker *k, struct buf *b, size_t n);

/* Tokens of some text from a random place on, text after text. */
void mix_copy_text(struct maker *k, int32_t *out, uint32_t n);

/* The conversation as tokens in scratch, without BOS. */
enum err mix_put_turns(struct maker *k, const struct mix_turn *turn, size_t n);

/* The tokens of scratch, cut to length or followed by plain text. */
void mix_fill(struct maker *k, int32_t *out);

/* Facts told early and asked for at the end, as text or as a conversation;
 * marks the answers. */
enum err mix_recall(struct maker *k, int32_t *out);

/* The same of facts that are a phrase of a text and a drawn end. */
enum err mix_cloze(struct maker *k, int32_t *out);

/* Four to nine words of some text, without punctuation, the first one with a
 * capital. size: bytes of out, 16 at least. false: the texts have none. */
bool mix_phrase(struct maker *k, char *out, size_t size);
/* Bytes of a phrase's first n words. */
size_t mix_first_words(const char *phrase, size_t n);

#endif
