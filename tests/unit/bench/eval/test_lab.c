/* Compressed caches: every policy keeps the same number of entries, nothing
 * taken out changes nothing, and the document stays as it was for the next
 * policy. */
#include "tests/unit/bench/eval/rig.h"

#include <stdio.h>

#include "bench/eval/fork.h"

enum { POLICIES_MAX = 64 };

/* Names of all policies there are, and of the one that knows the answers;
 * returns how many. */
static int all_policies(const char *out[POLICIES_MAX])
{
    int n = 0;
    out[n++] = "oracle";
    for (uint32_t i = 0; policy_at(i) != NULL; i++) {
        assert_true(n < POLICIES_MAX);
        out[n++] = policy_at(i)->name;
    }
    return n;
}

struct setup {
    struct rig r;
    struct lab *l;
    struct document d;
    struct figures full;
};

static void setup_init(struct setup *x, enum lab_mode mode, enum task task,
                       int n_threads)
{
    struct errmsg m = {""};
    rig_open(&x->r, n_threads);
    x->r.lab.mode = mode;
    if (lab_new(&x->l, &x->r.lab, &m) != OK)
        fail_msg("%s", m.text);
    x->d = rig_document(&x->r, task, 0);
    if (lab_open(x->l, &x->d, &x->full, &m) != OK)
        fail_msg("%s", m.text);
}

static void setup_fini(struct setup *x)
{
    lab_free(x->l);
    document_fini(&x->d);
    rig_close(&x->r);
}

static struct figures ask(struct setup *x, const char *policy, double budget)
{
    struct choice c = rig_choice(policy, budget);
    struct errmsg m = {""};
    struct figures f;
    if (lab_ask(x->l, &c, &f, &m) != OK)
        fail_msg("%s", m.text);
    return f;
}

static uint32_t n_lists(const struct setup *x)
{
    const struct model_info *i = model_info(x->r.model);
    return i->n_layers * i->n_kv_heads;
}

static bool same_metrics(const struct figures *a, const struct figures *b)
{
    return memcmp(a->metric, b->metric, sizeof(a->metric)) == 0;
}

static void equal_budgets_are_equal_entries(void **state)
{
    (void)state;
    struct setup x;
    /* The first leaves 11 entries a head, fewer than are protected. */
    static const double budgets[] = {0.01, 0.0625, 0.125, 0.25, 0.5, 1};
    const char *policies[POLICIES_MAX];
    int n_policies = all_policies(policies);
    setup_init(&x, LAB_AGNOSTIC, TASK_B2, 2);
    assert_true(x.full.n_entries == (double)(n_lists(&x) * x.d.prompt.n));
    for (int b = 0; b < 6; b++) {
        double each = floor(budgets[b] * (double)x.d.prompt.n + 0.5);
        for (int p = 0; p < n_policies; p++) {
            struct figures f = ask(&x, policies[p], budgets[b]);
            assert_true(f.n_entries == each * n_lists(&x));
            /* Key, value, bias and metadata of an entry are 20 bytes and two
             * times head_dim 16-bit numbers, and the pool's bookkeeping. */
            uint32_t entry = 4 * model_info(x.r.model)->head_dim + 20;
            assert_true(f.bytes >= f.n_entries * entry &&
                        f.bytes < f.n_entries * (entry + 2));
        }
    }
    setup_fini(&x);
}

/* A budget of everything takes nothing out: the copy answers as the original,
 * bit for bit. */
static void nothing_taken_out_changes_nothing(void **state)
{
    (void)state;
    const char *policies[POLICIES_MAX];
    int n_policies = all_policies(policies);
    for (int mode = LAB_AGNOSTIC; mode <= LAB_AWARE; mode++) {
        struct setup x;
        setup_init(&x, (enum lab_mode)mode, TASK_B2, 1);
        for (int p = 0; p < n_policies; p++) {
            struct figures f = ask(&x, policies[p], 1);
            for (int i = 0; i < METRIC_COUNT; i++)
                if (i != METRIC_KL)
                    assert_true(f.metric[i] == x.full.metric[i]);
            /* 1e-6: p is kept in 32 bits. */
            assert_true(fabs(f.metric[METRIC_KL]) < 1e-6);
            assert_true(f.metric[METRIC_AGREE] > 1 - 1e-9);
        }
        setup_fini(&x);
    }
}

/* The order of questions to the lab does not matter, nor do threads: the full
 * cache is still there, and what was seen of it for one policy does not stand
 * for what another needs. */
