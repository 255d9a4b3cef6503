/* One pass over sessions of several policies: who gives how much, and that
 * slices and books change nothing. What ranks inside a session is tested with
 * cache/select.h, whole engines with test_engine_forget.c. */
#include "toy.h"

#include "runtime/engine/evict.h"
#include "runtime/engine/evict_internal.h"

enum { SESSIONS = 6, TOKENS = 160, LEAST = 20 };

struct world {
    struct toy toy;  /* only for its counter of faults */
    struct engine e; /* only pool and sessions are used */
    struct forget_options options;
    struct evict *evict;
    struct session *s[SESSIONS];
    uint64_t idle[SESSIONS]; /* tokens processed since they came to rest */
};

static void set_up(struct world *w, uint32_t units_per_list)
{
    struct kv_layout l;
    memset(w, 0, sizeof(*w));
    kv_layout_init(&l, KV_F32, TOY_DIM);
    assert_int_equal(
        pool_new(&w->e.pool, &l,
                 (uint64_t)units_per_list * TOY_LISTS * toy_unit_bytes(), NULL),
        OK);
    assert_int_equal(
        sessions_init(&w->e.sessions, w->e.pool, TOY_LAYERS, TOY_HEADS), OK);
    w->options = (struct forget_options){
        .min_head = LEAST, .n_sinks = 4, .n_recent = 16, .idle_decay = 0.05};
    const struct evict_setup setup = {.sessions = &w->e.sessions,
                                      .options = &w->options,
                                      .max_sessions = SESSIONS};
    assert_int_equal(evict_new(&w->evict, &setup), OK);
    assert_true(evict_bytes(w->evict) > 0);
}

static void check(struct world *w)
{
    toy_check_books(&w->toy, &w->e);
    assert_int_equal(atomic_load(&w->toy.n_faults), 0);
}

static void tear_down(struct world *w)
{
    check(w);
    evict_free(w->evict);
    sessions_fini(&w->e.sessions);
    pool_free(w->e.pool);
}

/* A session of n tokens of its own. */
static struct session *add_as(struct world *w, uint32_t i, uint32_t n,
                              struct session_start st, uint64_t seed)
{
    int32_t token[TOKENS];
    toy_prompt(token, n, seed);
    st.token = token;
    st.n = st.cap = n;
    assert_int_equal(session_new(&w->e.sessions, &w->s[i], &st), OK);
    assert_int_equal(session_reserve(&w->e.sessions, w->s[i], n), OK);
    session_append(&w->e.sessions, w->s[i], n);
    struct table *t = w->s[i]->table;
    for (uint32_t k = 0; k < TOY_LISTS; k++)
        for (uint32_t e = 0; e < n; e++)
            pool_meta(w->e.pool, t->list[k].unit[e / KV_UNIT])
                ->log_beta[e % KV_UNIT] = toy_lambda(k, token[e], e);
    return w->s[i];
}

static struct session *add(struct world *w, uint32_t i, uint32_t n,
                           enum forget_policy policy, uint64_t seed)
{
    const struct session_start st = {.rules = {.policy = policy}};
    return add_as(w, i, n, st, seed);
}

static struct evict_result run(struct world *w, uint64_t k, uint64_t slice)
{
    struct evict_result r, all = {.below = -INFINITY};
    bool ended = false;
    evict_begin(w->evict, k, false);
    while (!ended) {
        assert_true(evict_is_under_way(w->evict));
        uint64_t left = evict_steps_left(w->evict, slice);
        assert_true(left > 1 || w->evict->is_chosen);
        ended = evict_step(w->evict, slice, slice, &r);
        /* What is chosen goes in steps of its own. */
        assert_true(left == 1 || slice == UINT64_MAX ||
                    r.gone[ENGINE_PRESSURE] == 0);
        all.gone[ENGINE_PRESSURE] += r.gone[ENGINE_PRESSURE];
        all.below = fmax(all.below, r.below);
        check(w);
    }
    assert_false(evict_is_under_way(w->evict));
    return all;
}

/* k split by largest remainder, in whole numbers: what each group gives. Of
 * equal remainders the session created first rounds up, the group of learned
 * retention (part 0) last. */
