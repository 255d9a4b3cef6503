#include "server/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "server/answer.h"
#include "server/chat.h"
#include "server/completions.h"
#include "server/ids.h"
#include "server/job.h"
#include "server/models.h"
#include "server/prepare.h"
#include "server/reply.h"
#include "server/server_internal.h"

enum {
    KEEPALIVE_US = 5 * 1000 * 1000,
    /* A prompt is counted up to this many times the context, so that most
     * clients learn how much is too much; beyond it the count costs more than
     * it tells. */
    COUNTED_CONTEXTS = 2,
    PIN_SHARE = 2 /* of the pool, one part may be pinned by a request */
};

/* Preparing. */

static void on_change(void *user)
{
    exchange_wake(user);
}

static enum err read_model(struct job *job, const struct server_options *o,
                           const cJSON *body)
{
    const cJSON *name = json_get_set(body, "model");
    if (!name && !o->any_model)
        return api_error_set(&job->error, 400, "missing_required_parameter",
                             "model", "Missing required parameter: 'model'.");
    if (name && !cJSON_IsString(name))
        return params_wrong_type(&job->error, "model", "a string", name);
    job->answer.model = models_find(o, name ? name->valuestring : o->model_id);
    return job->answer.model ? OK
                             : models_unknown(&job->error, name->valuestring);
}

static enum err chat_prompt(struct job *job, const struct server_options *o,
                            cJSON *body, struct tokens *tokens)
{
    struct errmsg m = {0};
    struct prompt_chat chat = {
        .kwargs = json_get_set(body, "chat_template_kwargs"),
        .add_generation_prompt = job->params.add_generation_prompt,
        .continue_final_message = job->params.continue_final_message,
        .pin = job->params.pin,
        .n_pin = job->params.n_pins,
    };
    enum err rc = chat_messages(&chat.messages, body, &job->error);
    if (rc != OK)
        return rc;
    rc = prompt_from_chat(o->prompt, &chat, tokens, &m);
    if (rc == ERR_INVAL)
        return api_error_set(&job->error, 400, "invalid_value", "messages",
                             "%s", m.text);
    if (rc != OK && rc != ERR_BUDGET)
        api_error_from(&job->error, rc, &m);
    return rc;
}

/* Pinned tokens are room that nobody else can have: at most half of the pool,
 * and less than the request's own cap. */
static enum err check_pins(struct job *job, const struct gen_request *r,
                           const struct server_options *o, uint64_t n_pinned)
{
    uint64_t limit = o->pool_tokens / PIN_SHARE;
    if (n_pinned > limit)
        return api_error_set(&job->error, 400, "pin_limit", "kv.pin",
                             "%llu tokens are pinned; the limit is %llu, half "
                             "of what the KV memory of this server holds.",
                             (unsigned long long)n_pinned,
                             (unsigned long long)limit);
    uint32_t cap = r->forget.session_tokens;
    uint64_t needs = n_pinned + o->forget.min_head;
    if (cap > 0 && needs > cap)
        return api_error_set(&job->error, 400, "pin_limit", "kv.pin",
                             "%llu tokens are pinned, and %u more are kept in "
                             "any case; the cap of this conversation is %u.",
                             (unsigned long long)n_pinned, o->forget.min_head,
                             cap);
    return OK;
}

/* Hands the tokens of pinned roles over to the request. An exact one keeps
 * everything anyway. */
static enum err take_pins(struct job *job, struct gen_request *r,
                          const struct server_options *o,
                          const struct token_ranges *pinned)
{
    uint64_t n = 0;
    if (pinned->n == 0 || r->forget.policy == FORGET_EXACT)
        return OK;
    for (size_t i = 0; i < pinned->n; i++)
        n += pinned->v[i].to - pinned->v[i].from;
    enum err rc = check_pins(job, r, o, n);
    if (rc != OK)
        return rc;
    r->pin = calloc(pinned->n, sizeof(*r->pin));
    if (!r->pin) {
        api_error_from(&job->error, ERR_NOMEM, NULL);
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < pinned->n; i++)
        r->pin[i] = (struct forget_span){(uint32_t)pinned->v[i].from,
                                         (uint32_t)pinned->v[i].to};
    r->n_pins = (uint32_t)pinned->n;
    return OK;
}

