#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cache/score.h"
#include "cache/select.h"

/* A sanitizer makes a state many times dearer; the full number runs without.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SHARE = 20 };
#else
enum { SHARE = 1 };
#endif

enum {
    SESSIONS = 5,
    TENANTS = 3,
    LAYERS_MAX = 2,
    HEADS_MAX = 3,
    LISTS_MAX = LAYERS_MAX * HEADS_MAX,
    TOKENS_MAX = 40,
    PINS_MAX = 2,
    POOLS = 3,
    STATES = 120000 / SHARE
};

struct world {
    struct pool *pool;
    struct select_input in;
    struct select_session session[SESSIONS];
    struct select_tenant tenant[TENANTS];
    struct table *table[SESSIONS];
    struct select_span pin[SESSIONS][PINS_MAX];
    unit_id extra[SESSIONS * LISTS_MAX]; /* units with a second user */
    uint32_t n_extra;
};

/* ------------------------------------------------------------- the states */

static bool chance(struct rng *r, uint32_t percent)
{
    return rng_below(r, 100) < percent;
}

static struct pool *new_pool(uint32_t n_units)
{
    struct kv_layout l;
    struct pool *p = NULL;
    kv_layout_init(&l, KV_F16, 8);
    assert_int_equal(pool_new(&p, &l, pool_unit_bytes(&l) * n_units, NULL), OK);
    return p;
}

/* Few different values, so that ties are the rule; and some that make the
 * scores of different ages equal. */
static float draw_lambda(struct rng *r, uint32_t style, int32_t age)
{
    static const float few[] = {0, 0, -1e-8f, -1e-3f, -0.25f, -0.5f, -1};
    if (style == 0 || chance(r, 20))
        return 0;
    if (style == 1)
        return few[rng_below(r, 7)];
    if (style == 2)
        return -(float)(1 + rng_below(r, 3)) / (float)age;
    if (style == 3 && chance(r, 2))
        return chance(r, 50) ? -INFINITY : -0.0f;
    return -(float)pow(10, -9 + 10 * rng_double(r));
}

/* Ranks of a dozen, so that many are equal; some entries have none yet. */
static float draw_standing(struct rng *r)
{
    return chance(r, 5) ? 0 : -(float)(1 + rng_below(r, 24)) / 12;
}

/* A list with `len` of n_seen positions in any order. */
static void fill_list(struct world *w, struct table *t, uint32_t i,
                      uint32_t n_seen, struct rng *r)
{
    struct kv_list *l = &t->list[i];
    int32_t pos[20000];
    uint32_t len = chance(r, 30) ? n_seen : (uint32_t)rng_below(r, n_seen + 1);
    uint32_t style = (uint32_t)rng_below(r, 5);
    /* Positions are distinct in truth; twins must do no harm even so. */
    int32_t twins = !chance(r, 4) ? 1 : chance(r, 50) ? 2 : 10000;
    for (uint32_t k = 0; k < n_seen; k++)
        pos[k] = (int32_t)k;
    for (uint32_t k = 0; k < len; k++) {
        uint32_t other = k + (uint32_t)rng_below(r, n_seen - k);
        int32_t p = pos[other];
        pos[other] = pos[k];
        pos[k] = p;
        struct kv_meta *m = pool_meta(w->pool, l->unit[k / KV_UNIT]);
        p /= twins;
        m->pos[k % KV_UNIT] = p;
        m->log_beta[k % KV_UNIT] =
            draw_lambda(r, style, (int32_t)n_seen + 1 - p);
        m->standing[k % KV_UNIT] = draw_standing(r);
    }
    l->len = len;
    while (l->n_units > (len + KV_UNIT - 1) / KV_UNIT)
        pool_unref(w->pool, l->unit[--l->n_units]);
}

