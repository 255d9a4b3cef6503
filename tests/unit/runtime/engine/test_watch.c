/* Rows that follow their entries, and merges that use the right ones: against
 * a probe that keeps the rows of the whole prompt by position. */
#include "tests/unit/runtime/model/model_check.h"

#include <math.h>

#include "base/rng.h"
#include "cache/compact.h"
#include "merge/apply.h"
#include "merge/band.h"
#include "runtime/engine/rank.h"
#include "runtime/engine/watch.h"
#include "runtime/model/probe.h"

enum { TOKENS = 300, CHUNK = 64, CONTEXT = 512, N_LISTS_MAX = 8 };

struct bench {
    struct rig rig;
    struct sessions ss;
    struct lm lm;
    struct merge_options options;
    struct watches *ws;
    uint32_t n_lists;
    int32_t token[TOKENS];
    uint16_t *gone; /* [n_units] */
};

static void set_up(struct bench *b, uint32_t max_prompts)
{
    const struct rig_options o = {
        .path = "tests/golden/model/tiny/qwen3-gqa2-128.gguf",
        .ops = ops_best(),
        .n_threads = 2,
        .kv_type = KV_F16,
        .max_rows = CHUNK,
        .max_runs = 1,
        .max_context = CONTEXT,
        .kv_bytes = 8 << 20,
    };
    struct rng r;
    rig_open(&b->rig, &o);
    const struct model_info *i = model_info(b->rig.model);
    assert_int_equal(
        sessions_init(&b->ss, b->rig.pool, i->n_layers, i->n_kv_heads), OK);
    lm_of_model(&b->lm, b->rig.model);
    b->options = merge_options_default();
    const struct watches_setup setup = {.lm = &b->lm,
                                        .sessions = &b->ss,
                                        .options = &b->options,
                                        .max_rows = CHUNK,
                                        .max_prompts = max_prompts,
                                        .max_columns = CONTEXT};
    assert_int_equal(watches_new(&b->ws, &setup), OK);
    b->n_lists = sessions_n_lists(&b->ss);
    assert_true(b->n_lists <= N_LISTS_MAX);
    rng_seed(&r, 1);
    for (int k = 0; k < TOKENS; k++)
        b->token[k] = (int32_t)rng_below(&r, b->rig.n_vocab);
    b->gone = calloc(pool_stats(b->rig.pool).n_units, sizeof(*b->gone));
    assert_non_null(b->gone);
}

static void tear_down(struct bench *b)
{
    free(b->gone);
    watches_free(b->ws);
    sessions_fini(&b->ss);
    rig_close(&b->rig);
}

static struct session *start_by(struct bench *b, enum forget_policy ranking,
                                enum forget_fate fate)
{
    struct session *s = NULL;
    const struct session_start o = {
        .token = b->token,
        .n = TOKENS,
        .cap = TOKENS,
        .rules = {.policy = FORGET_DBTRIMKV,
                  .admission = {.ranking = ranking, .fate = fate}}};
    assert_int_equal(session_new(&b->ss, &s, &o), OK);
    return s;
}

static struct session *start(struct bench *b)
{
    return start_by(b, FORGET_EXACT, FORGET_MERGE);
}

static void feed(struct bench *b, struct session *s, uint32_t n,
                 struct probe *probe)
{
    uint32_t pos = s->n_stored;
    assert_int_equal(session_reserve(&b->ss, s, pos + n), OK);
    session_append(&b->ss, s, n);
    struct model_run run = {.table = s->table,
                            .n_rows = n,
                            .pos = pos,
                            .probe = probe,
                            .also = ranking_probe(s)};
    struct model_batch batch = {
        .n_rows = n, .tokens = b->token + pos, .n_runs = 1, .runs = &run};
    model_step(b->rig.model, &batch);
}

/* The same choice whatever units the list is in. */
static void choose(struct bench *b, const struct session *s, uint64_t seed)
{
    struct rng r;
    rng_seed(&r, seed);
    for (uint32_t i = 0; i < b->n_lists; i++) {
        const struct kv_list *l = &s->table->list[i];
        for (uint32_t u = 0; u < l->n_units; u++)
            b->gone[l->unit[u]] = (uint16_t)(rng_next(&r) & rng_next(&r));
    }
}

