/* Every policy in an engine: what a prompt keeps is what the pure policy keeps
 * of it, and the rules of the house hold while it goes on. */
#include "small.h"

#include "cache/policy/policy.h"
#include "runtime/model/probe.h"
#include "runtime/model/view.h"

enum { CAP = 100 };

static const char MODEL[] = "qwen3-gqa2-128";

static struct forget_rules by(enum forget_policy policy, uint32_t cap)
{
    return (struct forget_rules){
        .policy = policy, .admission.ranking = policy, .session_tokens = cap};
}

/* A prompt that this policy ranks; what ranks prompts only goes on with
 * another. */
static struct forget_rules admitted_by(enum forget_policy policy, uint32_t cap)
{
    struct forget_rules r = by(policy, cap);
    if (policy >= FORGET_H2O)
        r.policy = FORGET_STREAMINGLLM;
    return r;
}

/* The only session that there is, at rest in an engine that does nothing. */
static const struct session *at_rest(const struct small *s)
{
    const struct session *found = s->e->sessions.rest.first;
    assert_true(found && !found->next && !s->e->sessions.running.first);
    return found;
}

static void ask_prompt(struct small *s, uint32_t n, struct forget_rules r,
                       struct gen_status *st)
{
    int32_t p[SMALL_PROMPT];
    small_text(p, SMALL_PROMPT, 0);
    struct gen_request q = toy_request(p, n, 0);
    q.forget = r;
    struct gen *g = toy_submit(s->e, &q);
    *st = toy_wait(g, GEN_DONE);
    gen_release(g);
}

/* A sequence that nothing was taken from, and what watched it. */
struct pure {
    struct rig rig;
    struct table *table;
    struct probe *probe;
    struct view *view;
};

static void open_pure(struct pure *p, uint32_t n)
{
    int32_t token[SMALL_PROMPT];
    const struct probe_options o = {.n_window = 32,
                                    .parts = PROBE_COLUMNS | PROBE_FUTURE,
                                    .max_tokens = SMALL_PROMPT,
                                    .n_skip = SMALL_SINKS};
    small_open_rig(&p->rig, MODEL, 2);
    p->table = rig_table(&p->rig);
    assert_int_equal(probe_new(&p->probe, p->rig.model, &o, NULL), OK);
    assert_int_equal(view_new(&p->view, p->rig.model), OK);
    small_text(token, SMALL_PROMPT, 0);
    rig_feed_probe(&p->rig, p->table, p->probe, token, n, SMALL_ROWS);
    small_draw_retention(p->table);
}

static void close_pure(struct pure *p)
{
    view_free(p->view);
    probe_free(p->probe);
    table_free(p->table);
    rig_close(&p->rig);
}

/* keep[list][position]. */
static void keep_pure(struct pure *p, const struct policy *policy, uint32_t n,
                      uint8_t keep[SMALL_LISTS * SMALL_PROMPT])
{
    struct policy_params params = policy->defaults;
    params.n_entries = CAP;
    params.n_sinks = SMALL_SINKS;
    params.n_recent = SMALL_RECENT;
    params.min_head = SMALL_LEAST;
    assert_int_equal(view_fill(p->view, p->table, p->probe, n, policy->needs),
                     OK);
    assert_int_equal(
        policy_keep(policy, view_get(p->view), &params, NULL, keep), OK);
}

static void same_kept(const char *name, const struct table *t, uint32_t n,
                      const uint8_t *keep)
{
    for (uint32_t i = 0; i < SMALL_LISTS; i++) {
        uint8_t held[SMALL_PROMPT] = {0};
        for (uint32_t e = 0; e < t->list[i].len; e++)
            held[pool_meta(t->pool, t->list[i].unit[e / KV_UNIT])
                     ->pos[e % KV_UNIT]] = 1;
        for (uint32_t p = 0; p < n; p++)
            if (held[p] != keep[i * n + p])
                fail_msg("%s: list %u position %u is %s", name, i, p,
                         held[p] ? "there" : "gone");
    }
}

