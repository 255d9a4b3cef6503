/* An engine that merges what leaves its prompts. */
#include "small.h"

static struct forget_rules rules(enum forget_fate fate)
{
    return (struct forget_rules){
        .policy = FORGET_DBTRIMKV,
        .admission = {.ranking = FORGET_RANK_RETENTION, .fate = fate}};
}

static void set_up(struct small *s, uint32_t tokens)
{
    small_set_up(s, "llama-mha-64", tokens);
}

/* Of a prompt that is cut to its cap as a whole, and one that is cut between
 * chunks, the same number of entries leave, merged or not. */
static void what_leaves_is_merged_and_counted(void **state)
{
    (void)state;
    static const struct {
        uint32_t pool, cap;
        bool same; /* number of entries, merged or not */
    } ways[] = {{2048, 100, true}, {192, 0, false}};
    for (int k = 0; k < 2; k++) {
        struct gen_status got[2];
        struct engine_stats st[2];
        int biased[2];
        for (int merge = 0; merge < 2; merge++) {
            struct small s;
            struct buf text = {0};
            struct forget_rules r = rules(merge ? FORGET_MERGE : FORGET_DROP);
            r.session_tokens = ways[k].cap;
            set_up(&s, ways[k].pool);
            got[merge] = small_finish(small_ask(&s, SMALL_PROMPT, r), &text);
            engine_stats(s.e, &st[merge]);
            biased[merge] = atomic_load(&s.n_biased);
            buf_fini(&text);
            small_tear_down(&s);
        }
        assert_true(got[0].evicted_entries > 600);
        assert_int_equal(got[0].merged_entries, 0);
        assert_int_equal(st[0].merged + st[0].routed, 0);
        assert_int_equal(biased[0], 0);
        if (ways[k].same)
            assert_int_equal(got[1].evicted_entries, got[0].evicted_entries);
        assert_true(got[1].merged_entries > 50);
        assert_int_equal(st[1].merged, got[1].merged_entries);
        assert_int_equal(st[1].routed, got[1].routed_entries);
        assert_true(st[1].merge_log_ratio == got[1].merge_log_ratio);
        assert_int_equal(llround(st[1].merge_seconds.sum * 1e6),
                         got[1].merge_us);
        assert_true(st[1].routed >= st[1].merged);
        assert_true(st[1].routed <= st[1].evicted[ENGINE_ADMISSION]);
        assert_true(st[1].merge_log_ratio > 0);
        assert_true(biased[1] > 0);
        uint64_t n_merges = 0;
        for (uint32_t i = 0; i <= st[1].merge_seconds.n; i++)
            n_merges += st[1].merge_seconds.count[i];
        assert_int_equal(n_merges > 1, ways[k].cap == 0);
        assert_true(n_merges > 0);
    }
}

/* Conversations at rest that fill the pool give their part, and what the prompt
 * itself has to give is merged as in an empty pool. */
static void what_leaves_is_merged_in_a_full_pool_too(void **state)
{
    (void)state;
    static const uint32_t caps[] = {0, 1000, 150};
    for (int k = 0; k < 3; k++) {
        struct small s;
        struct buf text = {0};
        struct engine_stats st[2];
        struct forget_rules r = rules(FORGET_MERGE);
        r.session_tokens = caps[k];
        set_up(&s, 192);
        for (uint64_t i = 0; i < 4; i++) {
            engine_stats(s.e, &st[0]);
            struct gen_status got =
                small_finish(small_ask_other(&s, SMALL_PROMPT, 0, i, r), &text);
            engine_stats(s.e, &st[1]);
            assert_true(got.merged_entries > 50);
            assert_int_equal(st[1].merged - st[0].merged, got.merged_entries);
            assert_true(st[1].evicted[ENGINE_ADMISSION] -
                            st[0].evicted[ENGINE_ADMISSION] >=
                        got.routed_entries);
            assert_true(i == 0 || st[1].evicted[ENGINE_PRESSURE] > 0);
        }
        buf_fini(&text);
        small_tear_down(&s);
    }
}

static void a_budget_that_is_never_reached_changes_nothing(void **state)
{
    (void)state;
    struct buf exact = {0}, merged = {0};
    struct small s;
    struct forget_rules r = {.policy = FORGET_EXACT};
    set_up(&s, 1024);
    (void)small_finish(small_ask(&s, SMALL_PROMPT, r), &exact);
    struct gen_status st =
        small_finish(small_ask(&s, SMALL_PROMPT, rules(FORGET_MERGE)), &merged);
    assert_int_equal(st.evicted_entries + st.merged_entries, 0);
    assert_int_equal(exact.len, merged.len);
    assert_memory_equal(exact.data, merged.data, exact.len);
    buf_fini(&exact);
    buf_fini(&merged);
    small_tear_down(&s);
}

/* What was read for others says nothing of who looked at whom: a prompt that is
 * merged is read from its first token on, and comes out as in an empty engine.
 */
