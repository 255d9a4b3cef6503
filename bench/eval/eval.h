/* eval.h - `ebb eval`: what a policy costs in quality when the cache is small.
 *
 * Threads: the main thread.
 */
#ifndef BENCH_EVAL_EVAL_H
#define BENCH_EVAL_EVAL_H

#include <stdatomic.h>

/* argv are the words after `eval`. The table goes to stdout, progress and
 * faults to stderr. Returns the exit status: 0 done, 1 it failed or was
 * stopped, 2 the words make no sense. stop: set by a signal handler. */
int eval_command(int argc, char *const *argv, const atomic_bool *stop);

/* Prints the text of --help. */
int eval_help(void);

#endif
