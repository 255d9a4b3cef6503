#include "kernels_check.h"

#include "runtime/kernels/avx2_attend.h"

enum { ROWS = 11, DIM_MAX = 128 };

/* A full block of random entries, with the floats that are stored. */
struct fixture {
    struct kv_layout layout;
    struct attend_block block;
    uint8_t *memory;
    float *room;
    float key[KV_BLOCK][DIM_MAX], value[KV_BLOCK][DIM_MAX];
    float q[ROWS * DIM_MAX];
};

/* With int8 the passes give the plain integers, so scales are taken off. */
static void unscale(const struct fixture *f, const uint8_t *unit, uint32_t at,
                    uint32_t slot, float *x)
{
    float scale;
    if (f->layout.type != KV_Q8_0)
        return;
    memcpy(&scale, unit + at + slot * sizeof(scale), sizeof(scale));
    for (uint32_t i = 0; i < f->layout.head_dim; i++)
        x[i] = rintf(x[i] / scale);
}

static struct fixture *fixture_new(enum kv_type type, uint32_t dim)
{
    struct fixture *f = check_alloc(sizeof(*f));
    struct rng r;
    memset(f, 0, sizeof(*f));
    rng_seed(&r, dim + (uint64_t)type);
    kv_layout_init(&f->layout, type, dim);
    f->memory = check_alloc((uint64_t)ATTEND_UNITS * f->layout.data_bytes);
    f->room = check_alloc(sizeof(float) * KV_BLOCK * dim);
    f->block.layout = &f->layout;
    f->block.n_units = ATTEND_UNITS;
    for (uint32_t u = 0; u < ATTEND_UNITS; u++) {
        uint8_t *unit = f->memory + u * f->layout.data_bytes;
        f->block.unit[u] = f->block.next[u] = unit;
        for (uint32_t s = 0; s < KV_UNIT; s++) {
            float *k = f->key[u * KV_UNIT + s], *v = f->value[u * KV_UNIT + s];
            check_fill(&r, k, dim);
            check_fill(&r, v, dim);
            ops_reference.kv_store(&f->layout, unit, s, k, v, 0.0f);
            ops_reference.kv_load(&f->layout, unit, s, k, v);
            unscale(f, unit, f->layout.k_scale, s, k);
            unscale(f, unit, f->layout.v_scale, s, v);
        }
    }
    check_fill(&r, f->q, ROWS * dim);
    return f;
}

static void fixture_free(struct fixture *f)
{
    free(f->memory);
    free(f->room);
    free(f);
}

static void check_scores(struct fixture *f, int n_rows)
{
    uint32_t d = f->layout.head_dim;
    float direct[ROWS * KV_BLOCK], converted[ROWS * KV_BLOCK];
    double want[KV_BLOCK];
    size_t bytes = sizeof(float) * (size_t)(n_rows * KV_BLOCK);
    f->block.kv = NULL;
    avx2_attend_qk(&f->block, f->q, n_rows, direct);
    f->block.kv = f->room;
    avx2_attend_qk(&f->block, f->q, n_rows, converted);
    assert_memory_equal(direct, converted, bytes);
    for (int r = 0; r < n_rows; r++) {
        for (int e = 0; e < KV_BLOCK; e++) {
            want[e] = 0;
            for (uint32_t i = 0; i < d; i++)
                want[e] +=
                    (double)f->q[(uint32_t)r * d + i] * (double)f->key[e][i];
        }
        assert_true(check_nmse(direct + r * KV_BLOCK, want, KV_BLOCK) < 1e-12);
    }
}

/* Row r sees seen[r] entries; states start with something in them. */
static void check_values(struct fixture *f, int n_rows, int first_seen)
{
    int64_t d = f->layout.head_dim, stride = d + 8;
    float weight[ROWS * KV_BLOCK], fade[ROWS];
    float before[ROWS * (DIM_MAX + 8)], state[2][ROWS * (DIM_MAX + 8)];
    int seen[ROWS];
    struct rng r;
    rng_seed(&r, (uint64_t)n_rows);
    check_fill(&r, weight, n_rows * KV_BLOCK);
    check_fill(&r, fade, n_rows);
    check_fill(&r, before, n_rows * stride);
    for (int i = 0; i < n_rows; i++) {
        seen[i] = first_seen + i / 3 < KV_BLOCK ? first_seen + i / 3 : KV_BLOCK;
        /* What a row does not see must not be touched. */
        for (int e = seen[i]; e < KV_BLOCK; e++)
            weight[i * KV_BLOCK + e] = NAN;
    }
    for (int way = 0; way < 2; way++) {
        memcpy(state[way], before, sizeof(before));
        f->block.kv = way == 0 ? NULL : f->room;
        avx2_attend_pv(&f->block, &(struct attend_rows){.weight = weight,
                                                        .fade = fade,
                                                        .seen = seen,
                                                        .n = n_rows,
                                                        .state = state[way],
                                                        .stride = stride});
    }
    for (int i = 0; i < n_rows; i++) {
        double want[DIM_MAX];
        const float *got = state[0] + i * stride;
        assert_memory_equal(got, state[1] + i * stride,
                            sizeof(float) * (size_t)stride);
        for (int64_t j = 0; j < d; j++) {
            want[j] = (double)before[i * stride + j] * (double)fade[i];
            for (int e = 0; e < seen[i]; e++)
                want[j] +=
                    (double)weight[i * KV_BLOCK + e] * (double)f->value[e][j];
        }
        assert_true(check_nmse(got, want, d) < 1e-12);
        assert_memory_equal(got + d, before + i * stride + d,
                            sizeof(float) * 8);
    }
}

static void both_passes_agree_with_float64_in_either_form(void **state)
{
    (void)state;
    static const uint32_t dims[] = {8, 64, 80, 128};
    if (ops_avx2() == NULL) {
        fputs("SKIPPED: this CPU or OS cannot run avx2\n", stderr);
        return;
    }
    for (int t = KV_F16; t <= KV_F32; t++) {
        for (int i = 0; i < 4; i++) {
            struct fixture *f = fixture_new((enum kv_type)t, dims[i]);
            for (int n = 1; n <= ROWS; n++) {
                check_scores(f, n);
                check_values(f, n, KV_BLOCK);
                check_values(f, n, 1);
                check_values(f, n, 30);
            }
            fixture_free(f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_passes_agree_with_float64_in_either_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