static void check_order(enum lab_mode mode, enum task task)
{
    struct setup x, y;
    const char *policies[POLICIES_MAX];
    int n_policies = all_policies(policies);
    setup_init(&x, mode, task, 1);
    setup_init(&y, mode, task, 3);
    for (int p = 0; p < n_policies; p++) {
        struct figures a = ask(&x, policies[p], 0.25);
        struct figures b = ask(&y, policies[n_policies - 1 - p], 0.25);
        struct figures c = ask(&x, policies[n_policies - 1 - p], 0.25);
        struct figures d = ask(&x, policies[p], 0.25);
        assert_true(same_metrics(&b, &c) && same_metrics(&a, &d));
        assert_true(a.metric[METRIC_KL] > 1e-6);
    }
    struct figures full = ask(&x, "full", 1);
    assert_true(full.metric[METRIC_NLL] == x.full.metric[METRIC_NLL]);
    setup_fini(&x);
    setup_fini(&y);
}

static void a_document_stays_as_it_was(void **state)
{
    (void)state;
    check_order(LAB_AGNOSTIC, TASK_F);
    check_order(LAB_AWARE, TASK_B2);
}

/* The next document is looked at anew: also where a policy has seen the one
 * before. */
static void documents_are_not_mixed_up(void **state)
{
    (void)state;
    for (int mode = LAB_AGNOSTIC; mode <= LAB_AWARE; mode++) {
        struct setup x, y;
        struct errmsg m = {""};
        setup_init(&x, (enum lab_mode)mode, TASK_B2, 1);
        setup_init(&y, (enum lab_mode)mode, TASK_B2, 1);
        struct figures first = ask(&x, "snapkv", 0.25);
        struct figures foreseen = ask(&x, "oracle", 0.25);
        lab_close(x.l);
        struct document next = rig_document(&x.r, TASK_B2, 1);
        assert_int_equal(lab_open(x.l, &next, &x.full, &m), OK);
        struct figures other = ask(&x, "snapkv", 0.25);
        lab_close(y.l);
        assert_int_equal(lab_open(y.l, &next, &y.full, &m), OK);
        struct figures fresh = ask(&y, "snapkv", 0.25);
        assert_true(same_metrics(&other, &fresh));
        assert_false(same_metrics(&other, &first));
        other = ask(&x, "oracle", 0.25);
        fresh = ask(&y, "oracle", 0.25);
        assert_true(same_metrics(&other, &fresh));
        assert_false(same_metrics(&other, &foreseen));
        lab_close(x.l);
        lab_close(y.l);
        document_fini(&next);
        setup_fini(&x);
        setup_fini(&y);
    }
}

/* Sink and recent are the ends of the prompt: what "no-context" lacks and
 * "streamingllm" with all but the middle has. In aware mode the question is
 * part of the prompt, so a budget counts it. */
static void the_question_is_part_of_an_aware_prompt(void **state)
{
    (void)state;
    struct setup x, y;
    setup_init(&x, LAB_AGNOSTIC, TASK_B2, 2);
    setup_init(&y, LAB_AWARE, TASK_B2, 2);
    double given = 0;
    for (uint32_t i = 0; i < y.d.n_probes; i++)
        given += (y.d.probe[i].first - 1) / (double)y.d.n_probes;
    double diff = y.full.n_entries - x.full.n_entries;
    assert_true(fabs(diff - given * n_lists(&x)) < 1e-6);
    /* With the full cache it makes no difference when the question came. */
    assert_true(fabs(x.full.metric[METRIC_NLL] - y.full.metric[METRIC_NLL]) <
                1e-12);
    struct figures a = ask(&x, "no-context", 0), b = ask(&y, "no-context", 0);
    assert_true(same_metrics(&a, &b) && a.n_entries == n_lists(&x));
    assert_true(a.metric[METRIC_NLL] != x.full.metric[METRIC_NLL]);
    setup_fini(&x);
    setup_fini(&y);
}

/* A cache of RIG_TOKENS entries a list, as the model wrote it, and a copy. */
struct cache {
    struct rig r;
    struct pool *pool;
    struct scoring *s;
    struct chooser *c;
    struct probe *probe;
    struct table *t, *copy;
    struct merge_counts merged;
    uint32_t n_lists;
};

