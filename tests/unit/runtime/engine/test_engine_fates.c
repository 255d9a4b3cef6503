/* Fates beside `merge`, the options of merging, and who may go on from a prompt
 * that was compressed. */
#include "small.h"

static struct forget_rules rules(enum forget_fate fate)
{
    return (struct forget_rules){
        .policy = FORGET_DBTRIMKV,
        .admission = {.ranking = FORGET_RANK_RETENTION, .fate = fate}};
}

/* Only reads the first n tokens of a text, another one from `from` on; returns
 * what was cached. */
static uint32_t read_prompt(struct small *s, uint32_t n, uint32_t from,
                            struct forget_rules r, struct gen_status *st)
{
    int32_t p[SMALL_PROMPT];
    struct buf none = {0};
    small_text(p, from, 9);
    struct gen *g = small_ask_for(s, p, n, 0, r);
    *st = toy_finish(g, &none);
    gen_release(g);
    buf_fini(&none);
    return st->cached_tokens;
}

/* ----------------------------------------------------------- other fates */

struct outcome {
    struct gen_status gen;
    struct engine_stats engine;
    struct buf text;
    int n_biased, n_bad, bias_max, n_pairs, n_unlike, n_apart, decode_pos;
};

/* One prompt, read and answered by an engine of its own. */
static struct outcome run_on(const char *model, const struct small_setting *set,
                             struct forget_rules r)
{
    struct small s;
    struct outcome o = {.text = {0}};
    small_set_up_as(&s, model, set);
    o.gen = small_finish(small_ask(&s, SMALL_PROMPT, r), &o.text);
    engine_stats(s.e, &o.engine);
    o.n_biased = atomic_load(&s.n_biased);
    o.n_bad = atomic_load(&s.n_bad);
    o.bias_max = atomic_load(&s.bias_max);
    o.n_pairs = atomic_load(&s.n_pairs);
    o.n_unlike = atomic_load(&s.n_unlike);
    o.n_apart = atomic_load(&s.n_apart);
    o.decode_pos = atomic_load(&s.decode_pos);
    small_tear_down(&s);
    return o;
}

static struct outcome run_alone(const struct small_setting *set,
                                struct forget_rules r)
{
    return run_on("llama-mha-64", set, r);
}

static bool same_text(const struct outcome *a, const struct outcome *b)
{
    return a->text.len == b->text.len &&
           memcmp(a->text.data, b->text.data, a->text.len) == 0;
}

/* Cut as a whole and between chunks; twice, which gives the same. */
static void every_fate_merges_what_leaves(void **state)
{
    (void)state;
    for (int f = FORGET_MERGE; f < FORGET_N_FATES; f++) {
        for (int chunks = 0; chunks < 2; chunks++) {
            struct merge_options o = merge_options_default();
            const struct small_setting set = {.tokens = chunks ? 192 : 2048,
                                              .watch_columns = true,
                                              .merge = &o};
            struct forget_rules r = rules((enum forget_fate)f);
            /* Keys of a drawn model are not alike. */
            o.min_cosine = 0;
            r.session_tokens = chunks ? 0 : 100;
            struct outcome a = run_alone(&set, r), b = run_alone(&set, r);
            assert_true(a.gen.evicted_entries > 600);
            assert_true(a.gen.routed_entries > 50);
            assert_true(a.gen.merged_entries > 50);
            assert_int_equal(a.gen.merged_entries, a.engine.merged);
            assert_int_equal(a.gen.routed_entries, a.engine.routed);
            assert_int_equal(a.n_bad, 0);
            assert_int_equal(a.n_biased > 0, f == FORGET_MERGE);
            assert_int_equal(a.gen.merge_log_ratio > 0, f == FORGET_MERGE);
            assert_int_equal(a.gen.merged_entries, b.gen.merged_entries);
            assert_true(same_text(&a, &b));
            buf_fini(&a.text);
            buf_fini(&b.text);
        }
    }
}

