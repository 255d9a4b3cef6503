/* admin.h - routes for whoever runs the server: its settings, and a flush of
 * the cache.
 *
 * There are no keys yet, so only this machine may use them; and not through a
 * web page whose name was pointed at it.
 *
 * Threads: the HTTP thread.
 */
#ifndef SERVER_ADMIN_H
#define SERVER_ADMIN_H

#include <microhttpd.h>
#include <stdbool.h>

#include "server/exchange.h"

bool admin_is_route(enum route_id id);

/* Sets ex->early to a 403 where the request does not come from this machine,
 * or from a web page of another one, whatever --cors-origin allows. host,
 * origin: these headers, or NULL. */
void admin_check(struct exchange *ex, const char *host, const char *origin);

/* As the act() of http.c: *waits, until the exchange is woken. */
enum MHD_Result admin_step(struct exchange *ex, bool *waits);

#endif
