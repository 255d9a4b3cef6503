#include "tests/unit/cache/policy/view_check.h"

#include "base/workers.h"
#include "cache/policy/standing.h"

enum { LAYERS = 3, HEADS = 2, LISTS = LAYERS * HEADS, N = 120 };

struct ranked {
    struct made made;
    struct policy_params params;
    float *score, *standing;
    uint8_t *keep;
    uint64_t n_kept;
};

static void rank(struct ranked *r, const struct policy *policy, uint32_t B,
                 uint64_t seed)
{
    made_init(&r->made, LAYERS, HEADS, N, seed);
    const struct policy_view *v = &r->made.view;
    r->params = policy->defaults;
    r->params.n_entries = B;
    r->score = calloc(v->n_entries, sizeof(*r->score));
    r->standing = calloc(v->n_entries, sizeof(*r->standing));
    r->keep = calloc(v->n_entries, 1);
    assert_true(r->score && r->standing && r->keep);
    assert_int_equal(policy_score(policy, v, &r->params, NULL, r->score), OK);
    assert_int_equal(policy_select(policy, v, &r->params, r->score, r->keep),
                     OK);
    assert_int_equal(
        policy_standing(v, &r->params, r->score, r->keep, NULL, r->standing),
        OK);
    r->n_kept = 0;
    for (uint64_t i = 0; i < v->n_entries; i++)
        r->n_kept += r->keep[i];
}

static void end(struct ranked *r)
{
    free(r->score);
    free(r->standing);
    free(r->keep);
    made_fini(&r->made);
}

/* So taking as many of the lowest as the policy does takes the same ones. */
static void what_a_policy_keeps_stands_above_what_it_does_not(void **state)
{
    (void)state;
    for (uint32_t k = 0; policy_at(k); k++)
        for (uint32_t B = 21; B < N; B += 33) {
            struct ranked r;
            float lowest_kept = 0, highest_gone = -2;
            rank(&r, policy_at(k), B, 7 + k);
            for (uint64_t i = 0; i < r.made.view.n_entries; i++) {
                float s = r.standing[i];
                assert_true(s >= -2 && s < 0);
                if (r.keep[i])
                    lowest_kept = fminf(lowest_kept, s);
                else
                    highest_gone = fmaxf(highest_gone, s);
            }
            assert_true(lowest_kept >= -1 && highest_gone < -1);
            end(&r);
        }
}

/* Entries of a list that stand above a limit. */
static uint32_t above(const struct ranked *r, uint32_t list, float limit)
{
    const struct policy_list *l = &r->made.list[list];
    uint32_t n = 0;
    for (uint32_t e = 0; e < l->n; e++)
        n += r->standing[l->first + e] > limit;
    return n;
}

/* Without a budget a standing is a place in the list, the layer or both. */
static void those_who_share_a_budget_are_ranked_together(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        bool by_list, by_layer;
    } ways[] = {{"snapkv", true, true},
                {"selkv-window", true, true},
                {"adakv", false, true},
                {"dbtrimkv", false, false}};
    for (size_t k = 0; k < sizeof(ways) / sizeof(*ways); k++) {
        struct ranked r;
        bool by_list = true, by_layer = true;
        rank(&r, policy_find(ways[k].policy), 60, k);
        assert_int_equal(policy_standing(&r.made.view, &r.params, r.score, NULL,
                                         NULL, r.standing),
                         OK);
        /* A hair below each tenth, so that rounding is of no consequence. */
        for (uint32_t t = 1; t <= 10; t++) {
            float limit = -(float)t / 10 - 1e-4f;
            uint32_t all = 0;
            for (uint32_t i = 0; i < LISTS; i += HEADS) {
                uint32_t n0 = above(&r, i, limit), n1 = above(&r, i + 1, limit);
                by_list = by_list && n0 == N * t / 10 && n1 == n0;
                by_layer = by_layer && n0 + n1 == HEADS * N * t / 10;
                all += n0 + n1;
            }
            assert_int_equal(all, LISTS * N * t / 10);
        }
        assert_int_equal(by_list, ways[k].by_list);
        assert_int_equal(by_layer, ways[k].by_layer);
        end(&r);
    }
}

/* Heads that keep the same positions let go of the same ones. */
static void positions_of_a_layer_stand_alike(void **state)
{
    (void)state;
    struct ranked r;
    rank(&r, policy_find("selkv-window"), 40, 3);
    for (uint32_t i = 0; i < LISTS; i += HEADS)
        assert_memory_equal(r.standing + r.made.list[i].first,
                            r.standing + r.made.list[i + 1].first,
                            N * sizeof(float));
    /* Where the lists are not alike each is ranked by itself. */
    r.made.list[1].n--;
    assert_int_equal(policy_standing(&r.made.view, &r.params, r.score, NULL,
                                     NULL, r.standing),
                     OK);
    assert_int_equal(above(&r, 0, -0.5f), N / 2 - 1);
    assert_int_equal(above(&r, 1, -0.5f), (N - 1) / 2);
    end(&r);
}

/* By hand: scores 3, 9, 9, 1 of positions 0 to 3. The best is position 2, as
 * the later of equals. */
static void equal_scores_leave_the_later_one_higher(void **state)
{
    (void)state;
    const float score[4] = {3, 9, 9, 1};
    const uint8_t keep[4] = {0, 1, 1, 1};
    const int32_t pos[4] = {0, 1, 2, 3};
    const struct policy_list list = {.n = 4, .pos = pos};
    const struct policy_view v = {
        .n_layers = 1, .n_kv_heads = 1, .list = &list, .n_entries = 4};
    const struct policy_params p = {.n_entries = 3};
    const float want[4] = {-1.75f, -0.5f, -0.25f, -1};
    float got[4];
    assert_int_equal(policy_standing(&v, &p, score, keep, NULL, got), OK);
    assert_memory_equal(got, want, sizeof(want));
}

static void standings_are_the_same_for_any_number_of_threads(void **state)
{
    (void)state;
    struct ranked r;
    struct workers *w = NULL;
    float got[LISTS * N];
    assert_int_equal(workers_new(&w, 3, NULL), OK);
    rank(&r, policy_find("adakv"), 40, 3);
    assert_int_equal(
        policy_standing(&r.made.view, &r.params, r.score, r.keep, w, got), OK);
    assert_memory_equal(got, r.standing, sizeof(got));
    end(&r);
    workers_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_policy_keeps_stands_above_what_it_does_not),
        cmocka_unit_test(those_who_share_a_budget_are_ranked_together),
        cmocka_unit_test(positions_of_a_layer_stand_alike),
        cmocka_unit_test(equal_scores_leave_the_later_one_higher),
        cmocka_unit_test(standings_are_the_same_for_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
