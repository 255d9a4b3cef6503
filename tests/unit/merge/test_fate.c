#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "merge/band.h"
#include "merge/fate.h"
#include "merge/merge.h"
#include "runtime/kernels/quant.h"
#include "tests/support/golden.h"

enum { N_MAX = 120, D = 16 };

/* A list with room for what a fate makes of it. */
struct world {
    int32_t pos[N_MAX];
    uint8_t state[N_MAX], changed[N_MAX];
    float value[N_MAX][D], key[N_MAX][D];
    float mass[N_MAX], column[N_MAX];
    uint16_t band[N_MAX][BAND_CELLS];
    float new_value[N_MAX][D], new_key[N_MAX][D], ratio[N_MAX];
    struct fate_list l;
    struct fate_result out;
};

static void attach(struct world *w, uint32_t n)
{
    w->l =
        (struct fate_list){.n = n,
                           .head_dim = D,
                           .n_seen = n == 0 ? 0 : (uint32_t)w->pos[n - 1] + 1,
                           .pos = w->pos,
                           .state = w->state,
                           .value = w->value[0],
                           .key = w->key[0],
                           .mass = w->mass,
                           .column = w->column,
                           .band = w->band[0]};
    memset(&w->out, 0, sizeof(w->out));
    memset(w->changed, 0, sizeof(w->changed));
    memset(w->new_value, 0xff, sizeof(w->new_value)); /* not a number */
    memset(w->new_key, 0xff, sizeof(w->new_key));
    for (uint32_t i = 0; i < N_MAX; i++)
        w->ratio[i] = 1.0f;
    w->out.changed = w->changed;
    w->out.value = w->new_value[0];
    w->out.key = w->new_key[0];
    w->out.ratio = w->ratio;
}

static void draw(struct world *w, struct rng *r, uint32_t n)
{
    int32_t p = (int32_t)rng_below(r, 40);
    for (uint32_t i = 0; i < n; i++) {
        w->pos[i] = p;
        p += 1 + (int32_t)rng_below(r, 3);
        w->state[i] = rng_below(r, 20) == 0  ? FATE_FIXED
                      : rng_below(r, 3) == 0 ? FATE_STAYS
                                             : FATE_LEAVES;
        bool again = i > 0 && rng_below(r, 4) > 0;
        for (uint32_t d = 0; d < D; d++) {
            w->value[i][d] = (rng_float(r) - 0.5f) * 2.0f;
            w->key[i][d] = (rng_float(r) - 0.5f) * 2.0f;
            if (again) {
                w->value[i][d] += w->value[i - 1][d];
                w->key[i][d] = w->key[i][d] * 0.2f + w->key[i - 1][d];
            }
        }
        w->mass[i] = rng_below(r, 10) == 0 ? 0.0f : rng_float(r) * 4.0f;
        w->column[i] = rng_float(r) * 9.0f;
        for (uint32_t c = 0; c < BAND_CELLS; c++)
            w->band[i][c] = quant_f32_to_f16(rng_float(r));
    }
    attach(w, n);
}

/* Runs the fate with exactly the scratch it asked for, full of ones. */
static void run(struct world *w, const struct fate *f,
                const struct merge_options *o)
{
    size_t bytes = f->scratch_bytes(w->l.n, w->l.head_dim);
    void *scratch = malloc(bytes + 1);
    assert_non_null(scratch);
    memset(scratch, 0xff, bytes);
    f->run(&w->l, o, &w->out, scratch);
    free(scratch);
}

static bool near(double got, double want, double scale)
{
    return fabs(got - want) <= 2e-5 * (scale + fabs(want));
}

/* ------------------------------------------------------------ golden values */

struct input {
    int32_t *pos, *state, *band;
    float *value, *key, *mass, *column;
    double *options;
    uint32_t cases, n, d;
};

