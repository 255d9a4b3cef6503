/* Gates inside the step: log_beta of every entry of every family's tiny model
 * against the model and the formula in double precision; and what gates must
 * not change. */
#include "tests/unit/runtime/model/gates_rig.h"

#include "base/hash.h"
#include "gates/train/frozen.h"

enum { TOKENS = 24 };

static const char *const models[] = {"llama-gqa2-128-k", "llama-gqa2-96-linear",
                                     "llama-gqa3-64",    "llama-gqa4-80-llama3",
                                     "llama-mha-64",     "qwen2-gqa7-64",
                                     "qwen2-mha-128",    "qwen3-gqa2-128",
                                     "qwen3-gqa3-96",    "qwen3-gqa4-80-k"};
enum {
    N_MODELS = sizeof(models) / sizeof(models[0]),
    /* With a sanitizer, one of each family is enough. */
    EVERY = CHECK_IS_SANITIZED ? 3 : 1
};

/* ------------------------------------------- the model in double precision */

static double *doubles(size_t n)
{
    double *p = calloc(n, sizeof(*p));
    assert_non_null(p);
    return p;
}

static void norm(double *y, const double *x, const float *w, uint32_t n,
                 double eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    double scale = 1.0 / sqrt(sum / n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * (double)w[i];
}

/* y[n_out] = W x (+ c) */
static void product(double *y, const float *w, const float *c, const double *x,
                    uint32_t n_out, uint32_t n_in)
{
    for (uint32_t i = 0; i < n_out; i++) {
        y[i] = c == NULL ? 0 : (double)c[i];
        for (uint32_t k = 0; k < n_in; k++)
            y[i] += (double)w[(size_t)i * n_in + k] * x[k];
    }
}

/* Norm (where the family has one) and rotation of each head, in place. */
static void turn_heads(const struct frozen *f, double *x, const float *weight,
                       uint32_t n_heads, uint32_t pos)
{
    uint32_t d = f->shape.head_dim, half = d / 2;
    for (uint32_t h = 0; h < n_heads; h++, x += d) {
        if (f->shape.qk_norm)
            norm(x, x, weight, d, (double)f->shape.norm_eps);
        for (uint32_t i = 0; i < half; i++) {
            bool pairs = f->shape.rope_interleaved;
            double *a = &x[pairs ? 2 * i : i],
                   *b = &x[pairs ? 2 * i + 1 : i + half];
            double c = cos(pos * f->inv_freq[i]), s = sin(pos * f->inv_freq[i]);
            double u = *a * c - *b * s;
            *b = *a * s + *b * c;
            *a = u;
        }
    }
}

/* out[d] of one query head at position t, over keys and values of its KV head
 * whose rows are ld apart. */
static void attend(double *out, const double *q, const double *k,
                   const double *v, uint32_t t, const struct frozen_shape *s)
{
    double p[TOKENS], most = -1e300, sum = 0;
    uint32_t d = s->head_dim, ld = s->n_kv_heads * d;
    for (uint32_t i = 0; i <= t; i++) {
        p[i] = 0;
        for (uint32_t j = 0; j < d; j++)
            p[i] += q[j] * k[(size_t)i * ld + j];
        p[i] /= sqrt(d);
        most = p[i] > most ? p[i] : most;
    }
    for (uint32_t i = 0; i <= t; i++)
        sum += p[i] = exp(p[i] - most);
    for (uint32_t j = 0; j < d; j++) {
        out[j] = 0;
        for (uint32_t i = 0; i <= t; i++)
            out[j] += p[i] / sum * v[(size_t)i * ld + j];
    }
}

/* The feed-forward half of a block, added to x. */
static void feed_forward(const struct frozen *f, const struct frozen_layer *l,
                         double *x)
{
    uint32_t E = f->shape.n_embd, F = f->shape.n_ff;
    double *n = doubles(E), *g = doubles(F), *u = doubles(F), *y = doubles(E);
    norm(n, x, l->ffn_norm, E, (double)f->shape.norm_eps);
    product(g, l->w_gate, NULL, n, F, E);
    product(u, l->w_up, NULL, n, F, E);
    for (uint32_t i = 0; i < F; i++)
        u[i] *= g[i] / (1 + exp(-g[i]));
    product(y, l->w_down, NULL, u, E, F);
    for (uint32_t i = 0; i < E; i++)
        x[i] += y[i];
    free(n);
    free(g);
    free(u);
    free(y);
}

/* One block over x[n][E]; h[n][E] is what its gates read. */
static void block(const struct frozen *f, uint32_t layer, double *x, double *h,
                  uint32_t n)
{
    const struct frozen_shape *s = &f->shape;
    const struct frozen_layer *l = &f->layer[layer];
    uint32_t E = s->n_embd, d = s->head_dim;
    uint32_t Q = s->n_heads * d, KV = s->n_kv_heads * d;
    double *q = doubles(n * Q), *k = doubles(n * KV), *v = doubles(n * KV);
    double *o = doubles(Q), *y = doubles(E);
    for (uint32_t t = 0; t < n; t++) {
        double *in = h + (size_t)t * E;
        norm(in, x + (size_t)t * E, l->attn_norm, E, (double)s->norm_eps);
        product(q + t * Q, l->wq, l->bq, in, Q, E);
        product(k + t * KV, l->wk, l->bk, in, KV, E);
        product(v + t * KV, l->wv, l->bv, in, KV, E);
        turn_heads(f, q + t * Q, l->q_norm, s->n_heads, t);
        turn_heads(f, k + t * KV, l->k_norm, s->n_kv_heads, t);
    }
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t i = 0; i < s->n_heads; i++) {
            uint32_t kv = i / (s->n_heads / s->n_kv_heads) * d;
            attend(o + i * d, q + t * Q + i * d, k + kv, v + kv, t, s);
        }
        product(y, l->wo, NULL, o, E, Q);
        for (uint32_t i = 0; i < E; i++)
            x[(size_t)t * E + i] += y[i];
        feed_forward(f, l, x + (size_t)t * E);
    }
    free(q);
    free(k);
    free(v);
    free(o);
    free(y);
}