static uint64_t add_table(struct world *w, uint32_t i, uint32_t n_seen,
                          struct rng *r)
{
    struct table *t = NULL;
    uint32_t layers = 1 + (uint32_t)rng_below(r, LAYERS_MAX);
    uint32_t heads = 1 + (uint32_t)rng_below(r, HEADS_MAX);
    assert_int_equal(table_new(&t, w->pool, layers, heads, n_seen), OK);
    uint32_t need = (uint32_t)table_units_needed(t, n_seen);
    assert_int_equal(pool_reserve(w->pool, need), OK);
    (void)table_append(t, n_seen, 0, 0);
    for (uint32_t k = 0; k < layers * heads; k++)
        fill_list(w, t, k, n_seen, r);
    for (uint32_t k = 0; k < layers * heads; k++)
        if (t->list[k].n_units > 0 && chance(r, 8)) {
            unit_id u = t->list[k].unit[rng_below(r, t->list[k].n_units)];
            pool_ref(w->pool, u);
            w->extra[w->n_extra++] = u;
        }
    w->table[i] = t;
    w->session[i].table = t;
    return table_n_entries(t);
}

static uint64_t draw_limit(struct rng *r, uint64_t held, uint64_t none)
{
    return chance(r, 60) ? none : rng_below(r, held + held / 4 + 2);
}

static void new_world(struct world *w, struct pool *p, uint32_t tokens_max,
                      struct rng *r)
{
    static const double weights[] = {1, 1, 1, 2, 0.5, 0.001, 1000};
    uint64_t held[TENANTS] = {0}, all = 0;
    *w = (struct world){.pool = p};
    w->in = (struct select_input){
        .pool = p,
        .session = w->session,
        .tenant = w->tenant,
        .n_sessions = 1 + (uint32_t)rng_below(r, SESSIONS),
        .n_tenants = 1 + (uint32_t)rng_below(r, TENANTS),
        .min_head = chance(r, 50) ? 0 : (uint32_t)rng_below(r, 12),
        .n_sinks = (uint32_t)rng_below(r, 5),
        .n_recent = (uint32_t)rng_below(r, 6),
        .n_ahead = chance(r, 10)   ? 32
                   : chance(r, 10) ? 0
                                   : 1};
    bool plain = chance(r, 30); /* no offsets: ties between sessions */
    for (uint32_t i = 0; i < w->in.n_sessions; i++) {
        struct select_session *s = &w->session[i];
        uint32_t n_seen = chance(r, 3) ? 0
                          : plain      ? tokens_max / 2
                                       : (uint32_t)rng_below(r, tokens_max + 1);
        uint64_t n = add_table(w, i, n_seen, r);
        s->tenant = (uint32_t)rng_below(r, w->in.n_tenants);
        s->n_seen = n_seen + (chance(r, 10) ? 3 : 0);
        s->keep = chance(r, 7);
        s->n_users = chance(r, 10) ? 2 : chance(r, 50);
        s->rank = chance(r, 15)   ? SELECT_RECENCY
                  : chance(r, 25) ? SELECT_STANDING
                                  : SELECT_RETENTION;
        s->min_head = chance(r, 20) ? (uint32_t)rng_below(r, 20) : 0;
        double weight = plain ? 1 : weights[rng_below(r, 7)];
        uint64_t idle = plain ? 0 : rng_below(r, 5) * 1000;
        s->offset = log(weight) - 0.05 * (double)idle / 1000;
        s->cap_offset = log(weight);
        s->floor = draw_limit(r, n, 0);
        s->cap = draw_limit(r, n, UINT64_MAX);
        s->pin = w->pin[i];
        s->n_pins = chance(r, 15) ? (uint32_t)rng_below(r, PINS_MAX + 1) : 0;
        for (uint32_t k = 0; k < s->n_pins; k++) {
            int32_t from = (int32_t)rng_below(r, tokens_max);
            w->pin[i][k] =
                (struct select_span){from, from + (int32_t)rng_below(r, 8)};
        }
        held[s->tenant] += n;
        all += n;
    }
    for (uint32_t i = 0; i < w->in.n_tenants; i++) {
        w->tenant[i].floor = draw_limit(r, held[i], 0);
        w->tenant[i].cap = draw_limit(r, held[i], UINT64_MAX);
    }
    w->in.k = rng_below(r, all + 6);
    if (chance(r, 40))
        w->in.k = w->in.k / 8;
}

