/* The two real models against golden values of tests/tools/
 * reference_forward.py: a forward pass in numpy over the dequantised weights,
 * logits in float64, continuations and perplexities in float32.
 *
 * usage: test_real_models [long]
 *
 * `long` adds what takes more than a few minutes: all prompts on the reference
 * kernels, and the perplexity of the second model. */
#include "tests/unit/runtime/model/model_check.h"

#include <math.h>

#include "base/clock.h"

struct real {
    const char *file, *golden;
    bool is_default;
};

static const struct real models[] = {
    {"SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.golden",
     true},
    {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
     "qwen2.5-coder-0.5b-instruct-q4_k_m.golden", false},
};

static bool is_long;
static int n_opened; /* models that the running test has found */

struct loaded {
    struct rig rig;
    struct golden golden;
};

/* Where a test begins and ends: it counts as skipped when no model was there
 * for it. */
static void begin(void)
{
    n_opened = 0;
    if (CHECK_IS_SANITIZED) {
        fprintf(stderr, "SKIPPED: too slow with a sanitizer\n");
        skip();
    }
}

static void end(void)
{
    if (n_opened == 0)
        skip();
}

/* False when the model is not there, or the kernels do not run here: the
 * caller skips. */
static bool open_real(struct loaded *l, const struct real *r, const char *table,
                      enum kv_type kv_type)
{
    char path[4096];
    const struct ops *ops = ops_find(table);
    if (!ops)
        fprintf(stderr, "SKIPPED: this CPU or OS cannot run %s\n", table);
    if (!ops || !check_model_file(path, r->file))
        return false;
    char golden[4096];
    snprintf(golden, sizeof(golden), "tests/golden/model/%s", r->golden);
    struct rig_options o = {.path = path,
                            .ops = ops,
                            .n_threads = 2,
                            .kv_type = kv_type,
                            .max_rows = 512,
                            .max_runs = 20,
                            .max_context = 1024,
                            .kv_bytes = 600 << 20};
    n_opened++;
    rig_open(&l->rig, &o);
    golden_open(&l->golden, golden);
    return true;
}

static void close_real(struct loaded *l)
{
    golden_close(&l->golden);
    rig_close(&l->rig);
}

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

/* The reference kernels are slow: their share of the prompts is small here,
 * and whole in the long run. */
static void reference_kernels_agree_to_1e_8(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 2; i++) {
        uint32_t n_tokens = is_long ? 512 : models[i].is_default ? 128 : 48;
        check_logits("reference", &models[i], is_long ? 4 : 1, n_tokens, 1e-8);
    }
    end();
}

static void avx2_kernels_agree_to_1e_6(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 2; i++)
        check_logits("avx2", &models[i],
                     is_long || models[i].is_default ? 4 : 2, 512, 1e-6);
    end();
}

/* All prompts together, each in steps of its own length, then one token a
 * step for all of them: continuous batching as the engine does it. */
static int equal_continuations(struct loaded *l)
{
    const struct golden_array *shape =
        golden_find(&l->golden, "greedy_prompts", "i32");
    int64_t n = shape->dim[0], len = shape->dim[1];
    int64_t n_new = golden_find(&l->golden, "greedy", "i32")->dim[1];
    int32_t *prompts = golden_copy(&l->golden, "greedy_prompts", "i32");
    int32_t *want = golden_copy(&l->golden, "greedy", "i32");
    uint32_t V = l->rig.n_vocab, rows[20];
    float *logits = malloc(sizeof(*logits) * (size_t)n * V);
    struct table *table[20];
    struct model_run runs[20];
    int32_t token[20];
    bool equal[20];
    int n_equal = 0;
    assert_non_null(logits);
    assert_int_equal(n, 20);
    for (int64_t i = 0; i < n; i++) {
        uint32_t k = 0;
        while (k < len && prompts[i * len + k] >= 0)
            k++;
        uint32_t last = k - 1;
        table[i] = rig_table(&l->rig);
        rig_feed(&l->rig, table[i], prompts + i * len, k, k, &last, 1,
                 logits + (size_t)i * V);
        equal[i] = true;
        rows[i] = (uint32_t)i;
    }
    for (int64_t step = 0; step < n_new; step++) {
        for (int64_t i = 0; i < n; i++) {
            token[i] = check_argmax(logits + (size_t)i * V, V);
            equal[i] = equal[i] && token[i] == want[i * n_new + step];
            runs[i] = (struct model_run){
                .table = table[i], .n_rows = 1, .pos = table[i]->list[0].len};
            rig_grow(&l->rig, table[i], 1);
        }
        struct model_batch b = {.n_rows = (uint32_t)n,
                                .tokens = token,
                                .n_runs = (uint32_t)n,
                                .runs = runs,
                                .n_logits = (uint32_t)n,
                                .logit_rows = rows,
                                .logits = logits};
        model_step(l->rig.model, &b);
    }
    for (int64_t i = 0; i < n; i++) {
        n_equal += equal[i];
        table_free(table[i]);
    }
    free(prompts);
    free(want);
    free(logits);
    return n_equal;
}

