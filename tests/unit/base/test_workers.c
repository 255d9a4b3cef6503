#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/workers.h"

enum { TASKS = 512 };

struct tally {
    int seen[TASKS];
    int last_loop;
    int n_threads;
    atomic_int bad_thread;
};

static void count(void *ctx, int task, int thread)
{
    struct tally *t = ctx;
    if (thread < 0 || thread >= t->n_threads)
        atomic_fetch_add(&t->bad_thread, 1);
    /* Plain, not atomic: a task that ran twice at once, or a missing order
     * between loops, is a race that the thread sanitizer reports. */
    t->seen[task]++;
}

static void every_task_runs_once_in_each_loop(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 8};
    struct rng r;
    rng_seed(&r, 1);
    for (int i = 0; i < 4; i++) {
        struct workers *w = NULL;
        assert_int_equal(workers_new(&w, threads[i], NULL), OK);
        assert_int_equal(workers_count(w), threads[i]);
        struct tally t = {.n_threads = threads[i]};
        int expected[TASKS] = {0};
        for (int loop = 0; loop < 3000; loop++) {
            int n = (int)rng_below(&r, loop % 10 == 0 ? TASKS + 1 : 9);
            for (int k = 0; k < n; k++)
                expected[k]++;
            workers_run(w, n, count, &t);
            if (loop % 500 == 0)
                usleep(200); /* long enough for the workers to sleep */
        }
        assert_memory_equal(t.seen, expected, sizeof(expected));
        assert_int_equal(atomic_load(&t.bad_thread), 0);
        workers_free(w);
    }
}

static void fill(void *ctx, int task, int thread)
{
    (void)thread;
    double *out = ctx;
    double x = task;
    for (int i = 0; i < 200; i++)
        x = x * 0.9999 + 1.0 / (1.0 + x);
    out[task] = x;
}

static void results_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    double one[TASKS], many[TASKS];
    struct workers *w = NULL;
    for (int n = 1; n <= 6; n++) {
        assert_int_equal(workers_new(&w, n, NULL), OK);
        workers_run(w, TASKS, fill, n == 1 ? one : many);
        workers_free(w);
        if (n > 1)
            assert_memory_equal(one, many, sizeof(one));
    }
}

static void rest(void *ctx, int task, int thread)
{
    (void)thread;
    atomic_int *n = ctx;
    usleep(task % 3 == 0 ? 2000 : 10);
    atomic_fetch_add(n, 1);
}

static void the_caller_waits_for_slow_tasks_of_others(void **state)
{
    (void)state;
    struct workers *w = NULL;
    assert_int_equal(workers_new(&w, 4, NULL), OK);
    for (int loop = 0; loop < 50; loop++) {
        atomic_int n = 0;
        workers_run(w, 7, rest, &n);
        assert_int_equal(atomic_load(&n), 7);
    }
    workers_free(w);
}

static void counts_out_of_range_are_refused(void **state)
{
    (void)state;
    struct workers *w = NULL;
    struct errmsg m;
    assert_int_equal(workers_new(&w, 0, &m), ERR_INVAL);
    assert_int_equal(workers_new(&w, WORKERS_MAX + 1, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "257"));
    assert_null(w);
    workers_free(NULL);
}

static void nothing(void *ctx, int task, int thread)
{
    (void)ctx;
    (void)task;
    (void)thread;
}

/* The quickest of many batches: a few milliseconds in which no other program
 * holds the cores. */
static void handing_out_a_loop_costs_microseconds(void **state)
{
    (void)state;
    struct workers *w = NULL;
    assert_int_equal(workers_new(&w, workers_cpus() < 2 ? 1 : 2, NULL), OK);
    enum { BATCHES = 200, LOOPS = 500 };
    double least = 1e9;
    for (int batch = 0; batch < BATCHES; batch++) {
        int64_t start = clock_us();
        for (int i = 0; i < LOOPS; i++)
            workers_run(w, 4, nothing, NULL);
        double us = (double)(clock_us() - start) / LOOPS;
        least = us < least ? us : least;
    }
    print_message("a loop of 4 empty tasks on %d threads: %.2f us\n",
                  workers_count(w), least);
    /* Far more than it takes even on a machine that is tenfold slower. */
    assert_true(least < 100);
    workers_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_in_each_loop),
        cmocka_unit_test(results_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(the_caller_waits_for_slow_tasks_of_others),
        cmocka_unit_test(counts_out_of_range_are_refused),
        cmocka_unit_test(handing_out_a_loop_costs_microseconds),
    };
    return cmocka_run_group_tests_name("base/workers", tests, NULL, NULL);
}