static void end_world(struct world *w)
{
    for (uint32_t i = 0; i < w->n_extra; i++)
        pool_unref(w->pool, w->extra[i]);
    for (uint32_t i = 0; i < w->in.n_sessions; i++)
        table_free(w->table[i]);
    assert_int_equal(pool_stats(w->pool).used, 0);
}

/* -------------------------------------------------------------- the model */

/* Knows nothing of histograms: sorts all entries and takes them one by one. */
struct entry {
    uint32_t session, list, layer, head, slot;
    int32_t pos;
    uint32_t age;
    float lambda, standing, effective;
    bool fixed; /* can never go */
    bool gone;
};

struct model {
    struct entry *e;
    uint32_t n;
    uint64_t head[SESSIONS][LISTS_MAX], session[SESSIONS], tenant[TENANTS];
    uint64_t gone, capped;
};

static int leaves_first(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;
    if (a->effective != b->effective)
        return a->effective < b->effective ? -1 : 1;
    if (a->age != b->age)
        return a->age > b->age ? -1 : 1;
    if (a->session != b->session)
        return a->session < b->session ? -1 : 1;
    if (a->layer != b->layer)
        return a->layer > b->layer ? -1 : 1;
    if (a->head != b->head)
        return a->head > b->head ? -1 : 1;
    if (a->pos != b->pos)
        return a->pos < b->pos ? -1 : 1;
    return a->slot < b->slot ? -1 : 1;
}

static void model_read(struct model *m, const struct world *w,
                       struct entry *room)
{
    *m = (struct model){.e = room};
    for (uint32_t i = 0; i < w->in.n_sessions; i++) {
        const struct select_session *s = &w->session[i];
        const struct table *t = w->table[i];
        for (uint32_t l = 0; l < t->n_layers * t->n_kv_heads; l++)
            for (uint32_t k = 0; k < t->list[l].len; k++) {
                unit_id u = t->list[l].unit[k / KV_UNIT];
                const struct kv_meta *meta = pool_meta(w->pool, u);
                int32_t p = meta->pos[k % KV_UNIT];
                struct entry e = {.session = i,
                                  .list = l,
                                  .layer = l / t->n_kv_heads,
                                  .head = l % t->n_kv_heads,
                                  .slot = k,
                                  .pos = p,
                                  .age = s->n_seen + 1 - (uint32_t)p,
                                  .lambda = meta->log_beta[k % KV_UNIT],
                                  .standing = meta->standing[k % KV_UNIT]};
                e.fixed = s->keep ||
                          pool_refs(w->pool, u) != (s->n_users == 2 ? 2 : 1) ||
                          p < (int32_t)w->in.n_sinks ||
                          p + (int32_t)w->in.n_recent >= (int32_t)s->n_seen;
                for (uint32_t j = 0; j < s->n_pins; j++)
                    e.fixed |= p >= s->pin[j].from && p < s->pin[j].to;
                m->e[m->n++] = e;
                m->head[i][l]++;
                m->session[i]++;
                m->tenant[s->tenant]++;
            }
    }
}

static void model_rank(struct model *m, const struct world *w, bool idle)
{
    for (uint32_t i = 0; i < m->n; i++) {
        struct entry *e = &m->e[i];
        const struct select_session *s = &w->session[e->session];
        double score = s->rank == SELECT_RECENCY    ? -(double)e->age
                       : s->rank == SELECT_STANDING ? (double)e->standing
                       : w->in.n_ahead > 1
                           ? score_of(e->age, e->lambda, w->in.n_ahead)
                           : (double)e->age * (double)e->lambda;
        e->effective = (float)(score + (idle ? s->offset : s->cap_offset));
    }
    qsort(m->e, m->n, sizeof(*m->e), leaves_first);
}

enum why { OVER_SESSION_CAP, OVER_TENANT_CAP, FOR_THE_POOL };