static void shares(uint64_t *share, const uint64_t *room, uint32_t n,
                   uint64_t k)
{
    uint64_t sum = 0, given = 0, rest[SESSIONS + 1];
    for (uint32_t i = 0; i < n; i++)
        sum += room[i];
    k = k < sum ? k : sum;
    for (uint32_t i = 0; i < n; i++) {
        share[i] = sum > 0 ? k * room[i] / sum : 0;
        rest[i] = sum > 0 ? k * room[i] % sum : 0;
        given += share[i];
    }
    for (; given < k; given++) {
        uint32_t best = n - 1;
        for (uint32_t j = n; j-- > 1;)
            best = rest[j] >= rest[best] ? j : best;
        if (rest[0] > rest[best])
            best = 0;
        share[best]++;
        rest[best] = 0;
    }
}

static void policies_give_in_proportion_to_what_they_hold(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 3);
    for (int round = 0; round < 300; round++) {
        struct world w;
        uint64_t room[SESSIONS + 1] = {0}, share[SESSIONS + 1] = {0}, sum = 0;
        uint32_t n_groups = 1, group_of[SESSIONS];
        set_up(&w, 80);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            enum forget_policy p = (enum forget_policy)rng_below(&r, 4);
            uint32_t n = 1 + (uint32_t)rng_below(&r, TOKENS);
            uint64_t above = n > LEAST ? (n - LEAST) * TOY_LISTS : 0;
            (void)add(&w, i, n, p, (uint64_t)round * SESSIONS + i);
            group_of[i] = p == FORGET_DBTRIMKV ? 0 : n_groups++;
            if (p != FORGET_EXACT)
                room[group_of[i]] += above;
        }
        for (uint32_t g = 0; g < n_groups; g++)
            sum += room[g];
        uint64_t k = rng_below(&r, sum + sum / 8 + 2), learned = 0;
        shares(share, room, n_groups, k);
        struct evict_result res = run(&w, k, UINT64_MAX);
        bool has_by_head = false;
        for (uint32_t i = 0; i < SESSIONS; i++) {
            const struct session *s = w.s[i];
            uint64_t want = share[group_of[i]];
            if (s->rules.policy == FORGET_DBTRIMKV)
                learned += s->n_lost;
            else if (s->rules.policy == FORGET_TRIMKV) {
                /* The same for each head, rounded up. */
                has_by_head = true;
                assert_int_equal(s->n_lost, (want + TOY_LISTS - 1) / TOY_LISTS *
                                                TOY_LISTS);
                for (uint32_t l = 1; l < TOY_LISTS; l++)
                    assert_int_equal(s->table->list[l].len,
                                     s->table->list[0].len);
            } else
                assert_int_equal(s->n_lost, want);
        }
        if (!has_by_head)
            assert_int_equal(learned, share[0]);
        assert_int_equal(res.gone[ENGINE_PRESSURE], w.e.sessions.n_lost);
        assert_int_equal(res.gone[ENGINE_CAP] + res.gone[ENGINE_ADMISSION], 0);
        assert_true((learned > 0) == (res.below > -INFINITY));
        tear_down(&w);
    }
}

/* Weights, floors and a tenant's cap, against the definition: a sort, and one
 * entry after the other from the bottom, but for what is protected. */
enum { TENANTS = 3 };

struct ranked {
    float effective;
    uint32_t age, i_session, i_list, pos;
    bool gone;
};

static int leaves_first(const void *pa, const void *pb)
{
    const struct ranked *a = pa, *b = pb;
    if (a->effective != b->effective)
        return a->effective < b->effective ? -1 : 1;
    if (a->age != b->age)
        return a->age > b->age ? -1 : 1;
    if (a->i_session != b->i_session)
        return a->i_session < b->i_session ? -1 : 1;
    return a->i_list > b->i_list ? -1 : 1;
}

struct oracle {
    struct ranked rank[SESSIONS * TOKENS * TOY_LISTS];
    uint32_t n;
    uint64_t list[SESSIONS][TOY_LISTS], session[SESSIONS], tenant[TENANTS];
};

