/* What a session's policy says of it, when, and where it is written; which
 * entries leave by it is tested with whole engines (test_engine_policies.c). */
#include "small.h"

#include "cache/policy/policy.h"
#include "runtime/engine/rank.h"
#include "runtime/model/probe.h"
#include "runtime/model/view.h"

enum { TOKENS = 120, RUNNING = 2 };

struct bench {
    struct rig rig;
    struct sessions ss;
    struct lm lm;
    struct forget_options options;
    struct ranker *ranker;
    int32_t token[SMALL_PROMPT];
};

static void set_up(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    small_open_rig(&b->rig, "llama-mha-64", 2);
    assert_int_equal(
        sessions_init(&b->ss, b->rig.pool, SMALL_LAYERS, SMALL_HEADS), OK);
    lm_of_model(&b->lm, b->rig.model);
    b->options = (struct forget_options){.min_head = SMALL_LEAST,
                                         .n_sinks = SMALL_SINKS,
                                         .n_recent = SMALL_RECENT};
    const struct ranker_setup o = {.lm = &b->lm,
                                   .workers = b->rig.workers,
                                   .options = &b->options,
                                   .max_running = RUNNING,
                                   .max_context = SMALL_CONTEXT};
    assert_int_equal(ranker_new(&b->ranker, &o), OK);
    small_text(b->token, SMALL_PROMPT, 0);
}

static void tear_down(struct bench *b)
{
    ranker_free(b->ranker);
    sessions_fini(&b->ss);
    rig_close(&b->rig);
}

static struct forget_rules rules_of(enum forget_policy policy,
                                    enum forget_policy ranking)
{
    return (struct forget_rules){.policy = policy,
                                 .admission.ranking = ranking};
}

/* A running session with these rules; what it begins with is that of `from`. */
static struct session *start(struct bench *b, struct forget_rules rules,
                             struct session *from)
{
    struct session *s = NULL;
    const struct session_start o = {.from = from,
                                    .n_shared = from ? from->n_stored : 0,
                                    .token = b->token,
                                    .n = SMALL_PROMPT,
                                    .cap = SMALL_PROMPT,
                                    .rules = rules};
    assert_int_equal(session_new(&b->ss, &s, &o), OK);
    ranking_begin(b->ranker, s);
    return s;
}

static void feed(struct bench *b, struct session *s, uint32_t n)
{
    uint32_t pos = s->n_stored;
    assert_int_equal(session_reserve(&b->ss, s, pos + n), OK);
    for (uint32_t k; n > 0; n -= k, pos += k) {
        k = n < SMALL_ROWS ? n : SMALL_ROWS;
        session_append(&b->ss, s, k);
        struct model_run run = {.table = s->table,
                                .n_rows = k,
                                .pos = pos,
                                .also = ranking_probe(s)};
        const struct model_batch batch = {
            .n_rows = k, .tokens = b->token + pos, .n_runs = 1, .runs = &run};
        model_step(b->rig.model, &batch);
    }
}

static float standing(const struct session *s, uint32_t i, uint32_t e)
{
    const struct kv_list *l = &s->table->list[i];
    return pool_meta(s->table->pool, l->unit[e / KV_UNIT])
        ->standing[e % KV_UNIT];
}

/* Entries of list i that stand above a limit. */
static uint32_t above(const struct session *s, uint32_t i, float limit)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < s->table->list[i].len; e++)
        n += standing(s, i, e) > limit;
    return n;
}

static void what_a_policy_keeps_of_a_budget_stands_above_the_rest(void **state)
{
    (void)state;
    struct bench b;
    uint64_t kept = 0;
    set_up(&b);
    struct session *s = start(&b, rules_of(FORGET_SNAPKV, FORGET_SNAPKV), NULL);
    feed(&b, s, TOKENS);
    for (uint32_t i = 0; i < SMALL_LISTS; i++)
        for (uint32_t e = 0; e < TOKENS; e++)
            assert_true(standing(s, i, e) == 0);
    /* Three more than 50 a list: what is left over is nobody's. */
    const struct ranking_wish wish = {.by = FORGET_SNAPKV,
                                      .most = 50 * SMALL_LISTS + 3};
    assert_false(ranking_is_fresh(s, FORGET_SNAPKV));
    assert_true(ranker_rank(b.ranker, s, &wish, &kept));
    assert_true(ranking_is_fresh(s, FORGET_SNAPKV));
    assert_false(ranking_is_fresh(s, FORGET_KNORM));
    assert_int_equal(kept, 50 * SMALL_LISTS);
    for (uint32_t i = 0; i < SMALL_LISTS; i++) {
        assert_int_equal(above(s, i, -1.0001f), 50);
        assert_int_equal(above(s, i, -2.0001f), TOKENS);
        assert_int_equal(above(s, i, -1e-6f), 0);
    }
    ranking_end(b.ranker, s);
    tear_down(&b);
}

/* New tokens stand above all until the next time, which is 32 tokens on. */
static void a_ranking_is_good_for_a_while(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b);
    struct session *s = start(&b, rules_of(FORGET_TOVA, FORGET_TOVA), NULL);
    const struct ranking_wish wish = {.by = FORGET_TOVA};
    feed(&b, s, TOKENS);
    assert_true(ranker_rank(b.ranker, s, &wish, NULL));
    feed(&b, s, RANK_EVERY - 1);
    assert_true(ranking_is_fresh(s, FORGET_TOVA));
    assert_int_equal(above(s, 2, -1e-6f), RANK_EVERY - 1);
    feed(&b, s, 1);
    assert_false(ranking_is_fresh(s, FORGET_TOVA));
    assert_true(ranker_rank(b.ranker, s, &wish, NULL));
    assert_int_equal(above(s, 2, -1e-6f), 0);
    ranking_end(b.ranker, s);
    tear_down(&b);
}

