/* The daemon: connections, bodies, and which handler gets a request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/admin.h"
#include "server/cors.h"
#include "server/generate.h"
#include "server/ids.h"
#include "server/job.h"
#include "server/models.h"
#include "server/prepare.h"
#include "server/reply.h"
#include "server/server_internal.h"
#include "server/watch.h"

enum {
    /* A refused body up to this size is read before the answer, so that the
     * connection can go on; above it the answer comes at once. */
    SWALLOW_MAX = 1024 * 1024
};

static const char *header(struct exchange *ex, const char *name)
{
    return MHD_lookup_connection_value(ex->conn, MHD_HEADER_KIND, name);
}

/* What the head of a request tells. */

static void set_request_id(struct exchange *ex)
{
    const char *id = header(ex, "X-Request-ID");
    if (id && ids_is_sane(id))
        snprintf(ex->request_id, sizeof(ex->request_id), "%s", id);
    else
        ids_make(ex->request_id, "req_");
}

static bool is_job_route(enum route_id id)
{
    return id == ROUTE_CHAT || id == ROUTE_COMPLETIONS;
}

/* What an operator needs to look at a server that is in trouble. */
static bool tells_state(enum route_id id)
{
    return id == ROUTE_HEALTH || id == ROUTE_METRICS || admin_is_route(id);
}

static void check_route(struct exchange *ex, const char *method,
                        const char *url)
{
    char path[API_SHOWN_MAX + 4], verb[API_SHOWN_MAX + 4];
    if (ex->is_options)
        return;
    if (ex->route.id != ROUTE_UNKNOWN && ex->route.method_fits)
        return;
    api_error_shown(path, url, strlen(url));
    api_error_shown(verb, method, strlen(method));
    if (ex->route.id == ROUTE_UNKNOWN) {
        api_error_set(&ex->early, 404, "unknown_url", NULL,
                      "Unknown request URL: %s %s. The API is under /v1.", verb,
                      path);
        return;
    }
    if (ex->route.id == ROUTE_SESSIONS) {
        api_error_set(&ex->early, 400, "unsupported_url", NULL,
                      "There is no sessions API yet: %s %s. The cache of a "
                      "conversation is found by its messages.",
                      verb, path);
        return;
    }
    api_error_set(&ex->early, 405, "method_not_allowed", NULL,
                  "%s is not allowed on %s; allowed: %s.", verb, path,
                  ex->route.allow);
    ex->early.allow = ex->route.allow;
}

static void check_encoding(struct exchange *ex)
{
    const char *encoding = header(ex, "Content-Encoding");
    const char *type = header(ex, "Content-Type");
    char shown[API_SHOWN_MAX + 4];
    if (encoding && strcasecmp(encoding, "identity") != 0) {
        api_error_shown(shown, encoding, strlen(encoding));
        api_error_set(&ex->early, 415, "unsupported_content_encoding",
                      "Content-Encoding",
                      "A body with Content-Encoding \"%s\" is not accepted; "
                      "send plain JSON.",
                      shown);
    } else if (type && strncasecmp(type, "multipart/", 10) == 0) {
        api_error_set(&ex->early, 415, "unsupported_content_type",
                      "Content-Type",
                      "A multipart body is not accepted; send JSON.");
    }
}

static void check_session_header(struct exchange *ex)
{
    if (header(ex, "X-Ebb-Session"))
        api_error_set(&ex->early, 400, "unsupported_parameter", "X-Ebb-Session",
                      "Explicit sessions are not supported by this server.");
}

/* Above soft_peers connections only what tells the state is served, so that
 * an operator can still look. */
static void check_crowd(struct exchange *ex)
{
    struct server *s = ex->server;
    pthread_mutex_lock(&s->lock);
    bool crowded = s->n_peers > s->soft_peers;
    pthread_mutex_unlock(&s->lock);
    if (crowded) {
        api_error_set(&ex->early, 503, "overloaded", NULL,
                      "The server has all the connections that it can serve "
                      "(%u).",
                      s->soft_peers);
        ex->early.close = true;
    }
}

static void too_large(struct exchange *ex, struct api_error *e)
{
    api_error_set(e, 413, "request_too_large", NULL,
                  "The request body is larger than the limit of %llu bytes.",
                  (unsigned long long)ex->server->o.max_body);
    e->close = true;
}

/* The announced length of the body; 0 where none is. */
static uint64_t announced(struct exchange *ex)
{
    const char *text = header(ex, "Content-Length");
    return text ? strtoull(text, NULL, 10) : 0;
}

