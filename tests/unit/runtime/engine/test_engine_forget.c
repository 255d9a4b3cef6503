/* An engine that forgets: everybody finishes in a pool that is too small, who
 * is exact notices nothing, and every entry that left is counted once. */
#include "toy.h"

static struct gen *ask(struct engine *e, const int32_t *p, uint32_t n,
                       uint32_t max_tokens, struct forget_rules r)
{
    struct gen_request q = toy_request(p, n, max_tokens);
    q.params.ignore_eos = true;
    q.forget = r;
    return toy_submit(e, &q);
}

static struct gen_status finish(struct gen *g)
{
    struct gen_status s = toy_wait(g, GEN_DONE);
    assert_int_equal(s.retained_entries + s.evicted_entries, s.full_entries);
    assert_int_equal(s.full_entries, s.logical_tokens * TOY_LISTS);
    gen_release(g);
    return s;
}

static uint64_t all_evicted(const struct engine_stats *s)
{
    uint64_t n = 0;
    for (int i = 0; i < ENGINE_N_CAUSES; i++)
        n += s->evicted[i];
    return n;
}

static void a_budget_that_is_never_reached_changes_nothing(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[90];
    toy_set_up(&b, 8192, toy_forgetful);
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct gen_request r;
        toy_prompt(p, 90, seed);
        r = toy_request(p, 90, 40);
        r.forget = toy_rules(seed % 2 ? FORGET_DBTRIMKV : FORGET_STREAMINGLLM);
        struct gen_status s = toy_expect(toy_submit(b.e, &r), p, 90, 40);
        assert_int_equal(s.evicted_entries, 0);
        assert_int_equal(
            s.policy,
            r.forget.policy == FORGET_EXACT
                ? toy_rules(seed % 2 ? FORGET_DBTRIMKV : FORGET_STREAMINGLLM)
                      .policy
                : s.policy);
    }
    struct engine_stats st;
    engine_stats(b.e, &st);
    assert_int_equal(all_evicted(&st), 0);
    assert_int_equal(st.entries_logical, st.entries_retained);
    toy_tear_down(&b);
}

/* Three chats with one beginning: 64 tokens in common, and 20, 30 and 40 of
 * their own. */
static void gauges_count_what_is_shared_once(void **state)
{
    (void)state;
    enum { COMMON = 64, ALL = COMMON + 20 + 30 + 40 };
    struct toy_bench b;
    int32_t p[COMMON + 40];
    toy_set_up(&b, 1024, toy_forgetful);
    toy_prompt(p, COMMON + 40, 1);
    for (uint32_t i = 0; i < 3; i++) {
        p[COMMON] = (int32_t)i;
        struct gen_status s = finish(
            ask(b.e, p, COMMON + 20 + 10 * i, 0, toy_rules(FORGET_DBTRIMKV)));
        assert_int_equal(s.cached_tokens, i > 0 ? COMMON : 0);
        assert_int_equal(s.retained_entries,
                         (COMMON + 20 + 10 * i) * TOY_LISTS);
    }
    struct engine_stats st;
    engine_stats(b.e, &st);
    assert_int_equal(st.sessions_at_rest, 3);
    assert_int_equal(st.entries_retained, ALL * TOY_LISTS);
    assert_int_equal(st.entries_logical, ALL * TOY_LISTS);
    toy_tear_down(&b);
}

/* Four answers of 200 tokens where 300 fit; each is as long as was asked. */
static void a_pool_made_for_one_serves_four(void **state)
{
    (void)state;
    for (int policy = FORGET_DBTRIMKV; policy <= FORGET_STREAMINGLLM;
         policy++) {
        struct toy_bench b;
        struct gen *g[4];
        int32_t p[4][80];
        uint64_t evicted = 0;
        toy_set_up(&b, 320, toy_forgetful);
        atomic_store(&b.toy.is_held, true);
        for (uint64_t i = 0; i < 4; i++) {
            toy_prompt(p[i], 80, i);
            g[i] =
                ask(b.e, p[i], 80, 201, toy_rules((enum forget_policy)policy));
        }
        atomic_store(&b.toy.is_held, false);
        for (int i = 0; i < 4; i++) {
            struct gen_status s = finish(g[i]);
            assert_int_equal(s.finish, GEN_FINISH_LENGTH);
            assert_int_equal(s.completion_tokens, 201);
            assert_int_equal(s.logical_tokens, 280);
            assert_int_equal(s.policy, policy);
            evicted += s.evicted_entries;
        }
        struct engine_stats st;
        engine_stats(b.e, &st);
        assert_true(evicted > 0);
        /* Sessions at rest may have lost some more; no session has inherited
         * what another lost. */
        assert_true(st.evicted[ENGINE_PRESSURE] > 0);
        assert_true(all_evicted(&st) >= evicted);
        assert_true(st.entries_logical - st.entries_retained <=
                    all_evicted(&st));
        if (policy == FORGET_DBTRIMKV)
            assert_true(st.evicted_below < 0);
        toy_check_stats(b.e);
        toy_tear_down(&b);
    }
}