static void a_prompt_keeps_what_the_pure_policy_keeps(void **state)
{
    (void)state;
    const uint32_t n = 390;
    static uint8_t keep[SMALL_LISTS * SMALL_PROMPT];
    struct pure pure;
    open_pure(&pure, n);
    for (int p = FORGET_DBTRIMKV; p < FORGET_N_POLICIES; p++) {
        struct small s;
        struct gen_status st;
        const struct policy *policy =
            forget_policy_method((enum forget_policy)p);
        small_set_up(&s, MODEL, 2048);
        ask_prompt(&s, n, admitted_by((enum forget_policy)p, CAP), &st);
        keep_pure(&pure, policy, n, keep);
        assert_int_equal(st.retained_entries, CAP * SMALL_LISTS);
        same_kept(policy->name, at_rest(&s)->table, n, keep);
        small_tear_down(&s);
    }
    close_pure(&pure);
}

/* The same where somebody has the beginning of the prompt, or all but its last
 * token: what its last queries looked at is known to all policies that ask. */
static void what_is_cached_changes_nothing_of_it(void **state)
{
    (void)state;
    const uint32_t n = 390, cached[2] = {300, n - 1};
    static uint8_t keep[SMALL_LISTS * SMALL_PROMPT];
    const struct forget_rules exact = {.policy = FORGET_EXACT};
    struct pure pure;
    open_pure(&pure, n);
    for (int i = 0; i < 2 * FORGET_N_POLICIES; i++) {
        enum forget_policy p = (enum forget_policy)(i / 2);
        struct small s;
        struct gen_status st;
        const struct policy *policy = forget_policy_method(p);
        if (p < FORGET_DBTRIMKV)
            continue;
        small_set_up(&s, MODEL, 2048);
        ask_prompt(&s, cached[i % 2], exact, &st);
        ask_prompt(&s, n, admitted_by(p, CAP), &st);
        keep_pure(&pure, policy, n, keep);
        assert_int_equal(st.retained_entries, CAP * SMALL_LISTS);
        if (i % 2 == 0)
            assert_int_equal(
                st.cached_tokens,
                forget_studies_prompt(&(struct forget_rules){
                    .policy = FORGET_STREAMINGLLM, .admission.ranking = p})
                    ? 0
                    : cached[0]);
        same_kept(policy->name, s.e->sessions.rest.last->table, n, keep);
        small_tear_down(&s);
    }
    close_pure(&pure);
}

/* Under its cap, and what may never go is there. */
static void check_rules(const char *name, const struct session *s,
                        uint32_t most, const struct select_span *pin)
{
    const struct table *t = s->table;
    uint32_t n = s->n_stored;
    assert_true(table_n_entries(t) <= (uint64_t)most * SMALL_LISTS);
    for (uint32_t i = 0; i < SMALL_LISTS; i++) {
        uint8_t held[SMALL_CONTEXT] = {0};
        assert_true(t->list[i].len >= SMALL_LEAST);
        for (uint32_t e = 0; e < t->list[i].len; e++)
            held[pool_meta(t->pool, t->list[i].unit[e / KV_UNIT])
                     ->pos[e % KV_UNIT]]++;
        for (uint32_t p = 0; p < n; p++) {
            bool must =
                p < SMALL_SINKS || p + SMALL_RECENT >= n ||
                (pin && (int32_t)p >= pin->from && (int32_t)p < pin->to);
            if (held[p] > 1 || (must && !held[p]))
                fail_msg("%s: list %u position %u is there %u times", name, i,
                         p, held[p]);
        }
    }
}

/* A prompt that is cut to its cap, an answer longer than what a policy says at
 * a time, and a pinned span that no policy would keep. */
static void an_answer_keeps_its_cap_sinks_newest_and_pins(void **state)
{
    (void)state;
    const struct select_span pin = {100, 130};
    for (int p = FORGET_DBTRIMKV; p < FORGET_N_POLICIES; p++) {
        struct small s;
        int32_t token[SMALL_PROMPT];
        enum forget_policy policy = (enum forget_policy)p;
        small_text(token, SMALL_PROMPT, 0);
        small_set_up(&s, MODEL, 2048);
        struct gen_request q = toy_request(token, 200, 100);
        q.params.ignore_eos = true;
        q.forget = admitted_by(policy, 80);
        q.pin = malloc(sizeof(*q.pin));
        *q.pin = (struct forget_span){100, 130};
        q.n_pins = 1;
        struct gen *g = toy_submit(s.e, &q);
        struct gen_status st = toy_wait(g, GEN_DONE);
        gen_release(g);
        assert_int_equal(st.completion_tokens, 100);
        assert_int_equal(st.policy, admitted_by(policy, 80).policy);
        check_rules(forget_policy_name(policy), at_rest(&s), 81, &pin);
        small_tear_down(&s);
    }
}

