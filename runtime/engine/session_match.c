/* Which session a request can continue or share a beginning with. */
#include "merge/fate.h"
#include "runtime/engine/session.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* An entry holds nothing of tokens beyond its bucket. */
static bool is_by_bucket(const struct session *s)
{
    return fate_at(s->rules.admission.fate)->by_bucket;
}

/* Tokens of the first n that a new session may share with s. */
static uint32_t sharable(const struct session *s, uint32_t n)
{
    if (n > s->n_stored)
        n = s->n_stored;
    if (n < s->merged_below)
        n = is_by_bucket(s) ? n - n % MERGE_BUCKET : 0;
    uint32_t full = s->n_stored - s->n_stored % KV_UNIT;
    return s->is_running && n > full ? full : n;
}

/* What has lost entries serves only those who forget by the same rules, and
 * only at rest: running, it would share units that it must be able to lose. */
static bool may_use(const struct session *s, const struct forget_rules *rules)
{
    return (session_is_pristine(s) && !s->is_cut) ||
           (!s->is_running && forget_rules_equal(&s->rules, rules));
}

/* Entries of a list at positions below `end`. */
struct presence {
    uint32_t all, recent, pinned;
};

static bool is_pinned(const struct session_wish *wish, uint32_t pos)
{
    for (uint32_t i = 0; i < wish->n_pins && wish->pin[i].from <= pos; i++)
        if (pos < wish->pin[i].to)
            return true;
    return false;
}

static uint32_t n_pinned(const struct session_wish *wish, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < wish->n_pins && wish->pin[i].from < end; i++)
        n +=
            (wish->pin[i].to < end ? wish->pin[i].to : end) - wish->pin[i].from;
    return n;
}

static struct presence look_in(const struct table *t, const struct kv_list *l,
                               uint32_t end, const struct session_wish *wish)
{
    struct presence p = {0};
    for (uint32_t e = 0; e < l->len; e++) {
        const struct kv_meta *m = pool_meta(t->pool, l->unit[e / KV_UNIT]);
        uint32_t pos = (uint32_t)m->pos[e % KV_UNIT];
        if (pos >= end)
            continue;
        p.all++;
        p.recent += pos + wish->options->n_recent >= end;
        p.pinned += wish->n_pins > 0 && is_pinned(wish, pos);
    }
    return p;
}

/* True if what the session holds below `end` is about what it would hold had
 * it read no further: three quarters of it, of its newest entries, and of the
 * floor of every list. What it would hold is told from what it holds now. */
static bool is_like_new(const struct session *s, uint32_t end,
                        const struct session_wish *wish)
{
    const struct forget_options *o = wish->options;
    const struct table *t = s->table;
    uint32_t n_lists = t->n_layers * t->n_kv_heads;
    uint64_t all = 0, recent = 0, would = (uint64_t)end * n_lists;
    for (uint32_t i = 0; i < n_lists; i++) {
        struct presence p = look_in(t, &t->list[i], end, wish);
        if (4 * p.all < 3 * smaller(end, o->min_head))
            return false;
        all += p.all;
        recent += p.recent;
    }
    if (would > table_n_entries(t))
        would = table_n_entries(t);
    return 4 * all >= 3 * would &&
           4 * recent >= (uint64_t)3 * smaller(end, o->n_recent) * n_lists;
}

static bool has_pinned(const struct session *s, uint32_t end,
                       const struct session_wish *wish)
{
    const struct table *t = s->table;
    uint32_t n = n_pinned(wish, end);
    for (uint32_t i = 0; n > 0 && i < t->n_layers * t->n_kv_heads; i++)
        if (look_in(t, &t->list[i], end, wish).pinned < n)
            return false;
    return true;
}

/* What s pinned and the request does not would have lost entries like others.
 */
static bool pins_no_more(const struct session *s, uint32_t end,
                         const struct session_wish *wish)
{
    for (uint32_t i = 0; i < s->n_pins; i++)
        for (uint32_t pos = (uint32_t)s->pin[i].from;
             pos < smaller((uint32_t)s->pin[i].to, end); pos++)
            if (!is_pinned(wish, pos))
                return false;
    return true;
}

static struct session_below *below(struct session *s, uint32_t pos)
{
    struct session_below *b = &s->below;
    if (b->pos != pos || b->n_stored != s->n_stored || b->n_lost != s->n_lost)
        *b = (struct session_below){
            .pos = pos,
            .n_stored = s->n_stored,
            .n_lost = s->n_lost,
            .n_entries = table_n_entries_below(s->table, pos),
        };
    return b;
}

static bool was_like_new(struct session *s, uint32_t end,
                         const struct session_wish *wish)
{
    struct session_below *b = below(s, end);
    if (!b->is_judged)
        b->is_like_new = is_like_new(s, end, wish);
    b->is_judged = true;
    return b->is_like_new;
}

/* Entries of the first n tokens that cannot be taken out of a session that
 * shares them: all of them where s stays, else those that others share. */
static uint64_t n_fixed(struct session *s, uint32_t n)
{
    const struct table *t = s->table;
    uint64_t sum = 0;
    if (s->is_running || n < s->n_stored)
        return below(s, n)->n_entries;
    for (uint32_t i = 0; i < t->n_layers * t->n_kv_heads; i++) {
        const struct kv_list *l = &t->list[i];
        for (uint32_t u = 0; u < l->n_units; u++)
            if (pool_refs(t->pool, l->unit[u]) > 1)
                sum += smaller(l->len - u * KV_UNIT, KV_UNIT);
    }
    return sum;
}

