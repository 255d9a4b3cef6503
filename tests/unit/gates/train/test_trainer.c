/* The gradient of every kind of gate parameter against finite differences of
 * the loss, on tiny random models of every family. */
#include "tests/unit/gates/train/tiny.h"

#include "gates/train/layer.h"
#include "gates/train/mat.h"
#include "gates/train/trainer.h"
#include "tests/unit/gates/gate_check.h"

enum { TOKENS = 23, WIDTH = 12 };

#define NTP_WEIGHT 0.5
#define ANSWER_WEIGHT 0.25
#define ANSWER_DIVERGENCE 0.5

struct setup {
    struct workers *k;
    struct mat *mat;
    struct frozen *f;
    struct gate *g;
    struct trainer *t;
    float *grad;
    int32_t tokens[TOKENS];
    uint32_t n_over; /* of the unchanged gates */
};

static void setup_init(struct setup *x, const struct frozen_shape *s,
                       int n_threads, size_t keep_bytes)
{
    struct rng r;
    rng_seed(&r, 7);
    memset(x, 0, sizeof(*x));
    assert_int_equal(workers_new(&x->k, n_threads, NULL), OK);
    assert_int_equal(mat_new(&x->mat, x->k, NULL), OK);
    x->f = tiny_model(s, &r);
    struct gate_shape gs = {s->n_layers, s->n_embd, s->n_kv_heads, WIDTH,
                            GATE_RG10};
    assert_int_equal(gate_new(&x->g, &gs, NULL), OK);
    tiny_fill(x->g->p, gate_n_params(x->g), 0.2f, &r);
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (uint32_t h = 0; h < s->n_kv_heads; h++)
            gate_layer(x->g, l)[x->g->parts.c3 + h] = 2.0f;
    struct trainer_options o = {.max_tokens = TOKENS,
                                .entries_per_head = 4.0,
                                .capacity_weight = 1.0,
                                .ntp_weight = NTP_WEIGHT,
                                .answer_weight = ANSWER_WEIGHT,
                                .answer_divergence = ANSWER_DIVERGENCE,
                                .keep_bytes = keep_bytes};
    assert_int_equal(trainer_new(&x->t, x->f, x->g, &o, x->mat, NULL), OK);
    x->grad = calloc(gate_n_params(x->g), sizeof(float));
    assert_non_null(x->grad);
    for (int i = 0; i < TOKENS; i++)
        x->tokens[i] = (int32_t)rng_below(&r, s->n_vocab);
}

static void setup_fini(struct setup *x)
{
    free(x->grad);
    trainer_free(x->t);
    gate_free(x->g);
    frozen_free(x->f);
    mat_free(x->mat);
    workers_free(x->k);
}

/* Some tokens are answers; the first has nothing before it. */
static const uint8_t is_answer[TOKENS] = {
    [0] = 1, [3] = 1, [4] = 1, [TOKENS - 1] = 1};

static void gradient(struct setup *x, uint32_t n, float *grad,
                     struct loss_values *v)
{
    struct trainer_sequence s = {
        .tokens = x->tokens, .is_answer = is_answer, .n_tokens = n};
    trainer_gradient(x->t, &s, grad, v);
}

static double total(const struct loss_values *v)
{
    return v->kl + NTP_WEIGHT * v->ntp + ANSWER_WEIGHT * v->answer +
           ANSWER_DIVERGENCE * v->answer_kl + v->cap;
}

static double loss_of(struct setup *x)
{
    struct loss_values v;
    gradient(x, TOKENS, NULL, &v);
    return total(&v);
}

/* Compares grad . u with the slope of the loss along a random direction u
 * over the parameters [from, to) of one layer. */
