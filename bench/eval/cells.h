/* cells.h - from the records of a run to its table: means with intervals, and
 * differences between policies.
 *
 * A cell is one policy with one budget in one task; its rows are one for each
 * metric. Differences are taken document by document (interval.h): against
 * the best policy of the same budget that keeps other entries
 * (`kl_minus_best`: this policy minus the other, so below zero is better),
 * of a policy that merges against the same without (`kl_minus_drop`: the kept
 * entries are the same), and against one that the caller names
 * (`kl_minus_snapkv`). Where both ends of the scale are there, `em_normalised`
 * is where a policy stands between "no-context" (0) and "full" (1). With
 * several tasks there is one more, "all", with the documents of all of them.
 *
 * Threads: one at a time.
 */
#ifndef BENCH_EVAL_CELLS_H
#define BENCH_EVAL_CELLS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "bench/eval/interval.h"
#include "bench/eval/lab.h"
#include "bench/eval/records.h"

enum { CELLS_METRIC_MAX = 64, CELLS_TASKS_MAX = 64 };

/* The task of rows that have the documents of all tasks. */
#define CELLS_ALL "all"

/* What the cells are of. Strings and arrays outlive the cells. */
struct cells_input {
    const struct records *records; /* of every task, choice and document */
    const enum task *task;
    uint32_t n_tasks;
    const struct choice *choice;
    uint32_t n_choices;
    uint32_t n_docs;
    const char *against; /* the name of a choice; NULL or "": none */
    uint64_t seed;
    /* For the rows. settings: a short name of all that figures depend on and
     * the other fields don't say (records.h), filled in by the run. */
    const char *model, *gates, *split, *settings;
    uint32_t context;
    enum lab_mode mode;
};

struct cells_row {
    const char *task; /* or "all" */
    const struct choice *choice;
    char metric[CELLS_METRIC_MAX]; /* "kl", "kl_minus_best" */
    const char *against; /* of a difference: the other policy; else NULL */
    struct interval value;
    uint32_t n;   /* documents */
    double bytes; /* kept of a prompt, mean */
    /* What merging did (metric.h): means, and of log_ratio the largest. */
    double routed, gate, log_ratio;
    /* The full cache fails too: says nothing about the policy. */
    bool is_weak;
};

struct cells {
    const struct cells_input *in;
    char tasks[CELLS_TASKS_MAX]; /* that "all" has: "A,B2", in our order */
    struct cells_row *row;
    size_t n, cap;
};

/* On OK the caller ends *out with cells_fini(). ERR_NOMEM. */
MUST_CHECK enum err cells_compute(struct cells *out,
                                  const struct cells_input *in,
                                  struct errmsg *m);
void cells_fini(struct cells *c);

/* NULL where there is none. */
const struct cells_row *cells_find(const struct cells *c, const char *task,
                                   const struct choice *choice,
                                   const char *metric);
/* The paired difference of the row's task and choice to the best other policy
 * of the same budget ("best"), to dropping what it merges ("drop"), or to the
 * choice that was named (its name). */
const struct cells_row *cells_find_minus(const struct cells *c,
                                         const struct cells_row *of,
                                         enum metric metric, const char *other);

/* ERR_INVAL when the file is there and is not lines of JSON objects. */
MUST_CHECK enum err cells_check_file(const char *path, struct errmsg *m);

/* Writes the rows as JSON lines. Rows that are in the file already stay,
 * unless the new ones are of the same cell with the same settings; "all" of
 * other tasks is another cell. */
MUST_CHECK enum err cells_save(const struct cells *c, const char *path,
                               struct errmsg *m);

void cells_print(const struct cells *c, FILE *to);

/* Writes a page with charts, that needs no other file. */
MUST_CHECK enum err cells_save_html(const struct cells *c, const char *path,
                                    struct errmsg *m);

#endif
