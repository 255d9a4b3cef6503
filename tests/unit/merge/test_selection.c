#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "merge/importance.h"
#include "merge/selection.h"
#include "tests/support/golden.h"

enum { N_MAX = 300, HEADS = 3 };

static void importance_and_kept_sets_are_those_of_numpy(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "tests/golden/merge/stages.golden");
    const struct golden_array *w = golden_find(&g, "window", "f32");
    uint32_t n_heads = (uint32_t)w->dim[0], n_rows = (uint32_t)w->dim[1];
    uint32_t n = (uint32_t)w->dim[2];
    int32_t *shape = golden_copy(&g, "shape", "i32"), pos[N_MAX];
    float *window = golden_copy(&g, "window", "f32");
    float *norm = golden_copy(&g, "norm", "f32");
    double *mass = golden_copy(&g, "mass", "f64");
    double *want = golden_copy(&g, "importance", "f64");
    int32_t *per_head = golden_copy(&g, "per_head", "i32");
    int32_t *layer = golden_copy(&g, "layer", "i32");
    float m[N_MAX], score[HEADS][N_MAX], mean[N_MAX];
    const float *scores[HEADS] = {score[0], score[1], score[2]};
    uint8_t kept[N_MAX];
    assert_true(n <= N_MAX && n_heads == HEADS);
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)i;
    const struct selection s = {.n = n,
                                .pos = pos,
                                .n_seen = n,
                                .m = (uint32_t)shape[0],
                                .n_sinks = (uint32_t)shape[1],
                                .n_recent = (uint32_t)shape[2]};
    for (uint32_t h = 0; h < n_heads; h++) {
        importance_mass(window + (size_t)h * n_rows * n, n_rows, n, m);
        importance_of(m, norm + h * n, n, 5, score[h]);
        assert_int_equal(selection_of_head(&s, score[h], kept), s.m);
        for (uint32_t i = 0; i < n; i++) {
            double wanted = want[h * n + i];
            assert_true(fabs((double)m[i] - mass[h * n + i]) < 1e-5);
            assert_true(fabs((double)score[h][i] - wanted) < 1e-5);
            assert_int_equal(kept[i], per_head[h * n + i]);
        }
    }
    assert_int_equal(selection_of_layer(&s, scores, n_heads, kept, mean), s.m);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(kept[i], layer[i]);
    free(shape), free(window), free(norm), free(mass), free(want);
    free(per_head), free(layer);
    golden_close(&g);
}

static void pooling_of_short_lists_counts_zeros(void **state)
{
    (void)state;
    const float mass[2] = {3.0f, 5.0f}, norm[2] = {1.0f, 2.0f};
    float out[2];
    importance_of(mass, norm, 2, 5, out);
    assert_true(out[0] == 13.0f / 5 && out[1] == 13.0f / 5);
    importance_of(mass, norm, 1, 3, out);
    assert_true(out[0] == 1.0f);
    importance_of(mass, norm, 2, 1, out);
    assert_true(out[0] == 3.0f && out[1] == 10.0f);
    importance_of(mass, norm, 0, 5, out);
}

/* How many of the free entries that are in the choice rank above entry i. */
static uint32_t above(const float *score, const uint8_t *in, uint32_t n,
                      uint32_t i)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < n; k++)
        count +=
            in[k] && (score[k] > score[i] || (score[k] == score[i] && k > i));
    return count;
}

static uint32_t draw(struct rng *r, struct selection *s, int32_t *pos,
                     uint8_t *in)
{
    s->n = (uint32_t)rng_below(r, N_MAX);
    s->pos = pos;
    int32_t p = (int32_t)rng_below(r, 3);
    for (uint32_t i = 0; i < s->n; i++) {
        pos[i] = p;
        p += 1 + (int32_t)rng_below(r, 3);
    }
    s->n_seen = (uint32_t)p + (uint32_t)rng_below(r, 3);
    s->m = (uint32_t)rng_below(r, N_MAX + 20);
    s->n_sinks = (uint32_t)rng_below(r, 9);
    s->n_recent = (uint32_t)rng_below(r, 30);
    uint32_t n_in = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        in[i] = pos[i] >= (int32_t)s->n_sinks &&
                pos[i] < (int32_t)s->n_seen - (int32_t)s->n_recent;
        n_in += in[i];
    }
    uint32_t n_protected = s->n - n_in;
    return s->m <= n_protected         ? 0
           : s->m - n_protected < n_in ? s->m - n_protected
                                       : n_in;
}

/* Few different scores, so that many are equal. */
static void draw_scores(struct rng *r, float *score, uint32_t n)
{
    bool coarse = rng_below(r, 2) != 0;
    for (uint32_t i = 0; i < n; i++)
        score[i] = coarse ? (float)rng_below(r, 6) - 3.0f : rng_float(r) - 0.5f;
}

static void the_kept_are_those_that_a_full_ranking_keeps(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 1);
    for (int round = 0; round < 1000; round++) {
        struct selection s;
        int32_t pos[N_MAX];
        float score[N_MAX];
        uint8_t in[N_MAX], kept[N_MAX];
        uint32_t k = draw(&r, &s, pos, in), n_kept = 0;
        draw_scores(&r, score, s.n);
        uint32_t got = selection_of_head(&s, score, kept);
        for (uint32_t i = 0; i < s.n; i++) {
            bool want = !in[i] || above(score, in, s.n, i) < k;
            assert_int_equal(kept[i], want);
            n_kept += want;
        }
        assert_int_equal(got, n_kept);
    }
}

static void a_layer_keeps_the_best_of_the_union_of_its_heads(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 2);
    for (int round = 0; round < 300; round++) {
        struct selection s;
        int32_t pos[N_MAX];
        float score[HEADS][N_MAX], mean[N_MAX], scratch[N_MAX];
        const float *scores[HEADS] = {score[0], score[1], score[2]};
        uint8_t in[N_MAX], asked[N_MAX] = {0}, kept[N_MAX];
        uint32_t k = draw(&r, &s, pos, in);
        for (uint32_t h = 0; h < HEADS; h++)
            draw_scores(&r, score[h], s.n);
        for (uint32_t i = 0; i < s.n; i++) {
            for (uint32_t h = 0; h < HEADS; h++)
                asked[i] |= in[i] && above(score[h], in, s.n, i) < k;
            mean[i] = (score[0][i] + score[1][i] + score[2][i]) / 3.0f;
        }
        (void)selection_of_layer(&s, scores, HEADS, kept, scratch);
        for (uint32_t i = 0; i < s.n; i++) {
            bool best = asked[i] && above(mean, asked, s.n, i) < k;
            assert_int_equal(kept[i], !in[i] || best);
        }
    }
}

static void what_is_no_number_goes_first(void **state)
{
    (void)state;
    const float score[5] = {-INFINITY, NAN, 1.0f, INFINITY, -1.0f};
    const int32_t pos[5] = {0, 1, 2, 3, 4};
    uint8_t kept[5];
    const struct selection s = {.n = 5, .pos = pos, .n_seen = 5, .m = 4};
    const uint8_t want[5] = {1, 0, 1, 1, 1};
    assert_int_equal(selection_of_head(&s, score, kept), 4);
    assert_memory_equal(kept, want, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(importance_and_kept_sets_are_those_of_numpy),
        cmocka_unit_test(pooling_of_short_lists_counts_zeros),
        cmocka_unit_test(the_kept_are_those_that_a_full_ranking_keeps),
        cmocka_unit_test(a_layer_keeps_the_best_of_the_union_of_its_heads),
        cmocka_unit_test(what_is_no_number_goes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