static void check_part(struct setup *x, uint32_t layer, size_t from, size_t to)
{
    struct rng r;
    rng_seed(&r, 1000 * layer + from);
    float *p = gate_layer(x->g, layer);
    const float *grad = x->grad + (size_t)layer * x->g->parts.n;
    float saved[4096], u[4096];
    size_t n = to - from;
    assert_true(n <= 4096);
    memcpy(saved, p + from, n * sizeof(float));
    double along = 0.0, length = 0.0;
    for (size_t i = 0; i < n; i++) {
        /* Leaning on the gradient keeps the slope well above rounding. */
        u[i] = grad[from + i];
        length += (double)u[i] * (double)u[i];
    }
    length = sqrt(length);
    assert_true(length > 1e-7);
    for (size_t i = 0; i < n; i++) {
        u[i] = u[i] / (float)length + 0.5f * tiny_normal(&r) / sqrtf((float)n);
        along += (double)u[i] * (double)grad[from + i];
    }
    /* Fourth order: errors of the step go with h^4. The capacity term jumps
     * where a step of the sequence passes the capacity: no such place may lie
     * between the points. */
    double h = 0.04, at[4];
    const double where[4] = {-2, -1, 1, 2};
    bool has_jump = true;
    while (has_jump) {
        h /= 2;
        assert_true(h > 1e-3);
        has_jump = false;
        for (int k = 0; k < 4; k++) {
            struct loss_values v;
            for (size_t i = 0; i < n; i++)
                p[from + i] = saved[i] + (float)(h * where[k]) * u[i];
            gradient(x, TOKENS, NULL, &v);
            at[k] = total(&v);
            has_jump = has_jump || v.n_over != x->n_over;
        }
    }
    memcpy(p + from, saved, n * sizeof(float));
    double slope = (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h);
    double error = fabs(slope - along) / fabs(along);
    if (error > 1e-3)
        print_message("layer %u, parameters %zu to %zu: gradient %.8g, "
                      "slope %.8g\n",
                      layer, from, to, along, slope);
    assert_true(error <= 1e-3);
}

static void check_family(const struct frozen_shape *s)
{
    struct setup x;
    setup_init(&x, s, 2, 1 << 20);
    struct loss_values v;
    gradient(&x, TOKENS, x.grad, &v);
    assert_true(v.cap > 0.0);
    assert_true(v.kl > 0.0);
    x.n_over = v.n_over;
    const struct gate_parts *a = &x.g->parts;
    const size_t border[] = {a->w1, a->c1, a->w2, a->c2, a->w3, a->c3, a->n};
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (int i = 0; i < 6; i++)
            check_part(&x, l, border[i], border[i + 1]);
    setup_fini(&x);
}

static void gradients_match_differences_in_a_llama(void **state)
{
    (void)state;
    check_family(&TINY_LLAMA);
}

static void gradients_match_differences_with_biases(void **state)
{
    (void)state;
    struct frozen_shape s = TINY_LLAMA;
    s.rope_interleaved = false;
    s.qkv_bias = true;
    s.tied = false;
    s.n_kv_heads = 1;
    check_family(&s);
}

static void gradients_match_differences_with_normed_queries(void **state)
{
    (void)state;
    struct frozen_shape s = TINY_LLAMA;
    s.rope_interleaved = false;
    s.qk_norm = true;
    s.n_kv_heads = 4;
    check_family(&s);
}

static void same_values(const struct loss_values *a,
                        const struct loss_values *b)
{
    assert_true(a->kl == b->kl && a->ntp == b->ntp && a->cap == b->cap);
    assert_true(a->teacher_ntp == b->teacher_ntp && a->alive == b->alive);
    assert_int_equal(a->n_over, b->n_over);
}

static void gradients_do_not_depend_on_threads(void **state)
{
    (void)state;
    struct setup a, b;
    struct loss_values va, vb;
    setup_init(&a, &TINY_LLAMA, 1, 1 << 20);
    setup_init(&b, &TINY_LLAMA, 3, 1 << 20);
    gradient(&a, TOKENS, a.grad, &va);
    gradient(&b, TOKENS, b.grad, &vb);
    assert_memory_equal(a.grad, b.grad, gate_n_params(a.g) * sizeof(float));
    same_values(&va, &vb);
    setup_fini(&a);
    setup_fini(&b);
}

