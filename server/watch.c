#include "server/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/reply.h"
#include "server/server_internal.h"

enum {
    TICK_MS = 250,
    EVENTS = 64,
    LINGER_US = 2 * 1000 * 1000,
    KEEPALIVE_US = 5 * 1000 * 1000,
    /* A body may take this long, and longer in proportion to what has come. */
    BODY_US = 30 * 1000 * 1000,
    BODY_BYTES_PER_S = 16 * 1024,
    /* From the end of one request to the end of the next one's headers: the
     * library's own limit for silence, and time for slow headers. */
    HEADERS_US = (SERVER_IDLE_S + 30) * 1000 * 1000,
    /* When connections run out, idle ones of this age are closed. */
    SPARE_US = 1000 * 1000,
    /* Between two lines of the log that say so. */
    FULL_LOG_US = 30 * 1000 * 1000
};

struct lingering {
    int fd;
    int64_t until_us;
};

struct watch {
    struct server *server;
    int epoll_fd, event_fd;
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock;
    struct lingering *linger; /* guarded by lock; server.max_linger of them */
    size_t n_linger;
    int64_t full_logged_us; /* 0: never; the watch thread's */
};

/* The thread. */

static void client_left(struct server *s, uint64_t peer_id)
{
    pthread_mutex_lock(&s->lock);
    struct peer *p = s->peers;
    while (p && p->id != peer_id)
        p = p->next;
    if (p && p->current)
        exchange_leave(p->current);
    pthread_mutex_unlock(&s->lock);
}

static bool body_is_late(const struct exchange *ex, int64_t now)
{
    uint64_t more = ex->received / BODY_BYTES_PER_S * 1000000u;
    return now - ex->started_us > BODY_US + (int64_t)more;
}

static void expire(struct exchange *ex)
{
    struct api_error e;
    api_error_set(&e, 408, "request_timeout", NULL,
                  "The request body did not arrive in time (%llu bytes came).",
                  (unsigned long long)ex->received);
    reply_raw(ex, &e);
    ex->expired = true;
}

/* The library reads a socket until it has less than it asked for; an end that
 * came together with the last bytes it notices only when something else
 * happens. Seen twice, so that a request which is being taken up right now is
 * not cut off. server.lock is held. */
static void check_end(struct peer *p)
{
    char byte;
    bool ended = recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    if (ended && p->has_ended && !p->cut) {
        p->cut = true;
        shutdown(p->fd, SHUT_RDWR);
    }
    p->has_ended = ended;
}

/* server.lock is held. */
static void check_exchange(struct peer *p, int64_t now)
{
    struct exchange *ex = p->current;
    bool silent = false;
    pthread_mutex_lock(&ex->lock);
    bool receives = ex->phase == EX_RECEIVING;
    if (receives && !ex->expired && body_is_late(ex, now)) {
        expire(ex);
        p->cut = true;
        shutdown(p->fd, SHUT_RDWR);
    }
    if (ex->phase == EX_SENDING && ex->suspended &&
        now - ex->last_sent_us >= KEEPALIVE_US)
        silent = true;
    pthread_mutex_unlock(&ex->lock);
    if (silent)
        exchange_wake(ex);
    if (receives)
        check_end(p);
}

static void log_full(struct watch *w, uint32_t n_peers, int64_t now)
{
    const struct server *s = w->server;
    if (w->full_logged_us > 0 && now - w->full_logged_us < FULL_LOG_US)
        return;
    w->full_logged_us = now;
    log_msg(LOG_LEVEL_WARN,
            "%u of at most %u connections are open; above %u only /health and "
            "/metrics are served (the limit on open files may be raised: "
            "ulimit -n)",
            n_peers, s->max_peers, s->soft_peers);
}

