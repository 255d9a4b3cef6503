/* The loss against its formulas in double. */
#include "tests/unit/gates/train/tiny.h"

#include "gates/train/loss.h"

enum { T = 9 };

struct setup {
    struct workers *k;
    struct mat *mat;
    struct frozen *f;
    struct loss_work *w;
    float *teacher, *student, *d;
    int32_t tokens[T];
};

static void setup_init(struct setup *x, uint32_t n_vocab)
{
    struct rng r;
    struct frozen_shape s = TINY_LLAMA;
    size_t n = (size_t)T * s.n_embd;
    rng_seed(&r, 4);
    s.n_vocab = n_vocab;
    memset(x, 0, sizeof(*x));
    assert_int_equal(workers_new(&x->k, 2, NULL), OK);
    assert_int_equal(mat_new(&x->mat, x->k, NULL), OK);
    x->f = tiny_model(&s, &r);
    assert_int_equal(loss_work_new(&x->w, x->f, T, x->mat, NULL), OK);
    x->teacher = calloc(n, sizeof(float));
    x->student = calloc(n, sizeof(float));
    x->d = calloc(n, sizeof(float));
    tiny_fill(x->teacher, n, 1.0f, &r);
    tiny_fill(x->student, n, 1.0f, &r);
    for (int i = 0; i < T; i++)
        x->tokens[i] = (int32_t)rng_below(&r, n_vocab);
}

static void setup_fini(struct setup *x)
{
    free(x->teacher);
    free(x->student);
    free(x->d);
    loss_work_free(x->w);
    frozen_free(x->f);
    mat_free(x->mat);
    workers_free(x->k);
}

/* log softmax of one position's logits. */
static void log_probs(const struct setup *x, const float *state, double *out)
{
    size_t D = x->f->shape.n_embd, V = x->f->shape.n_vocab;
    double sum = 0.0;
    for (size_t v = 0; v < V; v++) {
        out[v] = 0.0;
        for (size_t i = 0; i < D; i++)
            out[v] += (double)state[i] * (double)x->f->out[v * D + i];
        sum += exp(out[v]);
    }
    for (size_t v = 0; v < V; v++)
        out[v] -= log(sum);
}

static struct loss_input input_of(const struct setup *x,
                                  const uint8_t *is_answer)
{
    return (struct loss_input){.teacher = x->teacher,
                               .student = x->student,
                               .tokens = x->tokens,
                               .is_answer = is_answer,
                               .n_tokens = T};
}

