#include "tests/unit/cache/policy/view_check.h"

#include "base/workers.h"

enum { LAYERS = 3, HEADS = 2, N = 120 };

static struct policy_params params_of(const struct policy *policy,
                                      uint32_t n_entries)
{
    struct policy_params p = policy->defaults;
    p.n_entries = n_entries;
    return p;
}

static uint64_t kept_of(const struct made *m, const uint8_t *keep)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->view.n_layers * m->view.n_kv_heads; i++)
        n += made_kept(m, i, keep);
    return n;
}

static void names_lead_to_policies_and_others_to_none(void **state)
{
    (void)state;
    char all[1024] = "";
    uint32_t n = 0;
    for (; policy_at(n); n++) {
        assert_ptr_equal(policy_find(policy_at(n)->name), policy_at(n));
        strncat(all, n > 0 ? ", " : "", sizeof(all) - strlen(all) - 1);
        strncat(all, policy_at(n)->name, sizeof(all) - strlen(all) - 1);
    }
    assert_true(n > 0);
    assert_null(policy_at(n + 1));
    assert_string_equal(policy_names(), all);
    assert_null(policy_find("exact"));
    assert_null(policy_find(""));
    assert_null(policy_find("Random"));
}

static void a_policy_says_what_it_misses(void **state)
{
    (void)state;
    struct errmsg m;
    const struct policy *p = policy_find("dbtrimkv");
    assert_int_equal(policy_check(p, POLICY_LOG_BETA, true, &m), OK);
    assert_int_equal(policy_check(p, ~(uint32_t)POLICY_LOG_BETA, false, &m),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(m.text, "dbtrimkv"));
    assert_non_null(strstr(m.text, "gates"));
    for (uint32_t i = 0; policy_at(i); i++) {
        p = policy_at(i);
        assert_int_equal(policy_check(p, UINT32_MAX, false, NULL), OK);
        enum err rc = policy_check(p, UINT32_MAX, true, &m);
        assert_int_equal(rc, p->at_decode ? OK : ERR_UNSUPPORTED);
        if (rc != OK)
            assert_non_null(strstr(m.text, p->name));
    }
}

/* Whatever the method, the rules of the house hold. */
static void check_list(const struct policy *policy, const struct made *m,
                       uint32_t list, uint32_t capacity, const uint8_t *keep)
{
    const struct policy_params *d = &policy->defaults;
    uint32_t n = m->view.n_seen, sinks = d->n_sinks, recent = d->n_recent;
    assert_true(sinks >= 4 && recent >= 16);
    sinks = sinks < capacity / 2 ? sinks : capacity / 2;
    recent = recent < capacity - sinks ? recent : capacity - sinks;
    for (uint32_t e = 0; e < n; e++) {
        uint8_t k = keep[m->list[list].first + e];
        assert_true(k <= 1);
        if ((e < sinks || e + recent >= n) && !k)
            fail_msg("%s: list %u lost %u of %u, capacity %u", policy->name,
                     list, e, n, capacity);
    }
}

static void check_rules(const struct policy *policy, const struct made *m,
                        uint32_t B)
{
    struct policy_params p = params_of(policy, B);
    uint8_t *keep = calloc(m->view.n_entries, 1);
    assert_non_null(keep);
    assert_int_equal(policy_keep(policy, &m->view, &p, NULL, keep), OK);
    uint32_t lists = m->view.n_layers * m->view.n_kv_heads, n = m->view.n_seen;
    uint64_t want = (uint64_t)lists * (B < n ? B : n);
    if (kept_of(m, keep) != want)
        fail_msg("%s: %lu of %lu entries kept, B %u of %u", policy->name,
                 kept_of(m, keep), want, B, n);
    for (uint32_t i = 0; i < lists; i++) {
        uint32_t layer = i / m->view.n_kv_heads;
        check_list(policy, m, i, policy_capacity(policy, &m->view, &p, layer),
                   keep);
    }
    free(keep);
}

static void every_policy_keeps_its_budget_sinks_and_newest(void **state)
{
    (void)state;
    const uint32_t lengths[] = {1, 2, 7, 33, N},
                   budgets[] = {1, 2, 5, 20, 31, 64, 119, 500};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        struct made m;
        made_init(&m, LAYERS, HEADS, lengths[i], 3 + i);
        for (uint32_t k = 0; policy_at(k); k++)
            for (size_t b = 0; b < sizeof(budgets) / sizeof(*budgets); b++)
                check_rules(policy_at(k), &m, budgets[b]);
        made_fini(&m);
    }
}

/* Spread is a parameter of its own: PyramidKV over heads is Ada-PyramidKV. */
static void every_policy_can_be_spread_in_every_way(void **state)
{
    (void)state;
    struct made m;
    uint8_t keep[LAYERS * HEADS * N];
    made_init(&m, LAYERS, HEADS, N, 9);
    for (uint32_t k = 0; policy_at(k); k++)
        for (uint32_t B = 3; B < N; B += 29)
            for (int s = POLICY_PER_HEAD; s <= POLICY_OVER_SEQUENCE; s++) {
                struct policy_params p = params_of(policy_at(k), B);
                p.spread = (enum policy_spread)s;
                assert_int_equal(
                    policy_keep(policy_at(k), &m.view, &p, NULL, keep), OK);
                assert_int_equal(kept_of(&m, keep), LAYERS * HEADS * B);
            }
    made_fini(&m);
}

