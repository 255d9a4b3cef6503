#include "server/server.h"

#include <errno.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server/prepare.h"
#include "server/server_internal.h"
#include "server/watch.h"

enum {
    BACKLOG = 511,
    PEERS_MAX = 1024, /* connections at once */
    PEERS_SPARE = 64, /* of them for /health and /metrics, at most */
    FDS_MIN = 64,     /* open files without which no server starts */
    FDS_OTHER = 40,   /* of them for files, epoll sets, the listening socket */
    LINGER_MAX = 64,  /* refused connections that are still read from */
    HOST_MAX = 256,
    STOP_WAIT_MS = 1000,
    /* Requests may be prepared beyond the engine's own queue: whether one
     * has to wait there is not known before. */
    PREPARE_MORE = 64
};

/* The listening socket. */

static int open_one(const struct addrinfo *at)
{
    int on = 1;
    int fd =
        socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
               at->ai_protocol);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

bool server_is_loopback(const struct sockaddr *addr)
{
    const struct sockaddr_in *v4 = (const void *)addr;
    const struct sockaddr_in6 *v6 = (const void *)addr;
    if (!addr)
        return false;
    if (addr->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    if (addr->sa_family != AF_INET6)
        return false;
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) &&
            v6->sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
}

static enum err set_url(struct server *s, struct errmsg *m)
{
    struct sockaddr_storage addr;
    socklen_t n = sizeof(addr);
    char host[HOST_MAX], port[16];
    if (getsockname(s->listen_fd, (struct sockaddr *)&addr, &n) != 0 ||
        getnameinfo((struct sockaddr *)&addr, n, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return err_set(m, ERR_IO, "cannot tell the address of the socket");
    s->is_loopback = server_is_loopback((struct sockaddr *)&addr);
    bool v6 = strchr(host, ':') != NULL;
    snprintf(s->url, sizeof(s->url), v6 ? "http://[%s]:%s" : "http://%s:%s",
             host, port);
    return OK;
}

static enum err open_socket(struct server *s, struct errmsg *m)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char port[16];
    snprintf(port, sizeof(port), "%u", s->o.port);
    int rc = getaddrinfo(s->o.host, port, &hints, &found);
    /* A bare container has no hosts file; the name is loopback all the same
     * (RFC 6761, 6.3). */
    if (rc != 0 && strcmp(s->o.host, "localhost") == 0)
        rc = getaddrinfo("127.0.0.1", port, &hints, &found);
    if (rc != 0)
        return err_set(m, ERR_IO, "cannot find the host \"%s\": %s", s->o.host,
                       gai_strerror(rc));
    for (const struct addrinfo *at = found; at && s->listen_fd < 0;
         at = at->ai_next)
        s->listen_fd = open_one(at);
    int saved = errno;
    freeaddrinfo(found);
    if (s->listen_fd < 0)
        return err_set(m, ERR_IO, "cannot listen on %s port %u: %s", s->o.host,
                       s->o.port, strerror(saved));
    return set_url(s, m);
}

/* As many connections as the limit on open files allows: accepting more would
 * fail, and nobody would get an answer. */
static enum err set_limits(struct server *s, struct errmsg *m)
{
    struct rlimit files;
    rlim_t all = PEERS_MAX + LINGER_MAX + FDS_OTHER;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        rlim_t soft = files.rlim_cur;
        files.rlim_cur = files.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &files) != 0)
            files.rlim_cur = soft;
        if (files.rlim_cur < all)
            all = files.rlim_cur;
    }
    if (all < FDS_MIN)
        return err_set(m, ERR_IO,
                       "the limit of %llu open files is too low for a server; "
                       "it needs %d at least (ulimit -n, LimitNOFILE=)",
                       (unsigned long long)all, FDS_MIN);
    uint32_t room = (uint32_t)all - FDS_OTHER;
    s->max_linger = room / 4 < LINGER_MAX ? room / 4 : LINGER_MAX;
    s->max_peers = room - s->max_linger;
    if (s->max_peers > PEERS_MAX)
        s->max_peers = PEERS_MAX;
    uint32_t spare = s->max_peers / 4;
    s->soft_peers = s->max_peers - (spare < PEERS_SPARE ? spare : PEERS_SPARE);
    return OK;
}

