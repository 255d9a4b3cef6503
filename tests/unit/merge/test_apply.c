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
#include "merge/apply.h"
#include "merge/band.h"
#include "merge/compensation.h"
#include "runtime/kernels/quant.h"

enum { N_MAX = 200, UNITS = (N_MAX + KV_UNIT - 1) / KV_UNIT, D = 64 };
enum { DATA_MAX = 2 * KV_UNIT * D * 4 + 4 * 64 };

/* One list in units of its own, in any order of positions. */
struct world {
    struct kv_layout layout;
    _Alignas(64) uint8_t data[UNITS][DATA_MAX];
    struct kv_meta meta_of[UNITS];
    uint8_t *unit[UNITS];
    const struct kv_meta *meta[UNITS];
    uint16_t leaves[UNITS], fixed[UNITS];
    float mass[N_MAX], column[N_MAX], ratio[N_MAX];
    uint16_t band[N_MAX][BAND_CELLS];
    struct apply_list l;
};

static void attach(struct world *w, enum kv_type type, uint32_t n)
{
    memset(w, 0, sizeof(*w));
    kv_layout_init(&w->layout, type, D);
    assert_true(w->layout.data_bytes <= DATA_MAX);
    for (uint32_t u = 0; u < UNITS; u++) {
        w->unit[u] = w->data[u];
        w->meta[u] = &w->meta_of[u];
    }
    w->l = (struct apply_list){.layout = &w->layout,
                               .unit = w->unit,
                               .meta = w->meta,
                               .n = n,
                               .leaves = w->leaves,
                               .mass = w->mass,
                               .column = w->column,
                               .band = w->band[0]};
}

static int32_t *pos_at(struct world *w, uint32_t e)
{
    return &w->meta_of[e / KV_UNIT].pos[e % KV_UNIT];
}

static bool leaves(const struct world *w, uint32_t e)
{
    return w->leaves[e / KV_UNIT] >> e % KV_UNIT & 1;
}

static bool is_fixed(const struct world *w, uint32_t e)
{
    return w->l.fixed != NULL && (w->fixed[e / KV_UNIT] >> e % KV_UNIT & 1);
}

static void set_bit(uint16_t *mask, uint32_t e)
{
    mask[e / KV_UNIT] = (uint16_t)(mask[e / KV_UNIT] | 1u << e % KV_UNIT);
}

static float bias_of(const struct world *w, uint32_t e)
{
    float b;
    memcpy(&b, w->unit[e / KV_UNIT] + w->layout.bias + e % KV_UNIT * 4, 4);
    return b;
}

static void store(struct world *w, uint32_t e, const float *k, const float *v,
                  float bias)
{
    ops_reference.kv_store(&w->layout, w->unit[e / KV_UNIT], e % KV_UNIT, k, v,
                           bias);
}

/* Positions as a compacted list has them: any order, with gaps. */
static void draw(struct world *w, struct rng *r, enum kv_type type)
{
    float key[D], value[D];
    int32_t pos[N_MAX], p = (int32_t)rng_below(r, 300);
    attach(w, type, (uint32_t)rng_below(r, N_MAX + 1));
    for (uint32_t e = 0; e < w->l.n; e++) {
        pos[e] = p;
        p += 1 + (int32_t)rng_below(r, 2);
    }
    w->l.n_seen = (uint32_t)p;
    w->l.id = 3;
    for (uint32_t e = w->l.n; e > 1 && rng_below(r, 20) != 0; e--) {
        uint32_t o = (uint32_t)rng_below(r, e);
        int32_t x = pos[o];
        pos[o] = pos[e - 1];
        pos[e - 1] = x;
    }
    for (uint32_t e = 0; e < w->l.n; e++) {
        *pos_at(w, e) = pos[e];
        for (int d = 0; d < D; d++) {
            key[d] = rng_float(r) - 0.3f;
            value[d] = rng_float(r) - 0.3f;
        }
        store(w, e, key, value, rng_below(r, 9) == 0 ? 0.4f : 0.0f);
        w->mass[e] = rng_float(r);
        w->column[e] = rng_float(r) * 9.0f;
        for (uint32_t c = 0; c < BAND_CELLS; c++)
            w->band[e][c] = quant_f32_to_f16(rng_float(r));
        if (rng_below(r, 3) > 0)
            set_bit(w->leaves, e);
        else if (rng_below(r, 5) == 0)
            set_bit(w->fixed, e);
    }
    w->l.fixed = rng_below(r, 2) ? w->fixed : NULL;
}