/* Also in pieces of the vocabulary: 5,000 tokens are two of them. */
static void check_vocab(uint32_t n_vocab, double ntp_weight,
                        double answer_weight, double answer_divergence)
{
    struct setup x;
    struct loss_values got;
    setup_init(&x, n_vocab);
    size_t D = x.f->shape.n_embd, V = n_vocab;
    double *p = calloc(V, sizeof(double)), *q = calloc(V, sizeof(double));
    double *d = calloc(T * D, sizeof(double)), kl = 0.0, ntp = 0.0, own = 0.0;
    /* The first token is never predicted: two answers count. */
    uint8_t is_answer[T] = {[0] = 1, [2] = 1, [T - 1] = 1};
    double answer = 0.0, own_answer = 0.0, answer_kl = 0.0;
    assert_non_null(p);
    assert_non_null(q);
    assert_non_null(d);
    for (size_t t = 0; t < T; t++) {
        log_probs(&x, x.teacher + t * D, p);
        log_probs(&x, x.student + t * D, q);
        for (size_t v = 0; v < V; v++) {
            double slope = (exp(q[v]) - exp(p[v])) / T;
            if (t + 1 < T && is_answer[t + 1])
                slope += answer_divergence / 2.0 * (exp(q[v]) - exp(p[v]));
            kl += exp(p[v]) * (p[v] - q[v]) / T;
            if (t + 1 < T && is_answer[t + 1])
                answer_kl += exp(p[v]) * (p[v] - q[v]) / 2.0;
            if (t + 1 < T)
                slope += (ntp_weight / (T - 1) +
                          answer_weight * is_answer[t + 1] / 2.0) *
                         (exp(q[v]) - (x.tokens[t + 1] == (int32_t)v));
            for (size_t i = 0; i < D; i++)
                d[t * D + i] += slope * (double)x.f->out[v * D + i];
        }
        if (t + 1 < T) {
            ntp -= q[x.tokens[t + 1]] / (T - 1);
            own -= p[x.tokens[t + 1]] / (T - 1);
            answer -= is_answer[t + 1] * q[x.tokens[t + 1]] / 2.0;
            own_answer -= is_answer[t + 1] * p[x.tokens[t + 1]] / 2.0;
        }
    }
    struct loss_input in = input_of(&x, is_answer);
    in.ntp_weight = ntp_weight;
    in.answer_weight = answer_weight;
    in.answer_divergence = answer_divergence;
    loss_vocab(x.w, &in, &got, x.d);
    assert_true(fabs(got.kl - kl) < 1e-5 * kl);
    assert_true(fabs(got.ntp - ntp) < 1e-5 * ntp);
    assert_true(fabs(got.teacher_ntp - own) < 1e-5 * own);
    assert_int_equal(got.n_answers, 2);
    assert_true(fabs(got.answer - answer) < 1e-5 * answer);
    assert_true(fabs(got.answer_kl - answer_kl) < 1e-5 * answer_kl);
    assert_true(fabs(got.teacher_answer - own_answer) < 1e-5 * own_answer);
    for (size_t i = 0; i < T * D; i++)
        assert_true(fabs((double)x.d[i] - d[i]) < 2e-6);
    struct loss_values again;
    loss_vocab(x.w, &in, &again, NULL);
    assert_true(again.kl == got.kl && again.ntp == got.ntp);
    in.is_answer = NULL;
    loss_vocab(x.w, &in, &again, NULL);
    assert_int_equal(again.n_answers, 0);
    assert_true(again.ntp == got.ntp && again.answer == 0.0);
    assert_true(loss_work_bytes(x.w) > 2 * V * sizeof(float));
    free(p);
    free(q);
    free(d);
    setup_fini(&x);
}

static void kl_and_next_token_loss_are_those_of_the_formulas(void **state)
{
    (void)state;
    check_vocab(100, 1.0, 0.0, 0.75);
    check_vocab(5000, 0.25, 0.5, 0.0);
}

/* Tokens 3 and 4 are answers: positions 2 and 3 predict them, 7 others do
 * not. */
static const uint8_t two_answers[T] = {[0] = 1, [3] = 1, [4] = 1};

static void a_share_of_positions_is_drawn_with_all_answers(void **state)
{
    (void)state;
    enum { DRAWS = 3000, OTHERS = 7, DRAWN = 3 }; /* 3 = ceil(0.4 * 7) */
    struct loss_input in = {
        .is_answer = two_answers, .n_tokens = T, .positions = 0.4};
    int taken[T] = {0};
    for (int i = 0; i < DRAWS; i++) {
        uint32_t at[T];
        double stands_for;
        in.seed = (uint64_t)i;
        size_t n = loss_choose(at, &stands_for, &in);
        assert_int_equal(n, DRAWN + 2);
        assert_true(fabs(stands_for - (double)OTHERS / DRAWN) < 1e-12);
        for (size_t k = 0; k < n; k++) {
            assert_true(at[k] < T && (k == 0 || at[k] > at[k - 1]));
            taken[at[k]]++;
        }
    }
    for (int t = 0; t < T; t++) {
        double mean = (double)taken[t] / DRAWS, sigma = sqrt(0.25 / DRAWS);
        if (t == 2 || t == 3)
            assert_int_equal(taken[t], DRAWS);
        else
            assert_true(fabs(mean - (double)DRAWN / OTHERS) < 5 * sigma);
    }
}

static void all_positions_are_taken_by_default(void **state)
{
    (void)state;
    const double share[] = {0.0, 1.0};
    for (int i = 0; i < 2; i++) {
        struct loss_input in = {
            .is_answer = two_answers, .n_tokens = T, .positions = share[i]};
        uint32_t at[T];
        double stands_for;
        assert_int_equal(loss_choose(at, &stands_for, &in), T);
        assert_true(stands_for == 1.0);
        for (uint32_t t = 0; t < T; t++)
            assert_int_equal(at[t], t);
    }
}

