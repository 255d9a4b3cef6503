/* document.h - the documents that an evaluation asks a model about: a prompt,
 * and probes that are scored after the prompt's cache was compressed.
 *
 * Tasks and their numbers are those of docs/design (evaluation 3.2). Document
 * number i of a task is a function of seed, texts, length and i alone.
 *
 * A probe is what follows the prompt: some tokens that are given and, from
 * `first` on, tokens that the model is to predict. All is teacher-forced: the
 * token that follows is always the right one, whatever the model would have
 * said.
 *
 * Threads: one at a time.
 */
#ifndef BENCH_EVAL_DOCUMENT_H
#define BENCH_EVAL_DOCUMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "bench/eval/corpus.h"
#include "runtime/engine/prompt.h"
#include "runtime/text/tokenizer.h"

enum task {
    TASK_A,
    TASK_A2,
    TASK_B1,
    TASK_B2,
    TASK_C,
    TASK_D,
    TASK_E1,
    TASK_E2,
    TASK_E3,
    TASK_F,
    TASK_G,
    TASK_I,
    TASK_CHATS, /* of chats.h, not generated */
    TASK_COUNT
};

enum {
    DOCUMENT_QUESTIONS_MAX = 16,
    DOCUMENT_PROBES_MAX = 64,  /* questions, times answers to choose from */
    DOCUMENT_TOKENS_MIN = 320, /* of a prompt: eight facts and some text */
    DOCUMENT_SCORED_MAX = 256, /* tokens of all probes that are predicted */
    DOCUMENT_GIVEN_MAX = 160,  /* tokens of a probe before them */
    DOCUMENT_FED_MAX = 2560    /* tokens of all probes */
};

struct task_info {
    const char *name;  /* "A" */
    const char *about; /* "next 256 tokens of a book" */
    /* It has answers that are right or wrong, and the full cache's share of
     * right ones says whether the model can do it at all. */
    bool has_answers;
    bool has_choices; /* and for each there are wrong ones to choose from */
    double gate;      /* that share at least; 0: none */
};

/* Of one probe: at least one token before `first`, one from it on. */
struct document_probe {
    struct tokens ids;
    uint32_t first; /* index of the first predicted token */
    /* A wrong answer to the question of the last probe that is none: the model
     * chooses right when all of these are less probable. */
    bool is_wrong;
};

struct document {
    struct tokens prompt;
    /* Its first tokens that are no content (BOS, the template's beginning):
     * what is left of the prompt without the document. */
    uint32_t n_head;
    /* To be read in so many stages, with a compression after each; 0 and 1:
     * one after the whole prompt. */
    uint32_t n_stages;
    uint32_t n_probes, n_questions;
    struct document_probe probe[DOCUMENT_PROBES_MAX];
};

struct chats;

struct document_options {
    const struct tokenizer *tokenizer;
    const struct prompt *prompt; /* NULL: the model has no chat template;
                                    questions are then asked in plain text */
    struct corpus *corpus;       /* may be NULL when all is of chats */
    const struct chats *chats;   /* NULL: there are none */
    uint32_t n_tokens; /* of a prompt, at most; at least DOCUMENT_TOKENS_MIN */
    uint64_t seed;
};

const struct task_info *task_info(enum task t);
/* ERR_NOTFOUND when there is none with that name of n bytes. */
MUST_CHECK enum err task_find(enum task *out, const char *name, size_t n);

/* Deals the corpus for a task; *n_docs is how many documents it is good for.
 * Calls of document_make() are for that task then. */
MUST_CHECK enum err document_deal(const struct document_options *o, enum task t,
                                  size_t *n_docs);

/* Document i. On OK the caller ends it with document_fini(). */
MUST_CHECK enum err document_make(struct document *out,
                                  const struct document_options *o, enum task t,
                                  uint32_t i, struct errmsg *m);
void document_fini(struct document *d); /* a zeroed one is allowed */

/* Scored tokens of all probes. */
uint32_t document_n_scored(const struct document *d);

#endif