static void a_prompt_ten_times_the_pool_is_answered(void **state)
{
    (void)state;
    for (int policy = FORGET_DBTRIMKV; policy <= FORGET_STREAMINGLLM;
         policy++) {
        struct toy_bench b;
        static int32_t p[1000];
        toy_set_up(&b, 96, toy_forgetful);
        toy_prompt(p, 1000, 3);
        struct gen_status s = finish(
            ask(b.e, p, 1000, 50, toy_rules((enum forget_policy)policy)));
        assert_int_equal(s.completion_tokens, 50);
        assert_int_equal(s.prompt_tokens, 1000);
        struct engine_stats st;
        engine_stats(b.e, &st);
        assert_int_equal(all_evicted(&st), s.evicted_entries);
        assert_true(st.evicted[ENGINE_ADMISSION] > 0);
        assert_true(s.retained_entries <= 96 * TOY_LISTS);
        assert_true(s.kv_bytes <= st.budget_bytes);
        toy_tear_down(&b);
    }
}

/* The smallest pool that is accepted serves whoever comes. */
static void the_smallest_pool_is_enough(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[200];
    struct gen *g[6];
    toy_set_up(&b, 64, toy_forgetful);
    for (uint64_t i = 0; i < 6; i++) {
        toy_prompt(p, 200, i);
        g[i] = ask(b.e, p, 200, 60, toy_rules(FORGET_DBTRIMKV));
    }
    for (int i = 0; i < 6; i++)
        assert_int_equal(finish(g[i]).completion_tokens, 60);
    toy_tear_down(&b);
}

static const struct session *resting(struct engine *e)
{
    toy_wait_idle(e);
    return e->sessions.rest.last;
}

static bool holds(const struct session *s, uint32_t i_list, uint32_t pos)
{
    const struct kv_list *l = &s->table->list[i_list];
    for (uint32_t e = 0; e < l->len; e++) {
        const struct kv_meta *m =
            pool_meta(s->table->pool, l->unit[e / KV_UNIT]);
        if (m->pos[e % KV_UNIT] == (int32_t)pos)
            return true;
    }
    return false;
}

/* A cap: cut when the prompt is stored, then token by token. */
static void a_cap_holds_and_is_counted_by_cause(void **state)
{
    (void)state;
    enum { CAP = 50, PROMPT = 120, ANSWER = 40 };
    for (int policy = FORGET_DBTRIMKV; policy <= FORGET_STREAMINGLLM;
         policy++) {
        struct toy_bench b;
        int32_t p[PROMPT];
        struct forget_rules r = toy_rules((enum forget_policy)policy);
        r.session_tokens = CAP;
        if (policy == FORGET_TRIMKV)
            r.admission.ranking = FORGET_RANK_POLICY;
        toy_set_up(&b, 1024, toy_forgetful);
        toy_prompt(p, PROMPT, 1);
        struct gen_status s = finish(ask(b.e, p, PROMPT, ANSWER, r));
        assert_int_equal(s.retained_entries, CAP * TOY_LISTS);
        struct engine_stats st;
        engine_stats(b.e, &st);
        assert_int_equal(st.evicted[ENGINE_ADMISSION],
                         (PROMPT - CAP) * TOY_LISTS);
        assert_int_equal(st.evicted[ENGINE_CAP], (ANSWER - 1) * TOY_LISTS);
        assert_int_equal(st.evicted[ENGINE_PRESSURE], 0);
        assert_int_equal(st.retained_share.sum > 0, 1);
        const struct session *rest = resting(b.e);
        for (uint32_t i = 0; i < TOY_LISTS; i++)
            if (policy == FORGET_TRIMKV)
                assert_int_equal(rest->table->list[i].len, CAP);
        toy_tear_down(&b);
    }
}

/* Sinks and the newest, and nothing in between. */
static void streamingllm_keeps_sinks_and_the_newest(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[150];
    struct forget_rules r = toy_rules(FORGET_STREAMINGLLM);
    r.session_tokens = 40;
    r.admission.ranking = FORGET_RANK_POLICY;
    toy_set_up(&b, 1024, toy_forgetful);
    toy_prompt(p, 150, 1);
    (void)finish(ask(b.e, p, 150, 21, r));
    const struct session *s = resting(b.e);
    for (uint32_t i = 0; i < TOY_LISTS; i++)
        for (uint32_t pos = 0; pos < 170; pos++)
            assert_int_equal(holds(s, i, pos), pos < 4 || pos >= 170 - 36);
    toy_tear_down(&b);
}

/* What a session at rest has lost is what ranks lowest, by the formula and
 * a sort of its own. */
struct ranked {
    double score;
    uint32_t age, i_list, pos;
};

