#include "server/unknown.h"

#include <string.h>

#include "base/log.h"

void unknown_init(struct unknown *u)
{
    pthread_mutex_init(&u->lock, NULL);
    u->n = 0;
}

void unknown_fini(struct unknown *u)
{
    pthread_mutex_destroy(&u->lock);
}

/* True if there was a place for a new name. */
static bool remember(struct unknown *u, const char *shown)
{
    for (uint32_t i = 0; i < u->n; i++)
        if (strcmp(u->name[i], shown) == 0)
            return false;
    if (u->n == UNKNOWN_NAMES_MAX)
        return false;
    memcpy(u->name[u->n++], shown, strlen(shown) + 1);
    return true;
}

bool unknown_log(struct unknown *u, const char *name)
{
    char shown[API_SHOWN_MAX + 4];
    api_error_shown(shown, name, strlen(name));
    pthread_mutex_lock(&u->lock);
    bool is_new = remember(u, shown);
    bool is_last = is_new && u->n == UNKNOWN_NAMES_MAX;
    pthread_mutex_unlock(&u->lock);
    if (is_new)
        log_msg(LOG_LEVEL_WARN,
                "a request has the field '%s', which is unknown and ignored "
                "(said once%s)",
                shown, is_last ? "; no further name will be said" : "");
    return is_new;
}