static void compact(struct bench *b, struct session *s)
{
    for (uint32_t i = 0; i < b->n_lists; i++)
        session_shrink(&b->ss, s, i, watch_compact(s, i, b->gone));
    session_settle(&b->ss, s);
}

static int32_t pos_of(const struct session *s, uint32_t i, uint32_t e)
{
    const struct kv_list *l = &s->table->list[i];
    return pool_meta(s->table->pool, l->unit[e / KV_UNIT])->pos[e % KV_UNIT];
}

static struct probe *new_full_probe(const struct bench *b)
{
    struct probe *p = NULL;
    const struct probe_options o = {
        .n_window = 32, .parts = PROBE_BAND, .max_tokens = 512};
    assert_int_equal(probe_new(&p, b->rig.model, &o, NULL), OK);
    return p;
}

/* Two sessions that go the same way; one is watched, the other's rows are all
 * kept by position. */
static void rows_follow_their_entries(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1);
    struct probe *full = new_full_probe(&b);
    struct session *s = start(&b), *t = start(&b);
    uint32_t reserved = pool_stats(b.rig.pool).reserved, n_known = 0;
    assert_true(watch_begin(b.ws, s, (uint64_t)TOKENS * b.n_lists));
    assert_true(pool_stats(b.rig.pool).reserved - reserved >=
                TOKENS * b.n_lists * BAND_ORDER_BYTES /
                    pool_stats(b.rig.pool).unit_bytes);
    for (uint32_t n, k = 0; s->n_stored < TOKENS; k++) {
        n = k % 2 ? 32 : 64;
        n = n < TOKENS - s->n_stored ? n : TOKENS - s->n_stored;
        feed(&b, s, n, watch_probe(s->watch));
        watch_take(b.ws, s, n);
        feed(&b, t, n, full);
        assert_non_null(s->watch);
        for (uint32_t i = 0; i < b.n_lists; i++)
            for (uint32_t e = 0; e < s->table->list[i].len; e++) {
                int32_t pos = pos_of(s, i, e);
                const uint16_t *row =
                    probe_band(full, i) + (size_t)pos * BAND_CELLS;
                uint8_t order[BAND_ORDER_BYTES];
                band_pack(row, pos, order);
                assert_int_equal(pos, pos_of(t, i, e));
                assert_memory_equal(watch_row(s->watch, i, e), order,
                                    BAND_ORDER_BYTES);
                n_known += pos % BAND_CELLS > 0 && row[0] > 0;
            }
        choose(&b, s, k);
        compact(&b, s);
        choose(&b, t, k);
        compact(&b, t);
    }
    assert_true(n_known > 1000);
    watch_end(b.ws, s);
    assert_null(s->watch);
    assert_int_equal(pool_stats(b.rig.pool).reserved, reserved);
    assert_int_equal(b.ss.n_watch, 0);
    probe_free(full);
    tear_down(&b);
}

/* The masses of all entries of list i; mass[] has room for whole units. */
static void measure(const struct probe *full, const struct session *s,
                    uint32_t i, float *mass)
{
    void *scratch =
        aligned_alloc(64, (probe_scratch_bytes(full, KV_UNIT) + 63) / 64 * 64);
    assert_non_null(scratch);
    for (uint32_t u = 0; u < table_units_of(s->table->list[i].len); u++)
        probe_masses(full, s->table, i, u, mass + u * KV_UNIT, scratch);
    free(scratch);
}

/* What watch_merge() must make of list i of t, by the parts of merge/. */
static void merge_by_hand(struct bench *b, struct session *t, uint32_t i,
                          const struct probe *full, struct merge_counts *c)
{
    const struct kv_list *l = &t->table->list[i];
    uint8_t *unit[TOKENS / KV_UNIT + 2];
    const struct kv_meta *meta[TOKENS / KV_UNIT + 2];
    uint16_t leaves[TOKENS / KV_UNIT + 2];
    static uint16_t band[TOKENS][BAND_CELLS];
    static float mass[TOKENS + KV_UNIT], ratio[TOKENS];
    const struct apply_how how = {fate_find("merge"), &b->options, ops_best()};
    for (uint32_t u = 0; u < l->n_units; u++) {
        unit[u] = pool_data(b->rig.pool, l->unit[u]);
        meta[u] = pool_meta(b->rig.pool, l->unit[u]);
        leaves[u] = b->gone[l->unit[u]];
    }
    for (uint32_t e = 0; e < l->len; e++)
        memcpy(band[e],
               probe_band(full, i) + (size_t)pos_of(t, i, e) * BAND_CELLS,
               BAND_BYTES);
    void *more = malloc(apply_scratch_bytes(how.fate, l->len, 128));
    assert_non_null(more);
    measure(full, t, i, mass);
    const struct apply_list list = {.layout = pool_layout(b->rig.pool),
                                    .unit = unit,
                                    .meta = meta,
                                    .n = l->len,
                                    .id = i,
                                    .n_seen = t->n_stored,
                                    .leaves = leaves,
                                    .mass = mass,
                                    .band = band[0]};
    apply_values(&list, &how, ratio, c, more);
    apply_bias(&list, &b->options, ratio);
    free(more);
}

