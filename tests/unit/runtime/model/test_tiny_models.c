/* Tiny random models of every family, made with their golden logits by
 * tests/tools/make_tiny_models.py (an implementation that shares nothing with
 * ours, in float64). */
#include "tests/unit/runtime/model/tiny_models.h"

/* Mean over the positions of the error of one position's logits. */
static double error_of(const char *name, const struct ops *ops,
                       enum kv_type kv_type, uint32_t chunk)
{
    struct golden g;
    struct rig r;
    tiny_open_golden(&g, name);
    const struct rig_options o = {.ops = ops,
                                  .n_threads = 2,
                                  .kv_type = kv_type,
                                  .max_rows = 256,
                                  .max_runs = 4,
                                  .max_context = 2048,
                                  .kv_bytes = 16 << 20};
    tiny_open(&r, name, &o);
    int32_t *tokens = golden_copy(&g, "tokens", "i32");
    uint32_t *rows = golden_copy(&g, "positions", "i32");
    float *want = golden_copy(&g, "logits", "f32");
    uint32_t n = (uint32_t)golden_find(&g, "tokens", "i32")->n;
    uint32_t n_rows = (uint32_t)golden_find(&g, "positions", "i32")->n;
    assert_int_equal(golden_find(&g, "logits", "f32")->n, n_rows * r.n_vocab);
    float *got = malloc(sizeof(*got) * n_rows * r.n_vocab);
    assert_non_null(got);
    struct table *t = rig_table(&r);
    rig_feed(&r, t, tokens, n, chunk, rows, n_rows, got);

    double mean = 0;
    for (uint32_t i = 0; i < n_rows; i++) {
        struct nmse s = {0, 0};
        for (uint32_t k = 0; k < r.n_vocab; k++)
            nmse_add(&s, (double)got[i * r.n_vocab + k],
                     (double)want[i * r.n_vocab + k]);
        mean += s.error / s.size / n_rows;
    }
    table_free(t);
    rig_close(&r);
    golden_close(&g);
    free(tokens);
    free(rows);
    free(want);
    free(got);
    return mean;
}

static void check_all(const char *table, enum kv_type kv_type, double limit)
{
    const struct ops *ops = ops_find(table);
    if (!ops) {
        fprintf(stderr, "SKIPPED: this CPU or OS cannot run %s\n", table);
        return;
    }
    for (int i = 0; i < N_TINY_MODELS; i++) {
        /* Slow kernels and a long prompt: once is enough. */
        if (ops == &ops_reference &&
            (kv_type != KV_F32 || CHECK_IS_SANITIZED) &&
            (strcmp(tiny_models[i], "llama-gqa3-64") == 0 ||
             strcmp(tiny_models[i], "qwen3-gqa2-128") == 0))
            continue;
        double e = error_of(tiny_models[i], ops, kv_type, 64);
        print_message("%s, %s KV, %s: NMSE %.2g\n", table,
                      kv_type_name(kv_type), tiny_models[i], e);
        assert_true(e <= limit);
    }
}

static void reference_kernels_give_the_golden_logits(void **state)
{
    (void)state;
    check_all("reference", KV_F32, 1e-8);
}

static void avx2_kernels_give_the_golden_logits(void **state)
{
    (void)state;
    check_all("avx2", KV_F32, 1e-6);
}

/* Random weights make attention sharper than trained ones do, so that what a
 * rounded key costs here is an upper bound. */
static void f16_keys_and_values_stay_close(void **state)
{
    (void)state;
    check_all("reference", KV_F16, 1e-5);
    check_all("avx2", KV_F16, 1e-5);
}

static void q8_0_keys_and_values_stay_near(void **state)
{
    (void)state;
    check_all("reference", KV_Q8_0, 1e-2);
    check_all("avx2", KV_Q8_0, 1e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_kernels_give_the_golden_logits),
        cmocka_unit_test(avx2_kernels_give_the_golden_logits),
        cmocka_unit_test(f16_keys_and_values_stay_close),
        cmocka_unit_test(q8_0_keys_and_values_stay_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