/* Hands the prompt over to the engine. *gen is NULL after an error. */
static enum err submit(struct exchange *ex, struct job *job,
                       struct gen_request *r, struct gen **gen)
{
    struct errmsg m = {0};
    enum gen_refusal why = GEN_REFUSED_NOT;
    const char *param = job->answer.is_chat ? "messages" : "prompt";
    r->notify = on_change;
    r->user = ex;
    enum err rc = server_submit(ex->server, r, gen, &why, &m);
    if (rc == OK)
        return OK;
    *gen = NULL;
    api_error_refused(&job->error, why, rc, &m, param);
    if (why == GEN_REFUSED_CONTEXT)
        api_error_sizes(&job->error, r->n_tokens, ex->server->o.max_context);
    return rc;
}

static enum err read_params(struct job *job, struct gen_request *r,
                            const cJSON *body, const struct server_options *o)
{
    const struct params_server server = {
        .n_vocab = o->n_vocab,
        .max_context = o->max_context,
        .forget = &o->forget,
        .has_gates = o->has_gates,
    };
    return params_read(&job->params, r, body,
                       job->answer.is_chat ? PARAMS_CHAT : PARAMS_TEXT, &server,
                       &job->error);
}

static void log_unknown(struct exchange *ex, const struct job *job,
                        const cJSON *body)
{
    enum params_route route = job->answer.is_chat ? PARAMS_CHAT : PARAMS_TEXT;
    const cJSON *at = body->child;
    while ((at = params_find_unknown(at, route)) != NULL) {
        (void)unknown_log(&ex->server->unknown, at->string);
        at = at->next;
    }
}

/* The tokens of the prompt, whatever the route. */
static enum err read_prompt(struct exchange *ex, struct job *job, cJSON *body,
                            struct tokens *tokens)
{
    const struct server_options *o = &ex->server->o;
    const char *param = job->answer.is_chat ? "messages" : "prompt";
    enum err rc = job->answer.is_chat
                      ? chat_prompt(job, o, body, tokens)
                      : completions_prompt(tokens, body, o->prompt, o->n_vocab,
                                           &job->error);
    if (rc == ERR_BUDGET && job->error.status == 0) {
        metrics_count_rejection(&ex->server->metrics, METRICS_REJECTED_CONTEXT);
        rc = api_error_context(&job->error, param, (uint32_t)tokens->max + 1,
                               o->max_context);
    }
    if (rc == OK && tokens->n == 0)
        rc = api_error_set(&job->error, 400, "invalid_value", NULL,
                           "The prompt has no tokens.");
    return rc;
}

static enum err read_body(struct exchange *ex, struct job *job, cJSON *body,
                          struct gen_request *r)
{
    const struct server_options *o = &ex->server->o;
    struct token_ranges pinned = {0};
    /* Where chats have no end, only the body's size limits a prompt. */
    struct tokens tokens = {
        .max = o->forget.unbounded_context
                   ? 0
                   : (size_t)o->max_context * COUNTED_CONTEXTS,
        .stop = &ex->left,
        .marked = &pinned,
    };
    if (!cJSON_IsObject(body))
        return api_error_set(&job->error, 400, "invalid_type", NULL,
                             "The request body must be a JSON object, but is "
                             "%s.",
                             params_type_name(body));
    enum err rc = read_model(job, o, body);
    if (rc == OK)
        rc = read_params(job, r, body, o);
    if (rc == OK)
        log_unknown(ex, job, body);
    if (rc == OK)
        rc = read_prompt(ex, job, body, &tokens);
    if (rc == OK)
        rc = take_pins(job, r, o, &pinned);
    token_ranges_fini(&pinned);
    if (rc != OK) {
        tokens_fini(&tokens);
        return rc;
    }
    /* No body is so large that its tokens would not fit 32 bits. */
    r->tokens = tokens.id;
    r->n_tokens = (uint32_t)tokens.n;
    return OK;
}