/* At rest, after keys were turned, or where nobody kept the queries, what was
 * said before holds; policies that look at none can always be asked. */
static void without_queries_what_was_said_before_holds(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b);
    struct session *s = start(&b, rules_of(FORGET_SNAPKV, FORGET_SNAPKV), NULL);
    const struct ranking_wish wish = {.by = FORGET_SNAPKV},
                              by_keys = {.by = FORGET_KNORM};
    feed(&b, s, TOKENS);
    assert_true(ranker_rank(b.ranker, s, &wish, NULL));
    float before = standing(s, 1, 60);
    ranking_moved(s);
    assert_false(ranker_rank(b.ranker, s, &wish, NULL));
    feed(&b, s, 1);
    assert_true(ranker_rank(b.ranker, s, &wish, NULL));
    ranking_end(b.ranker, s);
    assert_null(ranking_probe(s));
    assert_false(ranker_rank(b.ranker, s, &wish, NULL));
    assert_true(before < 0 && standing(s, 1, 60) < 0);
    assert_true(ranker_rank(b.ranker, s, &by_keys, NULL));
    assert_int_equal(s->ranked_by, FORGET_KNORM);
    struct session *t =
        start(&b, rules_of(FORGET_KEYDIFF, FORGET_KEYDIFF), NULL);
    assert_null(ranking_probe(t)); /* needs none */
    tear_down(&b);
}

static void shared_units_are_left_alone_when_asked(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b);
    struct session *s = start(&b, rules_of(FORGET_KNORM, FORGET_KNORM), NULL);
    feed(&b, s, 64);
    struct session *t = start(&b, rules_of(FORGET_KNORM, FORGET_KNORM), s);
    feed(&b, t, 30);
    struct ranking_wish wish = {.by = FORGET_KNORM, .only_private = true};
    assert_true(ranker_rank(b.ranker, t, &wish, NULL));
    for (uint32_t i = 0; i < SMALL_LISTS; i++) {
        assert_int_equal(above(t, i, -1e-6f), 64);
        assert_int_equal(above(s, i, -1e-6f), 64);
    }
    wish.only_private = false;
    assert_true(ranker_rank(b.ranker, t, &wish, NULL));
    for (uint32_t i = 0; i < SMALL_LISTS; i++)
        assert_int_equal(above(s, i, -1e-6f), 0);
    tear_down(&b);
}

/* One prompt at a time is studied; then its queries go on to be kept where the
 * policy of its answer looks at some. */
static void one_prompt_at_a_time_is_studied(void **state)
{
    (void)state;
    struct bench b;
    const struct forget_rules h2o = rules_of(FORGET_SNAPKV, FORGET_H2O),
                              fastv = rules_of(FORGET_KNORM, FORGET_FASTV);
    const struct ranking_wish wish = {.by = FORGET_H2O},
                              next = {.by = FORGET_SNAPKV};
    set_up(&b);
    assert_true(ranker_can_begin(b.ranker, &h2o));
    struct session *s = start(&b, h2o, NULL);
    assert_false(ranker_can_begin(b.ranker, &h2o));
    assert_true(ranker_can_begin(b.ranker, &fastv));
    struct session *t = start(&b, fastv, NULL);
    feed(&b, s, TOKENS);
    feed(&b, t, TOKENS);
    assert_true(ranker_rank(b.ranker, s, &wish, NULL));
    ranking_prompt_ends(b.ranker, s);
    ranking_prompt_ends(b.ranker, t);
    assert_true(ranker_can_begin(b.ranker, &h2o));
    assert_null(ranking_probe(t));
    assert_false(ranker_rank(b.ranker, s, &wish, NULL));
    /* The window is that of the prompt. */
    assert_int_equal(probe_n_rows(ranking_probe(s)), 32);
    assert_true(ranker_rank(b.ranker, s, &next, NULL));
    ranking_prompt_ends(b.ranker, s); /* again: nothing */
    assert_non_null(ranking_probe(s));
    ranking_end(b.ranker, s);
    ranking_end(b.ranker, t);
    tear_down(&b);
}

static void without_a_model_nothing_is_ranked(void **state)
{
    (void)state;
    struct bench b;
    struct ranker *none = NULL;
    set_up(&b);
    const struct lm lm = {.n_vocab = 10};
    const struct ranker_setup o = {
        .lm = &lm, .options = &b.options, .max_running = 2};
    const struct ranking_wish wish = {.by = FORGET_KNORM};
    assert_int_equal(ranker_new(&none, &o), OK);
    assert_int_equal(ranker_bytes(none), 0);
    struct session *s = start(&b, rules_of(FORGET_KNORM, FORGET_KNORM), NULL);
    feed(&b, s, 64);
    assert_false(ranker_rank(none, s, &wish, NULL));
    assert_int_equal(above(s, 0, -1e-6f), 64);
    ranker_free(none);
    assert_true(ranker_bytes(b.ranker) > 0);
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_policy_keeps_of_a_budget_stands_above_the_rest),
        cmocka_unit_test(a_ranking_is_good_for_a_while),
        cmocka_unit_test(without_queries_what_was_said_before_holds),
        cmocka_unit_test(shared_units_are_left_alone_when_asked),
        cmocka_unit_test(one_prompt_at_a_time_is_studied),
        cmocka_unit_test(without_a_model_nothing_is_ranked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