static void cache_init_model(struct cache *x, const struct gate *gate,
                             const char *file)
{
    struct kv_layout l;
    struct errmsg m = {""};
    memset(x, 0, sizeof(*x));
    rig_open_model(&x->r, 1, file);
    assert_int_equal(model_set_gates(x->r.model, gate, &m), OK);
    const struct model_info *i = model_info(x->r.model);
    struct document d = rig_document(&x->r, TASK_A, 0);
    x->n_lists = i->n_layers * i->n_kv_heads;
    kv_layout_init(&l, KV_F16, i->head_dim);
    assert_int_equal(pool_new(&x->pool, &l, 64 << 20, &m), OK);
    assert_int_equal(scoring_new(&x->s, x->r.model, x->r.workers, 1, &m), OK);
    struct chooser_size size = {.pool = x->pool,
                                .workers = x->r.workers,
                                .model = x->r.model,
                                .max_tokens = RIG_TOKENS,
                                .n_looks = 1};
    assert_int_equal(chooser_new(&x->c, &size, &m), OK);
    assert_int_equal(
        table_new(&x->t, x->pool, i->n_layers, i->n_kv_heads, RIG_TOKENS), OK);
    struct probe_options watch = {.n_window = 32, .max_tokens = RIG_TOKENS};
    assert_int_equal(probe_new(&x->probe, x->r.model, &watch, &m), OK);
    struct scoring_run run = {
        .table = x->t, .probe = x->probe, .ids = d.prompt.id, .n = RIG_TOKENS};
    assert_int_equal(scoring_feed(x->s, &run), OK);
    assert_int_equal(fork_deep(&x->copy, x->t, RIG_TOKENS), OK);
    const struct chooser_subject of = {
        .table = x->t, .probe = x->probe, .n_seen = RIG_TOKENS};
    const uint32_t needs = POLICY_LOG_BETA | policy_find("selkv-window")->needs;
    assert_int_equal(chooser_look(x->c, 0, &of, needs), OK);
    document_fini(&d);
}

static void cache_init(struct cache *x, const struct gate *gate)
{
    cache_init_model(x, gate, "tests/golden/model/tiny/llama-gqa3-64.gguf");
}

static void cache_fini(struct cache *x)
{
    table_free(x->copy);
    table_free(x->t);
    chooser_free(x->c);
    probe_free(x->probe);
    scoring_free(x->s);
    pool_free(x->pool);
    rig_close(&x->r);
}

/* Marks the positions that list k of the copy still has. */
static void positions(const struct cache *x, uint32_t k,
                      uint8_t seen[RIG_TOKENS])
{
    memset(seen, 0, RIG_TOKENS);
    for (uint32_t e = 0; e < x->copy->list[k].len; e++)
        seen[pool_meta(x->pool, x->copy->list[k].unit[e / KV_UNIT])
                 ->pos[e % KV_UNIT]] = 1;
}

/* With the masses of one ranking: the list that has them all keeps as much as
 * the others' floors leave, where it has them. */
static void the_oracle_keeps_what_will_be_looked_at(void **state)
{
    (void)state;
    enum { EACH = 100, BEGIN = 300 };
    struct cache x;
    uint8_t seen[RIG_TOKENS];
    struct errmsg m = {""};
    cache_init(&x, NULL);
    float *mass = calloc((size_t)x.n_lists * RIG_TOKENS, sizeof(*mass));
    assert_non_null(mass);
    uint32_t room = EACH + (x.n_lists - 1) * (EACH - 20);
    assert_true(BEGIN + room < RIG_TOKENS - 16);
    for (uint32_t p = BEGIN; p < BEGIN + room; p++)
        mass[RIG_TOKENS + p] = 1; /* of list 1 */
    const struct choice how = rig_choice("oracle", 0.1);
    const struct chooser_subject of = {
        .table = x.t, .n_seen = RIG_TOKENS, .oracle = mass};
    assert_int_equal(chooser_look(x.c, 0, &of, 0), OK);
    assert_int_equal(chooser_apply(x.c, &how, EACH, x.copy, &x.merged, &m), OK);
    for (uint32_t k = 0; k < x.n_lists; k++) {
        positions(&x, k, seen);
        for (uint32_t p = 0; p < RIG_TOKENS; p++) {
            bool is_protected = p < 4 || p + 16 >= RIG_TOKENS;
            /* The later of equals; the sinks and the newest count, too. */
            bool is_best = k == 1 && p >= BEGIN + 20 && p < BEGIN + room;
            assert_int_equal(seen[p], is_protected || is_best);
        }
        assert_int_equal(x.copy->list[k].len, k == 1 ? room : 20);
    }
    free(mass);
    cache_fini(&x);
}

