/* Sessions against a plain model of them: which prefix is found, what is
 * shared, what is dropped, and that the books are right after every call. */
#include "toy.h"

#include "runtime/engine/session_views.h"

struct world {
    struct toy toy;  /* only for its counter of faults */
    struct engine e; /* only pool and sessions are used */
    uint64_t n_dropped;
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
}

/* For an exact request. */
static struct session_match match_of(const struct engine *e,
                                     const int32_t *token, uint32_t n)
{
    static const struct forget_rules exact = {.policy = FORGET_EXACT};
    const struct session_wish wish = {.token = token, .n = n, .rules = &exact};
    return sessions_match(&e->sessions, &wish);
}

static void check(struct world *w)
{
    toy_check_books(&w->toy, &w->e);
    assert_int_equal(atomic_load(&w->toy.n_faults), 0);
}

static void tear_down(struct world *w)
{
    check(w);
    sessions_fini(&w->e.sessions);
    assert_int_equal(pool_stats(w->e.pool).used, 0);
    assert_int_equal(pool_stats(w->e.pool).reserved, 0);
    pool_free(w->e.pool);
}

/* Reserves all, dropping what is at rest, least recently used first. */
static bool reserve(struct world *w, struct session *s)
{
    struct sessions *ss = &w->e.sessions;
    if (!session_can_fit(ss, s))
        return false;
    while (session_reserve(ss, s, s->cap) != OK) {
        assert_non_null(ss->rest.first);
        session_drop(ss, ss->rest.first);
        w->n_dropped++;
    }
    return true;
}

/* Starts and reserves; NULL when there is no room. */
static struct session *start(struct world *w, const int32_t *token, uint32_t n,
                             uint32_t cap)
{
    struct sessions *ss = &w->e.sessions;
    struct session_match m = match_of(&w->e, token, n);
    const struct session_start st = {.from = m.from,
                                     .n_shared = m.n_tokens,
                                     .token = token,
                                     .n = n,
                                     .cap = cap};
    struct session *s = NULL;
    assert_int_equal(session_new(ss, &s, &st), OK);
    session_absorb(ss, s);
    if (!reserve(w, s)) {
        session_rest(ss, s);
        return NULL;
    }
    return s;
}

static struct session *run_through(struct world *w, const int32_t *token,
                                   uint32_t n)
{
    struct session *s = start(w, token, n, n);
    assert_non_null(s);
    if (s->n_known > s->n_stored)
        session_append(&w->e.sessions, s, s->n_known - s->n_stored);
    session_rest(&w->e.sessions, s);
    return w->e.sessions.rest.last;
}

static void a_match_never_covers_the_last_token(void **state)
{
    (void)state;
    struct world w;
    int32_t p[64];
    set_up(&w, 100);
    toy_prompt(p, 64, 1);
    run_through(&w, p, 50);
    for (uint32_t n = 1; n <= 64; n++) {
        struct session_match m = match_of(&w.e, p, n);
        assert_int_equal(m.n_tokens, n - 1 < 50 ? n - 1 : 50);
        assert_null(m.ahead);
    }
    assert_int_equal(match_of(&w.e, p, 0).n_tokens, 0);
    tear_down(&w);
}

/* Text that the client took back must not live on in a value before it. */
static void merged_entries_are_rolled_back_by_buckets(void **state)
{
    (void)state;
    struct world w;
    int32_t p[100];
    set_up(&w, 100);
    toy_prompt(p, 100, 1);
    struct session *s = run_through(&w, p, 90);
    s->n_merged = 7;
    s->merged_below = 75;
    for (uint32_t n = 1; n <= 100; n++) {
        uint32_t same = n - 1 < 90 ? n - 1 : 90;
        assert_int_equal(match_of(&w.e, p, n).n_tokens,
                         same < 75 ? same / 32 * 32 : same);
    }
    /* Fates that look beyond buckets: behind what was merged, or not at all. */
    s->rules.admission.fate = FORGET_CAM;
    for (uint32_t n = 1; n <= 100; n++) {
        uint32_t same = n - 1 < 90 ? n - 1 : 90;
        assert_int_equal(match_of(&w.e, p, n).n_tokens, same < 75 ? 0 : same);
    }
    s->rules.admission.fate = FORGET_MERGE;
    struct session *t = NULL;
    struct session_start st = {
        .from = s, .n_shared = 64, .token = p, .n = 70, .cap = 70};
    assert_int_equal(session_new(&w.e.sessions, &t, &st), OK);
    assert_int_equal(t->merged_below, 64);
    /* It has lost nothing, so nothing lives on in it. */
    assert_int_equal(t->n_merged, 0);
    session_drop(&w.e.sessions, t);
    tear_down(&w);
}