static void prepare(struct exchange *ex, struct job *job, struct gen **gen)
{
    struct errmsg m = {0};
    struct gen_request r = {0};
    cJSON *body = NULL;
    enum err rc =
        json_parse(&body, ex->body.data ? ex->body.data : "", ex->body.len, &m);
    if (rc == ERR_INVAL)
        api_error_set(&job->error, 400, "invalid_json", NULL,
                      "The request body is not valid JSON: %s", m.text);
    else if (rc != OK)
        api_error_from(&job->error, rc, &m);
    else
        rc = read_body(ex, job, body, &r);
    cJSON_Delete(body);
    job->answer.include_usage = job->params.include_usage;
    if (rc == OK && submit(ex, job, &r, gen) == OK)
        return;
    gen_request_fini(&r);
}

static struct job *job_new(struct exchange *ex)
{
    struct job *job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    job->answer.is_chat = ex->route.id == ROUTE_CHAT;
    job->answer.fingerprint = ex->server->o.fingerprint;
    job->answer.created = clock_wall_s();
    job->answer.id = job->id;
    ids_make(job->id, job->answer.is_chat ? "chatcmpl-" : "cmpl-");
    return job;
}

void job_prepare(struct exchange *ex)
{
    struct gen *gen = NULL;
    struct job *job = exchange_is_over(ex) ? NULL : job_new(ex);
    if (job)
        prepare(ex, job, &gen);
    /* An answer may take minutes; its request's bytes are not needed. */
    server_body_release(ex->server, ex->body.len);
    buf_fini(&ex->body);
    pthread_mutex_lock(&ex->lock);
    bool gone = ex->gone;
    if (!gone && job)
        job->gen = gen;
    ex->job = job;
    ex->phase = EX_READY;
    pthread_mutex_unlock(&ex->lock);
    /* Not under the lock: the engine may be calling on_change() just now. */
    if (gone && gen)
        gen_release(gen);
    exchange_wake(ex);
}

/* Answering. */

/* The end of the request is an error, set in the job. */
static bool has_failed(struct job *job)
{
    const struct gen_status *st = &job->status;
    if (!api_error_finish(&job->error, st->finish, st->done_us))
        return false;
    job->failed = st->finish == GEN_FINISH_SHUTDOWN;
    job->refused = !job->failed;
    return true;
}

static enum err end_events(struct job *job)
{
    const struct answer *a = &job->answer;
    enum err rc = OK;
    job->ended = true;
    if (has_failed(job)) {
        rc = answer_error(&job->out, &job->error);
    } else {
        rc = answer_finish(&job->out, a, &job->status);
        if (rc == OK && a->include_usage)
            rc = answer_usage(&job->out, a, &job->status);
    }
    return rc == OK ? answer_done(&job->out) : rc;
}

/* Turns what the engine has made since the last time into events. */
static enum err make_events(struct job *job)
{
    buf_clear(&job->text);
    enum err rc = gen_read(job->gen, &job->text, &job->status);
    bool done = job->status.state == GEN_DONE;
    bool failed = done && has_failed(job);
    if (rc == OK && !job->has_begun && (job->text.len > 0 || done) &&
        !(failed && job->text.len == 0)) {
        job->has_begun = true;
        if (job->answer.is_chat)
            rc = answer_role(&job->out, &job->answer);
    }
    if (rc == OK && job->text.len > 0)
        rc =
            answer_text(&job->out, &job->answer, job->text.data, job->text.len);
    if (rc == OK && done)
        rc = end_events(job);
    return rc;
}