static int leaves_first(const void *pa, const void *pb)
{
    const struct ranked *a = pa, *b = pb;
    if (a->score != b->score)
        return a->score < b->score ? -1 : 1;
    if (a->age != b->age)
        return a->age > b->age ? -1 : 1;
    return a->i_list > b->i_list ? -1 : 1;
}

static void a_prompt_is_cut_to_its_best(void **state)
{
    (void)state;
    enum { N = 200, CAP = 60 };
    struct toy_bench b;
    int32_t p[N];
    struct ranked rank[N * TOY_LISTS];
    struct forget_rules r = toy_rules(FORGET_DBTRIMKV);
    uint32_t held[TOY_LISTS], n = 0, left = (N - CAP) * TOY_LISTS;
    r.session_tokens = CAP;
    toy_set_up(&b, 1024, toy_forgetful);
    toy_prompt(p, N, 9);
    (void)finish(ask(b.e, p, N, 0, r));
    const struct session *s = resting(b.e);
    for (uint32_t i = 0; i < TOY_LISTS; i++) {
        held[i] = N;
        for (uint32_t pos = 4; pos < N - 16; pos++) {
            uint32_t age = N + 1 - pos;
            double score = (double)age * (double)toy_lambda(i, p[pos], pos);
            rank[n++] = (struct ranked){(float)score, age, i, pos};
        }
    }
    qsort(rank, n, sizeof(*rank), leaves_first);
    for (uint32_t k = 0; k < n; k++) {
        bool goes = left > 0 && held[rank[k].i_list] > 20;
        left -= goes;
        held[rank[k].i_list] -= goes;
        assert_int_equal(holds(s, rank[k].i_list, rank[k].pos), !goes);
    }
    toy_tear_down(&b);
}

static void a_pinned_text_stays(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[300];
    struct gen_request q;
    struct forget_rules r = toy_rules(FORGET_DBTRIMKV);
    toy_set_up(&b, 256, toy_forgetful);
    toy_prompt(p, 300, 1);
    q = toy_request(p, 300, 100);
    q.params.ignore_eos = true;
    q.forget = r;
    q.pin = malloc(2 * sizeof(*q.pin));
    q.pin[0] = (struct forget_span){10, 60};
    q.pin[1] = (struct forget_span){200, 230};
    q.n_pins = 2;
    struct gen_status s = finish(toy_submit(b.e, &q));
    assert_true(s.evicted_entries > 0);
    const struct session *rest = resting(b.e);
    for (uint32_t i = 0; i < TOY_LISTS; i++)
        for (uint32_t pos = 10; pos < 60; pos++)
            assert_true(holds(rest, i, pos));
    /* More than the pool holds can't be promised. */
    q = toy_request(p, 300, 10);
    q.forget = r;
    q.pin = malloc(sizeof(*q.pin));
    q.pin[0] = (struct forget_span){0, 230};
    q.n_pins = 1;
    toy_refusal(&b, q, GEN_REFUSED_KV, ERR_INVAL, "250 tokens");
    q = toy_request(p, 300, 10);
    q.forget = r;
    q.pin = malloc(sizeof(*q.pin));
    q.pin[0] = (struct forget_span){0, 301};
    q.n_pins = 1;
    toy_refusal(&b, q, GEN_REFUSED_NOT, ERR_INVAL, "span 0");
    toy_tear_down(&b);
}

/* A chat over turns whose session is capped: only what is new is computed, and
 * what it lost is still counted as cached. Edited, it is rolled back. */
static void a_lossy_chat_goes_on_and_rolls_back(void **state)
{
    (void)state;
    for (int policy = FORGET_DBTRIMKV; policy <= FORGET_STREAMINGLLM;
         policy++) {
        struct toy_bench b;
        int32_t p[400];
        struct forget_rules r = toy_rules((enum forget_policy)policy);
        r.session_tokens = 50;
        toy_set_up(&b, 1024, toy_forgetful);
        toy_prompt(p, 400, 1);
        uint32_t stored = 0;
        for (uint32_t n = 100; n <= 400; n += 60) {
            struct gen_status s = finish(ask(b.e, p, n, 0, r));
            assert_int_equal(s.cached_tokens, stored);
            assert_int_equal(s.logical_tokens, n);
            assert_int_equal(s.retained_entries, 50 * TOY_LISTS);
            stored = n;
            struct engine_stats st;
            engine_stats(b.e, &st);
            assert_int_equal(st.sessions_at_rest, 1);
            assert_int_equal(all_evicted(&st), s.evicted_entries);
        }
        /* 400 tokens are at rest; token 398 is another one. */
        int32_t edited[400];
        memcpy(edited, p, sizeof(edited));
        edited[398] = (edited[398] + 1) % TOY_END;
        const struct session *old = resting(b.e);
        uint64_t below = table_n_entries_below(old->table, 398);
        struct gen_status s = finish(ask(b.e, edited, 399, 0, r));
        assert_int_equal(s.cached_tokens, 398);
        assert_int_equal(s.retained_entries, below + TOY_LISTS);
        /* The old history is as it was. */
        s = finish(ask(b.e, p, 400, 0, r));
        assert_int_equal(s.cached_tokens, 399);
        /* What is left of the first 250 tokens made room for 150 more: they
         * are computed again. */
        edited[250] = (edited[250] + 1) % TOY_END;
        s = finish(ask(b.e, edited, 251, 0, r));
        assert_int_equal(s.cached_tokens, 0);
        assert_int_equal(s.retained_entries, 50 * TOY_LISTS);

        /* Others' rules, and none at all, find nothing to share. */
        struct forget_rules other = r;
        other.session_tokens = 51;
        s = finish(ask(b.e, p, 200, 0, other));
        assert_int_equal(s.cached_tokens, 0);
        toy_expect(toy_ask(b.e, p, 200, 20), p, 200, 20);
        toy_tear_down(&b);
    }
}

