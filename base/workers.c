#include "base/workers.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host.h"

enum {
    CACHE_LINE = 64,
    SPIN_US = 8,      /* how long a thread waits awake */
    SPIN_PAUSES = 32, /* between two looks at the clock */
};

struct worker {
    struct workers *pool;
    pthread_t thread;
    int index;
};

/* The ticket is the heart: loop number in the high half, tasks not yet taken
 * in the low half. Taking a task is a compare-and-swap of the whole, so a
 * worker that slept through the end of its loop can take nothing from the
 * next one by mistake; and as long as tasks are left, fn, ctx and n_tasks
 * belong to the loop that the ticket names, because the caller writes them
 * only when none are. */
struct workers {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    _Alignas(CACHE_LINE) _Atomic uint32_t n_done; /* tasks; the caller waits */
    _Atomic uint32_t caller_sleeps;
    _Alignas(CACHE_LINE) _Atomic uint32_t bell; /* workers sleep on it */
    _Atomic uint32_t n_asleep;
    _Atomic uint32_t stop;
    _Alignas(CACHE_LINE) _Atomic(workers_fn) fn;
    _Atomic(void *) ctx;
    _Atomic int n_tasks;
    int n_threads; /* with the caller */
    uint32_t loop;
    int n_started;
    struct worker worker[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t while_it_is)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, while_it_is, NULL,
            NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static uint32_t tasks_left(uint64_t ticket)
{
    return (uint32_t)ticket;
}

/* Runs tasks until none is left. */
static void take_part(struct workers *w, int thread)
{
    uint32_t n_mine = 0;
    uint64_t ticket = atomic_load_explicit(&w->ticket, memory_order_acquire);
    while (tasks_left(ticket) > 0) {
        workers_fn fn = atomic_load_explicit(&w->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&w->ctx, memory_order_relaxed);
        int n = atomic_load_explicit(&w->n_tasks, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(
                &w->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                memory_order_acquire))
            continue;
        fn(ctx, n - (int)tasks_left(ticket), thread);
        n_mine++;
        ticket = atomic_load_explicit(&w->ticket, memory_order_acquire);
    }
    if (n_mine == 0)
        return;
    /* Sequentially consistent, like the caller's announcement that it sleeps:
     * one of the two sees the other. */
    atomic_fetch_add(&w->n_done, n_mine);
    if (thread != 0 && atomic_load(&w->caller_sleeps) != 0)
        futex_wake(&w->n_done, 1);
}

static bool has_news(struct workers *w)
{
    return tasks_left(atomic_load(&w->ticket)) > 0 || atomic_load(&w->stop);
}

/* Until a loop has tasks or the pool ends. */
static void wait_for_news(struct workers *w)
{
    uint32_t bell = atomic_load(&w->bell);
    int64_t until = clock_us() + SPIN_US;
    do {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            if (has_news(w))
                return;
            pause_briefly();
        }
    } while (clock_us() < until);
    atomic_fetch_add(&w->n_asleep, 1);
    /* A bell rung since it was read makes the wait return at once. */
    if (!has_news(w))
        futex_wait(&w->bell, bell);
    atomic_fetch_sub(&w->n_asleep, 1);
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    struct workers *w = me->pool;
    while (!atomic_load(&w->stop)) {
        take_part(w, me->index);
        wait_for_news(w);
    }
    return NULL;
}

static void ring(struct workers *w, int n_wanted)
{
    atomic_fetch_add(&w->bell, 1);
    if (atomic_load(&w->n_asleep) > 0)
        futex_wake(&w->bell, n_wanted);
}

/* The caller's own tasks are done; others may still be running theirs. */
static void wait_until_done(struct workers *w, uint32_t n)
{
    int64_t until = 0;
    for (int i = 0; atomic_load(&w->n_done) != n; i++) {
        if (i < SPIN_PAUSES) {
            pause_briefly();
            continue;
        }
        int64_t now = clock_us();
        i = 0;
        if (until == 0)
            until = now + SPIN_US;
        if (now < until)
            continue;
        atomic_store(&w->caller_sleeps, 1);
        uint32_t done = atomic_load(&w->n_done);
        if (done != n)
            futex_wait(&w->n_done, done);
        atomic_store(&w->caller_sleeps, 0);
    }
}

void workers_run(struct workers *w, int n_tasks, workers_fn fn, void *ctx)
{
    if (w->n_threads == 1 || n_tasks <= 1) {
        for (int i = 0; i < n_tasks; i++)
            fn(ctx, i, 0);
        return;
    }
    atomic_store_explicit(&w->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&w->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&w->n_tasks, n_tasks, memory_order_relaxed);
    atomic_store_explicit(&w->n_done, 0, memory_order_relaxed);
    uint64_t ticket = (uint64_t)++w->loop << 32 | (uint32_t)n_tasks;
    atomic_store(&w->ticket, ticket);
    int others = w->n_threads - 1;
    ring(w, n_tasks - 1 < others ? n_tasks - 1 : others);
    take_part(w, 0);
    wait_until_done(w, (uint32_t)n_tasks);
}

static enum err start_threads(struct workers *w, struct errmsg *m)
{
    for (int i = 1; i < w->n_threads; i++) {
        struct worker *one = &w->worker[i - 1];
        *one = (struct worker){.pool = w, .index = i};
        int rc = pthread_create(&one->thread, NULL, worker_main, one);
        if (rc != 0)
            return err_set(m, ERR_NOMEM, "cannot start thread %d of %d: %s",
                           i + 1, w->n_threads, strerror(rc));
        w->n_started++;
    }
    return OK;
}

enum err workers_new(struct workers **out, int n_threads, struct errmsg *m)
{
    if (n_threads < 1 || n_threads > WORKERS_MAX)
        return err_set(m, ERR_INVAL, "%d threads: from 1 to %d are possible",
                       n_threads, WORKERS_MAX);
    size_t size =
        sizeof(struct workers) + (size_t)n_threads * sizeof(struct worker);
    size = (size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    struct workers *w = aligned_alloc(CACHE_LINE, size);
    if (w == NULL)
        return err_set(m, ERR_NOMEM, "no memory for %d threads", n_threads);
    memset(w, 0, size);
    w->n_threads = n_threads;
    enum err rc = start_threads(w, m);
    if (rc == OK)
        *out = w;
    else
        workers_free(w);
    return rc;
}

void workers_free(struct workers *w)
{
    if (w == NULL)
        return;
    atomic_store(&w->stop, 1);
    atomic_fetch_add(&w->bell, 1);
    futex_wake(&w->bell, w->n_threads);
    for (int i = 0; i < w->n_started; i++)
        pthread_join(w->worker[i].thread, NULL);
    free(w);
}

int workers_count(const struct workers *w)
{
    return w->n_threads;
}

int workers_cpus(void)
{
    return host_cpus();
}
