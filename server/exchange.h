/* exchange.h - one HTTP request and its answer, and the connection under it.
 *
 * Life of an exchange: RECEIVING its body, then PREPARING (a prepare thread
 * has it), then READY (the answer can be decided) and SENDING. The HTTP
 * library owns one reference from the first call of the handler to the
 * completion callback; a prepare thread holds another while it works.
 *
 * While nothing can be done the connection is suspended. Who changes
 * something calls exchange_wake(); the HTTP thread then looks again. A wake
 * between a look and the suspension is not lost: exchange_sleep() sees it.
 *
 * Threads: fields without a mark belong to the HTTP thread (or to the prepare
 * thread while PREPARING); marked ones are guarded by the lock named.
 */
#ifndef SERVER_EXCHANGE_H
#define SERVER_EXCHANGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <microhttpd.h>

#include "base/buf.h"
#include "base/err.h"
#include "server/api_error.h"
#include "server/route.h"

struct server;
struct job;

enum exchange_phase { EX_RECEIVING, EX_PREPARING, EX_READY, EX_SENDING };

enum { EXCHANGE_ID_MAX = 128 };

/* One TCP connection. In the server's list; guarded by server.lock. */
struct peer {
    struct peer *next, *prev;
    uint64_t id; /* never used twice */
    int fd;
    int64_t since_us;         /* connected, or its last request ended */
    struct exchange *current; /* the request being served, or NULL */
    bool cut;                 /* we have shut it down */
    bool has_ended;           /* the other end had closed at the last look */
};

struct exchange {
    struct server *server;
    struct peer *peer;
    struct MHD_Connection *conn;
    char request_id[EXCHANGE_ID_MAX + 1];
    struct route route;
    bool is_options;
    bool must_close;        /* the connection ends after the answer */
    char *origin;           /* a page's origin that may read us, or NULL */
    struct api_error early; /* known before the body; sent after it */
    bool has_ended;         /* the whole body is there */
    struct buf body;
    uint64_t received; /* bytes of body, kept or dropped */
    int status;        /* of the answer; 0: none was sent */
    /* The client was there when the last of the answer was given away: a
     * stream's to the socket, else to the library. It may close at once. */
    bool is_told;
    int64_t started_us;
    bool is_pushed;            /* a prepare thread has it, or had it */
    struct job *job;           /* of a request that makes an answer */
    struct exchange *next_job; /* in the prepare queue; guarded there */
    bool has_asked_flush;      /* the engine has it, with a reference */
    atomic_bool is_flushed;

    /* As `gone`, for whoever must look often; set with it. */
    atomic_bool left;

    pthread_mutex_t lock;
    /* Guarded by lock. */
    enum exchange_phase phase;
    unsigned refs;
    bool suspended, wake;
    bool gone;    /* the client left, or the server stops: no answer */
    bool expired; /* told 408 on the socket itself */
    int64_t last_sent_us;
};

/* The HTTP thread, at the first call for a request. NULL: no memory. */
struct exchange *exchange_new(struct server *s, struct peer *p,
                              struct MHD_Connection *conn);
void exchange_ref(struct exchange *ex);
void exchange_unref(struct exchange *ex); /* the last one frees */

/* Lets the HTTP thread look at it again. Any thread that has a reference, or
 * that knows that the exchange can't end now. Never waits. */
void exchange_wake(struct exchange *ex);

/* The HTTP thread: suspends the connection. false: something has changed
 * since the last look (or the exchange is over): look again. */
bool exchange_sleep(struct exchange *ex);

enum exchange_phase exchange_phase(struct exchange *ex);
void exchange_set_phase(struct exchange *ex, enum exchange_phase phase);

/* Nobody waits for the answer any more. */
bool exchange_is_over(struct exchange *ex);

/* The client left: stops the work for it. server.lock is held, so that the
 * exchange can't end meanwhile. */
void exchange_leave(struct exchange *ex);

#endif