/* Many chats of one turn leave floors behind. These do not take the place of
 * what ranks higher: without a bound a seventh of the pool was left here. */
static void spent_chats_do_not_fill_the_pool(void **state)
{
    (void)state;
    enum { POOL = 512, CHATS = 40 };
    struct toy_bench b;
    int32_t p[400];
    toy_set_up(&b, POOL, toy_forgetful);
    for (uint64_t i = 0; i < CHATS; i++) {
        toy_prompt(p, 100, i);
        (void)finish(ask(b.e, p, 100, 0, toy_rules(FORGET_DBTRIMKV)));
    }
    for (uint64_t i = 0; i < 3; i++) {
        toy_prompt(p, 400, CHATS + i);
        struct gen_status s =
            finish(ask(b.e, p, 400, 20, toy_rules(FORGET_DBTRIMKV)));
        assert_true(s.retained_entries > (uint64_t)POOL / 4 * TOY_LISTS);
    }
    toy_check_stats(b.e);
    toy_tear_down(&b);
}

/* What a long answer pushed out of its own question is not what the question
 * alone would have lost: asked again, it is computed again. */
static void a_question_that_its_answer_pushed_out_is_read_again(void **state)
{
    (void)state;
    for (int policy = FORGET_DBTRIMKV; policy <= FORGET_STREAMINGLLM;
         policy++) {
        struct toy_bench b;
        int32_t p[60];
        struct forget_rules r = toy_rules((enum forget_policy)policy);
        r.session_tokens = 40;
        toy_set_up(&b, 1024, toy_forgetful);
        toy_prompt(p, 60, 1);
        (void)finish(ask(b.e, p, 60, 80, r));
        struct gen_status s = finish(ask(b.e, p, 60, 1, r));
        assert_int_equal(s.cached_tokens, 0);
        assert_int_equal(s.retained_entries, 40 * TOY_LISTS);
        toy_tear_down(&b);
    }
}

/* A beginning that lost what the next request pins is not used, nor one that
 * kept what it does not pin. */
static void what_is_pinned_is_not_taken_from_a_lossy_beginning(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[200];
    struct forget_rules r = toy_rules(FORGET_STREAMINGLLM);
    r.session_tokens = 60;
    toy_set_up(&b, 1024, toy_forgetful);
    toy_prompt(p, 200, 1);
    (void)finish(ask(b.e, p, 150, 0, r));
    struct gen_request q = toy_request(p, 160, 0);
    q.forget = r;
    q.pin = malloc(sizeof(*q.pin));
    q.pin[0] = (struct forget_span){20, 40};
    q.n_pins = 1;
    struct gen_status s = finish(toy_submit(b.e, &q));
    assert_int_equal(s.cached_tokens, 0);
    const struct session *rest = resting(b.e);
    for (uint32_t i = 0; i < TOY_LISTS; i++)
        for (uint32_t pos = 20; pos < 40; pos++)
            assert_true(holds(rest, i, pos));
    /* Now that it is there, it is. */
    q = toy_request(p, 170, 0);
    q.forget = r;
    q.pin = malloc(sizeof(*q.pin));
    q.pin[0] = (struct forget_span){20, 40};
    q.n_pins = 1;
    s = finish(toy_submit(b.e, &q));
    assert_int_equal(s.cached_tokens, 160);
    /* Who pins nothing would have kept others in its place. */
    s = finish(ask(b.e, p, 180, 0, r));
    assert_int_equal(s.cached_tokens, 0);
    toy_tear_down(&b);
}

/* A cap holds whatever is cached: pages that another session at rest uses too
 * could not be taken out. */