static void same_entries(const struct bench *b, const struct session *s,
                         const struct session *t)
{
    const struct kv_layout *y = pool_layout(b->rig.pool);
    for (uint32_t i = 0; i < b->n_lists; i++) {
        const struct kv_list *l = &s->table->list[i], *m = &t->table->list[i];
        assert_int_equal(l->len, m->len);
        for (uint32_t e = 0; e < l->len; e++) {
            const uint8_t *p = pool_data(b->rig.pool, l->unit[e / KV_UNIT]);
            const uint8_t *q = pool_data(b->rig.pool, m->unit[e / KV_UNIT]);
            float k1[256], v1[256], k2[256], v2[256];
            ops_best()->kv_load(y, p, e % KV_UNIT, k1, v1);
            ops_best()->kv_load(y, q, e % KV_UNIT, k2, v2);
            assert_memory_equal(k1, k2, y->head_dim * sizeof(float));
            assert_memory_equal(v1, v2, y->head_dim * sizeof(float));
            assert_memory_equal(p + y->bias + 4 * (size_t)(e % KV_UNIT),
                                q + y->bias + 4 * (size_t)(e % KV_UNIT), 4);
        }
    }
}

static void merges_are_those_of_the_whole_prompts_rows(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1);
    struct probe *full = new_full_probe(&b);
    struct session *s = start(&b), *t = start(&b);
    struct merge_counts got = {0}, want = {0};
    assert_true(watch_begin(b.ws, s, (uint64_t)TOKENS * b.n_lists));
    for (uint32_t k = 0; s->n_stored < TOKENS; k++) {
        uint32_t left = TOKENS - s->n_stored, n = left < 64 ? left : 64;
        feed(&b, s, n, watch_probe(s->watch));
        watch_take(b.ws, s, n);
        feed(&b, t, n, full);
        assert_true(watches_make_scratch(b.ws, s, s->table->list[0].len + 200));
        choose(&b, s, k);
        for (uint32_t i = 0; i < b.n_lists; i++)
            watch_merge(b.ws, s, i, b.gone, 0, &got);
        compact(&b, s);
        choose(&b, t, k);
        for (uint32_t i = 0; i < b.n_lists; i++)
            merge_by_hand(&b, t, i, full, &want);
        compact(&b, t);
        same_entries(&b, s, t);
    }
    assert_true(got.merged > 20);
    assert_int_equal(got.routed, want.routed);
    assert_int_equal(got.merged, want.merged);
    assert_true(got.gate_sum == want.gate_sum);
    watch_end(b.ws, s);
    probe_free(full);
    tear_down(&b);
}

/* What ranks a prompt by its columns serves to merge it as well: as if they had
 * been measured for that alone. */