static void a_drawn_position_counts_for_those_that_are_not(void **state)
{
    (void)state;
    struct setup x;
    struct loss_values v;
    setup_init(&x, 100);
    size_t D = x.f->shape.n_embd;
    float *all = calloc(T * D, sizeof(float));
    assert_non_null(all);
    struct loss_input in = input_of(&x, two_answers);
    in.ntp_weight = 0.5;
    in.answer_weight = 0.25;
    in.seed = 5;
    loss_vocab(x.w, &in, &v, all);
    double answer = v.answer;
    in.positions = 0.4;
    uint32_t at[T];
    double stands_for, weight[T] = {0.0};
    size_t n = loss_choose(at, &stands_for, &in);
    for (size_t k = 0; k < n; k++)
        weight[at[k]] = at[k] == 2 || at[k] == 3 ? 1.0 : stands_for;
    for (size_t i = 0; i < T * D; i++)
        x.d[i] = 77.0f; /* what was there before does not matter */
    loss_vocab(x.w, &in, &v, x.d);
    for (size_t i = 0; i < T * D; i++)
        assert_true(fabs((double)x.d[i] - weight[i / D] * (double)all[i]) <
                    1e-6);
    assert_true(fabs(v.answer - answer) < 1e-5 * answer);
    double kl = 0.0, ntp = 0.0, p[100], q[100];
    for (size_t t = 0; t < T; t++) {
        log_probs(&x, x.teacher + t * D, p);
        log_probs(&x, x.student + t * D, q);
        for (size_t i = 0; i < 100; i++)
            kl += weight[t] * exp(p[i]) * (p[i] - q[i]) / T;
        if (t + 1 < T)
            ntp -= weight[t] * q[x.tokens[t + 1]] / (T - 1);
    }
    assert_true(fabs(v.kl - kl) < 1e-5 * kl);
    assert_true(fabs(v.ntp - ntp) < 1e-5 * ntp);
    free(all);
    setup_fini(&x);
}

static double cap_of(struct setup *x, const float *lambda, double *alive,
                     float *d_soft)
{
    struct loss_capacity c = {lambda, T, 2.0, 3.0};
    struct loss_values v;
    loss_capacity(x->w, &c, &v, d_soft);
    *alive = v.alive;
    return v.cap;
}

static void the_capacity_counts_what_is_alive(void **state)
{
    (void)state;
    struct setup x;
    setup_init(&x, 100);
    enum { L = 2, H = 2 };
    float lambda[L * H * T], d_soft[T];
    struct rng r;
    rng_seed(&r, 8);
    for (int i = 0; i < L * H * T; i++)
        lambda[i] = -0.3f * (float)rng_double(&r);
    lambda[3] = -200.0f; /* gone at once */
    double S[T], sum = 0.0, alive;
    int n = 0;
    for (int t = 0; t < T; t++) {
        S[t] = 0.0;
        for (int list = 0; list < L * H; list++)
            for (int i = 0; i <= t; i++)
                S[t] += exp((t - i) * (double)lambda[list * T + i]);
        double over = S[t] - 2.0 * L * H;
        if (over > 0.0) {
            sum += over / fmax(1.0, (t + 1) * L * H - 2.0 * L * H);
            n++;
        }
    }
    assert_true(n > 0 && n < T);
    double cap = cap_of(&x, lambda, &alive, d_soft);
    assert_true(fabs(cap - sum / n) < 1e-9);
    assert_true(fabs(alive - S[T - 1] / (L * H)) < 1e-9);
    for (int t = 0; t < T; t++) {
        double scale = fmax(1.0, (t + 1) * L * H - 2.0 * L * H);
        double want = S[t] > 2.0 * L * H ? 3.0 / scale / n : 0.0;
        assert_true(fabs((double)d_soft[t] - want) < 1e-6);
    }
    for (int i = 0; i < L * H * T; i++)
        lambda[i] = -50.0f;
    assert_true(cap_of(&x, lambda, &alive, d_soft) == 0.0);
    for (int t = 0; t < T; t++)
        assert_true(d_soft[t] == 0.0f);
    setup_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kl_and_next_token_loss_are_those_of_the_formulas),
        cmocka_unit_test(a_share_of_positions_is_drawn_with_all_answers),
        cmocka_unit_test(all_positions_are_taken_by_default),
        cmocka_unit_test(a_drawn_position_counts_for_those_that_are_not),
        cmocka_unit_test(the_capacity_counts_what_is_alive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