static void a_unit_that_is_still_filled_is_not_shared(void **state)
{
    (void)state;
    struct world w;
    int32_t p[200];
    set_up(&w, 100);
    toy_prompt(p, 200, 1);
    struct session *s = start(&w, p, 150, 180);
    session_append(&w.e.sessions, s, 40);
    struct session_match m = match_of(&w.e, p, 150);
    assert_ptr_equal(m.from, s);
    assert_int_equal(m.n_tokens, 32);
    assert_ptr_equal(m.ahead, s);
    assert_int_equal(m.n_ahead, 149);
    /* At rest it shares all it has. */
    session_rest(&w.e.sessions, s);
    m = match_of(&w.e, p, 150);
    assert_int_equal(m.n_tokens, 40);
    assert_null(m.ahead);
    tear_down(&w);
}

static void what_another_contains_is_not_kept_twice(void **state)
{
    (void)state;
    struct world w;
    int32_t p[100], q[100];
    set_up(&w, 100);
    toy_prompt(p, 100, 1);
    memcpy(q, p, sizeof(q));
    q[60] = (q[60] + 1) % TOY_END;
    run_through(&w, p, 30);
    run_through(&w, p, 70);
    assert_int_equal(w.e.sessions.rest.n, 1);
    run_through(&w, q, 80); /* a fork: both stay */
    assert_int_equal(w.e.sessions.rest.n, 2);
    run_through(&w, p, 20); /* a part of both */
    assert_int_equal(w.e.sessions.rest.n, 2);
    run_through(&w, p, 100);
    assert_int_equal(w.e.sessions.rest.n, 2);
    /* 7 and 5 units, of which they share the 3 that are equal throughout. */
    assert_int_equal(pool_stats(w.e.pool).used, (7 + 5 - 3) * TOY_LISTS);
    tear_down(&w);
}

static void the_least_recently_used_goes_first(void **state)
{
    (void)state;
    struct world w;
    int32_t p[4][32];
    set_up(&w, 6);
    for (uint64_t i = 0; i < 4; i++)
        toy_prompt(p[i], 32, 10 + i);
    run_through(&w, p[0], 32);
    run_through(&w, p[1], 32);
    run_through(&w, p[2], 32);        /* full */
    run_through(&w, p[0], 32);        /* used again */
    assert_int_equal(w.n_dropped, 1); /* room for its copied tail */
    assert_int_equal(match_of(&w.e, p[1], 32).n_tokens, 0);
    run_through(&w, p[3], 32);
    assert_int_equal(match_of(&w.e, p[2], 32).n_tokens, 31);
    run_through(&w, p[1], 32);
    assert_int_equal(match_of(&w.e, p[2], 32).n_tokens, 0);
    assert_int_equal(match_of(&w.e, p[3], 32).n_tokens, 31);
    tear_down(&w);
}

static void nothing_is_dropped_in_vain(void **state)
{
    (void)state;
    struct world w;
    int32_t p[3][160];
    set_up(&w, 10);
    for (uint64_t i = 0; i < 3; i++)
        toy_prompt(p[i], 160, 10 + i);
    run_through(&w, p[0], 48);
    struct session *s = start(&w, p[1], 80, 80); /* 5 of 10, 3 at rest */
    assert_null(start(&w, p[2], 90, 96));
    assert_int_equal(w.n_dropped, 0);
    assert_int_equal(w.e.sessions.rest.n, 1);
    struct session *t = start(&w, p[2], 80, 80);
    assert_non_null(t);
    assert_int_equal(w.n_dropped, 1);
    check(&w);
    session_drop(&w.e.sessions, t);
    session_drop(&w.e.sessions, s);
    tear_down(&w);
}

