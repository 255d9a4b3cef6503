/* document_internal.h - what the makers of documents share.
 *
 * document.c         tasks, and what is common to all of them
 * document_text.c    A, A2, F and G: text alone
 * document_talk.c    conversations: fitting them to a length, asking questions
 * document_recall.c  B1, B2, C, D and I: what was told in a text
 * document_turns.c   E1 and E2: what was told in a chat
 */
#ifndef BENCH_EVAL_DOCUMENT_INTERNAL_H
#define BENCH_EVAL_DOCUMENT_INTERNAL_H

#include "base/buf.h"
#include "base/rng.h"
#include "bench/eval/document.h"

enum {
    /* Tokens of a window past the prompt's length: what task A predicts, and
     * the spans that task F plants. */
    DOCUMENT_TAIL = 320,
    DOCUMENT_NEXT = 256, /* tokens that task A predicts */
    TALK_TURNS_MAX = 96,
    TALK_WRONG_MAX = 8
};

struct maker {
    const struct document_options *o;
    struct rng rng;
    const int32_t *window; /* [o->n_tokens + DOCUMENT_TAIL] */
    struct errmsg *m;
};

typedef enum err (*maker_fn)(struct document *d, struct maker *k);

enum err maker_next_text(struct document *d, struct maker *k);
enum err maker_retelling(struct document *d, struct maker *k);
enum err maker_copies(struct document *d, struct maker *k);
enum err maker_examples(struct document *d, struct maker *k);
enum err maker_passkey(struct document *d, struct maker *k);
enum err maker_facts(struct document *d, struct maker *k);
enum err maker_lookup(struct document *d, struct maker *k);
enum err maker_chains(struct document *d, struct maker *k);
enum err maker_moves(struct document *d, struct maker *k);
enum err maker_statements(struct document *d, struct maker *k);
enum err maker_changes(struct document *d, struct maker *k);
enum err maker_stages(struct document *d, struct maker *k);

/* BOS, where the model begins texts with it. */
enum err maker_start_text(struct document *d, const struct maker *k);
enum err maker_append(struct tokens *out, const int32_t *id, size_t n);
enum err maker_encode(const struct maker *k, const char *text, size_t n,
                      struct tokens *out);
/* The text of n ids, appended. */
enum err maker_text(const struct maker *k, const int32_t *id, size_t n,
                    struct buf *out);
/* The window as text, from its first whole word on. */
enum err maker_filler(const struct maker *k, struct buf *out);
/* A number without zeros, so that all have as many digits. */
void maker_number(struct maker *k, char *out, int n_digits);
/* n different numbers below `of`, in random order. */
void maker_pick(struct maker *k, size_t *out, size_t n, size_t of);
size_t maker_common(const struct tokens *a, const struct tokens *b);

/* Appends the pattern with %K and %V replaced. */
enum err maker_pattern(struct buf *b, const char *pattern, const char *key,
                       const char *value);
/* Writes the first n bytes of the filler (to a whole word) with a sentence
 * behind the first that ends at each depth, which ascend in [0, 1). */
enum err maker_plant(struct buf *out, const struct buf *filler, size_t n,
                     const struct buf *sentence, const double *depth,
                     uint32_t n_sentences);

/* A conversation: the user's turns and the assistant's, in turn. */
struct talk {
    struct maker *k;
    struct buf turn[TALK_TURNS_MAX];
    uint32_t n_turns; /* even */
};

struct talk_question {
    const char *ask, *stem, *answer; /* the answer without its space */
    const char *wrong[TALK_WRONG_MAX];
    uint32_t n_wrong;
};

/* Writes the turns with `amount` of what makes them long. */
typedef enum err (*talk_fill_fn)(void *ctx, struct talk *t, size_t amount);

/* Fills the turns with as much as fits the prompt, at most `most`, and writes
 * d->prompt and d->n_head. ERR_INVAL: not even nothing fits. */
enum err talk_fit(struct document *d, struct talk *t, talk_fill_fn fill,
                  void *ctx, size_t most);
/* Adds a probe for the right answer and one for each wrong one. */
enum err talk_ask(struct document *d, struct talk *t,
                  const struct talk_question *q);
/* Turn i, emptied; turns below it are there. */
struct buf *talk_turn(struct talk *t, uint32_t i);
void talk_fini(struct talk *t);

#endif
