#include "server/metrics.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "server/metrics_text.h"
#include "server/server_internal.h"

#define PUT(x)                                                                 \
    do {                                                                       \
        enum err put_rc_ = (x);                                                \
        if (put_rc_ != OK)                                                     \
            return put_rc_;                                                    \
    } while (0)

void metrics_count(struct metrics *m, enum route_id route,
                   enum metrics_outcome outcome)
{
    atomic_fetch_add(&m->requests[route][outcome], 1);
}

void metrics_count_rejection(struct metrics *m, enum metrics_rejection why)
{
    atomic_fetch_add(&m->rejections[why], 1);
}

const char *metrics_outcome_name(enum metrics_outcome outcome)
{
    static const char *const names[METRICS_OUTCOMES] = {
        "ok", "cancelled", "rejected", "bad_request", "error",
    };
    return names[outcome];
}

static enum err put_info(struct metrics_text *t, const struct server_options *o)
{
    PUT(metrics_text_family(t, "ebb_build_info", METRICS_GAUGE,
                            "The program that runs."));
    PUT(metrics_text_labels(
        t, "ebb_build_info",
        (const struct metrics_label[]){{"version", o->version},
                                       {"cpu", o->cpu},
                                       {"backend", o->backend},
                                       {NULL, NULL}}));
    PUT(metrics_text_uint(t, 1));
    char layers[16], heads[16], context[16];
    snprintf(layers, sizeof(layers), "%u", o->n_layers);
    snprintf(heads, sizeof(heads), "%u", o->n_kv_heads);
    snprintf(context, sizeof(context), "%u", o->max_context);
    PUT(metrics_text_family(t, "ebb_model_info", METRICS_GAUGE,
                            "The model that is loaded."));
    PUT(metrics_text_labels(
        t, "ebb_model_info",
        (const struct metrics_label[]){{"name", o->model_id},
                                       {"arch", o->arch},
                                       {"layers", layers},
                                       {"kv_heads", heads},
                                       {"context", context},
                                       {NULL, NULL}}));
    return metrics_text_uint(t, 1);
}

static enum err put_requests(struct metrics_text *t, struct metrics *m)
{
    PUT(metrics_text_family(t, "ebb_requests", METRICS_COUNTER,
                            "Requests that have ended, by how."));
    for (int r = 0; r < ROUTE_COUNT; r++) {
        for (int i = 0; i < METRICS_OUTCOMES; i++) {
            uint64_t n = atomic_load(&m->requests[r][i]);
            if (n == 0 && r != ROUTE_CHAT && r != ROUTE_COMPLETIONS)
                continue;
            PUT(metrics_text_labels(
                t, "ebb_requests_total",
                (const struct metrics_label[]){
                    {"tenant", "default"},
                    {"route", route_name((enum route_id)r)},
                    {"outcome", metrics_outcome_name((enum metrics_outcome)i)},
                    {NULL, NULL}}));
            PUT(metrics_text_uint(t, n));
        }
    }
    return OK;
}

static enum err put_rejections(struct metrics_text *t, struct metrics *m,
                               const struct engine_stats *st)
{
    const struct {
        const char *reason;
        uint64_t n;
    } row[] = {
        {"queue_full",
         st->refused_queue +
             atomic_load(&m->rejections[METRICS_REJECTED_PREPARE])},
        {"kv_budget", st->refused_kv},
        {"context_length",
         st->refused_context +
             atomic_load(&m->rejections[METRICS_REJECTED_CONTEXT])},
        {"draining", st->refused_draining},
        {"queue_timeout", st->expired_busy},
        {"kv_timeout", st->expired_no_room},
    };
    PUT(metrics_text_family(t, "ebb_admission_rejections", METRICS_COUNTER,
                            "Requests that were not admitted, by reason."));
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        PUT(metrics_text_labels(
            t, "ebb_admission_rejections_total",
            (const struct metrics_label[]){{"tenant", "default"},
                                           {"reason", row[i].reason},
                                           {NULL, NULL}}));
        PUT(metrics_text_uint(t, row[i].n));
    }
    return OK;
}

struct plain {
    const char *name; /* without _total */
    enum metrics_kind kind;
    const char *label, *value; /* one label, or NULL */
    uint64_t n;
    const char *help; /* NULL: another sample of the family before */
};