static void model_take(struct model *m, const struct world *w, enum why why)
{
    model_rank(m, w, why == FOR_THE_POOL);
    for (uint32_t i = 0; i < m->n; i++) {
        struct entry *e = &m->e[i];
        const struct select_session *s = &w->session[e->session];
        const struct select_tenant *t = &w->tenant[s->tenant];
        if (e->fixed || e->gone ||
            m->head[e->session][e->list] <= w->in.min_head ||
            m->head[e->session][e->list] <= s->min_head ||
            m->session[e->session] <= s->floor ||
            m->tenant[s->tenant] <= t->floor)
            continue;
        if ((why == OVER_SESSION_CAP && m->session[e->session] <= s->cap) ||
            (why == OVER_TENANT_CAP && m->tenant[s->tenant] <= t->cap) ||
            (why == FOR_THE_POOL && m->gone >= w->in.k))
            continue;
        e->gone = true;
        m->head[e->session][e->list]--;
        m->session[e->session]--;
        m->tenant[s->tenant]--;
        m->gone++;
        m->capped += why != FOR_THE_POOL;
    }
}

static void model_run(struct model *m, const struct world *w, struct entry *e)
{
    model_read(m, w, e);
    model_take(m, w, OVER_SESSION_CAP);
    model_take(m, w, OVER_TENANT_CAP);
    model_take(m, w, FOR_THE_POOL);
}

/* ------------------------------------------------------------ the verdict */

static void compare(const struct select *s, enum select_outcome outcome,
                    const struct model *m, const struct world *w)
{
    uint64_t bits = 0, by_list = 0, by_session = 0;
    const uint16_t *gone = select_gone(s);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct entry *e = &m->e[i];
        unit_id u = w->table[e->session]->list[e->list].unit[e->slot / KV_UNIT];
        if ((gone[u] >> (e->slot % KV_UNIT) & 1) != e->gone)
            fail_msg("session %u list %u pos %d lambda %g: %s", e->session,
                     e->list, e->pos, (double)e->lambda,
                     e->gone ? "should go" : "should stay");
    }
    for (uint32_t u = 0; u < pool_stats(w->pool).n_units; u++)
        bits += (uint64_t)__builtin_popcount(gone[u]);
    for (uint32_t i = 0; i < w->in.n_sessions; i++) {
        const struct table *t = w->table[i];
        by_session += select_session_gone(s, i);
        for (uint32_t k = 0; k < t->n_layers * t->n_kv_heads; k++) {
            assert_int_equal(t->list[k].len - select_list_gone(s, i, k),
                             m->head[i][k]);
            by_list += select_list_gone(s, i, k);
        }
    }
    assert_int_equal(bits, m->gone);
    assert_int_equal(by_list, m->gone);
    assert_int_equal(by_session, m->gone);
    assert_int_equal(select_counts(s).gone, m->gone);
    assert_int_equal(select_counts(s).capped, m->capped);
    assert_int_equal(outcome, m->gone >= w->in.k ? SELECT_DONE : SELECT_STUCK);
}

static enum select_outcome run(struct select *s, struct workers *w,
                               const struct select_input *in, uint64_t slice)
{
    enum select_outcome o;
    assert_int_equal(select_begin(s, in, NULL), OK);
    do {
        o = select_step(s, w, slice);
    } while (o == SELECT_MORE && slice != UINT64_MAX);
    if (o != SELECT_MORE)
        assert_int_equal(select_left(s), 0);
    return o;
}

struct tools {
    struct entry *entry; /* room for the model */
    struct workers *workers[POOLS];
    /* With room for all undecided entries, and with hardly any. */
    struct select *roomy, *tight, *guess; /* guess: from a dense sample */
};

