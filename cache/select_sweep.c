#include "cache/select_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { UNITS_AHEAD = 8 }; /* metadata is fetched this early */

/* What the keys of a session's units depend on. */
struct view {
    const struct select_input *in;
    const struct select_session *session;
    const struct kv_meta *meta; /* of all units */
    uint32_t len, n_units;      /* of the list */
    struct window window;
    int32_t t; /* clock + 1: ages are t - pos */
    double offset;
    enum select_rank rank;
    uint32_t age_bits;
};

static const float RECENCY[KV_UNIT] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                       -1, -1, -1, -1, -1, -1, -1, -1};

static struct view view_of(const struct select *s,
                           const struct select_session *session, uint32_t len)
{
    return (struct view){.in = s->in,
                         .session = session,
                         .meta = pool_meta(s->in->pool, 0),
                         .len = len,
                         .n_units = len / KV_UNIT + (len % KV_UNIT != 0),
                         .window = select_window(s->in, session),
                         .t = (int32_t)session->n_seen + 1,
                         .age_bits = s->age_bits,
                         .rank = session->rank,
                         .offset = s->stage == STAGE_POOL
                                       ? session->offset
                                       : session->cap_offset};
}

/* [KV_UNIT]: a score is this times the age, or times 1 (is_timeless). */
static const float *factor_of(const struct view *v, const struct kv_meta *m)
{
    switch (v->rank) {
    case SELECT_RECENCY:
        return RECENCY;
    case SELECT_STANDING:
        return m->standing;
    default:
        return m->log_beta;
    }
}

static bool is_timeless(const struct view *v)
{
    return v->rank == SELECT_STANDING;
}

/* Look-ahead would not change the order by age. */
static bool is_plain(const struct view *v)
{
    return v->in->n_ahead <= 1 || v->rank != SELECT_RETENTION;
}

/* Without branches, so that compilers make vector instructions of it. */
static void plain_keys(const struct view *v, const struct kv_meta *m,
                       uint32_t *restrict key)
{
    float f[KV_UNIT];
    const float *factor = factor_of(v, m);
    const int32_t t = v->t, from = v->window.from, to = v->window.to;
    const int32_t one = is_timeless(v), aging = one - 1; /* all bits, or none */
    const double offset = v->offset;
    for (int i = 0; i < KV_UNIT; i++) {
        double times = (double)(((t - m->pos[i]) & aging) + one);
        f[i] = score_effective(times * (double)factor[i], offset);
    }
    for (int i = 0; i < KV_UNIT; i++) {
        uint32_t k = score_key(f[i]);
        bool may_go = (m->pos[i] >= from) & (m->pos[i] < to);
        key[i] = k | (may_go ? 0 : NO_KEY);
    }
}

static void ahead_keys(const struct view *v, const struct kv_meta *m,
                       uint32_t *key)
{
    for (int i = 0; i < KV_UNIT; i++) {
        double score =
            score_of(v->t - m->pos[i], m->log_beta[i], v->in->n_ahead);
        bool may_go = m->pos[i] >= v->window.from && m->pos[i] < v->window.to;
        key[i] = may_go ? score_key(score_effective(score, v->offset)) : NO_KEY;
    }
}

static uint32_t pinned(const struct select_session *s, const struct kv_meta *m)
{
    uint32_t mask = 0;
    for (uint32_t p = 0; p < s->n_pins; p++)
        for (uint32_t i = 0; i < KV_UNIT; i++)
            if (m->pos[i] >= s->pin[p].from && m->pos[i] < s->pin[p].to)
                mask |= 1u << i;
    return mask;
}

/* Metadata of unit i of a list; that of a later one is fetched ahead. */
static const struct kv_meta *unit_meta(const struct view *v,
                                       const struct kv_list *l, uint32_t i)
{
    if (i + UNITS_AHEAD < v->n_units) {
        const struct kv_meta *next = v->meta + l->unit[i + UNITS_AHEAD];
        __builtin_prefetch(factor_of(v, next));
        __builtin_prefetch(next->pos);
    }
    return v->meta + l->unit[i];
}

/* Keys of the entries of unit i; NO_KEY for those that can't go, are gone or
 * lie past the length. False when the whole unit can't go. */