static void rank_all(struct oracle *o, const struct world *w)
{
    memset(o, 0, sizeof(*o));
    for (uint32_t i = 0; i < SESSIONS; i++) {
        const struct session *s = w->s[i];
        double weight = s->weight * w->e.sessions.tenant[s->tenant].weight;
        double offset =
            log(weight) - w->options.idle_decay * (double)w->idle[i] / 1000;
        for (uint32_t l = 0; l < TOY_LISTS; l++)
            o->list[i][l] = s->n_stored;
        o->session[i] = (uint64_t)s->n_stored * TOY_LISTS;
        o->tenant[s->tenant] += o->session[i];
        for (uint32_t l = 0; l < TOY_LISTS; l++)
            for (uint32_t pos = 4; pos + 16 < s->n_stored; pos++) {
                uint32_t age = s->n_stored + 1 - pos;
                double score = age * (double)toy_lambda(l, s->token[pos], pos);
                o->rank[o->n++] = (struct ranked){
                    (float)(score + offset), age, i, l, pos, false};
            }
    }
    qsort(o->rank, o->n, sizeof(*o->rank), leaves_first);
}

/* Takes up to k, of one tenant or of all (TENANTS); returns how many. */
static uint64_t take(struct oracle *o, const struct world *w, uint64_t k,
                     uint32_t tenant)
{
    uint64_t n = 0;
    for (uint32_t r = 0; r < o->n && n < k; r++) {
        struct ranked *e = &o->rank[r];
        const struct session *s = w->s[e->i_session];
        uint64_t *list = &o->list[e->i_session][e->i_list];
        if (e->gone || (tenant < TENANTS && s->tenant != tenant) ||
            *list <= LEAST || o->session[e->i_session] <= s->floor ||
            o->tenant[s->tenant] <= w->e.sessions.tenant[s->tenant].floor)
            continue;
        e->gone = true;
        --*list;
        o->session[e->i_session]--;
        o->tenant[s->tenant]--;
        n++;
    }
    return n;
}

static bool is_there(const struct world *w, const struct ranked *e)
{
    const struct table *t = w->s[e->i_session]->table;
    const struct kv_list *l = &t->list[e->i_list];
    for (uint32_t i = 0; i < l->len; i++)
        if (pool_meta(t->pool, l->unit[i / KV_UNIT])->pos[i % KV_UNIT] ==
            (int32_t)e->pos)
            return true;
    return false;
}

static void weights_floors_and_caps_count(void **state)
{
    (void)state;
    static struct oracle o;
    struct rng r;
    uint64_t n_capped = 0;
    rng_seed(&r, 8);
    for (int round = 0; round < 200; round++) {
        struct world w;
        struct session_tenant t[TENANTS];
        set_up(&w, 80);
        evict_free(w.evict);
        for (uint32_t i = 0; i < TENANTS; i++)
            t[i] = (struct session_tenant){
                .weight = exp((double)rng_below(&r, 9) - 4),
                .floor = rng_below(&r, 2) * rng_below(&r, 700),
                .cap = rng_below(&r, 3) ? UINT64_MAX : rng_below(&r, 900)};
        assert_int_equal(sessions_set_tenants(&w.e.sessions, t, TENANTS), OK);
        const struct evict_setup setup = {.sessions = &w.e.sessions,
                                          .options = &w.options,
                                          .max_sessions = SESSIONS};
        assert_int_equal(evict_new(&w.evict, &setup), OK);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            const struct session_start st = {
                .rules = {.policy = FORGET_DBTRIMKV},
                .tenant = (uint32_t)rng_below(&r, TENANTS),
                .weight = rng_below(&r, 2) ? 0 : exp((double)rng_below(&r, 3)),
                .floor = rng_below(&r, 2) * rng_below(&r, 500)};
            uint32_t n = 1 + (uint32_t)rng_below(&r, TOKENS);
            (void)add_as(&w, i, n, st, (uint64_t)round * SESSIONS + i);
        }
        rank_all(&o, &w);
        uint64_t k = rng_below(&r, 1500), gone = 0;
        for (uint32_t i = 0; i < TENANTS; i++)
            if (o.tenant[i] > t[i].cap)
                gone += take(&o, &w, o.tenant[i] - t[i].cap, i);
        n_capped += gone;
        if (gone < k)
            gone += take(&o, &w, k - gone, TENANTS);
        struct evict_result res = run(&w, k, UINT64_MAX);
        assert_int_equal(res.gone[ENGINE_PRESSURE], gone);
        for (uint32_t i = 0; i < o.n; i++)
            assert_int_equal(is_there(&w, &o.rank[i]), !o.rank[i].gone);
        tear_down(&w);
    }
    assert_true(n_capped > 1000);
}

