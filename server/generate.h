/* generate.h - requests that make an answer: from a body to tokens to text.
 *
 * A job is the part of such a request that the HTTP layer does not know. It
 * is made by a prepare thread, which checks everything before the engine sees
 * it, and then read by the HTTP thread, which turns the engine's text into
 * one object or a stream of events. Every refusal is decided before a status
 * is sent, so a stream fails exactly as a whole answer does.
 */
#ifndef SERVER_GENERATE_H
#define SERVER_GENERATE_H

#include <microhttpd.h>

#include "server/exchange.h"

struct job;

/* A prepare thread: parses the body and submits to the engine, or finds out
 * what is wrong with it. The exchange is READY afterwards, and woken. */
void job_prepare(struct exchange *ex);

/* The HTTP thread: does what can be done. *waits: nothing can, and nothing
 * was sent; the exchange will be woken. */
enum MHD_Result job_step(struct exchange *ex, bool *waits);

/* The HTTP thread, once, when the exchange ends: counts it, writes its log
 * line, lets the engine's part go. complete: the client got the answer. Also
 * for exchanges that never had a job. */
void job_done(struct exchange *ex, bool complete);

/* Ends the engine's work for it. Not under the exchange's lock. */
void job_cancel(struct job *job);

void job_free(struct job *job); /* NULL is allowed */

#endif
