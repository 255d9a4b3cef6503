/* An engine that merges what leaves its prompts: a tiny model, whose retention
 * is drawn, so that what stays is scattered over the prompt. */
#include "tests/unit/runtime/model/model_check.h"
#include "toy.h"

enum { PROMPT = 400, ROWS = 64, LAYERS = 2, HEADS = 2 };

/* The tiny model with few tokens, and the toy's tokenizer. */
struct small {
    struct rig rig;
    struct toy toy;
    struct engine *e;
    float *logits;       /* [max_running][n_vocab of the model] */
    atomic_int n_biased; /* entries with a bias, after any step */
};

static float lambda_of(uint32_t i_list, int32_t pos)
{
    uint64_t h = toy_mix(i_list, (uint64_t)pos) % 1000;
    return -(float)h * 1e-3f;
}

static void look_at(struct small *s, const struct model_run *run)
{
    const struct table *t = run->table;
    const struct kv_layout *y = pool_layout(t->pool);
    for (uint32_t i = 0; i < LAYERS * HEADS; i++) {
        const struct kv_list *l = &t->list[i];
        for (uint32_t e = 0; e < l->len; e++) {
            struct kv_meta *m = pool_meta(t->pool, l->unit[e / KV_UNIT]);
            float bias;
            memcpy(&bias,
                   pool_data(t->pool, l->unit[e / KV_UNIT]) + y->bias +
                       4 * (size_t)(e % KV_UNIT),
                   4);
            m->log_beta[e % KV_UNIT] = lambda_of(i, m->pos[e % KV_UNIT]);
            if (bias > 0)
                atomic_fetch_add(&s->n_biased, 1);
        }
    }
}

static void small_step(void *self, const struct model_batch *batch)
{
    struct small *s = self;
    struct model_batch b = *batch;
    b.logits = s->logits;
    while (atomic_load(&s->toy.is_held)) {
        atomic_store(&s->toy.is_stuck, true);
        toy_sleep(200);
    }
    model_step(s->rig.model, &b);
    for (uint32_t r = 0; r < b.n_runs; r++)
        look_at(s, &b.runs[r]);
    for (uint32_t k = 0; k < b.n_logits; k++)
        memcpy(batch->logits + (size_t)k * TOY_VOCAB,
               b.logits + (size_t)k * s->rig.n_vocab,
               TOY_VOCAB * sizeof(float));
}

static struct forget_rules rules(enum forget_fate fate)
{
    return (struct forget_rules){
        .policy = FORGET_DBTRIMKV,
        .admission = {.ranking = FORGET_RANK_RETENTION, .fate = fate}};
}

/* The budget in tokens of an f16 pool. */
static void set_up(struct small *s, uint32_t tokens)
{
    const struct rig_options o = {
        .path = "tests/golden/model/tiny/llama-mha-64.gguf",
        .ops = ops_best(),
        .n_threads = 2,
        .kv_type = KV_F16,
        .max_rows = ROWS,
        .max_runs = 4,
        .max_context = 1024,
        .kv_bytes = 1 << 20,
    };
    struct kv_layout y;
    struct errmsg m = {""};
    memset(s, 0, sizeof(*s));
    toy_init(&s->toy);
    rig_open(&s->rig, &o);
    const struct model_info *i = model_info(s->rig.model);
    assert_true(i->n_layers == LAYERS && i->n_kv_heads == HEADS);
    s->logits = malloc(sizeof(float) * 4 * s->rig.n_vocab);
    kv_layout_init(&y, KV_F16, i->head_dim);
    struct engine_options eo = toy_options(&s->toy, tokens);
    eo.kv_type = KV_F16;
    eo.kv_bytes =
        pool_unit_bytes(&y) * LAYERS * HEADS * ((uint64_t)tokens / KV_UNIT);
    eo.workers = s->rig.workers;
    eo.max_context = 1024;
    eo.max_running = 4;
    eo.max_step_rows = ROWS;
    eo.deterministic = true;
    eo.merge = merge_options_default();
    eo.forget = (struct forget_options){.rules = rules(FORGET_DROP),
                                        .min_head = 20,
                                        .n_sinks = 4,
                                        .n_recent = 16};
    const struct lm lm = {.self = s,
                          .n_vocab = TOY_VOCAB,
                          .n_layers = LAYERS,
                          .n_kv_heads = HEADS,
                          .head_dim = i->head_dim,
                          .step = small_step,
                          .model = s->rig.model};
    if (engine_new_lm(&s->e, &eo, &lm, &m) != OK)
        fail_msg("%s", m.text);
}