static enum err put_plain(struct metrics_text *t, const struct plain *p,
                          size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char name[128];
        if (p[i].help)
            PUT(metrics_text_family(t, p[i].name, p[i].kind, p[i].help));
        snprintf(name, sizeof(name), "%s%s", p[i].name,
                 p[i].kind == METRICS_COUNTER ? "_total" : "");
        PUT(metrics_text_labels(t, name,
                                (const struct metrics_label[]){
                                    {p[i].label, p[i].value}, {NULL, NULL}}));
        PUT(metrics_text_uint(t, p[i].n));
    }
    return OK;
}

static enum err put_engine(struct metrics_text *t,
                           const struct engine_stats *st, bool up)
{
    const struct plain rows[] = {
        {"ebb_engine_up", METRICS_GAUGE, NULL, NULL, up,
         "1 while the engine takes steps."},
        {"ebb_requests_running", METRICS_GAUGE, "tenant", "default",
         st->running, "Answers being computed now."},
        {"ebb_requests_waiting", METRICS_GAUGE, "tenant", "default",
         st->waiting, "Requests in the queue."},
        {"ebb_prompt_tokens", METRICS_COUNTER, "tenant", "default",
         st->prompt_tokens, "Prompt tokens of admitted requests."},
        {"ebb_prefill_tokens", METRICS_COUNTER, "tenant", "default",
         st->prefill_tokens, "Prompt tokens that were computed."},
        {"ebb_generation_tokens", METRICS_COUNTER, "tenant", "default",
         st->generation_tokens, "Tokens of answers."},
        {"ebb_cached_tokens", METRICS_COUNTER, "tenant", "default",
         st->cached_tokens, "Prompt tokens that came from the cache."},
        {"ebb_steps", METRICS_COUNTER, NULL, NULL, st->steps,
         "Forward passes."},
        {"ebb_step_tokens", METRICS_COUNTER, "kind", "prefill",
         st->step_prefill_tokens, "Tokens of forward passes, by kind."},
        {"ebb_step_tokens", METRICS_COUNTER, "kind", "decode",
         st->step_decode_tokens, NULL},
    };
    return put_plain(t, rows, sizeof(rows) / sizeof(rows[0]));
}

static enum err put_kv(struct metrics_text *t, const struct engine_stats *st)
{
    const struct plain rows[] = {
        {"ebb_kv_budget_bytes", METRICS_GAUGE, NULL, NULL, st->budget_bytes,
         "The one limit for all cached keys and values."},
        {"ebb_kv_bytes", METRICS_GAUGE, "state", "live", st->live_bytes,
         "Bytes of the budget, by state; they sum to the budget."},
        {"ebb_kv_bytes", METRICS_GAUGE, "state", "idle", 0, NULL},
        {"ebb_kv_bytes", METRICS_GAUGE, "state", "prefix", st->prefix_bytes,
         NULL},
        {"ebb_kv_bytes", METRICS_GAUGE, "state", "reserved", st->reserved_bytes,
         NULL},
        {"ebb_kv_bytes", METRICS_GAUGE, "state", "free", st->free_bytes, NULL},
        {"ebb_kv_tenant_bytes", METRICS_GAUGE, "tenant", "default",
         st->live_bytes + st->prefix_bytes, "Bytes in use, by tenant."},
        {"ebb_kv_entries", METRICS_GAUGE, "kind", "logical",
         st->entries_logical,
         "Entries over layers and heads: tokens seen, and kept."},
        {"ebb_kv_entries", METRICS_GAUGE, "kind", "retained",
         st->entries_retained, NULL},
        {"ebb_kv_dropped_sessions", METRICS_COUNTER, "tenant", "default",
         st->dropped_sessions,
         "Sessions at rest that were dropped whole to make room."},
    };
    return put_plain(t, rows, sizeof(rows) / sizeof(rows[0]));
}

static enum err put_sessions(struct metrics_text *t,
                             const struct engine_stats *st)
{
    const struct {
        const char *state;
        uint64_t n;
    } row[] = {
        {"live", st->sessions_live},
        {"idle", 0},
        {"prefix", st->sessions_at_rest},
    };
    PUT(metrics_text_family(t, "ebb_sessions", METRICS_GAUGE,
                            "Sessions, by state."));
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        PUT(metrics_text_labels(
            t, "ebb_sessions",
            (const struct metrics_label[]){
                {"tenant", "default"}, {"state", row[i].state}, {NULL, NULL}}));
        PUT(metrics_text_uint(t, row[i].n));
    }
    return OK;
}