/* log_beta[n_layers][n][heads] of a sequence. */
static double *formula(const struct rig *r, const struct gate *g,
                       const int32_t *tokens, uint32_t n)
{
    struct frozen *f = NULL;
    assert_int_equal(frozen_from_model(&f, r->model, r->workers, NULL), OK);
    uint32_t E = f->shape.n_embd, H = f->shape.n_kv_heads;
    double *x = doubles((size_t)n * E), *h = doubles((size_t)n * E);
    double *out = doubles((size_t)f->shape.n_layers * n * H);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < E; i++)
            x[(size_t)t * E + i] = (double)f->embd[(size_t)tokens[t] * E + i];
    for (uint32_t l = 0; l < f->shape.n_layers; l++) {
        block(f, l, x, h, n);
        for (uint32_t t = 0; t < n; t++)
            gate_check_log_beta(g, l, h + (size_t)t * E,
                                out + ((size_t)l * n + t) * H);
    }
    frozen_free(f);
    free(x);
    free(h);
    return out;
}

/* --------------------------------------------------- what the tables hold */

/* Largest relative error over all entries of a table. */
static double error_of(const struct table *t, const double *want, uint32_t n)
{
    double most = 0;
    for (uint32_t l = 0; l < t->n_layers; l++)
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t h = 0; h < t->n_kv_heads; h++) {
                double w = *want++;
                double e = fabs((double)log_beta_of(t, l, h, i) - w) / fabs(w);
                most = e > most ? e : most;
            }
    return most;
}

static void every_entry_of_every_family_has_its_log_beta(void **state)
{
    int32_t tokens[TOKENS];
    (void)state;
    for (int i = 0; i < N_MODELS; i += EVERY)
        for (int kind = GATE_RG10; kind <= GATE_RG; kind++) {
            struct rig r;
            open_tiny(&r, models[i], &ops_reference, KV_F32, 1);
            struct gate *g = gates_for(&r, (enum gate_kind)kind);
            struct table *t = rig_table(&r);
            make_tokens(tokens, TOKENS, r.n_vocab, 1);
            assert_false(model_gates_are_tied(r.model));
            set_gates(&r, g);
            assert_true(model_gates_are_tied(r.model) == (kind == GATE_RG10));
            rig_feed(&r, t, tokens, TOKENS, 10, NULL, 0, NULL);
            double *want = formula(&r, g, tokens, TOKENS);
            double e = error_of(t, want, TOKENS);
            if (!(e < 1e-3))
                fail_msg("%s, %s: error %g", models[i],
                         gate_kind_name((enum gate_kind)kind), e);
            free(want);
            gate_free(g);
            table_free(t);
            rig_close(&r);
        }
}