/* A prompt that is never cut and an answer that is over before its first cut;
 * and a prompt that nobody waits for any more, in the middle of it. */
static void a_session_comes_to_rest_within_its_cap(void **state)
{
    (void)state;
    enum { LESS = 40 };
    int32_t token[SMALL_PROMPT];
    small_text(token, SMALL_PROMPT, 0);
    for (int p = FORGET_DBTRIMKV; p < 2 * FORGET_N_POLICIES; p++) {
        enum forget_policy policy = (enum forget_policy)(p % FORGET_N_POLICIES);
        bool is_cancelled = p >= FORGET_N_POLICIES;
        struct small s;
        if (policy == FORGET_EXACT)
            continue;
        small_set_up(&s, MODEL, 2048);
        struct gen_request q = toy_request(token, 200, 1);
        q.forget = admitted_by(policy, LESS);
        q.forget.admission.off = !is_cancelled;
        q.forget.admission.fate = FORGET_MERGE;
        atomic_store(&s.toy.is_held, true);
        struct gen *g = toy_submit(s.e, &q);
        toy_hold(&s.toy);
        if (is_cancelled)
            gen_cancel(g);
        atomic_store(&s.toy.is_held, false);
        struct gen_status st = toy_wait(g, GEN_DONE);
        gen_release(g);
        assert_int_equal(st.logical_tokens, is_cancelled ? SMALL_ROWS : 200);
        assert_int_equal(st.retained_entries, LESS * SMALL_LISTS);
        check_rules(forget_policy_name(policy), at_rest(&s), LESS, NULL);
        small_tear_down(&s);
    }
}

/* Several cuts, each ranked by the queries of that moment. Twice the same. */
static void a_prompt_beyond_its_share_is_cut_between_chunks(void **state)
{
    (void)state;
    for (int p = FORGET_DBTRIMKV; p < FORGET_N_POLICIES; p++) {
        enum forget_policy policy = (enum forget_policy)p;
        struct buf text[2] = {{0}, {0}};
        for (int i = 0; i < 2; i++) {
            struct small s;
            struct engine_stats st;
            small_set_up(&s, MODEL, 192);
            struct gen_status done = small_finish(
                small_ask(&s, SMALL_PROMPT, admitted_by(policy, 0)), &text[i]);
            engine_stats(s.e, &st);
            assert_true(st.evicted[ENGINE_ADMISSION] > 800);
            assert_true(done.retained_entries < 192 * SMALL_LISTS);
            check_rules(forget_policy_name(policy), at_rest(&s), 192, NULL);
            small_tear_down(&s);
        }
        assert_int_equal(text[0].len, text[1].len);
        assert_memory_equal(text[0].data, text[1].data, text[0].len);
        buf_fini(&text[0]);
        buf_fini(&text[1]);
    }
}

/* Whatever ranks a prompt ranks what it gives when others fill the pool, not
 * only what it gives for its share: of what leaves by pressure there is no more
 * than in an empty pool, while the answer is written. */
static void a_prompt_in_a_full_pool_is_ranked_as_prompts_are(void **state)
{
    (void)state;
    for (int p = FORGET_DBTRIMKV; p < FORGET_N_POLICIES; p++) {
        struct small s;
        struct buf text = {0};
        struct engine_stats st[2];
        struct forget_rules r = admitted_by((enum forget_policy)p, 0);
        r.policy = p == FORGET_KNORM ? FORGET_KEYDIFF : FORGET_KNORM;
        small_set_up(&s, MODEL, 192);
        for (uint64_t i = 0; i < 3; i++) {
            engine_stats(s.e, &st[0]);
            struct gen_status got =
                small_finish(small_ask_other(&s, SMALL_PROMPT, 0, i, r), &text);
            engine_stats(s.e, &st[1]);
            uint64_t admission = st[1].evicted[ENGINE_ADMISSION] -
                                 st[0].evicted[ENGINE_ADMISSION];
            assert_true(admission > 800 && got.evicted_entries > 800);
        }
        buf_fini(&text);
        small_tear_down(&s);
    }
}

