/* workers.h - the compute pool: one parallel loop at a time over n tasks.
 *
 * workers_run() is called about 150 times for every decoded token, so handing
 * out work must cost a microsecond or two. Workers that wait spin for a few
 * microseconds and then sleep: a spinning barrier falls tenfold when a
 * neighbour takes the core. For the same reason a loop never waits for a
 * worker that has not come yet: it ends when its tasks are done, and a late
 * worker finds nothing left. With nobody else on the machine all of them take
 * part; on a busy one the caller does most of it alone.
 *
 * Which thread runs which task is chance, so a task must give the same result
 * whoever runs it: split work by data, never by thread count.
 *
 * Threads: workers_run() by one thread at a time (the engine thread), not
 * from inside a task.
 */
#ifndef BASE_WORKERS_H
#define BASE_WORKERS_H

#include "base/err.h"

enum { WORKERS_MAX = 256 };

struct workers;

/* Runs task `task` on thread `thread` (0 is the caller of workers_run, the
 * others are 1 to n_threads - 1): for picking scratch, never for results. */
typedef void (*workers_fn)(void *ctx, int task, int thread);

/* n_threads counts the caller: 1 starts no thread. 1 to WORKERS_MAX, else
 * ERR_INVAL. On OK the caller ends *out with workers_free(). */
MUST_CHECK enum err workers_new(struct workers **out, int n_threads,
                                struct errmsg *m);
void workers_free(struct workers *w); /* NULL is allowed; joins the threads */

int workers_count(const struct workers *w);

/* Calls fn for every task in [0, n_tasks), each exactly once, and returns
 * when all have returned. What the caller wrote before is seen by the tasks,
 * what they wrote is seen by the caller afterwards. */
void workers_run(struct workers *w, int n_tasks, workers_fn fn, void *ctx);

/* CPUs this process may use: affinity and cgroup quota, host_cpus(). */
int workers_cpus(void);

#endif
