#include "server/answer.h"

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

/* In functions that only append: the first error ends them. */
#define PUT(x)                                                                 \
    do {                                                                       \
        enum err put_rc_ = (x);                                                \
        if (put_rc_ != OK)                                                     \
            return put_rc_;                                                    \
    } while (0)

static const char *finish_reason(const struct gen_status *st)
{
    return st->finish == GEN_FINISH_LENGTH ? "length" : "stop";
}

/* {"id":...,"system_fingerprint":..., */
static enum err put_head(struct buf *out, const struct answer *a,
                         const char *object)
{
    PUT(buf_puts(out, "{\"id\":"));
    PUT(json_put_text(out, a->id));
    PUT(buf_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":",
                   object, (long long)a->created));
    PUT(json_put_text(out, a->model));
    PUT(buf_puts(out, ",\"system_fingerprint\":"));
    PUT(json_put_text(out, a->fingerprint));
    return buf_putc(out, ',');
}

static enum err put_usage(struct buf *out, const struct gen_status *st)
{
    return buf_printf(
        out,
        "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,"
        "\"total_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":%u,"
        "\"audio_tokens\":0},\"completion_tokens_details\":{"
        "\"reasoning_tokens\":0,\"audio_tokens\":0,"
        "\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}}",
        st->prompt_tokens, st->completion_tokens,
        st->prompt_tokens + st->completion_tokens, st->cached_tokens);
}

/* The counts as the engine published them: all of one moment. */
static enum err put_kv(struct buf *out, const struct gen_status *st)
{
    double share = st->full_entries > 0
                       ? (double)st->retained_entries / (double)st->full_entries
                       : 1.0;
    PUT(buf_printf(out,
                   "\"kv\":{\"session\":null,\"policy\":\"%s\","
                   "\"logical_tokens\":%llu,\"retained_entries\":%llu,"
                   "\"full_entries\":%llu,\"retained_share\":",
                   forget_policy_name(st->policy),
                   (unsigned long long)st->logical_tokens,
                   (unsigned long long)st->retained_entries,
                   (unsigned long long)st->full_entries));
    PUT(json_put_double(out, share));
    PUT(buf_printf(out,
                   ",\"evicted_entries\":%llu,\"merged_entries\":%llu,"
                   "\"routed_entries\":%llu,\"merge_log_ratio\":",
                   (unsigned long long)st->evicted_entries,
                   (unsigned long long)st->merged_entries,
                   (unsigned long long)st->routed_entries));
    PUT(json_put_double(out, st->merge_log_ratio));
    return buf_printf(out,
                      ",\"merge_seconds\":%lld.%06lld,\"bytes\":%llu,"
                      "\"lossy\":%s}",
                      (long long)(st->merge_us / 1000000),
                      (long long)(st->merge_us % 1000000),
                      (unsigned long long)st->kv_bytes,
                      st->evicted_entries > 0 ? "true" : "false");
}

enum err answer_whole(struct buf *out, const struct answer *a,
                      const struct buf *text, const struct gen_status *st)
{
    const char *s = text->data ? text->data : "";
    PUT(put_head(out, a, a->is_chat ? "chat.completion" : "text_completion"));
    PUT(buf_puts(out, "\"choices\":[{\"index\":0,"));
    PUT(buf_puts(out, a->is_chat
                          ? "\"message\":{\"role\":\"assistant\",\"content\":"
                          : "\"text\":"));
    PUT(json_put_string(out, s, text->len));
    if (a->is_chat)
        PUT(buf_puts(out, ",\"refusal\":null,\"annotations\":[]}"));
    PUT(buf_printf(out, ",\"logprobs\":null,\"finish_reason\":\"%s\"}],",
                   finish_reason(st)));
    PUT(put_usage(out, st));
    PUT(buf_putc(out, ','));
    PUT(put_kv(out, st));
    return buf_puts(out, a->is_chat ? ",\"service_tier\":\"default\"}" : "}");
}

static enum err open_event(struct buf *out, const struct answer *a)
{
    PUT(buf_puts(out, "data: "));
    return put_head(out, a,
                    a->is_chat ? "chat.completion.chunk" : "text_completion");
}

/* usage is null on every event but its own, when it was asked for. */
static enum err close_event(struct buf *out, const struct answer *a)
{
    return buf_puts(out, a->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

enum err answer_role(struct buf *out, const struct answer *a)
{
    PUT(open_event(out, a));
    PUT(buf_puts(out, "\"choices\":[{\"index\":0,\"delta\":{\"role\":"
                      "\"assistant\",\"content\":\"\",\"refusal\":null},"
                      "\"logprobs\":null,\"finish_reason\":null}]"));
    return close_event(out, a);
}

static enum err put_text_event(struct buf *out, const struct answer *a,
                               const char *s, size_t n)
{
    PUT(open_event(out, a));
    PUT(buf_puts(out, "\"choices\":[{\"index\":0,"));
    PUT(buf_puts(out, a->is_chat ? "\"delta\":{\"content\":" : "\"text\":"));
    PUT(json_put_string(out, s, n));
    PUT(buf_puts(out, a->is_chat ? "}" : ""));
    PUT(buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null}]"));
    return close_event(out, a);
}

enum err answer_text(struct buf *out, const struct answer *a, const char *text,
                     size_t n)
{
    while (n > 0) {
        size_t piece = n;
        if (piece > ANSWER_TEXT_MAX) {
            piece = utf8_complete_prefix(text, ANSWER_TEXT_MAX);
            if (piece == 0)
                piece = ANSWER_TEXT_MAX;
        }
        PUT(put_text_event(out, a, text, piece));
        text += piece;
        n -= piece;
    }
    return OK;
}

enum err answer_finish(struct buf *out, const struct answer *a,
                       const struct gen_status *st)
{
    PUT(open_event(out, a));
    PUT(buf_printf(out,
                   "\"choices\":[{\"index\":0,%s,\"logprobs\":null,"
                   "\"finish_reason\":\"%s\"}],",
                   a->is_chat ? "\"delta\":{}" : "\"text\":\"\"",
                   finish_reason(st)));
    PUT(put_kv(out, st));
    return close_event(out, a);
}

enum err answer_usage(struct buf *out, const struct answer *a,
                      const struct gen_status *st)
{
    PUT(open_event(out, a));
    PUT(buf_puts(out, "\"choices\":[],"));
    PUT(put_usage(out, st));
    return buf_puts(out, "}\n\n");
}

enum err answer_error(struct buf *out, const struct api_error *e)
{
    PUT(buf_puts(out, "data: "));
    PUT(api_error_render(out, e));
    return buf_puts(out, "\n\n");
}

enum err answer_done(struct buf *out)
{
    return buf_puts(out, "data: [DONE]\n\n");
}

enum err answer_keep_alive(struct buf *out)
{
    return buf_puts(out, ": keep-alive\n\n");
}

size_t answer_whole_events(const char *s, size_t n, size_t max)
{
    if (n <= max)
        return n;
    /* JSON on one line holds no newline, so two of them end an event. */
    for (size_t end = max; end >= 2; end--)
        if (s[end - 1] == '\n' && s[end - 2] == '\n')
            return end;
    return max;
}
