#include "server/reply.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/json.h"
#include "server/cors.h"

enum {
    STREAM_BLOCK = 32 * 1024, /* bytes asked of a stream at once */
    HEADERS_MAX = 16,
    NUMBER_MAX = 16
};

struct header {
    const char *name, *value;
};

struct headers {
    struct header at[HEADERS_MAX];
    size_t n;
    char number[NUMBER_MAX];
};

static void put(struct headers *h, const char *name, const char *value)
{
    if (h->n < HEADERS_MAX)
        h->at[h->n++] = (struct header){name, value};
}

/* What every answer carries. */
static void common(struct headers *h, const struct exchange *ex,
                   const char *type)
{
    h->n = 0;
    put(h, "x-request-id", ex->request_id);
    if (type)
        put(h, "Content-Type", type);
    put(h, "Vary", "Origin");
    if (ex->must_close)
        put(h, "Connection", "close");
    if (!ex->origin)
        return;
    put(h, "Access-Control-Allow-Origin", ex->origin);
    put(h, "Access-Control-Expose-Headers",
        "X-Request-ID, Retry-After, x-ratelimit-limit-requests, "
        "x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, "
        "x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, "
        "x-ratelimit-reset-tokens");
}

static void of_error(struct headers *h, const struct exchange *ex,
                     const struct api_error *e)
{
    common(h, ex, "application/json");
    int wait = api_error_retry_after(e);
    if (wait > 0) {
        snprintf(h->number, sizeof(h->number), "%d", wait);
        put(h, "Retry-After", h->number);
    }
    if (e->allow)
        put(h, "Allow", e->allow);
    if (e->status == 401)
        put(h, "WWW-Authenticate", "Bearer");
    if (e->close && !ex->must_close)
        put(h, "Connection", "close");
}

/* Takes r over. */
static enum MHD_Result queue(struct exchange *ex, int status,
                             struct MHD_Response *r, const struct headers *h)
{
    enum MHD_Result ok = MHD_YES;
    if (!r)
        return MHD_NO;
    for (size_t i = 0; i < h->n && ok == MHD_YES; i++)
        ok = MHD_add_response_header(r, h->at[i].name, h->at[i].value);
    if (ok == MHD_YES)
        ok = MHD_queue_response(ex->conn, (unsigned)status, r);
    MHD_destroy_response(r);
    if (ok == MHD_YES) {
        ex->status = status;
        ex->is_told = !exchange_is_over(ex);
    }
    return ok;
}

static enum MHD_Result send_body(struct exchange *ex, int status,
                                 const struct headers *h, struct buf *body)
{
    size_t n = body->len;
    char *bytes = buf_take(body);
    if (!bytes)
        return MHD_NO;
    return queue(
        ex, status,
        MHD_create_response_from_buffer(n, bytes, MHD_RESPMEM_MUST_FREE), h);
}

enum MHD_Result reply_bytes(struct exchange *ex, int status, const char *type,
                            struct buf *body)
{
    struct headers h;
    common(&h, ex, type);
    return send_body(ex, status, &h, body);
}

enum MHD_Result reply_json(struct exchange *ex, int status, struct buf *body)
{
    return reply_bytes(ex, status, "application/json", body);
}

enum MHD_Result reply_error(struct exchange *ex, const struct api_error *e)
{
    struct headers h;
    struct buf body = {0};
    of_error(&h, ex, e);
    if (api_error_render(&body, e) != OK) {
        buf_fini(&body);
        return MHD_NO;
    }
    return send_body(ex, e->status, &h, &body);
}

enum MHD_Result reply_preflight(struct exchange *ex, const char *requested)
{
    struct headers h;
    common(&h, ex, NULL);
    if (ex->origin) {
        put(&h, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        put(&h, "Access-Control-Max-Age", "86400");
        if (cors_is_header_list(requested))
            put(&h, "Access-Control-Allow-Headers", requested);
    }
    return queue(
        ex, MHD_HTTP_NO_CONTENT,
        MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT), &h);
}

enum MHD_Result reply_stream(struct exchange *ex,
                             MHD_ContentReaderCallback read)
{
    struct headers h;
    common(&h, ex, "text/event-stream; charset=utf-8");
    put(&h, "Cache-Control", "no-cache");
    put(&h, "X-Accel-Buffering", "no");
    enum MHD_Result ok =
        queue(ex, MHD_HTTP_OK,
              MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK,
                                                read, ex, NULL),
              &h);
    ex->is_told = false;
    return ok;
}

static enum err raw_text(struct buf *out, struct exchange *ex,
                         const struct api_error *e)
{
    struct headers h;
    struct buf body = {0};
    struct api_error closing = *e;
    closing.close = true;
    of_error(&h, ex, &closing);
    enum err rc = api_error_render(&body, e);
    if (rc == OK)
        rc = buf_printf(
            out, "HTTP/1.1 %d %s\r\nContent-Length: %zu\r\n", e->status,
            MHD_get_reason_phrase_for((unsigned)e->status), body.len);
    for (size_t i = 0; i < h.n && rc == OK; i++)
        rc = buf_printf(out, "%s: %s\r\n", h.at[i].name, h.at[i].value);
    if (rc == OK)
        rc = buf_puts(out, "\r\n");
    if (rc == OK)
        rc = buf_append(out, body.data, body.len);
    buf_fini(&body);
    return rc;
}

void reply_raw(struct exchange *ex, const struct api_error *e)
{
    struct buf out = {0};
    if (raw_text(&out, ex, e) == OK) {
        ssize_t n =
            send(ex->peer->fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n == (ssize_t)out.len)
            ex->status = e->status;
    }
    buf_fini(&out);
}
