/* document_internal.h - what the makers of documents share.
 *
 * document.c         tasks, and what is common to all of them
 * document_text.c    A and F: text alone
 * document_recall.c  B1 and B2: facts in a text, and questions
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
    DOCUMENT_NEXT = 256 /* tokens that task A predicts */
};

struct maker {
    const struct document_options *o;
    struct rng rng;
    const int32_t *window; /* [o->n_tokens + DOCUMENT_TAIL] */
    struct errmsg *m;
};

typedef enum err (*maker_fn)(struct document *d, struct maker *k);

enum err maker_next_text(struct document *d, struct maker *k);
enum err maker_copies(struct document *d, struct maker *k);
enum err maker_passkey(struct document *d, struct maker *k);
enum err maker_facts(struct document *d, struct maker *k);

/* BOS, where the model begins texts with it. */
enum err maker_start_text(struct document *d, const struct maker *k);
enum err maker_append(struct tokens *out, const int32_t *id, size_t n);

#endif