static struct merge_counts apply(struct world *w, const char *fate,
                                 const struct merge_options *o)
{
    struct apply_how how = {fate_find(fate), o, ops_best()};
    struct merge_counts c = {0};
    size_t bytes = apply_scratch_bytes(how.fate, w->l.n, D);
    void *scratch = malloc(bytes + 1);
    assert_non_null(scratch);
    memset(scratch, 0xff, bytes);
    apply_values(&w->l, &how, w->ratio, &c, scratch);
    apply_bias(&w->l, o, w->ratio);
    free(scratch);
    return c;
}

/* The list brought into order by hand and given to the fate as a whole. */
struct plain {
    uint32_t entry[N_MAX];
    int32_t pos[N_MAX];
    uint8_t state[N_MAX], changed[N_MAX];
    float value[N_MAX][D], key[N_MAX][D], mass[N_MAX], column[N_MAX];
    uint16_t band[N_MAX][BAND_CELLS];
    float new_value[N_MAX][D], new_key[N_MAX][D], ratio[N_MAX];
    struct merge_counts counts;
};

static void run_plain(struct plain *p, struct world *w, const char *name,
                      const struct merge_options *o)
{
    uint32_t n = 0;
    memset(p, 0, sizeof(*p));
    for (int32_t x = 0; x < (int32_t)w->l.n_seen; x++)
        for (uint32_t e = 0; e < w->l.n; e++) {
            if (*pos_at(w, e) != x)
                continue;
            p->entry[n] = e;
            p->pos[n] = x;
            p->state[n] = leaves(w, e)     ? FATE_LEAVES
                          : is_fixed(w, e) ? FATE_FIXED
                                           : FATE_STAYS;
            ops_reference.kv_load(&w->layout, w->unit[e / KV_UNIT], e % KV_UNIT,
                                  p->key[n], p->value[n]);
            p->mass[n] = w->mass[e];
            p->column[n] = w->column[e];
            memcpy(p->band[n], w->band[e], BAND_BYTES);
            p->ratio[n] = 1.0f;
            n++;
        }
    const struct fate *f = fate_find(name);
    struct fate_list l = {n,       D,         w->l.id,     w->l.n_seen,
                          p->pos,  p->state,  p->value[0], p->key[0],
                          p->mass, p->column, p->band[0]};
    struct fate_result out = {.changed = p->changed,
                              .value = p->new_value[0],
                              .key = p->new_key[0],
                              .ratio = p->ratio};
    void *scratch = malloc(f->scratch_bytes(n, D) + 1);
    assert_non_null(scratch);
    f->run(&l, o, &out, scratch);
    free(scratch);
    p->counts = out.counts;
}

/* Writes what the plain run says into a copy of the units as they were. */
static void write_plain(const struct plain *p, struct world *before,
                        const struct merge_options *o)
{
    for (uint32_t i = 0; i < before->l.n; i++) {
        uint32_t e = p->entry[i];
        before->ratio[e] = p->ratio[i];
        if (p->state[i] != FATE_STAYS)
            continue;
        store(before, e, p->changed[i] & FATE_NEW_KEY ? p->new_key[i] : NULL,
              p->changed[i] & FATE_NEW_VALUE ? p->new_value[i] : NULL,
              compensation_bias(bias_of(before, e), p->ratio[i], o));
    }
}

