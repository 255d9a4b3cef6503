/* suite.h - a whole evaluation: every document of every task, under every
 * policy and budget.
 *
 * Documents come one after the other; a document that was asked already (in
 * an earlier run with the same settings) is not even made. Results go to a
 * file of JSON lines when all is done, and document by document to
 * FILE.part (records.h), from which an interrupted run goes on. Single answers
 * (answers.h) are written by runs without such a file, which ask everything.
 *
 * Threads: one caller; the work runs on the pool of threads.
 */
#ifndef BENCH_EVAL_SUITE_H
#define BENCH_EVAL_SUITE_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "bench/eval/cells.h"
#include "bench/eval/document.h"
#include "bench/eval/lab.h"

struct suite {
    struct cells_input cells; /* the run fills in records and settings */
    struct lab_options lab;
    struct document_options document;
    /* All that results depend on and the rest does not say: hashes of model
     * and texts, settings; and the hash of the gates. */
    const char *identity, *gates;
    const char *html;        /* NULL: no page */
    const char *answers;     /* NULL: none; else json must be */
    const char *json;        /* NULL: no file */
    FILE *table;             /* the table at the end; NULL: none */
    FILE *progress;          /* NULL: none */
    const atomic_bool *stop; /* may be NULL: set by a signal handler */
};

/* ERR_CANCELLED: stopped; what was measured is in FILE.part. ERR_INVAL: too
 * few texts for so many documents, or a file that is not ours. */
MUST_CHECK enum err suite_run(struct suite *s, struct errmsg *m);

#endif