static struct input open_input(void)
{
    struct golden g;
    struct input in;
    golden_open(&g, "tests/golden/merge/input.golden");
    const struct golden_array *a = golden_find(&g, "value", "f32");
    in.cases = (uint32_t)a->dim[0];
    in.n = (uint32_t)a->dim[1];
    in.d = (uint32_t)a->dim[2];
    in.pos = golden_copy(&g, "pos", "i32");
    in.state = golden_copy(&g, "state", "i32");
    in.band = golden_copy(&g, "band", "i32");
    in.value = golden_copy(&g, "value", "f32");
    in.key = golden_copy(&g, "key", "f32");
    in.mass = golden_copy(&g, "mass", "f32");
    in.column = golden_copy(&g, "column", "f32");
    in.options = golden_copy(&g, "options", "f64");
    golden_close(&g);
    return in;
}

static void close_input(struct input *in)
{
    free(in->pos), free(in->state), free(in->band), free(in->value);
    free(in->key), free(in->mass), free(in->column), free(in->options);
}

static void load_case(struct world *w, const struct input *in, uint32_t c)
{
    assert_true(in->n <= N_MAX && in->d <= D);
    for (uint32_t i = 0; i < in->n; i++) {
        size_t e = (size_t)c * in->n + i;
        w->pos[i] = in->pos[e];
        w->state[i] = (uint8_t)in->state[e];
        w->mass[i] = in->mass[e];
        w->column[i] = in->column[e];
        memset(w->value[i], 0, sizeof(w->value[i]));
        memset(w->key[i], 0, sizeof(w->key[i]));
        memcpy(w->value[i], in->value + e * in->d, in->d * sizeof(float));
        memcpy(w->key[i], in->key + e * in->d, in->d * sizeof(float));
        for (uint32_t k = 0; k < BAND_CELLS; k++)
            w->band[i][k] = (uint16_t)in->band[e * BAND_CELLS + k];
    }
    attach(w, in->n);
    w->l.id = c;
    w->l.n_seen = (uint32_t)in->options[3];
}

static void check_case(const struct world *w, const struct golden *g,
                       const struct input *in, uint32_t c)
{
    double *value = golden_copy(g, "value", "f64");
    double *key = golden_copy(g, "key", "f64");
    double *ratio = golden_copy(g, "ratio", "f64");
    int32_t *counts = golden_copy(g, "counts", "i32");
    for (uint32_t i = 0; i < in->n; i++) {
        size_t e = (size_t)c * in->n + i;
        const float *v =
            w->changed[i] & FATE_NEW_VALUE ? w->new_value[i] : w->value[i];
        const float *k =
            w->changed[i] & FATE_NEW_KEY ? w->new_key[i] : w->key[i];
        for (uint32_t d = 0; d < in->d; d++) {
            assert_true(near((double)v[d], value[e * in->d + d], 1));
            assert_true(near((double)k[d], key[e * in->d + d], 1));
        }
        assert_true(near((double)w->ratio[i], ratio[e], 1));
    }
    const struct merge_counts *m = &w->out.counts;
    assert_int_equal(m->evicted, counts[4 * c]);
    assert_int_equal(m->routed, counts[4 * c + 1]);
    assert_int_equal(m->merged, counts[4 * c + 2]);
    assert_int_equal(m->hosts, counts[4 * c + 3]);
    free(value), free(key), free(ratio), free(counts);
}

static void every_fate_gives_what_numpy_gives(void **state)
{
    (void)state;
    static const struct {
        const char *fate, *file;
        float min_mass;
    } cases[] = {
        {"selkv", "selkv", 0},           {"selkv", "guarded", 1},
        {"lookm", "lookm", 0},           {"kvmerger", "kvmerger", 0},
        {"weightedkv", "weightedkv", 0}, {"cam", "cam", 0},
    };
    static struct world w;
    struct input in = open_input();
    for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        char path[128];
        struct golden g;
        struct merge_options o = merge_options_default();
        o.min_mass = cases[k].min_mass;
        o.min_cosine = (float)in.options[0];
        o.n_next = (uint32_t)in.options[1];
        o.seed = (uint64_t)in.options[2];
        snprintf(path, sizeof(path), "tests/golden/merge/%s.golden",
                 cases[k].file);
        golden_open(&g, path);
        for (uint32_t c = 0; c < in.cases; c++) {
            load_case(&w, &in, c);
            run(&w, fate_find(cases[k].fate), &o);
            check_case(&w, &g, &in, c);
        }
        golden_close(&g);
    }
    close_input(&in);
}

