/* What a probe saw of a sequence against softmax in float64 over the queries
 * that passed and the keys that are stored. */
#include <math.h>

#include "tests/unit/runtime/model/tiny_models.h"

#include "base/rng.h"
#include "cache/compact.h"
#include "runtime/kernels/quant.h"
#include "runtime/model/probe.h"
#include "runtime/model/probe_internal.h"

enum { LEN = 150, ALL = PROBE_BAND | PROBE_COLUMNS | PROBE_FUTURE };

static void open_tiny(struct rig *r, const char *name, enum kv_type kv_type,
                      int n_threads)
{
    const struct rig_options o = {.ops = ops_best(),
                                  .n_threads = n_threads,
                                  .kv_type = kv_type,
                                  .max_rows = LEN,
                                  .max_runs = 2,
                                  .max_context = 1024,
                                  .kv_bytes = 16 << 20};
    tiny_open(r, name, &o);
}

static struct probe *probe_of(const struct rig *r, uint32_t n_window,
                              uint32_t parts)
{
    struct probe *p = NULL;
    struct probe_options o = {
        .n_window = n_window, .parts = parts, .max_tokens = LEN, .n_skip = 4};
    assert_int_equal(probe_new(&p, r->model, &o, NULL), OK);
    return p;
}

/* Seeded tokens, from position `from` on, in chunks. */
static void feed_both(const struct rig *r, struct table *t, struct probe *p,
                      struct probe *also, const uint32_t range[2],
                      uint32_t chunk)
{
    uint32_t from = range[0], to = range[1];
    int32_t tokens[LEN];
    struct rng rng;
    rng_seed(&rng, 5);
    for (uint32_t i = 0; i < LEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, r->n_vocab);
    for (uint32_t at = from; at < to; at += chunk) {
        uint32_t n = to - at < chunk ? to - at : chunk;
        struct model_run run = {
            .table = t, .n_rows = n, .pos = at, .probe = p, .also = also};
        struct model_batch b = {
            .n_rows = n, .tokens = tokens + at, .n_runs = 1, .runs = &run};
        uint64_t need = table_units_needed(t, n);
        assert_int_equal(pool_reserve(r->pool, (uint32_t)need), OK);
        assert_int_equal(table_append(t, n, (int32_t)at, (int32_t)at), need);
        model_step(r->model, &b);
    }
}

static void feed(const struct rig *r, struct table *t, struct probe *p,
                 uint32_t from, uint32_t to, uint32_t chunk)
{
    feed_both(r, t, p, NULL, (const uint32_t[2]){from, to}, chunk);
}

/* Attention rows of one list by a probe whose window is the whole sequence:
 * sum[LEN][LEN] over the group. */
static float *rows_of(const struct probe *p, const struct table *t,
                      uint32_t list, uint32_t n, float *peak)
{
    float *sum = malloc(sizeof(*sum) * n * LEN);
    void *scratch = malloc(probe_scratch_bytes(p, LEN));
    assert_true(sum && scratch);
    struct probe_rows rows = {.n = n, .stride = LEN, .sum = sum, .peak = peak};
    probe_attention(p, t, list, &rows, scratch);
    free(scratch);
    return sum;
}

/* Every row is a distribution over what it sees, times the group. */
static void rows_sum_to_the_group_and_see_no_later_token(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "llama-gqa3-64", KV_F16, 1);
    struct table *t = rig_table(&r);
    struct probe *p = probe_of(&r, LEN, 0);
    feed(&r, t, p, 0, LEN, 64);
    assert_int_equal(probe_n_seen(p), LEN);
    assert_int_equal(probe_n_rows(p), LEN);
    float *sum = rows_of(p, t, 1, LEN, NULL);
    for (uint32_t q = 0; q < LEN; q++) {
        double all = 0;
        for (uint32_t e = 0; e < LEN; e++) {
            all += (double)sum[q * LEN + e];
            assert_true(e <= q || sum[q * LEN + e] == 0);
        }
        assert_true(fabs(all - 3) < 1e-5);
    }
    free(sum);
    probe_free(p);
    table_free(t);
    rig_close(&r);
}