/* Whatever order the entries are in: the units end up, byte for byte, as if
 * the fate had seen the sorted list, and nothing else in them changes. */
static void units_hold_what_the_fate_says(void **state)
{
    (void)state;
    static struct world w, before;
    static struct plain p;
    struct rng r;
    const struct merge_options o = merge_options_default();
    uint64_t hosts = 0;
    rng_seed(&r, 1);
    for (int round = 0; round < 180; round++) {
        const char *name = fate_at((uint32_t)round % 6)->name;
        draw(&w, &r, (enum kv_type)(round / 6 % 3));
        memcpy(&before, &w, sizeof(w));
        run_plain(&p, &w, name, &o);
        struct merge_counts c = apply(&w, name, &o);
        for (uint32_t u = 0; u < UNITS; u++)
            before.unit[u] = before.data[u];
        before.l.layout = &before.layout;
        write_plain(&p, &before, &o);
        assert_memory_equal(w.data, before.data, sizeof(w.data));
        assert_memory_equal(w.meta_of, before.meta_of, sizeof(w.meta_of));
        assert_memory_equal(w.ratio, before.ratio, w.l.n * sizeof(float));
        assert_int_equal(c.evicted, p.counts.evicted);
        assert_int_equal(c.routed, p.counts.routed);
        assert_int_equal(c.merged, p.counts.merged);
        assert_int_equal(c.hosts, p.counts.hosts);
        hosts += c.hosts;
    }
    assert_true(hosts > 1000);
}

struct asked {
    const struct world *w;
    uint32_t times[N_MAX], n;
};

static float mass_of(void *user, uint32_t e)
{
    struct asked *a = user;
    a->times[e]++;
    a->n++;
    return a->w->mass[e];
}

/* Measured on demand, nobody is asked who has no part in a merge, and nobody
 * twice; what comes out is the same. */
static void masses_can_be_measured_on_demand(void **state)
{
    (void)state;
    static struct world w, v;
    struct rng r;
    const struct merge_options o = merge_options_default();
    uint32_t n_asked = 0, n_entries = 0;
    rng_seed(&r, 4);
    for (int round = 0; round < 60; round++) {
        draw(&w, &r, KV_F16);
        for (uint32_t u = 0; u < UNITS; u++) /* fewer leave */
            w.leaves[u] &= (uint16_t)(rng_next(&r) & rng_next(&r));
        memcpy(&v, &w, sizeof(w));
        for (uint32_t u = 0; u < UNITS; u++)
            v.unit[u] = v.data[u];
        struct asked a = {.w = &w};
        v.l.unit = v.unit;
        v.l.mass = NULL;
        v.l.mass_of = mass_of;
        v.l.mass_user = &a;
        struct merge_counts c = apply(&w, "selkv", &o);
        struct merge_counts d = apply(&v, "selkv", &o);
        assert_int_equal(c.routed, d.routed);
        assert_int_equal(c.merged, d.merged);
        assert_true(c.gate_sum == d.gate_sum);
        assert_memory_equal(w.data, v.data, sizeof(w.data));
        for (uint32_t e = 0; e < w.l.n; e++)
            assert_true(a.times[e] <= 1);
        assert_true(a.n <= 2 * c.routed);
        n_asked += a.n;
        n_entries += w.l.n;
    }
    assert_true(n_asked > 100 && n_asked < n_entries / 2);
}

static void nothing_leaving_changes_no_byte(void **state)
{
    (void)state;
    static struct world w, before;
    struct rng r;
    const struct merge_options o = merge_options_default();
    rng_seed(&r, 2);
    for (uint32_t f = 0; fate_at(f) != NULL; f++)
        for (int t = 0; t < 3; t++) {
            draw(&w, &r, (enum kv_type)t);
            memset(w.leaves, 0, sizeof(w.leaves));
            memcpy(&before, &w, sizeof(w));
            struct merge_counts c = apply(&w, fate_at(f)->name, &o);
            assert_memory_equal(w.data, before.data, sizeof(w.data));
            assert_int_equal(c.evicted, 0);
        }
}

