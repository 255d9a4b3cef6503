/* prepare.h - the threads between HTTP and the engine: they parse bodies,
 * render templates and tokenize.
 *
 * Two lanes, so that a body of megabytes does not hold up the short ones
 * behind it: one thread takes small bodies, the other large ones. The lanes
 * together have one limit; beyond it requests are refused.
 *
 * Threads: any may call.
 */
#ifndef SERVER_PREPARE_H
#define SERVER_PREPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct exchange;
struct prepare;

/* limit: requests that may wait. */
MUST_CHECK enum err prepare_new(struct prepare **out, uint32_t limit,
                                struct errmsg *m);
/* Ends the threads; what still waits is dropped. NULL is allowed. */
void prepare_free(struct prepare *p);

/* Takes a reference until job_prepare() is done with it. false: full. */
bool prepare_push(struct prepare *p, struct exchange *ex);
uint32_t prepare_limit(const struct prepare *p);

#endif