/* A page on the web whose name points here would be of our own origin for the
 * browser; its Host header tells. Where everybody may connect anyway, names
 * are not known and not asked. */
static void check_host(struct exchange *ex)
{
    const struct server *s = ex->server;
    const char *host = header(ex, "Host");
    char shown[API_SHOWN_MAX + 4];
    if (!s->is_loopback || !host ||
        cors_host_allowed(host, s->o.host, s->o.cors_origins,
                          s->o.n_cors_origins))
        return;
    api_error_shown(shown, host, strlen(host));
    api_error_set(&ex->early, 403, "host_not_allowed", "Host",
                  "This server listens on loopback only and does not answer to "
                  "the host name \"%s\". Use localhost, or start it with "
                  "--host or with --cors-origin for that name.",
                  shown);
}

/* A page may send a simple POST to anywhere, and would use up the model even
 * though it can't read the answer. */
static void check_origin(struct exchange *ex, const char *method)
{
    const char *origin = header(ex, "Origin");
    char shown[API_SHOWN_MAX + 4];
    bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (!origin || ex->origin || reads || ex->is_options ||
        cors_is_same(origin, header(ex, "Host")))
        return;
    api_error_shown(shown, origin, strlen(origin));
    api_error_set(&ex->early, 403, "origin_not_allowed", "Origin",
                  "Pages of the origin \"%s\" may not use this server; "
                  "--cors-origin at its start allows them.",
                  shown);
}

struct lengths {
    const char *first;
    bool differ;
    bool has_blank; /* in the name of some header */
};

static enum MHD_Result see_length(void *cls, enum MHD_ValueKind kind,
                                  const char *name, const char *value)
{
    struct lengths *l = cls;
    (void)kind;
    /* "Content-Length : 5" is a length for others, and for the library the
     * name of something unknown. */
    if (strpbrk(name, " \t"))
        l->has_blank = true;
    if (strcasecmp(name, "Content-Length") != 0)
        return MHD_YES;
    if (!l->first)
        l->first = value ? value : "";
    else if (strcmp(l->first, value ? value : "") != 0)
        l->differ = true;
    return MHD_YES;
}

/* Where a request ends must mean the same to us and to what stands before us:
 * else a part of it could pass for the next one. */
static void check_framing(struct exchange *ex)
{
    struct lengths l = {0};
    const char *coding = header(ex, "Transfer-Encoding");
    char shown[API_SHOWN_MAX + 4];
    MHD_get_connection_values(ex->conn, MHD_HEADER_KIND, see_length, &l);
    if (coding && l.first)
        ex->must_close = true;
    if (l.has_blank) {
        api_error_set(&ex->early, 400, "invalid_value", NULL,
                      "The name of a header holds a blank.");
    } else if (l.differ) {
        api_error_set(&ex->early, 400, "invalid_value", "Content-Length",
                      "The request has two Content-Length headers that "
                      "differ.");
    } else if (coding && strcasecmp(coding, "chunked") != 0) {
        api_error_shown(shown, coding, strlen(coding));
        api_error_set(&ex->early, 400, "invalid_value", "Transfer-Encoding",
                      "The Transfer-Encoding \"%s\" is not known; chunked "
                      "is.",
                      shown);
    } else {
        return;
    }
    ex->early.close = true;
}

static void check_head(struct exchange *ex, const char *method, const char *url)
{
    check_framing(ex);
    if (ex->early.close)
        return;
    check_host(ex);
    if (ex->early.status == 0)
        check_origin(ex, method);
    if (ex->early.status == 0)
        check_route(ex, method, url);
    if (ex->early.status == 0 && is_job_route(ex->route.id) && !ex->is_options)
        check_encoding(ex);
    if (ex->early.status == 0 && is_job_route(ex->route.id) && !ex->is_options)
        check_session_header(ex);
    if (ex->early.status == 0 && admin_is_route(ex->route.id) &&
        !ex->is_options)
        admin_check(ex, header(ex, "Host"), header(ex, "Origin"));
    if (ex->early.status == 0 && !tells_state(ex->route.id))
        check_crowd(ex);
    uint64_t length = announced(ex);
    if (length > ex->server->o.max_body)
        too_large(ex, &ex->early);
    /* The library forgets to drop an unread body of other methods, and would
     * read it as the next request. */
    if (ex->early.status != 0 && (length > SWALLOW_MAX || header(ex, "Expect")))
        ex->early.close = true;
}

