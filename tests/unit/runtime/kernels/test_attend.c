#include "kernels_check.h"

enum { LEN_MAX = 1600, UNITS_MAX = LEN_MAX / KV_UNIT };

static const enum kv_type KV_TYPES[] = {KV_F16, KV_Q8_0, KV_F32};

/* One list with its queries. Units lie in memory in shuffled order, and every
 * slot past the end of the list holds NaN. */
struct problem {
    const struct ops *ops;
    struct kv_layout layout;
    uint8_t *arena;
    const uint8_t *unit[UNITS_MAX];
    int64_t len;
    int n_query, group;
    float *q, *out;
    int64_t stride;
    float *k, *v; /* what is stored, as float32: [len][head_dim] */
    float *bias;
};

static void poison(const struct kv_layout *l, uint8_t *unit, uint32_t slot)
{
    float nan = NAN;
    memcpy(unit + l->bias + 4 * slot, &nan, 4);
    if (l->type == KV_Q8_0) {
        memcpy(unit + l->k_scale + 4 * slot, &nan, 4);
        memcpy(unit + l->v_scale + 4 * slot, &nan, 4);
    }
    size_t bytes = l->elem_bytes;
    for (uint32_t i = 0; i < l->head_dim; i++) {
        memset(unit + l->k + bytes * kv_key_index(l, slot, i), 0xFF, bytes);
        memset(unit + l->v + bytes * (slot * l->head_dim + i), 0xFF, bytes);
    }
}

static void fill_list(struct problem *p, struct rng *r, float odds_of_masked)
{
    uint32_t d = p->layout.head_dim;
    int64_t n_units = (p->len + KV_UNIT - 1) / KV_UNIT;
    int64_t base = (int64_t)rng_below(r, (uint64_t)n_units);
    float key[OPS_HEAD_DIM_MAX], value[OPS_HEAD_DIM_MAX];
    for (int64_t u = 0; u < n_units; u++) {
        int64_t place = n_units - 1 - (u + base) % n_units;
        uint8_t *unit = p->arena + place * p->layout.data_bytes;
        p->unit[u] = unit;
        for (uint32_t s = 0; s < KV_UNIT; s++) {
            int64_t e = u * KV_UNIT + s;
            poison(&p->layout, unit, s);
            if (e >= p->len)
                continue;
            check_fill(r, key, d);
            check_fill(r, value, d);
            float bias =
                rng_float(r) < odds_of_masked ? -INFINITY : check_normal(r);
            p->bias[e] = bias;
            p->ops->kv_store(&p->layout, unit, s, key, value, bias);
            ops_reference.kv_load(&p->layout, unit, s, p->k + e * d,
                                  p->v + e * d);
        }
    }
}

/* len: entries that the last query row sees. */
static struct problem *problem_new(const struct ops *ops, enum kv_type type,
                                   uint32_t head_dim, int group, int n_query,
                                   int64_t len, float odds_of_masked)
{
    struct problem *p = check_alloc(sizeof(*p));
    *p = (struct problem){
        .ops = ops, .len = len, .n_query = n_query, .group = group};
    kv_layout_init(&p->layout, type, head_dim);
    struct rng r;
    rng_seed(&r, (uint64_t)(len * 1000 + group * 10 + (int)type));
    p->stride = (int64_t)head_dim * group + 24;
    uint64_t n = (uint64_t)(p->stride * n_query);
    p->q = check_alloc(n * sizeof(float));
    p->out = check_alloc(n * sizeof(float));
    check_fill(&r, p->q, (int64_t)n);
    uint64_t floats = (uint64_t)len * head_dim;
    p->k = check_alloc(floats * sizeof(float));
    p->v = check_alloc(floats * sizeof(float));
    p->bias = check_alloc((uint64_t)len * sizeof(float));
    p->arena = check_alloc((uint64_t)UNITS_MAX * p->layout.data_bytes);
    fill_list(p, &r, odds_of_masked);
    return p;
}

static void problem_free(struct problem *p)
{
    free(p->q);
    free(p->out);
    free(p->k);
    free(p->v);
    free(p->bias);
    free(p->arena);
    free(p);
}

/* Arguments for query rows [row, row + n). */
static struct attend_args args_of(const struct problem *p, int row, int n,
                                  float *out)
{
    return (struct attend_args){.layout = &p->layout,
                                .unit = p->unit,
                                .n_visible = p->len - p->n_query + 1 + row,
                                .n_query = n,
                                .group = p->group,
                                .q = p->q + row * p->stride,
                                .q_stride = p->stride,
                                .out = out,
                                .out_stride = p->stride,
                                .scale =
                                    1.0f / sqrtf((float)p->layout.head_dim)};
}