/* By the tokens that the server has processed since, however long its own text
 * is; who is running pays nothing. */
static void sessions_at_rest_pay_for_the_work_since(void **state)
{
    (void)state;
    static struct oracle o;
    struct rng r;
    rng_seed(&r, 31);
    for (int round = 0; round < 100; round++) {
        struct world w;
        uint64_t *clock = &w.e.sessions.clock, rested_at[SESSIONS];
        set_up(&w, 80);
        w.options.idle_decay = 0.05 * (double)rng_below(&r, 3);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            uint32_t n = LEAST + (uint32_t)rng_below(&r, TOKENS - LEAST);
            (void)add(&w, i, n, FORGET_DBTRIMKV,
                      (uint64_t)round * SESSIONS + i);
            rested_at[i] = *clock += rng_below(&r, 200000);
            if (rng_below(&r, 3) > 0)
                session_rest(&w.e.sessions, w.s[i]);
        }
        *clock += rng_below(&r, 200000);
        for (uint32_t i = 0; i < SESSIONS; i++)
            w.idle[i] = w.s[i]->is_running ? 0 : *clock - rested_at[i];
        rank_all(&o, &w);
        uint64_t gone = take(&o, &w, rng_below(&r, 1000), TENANTS);
        struct evict_result res = run(&w, gone, UINT64_MAX);
        assert_int_equal(res.gone[ENGINE_PRESSURE], gone);
        for (uint32_t i = 0; i < o.n; i++)
            assert_int_equal(is_there(&w, &o.rank[i]), !o.rank[i].gone);
        tear_down(&w);
    }
}

/* Three sessions of one text, entry for entry of the same rank. */
static void of_equals_the_session_created_later_keeps_more(void **state)
{
    (void)state;
    for (uint64_t k = 1; k <= 3; k++) {
        struct world w;
        set_up(&w, 80);
        for (uint32_t i = 0; i < 3; i++)
            (void)add(&w, i, 100, FORGET_DBTRIMKV, 1);
        /* Created anew, the first is the last. */
        session_drop(&w.e.sessions, w.s[0]);
        (void)add(&w, 0, 100, FORGET_DBTRIMKV, 1);
        (void)run(&w, k, UINT64_MAX);
        assert_int_equal(w.s[1]->n_lost, 1);
        assert_int_equal(w.s[2]->n_lost, k >= 2);
        assert_int_equal(w.s[0]->n_lost, k >= 3);
        tear_down(&w);
    }
}

/* What is protected stays, whoever asks; a tenant's limits are for passes over
 * all that it has. */
static void a_cut_leaves_a_sessions_floor(void **state)
{
    (void)state;
    struct world w;
    struct evict_result r;
    const struct session_tenant t = {
        .weight = 1, .floor = 200 * TOY_LISTS, .cap = 10};
    const struct session_start st = {.rules = {.policy = FORGET_DBTRIMKV},
                                     .floor = 70 * TOY_LISTS};
    set_up(&w, 80);
    assert_int_equal(sessions_set_tenants(&w.e.sessions, &t, 1), OK);
    for (uint32_t i = 0; i < 2; i++)
        (void)add_as(&w, i, 100, st, i);
    const struct evict_limit limit[2] = {{w.s[0], 80 * TOY_LISTS, ENGINE_CAP},
                                         {w.s[1], 60 * TOY_LISTS, ENGINE_CAP}};
    evict_cut(w.evict, limit, 2, &r);
    assert_int_equal(table_n_entries(w.s[0]->table), 80 * TOY_LISTS);
    assert_int_equal(table_n_entries(w.s[1]->table), 70 * TOY_LISTS);
    tear_down(&w);
}