static void new_tools(struct tools *t, uint32_t n_units)
{
    struct select_size size = {.n_units = n_units,
                               .max_sessions = SESSIONS,
                               .max_tenants = TENANTS,
                               .max_lists = SESSIONS * LISTS_MAX,
                               .max_undecided = n_units * KV_UNIT,
                               .n_threads = POOLS};
    /* Units with two users are in one list only here. */
    t->entry = malloc((size_t)n_units * KV_UNIT * sizeof(*t->entry));
    assert_non_null(t->entry);
    for (int i = 0; i < POOLS; i++)
        assert_int_equal(workers_new(&t->workers[i], i + 1, NULL), OK);
    assert_int_equal(select_new(&t->roomy, &size), OK);
    size.sample_rate = 2;
    assert_int_equal(select_new(&t->guess, &size), OK);
    size.sample_rate = 0;
    size.max_undecided = 5;
    assert_int_equal(select_new(&t->tight, &size), OK);
}

static void end_tools(struct tools *t)
{
    for (int i = 0; i < POOLS; i++)
        workers_free(t->workers[i]);
    free(t->entry);
    select_free(t->roomy);
    select_free(t->tight);
    select_free(t->guess);
}

/* Each state on one pool of threads, every fiftieth on all of them, whole and
 * in slices: each result must be the model's, so all are the same. */
static void try_state(const struct tools *t, struct world *w, uint64_t i)
{
    struct model m;
    model_run(&m, w, t->entry);
    struct select *const ways[] = {t->roomy, t->tight, t->guess};
    for (uint64_t way = 0; way < 6u * POOLS; way++) {
        struct select *s = ways[way / POOLS % 3];
        uint64_t slice = way / POOLS / 3 ? 1 : UINT64_MAX;
        if (i % 50 == 0 || way == i % (6u * POOLS))
            compare(s, run(s, t->workers[way % POOLS], &w->in, slice), &m, w);
    }
}

static void random_states_agree_with_a_full_sort(void **state)
{
    (void)state;
    enum { UNITS = 400 };
    struct pool *p = new_pool(UNITS);
    struct tools t;
    struct rng r;
    rng_seed(&r, 4);
    new_tools(&t, UNITS);
    for (uint64_t i = 0; i < STATES; i++) {
        struct world w;
        new_world(&w, p, 1 + (uint32_t)rng_below(&r, TOKENS_MAX), &r);
        try_state(&t, &w, i);
        end_world(&w);
    }
    end_tools(&t);
    pool_free(p);
}

/* One or two sessions end between two slices, in any stage of the pass: as if
 * they had been kept from the start, as long as their tenants have no limits.
 */
static void sessions_may_end_between_slices(void **state)
{
    (void)state;
    enum { UNITS = 400 };
    struct pool *p = new_pool(UNITS);
    struct tools t;
    struct rng r;
    uint32_t n_early = 0;
    rng_seed(&r, 14);
    new_tools(&t, UNITS);
    for (uint64_t i = 0; i < STATES / 4; i++) {
        struct world w;
        struct model m;
        struct select *const ways[] = {t.roomy, t.tight, t.guess};
        struct select *s = ways[i % 3];
        uint32_t end[2], n = 1 + (uint32_t)rng_below(&r, 2);
        enum select_outcome o = SELECT_MORE;
        new_world(&w, p, 1 + (uint32_t)rng_below(&r, TOKENS_MAX), &r);
        for (uint32_t k = 0; k < n && w.in.n_sessions > 0; k++) {
            end[k] = (uint32_t)rng_below(&r, w.in.n_sessions);
            w.tenant[w.session[end[k]].tenant].floor = 0;
            w.tenant[w.session[end[k]].tenant].cap = UINT64_MAX;
        }
        assert_int_equal(select_begin(s, &w.in, NULL), OK);
        for (uint32_t k = 0; k < n && w.in.n_sessions > 0; k++) {
            struct select_session *in = &w.session[end[k]];
            for (uint64_t left = rng_below(&r, 12);
                 left > 0 && o == SELECT_MORE; left--)
                o = select_step(s, t.workers[i % POOLS], 1);
            if (o != SELECT_MORE || !in->table)
                continue;
            in->keep = true;
            assert_true(select_drop(s, end[k]));
            in->table = NULL;
            n_early++;
        }
        while (o == SELECT_MORE)
            o = select_step(s, t.workers[i % POOLS], 1);
        for (uint32_t k = 0; k < w.in.n_sessions; k++)
            w.session[k].table = w.table[k];
        model_run(&m, &w, t.entry);
        compare(s, o, &m, &w);
        end_world(&w);
    }
    assert_true(n_early > STATES / 8);
    end_tools(&t);
    pool_free(p);
}