static void run(const struct problem *p, int row, int n, float *out)
{
    struct attend_args a = args_of(p, row, n, out);
    uint64_t bytes = p->ops->attend_scratch_bytes(&a);
    void *scratch = check_alloc(bytes);
    memset(scratch, 0xFF, bytes);
    p->ops->attend(&a, scratch);
    free(scratch);
}

/* Softmax attention in float64, in one piece. */
static void want_row(const struct problem *p, int row, int g, double *out)
{
    uint32_t d = p->layout.head_dim;
    int64_t n = p->len - p->n_query + 1 + row;
    const float *q = p->q + row * p->stride + g * (int64_t)d;
    double score[LEN_MAX], top = -INFINITY, sum = 0;
    for (int64_t e = 0; e < n; e++) {
        double dot = 0;
        for (uint32_t i = 0; i < d; i++)
            dot += (double)q[i] * (double)p->k[e * d + i];
        score[e] = dot / sqrt((double)d) + (double)p->bias[e];
        top = score[e] > top ? score[e] : top;
    }
    memset(out, 0, sizeof(double) * d);
    if (top == -INFINITY)
        return;
    for (int64_t e = 0; e < n; e++) {
        double weight = exp(score[e] - top);
        sum += weight;
        for (uint32_t i = 0; i < d; i++)
            out[i] += weight * (double)p->v[e * d + i];
    }
    for (uint32_t i = 0; i < d; i++)
        out[i] /= sum;
}

static void check_against_float64(const struct problem *p)
{
    int64_t d = p->layout.head_dim;
    double want[OPS_HEAD_DIM_MAX];
    run(p, 0, p->n_query, p->out);
    for (int i = 0; i < p->n_query; i++) {
        for (int g = 0; g < p->group; g++) {
            want_row(p, i, g, want);
            double e = check_nmse(p->out + i * p->stride + g * d, want, d);
            if (!(e < 1e-11))
                fail_msg("%s %s d %d group %d query %d of %d len %d: %g",
                         p->ops->name, kv_type_name(p->layout.type), (int)d,
                         p->group, i, p->n_query, (int)p->len, e);
        }
    }
}

static void attention_is_that_of_float64_for_every_length(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1,   2,   15,   16,   17,  63,  64,
                                      65,  127, 128,  200,  511, 512, 513,
                                      575, 577, 1024, 1025, 1500};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 3; t++) {
            for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
                struct problem *p =
                    problem_new(o, KV_TYPES[t], 64, 3, 1, lengths[n], 0.0f);
                check_against_float64(p);
                problem_free(p);
            }
        }
    }
}

static void head_sizes_and_groups_all_work(void **state)
{
    (void)state;
    static const uint32_t dims[] = {8, 24, 64, 80, 96, 128, 256};
    static const int groups[] = {1, 2, 3, 4, 5, 7, 8, 12, 32};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 3; t++) {
            for (int d = 0; d < 7; d++) {
                for (int g = 0; g < 9; g++) {
                    struct problem *p =
                        problem_new(o, KV_TYPES[t], dims[d], groups[g],
                                    1 + g % 3, 77, 0.2f);
                    check_against_float64(p);
                    problem_free(p);
                }
            }
        }
    }
}

static void masked_entries_weigh_nothing(void **state)
{
    (void)state;
    static const float odds[] = {0.5f, 0.95f, 0.999f};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 9; t++) {
            struct problem *p =
                problem_new(o, KV_TYPES[t % 3], 64, 3, 4, 1100, odds[t / 3]);
            check_against_float64(p);
            problem_free(p);
        }
    }
}

static void a_row_that_sees_nothing_gives_zeros(void **state)
{
    (void)state;
    static const int64_t lengths[] = {5, 64, 700};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 9; t++) {
            struct problem *p =
                problem_new(o, KV_TYPES[t % 3], 64, 2, 2, lengths[t / 3], 2.0f);
            run(p, 0, 2, p->out);
            for (int64_t k = 0; k < 2 * 64; k++)
                assert_true(p->out[k] == 0.0f);
            problem_free(p);
        }
    }
}

/* The bits of every query row alone must be those of the chunk. */
static void check_rows(const struct ops *o, enum kv_type type, int group,
                       int n_query, int64_t len)
{
    struct problem *p = problem_new(o, type, 64, group, n_query, len, 0.1f);
    size_t row_floats = (size_t)(group * 64);
    float *one = check_alloc(sizeof(float) * (size_t)p->stride * 16);
    run(p, 0, n_query, p->out);
    for (int n = 1; n < n_query; n = 2 * n + 1) {
        for (int row = 0; row + n <= n_query; row += n) {
            run(p, row, n, one);
            for (int i = 0; i < n; i++) {
                if (memcmp(one + i * p->stride, p->out + (row + i) * p->stride,
                           row_floats * sizeof(float)) != 0)
                    fail_msg("%s %s group %d: row %d of %d, len %d, in calls "
                             "of %d",
                             o->name, kv_type_name(type), group, row + i,
                             n_query, (int)len, n);
            }
        }
    }
    free(one);
    problem_free(p);
}