static void slices_choose_what_one_pass_does(void **state)
{
    (void)state;
    struct world a, b;
    set_up(&a, 80);
    set_up(&b, 80);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        (void)add(&a, i, 100 + i, FORGET_DBTRIMKV, i);
        (void)add(&b, i, 100 + i, FORGET_DBTRIMKV, i);
    }
    struct evict_result ra = run(&a, 1000, UINT64_MAX), rb = run(&b, 1000, 1);
    assert_int_equal(ra.gone[ENGINE_PRESSURE], 1000);
    assert_true(ra.below == rb.below);
    for (uint32_t i = 0; i < SESSIONS; i++)
        for (uint32_t l = 0; l < TOY_LISTS; l++)
            assert_int_equal(a.s[i]->table->list[l].len,
                             b.s[i]->table->list[l].len);
    tear_down(&a);
    tear_down(&b);
}

static void assert_equal_lists(const struct session *a, const struct session *b)
{
    for (uint32_t l = 0; l < TOY_LISTS; l++) {
        const struct kv_list *la = &a->table->list[l], *lb = &b->table->list[l];
        assert_int_equal(la->len, lb->len);
        for (uint32_t i = 0; i < la->len; i++)
            assert_int_equal(pool_meta(a->table->pool, la->unit[i / KV_UNIT])
                                 ->pos[i % KV_UNIT],
                             pool_meta(b->table->pool, lb->unit[i / KV_UNIT])
                                 ->pos[i % KV_UNIT]);
    }
}

/* While a pass under pressure goes on, which leaves the session alone. */
static void a_cut_in_slices_takes_what_one_at_once_does(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 50; round++) {
        struct world a, b;
        struct evict_result r;
        struct evict *cuts = NULL;
        uint64_t most = 25 * TOY_LISTS + round * 3, gone = 0, n_steps = 0;
        set_up(&a, 160);
        set_up(&b, 160);
        const struct evict_setup setup = {.sessions = &a.e.sessions,
                                          .options = &a.options,
                                          .max_sessions = 1,
                                          .only_cuts = true};
        assert_int_equal(evict_new(&cuts, &setup), OK);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            (void)add(&a, i, 100, FORGET_DBTRIMKV, round + i);
            (void)add(&b, i, 100, FORGET_DBTRIMKV, round + i);
        }
        const struct evict_limit la = {a.s[1], most, ENGINE_CAP};
        const struct evict_limit lb = {b.s[1], most, ENGINE_CAP};
        evict_cut(b.evict, &lb, 1, &r);
        evict_begin(a.evict, 200, false);
        sessions_tell(&a.e.sessions, a.s[1]);
        a.s[1]->is_cut = true;
        evict_begin_cut(cuts, &la, 1);
        for (bool ended = false; !ended; n_steps++) {
            ended = evict_step(cuts, 1, 1, &r);
            gone += r.gone[ENGINE_CAP];
            check(&a);
            if (evict_is_under_way(a.evict))
                (void)evict_step(a.evict, 1, 1, &r);
            check(&a);
            if (!evict_is_under_way(a.evict) && round % 2)
                evict_begin(a.evict, 50, false);
        }
        assert_int_equal(gone, 100 * TOY_LISTS - most);
        assert_true(n_steps > TOY_LISTS);
        assert_equal_lists(a.s[1], b.s[1]);
        while (evict_is_under_way(a.evict))
            (void)evict_step(a.evict, UINT64_MAX, UINT64_MAX, &r);
        assert_equal_lists(a.s[1], b.s[1]);
        uint64_t left = 0;
        for (uint32_t i = 0; i < SESSIONS; i++)
            left += i == 1 ? 0 : table_n_entries(a.s[i]->table);
        assert_true(left <= (SESSIONS - 1) * 100 * TOY_LISTS - 200);
        evict_free(cuts);
        tear_down(&a);
        tear_down(&b);
    }
}

