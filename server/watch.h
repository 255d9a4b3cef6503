/* watch.h - looks after sockets while the HTTP library does not.
 *
 * The library takes a suspended connection out of its own watch: a client
 * that leaves while its request is queued, being prefilled or not streamed
 * would be noticed only at the end (docs/design, api 1.15). This thread waits
 * for the other end to close or reset, and stops the work at once. A client
 * that closes only its sending half counts as gone.
 *
 * Every quarter of a second it also
 *   - closes connections whose client closed them in the middle of a request;
 *   - tells 408 to who sends a body too slowly, cuts who sends headers too
 *     slowly, and frees idle connections when there are too many;
 *   - wakes streams that have been silent, so that they send a keep-alive;
 *   - reads and drops what still arrives on refused connections, because
 *     closing a socket with unread bytes would take the answer from the
 *     client (TCP answers with a reset).
 *
 * Threads: any may call.
 */
#ifndef SERVER_WATCH_H
#define SERVER_WATCH_H

#include "base/err.h"

struct server;
struct exchange;
struct watch;

MUST_CHECK enum err watch_new(struct watch **out, struct server *s,
                              struct errmsg *m);
void watch_free(struct watch *w); /* stops the thread; NULL is allowed */

/* From now until watch_remove() the client's end is looked at. */
void watch_add(struct watch *w, struct exchange *ex);
void watch_remove(struct watch *w, struct exchange *ex);

/* Keeps a duplicate of the socket for a moment and drains it. */
void watch_linger(struct watch *w, int fd);

#endif