static void a_session_of_a_tenant_with_limits_ends_the_pass(void **state)
{
    (void)state;
    enum { UNITS = 400 };
    struct pool *p = new_pool(UNITS);
    struct tools t;
    struct rng r;
    struct world w;
    rng_seed(&r, 15);
    new_tools(&t, UNITS);
    do {
        new_world(&w, p, TOKENS_MAX, &r);
        if (w.in.n_sessions > 0)
            break;
        end_world(&w);
    } while (true);
    w.session[0].keep = false;
    w.tenant[w.session[0].tenant].floor = 1;
    w.in.k = 1000000;
    assert_int_equal(select_begin(t.roomy, &w.in, NULL), OK);
    assert_int_equal(select_step(t.roomy, t.workers[0], 1), SELECT_MORE);
    w.session[0].keep = true;
    assert_false(select_drop(t.roomy, 0));
    end_world(&w);
    end_tools(&t);
    pool_free(p);
}

/* Lists that are longer than what a thread can stage, and several tasks. */
static void long_lists_agree_with_a_full_sort(void **state)
{
    (void)state;
    enum { UNITS = 40000, TOKENS = 20000 };
    struct pool *p = new_pool(UNITS);
    struct tools t;
    struct rng r;
    rng_seed(&r, 5);
    new_tools(&t, UNITS);
    for (uint64_t i = 0; i < 60 / SHARE; i++) {
        struct world w;
        new_world(&w, p, TOKENS, &r);
        try_state(&t, &w, i);
        end_world(&w);
    }
    end_tools(&t);
    pool_free(p);
}

/* A session of one list, whose unit u has scores from[u % 4] on, every one a
 * little higher than the one before. */
static void add_scores(struct world *w, uint32_t n_units, const double *from)
{
    uint32_t i = w->in.n_sessions++, n = n_units * KV_UNIT;
    struct table *t = NULL;
    assert_int_equal(table_new(&t, w->pool, 1, 1, n), OK);
    assert_int_equal(pool_reserve(w->pool, n_units), OK);
    (void)table_append(t, n, 0, 0);
    for (uint32_t k = 0; k < n; k++) {
        double score = from[k / KV_UNIT % 4] + 1e-3 * (double)k / n;
        pool_meta(w->pool, t->list[0].unit[k / KV_UNIT])
            ->log_beta[k % KV_UNIT] = (float)(score / (double)(n + 1 - k));
    }
    w->table[i] = t;
    w->session[i] =
        (struct select_session){.table = t, .n_seen = n, .cap = UINT64_MAX};
}

/* The sample (every fourth unit; the one it starts with differs by session)
 * does not see the low scores of the first session, so that more lie below the
 * guess than can be gathered; and floors hold back so many of these that the
 * limit is not reached there. What lies between the guess and the end of its
 * bucket must not be taken for settled. */