static void greedy_answers_are_those_of_the_float32_reference(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 2; i++) {
        struct loaded l;
        if (!open_real(&l, &models[i], "avx2", KV_F16))
            continue;
        int64_t t0 = clock_us();
        int n = equal_continuations(&l);
        print_message("%s: %d of 20 continuations equal, %.1f s\n",
                      models[i].file, n, (double)(clock_us() - t0) / 1e6);
        close_real(&l);
        assert_true(n >= 18);
    }
    end();
}

static double mean_nll(struct loaded *l, const int32_t *tokens, uint32_t n)
{
    enum { CHUNK = 128 };
    uint32_t V = l->rig.n_vocab, rows[CHUNK];
    float *logits = malloc(sizeof(*logits) * CHUNK * V);
    struct table *t = rig_table(&l->rig);
    double sum = 0;
    assert_non_null(logits);
    for (uint32_t i = 0; i < CHUNK; i++)
        rows[i] = i;
    for (uint32_t at = 0; at + 1 < n; at += CHUNK) {
        uint32_t k = n - 1 - at < CHUNK ? n - 1 - at : CHUNK;
        rig_feed(&l->rig, t, tokens + at, k, k, rows, k, logits);
        for (uint32_t i = 0; i < k; i++) {
            const float *x = logits + (size_t)i * V;
            double top = (double)x[check_argmax(x, V)], z = 0;
            for (uint32_t v = 0; v < V; v++)
                z += exp((double)x[v] - top);
            sum += top + log(z) - (double)x[tokens[at + i + 1]];
        }
    }
    table_free(t);
    free(logits);
    return sum / (n - 1);
}

static void check_perplexity(const struct real *r)
{
    struct loaded l;
    if (!open_real(&l, r, "avx2", KV_F16))
        return;
    const struct golden_array *shape = golden_find(&l.golden, "windows", "i32");
    int64_t n = shape->dim[0], len = shape->dim[1], t0 = clock_us();
    int32_t *tokens = golden_copy(&l.golden, "windows", "i32");
    double *want = golden_copy(&l.golden, "nll", "f64");
    double got_sum = 0, want_sum = 0;
    for (int64_t i = 0; i < n; i++) {
        got_sum += mean_nll(&l, tokens + i * len, (uint32_t)len);
        want_sum += want[i];
    }
    double got_ppl = exp(got_sum / (double)n);
    double want_ppl = exp(want_sum / (double)n);
    print_message("%s: perplexity %.4f, reference %.4f, %.1f s\n", r->file,
                  got_ppl, want_ppl, (double)(clock_us() - t0) / 1e6);
    free(tokens);
    free(want);
    close_real(&l);
    assert_true(fabs(got_ppl / want_ppl - 1) <= 0.005);
}

static void perplexity_is_within_half_a_percent(void **state)
{
    (void)state;
    begin();
    check_perplexity(&models[0]);
    if (is_long)
        check_perplexity(&models[1]);
    end();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_kernels_agree_to_1e_8),
        cmocka_unit_test(avx2_kernels_agree_to_1e_6),
        cmocka_unit_test(greedy_answers_are_those_of_the_float32_reference),
        cmocka_unit_test(perplexity_is_within_half_a_percent),
    };
    is_long = argc > 1 && strcmp(argv[1], "long") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