/* A request whose source fills the pool: the source itself has to go, and its
 * beginning is then the request's alone. */
static void a_source_is_dropped_when_its_room_is_needed(void **state)
{
    (void)state;
    struct world w;
    int32_t p[160], q[160];
    set_up(&w, 10);
    toy_prompt(p, 160, 1);
    memcpy(q, p, sizeof(q));
    q[73] = (q[73] + 1) % TOY_END;
    run_through(&w, p, 160);
    struct session *s = start(&w, q, 100, 160);
    assert_non_null(s);
    assert_int_equal(s->n_stored, 73);
    assert_int_equal(w.e.sessions.rest.n, 0);
    check(&w);
    session_append(&w.e.sessions, s, 27);
    check(&w);
    session_rest(&w.e.sessions, s);
    tear_down(&w);
}

static const struct forget_rules lossy = {.policy = FORGET_DBTRIMKV};
static const struct forget_options options = {
    .min_head = 20, .n_sinks = 4, .n_recent = 16};

/* At rest, with the first `kept` entries of every list: not what a beginning
 * of them would have kept. */
static struct session *add_lossy(struct world *w, const int32_t *p, uint32_t n,
                                 uint32_t kept)
{
    struct sessions *ss = &w->e.sessions;
    struct session *s = NULL;
    const struct session_start st = {
        .token = p, .n = n, .cap = n, .rules = lossy};
    assert_int_equal(session_new(ss, &s, &st), OK);
    assert_int_equal(session_reserve(ss, s, n), OK);
    session_append(ss, s, n);
    for (uint32_t i = 0; kept < n && i < TOY_LISTS; i++) {
        s->table->list[i].len = kept;
        session_shrink(ss, s, i, n - kept);
    }
    session_rest(ss, s);
    check(w);
    return ss->rest.last;
}

static struct session_match lossy_match(const struct world *w, const int32_t *p,
                                        uint32_t n)
{
    const struct session_wish wish = {
        .token = p, .n = n, .rules = &lossy, .options = &options};
    return sessions_match(&w->e.sessions, &wish);
}

/* Many chats that begin alike and have lost the beginning: a few are looked
 * into, and who is looked for is found all the same. */
static void a_crowd_that_does_not_serve_hides_nobody(void **state)
{
    (void)state;
    enum { CROWD = 40, COMMON = 100, OWN = 140 };
    struct world w;
    int32_t p[OWN + 20], own[OWN + 20];
    set_up(&w, 600);
    toy_prompt(p, OWN + 20, 1);
    memcpy(own, p, sizeof(own));
    own[COMMON] = (int32_t)(CROWD % TOY_END) + 1;
    own[COMMON + 1] = -1;
    struct session *chat = add_lossy(&w, own, OWN, 50);
    struct session *whole = add_lossy(&w, p, 60, 60);
    for (int32_t i = 0; i < CROWD; i++) {
        p[COMMON] = i % TOY_END;
        p[COMMON + 1] = i;
        (void)add_lossy(&w, p, OWN, 50);
    }
    assert_int_equal(w.e.sessions.rest.n, CROWD + 2);
    /* Its next turn. */
    struct session_match m = lossy_match(&w, own, OWN + 10);
    assert_ptr_equal(m.from, chat);
    assert_int_equal(m.n_tokens, OWN);
    /* A new chat. Of 100 tokens the crowd has none of the newest. */
    p[COMMON] = p[COMMON + 1] = -2;
    m = lossy_match(&w, p, OWN);
    assert_ptr_equal(m.from, whole);
    assert_int_equal(m.n_tokens, 60);
    /* Without it, nobody serves. */
    session_drop(&w.e.sessions, whole);
    assert_null(lossy_match(&w, p, OWN).from);
    tear_down(&w);
}

/* Who sees most of a shared unit goes first: then there is what is left to the
 * others, and never the sum. */