/* Whether the first n tokens of s can take the place of computing them. */
static bool serves(struct session *s, uint32_t n,
                   const struct session_wish *wish)
{
    const struct table *t = s->table;
    uint64_t most =
        (uint64_t)wish->rules->session_tokens * t->n_layers * t->n_kv_heads;
    bool is_capped = wish->rules->policy != FORGET_EXACT && most > 0;
    if (is_capped && n_fixed(s, n) > most)
        return false;
    if (session_is_pristine(s))
        return true;
    /* Complete, but with turned keys: it would pass for what was computed. */
    if (s->rope != s->n_stored &&
        below(s, n)->n_entries == (uint64_t)n * t->n_layers * t->n_kv_heads)
        return false;
    return has_pinned(s, n, wish) && pins_no_more(s, n, wish) &&
           (n >= s->lost_at || was_like_new(s, n, wish));
}

/* Which sessions are worth more than a look at their tokens: the one that has
 * lost nothing and agrees for longest, and a few that have lost something,
 * longest first. Whether such a one serves is seen only in its entries, and
 * where many chats begin alike there may be thousands. */
enum { LOOKS_MAX = 8 };

struct candidate {
    struct session *s;
    uint32_t n;
};

struct candidates {
    struct candidate whole; /* s NULL: there is none */
    struct candidate lossy[LOOKS_MAX];
    uint32_t n;
};

static void add_candidate(struct candidates *c, struct session *s, uint32_t n)
{
    const struct candidate new = {s, n};
    if (session_is_pristine(s)) {
        c->whole = n > c->whole.n ? new : c->whole;
        return;
    }
    bool is_full = c->n == LOOKS_MAX;
    if (is_full && n <= c->lossy[LOOKS_MAX - 1].n)
        return;
    uint32_t i = is_full ? LOOKS_MAX - 1 : c->n++;
    for (; i > 0 && n > c->lossy[i - 1].n; i--)
        c->lossy[i] = c->lossy[i - 1];
    c->lossy[i] = new;
}

/* How long a session must agree to become a candidate. */
static uint32_t least(const struct candidates *c, const struct session *s)
{
    if (session_is_pristine(s))
        return c->whole.n + 1;
    return c->n < LOOKS_MAX ? 1 : c->lossy[LOOKS_MAX - 1].n + 1;
}

/* Where a session differs from the request before a length ends, it agrees for
 * less. */
static bool may_agree(const struct session *s, const struct session_wish *wish,
                      uint32_t n)
{
    return n == 0 || (n <= s->n_known && n < wish->n &&
                      s->token[n - 1] == wish->token[n - 1]);
}

/* Tokens of the request that s may serve; one is computed anyway. */
static uint32_t servable(const struct session *s,
                         const struct session_wish *wish)
{
    uint32_t fresh = session_is_pristine(s) ? wish->n_fresh : 0;
    fresh = fresh > 1 ? fresh : 1;
    return wish->n - smaller(wish->n, fresh);
}

static void look_at(struct session *s, const struct session_wish *wish,
                    struct candidates *c, struct session_match *best)
{
    uint32_t n = servable(s, wish);
    if (!may_use(s, wish->rules) || !may_agree(s, wish, least(c, s)))
        return;
    uint32_t same =
        common(s->token, wish->token, s->n_known < n ? s->n_known : n);
    uint32_t now = sharable(s, same);
    if (now > 0)
        add_candidate(c, s, now);
    if (s->is_running && same > best->n_ahead) {
        best->ahead = s;
        best->n_ahead = same;
    }
}

static uint64_t retained(struct session *s, uint32_t n)
{
    const struct table *t = s->table;
    return s->n_lost == 0 ? (uint64_t)n * t->n_layers * t->n_kv_heads
                          : below(s, n)->n_entries;
}

/* The longest that serves; of equally long ones the one that retains more. */
static void choose(const struct candidates *c, const struct session_wish *wish,
                   struct session_match *best)
{
    if (c->whole.s && serves(c->whole.s, c->whole.n, wish)) {
        best->from = c->whole.s;
        best->n_tokens = c->whole.n;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        struct session *s = c->lossy[i].s;
        uint32_t n = c->lossy[i].n;
        if (n < best->n_tokens)
            return;
        if ((n == best->n_tokens &&
             retained(s, n) <= retained(best->from, n)) ||
            !serves(s, n, wish))
            continue;
        best->from = s;
        best->n_tokens = n;
    }
}

struct session_match sessions_match(const struct sessions *ss,
                                    const struct session_wish *wish)
{
    struct session_match best = {NULL, 0, NULL, 0};
    struct candidates c = {.n = 0};
    if (wish->n == 0)
        return best;
    for (struct session *s = ss->rest.last; s; s = s->prev)
        look_at(s, wish, &c, &best);
    for (struct session *s = ss->running.last; s; s = s->prev)
        look_at(s, wish, &c, &best);
    choose(&c, wish, &best);
    if (best.n_ahead <= best.n_tokens) {
        best.ahead = NULL;
        best.n_ahead = 0;
    }
    return best;
}