static void a_cap_holds_behind_a_cached_beginning(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[200];
    struct forget_rules r = toy_rules(FORGET_DBTRIMKV);
    toy_set_up(&b, 1024, toy_forgetful);
    toy_prompt(p, 200, 1);
    (void)finish(ask(b.e, p, 120, 20, r));
    r.session_tokens = 32;
    struct gen_status s = finish(ask(b.e, p, 120, 30, r));
    assert_true(s.retained_entries <= 33 * TOY_LISTS);
    assert_true(s.evicted_entries > 0);
    toy_tear_down(&b);
}

/* Of two that agree for equally long the one that retains more is used. */
static void the_match_that_retains_more_wins(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[200], q[200];
    struct forget_rules r = toy_rules(FORGET_DBTRIMKV);
    r.session_tokens = 60;
    toy_set_up(&b, 2048, toy_forgetful);
    toy_prompt(p, 200, 1);
    toy_prompt(q, 200, 2);
    memcpy(q, p, 80 * sizeof(*p));
    q[80] = (p[80] + 1) % TOY_END;
    (void)finish(ask(b.e, q, 82, 0, r));
    /* Goes on from the first 80 of these, and loses more of them. */
    struct gen_status s = finish(ask(b.e, p, 200, 0, r));
    assert_int_equal(s.cached_tokens, 80);
    const struct session *last = resting(b.e), *first = last->prev;
    uint64_t more = table_n_entries_below(first->table, 80);
    assert_true(more > table_n_entries_below(last->table, 80));
    q[80] = (p[80] + 2) % TOY_END;
    s = finish(ask(b.e, q, 81, 0, r));
    assert_int_equal(s.cached_tokens, 80);
    assert_int_equal(s.retained_entries, more + TOY_LISTS);
    toy_tear_down(&b);
}

/* A chat that goes on from the first 80 of another's 82 tokens lacks what this
 * one had lost of them, and evicts nothing itself: the gauges lack more than
 * the counters tell. */
static void inherited_losses_are_not_evicted_again(void **state)
{
    (void)state;
    enum { N = 82, CAP = 60, LOST = (N - CAP) * TOY_LISTS };
    struct toy_bench b;
    struct engine_stats st;
    int32_t p[N];
    struct forget_rules r = toy_rules(FORGET_DBTRIMKV);
    r.session_tokens = CAP;
    toy_set_up(&b, 2048, toy_forgetful);
    toy_prompt(p, N, 1);
    struct gen_status s = finish(ask(b.e, p, N, 0, r));
    assert_int_equal(s.evicted_entries, LOST);
    p[N - 2] = (p[N - 2] + 1) % TOY_END;
    s = finish(ask(b.e, p, N, 0, r));
    assert_int_equal(s.cached_tokens, N - 2);
    assert_int_equal(s.evicted_entries, LOST);
    engine_stats(b.e, &st);
    assert_int_equal(st.entries_logical - st.entries_retained, 2 * LOST);
    assert_int_equal(all_evicted(&st), LOST);
    toy_tear_down(&b);
}

/* Three answers to one long beginning that fills nine tenths of the pool: it
 * gets smaller for all of them, and they run side by side. */
static void a_shared_beginning_gets_smaller_for_all(void **state)
{
    (void)state;
    enum { COMMON = 288, N = 3 };
    struct toy_bench b;
    struct gen *g[N];
    int32_t p[COMMON + 8];
    toy_set_up(&b, 320, toy_forgetful);
    toy_prompt(p, COMMON + 8, 1);
    atomic_store(&b.toy.delay_us, 500);
    atomic_store(&b.toy.is_held, true);
    for (uint32_t i = 0; i < N; i++) {
        p[COMMON] = (int32_t)i;
        struct gen_request q = toy_request(p, COMMON + 8, 150);
        q.params.ignore_eos = true;
        q.forget = toy_rules(i == 2 ? FORGET_STREAMINGLLM : FORGET_DBTRIMKV);
        q.pin = malloc(sizeof(*q.pin));
        q.pin[0] = (struct forget_span){40 + 10 * i, 50 + 10 * i};
        q.n_pins = 1;
        g[i] = toy_submit(b.e, &q);
    }
    atomic_store(&b.toy.is_held, false);
    uint64_t first_done = 0, last_admitted = 0;
    for (uint32_t i = 0; i < N; i++) {
        struct gen_status s = toy_wait(g[i], GEN_DONE);
        assert_int_equal(s.completion_tokens, 150);
        assert_true(i == 0 || s.cached_tokens > COMMON - ENGINE_CHUNK - 1);
        /* More than it has for itself. */
        assert_true(s.evicted_entries > 158 * TOY_LISTS);
        first_done = i == 0 || s.done_us < first_done ? s.done_us : first_done;
        last_admitted =
            s.admitted_us > last_admitted ? s.admitted_us : last_admitted;
        gen_release(g[i]);
    }
    assert_true(last_admitted < first_done);
    toy_check_stats(b.e);
    toy_tear_down(&b);
}

/* A chat far beyond the context: it is re-positioned, again and again, and goes
 * on, over turns and with another answer too. */
