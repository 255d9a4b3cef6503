#include "server/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

/* Clients wait this long before they try again: short, because a step is
 * short; a draining server is gone for a little longer. */
enum { RETRY_BUSY_S = 1, RETRY_FULL_S = 2, RETRY_DRAIN_S = 10 };

enum err api_error_set(struct api_error *e, int status, const char *code,
                       const char *param, const char *fmt, ...)
{
    char text[ERRMSG_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    memset(e, 0, sizeof(*e));
    e->status = status;
    snprintf(e->code, sizeof(e->code), "%s", code ? code : "");
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    return err_set(&e->message, ERR_INVAL, "%s", text);
}

void api_error_from(struct api_error *e, enum err code, const struct errmsg *m)
{
    const char *text = m && m->text[0] ? m->text : err_name(code);
    switch (code) {
    case ERR_INVAL:
        api_error_set(e, 400, "invalid_value", NULL, "%s", text);
        return;
    case ERR_UNSUPPORTED:
        api_error_set(e, 400, "unsupported_value", NULL, "%s", text);
        return;
    case ERR_NOTFOUND:
        api_error_set(e, 404, "not_found", NULL, "%s", text);
        return;
    case ERR_CONFLICT:
        api_error_set(e, 409, "conflict", NULL, "%s", text);
        return;
    case ERR_BUSY:
        api_error_set(e, 429, "rate_limit_exceeded", NULL, "%s", text);
        return;
    case ERR_BUDGET:
    case ERR_NOMEM:
    case ERR_DEVICE:
        api_error_set(e, 503, "overloaded", NULL, "%s", text);
        return;
    default:
        api_error_set(e, 500, "internal_error", NULL,
                      "The server failed (%s); the request id is in its log.",
                      err_name(code));
        return;
    }
}

void api_error_sizes(struct api_error *e, uint32_t n_prompt_tokens,
                     uint32_t n_ctx)
{
    e->has_numbers = true;
    e->n_prompt_tokens = n_prompt_tokens;
    e->n_ctx = n_ctx;
}

enum err api_error_context(struct api_error *e, const char *param,
                           uint32_t n_prompt_tokens, uint32_t n_ctx)
{
    api_error_set(e, 400, "context_length_exceeded", param,
                  "This model's maximum context length is %u tokens. However, "
                  "your prompt has at least %u tokens, which leaves no room "
                  "for an answer. Please shorten it.",
                  n_ctx, n_prompt_tokens);
    api_error_sizes(e, n_prompt_tokens, n_ctx);
    return ERR_INVAL;
}

void api_error_refused(struct api_error *e, enum gen_refusal why, enum err code,
                       const struct errmsg *m, const char *param)
{
    switch (why) {
    case GEN_REFUSED_CONTEXT:
        api_error_set(e, 400, "context_length_exceeded", param, "%s", m->text);
        return;
    case GEN_REFUSED_KV:
        api_error_set(e, 400, "kv_budget_exceeded", param, "%s", m->text);
        return;
    case GEN_REFUSED_QUEUE:
        api_error_set(e, 429, "rate_limit_exceeded", NULL, "%s", m->text);
        return;
    case GEN_REFUSED_DRAINING:
        api_error_set(e, 503, "draining", NULL, "%s", m->text);
        return;
    case GEN_REFUSED_NOT:
        break;
    }
    api_error_from(e, code, m);
}

bool api_error_finish(struct api_error *e, enum gen_finish finish,
                      uint64_t waited_us)
{
    double s = (double)waited_us / 1e6;
    switch (finish) {
    case GEN_FINISH_SHUTDOWN:
        api_error_set(e, 503, "draining", NULL,
                      "The server is going down; the answer is incomplete.");
        return true;
    case GEN_FINISH_BUSY:
        api_error_set(e, 429, "rate_limit_exceeded", NULL,
                      "The request waited %.0f s for its turn; as many "
                      "answers as may run at a time are running.",
                      s);
        return true;
    case GEN_FINISH_NO_ROOM:
        api_error_set(e, 503, "overloaded", NULL,
                      "The request waited %.0f s for room in the KV memory; "
                      "all of it is promised to running answers.",
                      s);
        return true;
    default:
        return false;
    }
}

const char *api_error_type(const struct api_error *e)
{
    switch (e->status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        /* LiteLLM raises NotFound for a model only if it sees both words. */
        return strcmp(e->code, "model_not_found") == 0 ? "invalid_request_error"
                                                       : "not_found_error";
    case 409:
        return "conflict_error";
    case 429:
        return "rate_limit_error";
    default:
        return e->status >= 500 ? "server_error" : "invalid_request_error";
    }
}

int api_error_retry_after(const struct api_error *e)
{
    if (e->status == 429)
        return RETRY_BUSY_S;
    if (e->status != 503)
        return 0;
    return strcmp(e->code, "draining") == 0 ? RETRY_DRAIN_S : RETRY_FULL_S;
}

static enum err put_or_null(struct buf *out, const char *key, const char *s)
{
    enum err rc = json_put_key(out, key);
    if (rc != OK)
        return rc;
    return s[0] ? json_put_text(out, s) : buf_puts(out, "null");
}

enum err api_error_render(struct buf *out, const struct api_error *e)
{
    enum err rc = buf_puts(out, "{\"error\":{\"message\":");
    if (rc == OK)
        rc = json_put_text(out, e->message.text);
    if (rc == OK)
        rc = buf_printf(out, ",\"type\":\"%s\",", api_error_type(e));
    if (rc == OK)
        rc = put_or_null(out, "param", e->param);
    if (rc == OK)
        rc = buf_putc(out, ',');
    if (rc == OK)
        rc = put_or_null(out, "code", e->code);
    if (rc == OK && e->has_numbers)
        rc = buf_printf(out, ",\"n_prompt_tokens\":%u,\"n_ctx\":%u",
                        e->n_prompt_tokens, e->n_ctx);
    return rc == OK ? buf_puts(out, "}}") : rc;
}

void api_error_shown(char *out, const char *s, size_t n)
{
    size_t len = 0;
    for (size_t at = 0; at < n;) {
        uint32_t cp = 0;
        int size = utf8_decode(s + at, n - at, &cp);
        bool shows = size > 0 && cp >= 0x20 && cp != 0x7F &&
                     !(cp >= 0x80 && cp < 0xA0) && cp != 0x2028 && cp != 0x2029;
        size_t step = size > 0 ? (size_t)size : 1;
        if (len + (shows ? step : 1) > API_SHOWN_MAX) {
            memcpy(out + len, "...", 3);
            len += 3;
            break;
        }
        if (shows)
            memcpy(out + len, s + at, step);
        else
            out[len] = '?';
        len += shows ? step : 1;
        at += step;
    }
    out[len] = '\0';
}
