/* Which session a request can continue or share a beginning with. */
#include "runtime/engine/session.h"

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Tokens of the first n that a new session may share with s. */
static uint32_t sharable(const struct session *s, uint32_t n)
{
    if (n > s->n_stored)
        n = s->n_stored;
    uint32_t full = s->n_stored - s->n_stored % KV_UNIT;
    return s->is_running && n > full ? full : n;
}

static void look_at(struct session *s, const int32_t *token, uint32_t n,
                    struct session_match *best)
{
    /* Where it differs from the request before the best match ends, it can
     * neither be better now nor later. */
    uint32_t probe = best->n_tokens;
    if (s->n_lost > 0)
        return;
    if (probe >= s->n_known || probe >= n || s->token[probe] != token[probe])
        return;
    uint32_t same = common(s->token, token, s->n_known < n ? s->n_known : n);
    uint32_t now = sharable(s, same);
    if (now > best->n_tokens) {
        best->from = s;
        best->n_tokens = now;
    }
    if (s->is_running && same > best->n_ahead) {
        best->ahead = s;
        best->n_ahead = same;
    }
}

struct session_match sessions_match(const struct sessions *ss,
                                    const int32_t *token, uint32_t n)
{
    struct session_match best = {NULL, 0, NULL, 0};
    if (n == 0)
        return best;
    for (struct session *s = ss->rest.last; s; s = s->prev)
        look_at(s, token, n - 1, &best);
    for (struct session *s = ss->running.last; s; s = s->prev)
        look_at(s, token, n - 1, &best);
    if (best.n_ahead <= best.n_tokens) {
        best.ahead = NULL;
        best.n_ahead = 0;
    }
    return best;
}
