#include "server/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/generate.h"
#include "server/server_internal.h"

struct exchange *exchange_new(struct server *s, struct peer *p,
                              struct MHD_Connection *conn)
{
    struct exchange *ex = calloc(1, sizeof(*ex));
    if (!ex)
        return NULL;
    if (pthread_mutex_init(&ex->lock, NULL) != 0) {
        free(ex);
        return NULL;
    }
    ex->server = s;
    ex->peer = p;
    ex->conn = conn;
    ex->refs = 1;
    ex->phase = EX_RECEIVING;
    ex->started_us = clock_us();
    ex->last_sent_us = ex->started_us;
    ex->body.max = (size_t)s->o.max_body;
    return ex;
}

void exchange_ref(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    ex->refs++;
    pthread_mutex_unlock(&ex->lock);
}

void exchange_unref(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    unsigned left = --ex->refs;
    pthread_mutex_unlock(&ex->lock);
    if (left > 0)
        return;
    server_body_release(ex->server, ex->body.len);
    job_free(ex->job);
    buf_fini(&ex->body);
    free(ex->origin);
    pthread_mutex_destroy(&ex->lock);
    free(ex);
}

void exchange_wake(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    ex->wake = true;
    if (ex->suspended) {
        ex->suspended = false;
        MHD_resume_connection(ex->conn);
    }
    pthread_mutex_unlock(&ex->lock);
}

bool exchange_sleep(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    bool sleeps = !ex->wake && !ex->gone && !atomic_load(&ex->server->stopping);
    ex->wake = false;
    if (sleeps) {
        ex->suspended = true;
        MHD_suspend_connection(ex->conn);
    }
    pthread_mutex_unlock(&ex->lock);
    return sleeps;
}

enum exchange_phase exchange_phase(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    enum exchange_phase phase = ex->phase;
    pthread_mutex_unlock(&ex->lock);
    return phase;
}

void exchange_set_phase(struct exchange *ex, enum exchange_phase phase)
{
    pthread_mutex_lock(&ex->lock);
    ex->phase = phase;
    pthread_mutex_unlock(&ex->lock);
}

bool exchange_is_over(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    bool over = ex->gone || ex->expired;
    pthread_mutex_unlock(&ex->lock);
    return over;
}

void exchange_leave(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    ex->gone = true;
    atomic_store(&ex->left, true);
    /* The job has its engine request from READY on; before that the prepare
     * thread looks at `gone` when it is finished. */
    struct job *job = ex->phase >= EX_READY ? ex->job : NULL;
    pthread_mutex_unlock(&ex->lock);
    if (job)
        job_cancel(job);
    exchange_wake(ex);
}