static bool unit_keys(const struct select *s, const struct view *v, unit_id u,
                      uint32_t i, uint32_t *key)
{
    if (!(s->own[u / 64] >> (u % 64) & 1))
        return false;
    /* A unit with more users is in the lists of other sessions of the pass as
     * well, and is the business of one of them. */
    if (v->session->n_users > 1 && !select_has_users(s->in, v->session, u))
        return false;
    const struct kv_meta *m = v->meta + u;
    uint32_t left = v->len - i * KV_UNIT, out = s->gone[u];
    if (left < KV_UNIT)
        out |= UINT16_MAX & ~((1u << left) - 1);
    if (v->session->n_pins > 0)
        out |= pinned(v->session, m);
    if (is_plain(v))
        plain_keys(v, m, key);
    else
        ahead_keys(v, m, key);
    for (; out != 0; out &= out - 1)
        key[__builtin_ctz(out)] = NO_KEY;
    return true;
}

/* A limit that no score reaches from above if, computed in float32, it is
 * above: three roundings of 2^-24 each, of numbers no larger than `last` and
 * the offset where it matters, are within 2^-21 of both. */
static float low_limit(const struct view *v, uint32_t last_key)
{
    uint32_t u = last_key ^ (last_key >> 31 ? 0x80000000u : UINT32_MAX);
    float last;
    memcpy(&last, &u, sizeof(last));
    double slack = fabs((double)last) + 2 * fabs(v->offset);
    return (float)((double)last + slack * 0x1p-21) + FLT_MIN;
}

/* True if an entry of the unit may be at `limit` or lower. A third of the
 * work of the keys, and all there is to do for most units. */
static bool may_be_low(const struct view *v, const struct kv_meta *m,
                       float limit)
{
    int32_t n = 0;
    const float *factor = factor_of(v, m);
    const int32_t t = v->t, one = is_timeless(v), aging = one - 1;
    const float offset = (float)v->offset;
    for (int i = 0; i < KV_UNIT; i++) {
        float times = (float)(((t - m->pos[i]) & aging) + one);
        float f = times * factor[i] + offset;
        n |= !(f > limit); /* true for a NaN too */
    }
    return n != 0;
}

static uint64_t composite(const struct view *v, uint32_t key, int32_t pos)
{
    uint64_t max = ((uint64_t)1 << v->age_bits) - 1;
    uint64_t age = (uint32_t)(v->t - pos);
    return (uint64_t)key << v->age_bits | (max - (age < max ? age : max));
}

void select_scan(struct select *s, const struct scan *how)
{
    const struct kv_list *kv = &how->in->table->list[how->i_list];
    struct list_state *l = how->list;
    struct view v = view_of(s, how->in, l->len);
    uint32_t key[KV_UNIT];
    uint64_t end = how->hi + 1; /* never below lo */
    uint64_t last = (end - 1) >> s->age_bits;
    last = last > SCORE_KEY_MAX ? SCORE_KEY_MAX : last;
    float limit = low_limit(&v, (uint32_t)last);
    for (uint32_t u = 0; u < v.n_units; u++) {
        const struct kv_meta *m = unit_meta(&v, kv, u);
        if ((is_plain(&v) && !may_be_low(&v, m, limit)) ||
            !unit_keys(s, &v, kv->unit[u], u, key))
            continue;
        for (uint32_t i = 0; i < KV_UNIT; i++) {
            if (key[i] > last)
                continue;
            struct item e = {composite(&v, key[i], m->pos[i]), kv->unit[u], i};
            if (e.c < how->lo)
                select_mark(s, l, &e);
            else if (e.c < end)
                how->take(how->ctx, &e);
        }
    }
}

/* ------------------------------------------------------- the first sweep */

/* What a task works with. */
struct job {
    struct select *s;
    struct scratch *scratch;
    struct chunk *chunk;
    struct session_node *node;
    const struct select_session *in;
};

/* Counts the keys of a list into buckets, in turn into a and b, and returns
 * the number of slots counted. */
static uint32_t count_keys(const struct job *j, const struct list_state *l,
                           uint32_t i_list, uint32_t *a, uint32_t *b)
{
    const struct kv_list *kv = &j->in->table->list[i_list];
    struct view v = view_of(j->s, j->in, l->len);
    uint32_t key[KV_UNIT], n = 0;
    for (uint32_t u = 0; u < v.n_units; u++) {
        (void)unit_meta(&v, kv, u);
        if (!unit_keys(j->s, &v, kv->unit[u], u, key))
            continue;
        for (int i = 0; i < KV_UNIT; i += 2) {
            a[key[i] >> KEY_SHIFT]++;
            b[key[i + 1] >> KEY_SHIFT]++;
        }
        n += KV_UNIT;
    }
    return n;
}

/* Takes the m highest entries of a list, which its head's floor holds back,
 * out of the histogram again. Few lists are at their floor, so the others
 * need no histogram of their own. */