static void what_leaves_by_any_ranking_can_be_merged(void **state)
{
    (void)state;
    for (int p = FORGET_DBTRIMKV; p < FORGET_N_POLICIES; p++) {
        struct small s;
        struct forget_rules r = admitted_by((enum forget_policy)p, CAP);
        r.admission.fate = FORGET_MERGE;
        small_set_up(&s, MODEL, 2048);
        struct buf text = {0};
        struct gen_status st =
            small_finish(small_ask(&s, SMALL_PROMPT, r), &text);
        /* streamingllm keeps what is at the ends: few have a host there. */
        assert_true(st.merged_entries > (p == FORGET_STREAMINGLLM ? 0 : 20));
        buf_fini(&text);
        small_tear_down(&s);
    }
}

/* An exact answer beside sessions of all policies is what it is alone, and all
 * of them end, though the pool is small and some begin alike. */
static void sessions_of_all_policies_share_a_pool(void **state)
{
    (void)state;
    struct buf alone = {0}, beside = {0};
    struct small s;
    struct gen *g[2 * FORGET_N_POLICIES];
    struct forget_rules exact = {.policy = FORGET_EXACT};
    small_set_up(&s, MODEL, 512);
    (void)small_finish(small_ask(&s, 100, exact), &alone);
    small_tear_down(&s);
    small_set_up(&s, MODEL, 512);
    struct gen *e = small_ask(&s, 100, exact);
    for (int i = 0; i < 2 * FORGET_N_POLICIES; i++) {
        enum forget_policy p = (enum forget_policy)(i % FORGET_N_POLICIES);
        struct forget_rules r = admitted_by(p, i % 3 ? 0 : 60);
        if (p == FORGET_EXACT)
            r = exact;
        g[i] =
            small_ask_other(&s, p == FORGET_EXACT ? 40 : 150 + 10 * (uint32_t)p,
                            i % 2 ? 96 : 0, (uint64_t)i, r);
    }
    (void)small_finish(e, &beside);
    for (int i = 0; i < 2 * FORGET_N_POLICIES; i++) {
        struct buf text = {0};
        struct gen_status st = small_finish(g[i], &text);
        assert_true(st.policy != FORGET_EXACT || st.evicted_entries == 0);
        buf_fini(&text);
    }
    struct engine_stats st;
    engine_stats(s.e, &st);
    assert_true(st.evicted[ENGINE_PRESSURE] > 0);
    assert_memory_equal(alone.data, beside.data, alone.len);
    buf_fini(&alone);
    buf_fini(&beside);
    small_tear_down(&s);
}

static void a_budget_that_is_never_reached_changes_nothing(void **state)
{
    (void)state;
    struct buf want = {0};
    for (int p = FORGET_EXACT; p < FORGET_N_POLICIES; p++) {
        struct small s;
        struct buf text = {0};
        struct forget_rules r = admitted_by((enum forget_policy)p, 0);
        small_set_up(&s, MODEL, 1024);
        struct gen_status st =
            small_finish(small_ask(&s, 200, r), p > 0 ? &text : &want);
        assert_int_equal(st.evicted_entries, 0);
        if (p > 0)
            assert_memory_equal(text.data, want.data, want.len);
        buf_fini(&text);
        small_tear_down(&s);
    }
    buf_fini(&want);
}

static uint64_t n_stalls(const struct engine_histogram *h)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= h->n; i++)
        n += h->count[i];
    return n;
}

/* A policy that is asked when an answer ends stalls the engine for it; ranks
 * that are always there, and what was asked a moment ago, do not. */
static void ranking_at_the_end_is_time_of_eviction(void **state)
{
    (void)state;
    for (int p = FORGET_EXACT; p <= FORGET_RANDOM; p++) {
        for (int is_cut = 0; is_cut < 2; is_cut++) {
            enum forget_policy policy = (enum forget_policy)p;
            struct small s;
            struct engine_stats st;
            struct gen_status done;
            if (policy == FORGET_EXACT && is_cut)
                continue;
            small_set_up(&s, MODEL, 2048);
            ask_prompt(&s, 200, by(policy, is_cut ? 80 : 0), &done);
            engine_stats(s.e, &st);
            bool asks = is_cut || forget_ranks_by_standing(policy);
            assert_int_equal(n_stalls(&st.evict_seconds), asks);
            assert_true((st.evict_seconds.sum > 0) == asks);
            small_tear_down(&s);
        }
    }
}

