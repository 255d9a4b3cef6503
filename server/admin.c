#include "server/admin.h"

#include "base/json.h"
#include "server/cors.h"
#include "server/reply.h"
#include "server/server_internal.h"

bool admin_is_route(enum route_id id)
{
    return id == ROUTE_ADMIN_CONFIG || id == ROUTE_ADMIN_FLUSH;
}

void admin_check(struct exchange *ex, const char *host, const char *origin)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(ex->conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct server_options *o = &ex->server->o;
    bool local_page =
        !origin || cors_is_local(origin) || cors_is_same(origin, host);
    if (info && server_is_loopback(info->client_addr) && local_page &&
        (!host || cors_host_allowed(host, o->host, NULL, 0)))
        return;
    api_error_set(&ex->early, 403, "admin_not_allowed", NULL,
                  "This route answers only to the machine that the server "
                  "runs on, under the name localhost or 127.0.0.1, and to no "
                  "web page from elsewhere.");
}

static enum MHD_Result answer_config(struct exchange *ex)
{
    struct buf body = {0};
    const char *text = ex->server->o.config_json;
    if (buf_puts(&body, text ? text : "{}") != OK) {
        buf_fini(&body);
        return MHD_NO;
    }
    return reply_json(ex, MHD_HTTP_OK, &body);
}

/* The engine's thread. */
static void on_flushed(void *user)
{
    struct exchange *ex = user;
    atomic_store(&ex->is_flushed, true);
    exchange_wake(ex);
    exchange_unref(ex);
}

static enum MHD_Result refuse(struct exchange *ex, enum err rc)
{
    struct api_error e;
    struct errmsg m;
    err_set(&m, rc, "%s",
            rc == ERR_BUDGET ? "The server is going down."
                             : "The server has no memory for it just now.");
    api_error_from(&e, rc, &m);
    return reply_error(ex, &e);
}

static enum MHD_Result step_flush(struct exchange *ex, bool *waits)
{
    struct buf body = {0};
    if (!ex->has_asked_flush) {
        exchange_ref(ex);
        enum err rc = server_flush(ex->server, on_flushed, ex);
        if (rc != OK) {
            exchange_unref(ex);
            return refuse(ex, rc);
        }
        ex->has_asked_flush = true;
    }
    if (!atomic_load(&ex->is_flushed)) {
        *waits = true;
        return MHD_YES;
    }
    if (buf_puts(&body, "{\"status\":\"flushed\"}") != OK) {
        buf_fini(&body);
        return MHD_NO;
    }
    return reply_json(ex, MHD_HTTP_OK, &body);
}

enum MHD_Result admin_step(struct exchange *ex, bool *waits)
{
    return ex->route.id == ROUTE_ADMIN_CONFIG ? answer_config(ex)
                                              : step_flush(ex, waits);
}