static void hold_back(const struct job *j, struct list_state *l,
                      uint32_t i_list, uint32_t m)
{
    uint32_t *h = j->scratch->list_hist, b = NO_BUCKET;
    (void)count_keys(j, l, i_list, h, h);
    h[NO_BUCKET] = 0;
    while (m > 0) {
        b--;
        uint32_t n = h[b] < m ? h[b] : m;
        /* May wrap: only the sum of both halves means something. */
        j->scratch->hist[0][b] -= n;
        l->cut = (struct cut){b, n == h[b]};
        m -= n;
    }
    memset(h, 0, sizeof(j->scratch->list_hist));
}

static uint32_t room_of(const struct job *j, const struct list_state *l)
{
    uint32_t held = l->len - l->gone, floor = j->s->in->min_head;
    floor = j->in->min_head > floor ? j->in->min_head : floor;
    return held > floor ? held - floor : 0;
}

static void first_list(const struct job *j, uint32_t i_list)
{
    struct list_state *l = &j->s->list[j->node->first_list + i_list];
    uint32_t *a = j->scratch->hist[0], *b = j->scratch->hist[1];
    a[NO_BUCKET] = b[NO_BUCKET] = 0;
    uint32_t n = count_keys(j, l, i_list, a, b);
    n -= a[NO_BUCKET] + b[NO_BUCKET];
    uint32_t room = room_of(j, l);
    l->allow = n < room ? n : room;
    l->cut = (struct cut){N_BUCKETS, true};
    l->done = n == 0;
    if (l->allow < n)
        hold_back(j, l, i_list, n - l->allow);
    j->chunk->left += n;
}

/* -------------------------------------------------------- the next sweeps */

/* Undecided entries of one list: how many, and those that there is room for
 * (or, with a histogram, only counted). */
struct gather {
    struct item *item;
    uint32_t *hist;
    uint64_t lo, min, max;
    uint32_t n, n_max, shift;
};

static void stage_item(void *ctx, const struct item *e)
{
    struct gather *g = ctx;
    if (g->n < g->n_max)
        g->item[g->n] = *e;
    g->n++;
}

static void count_item(void *ctx, const struct item *e)
{
    struct gather *g = ctx;
    g->hist[(e->c - g->lo) >> g->shift]++;
    g->min = e->c < g->min ? e->c : g->min;
    g->max = e->c > g->max ? e->c : g->max;
}

/* The same as a scan, over entries that were gathered before. */
static uint32_t settle_items(struct select *s, struct list_state *l,
                             uint64_t lo, uint64_t hi)
{
    struct item *item = s->item + l->first;
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n_items; i++) {
        if (item[i].c < lo)
            select_mark(s, l, &item[i]);
        else if (item[i].c < hi + 1)
            item[n++] = item[i];
    }
    l->n_items = n;
    return n;
}

/* Where `allow` (not 0) is reached in a list's own histogram; cleared behind.
 * If `give` is no NULL, what may go is added there. */
static struct cut cut_list(uint32_t *h, uint32_t allow, uint32_t *give)
{
    struct cut cut = {N_BUCKETS, true};
    uint32_t left = allow;
    for (uint32_t b = 0; b < N_BUCKETS && left > 0; b++) {
        uint32_t n = h[b] < left ? h[b] : left;
        if (n > 0 && n == left)
            cut = n < h[b] ? (struct cut){b, false} : (struct cut){b + 1, true};
        if (give)
            give[b] += n;
        left -= n;
    }
    memset(h, 0, N_BUCKETS * sizeof(*h));
    return cut;
}

/* Marks the l->allow lowest of n items (all, if they are fewer), of equal ones
 * the first; there are none, unless positions of a list are not distinct. */
static void take_lowest(const struct job *j, struct list_state *l,
                        struct item *item, uint32_t n)
{
    while (l->allow > 0 && n > 0) {
        struct gather g = {.min = UINT64_MAX, .hist = j->scratch->list_hist};
        for (uint32_t i = 0; i < n; i++) {
            g.min = item[i].c < g.min ? item[i].c : g.min;
            g.max = item[i].c > g.max ? item[i].c : g.max;
        }
        if (n <= l->allow || g.min == g.max) {
            for (uint32_t i = 0; i < n && l->allow > 0; i++)
                select_mark(j->s, l, &item[i]);
            return;
        }
        uint64_t lo = g.lo = g.min, hi = g.max;
        g.shift = select_shift(hi - lo);
        for (uint32_t i = 0; i < n; i++)
            count_item(&g, &item[i]);
        struct cut cut = cut_list(g.hist, l->allow, NULL);
        select_cut_range(&cut, g.shift, &lo, &hi);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (item[i].c < lo)
                select_mark(j->s, l, &item[i]);
            else if (item[i].c < hi + 1)
                item[kept++] = item[i];
        }
        n = kept;
    }
}