static void scores_are_the_same_for_any_number_of_threads(void **state)
{
    (void)state;
    struct made m;
    struct workers *w = NULL;
    made_init(&m, LAYERS, HEADS, N, 1);
    assert_int_equal(workers_new(&w, 3, NULL), OK);
    size_t bytes = m.view.n_entries * sizeof(float);
    float *a = malloc(bytes), *b = malloc(bytes);
    assert_true(a && b);
    for (uint32_t k = 0; policy_at(k); k++) {
        struct policy_params p = params_of(policy_at(k), 60);
        memset(a, 1, bytes);
        memset(b, 2, bytes);
        assert_int_equal(policy_score(policy_at(k), &m.view, &p, NULL, a), OK);
        assert_int_equal(policy_score(policy_at(k), &m.view, &p, w, b), OK);
        assert_memory_equal(a, b, bytes); /* so every score was written */
        for (uint64_t i = 0; i < m.view.n_entries; i++)
            assert_true(a[i] == a[i]); /* no NaN */
    }
    free(a);
    free(b);
    workers_free(w);
    made_fini(&m);
}

/* The lower entry leaves first; what may go is taken one by one from the
 * bottom, an entry of a head at its floor is skipped. */
static bool leaves_before(const struct made *m, const float *score,
                          const uint64_t a[2], const uint64_t b[2])
{
    const struct policy_list *x = &m->list[a[0]], *y = &m->list[b[0]];
    float s = score[x->first + a[1]], t = score[y->first + b[1]];
    if (s < t || s > t)
        return s < t;
    if (x->pos[a[1]] != y->pos[b[1]])
        return x->pos[a[1]] < y->pos[b[1]];
    return a[0] > b[0];
}

static void take_lowest(const struct made *m, const float *score, uint8_t *keep,
                        const struct policy_params *p, uint32_t floor_of_head)
{
    uint64_t low[2] = {UINT64_MAX, 0};
    uint32_t n = m->view.n_seen;
    for (uint64_t i = 0; i < m->view.n_layers * m->view.n_kv_heads; i++) {
        if (made_kept(m, (uint32_t)i, keep) <= floor_of_head)
            continue;
        for (uint64_t e = p->n_sinks; e + p->n_recent < n; e++) {
            const uint64_t it[2] = {i, e};
            if (keep[m->list[i].first + e] &&
                (low[0] == UINT64_MAX || leaves_before(m, score, it, low))) {
                low[0] = i;
                low[1] = e;
            }
        }
    }
    assert_true(low[0] != UINT64_MAX);
    keep[m->list[low[0]].first + low[1]] = 0;
}

/* Scores of few values, so that ties abound. */
static void coarse_scores(struct made *m, float *score, uint32_t values)
{
    for (uint64_t i = 0; i < m->view.n_entries; i++)
        score[i] = -(float)rng_below(&m->rng, values);
}

static void one_ranking_equals_taking_entries_from_the_bottom(void **state)
{
    (void)state;
    struct made m;
    const struct policy *policy = policy_find("dbtrimkv");
    for (uint64_t seed = 0; seed < 20; seed++) {
        made_init(&m, LAYERS, HEADS, 60, seed);
        struct policy_params p = params_of(policy, 26);
        p.min_head = 22 + (uint32_t)seed % 6; /* above B, too */
        uint64_t n = m.view.n_entries, want = LAYERS * HEADS * 26;
        float *score = malloc(n * sizeof(*score));
        uint8_t *keep = malloc(n), *model = malloc(n);
        assert_true(score && keep && model);
        coarse_scores(&m, score, 1 + 5 * (uint32_t)seed);
        memset(model, 1, n);
        while (kept_of(&m, model) > want)
            take_lowest(&m, score, model, &p,
                        p.min_head < 26 ? p.min_head : 26);
        assert_int_equal(policy_select(policy, &m.view, &p, score, keep), OK);
        assert_memory_equal(keep, model, n);
        free(score);
        free(keep);
        free(model);
        made_fini(&m);
    }
}

static void ties_keep_the_later_position(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 1, HEADS, 50, 1);
    struct policy_params p = params_of(policy_find("knorm"), 25);
    float *score = calloc(m.view.n_entries, sizeof(*score));
    uint8_t keep[HEADS * 50];
    assert_non_null(score);
    for (int spread = POLICY_PER_HEAD; spread <= POLICY_OVER_SEQUENCE;
         spread++) {
        p.spread = (enum policy_spread)spread;
        assert_int_equal(
            policy_select(policy_find("knorm"), &m.view, &p, score, keep), OK);
        for (uint32_t e = 0; e < 50; e++) /* 4 sinks and the last 21 */
            assert_true(keep[e] == (e < 4 || e >= 29) &&
                        keep[50 + e] == keep[e]);
    }
    free(score);
    made_fini(&m);
}

