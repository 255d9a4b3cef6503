/* cors.h - which web pages may read our answers.
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

/* True when a requested-headers list holds nothing but header names, commas
 * and spaces, so that it may be echoed. */
bool cors_is_header_list(const char *list);

#endif
