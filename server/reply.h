/* reply.h - sending answers: every header that all of them carry is here.
 *
 * Threads: the HTTP thread, except reply_raw().
 */
#ifndef SERVER_REPLY_H
#define SERVER_REPLY_H

#include "server/exchange.h"

/* body is emptied; its bytes go to the library without a copy. */
enum MHD_Result reply_bytes(struct exchange *ex, int status, const char *type,
                            struct buf *body);
enum MHD_Result reply_json(struct exchange *ex, int status, struct buf *body);
enum MHD_Result reply_error(struct exchange *ex, const struct api_error *e);

/* 204 to an OPTIONS request; requested may be NULL. */
enum MHD_Result reply_preflight(struct exchange *ex, const char *requested);

/* 200 with an event stream whose bytes come from read(). */
enum MHD_Result reply_stream(struct exchange *ex,
                             MHD_ContentReaderCallback read);

/* Writes a whole error answer to the socket past the library, which can't
 * send one while a body is still arriving. One attempt, never waits; the
 * caller ends the connection. ex->lock is held, or the HTTP thread calls. */
void reply_raw(struct exchange *ex, const struct api_error *e);

#endif