static void a_query_row_has_the_same_bits_alone_and_in_a_chunk(void **state)
{
    (void)state;
    static const int groups[] = {1, 2, 3, 4, 7, 8};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 3; t++) {
            for (int g = 0; g < 6; g++) {
                check_rows(o, KV_TYPES[t], groups[g], 16, 16);
                check_rows(o, KV_TYPES[t], groups[g], 16, 70);
                check_rows(o, KV_TYPES[t], groups[g], 16, 520);
                check_rows(o, KV_TYPES[t], groups[g], 5, 1029);
                check_rows(o, KV_TYPES[t], groups[g], 2, 129);
            }
        }
    }
}

/* Hosts must agree, whichever of the two they run. */
static void check_wide(const struct ops *narrow, const struct ops *wide,
                       enum kv_type type, uint32_t dim, int64_t len)
{
    enum { QUERIES = 16, GROUP = 3 };
    int n_query = len < QUERIES ? (int)len : QUERIES;
    struct problem *p =
        problem_new(narrow, type, dim, GROUP, n_query, len, 0.1f);
    size_t n = (size_t)(p->stride * n_query);
    int64_t stride = (len + KV_UNIT - 1) / KV_UNIT * KV_UNIT;
    size_t n_logits = (size_t)(stride * n_query * GROUP);
    float *out[2], *logit[2];
    for (int i = 0; i < 2; i++) {
        p->ops = i == 0 ? narrow : wide;
        out[i] = check_alloc(n * sizeof(float));
        logit[i] = check_alloc(n_logits * sizeof(float));
        memset(out[i], 0, n * sizeof(float));
        memset(logit[i], 0, n_logits * sizeof(float));
        run(p, 0, n_query, out[i]);
        struct attend_args a = args_of(p, 0, n_query, NULL);
        void *scratch = check_alloc(p->ops->attend_scratch_bytes(&a));
        a.n_visible = len;
        p->ops->attend_logits(&a, logit[i], stride, scratch);
        free(scratch);
    }
    assert_memory_equal(out[0], out[1], n * sizeof(float));
    for (int r = 0; r < n_query * GROUP; r++)
        assert_memory_equal(logit[0] + r * stride, logit[1] + r * stride,
                            (size_t)len * sizeof(float));
    for (int i = 0; i < 2; i++) {
        free(out[i]);
        free(logit[i]);
    }
    problem_free(p);
}

static void avx512_gives_the_bits_of_avx2(void **state)
{
    (void)state;
    static const uint32_t dims[] = {8, 24, 64, 80, 96, 128, 256};
    static const int64_t lengths[] = {5, 16, 40, 63, 64, 65, 600, 1030};
    const struct ops *narrow = check_table(1), *wide = check_table(2);
    for (int t = 0; wide != NULL && t < 3 * 7 * 8; t++)
        check_wide(narrow, wide, KV_TYPES[t % 3], dims[t / 3 % 7],
                   lengths[t / 21]);
}

static void segments_joined_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 64, 511, 512, 513, 1024, 1500};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 21; t++) {
            struct problem *p =
                problem_new(o, KV_TYPES[t % 3], 80, 7, 1, lengths[t / 3], 0.1f);
            float *joined = check_alloc(sizeof(float) * (size_t)p->stride);
            struct attend_args a = args_of(p, 0, 1, p->out);
            float norm[2][14];
            void *scratch = check_alloc(o->attend_scratch_bytes(&a));
            a.norm = norm[0];
            o->attend(&a, scratch);
            a.out = joined;
            a.norm = norm[1];
            int64_t n = (a.n_visible + KV_SEGMENT - 1) / KV_SEGMENT;
            int64_t floats = o->attend_state_floats(80) * p->group;
            float *states = check_alloc(sizeof(float) * (size_t)(n * floats));
            for (int64_t s = n - 1; s >= 0; s--)
                o->attend_segment(&a, s, states + s * floats, scratch);
            o->attend_join(&a, states, n);
            assert_memory_equal(joined, p->out,
                                sizeof(float) * (size_t)(80 * p->group));
            assert_memory_equal(norm[0], norm[1], sizeof(norm[0]));
            free(scratch);
            free(states);
            free(joined);
            problem_free(p);
        }
    }
}