/* What a server does not watch it cannot merge by; it drops. */
static void without_columns_their_fates_drop(void **state)
{
    (void)state;
    const struct small_setting set = {.tokens = 2048};
    struct outcome o[2];
    static const enum forget_fate fates[] = {FORGET_DROP, FORGET_CAM};
    for (int i = 0; i < 2; i++) {
        struct forget_rules r = rules(fates[i]);
        r.session_tokens = 100;
        o[i] = run_alone(&set, r);
        assert_int_equal(o[i].gen.merged_entries, 0);
        assert_true(o[i].gen.evicted_entries > 600);
    }
    assert_true(same_text(&o[0], &o[1]));
    buf_fini(&o[0].text);
    buf_fini(&o[1].text);
}

/* --------------------------------------------------------------- options */

static struct outcome merge_with(const struct merge_options *o)
{
    const struct small_setting set = {.tokens = 2048, .merge = o};
    struct forget_rules r = rules(FORGET_MERGE);
    r.session_tokens = 100;
    struct outcome got = run_alone(&set, r);
    assert_int_equal(got.n_bad, 0);
    assert_true(got.gen.routed_entries > 50);
    return got;
}

static void guards_and_bias_can_be_switched_off(void **state)
{
    (void)state;
    struct merge_options o = merge_options_default();
    struct outcome on = merge_with(&o);
    assert_true(on.bias_max <= (int)(0.5e6 * log(4.0)) + 1);
    o.min_mass = 0;
    o.max_ratio = INFINITY;
    struct outcome off = merge_with(&o);
    assert_int_equal(off.gen.routed_entries, on.gen.routed_entries);
    assert_true(off.gen.merged_entries > on.gen.merged_entries);
    assert_true(off.gen.merge_log_ratio > on.gen.merge_log_ratio);
    assert_true(off.bias_max > on.bias_max);
    o = merge_options_default();
    o.alpha = 0;
    struct outcome plain = merge_with(&o);
    assert_int_equal(plain.n_biased, 0);
    assert_int_equal(plain.gen.merged_entries, on.gen.merged_entries);
    buf_fini(&on.text);
    buf_fini(&off.text);
    buf_fini(&plain.text);
}

/* With all gates closed merging is dropping, to the last bit. */
static void closed_gates_answer_as_dropping_does(void **state)
{
    (void)state;
    struct merge_options o = merge_options_default();
    const struct small_setting set = {.tokens = 2048};
    struct forget_rules r = rules(FORGET_DROP);
    o.min_mass = INFINITY;
    r.session_tokens = 100;
    struct outcome closed = merge_with(&o), drop = run_alone(&set, r);
    assert_int_equal(closed.gen.merged_entries, 0);
    assert_int_equal(closed.gen.evicted_entries, drop.gen.evicted_entries);
    assert_true(same_text(&closed, &drop));
    buf_fini(&closed.text);
    buf_fini(&drop.text);
}

static void heads_of_a_layer_can_share_one_ratio(void **state)
{
    (void)state;
    struct merge_options o = merge_options_default();
    struct outcome own = merge_with(&o);
    o.mean_ratio = true;
    struct outcome mean = merge_with(&o);
    assert_true(own.n_pairs > 20 && own.n_unlike > 0);
    assert_true(mean.n_pairs > 20);
    assert_int_equal(mean.n_unlike, 0);
    assert_int_equal(own.gen.merged_entries, mean.gen.merged_entries);
    assert_true(own.gen.merge_log_ratio == mean.gen.merge_log_ratio);
    buf_fini(&own.text);
    buf_fini(&mean.text);
}