static void attend(struct world *w, const uint32_t *entry, uint32_t n,
                   const float *q, float *out)
{
    static struct world some;
    float k[D], v[D];
    attach(&some, w->layout.type, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = entry[i];
        ops_reference.kv_load(&w->layout, w->unit[e / KV_UNIT], e % KV_UNIT, k,
                              v);
        store(&some, i, k, v, bias_of(w, e));
    }
    const struct attend_args a = {.layout = &some.layout,
                                  .unit = (const uint8_t *const *)some.unit,
                                  .n_visible = n,
                                  .n_query = 1,
                                  .group = 1,
                                  .q = q,
                                  .q_stride = D,
                                  .out = out,
                                  .out_stride = D,
                                  .scale = 0.125f};
    void *scratch = malloc(ops_best()->attend_scratch_bytes(&a) + 64);
    assert_non_null(scratch);
    void *aligned = (uint8_t *)scratch + 64 - (uintptr_t)scratch % 64;
    ops_best()->attend(&a, aligned);
    free(scratch);
}

static double distance(const float *a, const float *b)
{
    double most = 0;
    for (int d = 0; d < D; d++)
        most = fmax(most, fabs((double)a[d] - (double)b[d]));
    return most;
}

/* 10 equal entries become one: with the whole bias (alpha = 1) attention over
 * what is left gives what it gave before. Without it the ten count as one. */
static void equal_entries_merge_without_a_trace(void **state)
{
    (void)state;
    enum { EQUAL = 10, OTHER = 6, ALL = EQUAL + OTHER };
    static struct world w, copy;
    struct rng r;
    uint32_t all[ALL], left[OTHER + 1];
    float key[2][D], value[D], q[D], before[D], after[D], sagged[D];
    struct merge_options o = merge_options_default();
    rng_seed(&r, 3);
    attach(&w, KV_F32, ALL);
    w.l.n_seen = ALL;
    for (uint32_t e = 0; e < ALL; e++) {
        for (int d = 0; d < D; d++) {
            if (e == 0 || e >= EQUAL) {
                key[0][d] = rng_float(&r) - 0.5f;
                value[d] = rng_float(&r) - 0.5f;
            }
            q[d] = (rng_float(&r) - 0.5f) * 4.0f;
        }
        *pos_at(&w, e) = (int32_t)e;
        store(&w, e, key[0], value, 0);
        w.mass[e] = 0.25f;
        w.band[e][0] = quant_f32_to_f16(0.5f);
        all[e] = e;
        if (e > 0 && e < EQUAL)
            set_bit(w.leaves, e);
    }
    left[0] = 0;
    for (uint32_t i = 0; i < OTHER; i++)
        left[i + 1] = EQUAL + i;
    attend(&w, all, ALL, q, before);
    o.alpha = 1.0f;
    o.max_ratio = INFINITY;
    memcpy(&copy, &w, sizeof(w));
    struct merge_counts c = apply(&w, "selkv", &o);
    assert_int_equal(c.merged, EQUAL - 1);
    assert_true(fabs((double)bias_of(&w, 0) - log(EQUAL)) < 1e-6);
    assert_true(fabs((double)c.log_ratio - log(EQUAL)) < 1e-6);
    attend(&w, left, OTHER + 1, q, after);
    assert_true(distance(before, after) < 1e-6);

    memcpy(w.data, copy.data, sizeof(w.data));
    o.alpha = 0.0f;
    (void)apply(&w, "selkv", &o);
    attend(&w, left, OTHER + 1, q, sagged);
    assert_true(distance(before, sagged) > 1e-3);
    assert_memory_equal(w.data, copy.data, sizeof(w.data));
}

/* Four equal entries, merged in two boundaries, two and then the rest: the
 * mass of the host is what attention with its bias gives it. */