/* Compressed in stages: as many entries stay, nothing taken out is as good as
 * one stage, and the document is the same each time it is asked. */
static void stages_keep_the_budget(void **state)
{
    (void)state;
    struct setup x;
    static const char *const policies[] = {"streamingllm", "snapkv", "h2o",
                                           "dbtrimkv", "oracle"};
    setup_init(&x, LAB_AGNOSTIC, TASK_E3, 2);
    double each = floor(0.25 * (double)x.d.prompt.n + 0.5);
    assert_int_equal(x.d.n_stages, 4);
    for (int p = 0; p < 5; p++) {
        struct figures all = ask(&x, policies[p], 1);
        for (int i = 0; i < METRIC_COUNT; i++)
            assert_true(fabs(all.metric[i] - x.full.metric[i]) < 1e-6);
        struct figures staged = ask(&x, policies[p], 0.25);
        assert_true(staged.n_entries == each * n_lists(&x));
        struct figures again = ask(&x, policies[p], 0.25);
        assert_true(same_metrics(&staged, &again));
    }
    setup_fini(&x);
}

/* With one stage E3 is E1 and with the sinks and the newest both keep the same
 * positions, but the values of the later ones were computed without the
 * middle: the figures differ. */
static void what_left_early_is_missed(void **state)
{
    (void)state;
    struct setup x, y;
    struct errmsg m = {""};
    setup_init(&x, LAB_AGNOSTIC, TASK_E3, 1);
    setup_init(&y, LAB_AGNOSTIC, TASK_E3, 1);
    lab_close(y.l);
    y.d.n_stages = 1;
    assert_int_equal(lab_open(y.l, &y.d, &y.full, &m), OK);
    struct figures staged = ask(&x, "streamingllm", 0.125);
    struct figures once = ask(&y, "streamingllm", 0.125);
    assert_true(staged.n_entries == once.n_entries);
    assert_true(fabs(staged.metric[METRIC_KL] - once.metric[METRIC_KL]) > 1e-6);
    setup_fini(&x);
    setup_fini(&y);
}

/* What "streamingllm" leaves: the first entries and the last. */
static void kept_entries_are_sinks_and_the_newest(void **state)
{
    (void)state;
    enum { KEPT = RIG_TOKENS / 10 };
    struct cache x;
    struct errmsg m = {""};
    struct choice how = rig_choice("streamingllm", 0.1);
    cache_init(&x, NULL);
    assert_int_equal(chooser_apply(x.c, &how,
                                   choice_entries(how.budget, RIG_TOKENS),
                                   x.copy, &x.merged, &m),
                     OK);
    for (uint32_t k = 0; k < x.n_lists; k++) {
        uint8_t seen[RIG_TOKENS];
        positions(&x, k, seen);
        assert_int_equal(x.t->list[k].len, RIG_TOKENS);
        assert_int_equal(x.copy->list[k].len, KEPT);
        for (uint32_t p = 0; p < RIG_TOKENS; p++)
            assert_int_equal(seen[p], p < 4 || p >= RIG_TOKENS - (KEPT - 4));
    }
    struct table *again = NULL;
    assert_int_equal(fork_deep(&again, x.copy, RIG_TOKENS), OK);
    assert_false(x.copy->list[0].in_order);
    assert_false(again->list[0].in_order);
    table_free(again);
    cache_fini(&x);
}

/* The heads of a layer keep the same tokens, or with the setting each its own;
 * as many both ways. */
static void sets_are_of_a_layer_or_of_a_head(void **state)
{
    (void)state;
    enum { KEPT = RIG_TOKENS / 4 };
    static const char *const names[] = {"selkv-window",
                                        "selkv-window:per-head-sets"};
    for (int i = 0; i < 2; i++) {
        struct cache x;
        struct errmsg m = {""};
        struct choice how = rig_choice(names[i], 0.25);
        bool are_same = true;
        cache_init_model(&x, NULL,
                         "tests/golden/model/tiny/qwen3-gqa2-128.gguf");
        uint32_t n_heads = x.t->n_kv_heads;
        assert_int_equal(n_heads, 2);
        if (chooser_apply(x.c, &how, KEPT, x.copy, &x.merged, &m) != OK)
            fail_msg("%s", m.text);
        for (uint32_t k = 0; k < x.n_lists; k++) {
            uint8_t first[RIG_TOKENS], seen[RIG_TOKENS];
            positions(&x, k - k % n_heads, first);
            positions(&x, k, seen);
            assert_int_equal(x.copy->list[k].len, KEPT);
            are_same = are_same && memcmp(first, seen, sizeof(seen)) == 0;
        }
        assert_int_equal(are_same, i == 0);
        cache_fini(&x);
    }
}