/* ------------------------------------------------------------------- selkv */

/* The worked example of docs/design/algorithms.md 2. */
static void the_worked_example_comes_out(void **state)
{
    (void)state;
    static const float value[4][2] = {{1, 0}, {.8f, .6f}, {0, 1}, {-1, 0}};
    static const float mass[4] = {.6f, .2f, .1f, .1f};
    static struct world w;
    struct merge_options o = merge_options_default();
    memset(&w, 0, sizeof(w));
    for (int i = 0; i < 4; i++) {
        w.pos[i] = i;
        w.state[i] = i == 0 ? FATE_STAYS : FATE_LEAVES;
        w.mass[i] = mass[i];
        memcpy(w.value[i], value[i], sizeof(value[i]));
        w.band[i][0] = quant_f32_to_f16(0.5f);
    }
    attach(&w, 4);
    run(&w, fate_find("selkv"), &o);
    assert_int_equal(w.changed[0], FATE_NEW_VALUE);
    assert_true(fabsf(w.new_value[0][0] - 0.957895f) < 1e-6f);
    assert_true(fabsf(w.new_value[0][1] - 0.126316f) < 1e-6f);
    assert_true(fabsf(w.ratio[0] - 1.266667f) < 1e-6f);
    assert_int_equal(w.out.counts.evicted, 3);
    assert_int_equal(w.out.counts.routed, 3);
    assert_int_equal(w.out.counts.merged, 1);
    assert_int_equal(w.out.counts.hosts, 1);
    assert_true(fabs(merge_mean_gate(&w.out.counts) - 0.8 / 3) < 1e-6);
    assert_true(merge_routed_share(&w.out.counts) == 1);
    assert_true(fabsf(w.out.counts.log_ratio - logf(1.266667f)) < 1e-6f);
}

/* Where no value resembles another, merging is dropping: not a bit changes. */
static void closed_gates_are_the_same_as_dropping(void **state)
{
    (void)state;
    static struct world w;
    struct rng r;
    struct merge_options o = merge_options_default();
    o.mean_ratio = true;
    o.min_mass = 0.0f;
    o.max_ratio = INFINITY;
    rng_seed(&r, 3);
    draw(&w, &r, 100);
    for (uint32_t i = 0; i < 100; i++)
        for (uint32_t d = 0; d < D; d++)
            w.value[i][d] = w.state[i] == FATE_LEAVES ? -1.0f : 1.0f;
    run(&w, fate_find("selkv"), &o);
    assert_true(w.out.counts.routed > 20);
    assert_int_equal(w.out.counts.merged, 0);
    assert_int_equal(w.out.counts.hosts, 0);
    for (uint32_t i = 0; i < 100; i++)
        assert_true(w.changed[i] == 0 && w.ratio[i] == 1);
}

static void a_duplicate_gives_its_mass_and_changes_no_value(void **state)
{
    (void)state;
    static struct world w;
    struct merge_options o = merge_options_default();
    memset(&w, 0, sizeof(w));
    for (int i = 0; i < 3; i++) {
        w.pos[i] = 32 + i;
        w.state[i] = i == 0 ? FATE_STAYS : FATE_LEAVES;
        w.mass[i] = i == 0 ? 2.0f : 0.75f;
        for (int d = 0; d < D; d++)
            w.value[i][d] = 0.3f * (float)(d + 1);
        w.band[i][0] = quant_f32_to_f16(0.1f);
    }
    attach(&w, 3);
    run(&w, fate_find("selkv"), &o);
    assert_memory_equal(w.new_value[0], w.value[0], sizeof(w.value[0]));
    assert_true(fabsf(w.ratio[0] - 1.75f) < 1e-6f);
}