static void unbounded(struct engine_options *o)
{
    toy_forgetful(o);
    o->max_context = 256;
    o->forget.unbounded_context = true;
}

static void a_chat_goes_on_beyond_the_context(void **state)
{
    (void)state;
    for (int policy = FORGET_DBTRIMKV; policy <= FORGET_STREAMINGLLM;
         policy++) {
        struct toy_bench b;
        static int32_t p[3000];
        struct forget_rules r = toy_rules((enum forget_policy)policy);
        r.session_tokens = 100;
        toy_set_up(&b, 1024, unbounded);
        toy_prompt(p, 3000, 1);
        struct gen_status s = finish(ask(b.e, p, 1000, 600, r));
        assert_int_equal(s.completion_tokens, 600);
        assert_int_equal(s.logical_tokens, 1599);
        assert_true(s.retained_entries <= 101 * TOY_LISTS);
        int n = atomic_load(&b.toy.n_repositions);
        assert_true(n > 5);
        /* The answer has pushed out most of what it answered. */
        s = finish(ask(b.e, p, 1500, 1, r));
        assert_int_equal(s.cached_tokens, 0);
        s = finish(ask(b.e, p, 3000, 10, r));
        assert_int_equal(s.cached_tokens, 1500);
        assert_true(atomic_load(&b.toy.n_repositions) > n);
        struct engine_stats st;
        engine_stats(b.e, &st);
        assert_int_equal(st.evicted[ENGINE_PRESSURE], 0);
        assert_int_equal(st.entries_logical - st.entries_retained >=
                             s.evicted_entries,
                         true);

        /* Its first tokens are all there, but their keys are turned: nobody may
         * take them for what was computed. */
        int32_t q4[24];
        toy_prompt(q4, 24, 99);
        memcpy(q4, p, 4 * sizeof(*p));
        q4[4] = (p[4] + 1) % TOY_END;
        s = finish(ask(b.e, q4, 24, 0, r));
        assert_int_equal(s.cached_tokens, 0);
        assert_int_equal(s.evicted_entries, 0);
        toy_expect(ask(b.e, q4, 24, 5, r), q4, 24, 5);
        toy_expect(toy_ask(b.e, q4, 24, 5), q4, 24, 5);

        /* Not without a cap below the context, not exact, not uncut. */
        struct forget_rules bad = r;
        bad.session_tokens = 0;
        struct gen_request q = toy_request(p, 256, 1);
        q.forget = bad;
        toy_refusal(&b, q, GEN_REFUSED_CONTEXT, ERR_INVAL, "session_tokens");
        bad.session_tokens = 256;
        q = toy_request(p, 256, 1);
        q.forget = bad;
        toy_refusal(&b, q, GEN_REFUSED_CONTEXT, ERR_INVAL, "session_tokens");
        bad = r;
        bad.admission.off = true;
        q = toy_request(p, 256, 1);
        q.forget = bad;
        toy_refusal(&b, q, GEN_REFUSED_CONTEXT, ERR_INVAL, "admission none");
        q = toy_request(p, 256, 1);
        toy_refusal(&b, q, GEN_REFUSED_CONTEXT, ERR_INVAL, "policy exact");
        toy_tear_down(&b);
    }
}

/* Where the pool is smaller than the context no cap is needed; several chats
 * with one beginning share the pool, and each copies what it must move. */
static void unbounded_chats_share_a_small_pool(void **state)
{
    (void)state;
    struct toy_bench b;
    struct gen *g[4];
    int32_t p[150];
    toy_set_up(&b, 240, unbounded);
    toy_prompt(p, 150, 1);
    atomic_store(&b.toy.is_held, true);
    for (uint32_t i = 0; i < 4; i++) {
        p[149] = (int32_t)i;
        g[i] = ask(b.e, p, 150, 500, toy_rules(FORGET_DBTRIMKV));
    }
    atomic_store(&b.toy.is_held, false);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(finish(g[i]).completion_tokens, 500);
    assert_true(atomic_load(&b.toy.n_repositions) >= 4);
    toy_tear_down(&b);
}

/* Without admission a prompt is whole or waits, and is refused when it can
 * never be. */