/* What happens between two slices: sessions end, go on, and go to rest. */
static void live_on(struct world *w, struct rng *r, bool *has_ended)
{
    uint32_t i = (uint32_t)rng_below(r, SESSIONS);
    if (has_ended[i])
        return;
    if (rng_below(r, 3) == 0 && w->s[i]->is_running) {
        session_rest(&w->e.sessions, w->s[i]);
    } else if (rng_below(r, 2) == 0) {
        session_drop(&w->e.sessions, w->s[i]);
        has_ended[i] = true;
        /* Its units are used again at once. */
        (void)add(w, i, 60, FORGET_EXACT, i);
    }
}

/* Sessions that end while a pass is worked on might as well have ended before
 * it began. */
static void a_pass_goes_on_without_a_session_that_ends(void **state)
{
    (void)state;
    struct rng r;
    uint32_t n_ended = 0;
    rng_seed(&r, 21);
    for (int round = 0; round < 300; round++) {
        struct world a, b;
        struct evict_result res = {0};
        bool has_ended[SESSIONS] = {false};
        uint64_t k = 1 + rng_below(&r, 1200), gone = 0;
        set_up(&a, 160);
        set_up(&b, 160);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            uint32_t n = 40 + (uint32_t)rng_below(&r, TOKENS - 40);
            uint64_t seed = (uint64_t)round * SESSIONS + i;
            (void)add(&a, i, n, FORGET_DBTRIMKV, seed);
            (void)add(&b, i, n, FORGET_DBTRIMKV, seed);
        }
        evict_begin(a.evict, k, false);
        for (uint64_t n = rng_below(&r, 30); n > 0; n--) {
            live_on(&a, &r, has_ended);
            assert_true(evict_is_under_way(a.evict));
            /* Nothing is taken out yet. */
            if (a.evict->is_chosen || evict_step(a.evict, 1, 1, &res) ||
                a.evict->is_chosen)
                break;
            check(&a);
        }
        gone = res.gone[ENGINE_PRESSURE];
        while (evict_is_under_way(a.evict)) {
            (void)evict_step(a.evict, UINT64_MAX, 1, &res);
            gone += res.gone[ENGINE_PRESSURE];
        }
        for (uint32_t i = 0; i < SESSIONS; i++)
            if (has_ended[i])
                session_drop(&b.e.sessions, b.s[i]);
        struct evict_result rb = run(&b, k, UINT64_MAX);
        assert_int_equal(gone, rb.gone[ENGINE_PRESSURE]);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            n_ended += has_ended[i];
            if (!has_ended[i])
                assert_equal_lists(a.s[i], b.s[i]);
        }
        tear_down(&a);
        tear_down(&b);
    }
    assert_true(n_ended > 200);
}

static void what_was_chosen_of_a_session_goes_with_it(void **state)
{
    (void)state;
    struct world w;
    struct evict_result r;
    set_up(&w, 80);
    for (uint32_t i = 0; i < 3; i++)
        (void)add(&w, i, 100, FORGET_DBTRIMKV, i);
    evict_begin(w.evict, 300, false);
    assert_false(evict_step(w.evict, UINT64_MAX, 1, &r));
    assert_true(r.gone[ENGINE_PRESSURE] > 0 && r.gone[ENGINE_PRESSURE] < 300);
    session_drop(&w.e.sessions, w.s[1]);
    assert_true(evict_is_under_way(w.evict));
    (void)add(&w, 1, 100, FORGET_DBTRIMKV, 9);
    while (evict_is_under_way(w.evict)) {
        (void)evict_step(w.evict, 1, 1, &r);
        check(&w);
    }
    assert_int_equal(table_n_entries(w.s[1]->table), 100 * TOY_LISTS);
    /* With the last of what was chosen the pass ends. */
    evict_begin(w.evict, 300, false);
    assert_false(evict_step(w.evict, UINT64_MAX, 1, &r));
    for (uint32_t i = 0; i < 3; i++)
        session_drop(&w.e.sessions, w.s[i]);
    assert_false(evict_is_under_way(w.evict));
    tear_down(&w);
}