static double want_logit(const struct problem *p, int row, int g, int64_t e)
{
    uint32_t d = p->layout.head_dim;
    const float *q = p->q + row * p->stride + g * (int64_t)d;
    double dot = 0;
    for (uint32_t i = 0; i < d; i++)
        dot += (double)q[i] * (double)p->k[e * d + i];
    return dot / sqrt((double)d) + (double)p->bias[e];
}

static void check_logits(const struct problem *p)
{
    struct attend_args a = args_of(p, 0, p->n_query, NULL);
    int64_t stride = (p->len + KV_UNIT - 1) / KV_UNIT * KV_UNIT;
    int rows = p->n_query * p->group;
    float *got = check_alloc((uint64_t)(stride * rows) * sizeof(float));
    void *scratch = check_alloc(p->ops->attend_scratch_bytes(&a));
    a.n_visible = p->len;
    p->ops->attend_logits(&a, got, stride, scratch);
    for (int r = 0; r < rows; r++)
        for (int64_t e = 0; e < p->len; e++) {
            double want = want_logit(p, r / p->group, r % p->group, e);
            double x = (double)got[r * stride + e];
            /* Sums of up to 256 products of about 1. */
            if (isinf(want) ? !(x < 0 && isinf(x)) : !(fabs(x - want) < 1e-5))
                fail_msg("%s %s row %d entry %d of %d: %g, not %g",
                         p->ops->name, kv_type_name(p->layout.type), r, (int)e,
                         (int)p->len, x, want);
        }
    free(scratch);
    free(got);
}

static void logits_are_those_of_float64_for_all_entries(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 16, 17, 63, 65, 200, 700};
    static const uint32_t dims[] = {8, 64, 80, 128};
    static const int queries[] = {1, 2, 5, 16};
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 3 * 7 * 4; t++) {
            int n_query = queries[t % 4];
            int64_t len = lengths[t / 12];
            struct problem *p =
                problem_new(o, KV_TYPES[t % 3], dims[t % 4], 1 + t % 7,
                            len < n_query ? (int)len : n_query, len, 0.1f);
            check_logits(p);
            problem_free(p);
        }
    }
}

/* The largest logit of each row, and the sum of what is relative to it. */
static void check_norm(const struct problem *p, const float *norm,
                       int64_t stride)
{
    for (int r = 0; r < p->n_query * p->group; r++) {
        int row = r / p->group, g = r % p->group;
        double top = -INFINITY, sum = 0;
        for (int64_t e = 0; e < p->len - p->n_query + 1 + row; e++)
            top = fmax(top, want_logit(p, row, g, e));
        for (int64_t e = 0; e < p->len - p->n_query + 1 + row; e++)
            sum += exp(want_logit(p, row, g, e) - top);
        const float *got = norm + row * stride + 2 * g;
        assert_true(fabs((double)got[0] - top) < 1e-5);
        assert_true(fabs((double)got[1] / sum - 1) < 2e-5);
    }
}

static void attention_says_what_it_divided_by(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 3; t++) {
            struct problem *p =
                problem_new(o, KV_TYPES[t], 64, 3, 5, 1100, 0.1f);
            struct attend_args a = args_of(p, 0, 5, p->out);
            void *scratch = check_alloc(o->attend_scratch_bytes(&a));
            float norm[5 * 8];
            a.norm = norm;
            a.norm_stride = 8;
            o->attend(&a, scratch);
            check_norm(p, norm, 8);
            free(scratch);
            problem_free(p);
        }
    }
}

static void large_scores_do_not_overflow(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 3; t++) {
            struct problem *p =
                problem_new(o, KV_TYPES[t], 64, 3, 3, 600, 0.0f);
            for (int64_t k = 0; k < 3 * p->stride; k++)
                p->q[k] *= 3000.0f;
            run(p, 0, 3, p->out);
            double want[64];
            for (int r = 0; r < 3; r++) {
                want_row(p, r, 1, want);
                /* Scores near 10^4 have steps of 10^-3, the largest wins. */
                assert_true(check_nmse(p->out + r * p->stride + 64, want, 64) <
                            1e-4);
            }
            problem_free(p);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_that_of_float64_for_every_length),
        cmocka_unit_test(head_sizes_and_groups_all_work),
        cmocka_unit_test(masked_entries_weigh_nothing),
        cmocka_unit_test(a_row_that_sees_nothing_gives_zeros),
        cmocka_unit_test(a_query_row_has_the_same_bits_alone_and_in_a_chunk),
        cmocka_unit_test(avx512_gives_the_bits_of_avx2),
        cmocka_unit_test(segments_joined_give_the_bits_of_the_whole),
        cmocka_unit_test(logits_are_those_of_float64_for_all_entries),
        cmocka_unit_test(attention_says_what_it_divided_by),
        cmocka_unit_test(large_scores_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
