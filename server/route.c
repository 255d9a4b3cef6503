#include "server/route.h"

#include <string.h>
#include <strings.h>

struct row {
    const char *path;
    enum route_id id;
    const char *allow;
};

static const char GET_ALLOW[] = "GET, HEAD, OPTIONS";
static const char POST_ALLOW[] = "POST, OPTIONS";

static const struct row rows[] = {
    {"/chat/completions", ROUTE_CHAT, POST_ALLOW},
    {"/completions", ROUTE_COMPLETIONS, POST_ALLOW},
    {"/models", ROUTE_MODELS, GET_ALLOW},
    {"/health", ROUTE_HEALTH, GET_ALLOW},
    {"/metrics", ROUTE_METRICS, GET_ALLOW},
    {"/admin/config", ROUTE_ADMIN_CONFIG, GET_ALLOW},
    {"/admin/flush", ROUTE_ADMIN_FLUSH, POST_ALLOW},
};

/* One slash where there were several, none at the end. false: too long. */
static bool tidy(char *out, size_t cap, const char *path)
{
    size_t n = 0;
    for (; *path; path++) {
        if (*path == '/' && n > 0 && out[n - 1] == '/')
            continue;
        if (n + 1 >= cap)
            return false;
        out[n++] = *path;
    }
    while (n > 1 && out[n - 1] == '/')
        n--;
    out[n] = '\0';
    return true;
}

static bool method_fits(const char *method, const char *allow)
{
    if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
        return allow == GET_ALLOW;
    return strcmp(method, "POST") == 0 && allow == POST_ALLOW;
}

/* The path of a target that was sent with scheme and host, as to a proxy. */
static const char *skip_authority(const char *target)
{
    size_t n = strncasecmp(target, "http://", 7) == 0    ? 7
               : strncasecmp(target, "https://", 8) == 0 ? 8
                                                         : 0;
    if (n == 0)
        return target;
    const char *slash = strchr(target + n, '/');
    return slash ? slash : "/";
}

void route_find(struct route *out, const char *method, const char *path)
{
    char text[ROUTE_PATH_MAX];
    path = skip_authority(path);
    out->id = ROUTE_UNKNOWN;
    out->method_fits = false;
    out->allow = NULL;
    out->rest[0] = '\0';
    if (!tidy(text, sizeof(text), path))
        return;
    const char *at = text;
    if (strncmp(at, "/v1/", 4) == 0)
        at += 3;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(at, rows[i].path) == 0) {
            out->id = rows[i].id;
            out->allow = rows[i].allow;
        }
    }
    if (strncmp(at, "/models/", 8) == 0) {
        out->id = ROUTE_MODEL;
        out->allow = GET_ALLOW;
        memcpy(out->rest, at + 8, strlen(at + 8) + 1);
    }
    if (strcmp(at, "/sessions") == 0 || strncmp(at, "/sessions/", 10) == 0)
        out->id = ROUTE_SESSIONS;
    if (out->allow)
        out->method_fits = method_fits(method, out->allow);
}

const char *route_name(enum route_id id)
{
    static const char *const names[ROUTE_COUNT] = {
        [ROUTE_CHAT] = "chat",
        [ROUTE_COMPLETIONS] = "completions",
        [ROUTE_MODELS] = "models",
        [ROUTE_MODEL] = "model",
        [ROUTE_HEALTH] = "health",
        [ROUTE_METRICS] = "metrics",
        [ROUTE_ADMIN_CONFIG] = "admin_config",
        [ROUTE_ADMIN_FLUSH] = "admin_flush",
        [ROUTE_SESSIONS] = "sessions",
        [ROUTE_UNKNOWN] = "unknown",
    };
    return id < ROUTE_COUNT ? names[id] : "unknown";
}
