/* server_internal.h - what the files behind server.h share. */
#ifndef SERVER_SERVER_INTERNAL_H
#define SERVER_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <microhttpd.h>

#include "server/exchange.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/server.h"
#include "server/unknown.h"

struct prepare;
struct watch;

enum {
    SERVER_URL_MAX = 320,
    /* Bodies of all requests together may take this many times the limit of
     * one, so that a crowd of uploads can't fill the memory. */
    SERVER_BODIES = 8,
    /* Of one connection: headers of a request, the block an answer is sent
     * from. */
    SERVER_CONNECTION_MEMORY = 64 * 1024,
    /* Seconds of silence after which the library closes a connection. */
    SERVER_IDLE_S = 60
};

struct server {
    struct server_options o;
    struct MHD_Daemon *daemon;
    int listen_fd;
    bool is_loopback; /* only this machine can connect */
    char url[SERVER_URL_MAX];
    uint32_t max_peers;  /* connections at once */
    uint32_t soft_peers; /* above it only /health and /metrics are served */
    uint32_t max_linger; /* refused connections that are still read from */
    struct prepare *prepare;
    struct watch *watch;
    struct metrics metrics;
    struct unknown unknown;
    atomic_bool draining, stopping;
    atomic_uint_least64_t body_bytes;
    atomic_uint n_jobs; /* open requests that make an answer */

    pthread_rwlock_t engine_lock;
    struct engine *engine; /* guarded by engine_lock; NULL once detached */

    pthread_mutex_t lock;
    /* Guarded by lock. */
    struct peer *peers;
    uint32_t n_peers;
    uint64_t last_peer_id;
};

/* false: too much is held already; nothing was counted. */
bool server_body_reserve(struct server *s, size_t n);
void server_body_release(struct server *s, size_t n);

/* A copy of the numbers of the engine; zeros and false once it is detached. */
bool server_engine_stats(struct server *s, struct engine_stats *out);

/* engine_submit(), or GEN_REFUSED_DRAINING once the engine is detached. */
MUST_CHECK enum err server_submit(struct server *s, struct gen_request *r,
                                  struct gen **out, enum gen_refusal *why,
                                  struct errmsg *m);

/* engine_flush(), or ERR_BUDGET once the engine is detached. */
MUST_CHECK enum err server_flush(struct server *s, void (*done)(void *user),
                                 void *user);

/* Is it an address of this machine alone? addr may be NULL. */
bool server_is_loopback(const struct sockaddr *addr);

/* --- http.c: the daemon and its callbacks --- */

MUST_CHECK enum err http_start(struct server *s, struct errmsg *m);
/* All exchanges must have been told that the server stops. */
void http_stop(struct server *s);

#endif