/* Runs of 3, 1, 17 and 2 rows of sequences that are 0, 15, 16 and 40 tokens
 * long: over unit borders, at different places of the batch. */
static void ragged_runs_write_their_own_entries(void **state)
{
    static const uint32_t before[] = {0, 15, 16, 40}, more[] = {3, 1, 17, 2};
    static const char *const tables[] = {"reference", "avx2"};
    (void)state;
    for (int k = CHECK_IS_SANITIZED; k < 2; k++)
        for (int threads = 1; threads <= 3; threads += 1 + CHECK_IS_SANITIZED) {
            struct rig r;
            int32_t tokens[MAX_RUNS][64], batch[MAX_ROWS];
            struct model_run runs[MAX_RUNS];
            struct model_batch b = {
                .tokens = batch, .runs = runs, .n_runs = MAX_RUNS};
            const struct ops *ops = ops_find(tables[k]);
            if (ops == NULL)
                continue;
            open_tiny(&r, "llama-gqa3-64", ops, KV_F16, threads);
            struct gate *g = gates_for(&r, GATE_RG10);
            set_gates(&r, g);
            for (uint32_t s = 0; s < MAX_RUNS; s++) {
                struct table *t = rig_table(&r);
                make_tokens(tokens[s], 64, r.n_vocab, s);
                rig_feed(&r, t, tokens[s], before[s], 16, NULL, 0, NULL);
                rig_grow(&r, t, more[s]);
                runs[s] = (struct model_run){
                    .table = t, .n_rows = more[s], .pos = before[s]};
                memcpy(batch + b.n_rows, tokens[s] + before[s],
                       more[s] * sizeof(*batch));
                b.n_rows += more[s];
            }
            model_step(r.model, &b);
            for (uint32_t s = 0; s < MAX_RUNS; s++) {
                struct table *alone = rig_table(&r);
                size_t n = 0;
                float *got = read_all(runs[s].table, &n);
                rig_feed(&r, alone, tokens[s], before[s] + more[s], 1, NULL, 0,
                         NULL);
                float *want = read_all(alone, &n);
                assert_memory_equal(got, want, n * sizeof(*got));
                for (size_t i = 0; i < n; i++)
                    assert_true(got[i] < 0);
                free(got);
                free(want);
                table_free(alone);
                table_free(runs[s].table);
            }
            gate_free(g);
            rig_close(&r);
        }
}

static void gates_change_no_logit_and_no_position(void **state)
{
    int32_t tokens[TOKENS];
    uint32_t rows[TOKENS];
    (void)state;
    for (int i = 0; i < N_MODELS; i += EVERY) {
        struct rig r;
        open_tiny(&r, models[i], ops_best(), KV_F16, 2);
        struct gate *g = gates_for(&r, GATE_RG10);
        size_t n = (size_t)TOKENS * r.n_vocab;
        float *x[2] = {calloc(n, sizeof(float)), calloc(n, sizeof(float))};
        make_tokens(tokens, TOKENS, r.n_vocab, 2);
        for (uint32_t k = 0; k < TOKENS; k++)
            rows[k] = k;
        for (int with = 0; with < 2; with++) {
            struct table *t = rig_table(&r);
            set_gates(&r, with ? g : NULL);
            assert_true(model_has_gates(r.model) == (with == 1));
            rig_feed(&r, t, tokens, TOKENS, 7, rows, TOKENS, x[with]);
            for (uint32_t k = 0; k < TOKENS; k++) {
                const struct kv_meta *m =
                    pool_meta(t->pool, t->list[1].unit[k / KV_UNIT]);
                assert_int_equal(m->pos[k % KV_UNIT], k);
                assert_int_equal(m->rope_pos[k % KV_UNIT], k);
                assert_true((m->log_beta[k % KV_UNIT] < 0) == (with == 1));
            }
            table_free(t);
        }
        assert_memory_equal(x[0], x[1], n * sizeof(float));
        free(x[0]);
        free(x[1]);
        gate_free(g);
        rig_close(&r);
    }
}