static void tear_down(struct small *s)
{
    struct engine_stats st;
    engine_stats(s->e, &st);
    assert_int_equal(st.live_bytes + st.reserved_bytes, 0);
    toy_check_stats(s->e);
    engine_free(s->e);
    free(s->logits);
    rig_close(&s->rig);
    toy_fini(&s->toy);
}

/* The first n tokens of a text; `seed` changes it from token `from` on. */
static struct gen *ask_other(struct small *s, uint32_t n, uint32_t from,
                             uint64_t seed, struct forget_rules r)
{
    int32_t p[PROMPT];
    struct rng rng;
    rng_seed(&rng, 5);
    for (uint32_t i = 0; i < PROMPT; i++) {
        if (i == from)
            rng_seed(&rng, seed);
        p[i] = (int32_t)rng_below(&rng, TOY_END);
    }
    struct gen_request q = toy_request(p, n, 30);
    q.params.ignore_eos = true;
    q.forget = r;
    return toy_submit(s->e, &q);
}

static struct gen *ask(struct small *s, uint32_t n, struct forget_rules r)
{
    return ask_other(s, n, PROMPT, 0, r);
}

static struct gen_status finish(struct gen *g, struct buf *text)
{
    struct gen_status s = toy_finish(g, text);
    assert_int_equal(s.retained_entries + s.evicted_entries, s.full_entries);
    assert_true(s.merged_entries <= s.evicted_entries);
    assert_int_equal(s.completion_tokens, 30);
    gen_release(g);
    return s;
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
            got[merge] = finish(ask(&s, PROMPT, r), &text);
            engine_stats(s.e, &st[merge]);
            biased[merge] = atomic_load(&s.n_biased);
            buf_fini(&text);
            tear_down(&s);
        }
        assert_true(got[0].evicted_entries > 600);
        assert_int_equal(got[0].merged_entries, 0);
        assert_int_equal(st[0].merged + st[0].routed, 0);
        assert_int_equal(biased[0], 0);
        if (ways[k].same)
            assert_int_equal(got[1].evicted_entries, got[0].evicted_entries);
        assert_true(got[1].merged_entries > 50);
        assert_int_equal(st[1].merged, got[1].merged_entries);
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

static void a_budget_that_is_never_reached_changes_nothing(void **state)
{
    (void)state;
    struct buf exact = {0}, merged = {0};
    struct small s;
    struct forget_rules r = {.policy = FORGET_EXACT};
    set_up(&s, 1024);
    (void)finish(ask(&s, PROMPT, r), &exact);
    struct gen_status st =
        finish(ask(&s, PROMPT, rules(FORGET_MERGE)), &merged);
    assert_int_equal(st.evicted_entries + st.merged_entries, 0);
    assert_int_equal(exact.len, merged.len);
    assert_memory_equal(exact.data, merged.data, exact.len);
    buf_fini(&exact);
    buf_fini(&merged);
    tear_down(&s);
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
    (void)finish(ask(&s, 200, exact), &alone);
    tear_down(&s);
    set_up(&s, 1024);
    atomic_store(&s.toy.is_held, true);
    struct gen *g = ask(&s, 200, exact), *h[2];
    h[0] = ask_other(&s, 190, 64, 6, merge);
    h[1] = ask_other(&s, 180, 0, 7, merge);
    atomic_store(&s.toy.is_held, false);
    (void)finish(g, &beside);
    for (int i = 0; i < 2; i++) {
        struct gen_status one = finish(h[i], &other);
        st.merged_entries += one.merged_entries;
    }
    assert_true(st.merged_entries > 0);
    (void)finish(ask(&s, 200, exact), &other);
    assert_memory_equal(alone.data, beside.data, alone.len);
    assert_memory_equal(other.data + other.len - alone.len, alone.data,
                        alone.len);
    buf_fini(&alone);
    buf_fini(&beside);
    buf_fini(&other);
    tear_down(&s);
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
        g[i] = ask_other(&s, 100 + (uint32_t)i * 25, alike ? PROMPT : 0,
                         (uint64_t)i, r);
    }
    for (int i = 0; i < 12; i += 4)
        gen_cancel(g[i]);
    for (int i = 0; i < 12; i++) {
        (void)toy_wait(g[i], GEN_DONE);
        gen_release(g[i]);
    }
    tear_down(&s);
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
        st[i] = finish(ask(&s, PROMPT, rules(FORGET_MERGE)), &text[i]);
        tear_down(&s);
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
        cmocka_unit_test(a_budget_that_is_never_reached_changes_nothing),
        cmocka_unit_test(nobody_else_sees_a_merge),
        cmocka_unit_test(many_prompts_share_a_small_pool),
        cmocka_unit_test(the_same_requests_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