/* Backward finds the same numbers, kept or computed again; sequences may be
 * shorter than the longest, and come after others. */
static void kept_and_recomputed_layers_give_the_same_bits(void **state)
{
    (void)state;
    struct frozen_shape s = TINY_LLAMA;
    s.n_layers = 3;
    s.qk_norm = true;
    struct setup a, b, c;
    struct loss_values v[3];
    setup_init(&a, &s, 2, 1 << 20);
    setup_init(&b, &s, 2, 0);
    struct layer_options lo = {WIDTH, TOKENS, 0};
    setup_init(&c, &s, 2, layer_kept_bytes(a.f, &lo)); /* one of three */
    gradient(&a, TOKENS, NULL, &v[0]);
    gradient(&a, TOKENS - 4, a.grad, &v[0]);
    gradient(&b, TOKENS - 4, b.grad, &v[1]);
    gradient(&c, TOKENS - 4, c.grad, &v[2]);
    size_t bytes = gate_n_params(a.g) * sizeof(float);
    assert_memory_equal(a.grad, b.grad, bytes);
    assert_memory_equal(a.grad, c.grad, bytes);
    same_values(&v[0], &v[1]);
    same_values(&v[0], &v[2]);
    assert_true(trainer_bytes(a.t) > trainer_bytes(c.t));
    assert_true(trainer_bytes(c.t) > trainer_bytes(b.t));
    setup_fini(&a);
    setup_fini(&b);
    setup_fini(&c);
}

/* The capacity term, straight from its formula, on lambda as the trainer
 * gives it with gates that read a constant: c3 alone decides. */
static void the_capacity_term_is_that_of_the_formula(void **state)
{
    (void)state;
    struct setup x;
    struct loss_values v;
    const double M = 4.0, L = TINY_LLAMA.n_layers, H = TINY_LLAMA.n_kv_heads;
    setup_init(&x, &TINY_LLAMA, 2, 0);
    memset(x.g->p, 0, gate_n_params(x.g) * sizeof(float));
    for (uint32_t l = 0; l < TINY_LLAMA.n_layers; l++)
        for (uint32_t h = 0; h < TINY_LLAMA.n_kv_heads; h++)
            gate_layer(x.g, l)[x.g->parts.c3 + h] = 1.5f + (float)h;
    gradient(&x, TOKENS, NULL, &v);
    double sum = 0.0, last = 0.0;
    int n = 0;
    for (int t = 1; t <= TOKENS; t++) {
        double S = 0.0;
        for (int h = 0; h < H; h++)
            for (int i = 1; i <= t; i++)
                S += L * pow(1.0 / (1.0 + exp(-1.5 - h)), t - i);
        double over = (S - M * L * H) / fmax(1.0, t * L * H - M * L * H);
        if (over > 0.0) {
            sum += over;
            n++;
        }
        last = S / (L * H);
    }
    assert_true(n > 3 && n < TOKENS);
    assert_true(fabs(v.cap - sum / n) < 1e-6 * v.cap);
    assert_true(fabs(v.alive - last) < 1e-6 * last);
    setup_fini(&x);
}

/* With lambda = 0 everywhere the student is the teacher. */
static void gates_that_forget_nothing_change_nothing(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x, &TINY_LLAMA, 2, 1 << 20);
    memset(x.g->p, 0, gate_n_params(x.g) * sizeof(float));
    for (uint32_t l = 0; l < TINY_LLAMA.n_layers; l++)
        for (uint32_t h = 0; h < TINY_LLAMA.n_kv_heads; h++)
            gate_layer(x.g, l)[x.g->parts.c3 + h] = 200.0f;
    struct loss_values v;
    gradient(&x, TOKENS, NULL, &v);
    assert_true(fabs(v.kl) < 1e-7);
    assert_true(fabs(v.ntp - v.teacher_ntp) < 1e-7);
    /* All n_t entries are alive: (n_t - M) / max(1, n_t - M ...) by hand. */
    assert_true(fabs(v.alive - TOKENS) < 1e-4);
    assert_true(fabs(v.cap - 1.0) < 1e-6);
    setup_fini(&x);
}