static void check_columns(const float *column, const float *sum)
{
    for (uint32_t e = 0; e < LEN; e++) {
        double want = 0;
        for (uint32_t q = 0; q < LEN; q++)
            want += (double)sum[q * LEN + e];
        assert_true(fabs((double)column[e] - want) < 1e-4 * (1 + want));
    }
}

static void check_band(const uint16_t *band, const float *sum)
{
    for (uint32_t q = 0; q < LEN; q++)
        for (uint32_t c = 0; c < PROBE_BUCKET; c++) {
            uint32_t e = q - q % PROBE_BUCKET + c;
            double got = (double)quant_f16_to_f32(band[q * PROBE_BUCKET + c]);
            double want = e <= q ? (double)sum[q * LEN + e] : 0;
            /* Half precision. */
            if (fabs(got - want) > 1e-3 * want + 1e-6)
                fail_msg("token %u cell %u: %g, not %g", q, c, got, want);
        }
}

static void columns_and_bands_are_sums_of_the_rows(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-mha-64", "qwen3-gqa2-128",
                                        "qwen2-gqa7-64"};
    for (int i = 0; i < 6; i++) {
        struct rig r;
        open_tiny(&r, names[i / 2], i % 2 ? KV_Q8_0 : KV_F16, 2);
        struct table *t = rig_table(&r);
        struct probe *p = probe_of(&r, LEN, ALL);
        feed(&r, t, p, 0, LEN, 50);
        for (uint32_t k = 0; k < t->n_layers * t->n_kv_heads; k++) {
            float *sum = rows_of(p, t, k, LEN, NULL);
            check_columns(probe_columns(p, k), sum);
            check_band(probe_band(p, k), sum);
            free(sum);
        }
        probe_free(p);
        table_free(t);
        rig_close(&r);
    }
}

/* The parts of a probe that a test can read, as bytes. */
static void assert_same(const struct rig *r, const struct probe *a,
                        const struct table *ta, const struct probe *b,
                        const struct table *tb)
{
    uint32_t d = model_info(r->model)->head_dim;
    uint32_t G = model_info(r->model)->n_heads / ta->n_kv_heads;
    size_t n = (size_t)G * d * (d + 1);
    float *u = malloc(sizeof(*u) * n), *v = malloc(sizeof(*v) * n);
    assert_true(u && v);
    for (uint32_t k = 0; k < ta->n_layers * ta->n_kv_heads; k++) {
        float *x = rows_of(a, ta, k, 32, NULL),
              *y = rows_of(b, tb, k, 32, NULL);
        assert_memory_equal(x, y, sizeof(*x) * 32 * LEN);
        free(x);
        free(y);
        assert_memory_equal(probe_columns(a, k), probe_columns(b, k),
                            sizeof(float) * LEN);
        assert_memory_equal(probe_band(a, k), probe_band(b, k),
                            sizeof(uint16_t) * LEN * PROBE_BUCKET);
        probe_future(a, k, 64, u, u + G * d);
        probe_future(b, k, 64, v, v + G * d);
        assert_memory_equal(u, v, sizeof(*u) * n);
    }
    free(u);
    free(v);
}

