/* server.h - the HTTP server: OpenAI's routes on one engine.
 *
 * Threads, each with one task:
 *   - the HTTP thread (libmicrohttpd's) reads requests, writes answers, and
 *     runs every handler; nothing that it calls waits;
 *   - the prepare threads parse bodies, render templates and tokenize, so
 *     that /health is answered while somebody's 16 MiB are being parsed;
 *   - the watch thread looks after sockets that the HTTP library does not
 *     look at (suspended ones), and after deadlines;
 *   - the engine's thread calls notify functions that only wake a request.
 *
 * Locks, in the order in which they may be taken: server.lock (the list of
 * connections), exchange.lock (one request). Functions of the engine are
 * never called under an exchange's lock: the engine notifies under its own.
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "base/err.h"
#include "server/options.h"

struct server;

/* Opens the socket and starts the threads; requests are answered from now
 * on. On OK the caller owns *out. o is copied, what it points to borrowed.
 * ERR_IO names host and port. */
MUST_CHECK enum err server_new(struct server **out,
                               const struct server_options *o,
                               struct errmsg *m);

/* "http://HOST:PORT" with the real port. Lives as long as the server. */
const char *server_url(const struct server *s);

/* Bytes of connections and of request bodies that are held at once, at
 * most. */
uint64_t server_memory_max(const struct server *s);

/* New work is refused (503, Retry-After) from now on; /health says so. */
void server_drain(struct server *s);

/* True when no request that makes an answer is open. */
bool server_is_idle(struct server *s);

/* The engine is about to be freed: its statistics are not asked any more.
 * Call server_drain() before. */
void server_detach_engine(struct server *s);

/* Ends every connection and thread; what is still being sent breaks off. */
void server_free(struct server *s);

#endif