/* One host's guests, in double precision and over all pairs. */
static void plain_selkv(const struct world *w, const struct merge_options *o,
                        uint32_t i, double v[D], double *ratio)
{
    double own = w->mass[i] > 1e-8f ? (double)w->mass[i] : 1e-8, sum = own;
    for (int d = 0; d < D; d++)
        v[d] = own * (double)w->value[i][d];
    for (uint32_t j = i + 1; j < w->l.n; j++) {
        uint32_t best = N_MAX;
        float top = 0.0f;
        double ij = 0, ii = 0, jj = 0;
        for (uint32_t k = 0; k < j; k++) {
            float a = quant_f16_to_f32(w->band[j][w->pos[k] % 32]);
            if (w->state[k] == FATE_STAYS && a > 0 && a >= top &&
                w->pos[k] / 32 == w->pos[j] / 32) {
                best = k;
                top = a;
            }
        }
        if (w->state[j] != FATE_LEAVES || best != i ||
            w->mass[i] < o->min_mass * w->mass[j])
            continue;
        for (int d = 0; d < D; d++) {
            ij += (double)w->value[i][d] * (double)w->value[j][d];
            ii += (double)w->value[i][d] * (double)w->value[i][d];
            jj += (double)w->value[j][d] * (double)w->value[j][d];
        }
        double g = ij > 0 ? ij / sqrt(ii * jj) : 0;
        sum += g * (double)w->mass[j];
        for (int d = 0; d < D; d++)
            v[d] += g * (double)w->mass[j] * (double)w->value[j][d];
    }
    for (int d = 0; d < D; d++)
        v[d] /= sum;
    *ratio = sum / own;
}

static void random_lists_agree_with_double_precision(void **state)
{
    (void)state;
    static struct world w;
    struct rng r;
    uint32_t n_hosts = 0;
    rng_seed(&r, 4);
    for (int round = 0; round < 200; round++) {
        struct merge_options o = merge_options_default();
        o.min_mass = (float)rng_below(&r, 3) * 0.5f;
        draw(&w, &r, (uint32_t)rng_below(&r, N_MAX));
        run(&w, fate_find("selkv"), &o);
        for (uint32_t i = 0; i < w.l.n; i++) {
            double v[D], ratio;
            plain_selkv(&w, &o, i, v, &ratio);
            if (w.state[i] != FATE_STAYS || ratio == 1) {
                assert_true(w.changed[i] == 0 && w.ratio[i] == 1);
                continue;
            }
            n_hosts++;
            assert_int_equal(w.changed[i], FATE_NEW_VALUE);
            assert_true(near((double)w.ratio[i], ratio, 0));
            for (int d = 0; d < D; d++)
                assert_true(near((double)w.new_value[i][d], v[d], 5));
        }
    }
    assert_true(n_hosts > 1000);
}

/* ------------------------------------------------------------- every fate */

static bool within(const struct world *w, const float all[N_MAX][D],
                   const float *x, int d)
{
    float least = INFINITY, most = -INFINITY;
    for (uint32_t i = 0; i < w->l.n; i++) {
        least = fminf(least, all[i][d]);
        most = fmaxf(most, all[i][d]);
    }
    float slack = 1e-5f * (most - least + 1.0f);
    return x[d] >= least - slack && x[d] <= most + slack;
}

/* cam adds values up, by its definition; all others take means. */
static void what_comes_out_is_a_mean_of_what_went_in(void **state)
{
    (void)state;
    static struct world w;
    struct rng r;
    const struct merge_options o = merge_options_default();
    rng_seed(&r, 5);
    for (uint32_t f = 0; fate_at(f) != NULL; f++)
        for (int round = 0; round < 50; round++) {
            draw(&w, &r, (uint32_t)rng_below(&r, N_MAX));
            run(&w, fate_at(f), &o);
            for (uint32_t i = 0; i < w.l.n; i++) {
                assert_true(w.ratio[i] >= 1);
                if (strcmp(fate_at(f)->name, "cam") == 0)
                    continue;
                for (int d = 0; d < D; d++) {
                    if (w.changed[i] & FATE_NEW_VALUE)
                        assert_true(within(&w, w.value, w.new_value[i], d));
                    if (w.changed[i] & FATE_NEW_KEY)
                        assert_true(within(&w, w.key, w.new_key[i], d));
                }
            }
        }
}