static void a_prompt_in_chunks_shows_the_bits_of_the_whole(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 32, 100};
    struct rig r;
    open_tiny(&r, "qwen3-gqa2-128", KV_F16, 2);
    struct table *t = rig_table(&r), *u = NULL;
    struct probe *p = probe_of(&r, 32, ALL), *q = probe_of(&r, 32, ALL);
    feed(&r, t, p, 0, LEN, LEN);
    for (int i = 0; i < 4; i++) {
        u = rig_table(&r);
        probe_reset(q);
        feed(&r, u, q, 0, LEN, chunks[i]);
        assert_same(&r, p, t, q, u);
        table_free(u);
    }
    /* A fork of half of it goes on as if it had seen all. */
    struct probe *half = probe_of(&r, 32, ALL);
    u = rig_table(&r);
    probe_reset(q);
    feed(&r, u, half, 0, 77, 40);
    probe_copy(q, half);
    feed(&r, u, q, 77, LEN, 40);
    assert_same(&r, p, t, q, u);
    table_free(u);
    probe_free(half);
    probe_free(p);
    probe_free(q);
    table_free(t);
    rig_close(&r);
}

/* Of different kinds, and each alone; and the rows of one taken over by the
 * other. */
static void two_probes_see_what_each_would_alone(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "qwen3-gqa2-128", KV_F16, 2);
    struct table *t = rig_table(&r), *u = rig_table(&r);
    struct probe *all = probe_of(&r, 32, ALL), *same = probe_of(&r, 32, ALL),
                 *window = probe_of(&r, 32, 0);
    feed(&r, t, all, 0, LEN, 64);
    feed_both(&r, u, same, window, (const uint32_t[2]){0, LEN}, 64);
    assert_same(&r, all, t, same, u);
    for (int i = 0; i < 2; i++) {
        float *x = rows_of(all, t, 3, 32, NULL),
              *y = rows_of(window, u, 3, 32, NULL);
        assert_memory_equal(x, y, sizeof(*x) * 32 * LEN);
        free(x);
        free(y);
        probe_reset(window);
        assert_int_equal(probe_n_rows(window), 0);
        probe_copy_window(window, all);
        assert_int_equal(probe_n_seen(window), LEN);
    }
    probe_free(all);
    probe_free(same);
    probe_free(window);
    table_free(t);
    table_free(u);
    rig_close(&r);
}

/* Production watches only the window; the model must not notice, and rows that
 * were computed before the probe came are not there. */
static void a_late_probe_has_the_rows_that_it_saw(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "llama-gqa3-64", KV_F16, 1);
    struct table *t = rig_table(&r), *u = rig_table(&r);
    struct probe *p = probe_of(&r, 32, 0), *late = probe_of(&r, 32, 0);
    feed(&r, t, p, 0, LEN, 64);
    feed(&r, u, NULL, 0, LEN - 5, 64);
    feed(&r, u, late, LEN - 5, LEN, 64);
    assert_int_equal(probe_n_rows(p), 32);
    assert_int_equal(probe_n_rows(late), 5);
    for (uint32_t k = 0; k < t->n_layers * t->n_kv_heads; k++) {
        float *x = rows_of(p, t, k, 5, NULL), *y = rows_of(late, u, k, 5, NULL);
        assert_memory_equal(x, y, sizeof(*x) * 5 * LEN);
        free(x);
        free(y);
    }
    probe_free(p);
    probe_free(late);
    table_free(t);
    table_free(u);
    rig_close(&r);
}

/* A single query counted: what is expected next is that query, one position
 * further on, and nothing else. */