static void a_prompt_that_may_not_be_cut_waits_for_room(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[200], q[200];
    struct forget_rules r = toy_rules(FORGET_DBTRIMKV);
    toy_set_up(&b, 256, toy_forgetful);
    toy_prompt(p, 200, 1);
    toy_prompt(q, 200, 2);
    struct gen *first = ask(b.e, p, 100, 150, r);
    r.admission.off = true;
    struct gen *second = ask(b.e, q, 180, 100, r);
    struct gen *third = ask(b.e, p, 170, 1, r);
    assert_int_equal(finish(first).completion_tokens, 150);
    assert_int_equal(finish(second).completion_tokens, 100);
    struct gen_status s = finish(third);
    assert_int_equal(s.evicted_entries, 0);
    struct engine_stats st;
    engine_stats(b.e, &st);
    assert_int_equal(st.evicted[ENGINE_ADMISSION], 0);
    struct gen_request big = toy_request(p, 200, 1);
    big.n_tokens = 200;
    big.forget = r;
    toy_expect(toy_submit(b.e, &big), p, 200, 1);
    static int32_t more[300];
    toy_prompt(more, 300, 4);
    big = toy_request(more, 260, 1);
    big.forget = r;
    toy_refusal(&b, big, GEN_REFUSED_KV, ERR_INVAL, "260 tokens");
    /* Fewer than the pool's 256, but not with a unit of 16 to go on with and
     * a chunk of 32, whose first unit is that one: 240 + 16 + 16. */
    big = toy_request(more, 240, 1);
    big.forget = r;
    toy_refusal(&b, big, GEN_REFUSED_KV, ERR_INVAL, "for 272 tokens");
    toy_tear_down(&b);
}

/* An exact request takes its room from those that forget, and is refused with
 * the numbers where it can never have it. */
static void exact_requests_are_served_beside_others(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[3][200];
    struct forget_rules r = toy_rules(FORGET_DBTRIMKV);
    toy_set_up(&b, 256, toy_forgetful);
    for (uint64_t i = 0; i < 3; i++)
        toy_prompt(p[i], 200, i);
    struct gen *g[2] = {ask(b.e, p[0], 100, 300, r),
                        ask(b.e, p[1], 100, 300, r)};
    toy_expect(toy_ask(b.e, p[2], 60, 30), p[2], 60, 30);
    for (int i = 0; i < 2; i++)
        assert_int_equal(finish(g[i]).completion_tokens, 300);
    /* Kept in full while the others come and go. */
    toy_expect(toy_ask(b.e, p[2], 60, 30), p[2], 60, 30);
    toy_refusal(&b, toy_request(p[0], 200, 100), GEN_REFUSED_KV, ERR_INVAL,
                "holds 256");
    struct gen_request capped = toy_request(p[0], 100, 10);
    capped.forget.session_tokens = 90;
    toy_refusal(&b, capped, GEN_REFUSED_KV, ERR_INVAL, "cap of 90");
    toy_tear_down(&b);
}

/* Everything at once, with cancels; who is exact must get the true answer. */
struct order {
    struct gen *g;
    int32_t token[300];
    uint32_t n, max_tokens;
    bool is_exact, is_cancelled;
};

static void place(struct engine *e, struct order *o, struct rng *r)
{
    static int32_t common[300];
    struct gen_request q;
    toy_prompt(common, 300, 77);
    uint32_t shared = rng_below(r, 3)   ? 0
                      : rng_below(r, 2) ? (uint32_t)rng_below(r, 120)
                                        : 110;
    o->n = shared + 1 + (uint32_t)rng_below(r, rng_below(r, 6) ? 60 : 180);
    o->max_tokens = (uint32_t)rng_below(r, 50);
    toy_prompt(o->token, o->n, rng_next(r));
    memcpy(o->token, common, shared * sizeof(*common));
    q = toy_request(o->token, o->n, o->max_tokens);
    q.forget = toy_rules((enum forget_policy)rng_below(r, 4));
    /* Often equal rules, so that lossy beginnings are shared. */
    if (rng_below(r, 2) == 0)
        q.forget = toy_rules(FORGET_DBTRIMKV);
    else
        q.forget.admission.ranking = (enum forget_policy)rng_below(r, 2);
    if (rng_below(r, 5) == 0)
        q.forget.session_tokens = (uint32_t)rng_below(r, 80);
    o->is_exact = q.forget.policy == FORGET_EXACT;
    if (o->is_exact)
        q.forget.session_tokens = 0;
    q.forget.admission.off = rng_below(r, 10) == 0 && o->n < 100;
    if (!o->is_exact && rng_below(r, 5) == 0) {
        uint32_t from = (uint32_t)rng_below(r, o->n);
        q.pin = malloc(sizeof(*q.pin));
        q.pin[0] = (struct forget_span){
            from,
            from + 1 +
                (uint32_t)rng_below(r, o->n - from < 30 ? o->n - from : 30)};
        q.n_pins = 1;
    }
    struct errmsg m;
    enum gen_refusal why;
    o->is_cancelled = rng_below(r, 8) == 0;
    if (engine_submit(e, &q, &o->g, &why, &m) != OK) {
        assert_int_equal(why, GEN_REFUSED_KV);
        gen_request_fini(&q);
        o->g = NULL;
    }
}

static void collect(struct order *o)
{
    if (!o->g)
        return;
    if (o->is_cancelled) {
        gen_release(o->g);
    } else if (o->is_exact && o->max_tokens > 0) {
        struct gen_status s = toy_expect(o->g, o->token, o->n, o->max_tokens);
        assert_int_equal(s.evicted_entries, 0);
    } else {
        struct gen_status s = finish(o->g);
        assert_true(s.finish == GEN_FINISH_STOP ||
                    s.finish == GEN_FINISH_LENGTH);
    }
}