static enum err put_evicted(struct metrics_text *t,
                            const struct engine_stats *st)
{
    static const char *const causes[ENGINE_N_CAUSES] = {
        [ENGINE_PRESSURE] = "pressure",
        [ENGINE_CAP] = "cap",
        [ENGINE_ADMISSION] = "admission",
    };
    const struct plain merged[] = {
        {"ebb_kv_merged_entries", METRICS_COUNTER, "tenant", "default",
         st->merged, "Evicted entries whose value lives on in another entry."},
        {"ebb_kv_routed_entries", METRICS_COUNTER, NULL, NULL, st->routed,
         "Evicted entries that found one which might take them in."},
    };
    PUT(metrics_text_family(t, "ebb_kv_evicted_entries", METRICS_COUNTER,
                            "Entries that were evicted, by cause."));
    for (int i = 0; i < ENGINE_N_CAUSES; i++) {
        PUT(metrics_text_labels(
            t, "ebb_kv_evicted_entries_total",
            (const struct metrics_label[]){
                {"tenant", "default"}, {"cause", causes[i]}, {NULL, NULL}}));
        PUT(metrics_text_uint(t, st->evicted[i]));
    }
    PUT(put_plain(t, merged, 2));
    PUT(metrics_text_family(t, "ebb_kv_merge_log_ratio_max", METRICS_GAUGE,
                            "Largest log R of a merge: how much more attention "
                            "an entry deserved for what it took in."));
    PUT(buf_puts(t->out, "ebb_kv_merge_log_ratio_max"));
    PUT(metrics_text_real(t, st->merge_log_ratio));
    PUT(metrics_text_family(t, "ebb_kv_eviction_score_threshold", METRICS_GAUGE,
                            "Effective score below which entries left at the "
                            "last pass; 0 before the first."));
    PUT(buf_puts(t->out, "ebb_kv_eviction_score_threshold"));
    return metrics_text_real(t, st->evicted_below);
}

static enum err put_histograms(struct metrics_text *t,
                               const struct engine_stats *st)
{
    PUT(metrics_text_histogram(t, "ebb_time_to_first_token_seconds",
                               "From submission to the first token.",
                               &st->first_token_seconds));
    PUT(metrics_text_histogram(t, "ebb_inter_token_seconds",
                               "Between two tokens of one answer.",
                               &st->inter_token_seconds));
    PUT(metrics_text_histogram(t, "ebb_request_seconds",
                               "From submission to the end.",
                               &st->request_seconds));
    PUT(metrics_text_histogram(t, "ebb_queue_seconds",
                               "From submission to admission.",
                               &st->queue_seconds));
    PUT(metrics_text_histogram(t, "ebb_step_seconds", "One forward pass.",
                               &st->step_seconds));
    PUT(metrics_text_histogram(t, "ebb_kv_retained_share",
                               "Share of its entries that a conversation "
                               "still had when its answer ended.",
                               &st->retained_share));
    PUT(metrics_text_histogram(t, "ebb_kv_eviction_seconds",
                               "One stall of the engine for eviction: a slice "
                               "of a pass, a cut to a cap, or the ranking of "
                               "a conversation whose answer ends.",
                               &st->evict_seconds));
    return metrics_text_histogram(t, "ebb_kv_merge_seconds", "One merge.",
                                  &st->merge_seconds);
}

enum err metrics_render(struct server *s, bool openmetrics, struct buf *out)
{
    struct engine_stats st;
    bool up = server_engine_stats(s, &st);
    struct metrics_text t = {out, openmetrics};
    PUT(put_info(&t, &s->o));
    PUT(put_requests(&t, &s->metrics));
    PUT(put_rejections(&t, &s->metrics, &st));
    PUT(put_engine(&t, &st, up));
    PUT(put_kv(&t, &st));
    PUT(put_sessions(&t, &st));
    PUT(put_evicted(&t, &st));
    if (up)
        PUT(put_histograms(&t, &st));
    return metrics_text_end(&t);
}

bool metrics_wants_openmetrics(const char *accept)
{
    return accept && strstr(accept, "application/openmetrics-text") != NULL;
}

const char *metrics_content_type(bool openmetrics)
{
    return openmetrics
               ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
               : "text/plain; version=0.0.4; charset=utf-8";
}