/* A pass that has split its share between policies asks nobody for more. */
static void the_share_of_a_session_ends_with_it(void **state)
{
    (void)state;
    struct world w;
    struct evict_result r;
    set_up(&w, 80);
    for (uint32_t i = 0; i < 3; i++)
        (void)add(&w, i, 100, i == 1 ? FORGET_STREAMINGLLM : FORGET_DBTRIMKV,
                  i);
    evict_begin(w.evict, 300, false);
    assert_false(evict_step(w.evict, 1, 1, &r));
    session_drop(&w.e.sessions, w.s[1]);
    uint64_t gone = 0;
    while (evict_is_under_way(w.evict)) {
        (void)evict_step(w.evict, 1, 1, &r);
        gone += r.gone[ENGINE_PRESSURE];
    }
    assert_int_equal(gone, 200);
    tear_down(&w);
}

/* Makes session i share the first n tokens of session 0, and goes on with
 * tokens of its own, of which those from `pinned` on are pinned. */
static void share_pinned(struct world *w, uint32_t i, uint32_t n, uint32_t more,
                         uint32_t pinned)
{
    const struct forget_span pin = {pinned, n + more};
    struct sessions *ss = &w->e.sessions;
    int32_t token[TOKENS];
    memcpy(token, w->s[0]->token, n * sizeof(*token));
    toy_prompt(token + n, more, 50 + i);
    const struct session_start st = {.from = w->s[0],
                                     .n_shared = n,
                                     .token = token,
                                     .n = n + more,
                                     .cap = n + more,
                                     .rules = {.policy = FORGET_DBTRIMKV},
                                     .pin = &pin,
                                     .n_pins = pinned < n + more};
    assert_int_equal(session_new(ss, &w->s[i], &st), OK);
    assert_int_equal(session_reserve(ss, w->s[i], n + more), OK);
    session_append(ss, w->s[i], more);
}

static void share(struct world *w, uint32_t i, uint32_t n, uint32_t more)
{
    share_pinned(w, i, n, more, n + more);
}

static void own(struct world *w, uint32_t i, uint32_t from, uint32_t to)
{
    for (uint32_t l = 0; l < TOY_LISTS; l++)
        for (uint32_t u = from; u < to; u++) {
            assert_int_equal(pool_reserve(w->e.pool, 1), OK);
            session_own_unit(&w->e.sessions, w->s[i], l, u);
        }
}

/* Three sessions share six units a list. Then each of two has some of these for
 * itself, so that all that is shared has two users, but not the same two. */
static void who_shares_is_told_apart(void **state)
{
    (void)state;
    enum { COMMON = 6 * KV_UNIT };
    struct world w;
    struct evict_result r;
    set_up(&w, 80);
    (void)add(&w, 0, COMMON + 32, FORGET_DBTRIMKV, 1);
    share(&w, 1, COMMON, 32);
    share(&w, 2, COMMON, 32);
    own(&w, 1, 0, 3);
    own(&w, 2, 3, 6);
    check(&w);
    uint32_t shared = pool_stats(w.e.pool).used;
    evict_begin(w.evict, UINT64_MAX, true);
    assert_true(evict_step(w.evict, UINT64_MAX, UINT64_MAX, &r));
    uint64_t held[2] = {table_n_entries(w.s[1]->table),
                        table_n_entries(w.s[2]->table)};
    assert_true(pool_stats(w.e.pool).used < shared);
    evict_shared(w.evict, UINT64_MAX / 4, &r);
    check(&w);
    /* Session 2 lost what it shares with 0 alone, and so did 1. */
    assert_true(table_n_entries(w.s[2]->table) < held[1]);
    assert_true(table_n_entries(w.s[1]->table) < held[0]);
    tear_down(&w);
}

/* Two share eight units a list, a third the first four of them: both
 * beginnings are in the lists of the first two. Whoever takes from both, these
 * keep their floors, of a head or of a session, and no more than whole units
 * make necessary. */