static void columns_are_measured_once(void **state)
{
    (void)state;
    const struct forget_options forget = {.n_sinks = 4, .n_recent = 16};
    struct bench b;
    struct ranker *ranker = NULL;
    struct merge_counts got = {0}, want = {0};
    set_up(&b, 2);
    const struct ranker_setup setup = {.lm = &b.lm,
                                       .options = &forget,
                                       .max_running = 2,
                                       .max_context = CONTEXT};
    assert_int_equal(ranker_new(&ranker, &setup), OK);
    struct session *s = start_by(&b, FORGET_H2O, FORGET_WEIGHTEDKV),
                   *t = start_by(&b, FORGET_H2O, FORGET_WEIGHTEDKV);
    ranking_begin(ranker, s);
    assert_true(watch_begin(b.ws, s, UINT64_MAX));
    assert_true(watch_begin(b.ws, t, UINT64_MAX));
    assert_null(watch_probe(s->watch));
    assert_non_null(watch_probe(t->watch));
    while (s->n_stored < TOKENS) {
        uint32_t left = TOKENS - s->n_stored, n = left < 64 ? left : 64;
        feed(&b, s, n, watch_probe(s->watch));
        feed(&b, t, n, watch_probe(t->watch));
    }
    assert_true(watches_make_scratch(b.ws, s, TOKENS));
    choose(&b, s, 1);
    choose(&b, t, 1);
    for (uint32_t i = 0; i < b.n_lists; i++) {
        watch_merge(b.ws, s, i, b.gone, 0, &got);
        watch_merge(b.ws, t, i, b.gone, 0, &want);
    }
    compact(&b, s);
    compact(&b, t);
    same_entries(&b, s, t);
    assert_true(got.merged > 20);
    assert_int_equal(got.merged, want.merged);
    watch_end(b.ws, s);
    watch_end(b.ws, t);
    ranking_end(ranker, s);
    ranker_free(ranker);
    tear_down(&b);
}

/* As long as nothing has left, the mass of one entry is what all rows of the
 * window give it. */
static void masses_are_sums_over_the_window(void **state)
{
    (void)state;
    static float window[32 * 128], got[128];
    struct bench b;
    set_up(&b, 1);
    struct probe *full = new_full_probe(&b);
    struct session *s = start(&b);
    feed(&b, s, 64, full);
    feed(&b, s, 50, full);
    void *scratch =
        aligned_alloc(64, (probe_scratch_bytes(full, 128) + 127) / 64 * 64);
    assert_non_null(scratch);
    for (uint32_t i = 0; i < b.n_lists; i++) {
        const struct probe_rows rows = {
            .n = probe_n_rows(full), .stride = 114, .sum = window};
        assert_int_equal(rows.n, 32);
        probe_attention(full, s->table, i, &rows, scratch);
        measure(full, s, i, got);
        for (uint32_t e = 0; e < 114; e++) {
            float mass = 0;
            for (uint32_t r = 0; r < 32; r++)
                mass += window[r * 114 + e];
            assert_true(fabsf(got[e] - mass) < 2e-5f * (1 + mass));
        }
    }
    free(scratch);
    probe_free(full);
    tear_down(&b);
}

static void what_does_not_fit_ends_the_watch(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1);
    struct session *s = start(&b), *t = start(&b);
    uint64_t room = sessions_room(&b.ss);
    /* More than the pool has; a second one at a time. */
    assert_false(watch_begin(b.ws, s, (uint64_t)1 << 30));
    assert_true(watches_have_free(b.ws, FORGET_MERGE));
    assert_true(watch_begin(b.ws, s, 64 * b.n_lists));
    assert_int_equal(watch_max_entries(s->watch), 64 * b.n_lists);
    assert_true(sessions_room(&b.ss) < room);
    assert_false(watches_have_free(b.ws, FORGET_MERGE));
    assert_false(watch_begin(b.ws, t, 64));
    feed(&b, s, 64, watch_probe(s->watch));
    watch_take(b.ws, s, 64);
    assert_non_null(s->watch);
    feed(&b, s, 1, watch_probe(s->watch));
    watch_take(b.ws, s, 1);
    assert_null(s->watch);
    assert_true(watches_have_free(b.ws, FORGET_MERGE));
    assert_int_equal(sessions_room(&b.ss), room);
    watch_end(b.ws, s); /* not watched: nothing */
    tear_down(&b);
}

static void rows_and_entries_share_the_room(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1);
    for (uint64_t units = 0; units < 3000; units += 7) {
        uint64_t n = watch_entries_in(b.ws, FORGET_MERGE, units);
        uint64_t used = (n + KV_UNIT - 1) / KV_UNIT +
                        watch_units_for(b.ws, FORGET_MERGE, n);
        assert_true(used <= units + 2);
        assert_true(n >= units * KV_UNIT * 9 / 10);
    }
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_follow_their_entries),
        cmocka_unit_test(merges_are_those_of_the_whole_prompts_rows),
        cmocka_unit_test(columns_are_measured_once),
        cmocka_unit_test(masses_are_sums_over_the_window),
        cmocka_unit_test(what_does_not_fit_ends_the_watch),
        cmocka_unit_test(rows_and_entries_share_the_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