static void a_guess_that_is_too_low_settles_nothing_above_it(void **state)
{
    (void)state;
    static const double unseen[] = {-0.3, -9, -9, -9};
    static const double at_guess[] = {-1.5, -1.5, -1.5, -1.5};
    static const double above[] = {-1.6, -1.2, -1.2, -1.2};
    struct pool *p = new_pool(400);
    struct world w = {.pool = p};
    struct tools t;
    struct model m;
    struct select *s = NULL;
    struct select_size size = {.n_units = 400,
                               .max_sessions = SESSIONS,
                               .max_tenants = TENANTS,
                               .max_lists = SESSIONS,
                               .max_undecided = 500,
                               .sample_rate = 4,
                               .n_threads = POOLS};
    new_tools(&t, 400);
    assert_int_equal(select_new(&s, &size), OK);
    w.tenant[0].cap = UINT64_MAX;
    w.in = (struct select_input){.pool = p,
                                 .session = w.session,
                                 .tenant = w.tenant,
                                 .n_tenants = 1,
                                 .k = 30,
                                 .n_ahead = 1};
    add_scores(&w, 80, unseen);
    w.session[0].floor = 80 * KV_UNIT - 3;
    add_scores(&w, 16, at_guess);
    w.session[1].floor = 16 * KV_UNIT - 2;
    add_scores(&w, 4, above);
    model_run(&m, &w, t.entry);
    assert_int_equal(m.gone, 30);
    for (int i = 0; i < POOLS; i++)
        compare(s, run(s, t.workers[i], &w.in, UINT64_MAX), &m, &w);
    select_free(s);
    end_tools(&t);
    end_world(&w);
    pool_free(p);
}

/* Sessions go on while a pass is under way: what they append is not part of
 * it, though it lies in the same units. */
static void what_is_appended_between_slices_does_not_count(void **state)
{
    (void)state;
    enum { UNITS = 400 };
    struct pool *p = new_pool(UNITS);
    struct tools t;
    struct rng r;
    rng_seed(&r, 7);
    new_tools(&t, UNITS);
    for (uint64_t i = 0; i < 2000 / SHARE; i++) {
        struct world w;
        struct model m;
        enum select_outcome o = SELECT_MORE;
        new_world(&w, p, TOKENS_MAX, &r);
        model_run(&m, &w, t.entry);
        struct select *s = i % 2 ? t.tight : t.guess;
        assert_int_equal(select_begin(s, &w.in, NULL), OK);
        while (o == SELECT_MORE) {
            uint32_t at = (uint32_t)rng_below(&r, w.in.n_sessions);
            struct table *b = w.table[at];
            uint32_t most = w.session[at].n_users > 1 ? UINT32_MAX : 0;
            for (uint32_t l = 0; l < b->n_layers * b->n_kv_heads; l++)
                most = b->list[l].len > most ? b->list[l].len : most;
            if (most < b->max_units * KV_UNIT) {
                uint32_t need = (uint32_t)table_units_needed(b, 1);
                assert_int_equal(pool_reserve(p, need), OK);
                assert_int_equal(table_append(b, 1, 99, 99), need);
            }
            o = select_step(s, t.workers[i % POOLS], 1);
        }
        /* The lengths that compare() looks at are those of the start. */
        for (uint32_t k = 0; k < m.n; k++) {
            const struct entry *e = &m.e[k];
            unit_id u =
                w.table[e->session]->list[e->list].unit[e->slot / KV_UNIT];
            assert_int_equal(select_gone(s)[u] >> (e->slot % KV_UNIT) & 1,
                             e->gone);
        }
        assert_int_equal(select_counts(s).gone, m.gone);
        end_world(&w);
    }
    end_tools(&t);
    pool_free(p);
}