/* The paper's set of a layer, merged by the paper's R, and a head's own. */
static void sets_are_of_a_layer_or_of_a_head(void **state)
{
    (void)state;
    struct merge_options o = merge_options_default();
    o.mean_ratio = true;
    for (int i = 0; i < 4; i++) {
        bool is_mha = i / 2, is_asked = i % 2;
        const struct small_setting set = {
            .tokens = 2048, .per_head_sets = is_asked, .merge = &o};
        struct forget_rules r = {.policy = FORGET_SELKV_WINDOW,
                                 .admission.fate = FORGET_MERGE,
                                 .session_tokens = 100};
        struct outcome got =
            run_on(is_mha ? "llama-mha-64" : "qwen3-gqa2-128", &set, r);
        assert_true(got.gen.merged_entries > 20);
        assert_int_equal(got.n_unlike, 0);
        assert_int_equal(got.n_apart > 0, is_mha || is_asked);
        buf_fini(&got.text);
    }
}

/* The longest list has at most all that the cap allows. */
static void what_stays_can_be_moved_together(void **state)
{
    (void)state;
    for (int on = 0; on < 2; on++) {
        const struct small_setting set = {.tokens = 2048, .reposition = on};
        struct forget_rules r = rules(FORGET_MERGE);
        r.session_tokens = 60;
        struct outcome o = run_alone(&set, r);
        assert_int_equal(o.n_bad, 0);
        assert_true(o.gen.merged_entries > 50);
        assert_int_equal(o.gen.logical_tokens, SMALL_PROMPT + SMALL_ANSWER - 1);
        if (on)
            assert_in_range(o.decode_pos, 60, 60 * SMALL_LISTS + SMALL_ANSWER);
        else
            assert_int_equal(o.decode_pos, SMALL_PROMPT + SMALL_ANSWER - 2);
        buf_fini(&o.text);
    }
    /* A prompt that lost nothing stays where it is. */
    const struct small_setting set = {.tokens = 2048, .reposition = true};
    struct outcome o = run_alone(&set, rules(FORGET_MERGE));
    assert_int_equal(o.gen.evicted_entries, 0);
    assert_int_equal(o.decode_pos, SMALL_PROMPT + SMALL_ANSWER - 2);
    buf_fini(&o.text);
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    (void)state;
    for (int f = FORGET_MERGE; f < FORGET_N_FATES; f += 4) {
        struct outcome o[2];
        for (int i = 0; i < 2; i++) {
            const struct small_setting set = {
                .tokens = 192, .n_threads = i ? 3 : 1, .watch_columns = true};
            o[i] = run_alone(&set, rules((enum forget_fate)f));
        }
        assert_int_equal(o[0].gen.merged_entries, o[1].gen.merged_entries);
        assert_true(o[0].gen.merged_entries > 50);
        assert_true(same_text(&o[0], &o[1]));
        buf_fini(&o[0].text);
        buf_fini(&o[1].text);
    }
}

/* ----------------------------------------------------- reuse of beginnings */

static struct forget_rules changed_rules(int i, struct forget_rules r)
{
    switch (i) {
    case 0:
        r.admission.fate = FORGET_DROP;
        break;
    case 1:
        r.admission.fate = FORGET_LOOKM;
        break;
    case 2:
        r.session_tokens++;
        break;
    case 3:
        r.policy = FORGET_TRIMKV;
        break;
    case 4:
        r.admission.ranking = FORGET_SNAPKV;
        break;
    case 5:
        r.admission.off = true;
        break;
    default:
        r = (struct forget_rules){.policy = FORGET_EXACT};
    }
    return r;
}

/* Any one difference, in either direction, and nothing is shared. What lost
 * nothing serves all whose entries are dropped. */