static void a_unit_holds_what_is_seen_of_it(void **state)
{
    (void)state;
    struct world w;
    int32_t p[50];
    struct sessions *ss = &w.e.sessions;
    struct session *fork[2];
    set_up(&w, 100);
    toy_prompt(p, 50, 1);
    assert_int_equal(views_of(40, 1), KV_UNIT);
    assert_int_equal(views_of(40, 2), 8);
    struct session *s = run_through(&w, p, 40);
    for (uint32_t i = 0; i < 2; i++) {
        struct session_start st = {
            .from = s, .n_shared = 35 - i, .token = p, .n = 50, .cap = 50};
        assert_int_equal(session_new(ss, &fork[i], &st), OK);
        assert_int_equal(ss->n_held, 40 * TOY_LISTS);
    }
    session_drop(ss, s);
    assert_int_equal(ss->n_held, 35 * TOY_LISTS);
    session_drop(ss, fork[0]);
    assert_int_equal(ss->n_held, 34 * TOY_LISTS);
    session_drop(ss, fork[1]);
    assert_int_equal(ss->n_held, 0);
    tear_down(&w);
}

/* Longest common prefix by the definition, over everything there is. */
static uint32_t longest(const struct sessions *ss, const int32_t *p, uint32_t n)
{
    uint32_t best = 0;
    for (int k = 0; k < 2; k++) {
        const struct session *s = k == 0 ? ss->running.first : ss->rest.first;
        for (; s; s = s->next) {
            uint32_t same = 0;
            while (same < n - 1 && same < s->n_stored &&
                   s->token[same] == p[same])
                same++;
            if (k == 0 && same > s->n_stored / KV_UNIT * KV_UNIT)
                same = s->n_stored / KV_UNIT * KV_UNIT;
            best = same > best ? same : best;
        }
    }
    return best;
}

static void random_lives_keep_the_books_right(void **state)
{
    (void)state;
    enum { RUNNING = 5 };
    struct world w;
    struct session *run[RUNNING] = {0};
    struct rng r;
    uint32_t n_started = 0, n_refused = 0;
    rng_seed(&r, 3);
    set_up(&w, 30);
    for (int step = 0; step < 30000; step++) {
        struct session **s = &run[rng_below(&r, RUNNING)];
        if (!*s) {
            int32_t p[200];
            uint32_t n = 1 + (uint32_t)rng_below(&r, 150);
            toy_prompt(p, 200, rng_below(&r, 3));
            if (rng_below(&r, 2))
                p[rng_below(&r, n)] = (int32_t)rng_below(&r, TOY_END);
            assert_int_equal(match_of(&w.e, p, n).n_tokens,
                             longest(&w.e.sessions, p, n));
            *s = start(&w, p, n, n + (uint32_t)rng_below(&r, 50));
            n_started += *s != NULL;
            n_refused += *s == NULL;
        } else if ((*s)->n_stored < (*s)->n_known) {
            uint32_t left = (*s)->n_known - (*s)->n_stored;
            session_append(&w.e.sessions, *s,
                           1 + (uint32_t)rng_below(&r, left));
        } else if ((*s)->n_known < (*s)->cap && rng_below(&r, 10) > 0) {
            session_push(*s, (int32_t)rng_below(&r, TOY_END));
        } else {
            session_rest(&w.e.sessions, *s);
            *s = NULL;
        }
        if (*s && rng_below(&r, 40) == 0) {
            session_rest(&w.e.sessions, *s);
            *s = NULL;
        }
        check(&w);
    }
    assert_true(n_started > 1000 && n_refused > 100 && w.n_dropped > 100);
    tear_down(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_match_never_covers_the_last_token),
        cmocka_unit_test(merged_entries_are_rolled_back_by_buckets),
        cmocka_unit_test(a_unit_that_is_still_filled_is_not_shared),
        cmocka_unit_test(what_another_contains_is_not_kept_twice),
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(nothing_is_dropped_in_vain),
        cmocka_unit_test(a_source_is_dropped_when_its_room_is_needed),
        cmocka_unit_test(a_crowd_that_does_not_serve_hides_nobody),
        cmocka_unit_test(a_unit_holds_what_is_seen_of_it),
        cmocka_unit_test(random_lives_keep_the_books_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