static void random_requests_all_finish_in_tiny_pools(void **state)
{
    (void)state;
    enum { ROUNDS = 40, ORDERS = 24 };
    static struct order o[ORDERS];
    struct rng r;
    rng_seed(&r, 5);
    for (int round = 0; round < ROUNDS; round++) {
        struct toy_bench b;
        uint32_t pool = 96 + 16 * (uint32_t)rng_below(&r, 30);
        toy_set_up(&b, pool, toy_forgetful);
        /* Half of the pools are large ones for their engine. */
        b.e->slice = round % 2 ? ENGINE_SLICE : 1 + rng_below(&r, 600);
        for (int i = 0; i < ORDERS; i++) {
            place(b.e, &o[i], &r);
            if (rng_below(&r, 4) == 0)
                toy_sleep(300);
        }
        for (int i = 0; i < ORDERS; i++)
            collect(&o[i]);
        toy_wait_idle(b.e);
        struct engine_stats st;
        engine_stats(b.e, &st);
        assert_int_equal(st.live_bytes, 0);
        assert_int_equal(st.reserved_bytes, 0);
        toy_check_stats(b.e);
        toy_tear_down(&b);
    }
}

/* The same requests in the same order, with one thread and with three. */
static void one_thread(struct engine_options *o)
{
    toy_forgetful(o);
    o->workers = NULL;
}

static void run_all(struct buf *text, struct engine_stats *st,
                    void (*change)(struct engine_options *))
{
    struct toy_bench b;
    struct gen *g[8];
    int32_t p[150];
    toy_set_up(&b, 256, change);
    atomic_store(&b.toy.is_held, true);
    for (uint64_t i = 0; i < 8; i++) {
        struct forget_rules r =
            toy_rules(i % 4 == 3 ? FORGET_STREAMINGLLM : FORGET_DBTRIMKV);
        r.session_tokens = i % 4 == 2 ? 45 : 0;
        toy_prompt(p, 150, i);
        g[i] = ask(b.e, p, 30 + (uint32_t)i * 15, 100, r);
        /* So that the first step has seen the first alone. */
        if (i == 0)
            toy_hold(&b.toy);
    }
    atomic_store(&b.toy.is_held, false);
    for (int i = 0; i < 8; i++) {
        (void)toy_finish(g[i], text);
        gen_release(g[i]);
    }
    engine_stats(b.e, st);
    toy_tear_down(&b);
}

static void the_number_of_threads_leaves_no_trace(void **state)
{
    (void)state;
    struct buf one = {0}, three = {0};
    struct engine_stats s1, s3;
    run_all(&one, &s1, one_thread);
    run_all(&three, &s3, toy_forgetful);
    assert_true(one.len > 500);
    assert_string_equal(one.data, three.data);
    assert_memory_equal(s1.evicted, s3.evicted, sizeof(s1.evicted));
    assert_true(s1.evicted[ENGINE_PRESSURE] > 0);
    assert_true(s1.evicted_below == s3.evicted_below);
    buf_fini(&one);
    buf_fini(&three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_that_is_never_reached_changes_nothing),
        cmocka_unit_test(gauges_count_what_is_shared_once),
        cmocka_unit_test(a_pool_made_for_one_serves_four),
        cmocka_unit_test(a_prompt_ten_times_the_pool_is_answered),
        cmocka_unit_test(the_smallest_pool_is_enough),
        cmocka_unit_test(a_cap_holds_and_is_counted_by_cause),
        cmocka_unit_test(streamingllm_keeps_sinks_and_the_newest),
        cmocka_unit_test(a_prompt_is_cut_to_its_best),
        cmocka_unit_test(a_pinned_text_stays),
        cmocka_unit_test(a_lossy_chat_goes_on_and_rolls_back),
        cmocka_unit_test(spent_chats_do_not_fill_the_pool),
        cmocka_unit_test(a_question_that_its_answer_pushed_out_is_read_again),
        cmocka_unit_test(what_is_pinned_is_not_taken_from_a_lossy_beginning),
        cmocka_unit_test(a_cap_holds_behind_a_cached_beginning),
        cmocka_unit_test(the_match_that_retains_more_wins),
        cmocka_unit_test(inherited_losses_are_not_evicted_again),
        cmocka_unit_test(a_shared_beginning_gets_smaller_for_all),
        cmocka_unit_test(a_chat_goes_on_beyond_the_context),
        cmocka_unit_test(unbounded_chats_share_a_small_pool),
        cmocka_unit_test(a_prompt_that_may_not_be_cut_waits_for_room),
        cmocka_unit_test(exact_requests_are_served_beside_others),
        cmocka_unit_test(random_requests_all_finish_in_tiny_pools),
        cmocka_unit_test(the_number_of_threads_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