static void
gates_of_another_shape_are_refused_and_memory_is_counted(void **state)
{
    (void)state;
    struct rig r;
    struct errmsg m;
    open_tiny(&r, "qwen2-gqa7-64", ops_best(), KV_F16, 1);
    const struct model_info *i = model_info(r.model);
    const struct model_info before = *i;
    struct gate *g = gates_for(&r, GATE_RG10);
    set_gates(&r, g);
    const struct model_info with = *i;
    /* Weights of two bytes, hidden rows of four. Beside those of a step 16
     * rows can wait: their inputs, where results go, and the hidden rows of a
     * layer for the one thread. */
    uint64_t rows = WIDTH + WIDTH + i->n_kv_heads;
    uint64_t waits = i->n_layers * (i->n_embd * sizeof(float) +
                                    i->n_kv_heads * sizeof(float *)) +
                     rows * sizeof(float);
    assert_true(with.packed_bytes - before.packed_bytes >=
                2 * gate_n_params(g));
    assert_int_equal(with.scratch_bytes - before.scratch_bytes,
                     sizeof(float) * MAX_ROWS * rows + 16 * waits);
    for (int k = 0; k < 3; k++) {
        struct gate_shape s = g->shape;
        uint32_t *const field[] = {&s.n_layers, &s.n_embd, &s.n_kv_heads};
        struct gate *other = NULL;
        (*field[k])++;
        assert_int_equal(gate_new(&other, &s, NULL), OK);
        assert_int_equal(model_set_gates(r.model, other, &m), ERR_CONFLICT);
        assert_non_null(strstr(m.text, "the model has"));
        assert_memory_equal(i, &with, sizeof(with));
        assert_true(model_has_gates(r.model));
        gate_free(other);
    }
    set_gates(&r, g); /* in place of the first ones */
    assert_memory_equal(i, &with, sizeof(with));
    set_gates(&r, NULL);
    assert_memory_equal(i, &before, sizeof(before));
    gate_free(g);
    rig_close(&r);
}

/* A file for this model is taken; one that says it is another's is not, and
 * the gates from before stay. */
static void gates_are_found_by_the_fingerprint_of_the_model(void **state)
{
    (void)state;
    struct rig r;
    struct errmsg m = {""};
    uint8_t digest[HASH_BYTES];
    char hex[HASH_HEX], file[] = "/tmp/ebb-gates-XXXXXX", path[GATE_PATH_MAX];
    struct safetensors_string meta[] = {{"gate", "rg10"},
                                        {"base_fingerprint", hex}};
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    open_tiny(&r, "qwen3-gqa3-96", ops_best(), KV_F16, 1);
    struct gate *g = gates_for(&r, GATE_RG10);
    assert_int_equal(gguf_fingerprint(r.gguf, digest, NULL), OK);
    hash_hex(hex, digest, sizeof(digest));
    assert_int_equal(gate_save(g, file, true, meta, 2, NULL), OK);
    assert_int_equal(model_find_gates(r.model, r.gguf, file, path, &m), OK);
    assert_string_equal(path, file);
    assert_true(model_has_gates(r.model));
    hex[0] = hex[0] == '0' ? '1' : '0';
    assert_int_equal(gate_save(g, file, true, meta, 2, NULL), OK);
    assert_int_equal(model_find_gates(r.model, r.gguf, file, path, &m),
                     ERR_CONFLICT);
    assert_non_null(strstr(m.text, "another model"));
    assert_true(model_has_gates(r.model));
    assert_int_equal(model_find_gates(r.model, r.gguf, "none", path, &m), OK);
    assert_false(model_has_gates(r.model));
    unlink(file);
    gate_free(g);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_entry_of_every_family_has_its_log_beta),
        cmocka_unit_test(ragged_runs_write_their_own_entries),
        cmocka_unit_test(gates_change_no_logit_and_no_position),
        cmocka_unit_test(
            gates_of_another_shape_are_refused_and_memory_is_counted),
        cmocka_unit_test(gates_are_found_by_the_fingerprint_of_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
