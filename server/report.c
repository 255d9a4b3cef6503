/* The end of an exchange: counters and the log line. */
#include "base/clock.h"
#include "base/log.h"
#include "server/generate.h"
#include "server/job.h"
#include "server/server_internal.h"

static enum metrics_outcome outcome_of(const struct exchange *ex,
                                       const struct job *job, bool complete)
{
    if (!complete || ex->status == 0)
        return METRICS_CANCELLED;
    /* Whether it is a stream or not: the work was done for nothing. */
    if (job && job->failed)
        return METRICS_ERROR;
    if ((job && job->refused) || ex->status == 429 || ex->status == 503)
        return METRICS_REJECTED;
    if (ex->status >= 500)
        return METRICS_ERROR;
    return ex->status >= 400 ? METRICS_BAD_REQUEST : METRICS_OK;
}

/* Tokens of the answer after the first, over the time they took. */
static double tokens_per_second(const struct gen_status *st)
{
    if (st->completion_tokens < 2 || st->done_us <= st->first_token_us)
        return 0;
    return (double)(st->completion_tokens - 1) * 1e6 /
           (double)(st->done_us - st->first_token_us);
}

/* 1 where nothing was stored at all. */
static double retained_share(const struct gen_status *st)
{
    return st->full_entries > 0
               ? (double)st->retained_entries / (double)st->full_entries
               : 1.0;
}

static void log_job(const struct exchange *ex, const struct job *job,
                    enum metrics_outcome outcome, double ms)
{
    const struct gen_status *st = &job->status;
    log_event(
        LOG_LEVEL_INFO, "request", log_str("id", ex->request_id),
        log_str("tenant", "default"),
        log_str("route", route_name(ex->route.id)),
        log_int("status", ex->status),
        log_str("outcome", metrics_outcome_name(outcome)),
        log_bool("stream", job->params.stream),
        log_int("prompt_tokens", st->prompt_tokens),
        log_int("cached_tokens", st->cached_tokens),
        log_int("generated_tokens", st->completion_tokens),
        log_int("evicted_entries", (int64_t)st->evicted_entries),
        log_num("retained_share", retained_share(st)),
        log_num("ttft_ms", (double)st->first_token_us / 1e3),
        log_num("tokens_per_s", tokens_per_second(st)), log_num("ms", ms),
        log_str("error", job->error.status ? job->error.message.text : ""));
}

/* Probes and scrapes come every few seconds: they are debug. */
static void log_plain(const struct exchange *ex, enum metrics_outcome outcome,
                      double ms)
{
    bool quiet = ex->status < 400 && ex->status != 0;
    log_event(quiet ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, "request",
              log_str("id", ex->request_id), log_str("tenant", "default"),
              log_str("route", route_name(ex->route.id)),
              log_int("status", ex->status),
              log_str("outcome", metrics_outcome_name(outcome)),
              log_num("ms", ms),
              log_str("error", ex->early.status ? ex->early.message.text : ""));
}

void job_done(struct exchange *ex, bool complete)
{
    struct server *s = ex->server;
    double ms = (double)(clock_us() - ex->started_us) / 1e3;
    pthread_mutex_lock(&ex->lock);
    struct job *job = ex->phase >= EX_READY ? ex->job : NULL;
    pthread_mutex_unlock(&ex->lock);
    struct gen *gen = job ? job->gen : NULL;
    enum metrics_outcome outcome = outcome_of(ex, job, complete);
    if (gen)
        gen_status(gen, &job->status);
    metrics_count(&s->metrics, ex->route.id, outcome);
    if (job)
        log_job(ex, job, outcome, ms);
    else
        log_plain(ex, outcome, ms);
    if (gen) {
        job->gen = NULL;
        gen_release(gen);
    }
    if (ex->is_pushed)
        atomic_fetch_sub(&s->n_jobs, 1);
}