static struct exchange *open_exchange(struct server *s,
                                      struct MHD_Connection *conn,
                                      const char *method, const char *url)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct peer *p = info ? info->socket_context : NULL;
    struct exchange *ex = p ? exchange_new(s, p, conn) : NULL;
    if (!ex)
        return NULL;
    set_request_id(ex);
    const char *origin = header(ex, "Origin");
    if (cors_allows(origin, s->o.cors_origins, s->o.n_cors_origins))
        ex->origin = strdup(origin);
    ex->is_options = strcmp(method, "OPTIONS") == 0;
    route_find(&ex->route, method, url);
    check_head(ex, method, url);
    pthread_mutex_lock(&s->lock);
    p->current = ex;
    pthread_mutex_unlock(&s->lock);
    return ex;
}

/* The body. */

static enum MHD_Result refuse_midway(struct exchange *ex)
{
    struct api_error e;
    too_large(ex, &e);
    reply_raw(ex, &e);
    pthread_mutex_lock(&ex->lock);
    ex->expired = true;
    pthread_mutex_unlock(&ex->lock);
    return MHD_NO;
}

static enum MHD_Result take_body(struct exchange *ex, const char *data,
                                 size_t n)
{
    pthread_mutex_lock(&ex->lock);
    ex->received += n;
    pthread_mutex_unlock(&ex->lock);
    if (exchange_is_over(ex))
        return MHD_NO;
    if (ex->received > ex->server->o.max_body)
        return refuse_midway(ex);
    if (ex->early.status != 0 || !is_job_route(ex->route.id) || ex->is_options)
        return MHD_YES; /* read and dropped */
    if (!server_body_reserve(ex->server, n)) {
        api_error_set(&ex->early, 503, "overloaded", NULL,
                      "The server holds as many request bodies as it can.");
        return MHD_YES;
    }
    if (buf_append(&ex->body, data, n) != OK) {
        server_body_release(ex->server, n);
        api_error_set(&ex->early, 503, "overloaded", NULL,
                      "The server has no memory for the request body.");
    }
    return MHD_YES;
}

/* The answer. */

static enum MHD_Result answer_health(struct exchange *ex)
{
    struct buf body = {0};
    struct api_error e;
    if (atomic_load(&ex->server->draining)) {
        api_error_set(&e, 503, "draining", NULL, "The server is going down.");
        return reply_error(ex, &e);
    }
    if (buf_puts(&body, "{\"status\":\"ok\"}") != OK)
        return MHD_NO;
    return reply_json(ex, MHD_HTTP_OK, &body);
}

static enum MHD_Result answer_metrics(struct exchange *ex)
{
    struct buf body = {0};
    bool open = metrics_wants_openmetrics(header(ex, "Accept"));
    if (metrics_render(ex->server, open, &body) != OK) {
        buf_fini(&body);
        return MHD_NO;
    }
    return reply_bytes(ex, MHD_HTTP_OK, metrics_content_type(open), &body);
}

static enum MHD_Result answer_models(struct exchange *ex)
{
    struct buf body = {0};
    enum err rc =
        ex->route.id == ROUTE_MODELS
            ? models_list(&body, &ex->server->o)
            : models_one(&body, &ex->server->o, ex->route.rest, &ex->early);
    if (rc == OK)
        return reply_json(ex, MHD_HTTP_OK, &body);
    buf_fini(&body);
    return ex->early.status ? reply_error(ex, &ex->early) : MHD_NO;
}

/* Whatever can be done now. *waits: nothing, until somebody wakes us. */
static enum MHD_Result act(struct exchange *ex, bool *waits)
{
    *waits = false;
    if (ex->early.status != 0)
        return reply_error(ex, &ex->early);
    if (ex->is_options)
        return reply_preflight(ex,
                               header(ex, "Access-Control-Request-Headers"));
    switch (ex->route.id) {
    case ROUTE_HEALTH:
        return answer_health(ex);
    case ROUTE_METRICS:
        return answer_metrics(ex);
    case ROUTE_MODELS:
    case ROUTE_MODEL:
        return answer_models(ex);
    case ROUTE_ADMIN_CONFIG:
    case ROUTE_ADMIN_FLUSH:
        return admin_step(ex, waits);
    default:
        return job_step(ex, waits);
    }
}

