/* cors.h - which web pages may use us, and read our answers.
 *
 * By default only pages that were loaded from this machine: reflecting any
 * origin on a server without keys would let every web site use it
 * (docs/design, api 1.3).
 *
 * Threads: any; nothing is kept.
 */
#ifndef SERVER_CORS_H
#define SERVER_CORS_H

#include <stdbool.h>
#include <stddef.h>

/* True for http or https on localhost, a name below it, 127.0.0.0/8 or [::1],
 * any port. origin may be NULL. */
bool cors_is_local(const char *origin);

/* True for a local origin when list is empty; else for an origin that is in
 * the list, or any if the list has "*". origin may be NULL. */
bool cors_allows(const char *origin, const char *const *list, size_t n);

/* Whether a server that listens on loopback may answer a request with this
 * Host header: a page whose name was pointed at 127.0.0.1 (DNS rebinding)
 * sends its own. Local names pass, names without a dot, `own` (the host that
 * was configured), and the hosts of the origins in the list; "*" lets all
 * pass. */
bool cors_host_allowed(const char *host, const char *own,
                       const char *const *list, size_t n);

/* The page came from the host that the request goes to. Either may be NULL. */
bool cors_is_same(const char *origin, const char *host);

/* True when a requested-headers list holds nothing but header names, commas
 * and spaces, so that it may be echoed. */
bool cors_is_header_list(const char *list);

#endif