static void a_compressed_prompt_serves_equal_rules_only(void **state)
{
    (void)state;
    enum { DIFFERENCES = 7 };
    const struct small_setting set = {.tokens = 2048};
    struct forget_rules base = rules(FORGET_MERGE);
    struct gen_status st;
    base.session_tokens = 100;
    for (int i = -1; i < DIFFERENCES; i++) {
        for (int back = 0; back < 2; back++) {
            struct small s;
            struct forget_rules other = base;
            if (i >= 0)
                other = changed_rules(i, base);
            small_set_up_as(&s, "llama-mha-64", &set);
            (void)read_prompt(&s, 300, SMALL_PROMPT, back ? other : base, &st);
            bool is_lossy = st.evicted_entries > 0;
            uint32_t n =
                read_prompt(&s, 400, SMALL_PROMPT, back ? base : other, &st);
            /* An exact one is not cut, and what is merged is read anew. */
            assert_int_equal(is_lossy, !back || i < DIFFERENCES - 1);
            assert_int_equal(n, i < 0 ? 300 : 0);
            small_tear_down(&s);
        }
    }
    struct small s;
    small_set_up_as(&s, "llama-mha-64", &set);
    (void)read_prompt(&s, 300, SMALL_PROMPT,
                      (struct forget_rules){.policy = FORGET_EXACT}, &st);
    base.admission.fate = FORGET_DROP;
    assert_int_equal(read_prompt(&s, 400, SMALL_PROMPT, base, &st), 300);
    assert_true(st.evicted_entries > 0);
    small_tear_down(&s);
}

static void an_uncompressed_prompt_serves_all(void **state)
{
    (void)state;
    for (int f = FORGET_DROP; f < FORGET_N_FATES; f++) {
        const struct small_setting set = {.tokens = 2048,
                                          .watch_columns = true};
        struct small s;
        struct gen_status st;
        struct forget_rules r = rules((enum forget_fate)f);
        small_set_up_as(&s, "llama-mha-64", &set);
        (void)read_prompt(&s, 300, SMALL_PROMPT, rules(FORGET_DROP), &st);
        assert_int_equal(st.evicted_entries, 0);
        r.session_tokens = 400;
        assert_int_equal(read_prompt(&s, 350, SMALL_PROMPT, r, &st), 300);
        r = (struct forget_rules){.policy = FORGET_EXACT};
        assert_int_equal(read_prompt(&s, 400, SMALL_PROMPT, r, &st), 350);
        assert_int_equal(st.evicted_entries, 0);
        small_tear_down(&s);
    }
}

/* A continued prompt is compressed again, with what is known of its beginning
 * from the new tokens alone. */
static void a_compressed_prompt_is_continued(void **state)
{
    (void)state;
    for (int f = FORGET_MERGE; f < FORGET_N_FATES; f++) {
        const struct small_setting set = {.tokens = 2048,
                                          .watch_columns = true};
        struct small s;
        struct gen_status first, second;
        struct forget_rules r = rules((enum forget_fate)f);
        r.session_tokens = 100;
        small_set_up_as(&s, "llama-mha-64", &set);
        assert_int_equal(read_prompt(&s, 300, SMALL_PROMPT, r, &first), 0);
        assert_int_equal(read_prompt(&s, 400, SMALL_PROMPT, r, &second), 300);
        assert_true(second.merged_entries > first.merged_entries);
        assert_true(second.routed_entries > first.routed_entries);
        assert_int_equal(atomic_load(&s.n_bad), 0);
        /* Another text from 350 on: that part is not compressed again. */
        uint32_t n = read_prompt(&s, 390, 350, r, &second);
        assert_true(f == FORGET_MERGE ? n % MERGE_BUCKET == 0 : n == 0);
        small_tear_down(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fate_merges_what_leaves),
        cmocka_unit_test(without_columns_their_fates_drop),
        cmocka_unit_test(guards_and_bias_can_be_switched_off),
        cmocka_unit_test(closed_gates_answer_as_dropping_does),
        cmocka_unit_test(heads_of_a_layer_can_share_one_ratio),
        cmocka_unit_test(sets_are_of_a_layer_or_of_a_head),
        cmocka_unit_test(what_stays_can_be_moved_together),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes),
        cmocka_unit_test(a_compressed_prompt_serves_equal_rules_only),
        cmocka_unit_test(an_uncompressed_prompt_serves_all),
        cmocka_unit_test(a_compressed_prompt_is_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
