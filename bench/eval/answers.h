/* answers.h - the documents of a run and what the model says about them, as
 * lines of JSON: for a look at single answers, and for whoever wants to ask a
 * server the same.
 *
 * A line for each document, {"task","doc","prompt":{"ids","text"},"questions":
 * [{"given":{...},"right":{...}}]}, and after it one for each policy and
 * budget: {"task","doc","policy","budget","entries","answers":[{"said":{...},
 * "nll":[...]}]}. `said` are the most probable tokens, each after the right
 * ones before it: up to the first that is wrong this is the model's greedy
 * answer. `entries`: kept a layer and head, on average.
 *
 * Owns the open file. Threads: one at a time.
 */
#ifndef BENCH_EVAL_ANSWERS_H
#define BENCH_EVAL_ANSWERS_H

#include <stdint.h>

#include "base/err.h"
#include "bench/eval/choice.h"
#include "bench/eval/document.h"
#include "bench/eval/scoring.h"

struct answers;

struct answers_cell {
    enum task task;
    uint32_t doc;
    const struct choice *choice;
    double n_entries;            /* a layer and head */
    const struct scored *scored; /* of all probes, probe after probe */
};

/* Replaces the file. The tokenizer is borrowed. ERR_IO. */
MUST_CHECK enum err answers_open(struct answers **out, const char *path,
                                 const struct tokenizer *t, struct errmsg *m);
/* NULL is allowed. */
void answers_close(struct answers *a);

MUST_CHECK enum err answers_document(struct answers *a, enum task task,
                                     uint32_t doc, const struct document *d,
                                     struct errmsg *m);
MUST_CHECK enum err answers_add(struct answers *a, const struct document *d,
                                const struct answers_cell *cell,
                                struct errmsg *m);

#endif