static void what_is_cached_is_merged_as_if_it_were_not(void **state)
{
    (void)state;
    struct buf fresh = {0}, cached = {0}, other = {0};
    struct forget_rules merge = rules(FORGET_MERGE);
    const struct forget_rules exact = {.policy = FORGET_EXACT};
    struct gen_status st[2];
    struct small s;
    int32_t p[SMALL_PROMPT];
    small_text(p, SMALL_PROMPT, 0);
    merge.session_tokens = 100;
    set_up(&s, 2048);
    st[0] = small_finish(small_ask(&s, SMALL_PROMPT, merge), &fresh);
    small_tear_down(&s);
    set_up(&s, 2048);
    struct gen *whole = small_ask_for(&s, p, SMALL_PROMPT - 1, 0, exact);
    assert_int_equal(toy_finish(whole, &other).evicted_entries, 0);
    gen_release(whole);
    st[1] = small_finish(small_ask(&s, SMALL_PROMPT, merge), &cached);
    small_tear_down(&s);
    assert_true(st[0].merged_entries > 50);
    assert_int_equal(st[1].cached_tokens, 0);
    assert_int_equal(st[1].merged_entries, st[0].merged_entries);
    assert_int_equal(st[1].routed_entries, st[0].routed_entries);
    assert_int_equal(fresh.len, cached.len);
    assert_memory_equal(fresh.data, cached.data, fresh.len);
    buf_fini(&fresh);
    buf_fini(&cached);
    buf_fini(&other);
}

/* An exact answer beside prompts that merge is what it is alone, also where
 * they share its beginning. */
static void nobody_else_sees_a_merge(void **state)
{
    (void)state;
    struct buf alone = {0}, beside = {0}, other = {0};
    struct forget_rules exact = {.policy = FORGET_EXACT};
    struct forget_rules merge = rules(FORGET_MERGE);
    struct gen_status st = {0};
    struct small s;
    merge.session_tokens = 60;
    set_up(&s, 1024);
    (void)small_finish(small_ask(&s, 200, exact), &alone);
    small_tear_down(&s);
    set_up(&s, 1024);
    atomic_store(&s.toy.is_held, true);
    struct gen *g = small_ask(&s, 200, exact), *h[2];
    h[0] = small_ask_other(&s, 190, 64, 6, merge);
    h[1] = small_ask_other(&s, 180, 0, 7, merge);
    atomic_store(&s.toy.is_held, false);
    (void)small_finish(g, &beside);
    for (int i = 0; i < 2; i++) {
        struct gen_status one = small_finish(h[i], &other);
        st.merged_entries += one.merged_entries;
    }
    assert_true(st.merged_entries > 0);
    (void)small_finish(small_ask(&s, 200, exact), &other);
    assert_memory_equal(alone.data, beside.data, alone.len);
    assert_memory_equal(other.data + other.len - alone.len, alone.data,
                        alone.len);
    buf_fini(&alone);
    buf_fini(&beside);
    buf_fini(&other);
    small_tear_down(&s);
}

/* More prompts than there are probes, in a pool that is too small for them,
 * and some are cancelled while they are read: all end, nothing is left. */
static void fill_a_small_pool(bool alike)
{
    struct small s;
    struct gen *g[12];
    set_up(&s, 256);
    for (int i = 0; i < 12; i++) {
        struct forget_rules r = rules(i % 3 ? FORGET_MERGE : FORGET_DROP);
        r.session_tokens = i % 4 == 1 ? 50 : 0;
        if (i % 5 == 4)
            r.policy = FORGET_STREAMINGLLM;
        g[i] = small_ask_other(&s, 100 + (uint32_t)i * 25,
                               alike ? SMALL_PROMPT : 0, (uint64_t)i, r);
    }
    for (int i = 0; i < 12; i += 4)
        gen_cancel(g[i]);
    for (int i = 0; i < 12; i++) {
        (void)toy_wait(g[i], GEN_DONE);
        gen_release(g[i]);
    }
    small_tear_down(&s);
}

/* Texts that begin alike, so that what is shared must shrink, and others. */
static void many_prompts_share_a_small_pool(void **state)
{
    (void)state;
    fill_a_small_pool(false);
    fill_a_small_pool(true);
}

static void the_same_requests_give_the_same_bytes(void **state)
{
    (void)state;
    struct buf text[2] = {{0}, {0}};
    struct gen_status st[2];
    for (int i = 0; i < 2; i++) {
        struct small s;
        set_up(&s, 192);
        st[i] = small_finish(small_ask(&s, SMALL_PROMPT, rules(FORGET_MERGE)),
                             &text[i]);
        small_tear_down(&s);
    }
    assert_int_equal(st[0].merged_entries, st[1].merged_entries);
    assert_int_equal(text[0].len, text[1].len);
    assert_memory_equal(text[0].data, text[1].data, text[0].len);
    buf_fini(&text[0]);
    buf_fini(&text[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_leaves_is_merged_and_counted),
        cmocka_unit_test(what_leaves_is_merged_in_a_full_pool_too),
        cmocka_unit_test(a_budget_that_is_never_reached_changes_nothing),
        cmocka_unit_test(what_is_cached_is_merged_as_if_it_were_not),
        cmocka_unit_test(nobody_else_sees_a_merge),
        cmocka_unit_test(many_prompts_share_a_small_pool),
        cmocka_unit_test(the_same_requests_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