static void what_does_not_fit_is_refused_with_the_reason(void **state)
{
    (void)state;
    struct pool *p = new_pool(400), *larger = new_pool(401);
    struct tools t;
    struct rng r;
    struct errmsg m;
    struct world w;
    rng_seed(&r, 8);
    new_tools(&t, 400);
    do {
        new_world(&w, p, TOKENS_MAX, &r);
        if (w.in.n_sessions < 2)
            end_world(&w);
    } while (w.in.n_sessions < 2);
    struct select_input in = w.in;
    struct select *small = NULL;
    struct select_size size = {.n_units = 400,
                               .max_sessions = SESSIONS,
                               .max_tenants = TENANTS,
                               .max_lists = 1,
                               .n_threads = 1};
    assert_int_equal(select_new(&small, &size), OK);
    assert_int_equal(select_begin(small, &in, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, " lists, at most 1"));
    select_free(small);
    assert_int_equal(select_begin(t.roomy, &in, &m), OK);
    in.n_sessions = SESSIONS + 1;
    assert_int_equal(select_begin(t.roomy, &in, &m), ERR_INVAL);
    assert_string_equal(m.text, "6 sessions, at most 5");
    in = w.in;
    in.n_tenants = TENANTS + 1;
    assert_int_equal(select_begin(t.roomy, &in, &m), ERR_INVAL);
    assert_string_equal(m.text, "4 tenants, at most 3");
    in = w.in;
    in.pool = larger;
    assert_int_equal(select_begin(t.roomy, &in, &m), ERR_INVAL);
    assert_string_equal(m.text, "a pool of 401 units, at most 400");
    in = w.in;
    w.session[1].tenant = in.n_tenants;
    assert_int_equal(select_begin(t.roomy, &in, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "session 1 names tenant"));
    w.session[1].tenant = 0;
    w.session[0].n_seen = INT32_MAX;
    assert_int_equal(select_begin(t.roomy, &in, &m), ERR_INVAL);
    assert_string_equal(m.text, "session 0 has seen 2147483647 tokens");
    end_world(&w);
    end_tools(&t);
    pool_free(p);
    pool_free(larger);
}

static void a_pass_over_nothing_ends_at_once(void **state)
{
    (void)state;
    struct pool *p = new_pool(10);
    struct tools t;
    new_tools(&t, 10);
    struct select_input in = {.pool = p};
    assert_int_equal(run(t.roomy, t.workers[0], &in, 1), SELECT_DONE);
    in.k = 1;
    assert_int_equal(run(t.roomy, t.workers[0], &in, 1), SELECT_STUCK);
    assert_int_equal(select_counts(t.roomy).gone, 0);
    end_tools(&t);
    pool_free(p);
    select_free(NULL);
}

/* Three tables share a beginning of 32, and two of them 16 more: each group's
 * entries are chosen once, by the session that stands for it. */
static void nested_groups_of_users_each_give_their_own(void **state)
{
    (void)state;
    struct pool *p = new_pool(40);
    struct tools t;
    struct table *a = NULL, *b = NULL, *c = NULL;
    assert_int_equal(table_new(&a, p, 1, 1, 64), OK);
    assert_int_equal(pool_reserve(p, 4), OK);
    (void)table_append(a, 64, 0, 0);
    assert_int_equal(table_fork(&b, a, 48, 64), OK);
    assert_int_equal(table_fork(&c, a, 32, 64), OK);
    new_tools(&t, 40);
    const struct select_session both[2] = {
        {.table = b, .n_seen = 64, .n_users = 2, .cap = UINT64_MAX},
        {.table = c, .n_seen = 64, .n_users = 3, .cap = UINT64_MAX}};
    const struct select_tenant tenant = {.cap = UINT64_MAX};
    const struct select_input in = {.pool = p,
                                    .session = both,
                                    .tenant = &tenant,
                                    .n_sessions = 2,
                                    .n_tenants = 1,
                                    .k = 100};
    assert_int_equal(run(t.roomy, t.workers[0], &in, UINT64_MAX), SELECT_STUCK);
    assert_int_equal(select_list_gone(t.roomy, 0, 0), 16);
    assert_int_equal(select_list_gone(t.roomy, 1, 0), 32);
    end_tools(&t);
    table_free(a);
    table_free(b);
    table_free(c);
    pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_states_agree_with_a_full_sort),
        cmocka_unit_test(sessions_may_end_between_slices),
        cmocka_unit_test(a_session_of_a_tenant_with_limits_ends_the_pass),
        cmocka_unit_test(long_lists_agree_with_a_full_sort),
        cmocka_unit_test(a_guess_that_is_too_low_settles_nothing_above_it),
        cmocka_unit_test(what_is_appended_between_slices_does_not_count),
        cmocka_unit_test(what_does_not_fit_is_refused_with_the_reason),
        cmocka_unit_test(a_pass_over_nothing_ends_at_once),
        cmocka_unit_test(nested_groups_of_users_each_give_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