static void beginnings_inside_others_leave_the_floors(void **state)
{
    (void)state;
    enum { HALF = 4 * KV_UNIT, FLOOR = 40 };
    for (int by_session = 0; by_session < 2; by_session++) {
        struct world w;
        struct evict_result r;
        set_up(&w, 80);
        w.options.min_head = by_session ? LEAST : FLOOR;
        (void)add(&w, 0, 2 * HALF + 16, FORGET_DBTRIMKV, 1);
        share(&w, 1, 2 * HALF, 16);
        share_pinned(&w, 2, HALF, 90, HALF);
        if (by_session)
            w.s[0]->floor = (uint64_t)FLOOR * TOY_LISTS;
        do {
            evict_shared(w.evict, UINT64_MAX / 4, &r);
            check(&w);
            for (uint32_t i = 0; i < TOY_LISTS && !by_session; i++)
                assert_true(w.s[0]->table->list[i].len >= FLOOR &&
                            w.s[1]->table->list[i].len >= FLOOR);
            assert_true(table_n_entries(w.s[0]->table) >= FLOOR * TOY_LISTS);
        } while (r.gone[ENGINE_PRESSURE] > 0);
        for (uint32_t i = 0; i < TOY_LISTS && !by_session; i++)
            assert_true(w.s[0]->table->list[i].len < FLOOR + KV_UNIT);
        assert_true(table_n_entries(w.s[0]->table) <
                    (FLOOR + KV_UNIT) * TOY_LISTS);
        tear_down(&w);
    }
}

/* A kept session gives nothing, and the squeeze takes all that may go. */
static void a_squeeze_leaves_the_floors(void **state)
{
    (void)state;
    struct world w;
    struct evict_result r;
    set_up(&w, 80);
    for (uint32_t i = 0; i < SESSIONS; i++)
        (void)add(&w, i, 100, (enum forget_policy)(i % 4), i);
    w.s[2]->is_kept = true;
    evict_begin(w.evict, UINT64_MAX, true);
    assert_true(evict_step(w.evict, UINT64_MAX, UINT64_MAX, &r));
    for (uint32_t i = 0; i < SESSIONS; i++)
        assert_int_equal(table_n_entries(w.s[i]->table),
                         (i % 4 == 0 || i == 2 ? 100 : LEAST) * TOY_LISTS);
    tear_down(&w);
}

static void a_cut_takes_what_is_above_the_limit(void **state)
{
    (void)state;
    struct world w;
    struct evict_result r;
    set_up(&w, 80);
    for (uint32_t i = 0; i < 4; i++)
        (void)add(&w, i, 100, i == 3 ? FORGET_TRIMKV : FORGET_DBTRIMKV, i);
    const struct evict_limit limit[3] = {
        {w.s[0], 333, ENGINE_CAP},
        {w.s[2], 10, ENGINE_ADMISSION},
        {w.s[3], 50 * TOY_LISTS, ENGINE_CAP},
    };
    evict_cut(w.evict, limit, 3, &r);
    assert_int_equal(table_n_entries(w.s[0]->table), 333);
    assert_int_equal(table_n_entries(w.s[1]->table), 100 * TOY_LISTS);
    assert_int_equal(table_n_entries(w.s[2]->table), LEAST * TOY_LISTS);
    for (uint32_t l = 0; l < TOY_LISTS; l++)
        assert_int_equal(w.s[3]->table->list[l].len, 50);
    assert_int_equal(r.gone[ENGINE_CAP], 67 + 50 * TOY_LISTS);
    assert_int_equal(r.gone[ENGINE_ADMISSION], (100 - LEAST) * TOY_LISTS);
    assert_int_equal(r.gone[ENGINE_PRESSURE], 0);
    assert_true(r.below == -INFINITY);
    tear_down(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_give_in_proportion_to_what_they_hold),
        cmocka_unit_test(weights_floors_and_caps_count),
        cmocka_unit_test(sessions_at_rest_pay_for_the_work_since),
        cmocka_unit_test(of_equals_the_session_created_later_keeps_more),
        cmocka_unit_test(a_cut_leaves_a_sessions_floor),
        cmocka_unit_test(a_cut_in_slices_takes_what_one_at_once_does),
        cmocka_unit_test(slices_choose_what_one_pass_does),
        cmocka_unit_test(a_pass_goes_on_without_a_session_that_ends),
        cmocka_unit_test(what_was_chosen_of_a_session_goes_with_it),
        cmocka_unit_test(the_share_of_a_session_ends_with_it),
        cmocka_unit_test(who_shares_is_told_apart),
        cmocka_unit_test(beginnings_inside_others_leave_the_floors),
        cmocka_unit_test(a_squeeze_leaves_the_floors),
        cmocka_unit_test(a_cut_takes_what_is_above_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