/* Seconds that ranking a prompt takes, the least of a few times. */
static double ranking_seconds(enum forget_policy policy, uint32_t n)
{
    double least = INFINITY;
    for (int i = 0; i < 4; i++) {
        struct small s;
        struct engine_stats st;
        struct gen_status done;
        small_set_up(&s, MODEL, 2048);
        ask_prompt(&s, n, by(policy, 0), &done);
        engine_stats(s.e, &st);
        least = fmin(least, st.evict_seconds.sum);
        small_tear_down(&s);
    }
    return least;
}

/* r-kv compares all keys with each other, which takes many times as long as
 * the choice among entries that have their ranks. Two answers that need more
 * than there is are ranked several times each before a pass. */
static void ranking_for_a_pass_is_time_of_eviction(void **state)
{
    (void)state;
    struct small s;
    struct engine_stats st;
    struct gen *g[2];
    small_set_up(&s, MODEL, 320);
    for (uint32_t i = 0; i < 2; i++) {
        int32_t p[SMALL_PROMPT];
        small_text(p, 0, i);
        g[i] = small_ask_for(&s, p, 130, 150, by(FORGET_RKV, 0));
    }
    for (uint32_t i = 0; i < 2; i++) {
        (void)toy_wait(g[i], GEN_DONE);
        gen_release(g[i]);
    }
    engine_stats(s.e, &st);
    assert_true(st.evicted[ENGINE_PRESSURE] > 500);
    assert_true(st.evict_seconds.sum > 3 * ranking_seconds(FORGET_RKV, 130));
    small_tear_down(&s);
}

/* What all queries of a prompt say is kept from its first token on: such a
 * prompt shares no beginning, and waits for another one. */
static void prompts_that_are_studied_wait_for_each_other(void **state)
{
    (void)state;
    struct small s;
    struct gen *g[3];
    struct buf text[3] = {{0}, {0}, {0}};
    small_set_up(&s, MODEL, 2048);
    for (int i = 0; i < 3; i++)
        g[i] = small_ask(&s, 200, admitted_by(FORGET_H2O, 60));
    for (int i = 0; i < 3; i++) {
        struct gen_status st = small_finish(g[i], &text[i]);
        assert_int_equal(st.cached_tokens, 0);
        assert_memory_equal(text[i].data, text[0].data, text[0].len);
        buf_fini(i > 0 ? &text[i] : &(struct buf){0});
    }
    buf_fini(&text[0]);
    /* One that is cancelled while it is read lets the next one in. */
    g[0] = small_ask(&s, SMALL_PROMPT, admitted_by(FORGET_H2O, 60));
    g[1] = small_ask(&s, 200, admitted_by(FORGET_EXPECTED_ATTENTION, 60));
    gen_cancel(g[0]);
    (void)toy_wait(g[0], GEN_DONE);
    gen_release(g[0]);
    (void)small_finish(g[1], &text[0]);
    buf_fini(&text[0]);
    small_tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_keeps_what_the_pure_policy_keeps),
        cmocka_unit_test(what_is_cached_changes_nothing_of_it),
        cmocka_unit_test(an_answer_keeps_its_cap_sinks_newest_and_pins),
        cmocka_unit_test(a_session_comes_to_rest_within_its_cap),
        cmocka_unit_test(a_prompt_beyond_its_share_is_cut_between_chunks),
        cmocka_unit_test(a_prompt_in_a_full_pool_is_ranked_as_prompts_are),
        cmocka_unit_test(what_leaves_by_any_ranking_can_be_merged),
        cmocka_unit_test(sessions_of_all_policies_share_a_pool),
        cmocka_unit_test(a_budget_that_is_never_reached_changes_nothing),
        cmocka_unit_test(ranking_at_the_end_is_time_of_eviction),
        cmocka_unit_test(ranking_for_a_pass_is_time_of_eviction),
        cmocka_unit_test(prompts_that_are_studied_wait_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
