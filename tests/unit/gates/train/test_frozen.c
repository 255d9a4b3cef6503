/* The trainer's own forward pass against logits of another implementation
 * (tests/tools/make_tiny_models.py), and against the runtime's on a real
 * model. */
#include "tests/unit/gates/train/tiny.h"
#include "tests/unit/runtime/model/tiny_models.h"

#include "gates/train/frozen.h"
#include "gates/train/layer.h"
#include "runtime/text/tokenizer.h"

/* x[n][n_embd] after the last block. */
static float *last_states(const struct frozen *f, struct workers *k,
                          const int32_t *tokens, uint32_t n)
{
    size_t D = f->shape.n_embd;
    struct mat *t = NULL;
    struct layer_work *w = NULL;
    struct layer_options o = {8, n, 0};
    struct errmsg m = {""};
    float *x = malloc(n * D * sizeof(float));
    assert_non_null(x);
    for (uint32_t i = 0; i < n; i++)
        memcpy(x + i * D, f->embd + (size_t)tokens[i] * D, D * sizeof(float));
    if (mat_new(&t, k, &m) != OK || layer_work_new(&w, f, t, &o, &m) != OK)
        fail_msg("%s", m.text);
    assert_true(layer_work_bytes(w) > n * D * sizeof(float));
    for (uint32_t l = 0; l < f->shape.n_layers; l++)
        layer_forward(w, l, x, n, NULL, x);
    layer_work_free(w);
    mat_free(t);
    return x;
}

/* Output norm and product with the vocabulary, in double. */
static void logits_of(const struct frozen *f, const float *x, double *out)
{
    size_t D = f->shape.n_embd;
    double sum = 0.0;
    for (size_t i = 0; i < D; i++)
        sum += (double)x[i] * (double)x[i];
    double scale = 1.0 / sqrt(sum / (double)D + (double)f->shape.norm_eps);
    for (uint32_t v = 0; v < f->shape.n_vocab; v++) {
        out[v] = 0.0;
        for (size_t i = 0; i < D; i++)
            out[v] += (double)x[i] * scale * (double)f->out_norm[i] *
                      (double)f->out[v * D + i];
    }
}

static double error_of(const char *name)
{
    struct golden g;
    struct rig r;
    struct frozen *f = NULL;
    struct errmsg m = {""};
    tiny_open_golden(&g, name);
    const struct rig_options o = {.ops = &ops_reference,
                                  .n_threads = 2,
                                  .kv_type = KV_F32,
                                  .max_rows = 1,
                                  .max_runs = 1,
                                  .max_context = 2048,
                                  .kv_bytes = 16 << 20};
    tiny_open(&r, name, &o);
    if (frozen_from_model(&f, r.model, r.workers, &m) != OK)
        fail_msg("%s", m.text);
    model_free(r.model); /* not needed any more */
    r.model = NULL;
    int32_t *tokens = golden_copy(&g, "tokens", "i32");
    uint32_t *rows = golden_copy(&g, "positions", "i32");
    float *want = golden_copy(&g, "logits", "f32");
    uint32_t n = (uint32_t)golden_find(&g, "tokens", "i32")->n;
    uint32_t n_rows = (uint32_t)golden_find(&g, "positions", "i32")->n;
    float *x = last_states(f, r.workers, tokens, n);
    double *got = malloc(r.n_vocab * sizeof(double)), mean = 0.0;
    assert_non_null(got);
    for (uint32_t i = 0; i < n_rows; i++) {
        struct nmse s = {0, 0};
        logits_of(f, x + (size_t)rows[i] * f->shape.n_embd, got);
        for (uint32_t k = 0; k < r.n_vocab; k++)
            nmse_add(&s, got[k], (double)want[i * r.n_vocab + k]);
        mean += s.error / s.size / n_rows;
    }
    free(got);
    free(x);
    free(want);
    free(rows);
    free(tokens);
    frozen_free(f);
    rig_close(&r);
    golden_close(&g);
    return mean;
}

static void every_family_gives_the_golden_logits(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY_MODELS; i++) {
        double e = error_of(tiny_models[i]);
        print_message("%s: NMSE %.2g\n", tiny_models[i], e);
        assert_true(e <= 1e-8);
    }
}

enum { REAL_TOKENS = 48 };

static void the_default_model_agrees_with_the_runtime(void **state)
{
    (void)state;
    char path[4096];
    struct rig r;
    struct frozen *f = NULL;
    struct errmsg m = {""};
    if (!check_model_file(path, "SmolLM2-135M-Instruct.Q4_1.gguf"))
        skip();
    struct rig_options o = {.path = path,
                            .ops = &ops_reference,
                            .n_threads = 2,
                            .kv_type = KV_F32,
                            .max_rows = REAL_TOKENS,
                            .max_runs = 1,
                            .max_context = 64,
                            .kv_bytes = 32 << 20};
    rig_open(&r, &o);
    if (frozen_from_model(&f, r.model, r.workers, &m) != OK)
        fail_msg("%s", m.text);
    int32_t tokens[REAL_TOKENS];
    struct rng rng;
    rng_seed(&rng, 2);
    for (int i = 0; i < REAL_TOKENS; i++)
        tokens[i] = (int32_t)rng_below(&rng, r.n_vocab);
    const uint32_t last = REAL_TOKENS - 1;
    float *want = malloc(r.n_vocab * sizeof(float));
    double *got = malloc(r.n_vocab * sizeof(double));
    struct table *t = rig_table(&r);
    rig_feed(&r, t, tokens, REAL_TOKENS, REAL_TOKENS, &last, 1, want);
    float *x = last_states(f, r.workers, tokens, REAL_TOKENS);
    logits_of(f, x + (size_t)last * f->shape.n_embd, got);
    struct nmse s = {0, 0};
    for (uint32_t k = 0; k < r.n_vocab; k++)
        nmse_add(&s, got[k], (double)want[k]);
    print_message("default model: NMSE %.2g\n", s.error / s.size);
    assert_true(s.error / s.size <= 1e-8);
    table_free(t);
    free(x);
    free(got);
    free(want);
    frozen_free(f);
    rig_close(&r);
}

static void families_differ_in_what_they_have(void **state)
{
    (void)state;
    struct frozen_shape s = TINY_LLAMA;
    struct frozen *f = NULL;
    assert_int_equal(frozen_new(&f, &s, NULL), OK);
    assert_ptr_equal(f->out, f->embd);
    assert_null(f->layer[1].bq);
    assert_null(f->layer[1].q_norm);
    frozen_free(f);
    s.tied = false;
    s.qkv_bias = s.qk_norm = true;
    assert_int_equal(frozen_new(&f, &s, NULL), OK);
    assert_true(f->out != f->embd);
    assert_non_null(f->layer[1].bv);
    assert_non_null(f->layer[1].k_norm);
    frozen_free(f);
    frozen_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_the_golden_logits),
        cmocka_unit_test(the_default_model_agrees_with_the_runtime),
        cmocka_unit_test(families_differ_in_what_they_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