/* RoPE sees differences of positions only. So where the newest entries are all
 * that is kept, and the question moves with them, nothing changes but the
 * rounding of keys that were turned; with sinks before a gap much does. */
static void what_stays_moves_together(void **state)
{
    (void)state;
    for (int mode = LAB_AGNOSTIC; mode <= LAB_AWARE; mode++)
        for (int sinks = 0; sinks < 2; sinks++) {
            struct setup x;
            struct errmsg m = {""};
            struct figures f[2];
            setup_init(&x, (enum lab_mode)mode, TASK_B2, 2);
            for (int i = 0; i < 2; i++) {
                struct choice c = rig_choice(
                    i == 0 ? "streamingllm" : "streamingllm:reposition", 0.25);
                c.n_sinks = sinks > 0 ? 32 : 0;
                if (lab_ask(x.l, &c, &f[i], &m) != OK)
                    fail_msg("%s", m.text);
            }
            double was = f[0].metric[METRIC_NLL], is = f[1].metric[METRIC_NLL];
            assert_true(f[0].n_entries == f[1].n_entries);
            if (sinks > 0)
                assert_true(fabs(is - was) > 1e-2);
            else
                assert_true(fabs(is - was) < 1e-3);
            /* Where nothing left, nothing moves. */
            struct figures plain = ask(&x, "keydiff", 1),
                           moved = ask(&x, "keydiff:reposition", 1);
            assert_memory_equal(&plain, &moved, sizeof(plain));
            setup_fini(&x);
        }
}

/* A budget below what is protected: sinks get half of it, the newest the rest,
 * under the server's pass as under a pure function; and a head no more than
 * its share, whatever its floor. */
static void a_small_budget_protects_less(void **state)
{
    (void)state;
    enum { KEPT = 6 };
    static const char *const names[] = {"streamingllm", "dbtrimkv"};
    for (int i = 0; i < 2; i++) {
        struct cache x;
        struct errmsg m = {""};
        struct choice how = rig_choice(names[i], (double)KEPT / RIG_TOKENS);
        cache_init(&x, NULL);
        if (chooser_apply(x.c, &how, KEPT, x.copy, &x.merged, &m) != OK)
            fail_msg("%s", m.text);
        for (uint32_t k = 0; k < x.n_lists; k++) {
            uint8_t seen[RIG_TOKENS];
            positions(&x, k, seen);
            for (uint32_t p = 0; p < RIG_TOKENS; p++)
                assert_int_equal(seen[p], p < 3 || p >= RIG_TOKENS - 3);
        }
        cache_fini(&x);
    }
}

static double score_at(const struct cache *x, uint32_t k, uint32_t p)
{
    const struct kv_meta *meta =
        pool_meta(x->pool, x->t->list[k].unit[p / KV_UNIT]);
    assert_int_equal(meta->pos[p % KV_UNIT], p);
    return (RIG_TOKENS + 1.0 - p) * (double)meta->log_beta[p % KV_UNIT];
}

/* Of the entries that nothing protects, the best that went and the worst that
 * stayed, over lists [k0, k1). */
static void check_ranking(const struct cache *x, uint32_t k0, uint32_t k1)
{
    double best_gone = -INFINITY, worst_kept = INFINITY;
    for (uint32_t k = k0; k < k1; k++) {
        uint8_t seen[RIG_TOKENS];
        positions(x, k, seen);
        for (uint32_t p = 4; p < RIG_TOKENS - 16; p++) {
            double s = score_at(x, k, p);
            if (seen[p])
                worst_kept = s < worst_kept ? s : worst_kept;
            else
                best_gone = s > best_gone ? s : best_gone;
        }
    }
    assert_true(best_gone <= worst_kept * (1 - 1e-6) ||
                best_gone - worst_kept < 1e-6);
}

/* With gates: the whole model is one ranking under dbtrimkv, and lists end
 * with different lengths; every head is its own under trimkv. */