/* base = 6 of 10 after 4 protected, 12 over both heads; by rank 10 and 2.
 * f = 0.5: 10 * 0.5 + 3 = 8 and 2 * 0.5 + 3 = 4. f = 0.2: 9.2 and 2.8, so 9
 * and 3 by largest remainder (rounding each would do the same); f = 0: 10, 2;
 * f = 1: 6, 6. */
static void heads_share_a_layer_by_rank_and_floor(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 1, 2, 30, 1);
    float score[60];
    uint8_t keep[60];
    for (uint32_t e = 0; e < 30; e++) {
        score[e] = e >= 10 && e < 20 ? 100 + (float)e : (float)e;
        score[30 + e] = e == 15 || e == 16 ? 200 : -(float)e;
    }
    struct policy_params p = {.n_entries = 10,
                              .n_sinks = 2,
                              .n_recent = 2,
                              .spread = POLICY_OVER_HEADS};
    const struct {
        float f;
        uint32_t first, second;
    } want[] = {{0.5f, 8, 4}, {0.2f, 9, 3}, {0, 10, 2}, {1, 6, 6}};
    for (size_t i = 0; i < 4; i++) {
        p.floor_share = want[i].f;
        assert_int_equal(
            policy_select(policy_find("knorm"), &m.view, &p, score, keep), OK);
        assert_int_equal(made_kept(&m, 0, keep), 4 + want[i].first);
        assert_int_equal(made_kept(&m, 1, keep), 4 + want[i].second);
        assert_true(keep[19] && keep[30 + 15] && keep[30 + 16]);
    }
    made_fini(&m);
}

/* Heads want {10, 11} and {12, 13}; means are 5, 5.5, 4, 6. The best two of
 * the union by mean are 13 and 11, though the entry 20, which neither wants,
 * has the mean 7. */
static void a_layer_keeps_the_best_of_the_union_of_its_heads(void **state)
{
    (void)state;
    struct made m;
    made_init(&m, 1, 2, 30, 1);
    float score[60] = {0};
    uint8_t keep[60];
    score[10] = score[11] = 10;
    score[30 + 11] = 1;
    score[30 + 12] = 8;
    score[30 + 13] = 12;
    score[20] = 7;
    score[30 + 20] = 7;
    struct policy_params p = {.n_entries = 6,
                              .n_sinks = 2,
                              .n_recent = 2,
                              .spread = POLICY_PER_LAYER};
    assert_int_equal(
        policy_select(policy_find("knorm"), &m.view, &p, score, keep), OK);
    for (uint32_t e = 0; e < 30; e++) {
        bool want = e < 2 || e >= 28 || e == 11 || e == 13;
        assert_true(keep[e] == want && keep[30 + e] == want);
    }
    m.list[1].n--; /* not alike any more */
    assert_int_equal(
        policy_select(policy_find("knorm"), &m.view, &p, score, keep),
        ERR_INVAL);
    made_fini(&m);
}

/* algorithms.md 2, stage 2: one query head a KV head keeps a set of its own. */
static void heads_share_a_set_where_query_heads_share_them(void **state)
{
    (void)state;
    const struct policy *selkv = policy_find("selkv-window");
    assert_int_equal(policy_defaults(selkv, 1).spread, POLICY_PER_HEAD);
    assert_int_equal(policy_defaults(selkv, 2).spread, POLICY_PER_LAYER);
    struct policy_params own = policy_defaults(selkv, 2);
    policy_set_per_head(&own);
    assert_int_equal(own.spread, POLICY_PER_HEAD);
    own = policy_defaults(policy_find("adakv"), 2);
    policy_set_per_head(&own);
    assert_int_equal(own.spread, policy_find("adakv")->defaults.spread);
    for (uint32_t i = 0; policy_at(i); i++) {
        const struct policy *policy = policy_at(i);
        struct policy_params p = policy_defaults(policy, 3);
        assert_int_equal(p.spread, policy->defaults.spread);
        assert_int_equal(p.n_window, policy->defaults.n_window);
        p = policy_defaults(policy, 1);
        if (policy != selkv)
            assert_int_equal(p.spread, policy->defaults.spread);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_share_a_set_where_query_heads_share_them),
        cmocka_unit_test(names_lead_to_policies_and_others_to_none),
        cmocka_unit_test(a_policy_says_what_it_misses),
        cmocka_unit_test(every_policy_keeps_its_budget_sinks_and_newest),
        cmocka_unit_test(every_policy_can_be_spread_in_every_way),
        cmocka_unit_test(scores_are_the_same_for_any_number_of_threads),
        cmocka_unit_test(one_ranking_equals_taking_entries_from_the_bottom),
        cmocka_unit_test(ties_keep_the_later_position),
        cmocka_unit_test(heads_share_a_layer_by_rank_and_floor),
        cmocka_unit_test(a_layer_keeps_the_best_of_the_union_of_its_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
