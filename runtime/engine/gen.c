#include "runtime/engine/gen.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/engine/engine_internal.h"

void gen_request_fini(struct gen_request *r)
{
    free(r->tokens);
    free(r->bias);
    free(r->pin);
    for (uint32_t i = 0; i < GEN_STOPS_MAX; i++)
        free(r->stop[i]);
    memset(r, 0, sizeof(*r));
}

enum err gen_new(struct gen **out, const struct gen_request *r)
{
    struct gen *g = calloc(1, sizeof(*g));
    if (!g)
        return ERR_NOMEM;
    if (stop_init(&g->stop, (const char *const *)r->stop, r->stop_len,
                  r->n_stops) != OK) {
        stop_fini(&g->stop);
        free(g);
        return ERR_NOMEM;
    }
    pthread_mutex_init(&g->mu, NULL);
    pthread_mutex_init(&g->notify_mu, NULL);
    atomic_init(&g->is_cancelled, false);
    atomic_init(&g->n_refs, 2);
    g->request = *r;
    g->now.prompt_tokens = r->n_tokens;
    g->now.policy = r->forget.policy;
    g->status = g->now;
    *out = g;
    return OK;
}

void gen_end(struct gen *g)
{
    sampler_fini(&g->sampler);
    stop_fini(&g->stop);
    /* The callback outlives the arrays. */
    void (*notify)(void *) = g->request.notify;
    void *user = g->request.user;
    gen_request_fini(&g->request);
    g->request.notify = notify;
    g->request.user = user;
}

void gen_unref(struct gen *g)
{
    if (atomic_fetch_sub(&g->n_refs, 1) > 1)
        return;
    gen_end(g);
    buf_fini(&g->out);
    buf_fini(&g->staged);
    pthread_mutex_destroy(&g->mu);
    pthread_mutex_destroy(&g->notify_mu);
    free(g);
}

enum err gen_deliver(struct gen *g)
{
    enum err rc = OK;
    pthread_mutex_lock(&g->mu);
    if (g->staged.len > 0)
        rc = buf_append(&g->out, g->staged.data, g->staged.len);
    if (rc == OK)
        g->status = g->now;
    pthread_mutex_unlock(&g->mu);
    if (rc != OK)
        return rc;
    buf_clear(&g->staged);

    pthread_mutex_lock(&g->notify_mu);
    if (!g->is_released && g->request.notify)
        g->request.notify(g->request.user);
    pthread_mutex_unlock(&g->notify_mu);
    return OK;
}

enum err gen_read(struct gen *g, struct buf *text, struct gen_status *status)
{
    enum err rc = OK;
    pthread_mutex_lock(&g->mu);
    if (g->out.len > 0)
        rc = buf_append(text, g->out.data, g->out.len);
    if (rc == OK)
        buf_clear(&g->out);
    *status = g->status;
    pthread_mutex_unlock(&g->mu);
    return rc;
}

void gen_status(struct gen *g, struct gen_status *status)
{
    pthread_mutex_lock(&g->mu);
    *status = g->status;
    pthread_mutex_unlock(&g->mu);
}

void gen_cancel(struct gen *g)
{
    pthread_mutex_lock(&g->mu);
    /* Under the lock: the engine cannot end the request, and so not itself,
     * before it is let go. */
    if (g->status.state != GEN_DONE) {
        atomic_store(&g->is_cancelled, true);
        engine_wake(g->engine);
    }
    pthread_mutex_unlock(&g->mu);
}

void gen_release(struct gen *g)
{
    gen_cancel(g);
    pthread_mutex_lock(&g->notify_mu);
    g->is_released = true;
    pthread_mutex_unlock(&g->notify_mu);
    gen_unref(g);
}
