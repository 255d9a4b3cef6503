/* Which session a request can continue or share a beginning with. */
#include "merge/merge.h"
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
    if (n < s->merged_below)
        n -= n % MERGE_BUCKET;
    uint32_t full = s->n_stored - s->n_stored % KV_UNIT;
    return s->is_running && n > full ? full : n;
}

/* What has lost entries serves only those who forget by the same rules, and
 * only at rest: running, it would share units that it must be able to lose. */
static bool may_use(const struct session *s, const struct forget_rules *rules)
{
    return session_is_pristine(s) ||
           (!s->is_running && forget_rules_equal(&s->rules, rules));
}

/* Where a session differs from the request before the best match ends, it can
 * neither be better now nor later; one that ends there can only be better if
 * the best one has lost something. */
static bool may_win(const struct session *s, const int32_t *token, uint32_t n,
                    const struct session_match *best)
{
    uint32_t probe = best->n_tokens;
    if (probe < s->n_known && probe < n && s->token[probe] == token[probe])
        return true;
    return probe > 0 && best->from->n_lost > 0 && probe <= s->n_known &&
           s->token[probe - 1] == token[probe - 1];
}

static bool is_better(const struct session *s, uint32_t n,
                      const struct session_match *best)
{
    if (n != best->n_tokens || n == 0)
        return n > best->n_tokens;
    return best->from->n_lost > 0 &&
           table_n_entries_below(s->table, n) >
               table_n_entries_below(best->from->table, n);
}

static void look_at(struct session *s, const struct session_wish *wish,
                    struct session_match *best)
{
    uint32_t n = wish->n - 1;
    if (!may_use(s, wish->rules) || !may_win(s, wish->token, n, best))
        return;
    uint32_t same =
        common(s->token, wish->token, s->n_known < n ? s->n_known : n);
    uint32_t now = sharable(s, same);
    if (is_better(s, now, best)) {
        best->from = s;
        best->n_tokens = now;
    }
    if (s->is_running && same > best->n_ahead) {
        best->ahead = s;
        best->n_ahead = same;
    }
}

struct session_match sessions_match(const struct sessions *ss,
                                    const struct session_wish *wish)
{
    struct session_match best = {NULL, 0, NULL, 0};
    if (wish->n == 0)
        return best;
    for (struct session *s = ss->rest.last; s; s = s->prev)
        look_at(s, wish, &best);
    for (struct session *s = ss->running.last; s; s = s->prev)
        look_at(s, wish, &best);
    if (best.n_ahead <= best.n_tokens) {
        best.ahead = NULL;
        best.n_ahead = 0;
    }
    return best;
}
