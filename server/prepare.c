#include "server/prepare.h"

#include <pthread.h>
#include <stdlib.h>

#include "server/exchange.h"
#include "server/generate.h"
#include "server/server_internal.h"

enum { LANES = 2, SMALL_BODY = 64 * 1024 };

struct lane {
    struct prepare *owner;
    pthread_t thread;
    bool has_thread;
    pthread_cond_t some;
    struct exchange *first, *last; /* guarded by owner->lock */
};

struct prepare {
    uint32_t limit;
    pthread_mutex_t lock;
    uint32_t waiting; /* guarded by lock */
    bool stop;        /* guarded by lock */
    struct lane lane[LANES];
};

/* The next of this lane; NULL at the end. lock is held. */
static struct exchange *take(struct lane *l)
{
    struct prepare *p = l->owner;
    while (!l->first && !p->stop)
        pthread_cond_wait(&l->some, &p->lock);
    struct exchange *ex = p->stop ? NULL : l->first;
    if (!ex)
        return NULL;
    l->first = ex->next_job;
    if (!l->first)
        l->last = NULL;
    p->waiting--;
    return ex;
}

static void *run(void *arg)
{
    struct lane *l = arg;
    for (;;) {
        pthread_mutex_lock(&l->owner->lock);
        struct exchange *ex = take(l);
        pthread_mutex_unlock(&l->owner->lock);
        if (!ex)
            return NULL;
        job_prepare(ex);
        exchange_unref(ex);
    }
}

enum err prepare_new(struct prepare **out, uint32_t limit, struct errmsg *m)
{
    struct prepare *p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(m, ERR_NOMEM, "no memory for the prepare threads");
    p->limit = limit;
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < LANES; i++) {
        p->lane[i].owner = p;
        pthread_cond_init(&p->lane[i].some, NULL);
    }
    for (int i = 0; i < LANES; i++) {
        struct lane *l = &p->lane[i];
        l->has_thread = pthread_create(&l->thread, NULL, run, l) == 0;
        if (!l->has_thread) {
            prepare_free(p);
            return err_set(m, ERR_NOMEM, "cannot start a prepare thread");
        }
    }
    *out = p;
    return OK;
}

void prepare_free(struct prepare *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    for (int i = 0; i < LANES; i++)
        pthread_cond_signal(&p->lane[i].some);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < LANES; i++) {
        struct lane *l = &p->lane[i];
        if (l->has_thread)
            pthread_join(l->thread, NULL);
        while (l->first) {
            struct exchange *ex = l->first;
            l->first = ex->next_job;
            exchange_unref(ex);
        }
        pthread_cond_destroy(&l->some);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
}

bool prepare_push(struct prepare *p, struct exchange *ex)
{
    struct lane *l = &p->lane[ex->body.len > SMALL_BODY ? 1 : 0];
    pthread_mutex_lock(&p->lock);
    bool room = p->waiting < p->limit;
    if (room) {
        exchange_ref(ex);
        atomic_fetch_add(&ex->server->n_jobs, 1);
        ex->next_job = NULL;
        if (l->last)
            l->last->next_job = ex;
        else
            l->first = ex;
        l->last = ex;
        p->waiting++;
        pthread_cond_signal(&l->some);
    }
    pthread_mutex_unlock(&p->lock);
    return room;
}

uint32_t prepare_limit(const struct prepare *p)
{
    return p->limit;
}
