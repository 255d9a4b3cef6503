/* route.h - which handler a path and method mean.
 *
 * The same routes are served with and without /v1; a trailing slash and
 * doubled slashes are tolerated, because base URLs are joined carelessly
 * (docs/design, api 1.1). Nothing is ever redirected: clients would lose the
 * body.
 *
 * Threads: any; nothing is kept.
 */
#ifndef SERVER_ROUTE_H
#define SERVER_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

enum route_id {
    ROUTE_CHAT,
    ROUTE_COMPLETIONS,
    ROUTE_MODELS,
    ROUTE_MODEL, /* one model; its id is the rest of the path */
    ROUTE_HEALTH,
    ROUTE_METRICS,
    ROUTE_ADMIN_CONFIG,
    ROUTE_ADMIN_FLUSH,
    ROUTE_SESSIONS, /* for explicit sessions; not served yet */
    ROUTE_UNKNOWN,
    ROUTE_COUNT
};

enum { ROUTE_PATH_MAX = 1024 };

struct route {
    enum route_id id;
    bool method_fits;
    const char *allow;         /* methods, for a 405; constant memory */
    char rest[ROUTE_PATH_MAX]; /* id of ROUTE_MODEL, else "" */
};

/* path is already percent-decoded and has no query. Always fills *out. */
void route_find(struct route *out, const char *method, const char *path);

/* Short name for logs and metric labels; constant memory. */
const char *route_name(enum route_id id);

#endif