/* Settles a list that is on its own but has more undecided entries than can
 * be staged: narrows the range until they can. */
static void take_from_many(const struct job *j, struct scan *how)
{
    struct list_state *l = how->list;
    while (l->allow > 0) {
        struct gather g = {.item = j->scratch->item, .n_max = STAGED};
        how->take = stage_item;
        how->ctx = &g;
        select_scan(j->s, how);
        if (g.n <= STAGED || how->lo == how->hi) {
            take_lowest(j, l, g.item, g.n < STAGED ? g.n : STAGED);
            if (g.n <= STAGED)
                return;
            continue;
        }
        struct gather c = {.hist = j->scratch->list_hist,
                           .lo = how->lo,
                           .min = UINT64_MAX,
                           .shift = select_shift(how->hi - how->lo)};
        how->take = count_item;
        how->ctx = &c;
        select_scan(j->s, how);
        struct cut cut = cut_list(c.hist, l->allow, NULL);
        select_cut_range(&cut, c.shift, &how->lo, &how->hi);
        if (!cut.empty) {
            how->lo = how->lo < c.min ? c.min : how->lo;
            how->hi = how->hi > c.max ? c.max : how->hi;
        }
    }
}

/* Keeps the undecided entries of a list for the sweeps to come. */
static void keep_items(struct select *s, struct list_state *l,
                       const struct gather *g)
{
    uint32_t at = __atomic_fetch_add(&s->n_items, g->n, __ATOMIC_RELAXED);
    if (g->n > g->n_max || at > s->size.max_undecided ||
        g->n > s->size.max_undecided - at) {
        __atomic_store_n(&s->overflow, 1, __ATOMIC_RELAXED);
        return;
    }
    memcpy(s->item + at, g->item, g->n * sizeof(*g->item));
    l->first = at;
    l->n_items = g->n;
}

/* Counts the undecided entries of an open list into the chunk's histogram, as
 * many of them as the head may give. */
static void count_open(const struct job *j, const struct scan *how,
                       const struct gather *g)
{
    struct list_state *l = how->list;
    struct gather c = {.hist = j->scratch->hist[0],
                       .lo = how->lo,
                       .min = j->chunk->min,
                       .max = j->chunk->max,
                       .shift = j->node->node.shift};
    bool all = g->n <= l->allow;
    if (!all)
        c.hist = j->scratch->list_hist;
    if (g->n <= g->n_max) {
        for (uint32_t i = 0; i < g->n; i++)
            count_item(&c, &g->item[i]);
    } else {
        struct scan again = *how;
        again.take = count_item;
        again.ctx = &c;
        select_scan(j->s, &again);
    }
    j->chunk->min = c.min;
    j->chunk->max = c.max;
    j->chunk->left += g->n;
    l->cut = (struct cut){N_BUCKETS, true};
    if (!all)
        l->cut = cut_list(c.hist, l->allow, j->scratch->hist[0]);
}

static void next_list(const struct job *j, uint32_t i_list)
{
    struct select *s = j->s;
    const struct session_node *n = j->node;
    struct list_state *l = &s->list[n->first_list + i_list];
    struct gather g = {.item = j->scratch->item, .n_max = STAGED};
    struct scan how = {.in = j->in,
                       .list = l,
                       .i_list = i_list,
                       .lo = n->node.lo,
                       .hi = n->node.hi,
                       .take = stage_item,
                       .ctx = &g};
    /* It reaches its head's floor below its session's cut. */
    bool closed = s->sweep != SWEEP_LOW && l->cut.bucket < n->node.cut.bucket;
    if (closed) {
        how.lo = n->old_lo;
        how.hi = n->old_hi;
        select_cut_range(&l->cut, n->old_shift, &how.lo, &how.hi);
    }
    if (s->gathered) {
        g.item = s->item + l->first;
        g.n = settle_items(s, l, how.lo, how.hi);
        g.n_max = g.n;
    } else {
        select_scan(s, &how);
    }
    l->done = closed || g.n == 0 || l->allow == 0;
    if (closed && g.n <= g.n_max)
        take_lowest(j, l, g.item, g.n);
    else if (closed)
        take_from_many(j, &how);
    if (l->done)
        return;
    if (!s->gathered)
        keep_items(s, l, &g);
    if (s->sweep != SWEEP_LAST)
        count_open(j, &how, &g);
}

/* ------------------------------------------------------------- the sample */

