/* Logits of the two real models against float64 ones.
 *
 * usage: test_real_models [long]
 *
 * `long` takes all golden prompts, also with the slow reference kernels. */
#include "tests/unit/runtime/model/real_check.h"

/* Mean over the golden positions below n_tokens of n_prompts prompts. */
static double logit_error(struct loaded *l, int64_t n_prompts,
                          uint32_t n_tokens)
{
    const struct golden_array *shape = golden_find(&l->golden, "logits", "f32");
    int64_t n_pos = shape->dim[1], n_col = shape->dim[2];
    int64_t len = golden_find(&l->golden, "prompts", "i32")->dim[1];
    int32_t *prompts = golden_copy(&l->golden, "prompts", "i32");
    uint32_t *pos = golden_copy(&l->golden, "positions", "i32");
    int32_t *col = golden_copy(&l->golden, "columns", "i32");
    float *want = golden_copy(&l->golden, "logits", "f32");
    uint32_t V = l->rig.n_vocab, n_rows = 0;
    while (n_rows < n_pos && pos[n_rows] < n_tokens)
        n_rows++;
    float *got = malloc(sizeof(*got) * n_rows * V);
    assert_non_null(got);
    assert_true(n_prompts <= shape->dim[0] && n_rows > 0);
    double sum = 0;
    for (int64_t p = 0; p < n_prompts; p++) {
        struct table *t = rig_table(&l->rig);
        rig_feed(&l->rig, t, prompts + p * len, n_tokens, n_tokens, pos, n_rows,
                 got);
        for (uint32_t i = 0; i < n_rows; i++) {
            struct nmse s = {0, 0};
            for (int64_t k = 0; k < n_col; k++)
                nmse_add(&s, (double)got[(size_t)i * V + (size_t)col[k]],
                         (double)want[(p * n_pos + i) * n_col + k]);
            sum += s.error / s.size;
        }
        table_free(t);
    }
    free(prompts);
    free(pos);
    free(col);
    free(want);
    free(got);
    return sum / (double)(n_prompts * n_rows);
}

static void check_logits(const char *table, const struct real *r,
                         int64_t n_prompts, uint32_t n_tokens, double limit)
{
    struct loaded l;
    if (!open_real(&l, r, table, KV_F32))
        return;
    int64_t t0 = clock_us();
    double e = logit_error(&l, n_prompts, n_tokens);
    print_message("%s, %s: NMSE %.3g over %lld x %u tokens, %.1f s\n", r->file,
                  table, e, (long long)n_prompts, n_tokens,
                  (double)(clock_us() - t0) / 1e6);
    close_real(&l);
    assert_true(e <= limit);
}

/* The reference kernels are slow: one prompt here, all in the long run. */
static void reference_kernels_agree_to_1e_8(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 2; i++)
        check_logits("reference", &real_models[i], is_long ? 4 : 1, 512, 1e-8);
    end();
}

static void avx2_kernels_agree_to_1e_6(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 2; i++)
        check_logits("avx2", &real_models[i],
                     is_long || real_models[i].is_default ? 4 : 2, 512, 1e-6);
    end();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_kernels_agree_to_1e_8),
        cmocka_unit_test(avx2_kernels_agree_to_1e_6),
    };
    is_long = argc > 1 && strcmp(argv[1], "long") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