static void the_future_of_one_query_is_its_next_position(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-mha-64", "qwen2-gqa7-64"};
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct probe *p = NULL;
        float mean[7 * 64], cov[7 * 64 * 64];
        open_tiny(&r, names[i], KV_F16, 1);
        struct table *t = rig_table(&r);
        struct probe_options o = {.n_window = 1,
                                  .parts = PROBE_FUTURE,
                                  .max_tokens = LEN,
                                  .n_skip = LEN - 1};
        assert_int_equal(probe_new(&p, r.model, &o, NULL), OK);
        feed(&r, t, p, 0, LEN, 64);
        /* The last list: layer 1, and the last KV head of it. */
        uint32_t list = 2 * t->n_kv_heads - 1, G = i == 0 ? 1 : 7;
        const float *q =
            probe_query_row(p, 1, LEN - 1) + (list % t->n_kv_heads) * G * 64;
        probe_future(p, list, 1, mean, cov);
        for (uint32_t g = 0; g < G; g++)
            for (uint32_t k = 0; k < 32; k++) {
                uint32_t a = g * 64 + (i == 0 ? 2 * k : k);
                uint32_t b = a + (i == 0 ? 1 : 32);
                double f = r.model->rope_freq[k], u = (double)q[a],
                       v = (double)q[b];
                assert_true(fabs((double)mean[a] - u * cos(f) + v * sin(f)) <
                            1e-5);
                assert_true(fabs((double)mean[b] - u * sin(f) - v * cos(f)) <
                            1e-5);
            }
        for (uint32_t k = 0; k < G * 64 * 64; k++)
            assert_true(fabs((double)cov[k]) < 1e-5);
        probe_free(p);
        table_free(t);
        rig_close(&r);
    }
}

/* Some entries leave and the rest move: what is seen of those that stay is
 * what the whole row said, over what all of them got. */
static void rows_over_a_compacted_list_are_over_what_stays(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "llama-mha-64", KV_F32, 1);
    struct table *t = rig_table(&r);
    struct probe *p = probe_of(&r, 32, 0);
    uint16_t *gone = calloc(pool_stats(r.pool).n_units, sizeof(*gone));
    float *peak = malloc(sizeof(*peak) * 32 * LEN),
          *peak2 = malloc(sizeof(*peak2) * 32 * LEN);
    assert_true(gone && peak && peak2);
    feed(&r, t, p, 0, LEN, 64);
    float *before = rows_of(p, t, 3, 32, peak);
    for (uint32_t u = 0; u < t->list[3].n_units; u++)
        gone[t->list[3].unit[u]] = 0x5a21;
    compact_move(t, 3, gone);
    compact_release(t, 3);
    uint32_t n = t->list[3].len;
    assert_true(n > 50 && n < LEN);
    float *after = rows_of(p, t, 3, 32, peak2);
    for (uint32_t row = 0; row < 32; row++) {
        double all = 0;
        int32_t pos[LEN];
        for (uint32_t e = 0; e < n; e++) {
            unit_id u = t->list[3].unit[e / KV_UNIT];
            pos[e] = pool_meta(r.pool, u)->pos[e % KV_UNIT];
            all += (double)before[row * LEN + (uint32_t)pos[e]];
        }
        for (uint32_t e = 0; e < n; e++) {
            uint32_t at = row * LEN + (uint32_t)pos[e];
            double want = (double)before[at] / all;
            assert_true(fabs((double)after[row * LEN + e] - want) < 1e-5);
            assert_true(peak2[row * LEN + e] == peak[at]);
        }
    }
    free(before);
    free(after);
    free(peak);
    free(peak2);
    free(gone);
    probe_free(p);
    table_free(t);
    rig_close(&r);
}

static void memory_is_as_said(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "llama-gqa3-64", KV_F16, 1);
    struct probe_options o = {.n_window = 32, .max_tokens = 1 << 20};
    const struct model_info *i = model_info(r.model);
    uint64_t window =
        (uint64_t)32 * i->n_layers * i->n_heads * i->head_dim * sizeof(float);
    uint64_t bytes = probe_bytes(r.model, &o);
    assert_true(bytes >= window && bytes < window + 4096);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_sum_to_the_group_and_see_no_later_token),
        cmocka_unit_test(columns_and_bands_are_sums_of_the_rows),
        cmocka_unit_test(a_prompt_in_chunks_shows_the_bits_of_the_whole),
        cmocka_unit_test(two_probes_see_what_each_would_alone),
        cmocka_unit_test(a_late_probe_has_the_rows_that_it_saw),
        cmocka_unit_test(the_future_of_one_query_is_its_next_position),
        cmocka_unit_test(rows_over_a_compacted_list_are_over_what_stays),
        cmocka_unit_test(memory_is_as_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
