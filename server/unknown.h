/* unknown.h - fields of requests that nobody knows: ignored, and said once.
 *
 * Clients send fields of other servers and of later versions of the API, so an
 * unknown one is no error (docs/api.md). But whoever runs the server may want
 * to know that a wish was not heard: each name is logged the first time it is
 * seen. Names come from clients, so only so many are remembered, cut to what
 * can be shown.
 *
 * Threads: any.
 */
#ifndef SERVER_UNKNOWN_H
#define SERVER_UNKNOWN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/api_error.h"

enum { UNKNOWN_NAMES_MAX = 64 };

struct unknown {
    pthread_mutex_t lock;
    char name[UNKNOWN_NAMES_MAX][API_SHOWN_MAX + 4];
    uint32_t n;
};

void unknown_init(struct unknown *u);
void unknown_fini(struct unknown *u);

/* Logs the name if it is new. True: it did. */
bool unknown_log(struct unknown *u, const char *name);

#endif