static void check_peers(struct watch *w, int64_t now)
{
    struct server *s = w->server;
    pthread_mutex_lock(&s->lock);
    uint32_t n_peers = s->n_peers;
    bool crowded = n_peers > s->soft_peers;
    for (struct peer *p = s->peers; p; p = p->next) {
        if (p->current) {
            check_exchange(p, now);
            continue;
        }
        check_end(p);
        int64_t idle = now - p->since_us;
        if (!p->cut && (idle > HEADERS_US || (crowded && idle > SPARE_US))) {
            p->cut = true;
            shutdown(p->fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (crowded)
        log_full(w, n_peers, now);
}

/* true: the other end has closed, or enough time was given. */
static bool drain(const struct lingering *l, int64_t now)
{
    static const int rounds = 64; /* at most 4 MiB a tick */
    char sink[64 * 1024];
    for (int i = 0; i < rounds; i++) {
        ssize_t n = recv(l->fd, sink, sizeof(sink), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return true;
        if (n < 0)
            break;
    }
    return now >= l->until_us;
}

static void check_linger(struct watch *w, int64_t now)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_linger;) {
        if (drain(&w->linger[i], now)) {
            close(w->linger[i].fd);
            w->linger[i] = w->linger[--w->n_linger];
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&w->lock);
}

static void *run(void *arg)
{
    struct watch *w = arg;
    struct epoll_event event[EVENTS];
    int64_t last = clock_us();
    while (!atomic_load(&w->stop)) {
        int n = epoll_wait(w->epoll_fd, event, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++)
            if (event[i].data.u64 != 0)
                client_left(w->server, event[i].data.u64);
        int64_t now = clock_us();
        if (now - last < TICK_MS * 1000)
            continue;
        last = now;
        check_peers(w, now);
        check_linger(w, now);
    }
    return NULL;
}

/* The interface. */

static enum err open_fds(struct watch *w, struct errmsg *m)
{
    /* Id 0 is no peer: the event that ends the wait. */
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epoll_fd < 0 || w->event_fd < 0 ||
        epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->event_fd, &event) != 0)
        return err_set(m, ERR_IO, "cannot watch sockets: %s", strerror(errno));
    return OK;
}

enum err watch_new(struct watch **out, struct server *s, struct errmsg *m)
{
    struct watch *w = calloc(1, sizeof(*w));
    if (!w)
        return err_set(m, ERR_NOMEM, "no memory for the socket watch");
    w->server = s;
    w->epoll_fd = w->event_fd = -1;
    w->linger = calloc(s->max_linger, sizeof(*w->linger));
    enum err rc = w->linger ? open_fds(w, m)
                            : err_set(m, ERR_NOMEM, "no memory for the watch");
    if (rc != OK)
        goto out;
    if (pthread_mutex_init(&w->lock, NULL) != 0) {
        rc = err_set(m, ERR_NOMEM, "no memory for a lock");
        goto out;
    }
    if (pthread_create(&w->thread, NULL, run, w) != 0) {
        pthread_mutex_destroy(&w->lock);
        rc = err_set(m, ERR_NOMEM, "cannot start the watch thread");
        goto out;
    }
    *out = w;
out:
    if (rc != OK) {
        if (w->epoll_fd >= 0)
            close(w->epoll_fd);
        if (w->event_fd >= 0)
            close(w->event_fd);
        free(w->linger);
        free(w);
    }
    return rc;
}

void watch_free(struct watch *w)
{
    uint64_t one = 1;
    if (!w)
        return;
    atomic_store(&w->stop, true);
    if (write(w->event_fd, &one, sizeof(one)) < 0) {
        /* Then the thread ends at its next tick. */
    }
    pthread_join(w->thread, NULL);
    for (size_t i = 0; i < w->n_linger; i++)
        close(w->linger[i].fd);
    close(w->epoll_fd);
    close(w->event_fd);
    pthread_mutex_destroy(&w->lock);
    free(w->linger);
    free(w);
}

void watch_add(struct watch *w, struct exchange *ex)
{
    /* Once is enough: the exchange ends after it. EPOLLHUP and EPOLLERR are
     * always reported. */
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT,
                                .data.u64 = ex->peer->id};
    epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, ex->peer->fd, &event);
}

void watch_remove(struct watch *w, struct exchange *ex)
{
    epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, ex->peer->fd, NULL);
}

void watch_linger(struct watch *w, int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return;
    pthread_mutex_lock(&w->lock);
    bool room = w->n_linger < w->server->max_linger;
    if (room)
        w->linger[w->n_linger++] =
            (struct lingering){copy, clock_us() + LINGER_US};
    pthread_mutex_unlock(&w->lock);
    if (!room)
        close(copy);
}