/* The tied projection counts once: its gradient is the sum over the layers,
 * and every copy gets it. */
static void the_last_projection_stays_tied(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x, &TINY_LLAMA, 2, 0);
    const struct gate_parts *p = &x.g->parts;
    float *a = gate_layer(x.g, 0), *b = gate_layer(x.g, 1);
    size_t n = gate_n_params(x.g);
    float want = 0.5f * (a[p->w3] + b[p->w3]), w1 = b[p->w1];
    trainer_tie_gate(x.g);
    assert_true(fabsf(a[p->w3] - want) < 1e-6f);
    assert_memory_equal(a + p->w3, b + p->w3, (p->n - p->w3) * sizeof(float));
    assert_true(b[p->w1] == w1);
    for (size_t i = 0; i < n; i++)
        x.grad[i] = 1.0f;
    trainer_tie(x.g, x.grad);
    assert_true(x.grad[p->w3] == 2.0f && x.grad[p->n + p->c3] == 2.0f);
    assert_true(x.grad[p->w1] == 1.0f && x.grad[p->n + p->c2] == 1.0f);
    /* Its norm: ones of both layers, and a two for each shared one. */
    float *m1 = calloc(n, sizeof(float)), *m2 = calloc(n, sizeof(float));
    struct adamw o = {0.1f, 0.9f, 0.99f, 1e-12f, 0.0f, 1.0f};
    double norm = adamw_step(&o, x.g, x.grad, m1, m2, 1);
    double shared = (double)(p->n - p->w3);
    assert_true(fabs(norm - sqrt(2.0 * (double)p->w3 + 4.0 * shared)) < 1e-9);
    assert_memory_equal(a + p->w3, b + p->w3, (p->n - p->w3) * sizeof(float));
    free(m1);
    free(m2);
    setup_fini(&x);
}

/* Two steps of AdamW by hand, in double. */
static void adamw_is_that_of_the_paper(void **state)
{
    (void)state;
    struct gate_shape s = {1, 1, 1, 1, GATE_RG10};
    struct gate *g = NULL;
    assert_int_equal(gate_new(&g, &s, NULL), OK);
    assert_int_equal(gate_n_params(g), 6);
    struct adamw o = {0.1f, 0.9f, 0.99f, 1e-12f, 0.01f, 1.0f};
    float m1[6] = {0}, m2[6] = {0}, grad[6];
    double p[6], first[6] = {0}, second[6] = {0};
    for (int i = 0; i < 6; i++)
        p[i] = g->p[i] = 0.3f * (float)(i - 2);
    for (int step = 1; step <= 2; step++) {
        double norm = 0.0, scale;
        for (int i = 0; i < 6; i++) {
            grad[i] = (float)(i + 1) * (step == 1 ? 1.0f : -0.01f);
            norm += (double)grad[i] * (double)grad[i];
        }
        norm = sqrt(norm);
        scale = norm > 1.0 ? 1.0 / norm : 1.0;
        assert_true((step == 1) == (norm > 1.0)); /* with and without */
        double got = adamw_step(&o, g, grad, m1, m2, (uint64_t)step);
        assert_true(fabs(got - norm) < 1e-6);
        for (int i = 0; i < 6; i++) {
            double d = (double)grad[i] * scale;
            first[i] = 0.9 * first[i] + 0.1 * d;
            second[i] = 0.99 * second[i] + 0.01 * d * d;
            double a = first[i] / (1.0 - pow(0.9, step));
            double b = second[i] / (1.0 - pow(0.99, step));
            p[i] -= 0.1 * (a / (sqrt(b) + 1e-12) + 0.01 * p[i]);
            assert_true(fabs(p[i] - (double)g->p[i]) < 2e-6);
        }
    }
    gate_free(g);
}