/* Stages the entries of every unit i with i = *skip (mod rate), counted on
 * from list to list. */
static void sample_list(const struct job *j, uint32_t i_list, uint32_t *skip,
                        struct gather *g)
{
    const struct kv_list *kv = &j->in->table->list[i_list];
    uint32_t len = j->s->list[j->node->first_list + i_list].len;
    struct view v = view_of(j->s, j->in, len);
    uint32_t key[KV_UNIT];
    for (; *skip < v.n_units; *skip += j->s->size.sample_rate) {
        unit_id u = kv->unit[*skip];
        if (!unit_keys(j->s, &v, u, *skip, key))
            continue;
        const struct kv_meta *m = v.meta + u;
        for (uint32_t i = 0; i < KV_UNIT; i++) {
            if (key[i] == NO_KEY)
                continue;
            struct item e = {composite(&v, key[i], m->pos[i]), u, i};
            stage_item(g, &e);
        }
    }
    *skip -= v.n_units;
}

static void sample_chunk(const struct job *j, uint32_t i_chunk)
{
    struct gather g = {.item = j->scratch->item, .n_max = STAGED};
    struct list_state none = {0};
    uint32_t skip = i_chunk * 7 % j->s->size.sample_rate;
    for (uint32_t k = j->chunk->from; k < j->chunk->to; k++)
        sample_list(j, k, &skip, &g);
    /* More than can be staged leave out the last lists: it is a guess. */
    g.n = g.n < STAGED ? g.n : STAGED;
    keep_items(j->s, &none, &g);
}

uint64_t select_guess(struct select *s)
{
    uint32_t n = s->n_items, *h = s->scratch->list_hist;
    double share = (double)s->root.allow / s->size.sample_rate;
    /* Entries of a unit are of like age, so the sample is worth less than its
     * number says. */
    double want = 1.1 * share + 4 * sqrt(share) + 16;
    if (s->overflow || want >= n ||
        want * s->size.sample_rate > 0.9 * s->size.max_undecided)
        return s->c_max;
    uint64_t lo = 0, hi = s->c_max;
    uint32_t left = (uint32_t)want;
    while (lo < hi && left > 0) {
        struct gather g = {.hist = h, .lo = lo, .shift = select_shift(hi - lo)};
        for (uint32_t i = 0; i < n; i++)
            if (s->item[i].c >= lo && s->item[i].c <= hi)
                count_item(&g, &s->item[i]);
        uint32_t b = 0;
        for (; h[b] < left; b++)
            left -= h[b];
        memset(h, 0, sizeof(s->scratch->list_hist));
        struct cut cut = {b, false};
        select_cut_range(&cut, g.shift, &lo, &hi);
    }
    return hi;
}

/* Adds a chunk's histogram to its session's; other chunks of the session may
 * do so now. Sums of integers, so their order leaves no trace. */
static void flush(const struct job *j)
{
    uint32_t *a = j->scratch->hist[0], *b = j->scratch->hist[1];
    a[NO_BUCKET] = j->s->sweep == SWEEP_FIRST ? 0 : a[NO_BUCKET];
    b[NO_BUCKET] = 0;
    for (uint32_t i = 0; i < N_BUCKETS; i++) {
        uint32_t n = a[i] + b[i];
        if (n != 0)
            __atomic_fetch_add(&j->node->hist[i], n, __ATOMIC_RELAXED);
    }
    memset(j->scratch->hist, 0, sizeof(j->scratch->hist));
}

void select_sweep_chunk(struct select *s, uint32_t i, struct scratch *scratch)
{
    struct chunk *c = &s->chunk[i];
    struct session_node *n = &s->session[c->session];
    struct job j = {s, scratch, c, n, &s->in->session[c->session]};
    c->gone = c->left = c->max = 0;
    c->min = UINT64_MAX;
    if (n->node.done)
        return;
    if (s->sweep == SWEEP_SAMPLE) {
        sample_chunk(&j, i);
        return;
    }
    for (uint32_t k = c->from; k < c->to; k++) {
        struct list_state *l = &s->list[n->first_list + k];
        uint32_t before = l->gone;
        if (s->sweep == SWEEP_LOW) {
            l->allow = room_of(&j, l);
            l->done = l->len == 0;
        }
        if (s->sweep == SWEEP_FIRST)
            first_list(&j, k);
        else if (!l->done)
            next_list(&j, k);
        c->gone += l->gone - before;
    }
    if (s->sweep == SWEEP_FIRST) {
        c->min = 0;
        c->max = UINT64_MAX;
    }
    if (c->left > 0)
        flush(&j);
}