static double cosine(const float *a, const float *b)
{
    double ab = 0, aa = 0, bb = 0;
    for (uint32_t d = 0; d < D; d++) {
        ab += (double)a[d] * (double)b[d];
        aa += (double)a[d] * (double)a[d];
        bb += (double)b[d] * (double)b[d];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

/* Of `guest` and the entries that stay; the last of several. */
static uint32_t most_similar(const struct world *w, uint32_t guest)
{
    uint32_t best = w->l.n;
    for (uint32_t i = 0; i < w->l.n; i++)
        if (w->state[i] == FATE_STAYS &&
            (best == w->l.n || cosine(w->key[guest], w->key[i]) >=
                                   cosine(w->key[guest], w->key[best]) - 1e-9))
            best = i;
    return best;
}

/* One entry leaves; the one that changes is its host. Some keys are zeros, and
 * some that stay are equal. */
static void lookm_finds_the_most_similar_key_of_any_number(void **state)
{
    (void)state;
    struct world w;
    struct rng r;
    rng_seed(&r, 8);
    const struct fate *f = fate_find("lookm");
    const struct merge_options o = merge_options_default();
    for (uint32_t run_no = 0; run_no < 2000; run_no++) {
        uint32_t n = 2 + (uint32_t)rng_below(&r, N_MAX - 2);
        uint32_t guest = (uint32_t)rng_below(&r, n);
        draw(&w, &r, n);
        for (uint32_t i = 0; i < n; i++)
            w.state[i] = i == guest              ? FATE_LEAVES
                         : rng_below(&r, 8) == 0 ? FATE_FIXED
                                                 : FATE_STAYS;
        memcpy(w.key[rng_below(&r, n)], w.key[rng_below(&r, n)],
               sizeof(w.key[0]));
        if (rng_below(&r, 4) == 0)
            memset(w.key[rng_below(&r, n)], 0, sizeof(w.key[0]));
        if (rng_below(&r, 8) == 0)
            memset(w.key[guest], 0, sizeof(w.key[0]));
        uint32_t host = most_similar(&w, guest);
        run(&w, f, &o);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(w.changed[i] != 0, i == host);
    }
}

static void only_entries_that_stay_and_may_change_do(void **state)
{
    (void)state;
    static struct world w;
    struct rng r;
    const struct merge_options o = merge_options_default();
    rng_seed(&r, 6);
    for (uint32_t f = 0; fate_at(f) != NULL; f++)
        for (int round = 0; round < 50; round++) {
            uint64_t n_leaves = 0, n_hosts = 0;
            draw(&w, &r, (uint32_t)rng_below(&r, N_MAX));
            run(&w, fate_at(f), &o);
            for (uint32_t i = 0; i < w.l.n; i++) {
                n_leaves += w.state[i] == FATE_LEAVES;
                n_hosts += w.changed[i] != 0;
                if (w.state[i] != FATE_STAYS)
                    assert_true(w.changed[i] == 0 && w.ratio[i] == 1);
                if (!fate_at(f)->new_keys)
                    assert_false(w.changed[i] & FATE_NEW_KEY);
            }
            const struct merge_counts *c = &w.out.counts;
            assert_int_equal(c->evicted, n_leaves);
            assert_int_equal(c->hosts, n_hosts);
            assert_true(c->merged <= c->routed && c->routed <= c->evicted);
        }
}

static void evicting_nothing_or_everything_changes_nothing(void **state)
{
    (void)state;
    static const uint8_t states[] = {FATE_LEAVES, FATE_STAYS, FATE_FIXED};
    static struct world w;
    struct rng r;
    const struct merge_options o = merge_options_default();
    rng_seed(&r, 7);
    for (uint32_t f = 0; fate_at(f) != NULL; f++)
        for (size_t s = 0; s < 3; s++) {
            draw(&w, &r, 80);
            memset(w.state, states[s], sizeof(w.state));
            run(&w, fate_at(f), &o);
            for (uint32_t i = 0; i < w.l.n; i++)
                assert_true(w.changed[i] == 0 && w.ratio[i] == 1);
            assert_int_equal(w.out.counts.routed, 0);
            assert_int_equal(w.out.counts.evicted,
                             states[s] == FATE_LEAVES ? 80 : 0);
        }
}

/* A fate that says so must give for each bucket what it gives for the list. */
static void buckets_do_not_see_each_other(void **state)
{
    (void)state;
    static struct world w, part;
    struct rng r;
    const struct merge_options o = merge_options_default();
    const struct fate *f = fate_find("selkv");
    rng_seed(&r, 8);
    draw(&w, &r, N_MAX);
    part = w;
    attach(&part, w.l.n);
    run(&w, f, &o);
    assert_true(f->by_bucket && w.out.counts.hosts > 5);
    for (uint32_t from = 0, to; from < N_MAX; from = to) {
        for (to = from; to < N_MAX && w.pos[to] / 32 == w.pos[from] / 32;)
            to++;
        struct fate_list l = w.l;
        l.n = to - from;
        l.pos += from, l.state += from, l.mass += from;
        l.value += (size_t)from * D;
        l.band += (size_t)from * BAND_CELLS;
        part.l = l;
        part.out.changed = part.changed + from;
        part.out.value = part.new_value[from];
        part.out.ratio = part.ratio + from;
        run(&part, f, &o);
    }
    assert_memory_equal(part.changed, w.changed, sizeof(w.changed));
    assert_memory_equal(part.new_value, w.new_value, sizeof(w.new_value));
    assert_memory_equal(part.ratio, w.ratio, sizeof(w.ratio));
    assert_int_equal(part.out.counts.merged, w.out.counts.merged);
}

static void the_seed_decides_what_cam_does(void **state)
{
    (void)state;
    static struct world w, v;
    struct rng r;
    struct merge_options o = merge_options_default();
    const struct fate *f = fate_find("cam");
    rng_seed(&r, 9);
    draw(&w, &r, 100);
    v = w;
    attach(&v, 100);
    run(&w, f, &o);
    run(&v, f, &o);
    assert_memory_equal(v.new_value, w.new_value, sizeof(w.new_value));
    attach(&v, 100);
    o.seed = 1;
    run(&v, f, &o);
    assert_memory_not_equal(v.new_value, w.new_value, sizeof(w.new_value));
}

static void fates_are_found_by_name(void **state)
{
    (void)state;
    assert_ptr_equal(fate_find("merge"), fate_find("selkv"));
    for (uint32_t i = 0; fate_at(i) != NULL; i++)
        assert_ptr_equal(fate_find(fate_at(i)->name), fate_at(i));
    assert_null(fate_find("snapkv"));
    assert_null(fate_find(""));
    assert_int_equal(fate_find("selkv")->needs,
                     FATE_VALUES | FATE_MASS | FATE_BAND);
    assert_int_equal(fate_find("drop")->needs, 0);
}

static void counts_add_up(void **state)
{
    (void)state;
    struct merge_counts a = {0};
    const struct merge_counts b = {8, 4, 2, 1, 1.5, 0.25f};
    assert_true(merge_routed_share(&a) == 0 && merge_mean_gate(&a) == 0);
    merge_counts_add(&a, &b);
    merge_counts_add(&a, &b);
    assert_int_equal(a.evicted, 16);
    assert_int_equal(a.routed, 8);
    assert_int_equal(a.merged, 4);
    assert_int_equal(a.hosts, 2);
    assert_true(merge_routed_share(&a) == 0.5);
    assert_true(merge_mean_gate(&a) == 0.375);
    assert_true(a.log_ratio == 0.25f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fate_gives_what_numpy_gives),
        cmocka_unit_test(the_worked_example_comes_out),
        cmocka_unit_test(closed_gates_are_the_same_as_dropping),
        cmocka_unit_test(a_duplicate_gives_its_mass_and_changes_no_value),
        cmocka_unit_test(random_lists_agree_with_double_precision),
        cmocka_unit_test(what_comes_out_is_a_mean_of_what_went_in),
        cmocka_unit_test(lookm_finds_the_most_similar_key_of_any_number),
        cmocka_unit_test(only_entries_that_stay_and_may_change_do),
        cmocka_unit_test(evicting_nothing_or_everything_changes_nothing),
        cmocka_unit_test(buckets_do_not_see_each_other),
        cmocka_unit_test(the_seed_decides_what_cam_does),
        cmocka_unit_test(fates_are_found_by_name),
        cmocka_unit_test(counts_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