static enum MHD_Result finish(struct exchange *ex)
{
    if (!ex->has_ended) {
        ex->has_ended = true;
        /* No deadline for the body any more; what can still happen is that
         * the client leaves. */
        pthread_mutex_lock(&ex->lock);
        bool late = ex->expired;
        ex->phase = EX_PREPARING;
        pthread_mutex_unlock(&ex->lock);
        if (late)
            return MHD_NO;
        if (is_job_route(ex->route.id) && ex->early.status == 0)
            watch_add(ex->server->watch, ex);
    }
    for (;;) {
        bool waits = false;
        if (exchange_is_over(ex))
            return MHD_NO;
        enum MHD_Result rc = act(ex, &waits);
        if (!waits)
            return rc;
        if (exchange_sleep(ex))
            return MHD_YES;
        if (atomic_load(&ex->server->stopping))
            return MHD_NO;
    }
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *conn,
                                  const char *url, const char *method,
                                  const char *version, const char *data,
                                  size_t *n_data, void **con_cls)
{
    struct exchange *ex = *con_cls;
    (void)version;
    if (!ex) {
        ex = open_exchange(cls, conn, method, url);
        if (!ex)
            return MHD_NO;
        *con_cls = ex;
        bool may = strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0;
        if (ex->early.close && may)
            return reply_error(ex, &ex->early);
        return MHD_YES;
    }
    if (*n_data > 0) {
        size_t n = *n_data;
        *n_data = 0;
        return take_body(ex, data, n);
    }
    return finish(ex);
}

/* Ends. */

static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
    struct server *s = cls;
    struct exchange *ex = *con_cls;
    (void)conn;
    if (!ex)
        return;
    *con_cls = NULL;
    watch_remove(s->watch, ex);
    pthread_mutex_lock(&s->lock);
    ex->peer->current = NULL;
    ex->peer->since_us = clock_us();
    pthread_mutex_unlock(&s->lock);
    /* A prepare thread that still works on it sees that it is over. */
    pthread_mutex_lock(&ex->lock);
    bool refused = ex->early.close || ex->expired;
    /* A stream is told when its last byte is out; the end mark of the transfer
     * coding may then meet a closed socket. */
    bool complete =
        ex->is_told && (code == MHD_REQUEST_TERMINATED_COMPLETED_OK ||
                        (ex->job && ex->job->params.stream));
    ex->gone = true;
    atomic_store(&ex->left, true);
    pthread_mutex_unlock(&ex->lock);
    if (refused)
        watch_linger(s->watch, ex->peer->fd);
    job_done(ex, complete || refused);
    exchange_unref(ex);
}

static void peer_start(struct server *s, struct MHD_Connection *conn,
                       void **context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct peer *p = calloc(1, sizeof(*p));
    *context = p;
    if (!p || !info) {
        free(p);
        *context = NULL;
        return;
    }
    int on = 1;
    p->fd = info->connect_fd;
    p->since_us = clock_us();
    /* An event is sent when it is there, not when a packet is full. */
    setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    pthread_mutex_lock(&s->lock);
    p->id = ++s->last_peer_id;
    p->next = s->peers;
    if (p->next)
        p->next->prev = p;
    s->peers = p;
    s->n_peers++;
    pthread_mutex_unlock(&s->lock);
}

static void peer_end(struct server *s, struct peer *p)
{
    pthread_mutex_lock(&s->lock);
    if (p->prev)
        p->prev->next = p->next;
    else
        s->peers = p->next;
    if (p->next)
        p->next->prev = p->prev;
    s->n_peers--;
    pthread_mutex_unlock(&s->lock);
    free(p);
}

static void on_connection(void *cls, struct MHD_Connection *conn,
                          void **context, enum MHD_ConnectionNotificationCode c)
{
    if (c == MHD_CONNECTION_NOTIFY_STARTED)
        peer_start(cls, conn, context);
    else if (*context)
        peer_end(cls, *context);
}

/* Decodes %xx in place. The library hands paths over as C strings: a decoded
 * NUL would end one early, so such a path stays as it is, and no route has
 * its name. */
static size_t unescape(void *cls, struct MHD_Connection *conn, char *s)
{
    (void)cls;
    (void)conn;
    return strstr(s, "%00") ? strlen(s) : MHD_http_unescape(s);
}

static void on_library_log(void *cls, const char *fmt, va_list args)
{
    (void)cls;
    (void)args;
    /* Its messages may hold what clients sent; the sentence alone will do. */
    log_event(LOG_LEVEL_DEBUG, "http", log_str("message", fmt));
}

enum err http_start(struct server *s, struct errmsg *m)
{
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER,
        on_library_log, NULL, MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->max_peers,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)SERVER_CONNECTION_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SERVER_IDLE_S,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
    if (!s->daemon)
        return err_set(m, ERR_IO, "cannot start the HTTP daemon for %s",
                       s->url);
    return OK;
}

void http_stop(struct server *s)
{
    if (!s->daemon)
        return;
    MHD_quiesce_daemon(s->daemon);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