enum err server_new(struct server **out, const struct server_options *o,
                    struct errmsg *m)
{
    struct server *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(m, ERR_NOMEM, "no memory for the server");
    s->o = *o;
    s->engine = o->engine;
    s->listen_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_rwlock_init(&s->engine_lock, NULL);
    unknown_init(&s->unknown);
    enum err rc = set_limits(s, m);
    if (rc == OK)
        rc = open_socket(s, m);
    if (rc == OK)
        rc = prepare_new(&s->prepare, o->max_queue + PREPARE_MORE, m);
    if (rc == OK)
        rc = watch_new(&s->watch, s, m);
    if (rc == OK)
        rc = http_start(s, m);
    if (rc != OK) {
        server_free(s);
        return rc;
    }
    *out = s;
    return OK;
}

const char *server_url(const struct server *s)
{
    return s->url;
}

static uint64_t bodies_max(const struct server *s)
{
    return s->o.max_body * SERVER_BODIES;
}

uint64_t server_memory_max(const struct server *s)
{
    return bodies_max(s) + (uint64_t)s->max_peers * SERVER_CONNECTION_MEMORY;
}

void server_drain(struct server *s)
{
    atomic_store(&s->draining, true);
}

bool server_is_idle(struct server *s)
{
    return atomic_load(&s->n_jobs) == 0;
}

void server_detach_engine(struct server *s)
{
    pthread_rwlock_wrlock(&s->engine_lock);
    s->engine = NULL;
    pthread_rwlock_unlock(&s->engine_lock);
}

/* Tells every request that it is over; true when none is left suspended. */
static bool end_exchanges(struct server *s)
{
    bool none = true;
    pthread_mutex_lock(&s->lock);
    for (struct peer *p = s->peers; p; p = p->next) {
        if (p->current) {
            exchange_leave(p->current);
            none = false;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return none;
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

void server_free(struct server *s)
{
    if (!s)
        return;
    atomic_store(&s->draining, true);
    atomic_store(&s->stopping, true);
    /* The library aborts the process if it is stopped while a connection is
     * suspended. From now on none is suspended again, and those that are get
     * woken here. */
    for (int i = 0; s->daemon && i < STOP_WAIT_MS && !end_exchanges(s); i++)
        sleep_ms(1);
    http_stop(s);
    watch_free(s->watch);
    prepare_free(s->prepare);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    pthread_rwlock_destroy(&s->engine_lock);
    unknown_fini(&s->unknown);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

bool server_body_reserve(struct server *s, size_t n)
{
    uint64_t limit = bodies_max(s);
    uint64_t before = atomic_fetch_add(&s->body_bytes, n);
    if (before + n <= limit)
        return true;
    atomic_fetch_sub(&s->body_bytes, n);
    return false;
}

void server_body_release(struct server *s, size_t n)
{
    atomic_fetch_sub(&s->body_bytes, n);
}

bool server_engine_stats(struct server *s, struct engine_stats *out)
{
    memset(out, 0, sizeof(*out));
    pthread_rwlock_rdlock(&s->engine_lock);
    bool up = s->engine != NULL;
    if (up)
        engine_stats(s->engine, out);
    pthread_rwlock_unlock(&s->engine_lock);
    return up;
}

enum err server_submit(struct server *s, struct gen_request *r,
                       struct gen **out, enum gen_refusal *why,
                       struct errmsg *m)
{
    pthread_rwlock_rdlock(&s->engine_lock);
    enum err rc = ERR_BUDGET;
    if (s->engine) {
        rc = engine_submit(s->engine, r, out, why, m);
    } else {
        *why = GEN_REFUSED_DRAINING;
        err_set(m, rc, "The server is going down.");
    }
    pthread_rwlock_unlock(&s->engine_lock);
    return rc;
}

enum err server_flush(struct server *s, void (*done)(void *user), void *user)
{
    pthread_rwlock_rdlock(&s->engine_lock);
    enum err rc = s->engine ? engine_flush(s->engine, done, user) : ERR_BUDGET;
    pthread_rwlock_unlock(&s->engine_lock);
    return rc;
}