static void gates_rank_entries(void **state)
{
    (void)state;
    struct gate *gate = NULL;
    struct rig r;
    rig_open(&r, 1);
    const struct model_info *i = model_info(r.model);
    struct gate_shape shape = {.n_layers = i->n_layers,
                               .n_embd = i->n_embd,
                               .n_kv_heads = i->n_kv_heads,
                               .width = 8,
                               .kind = GATE_RG10};
    rig_close(&r);
    assert_int_equal(gate_new(&gate, &shape, NULL), OK);
    struct rng rng;
    rng_seed(&rng, 4);
    tiny_fill(gate->p, gate_n_params(gate), 0.5f, &rng);
    static const char *const names[] = {"dbtrimkv", "trimkv"};
    for (int n = 0; n < 2; n++) {
        struct cache x;
        struct errmsg m = {""};
        struct choice how = rig_choice(names[n], 0.25);
        bool is_ragged = false;
        how.min_head = 0;
        cache_init(&x, gate);
        assert_int_equal(chooser_apply(x.c, &how,
                                       choice_entries(how.budget, RIG_TOKENS),
                                       x.copy, &x.merged, &m),
                         OK);
        assert_int_equal(table_n_entries(x.copy), x.n_lists * RIG_TOKENS / 4);
        for (uint32_t k = 0; k < x.n_lists; k++)
            is_ragged = is_ragged || x.copy->list[k].len != RIG_TOKENS / 4;
        assert_int_equal(is_ragged, n == 0);
        if (n == 0)
            check_ranking(&x, 0, x.n_lists);
        for (uint32_t k = 0; k < x.n_lists; k++)
            check_ranking(&x, k, k + 1);
        cache_fini(&x);
    }
    gate_free(gate);
}

/* The drop fate goes the way of a merge: through it nothing changes, to the
 * bit. A merge keeps as many entries and changes what they say. */
static void a_fate_changes_values_and_no_entries(void **state)
{
    (void)state;
    static const char *const policies[] = {"keydiff", "selkv-window", "h2o",
                                           "dbtrimkv"};
    for (int mode = LAB_AGNOSTIC; mode <= LAB_AWARE; mode++) {
        struct setup x;
        setup_init(&x, (enum lab_mode)mode, TASK_E3, 2);
        for (int p = 0; p < 4; p++) {
            struct errmsg m = {""};
            struct figures plain = ask(&x, policies[p], 0.25), dropped;
            struct choice c = rig_choice(policies[p], 0.25);
            c.fate = fate_find("drop");
            assert_int_equal(lab_ask(x.l, &c, &dropped, &m), OK);
            assert_memory_equal(&dropped, &plain, sizeof(plain));
            for (uint32_t f = 1; fate_at(f) != NULL; f++) {
                char name[CHOICE_NAME_MAX];
                snprintf(name, sizeof(name), "%s+%s", policies[p],
                         fate_at(f)->name);
                struct figures merged = ask(&x, name, 0.25);
                assert_true(merged.n_entries == plain.n_entries);
                assert_true(merged.routed <= 1);
                /* Without gates dbtrimkv keeps the newest: no set of keys
                 * that kvmerger finds is torn then. */
                if (merged.routed <= 0) {
                    assert_string_equal(name, "dbtrimkv+kvmerger");
                    continue;
                }
                assert_false(same_metrics(&merged, &plain));
                struct figures again = ask(&x, name, 0.25);
                assert_memory_equal(&again, &merged, sizeof(merged));
            }
        }
        setup_fini(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_budgets_are_equal_entries),
        cmocka_unit_test(nothing_taken_out_changes_nothing),
        cmocka_unit_test(a_document_stays_as_it_was),
        cmocka_unit_test(documents_are_not_mixed_up),
        cmocka_unit_test(the_question_is_part_of_an_aware_prompt),
        cmocka_unit_test(kept_entries_are_sinks_and_the_newest),
        cmocka_unit_test(sets_are_of_a_layer_or_of_a_head),
        cmocka_unit_test(what_stays_moves_together),
        cmocka_unit_test(a_small_budget_protects_less),
        cmocka_unit_test(the_oracle_keeps_what_will_be_looked_at),
        cmocka_unit_test(stages_keep_the_budget),
        cmocka_unit_test(what_left_early_is_missed),
        cmocka_unit_test(gates_rank_entries),
        cmocka_unit_test(a_fate_changes_values_and_no_entries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