static ssize_t send_events(struct exchange *ex, char *to, size_t max)
{
    struct job *job = ex->job;
    size_t n = answer_whole_events(job->out.data + job->sent,
                                   job->out.len - job->sent, max);
    memcpy(to, job->out.data + job->sent, n);
    job->sent += n;
    if (job->sent == job->out.len) {
        buf_clear(&job->out);
        job->sent = 0;
    }
    pthread_mutex_lock(&ex->lock);
    ex->last_sent_us = clock_us();
    pthread_mutex_unlock(&ex->lock);
    return (ssize_t)n;
}

static bool is_silent(struct exchange *ex)
{
    pthread_mutex_lock(&ex->lock);
    bool silent = clock_us() - ex->last_sent_us >= KEEPALIVE_US;
    pthread_mutex_unlock(&ex->lock);
    return silent;
}

/* The library asks for more of the stream. */
static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max)
{
    struct exchange *ex = cls;
    struct job *job = ex->job;
    (void)pos;
    for (;;) {
        if (job->ended && job->out.len == 0) {
            /* Asked for more, so the last event is out: a client that has
             * closed since then has got everything. */
            ex->is_told = true;
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (exchange_is_over(ex))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (job->out.len > 0)
            return send_events(ex, to, max);
        if (make_events(job) != OK)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (job->out.len == 0 && is_silent(ex) &&
            answer_keep_alive(&job->out) != OK)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (job->out.len > 0)
            continue;
        if (exchange_sleep(ex))
            return 0;
        if (atomic_load(&ex->server->stopping))
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
}

static enum MHD_Result fail(struct exchange *ex, struct job *job)
{
    return reply_error(ex, &job->error);
}

static enum MHD_Result step_whole(struct exchange *ex, bool *waits)
{
    struct job *job = ex->job;
    struct buf body = {0};
    gen_status(job->gen, &job->status);
    if (job->status.state != GEN_DONE) {
        *waits = true;
        return MHD_YES;
    }
    if (has_failed(job))
        return fail(ex, job);
    enum err rc = gen_read(job->gen, &job->text, &job->status);
    if (rc == OK)
        rc = answer_whole(&body, &job->answer, &job->text, &job->status);
    if (rc == OK)
        return reply_json(ex, MHD_HTTP_OK, &body);
    buf_fini(&body);
    api_error_from(&job->error, rc, NULL);
    return fail(ex, job);
}

static enum MHD_Result step_push(struct exchange *ex, bool *waits)
{
    struct api_error e;
    struct server *s = ex->server;
    if (ex->is_pushed) {
        *waits = true;
        return MHD_YES;
    }
    if (atomic_load(&s->draining)) {
        api_error_set(&e, 503, "draining", NULL,
                      "The server is going down and takes no new requests.");
        return reply_error(ex, &e);
    }
    if (!prepare_push(s->prepare, ex)) {
        metrics_count_rejection(&s->metrics, METRICS_REJECTED_PREPARE);
        api_error_set(&e, 429, "rate_limit_exceeded", NULL,
                      "The queue of requests is full (%u wait).",
                      prepare_limit(s->prepare));
        return reply_error(ex, &e);
    }
    ex->is_pushed = true;
    *waits = true;
    return MHD_YES;
}

enum MHD_Result job_step(struct exchange *ex, bool *waits)
{
    if (exchange_phase(ex) == EX_PREPARING)
        return step_push(ex, waits);
    struct job *job = ex->job;
    if (!job) {
        struct api_error e;
        api_error_from(&e, ERR_NOMEM, NULL);
        return reply_error(ex, &e);
    }
    if (job->error.status != 0)
        return fail(ex, job);
    /* The client left while it was prepared, after the last look at that. */
    if (!job->gen)
        return MHD_NO;
    if (!job->params.stream)
        return step_whole(ex, waits);
    exchange_set_phase(ex, EX_SENDING);
    return reply_stream(ex, read_stream);
}

/* Ending. */

void job_cancel(struct job *job)
{
    if (job->gen)
        gen_cancel(job->gen);
}

void job_free(struct job *job)
{
    if (!job)
        return;
    buf_fini(&job->text);
    buf_fini(&job->out);
    free(job);
}