static void the_learning_rate_rises_and_falls(void **state)
{
    (void)state;
    const float lr = 2.0f;
    assert_true(schedule_lr(lr, 1, 10, 110) == 0.2f);
    assert_true(schedule_lr(lr, 10, 10, 110) == lr);
    for (uint64_t step = 11; step <= 110; step++)
        assert_true(schedule_lr(lr, step, 10, 110) <
                    schedule_lr(lr, step - 1, 10, 110));
    /* Half way, and the end. */
    assert_true(fabsf(schedule_lr(lr, 60, 10, 109) - 1.0f) < 1e-6f);
    assert_true(schedule_lr(lr, 110, 10, 110) > 0.0f);
    assert_true(schedule_lr(lr, 110, 10, 110) < 0.002f);
    assert_true(schedule_lr(lr, 111, 10, 110) == 0.0f);
    assert_true(schedule_lr(lr, 1, 0, 1) > 0.0f);
}

/* The student's first layer, whose input is the embedding. */
static void lambda_is_the_formula_of_the_gates(void **state)
{
    (void)state;
    enum { D = 32, H = 2 };
    struct setup x;
    struct layer_work *w = NULL;
    struct layer_options o = {WIDTH, TOKENS, 0};
    float in[TOKENS * D], out[TOKENS * D], lambda[H * TOKENS];
    setup_init(&x, &TINY_LLAMA, 2, 0);
    assert_int_equal(layer_work_new(&w, x.f, x.mat, &o, NULL), OK);
    for (uint32_t t = 0; t < TOKENS; t++)
        memcpy(in + t * D, x.f->embd + (size_t)x.tokens[t] * D,
               D * sizeof(float));
    layer_forward(w, 0, in, TOKENS, x.g, out);
    layer_read_lambda(w, TOKENS, lambda);
    for (uint32_t t = 0; t < TOKENS; t++) {
        double n[D], want[H], sum = 0.0;
        for (uint32_t i = 0; i < D; i++)
            sum += (double)in[t * D + i] * (double)in[t * D + i];
        for (uint32_t i = 0; i < D; i++)
            n[i] = (double)in[t * D + i] / sqrt(sum / D + 1e-5) *
                   (double)x.f->layer[0].attn_norm[i];
        gate_check_log_beta(x.g, 0, n, want);
        for (uint32_t h = 0; h < H; h++)
            assert_true(fabs((double)lambda[h * TOKENS + t] - want[h]) <
                        1e-5 * fabs(want[h]) + 1e-7);
    }
    layer_work_free(w);
    setup_fini(&x);
}

static void training_lowers_the_loss(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x, &TINY_LLAMA, 2, 1 << 20);
    size_t n = gate_n_params(x.g);
    float *m1 = calloc(n, sizeof(float)), *m2 = calloc(n, sizeof(float));
    assert_non_null(m1);
    assert_non_null(m2);
    struct adamw a = {3e-3f, 0.9f, 0.99f, 1e-12f, 1e-6f, 1.0f};
    double before = loss_of(&x);
    for (uint64_t step = 1; step <= 40; step++) {
        struct loss_values v;
        memset(x.grad, 0, n * sizeof(float));
        gradient(&x, TOKENS, x.grad, &v);
        trainer_tie(x.g, x.grad);
        adamw_step(&a, x.g, x.grad, m1, m2, step);
    }
    assert_true(loss_of(&x) < before - 0.1);
    free(m1);
    free(m2);
    setup_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences_in_a_llama),
        cmocka_unit_test(gradients_match_differences_with_biases),
        cmocka_unit_test(gradients_match_differences_with_normed_queries),
        cmocka_unit_test(gradients_do_not_depend_on_threads),
        cmocka_unit_test(kept_and_recomputed_layers_give_the_same_bits),
        cmocka_unit_test(the_capacity_term_is_that_of_the_formula),
        cmocka_unit_test(the_last_projection_stays_tied),
        cmocka_unit_test(adamw_is_that_of_the_paper),
        cmocka_unit_test(the_learning_rate_rises_and_falls),
        cmocka_unit_test(lambda_is_the_formula_of_the_gates),
        cmocka_unit_test(gates_that_forget_nothing_change_nothing),
        cmocka_unit_test(training_lowers_the_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
