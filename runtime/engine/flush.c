/* Sessions at rest, dropped because somebody asks for it. */
#include <stdlib.h>

#include "runtime/engine/engine_internal.h"

struct flush {
    struct flush *next;
    void (*done)(void *user);
    void *user;
};

static struct flush *flush_new(void (*done)(void *user), void *user)
{
    struct flush *f = malloc(sizeof(*f));
    if (f)
        *f = (struct flush){.done = done, .user = user};
    return f;
}

enum err engine_flush(struct engine *e, void (*done)(void *user), void *user)
{
    struct flush *f = flush_new(done, user);
    if (!f)
        return ERR_NOMEM;
    pthread_mutex_lock(&e->mu);
    f->next = e->flushes;
    e->flushes = f;
    e->is_woken = true;
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->mu);
    return OK;
}

void engine_do_flush(struct engine *e)
{
    if (!e->flushing)
        return;
    engine_finish_gates(e);
    while (e->sessions.rest.first)
        session_drop(&e->sessions, e->sessions.rest.first);
    e->look = true;
}

void engine_tell_flushed(struct engine *e)
{
    struct flush *f = e->flushing;
    e->flushing = NULL;
    while (f) {
        struct flush *next = f->next;
        f->done(f->user);
        free(f);
        f = next;
    }
}