static void a_second_merge_takes_up_where_the_first_ended(void **state)
{
    (void)state;
    static struct world w;
    float key[D], value[D];
    struct merge_options o = merge_options_default();
    o.alpha = 1.0f;
    attach(&w, KV_F16, 4);
    w.l.n_seen = 4;
    for (uint32_t e = 0; e < 4; e++) {
        for (int d = 0; d < D; d++)
            key[d] = value[d] = 0.25f * (float)d;
        *pos_at(&w, e) = (int32_t)e;
        store(&w, e, key, value, 0);
        w.mass[e] = 0.25f;
        w.band[e][0] = quant_f32_to_f16(0.5f);
    }
    set_bit(w.leaves, 1);
    (void)apply(&w, "selkv", &o);
    assert_true(fabs((double)bias_of(&w, 0) - log(2)) < 1e-6);
    /* Entry 1 is gone (it must not count again), the host has its mass. */
    memset(w.band[1], 0, BAND_BYTES);
    w.mass[0] = 0.5f;
    set_bit(w.leaves, 2);
    set_bit(w.leaves, 3);
    (void)apply(&w, "selkv", &o);
    assert_true(fabs((double)bias_of(&w, 0) - log(4)) < 1e-6);
}

static void the_longest_positions_are_sorted_too(void **state)
{
    (void)state;
    static struct world w;
    float key[D] = {1}, value[D] = {1};
    const struct merge_options o = merge_options_default();
    attach(&w, KV_F32, 3);
    w.l.n_seen = INT32_MAX;
    const int32_t pos[3] = {INT32_MAX - 1, 5, INT32_MAX - 3};
    for (uint32_t e = 0; e < 3; e++) {
        *pos_at(&w, e) = pos[e];
        store(&w, e, key, value, 0);
        w.mass[e] = 1.0f;
        w.band[e][band_cell(pos[2])] = quant_f32_to_f16(0.5f);
        w.band[e][band_cell(pos[1])] = quant_f32_to_f16(0.9f);
    }
    set_bit(w.leaves, 0);
    struct merge_counts c = apply(&w, "selkv", &o);
    assert_int_equal(c.merged, 1);
    assert_true(w.ratio[2] == 2 && w.ratio[1] == 1 && w.ratio[0] == 1);
    attach(&w, KV_F32, 0);
    assert_int_equal(apply(&w, "lookm", &o).evicted, 0);
}

/* By position, over the lists that keep it. */
static void a_layer_can_share_the_mean_of_its_ratios(void **state)
{
    (void)state;
    struct kv_meta a = {.pos = {0, 1, 2}}, b = {.pos = {2, 0, 1}};
    const struct kv_meta *meta[2] = {&a, &b};
    uint16_t leaves[2] = {0, 1 << 2};
    float ratio[2][3] = {{1, 2, 1}, {4, 1, 9}}, sum[3] = {0};
    static const float want[2][3] = {{1, 2, 2.5f}, {2.5f, 1, 9}};
    uint32_t n_summed[3] = {0};
    struct apply_list l[2];
    for (int i = 0; i < 2; i++) {
        l[i] = (struct apply_list){
            .meta = &meta[i], .n = 3, .n_seen = 3, .leaves = &leaves[i]};
        apply_add_ratios(&l[i], ratio[i], sum, n_summed);
    }
    for (int i = 0; i < 2; i++) {
        apply_mean_ratios(&l[i], ratio[i], sum, n_summed);
        assert_memory_equal(ratio[i], want[i], sizeof(want[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_hold_what_the_fate_says),
        cmocka_unit_test(masses_can_be_measured_on_demand),
        cmocka_unit_test(nothing_leaving_changes_no_byte),
        cmocka_unit_test(equal_entries_merge_without_a_trace),
        cmocka_unit_test(a_second_merge_takes_up_where_the_first_ended),
        cmocka_unit_test(the_longest_positions_are_sorted_too),
        cmocka_unit_test(a_layer_can_share_the_mean_of_its_ratios),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
