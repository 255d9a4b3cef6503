/* Greedy answers and perplexity of the two real models with the default f16
 * keys and values, against a float32 forward pass.
 *
 * usage: test_real_answers [long]
 *
 * `long` adds the perplexity of the second model. */
#include "tests/unit/runtime/model/real_check.h"

#include <math.h>

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
        if (!open_real(&l, &real_models[i], "avx2", KV_F16))
            continue;
        int64_t t0 = clock_us();
        int n = equal_continuations(&l);
        print_message("%s: %d of 20 continuations equal, %.1f s\n",
                      real_models[i].file, n, (double)(clock_us() - t0) / 1e6);
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
    check_perplexity(&real_models[0]);
    if (is_long)
        check_perplexity(&real_models[1]);
    end();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_are_those_of_the_float32_reference),
        cmocka_unit_test(perplexity_is_within_half_a_percent),
    };
    is_long = argc > 1 && strcmp(argv[1], "long") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
