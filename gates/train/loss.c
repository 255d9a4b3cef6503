#include "gates/train/loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "gates/train/rows.h"

enum {
    /* Logits of as many positions exist at a time as fit in these bytes, for
     * the teacher and for the student. */
    LOGITS_BYTES = 64 << 20,
    POSITIONS_MIN = 16,
    /* Tokens of one piece of the vocabulary in backward: its pieces are
     * summed afterwards, in order. */
    VOCAB_PIECE = 4096
};

struct loss_work {
    const struct frozen *f;
    const struct mat *mat;
    struct workers *k;
    const struct rows *rows;
    size_t block;  /* positions at a time */
    uint32_t *at;  /* [T] the positions that are looked at */
    float *states; /* [2 block][n_embd] the teacher's, then the student's */
    float *logits; /* [2 block][n_vocab] from these */
    float *pieces; /* [pieces of the vocabulary][block][n_embd] */
    double *row;   /* [block][3]: kl, ntp, teacher's ntp */
    double *alive; /* [n_layers][T] */
    size_t bytes;
};

/* Equal blocks, so that the last one is not a small rest. */
static size_t block_of(const struct frozen *f, size_t t_max)
{
    size_t most = LOGITS_BYTES / (f->shape.n_vocab * sizeof(float));
    most = most < POSITIONS_MIN ? POSITIONS_MIN : most;
    size_t n_blocks = (t_max + most - 1) / most;
    return (t_max + n_blocks - 1) / n_blocks;
}

static size_t n_pieces(const struct frozen *f)
{
    return ((size_t)f->shape.n_vocab + VOCAB_PIECE - 1) / VOCAB_PIECE;
}

enum err loss_work_new(struct loss_work **out, const struct frozen *f,
                       uint32_t t_max, const struct mat *t, struct errmsg *m)
{
    const struct frozen_shape *s = &f->shape;
    size_t v = s->n_vocab, block = block_of(f, t_max);
    size_t pieces = n_pieces(f) * block * s->n_embd;
    size_t alive = (size_t)s->n_layers * t_max, states = 2 * block * s->n_embd;
    struct loss_work *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the loss");
    *w = (struct loss_work){.f = f,
                            .mat = t,
                            .k = mat_workers(t),
                            .rows = rows_best(),
                            .block = block,
                            .at = calloc(t_max, sizeof(uint32_t)),
                            .states = calloc(states, sizeof(float)),
                            .logits = calloc(2 * block * v, sizeof(float)),
                            .pieces = calloc(pieces, sizeof(float)),
                            .row = calloc(block * 3, sizeof(double)),
                            .alive = calloc(alive, sizeof(double))};
    w->bytes = (2 * block * v + states + pieces) * sizeof(float) +
               t_max * sizeof(uint32_t) + (block * 3 + alive) * sizeof(double);
    if (w->at == NULL || w->states == NULL || w->logits == NULL ||
        w->pieces == NULL || w->row == NULL || w->alive == NULL) {
        loss_work_free(w);
        return err_set(m, ERR_NOMEM, "no memory for logits of %zu tokens", v);
    }
    *out = w;
    return OK;
}

void loss_work_free(struct loss_work *w)
{
    if (w == NULL)
        return;
    free(w->at);
    free(w->states);
    free(w->logits);
    free(w->pieces);
    free(w->row);
    free(w->alive);
    free(w);
}

size_t loss_work_bytes(const struct loss_work *w)
{
    return w->bytes;
}

static bool is_answer(const struct loss_input *in, size_t t)
{
    return in->is_answer != NULL && in->is_answer[t] != 0;
}

/* Whether the token that is predicted at t is of an answer. */
static bool predicts_answer(const struct loss_input *in, size_t t)
{
    return t + 1 < in->n_tokens && is_answer(in, t + 1);
}

/* Tokens of answers that something stands before. */
static size_t n_answers(const struct loss_input *in)
{
    size_t n = 0;
    for (size_t t = 0; t < in->n_tokens; t++)
        n += predicts_answer(in, t);
    return n;
}

size_t loss_choose(uint32_t *out, double *stands_for,
                   const struct loss_input *in)
{
    size_t T = in->n_tokens, others = T - n_answers(in), wanted = others, n = 0;
    bool is_all = in->positions <= 0.0 || in->positions >= 1.0;
    struct rng r;
    rng_seed(&r, in->seed);
    if (!is_all)
        wanted = (size_t)ceil(in->positions * (double)others);
    *stands_for = wanted == 0 ? 1.0 : (double)others / (double)wanted;
    for (size_t t = 0; t < T; t++) {
        bool take = is_all || predicts_answer(in, t);
        if (!take) {
            /* Of those left, as many as are still wanted, each as likely. */
            take = rng_below(&r, others) < wanted;
            wanted -= take;
            others--;
        }
        if (take)
            out[n++] = (uint32_t)t;
    }
    return n;
}

struct vocab_job {
    struct loss_work *w;
    const struct loss_input *in;
    const uint32_t *at; /* positions of the block's rows */
    size_t n;           /* rows */
    double stands_for;  /* positions, for each that predicts no answer */
    float *d_student;   /* of the whole sequence; NULL: no gradient */
    double ntp_share;   /* d loss / d ntp of a position */
    double answer_more; /* added to it where the next token is of an answer */
    double answer_kl;   /* and to d loss / d kl of the position */
};

static double weight_of(const struct vocab_job *j, size_t t)
{
    return predicts_answer(j->in, t) ? 1.0 : j->stands_for;
}

static float *logits_of_student(const struct vocab_job *j, size_t row)
{
    return j->w->logits + (j->n + row) * j->w->f->shape.n_vocab;
}

/* One position; the student's logits become their gradient. */
static void vocab_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct vocab_job *j = ctx;
    const struct rows *f = j->w->rows;
    size_t v = j->w->f->shape.n_vocab, t = j->at[task];
    const float *p = j->w->logits + (size_t)task * v;
    float *q = logits_of_student(j, (size_t)task);
    double *row = j->w->row + (size_t)task * 3, weight = weight_of(j, t);
    double lp = f->log_sum_exp(p, v), lq = f->log_sum_exp(q, v);
    const int32_t *tokens = j->in->tokens;
    int has_next = t + 1 < j->in->n_tokens;
    struct rows_pair x = {.p = p,
                          .q = q,
                          .n = v,
                          .log_p = (float)lp,
                          .log_q = (float)lq,
                          .kl_share = (float)(weight / j->in->n_tokens),
                          .is_gradient = j->d_student != NULL};
    if (predicts_answer(j->in, t))
        x.kl_share += (float)j->answer_kl;
    row[1] = row[2] = 0.0;
    if (has_next) {
        x.ntp_share = (float)(weight * j->ntp_share);
        if (is_answer(j->in, t + 1))
            x.ntp_share += (float)j->answer_more;
        row[1] = lq - (double)q[tokens[t + 1]];
        row[2] = lp - (double)p[tokens[t + 1]];
    }
    row[0] = f->kl(&x);
    if (j->d_student != NULL && has_next)
        q[tokens[t + 1]] -= x.ntp_share;
}

/* The gradient of the hidden states through one piece of the vocabulary. */
static void piece_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct vocab_job *j = ctx;
    const struct loss_work *w = j->w;
    size_t v = w->f->shape.n_vocab, D = w->f->shape.n_embd;
    size_t from = (size_t)task * VOCAB_PIECE;
    size_t n = v - from < VOCAB_PIECE ? v - from : VOCAB_PIECE;
    struct mat_view c = {w->pieces + (size_t)task * w->block * D, j->n, D, D};
    struct mat_view a = {logits_of_student(j, 0) + from, j->n, n, v};
    struct mat_view b = {w->f->out + from * D, n, D, D};
    mat_ab(w->mat, &c, &a, &b, 1.0f, 0.0f);
}

/* The whole gradient of one position's state. */
static void sum_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct vocab_job *j = ctx;
    const struct loss_work *w = j->w;
    size_t D = w->f->shape.n_embd, pieces = n_pieces(w->f);
    float *d = j->d_student + j->at[task] * D;
    for (size_t i = 0; i < D; i++) {
        float sum = 0.0f;
        for (size_t k = 0; k < pieces; k++)
            sum += w->pieces[(k * w->block + (size_t)task) * D + i];
        d[i] = sum;
    }
}

/* kl, ntp, teacher's ntp; and once more over answers alone. */
enum { KL, NTP, TEACHER_NTP, ANSWER_KL, ANSWER, TEACHER_ANSWER, SUMS };

static void add_rows(const struct vocab_job *j, double sum[SUMS])
{
    for (size_t r = 0; r < j->n; r++) {
        const double *row = j->w->row + r * 3;
        for (size_t i = 0; i < 3; i++)
            sum[i] += weight_of(j, j->at[r]) * row[i];
        if (predicts_answer(j->in, j->at[r])) {
            sum[ANSWER_KL] += row[KL];
            sum[ANSWER] += row[NTP];
            sum[TEACHER_ANSWER] += row[TEACHER_NTP];
        }
    }
}

/* Both models' logits of the block's positions, as one product: rows of both
 * share what it costs to bring the vocabulary in. */
static void fill_logits(const struct vocab_job *j)
{
    struct loss_work *w = j->w;
    size_t D = w->f->shape.n_embd, bytes = D * sizeof(float);
    for (size_t r = 0; r < j->n; r++) {
        memcpy(w->states + r * D, j->in->teacher + j->at[r] * D, bytes);
        memcpy(w->states + (j->n + r) * D, j->in->student + j->at[r] * D,
               bytes);
    }
    mat_xwt(w->mat, w->logits, w->states, w->f->out,
            (struct mat_size){2 * j->n, w->f->shape.n_vocab, D}, 0);
}

void loss_vocab(struct loss_work *w, const struct loss_input *in,
                struct loss_values *out, float *d_student)
{
    size_t answers = n_answers(in), T = in->n_tokens;
    double sum[SUMS] = {0.0},
           share = answers == 0 ? 0.0 : 1.0 / (double)answers;
    struct vocab_job j = {.w = w,
                          .in = in,
                          .d_student = d_student,
                          .ntp_share = in->ntp_weight / (double)(T - 1),
                          .answer_more = in->answer_weight * share,
                          .answer_kl = in->answer_divergence * share};
    size_t n = loss_choose(w->at, &j.stands_for, in);
    if (d_student != NULL)
        memset(d_student, 0, T * w->f->shape.n_embd * sizeof(float));
    for (size_t i = 0; i < n; i += w->block) {
        j.at = w->at + i;
        j.n = n - i < w->block ? n - i : w->block;
        fill_logits(&j);
        workers_run(w->k, (int)j.n, vocab_task, &j);
        add_rows(&j, sum);
        if (d_student == NULL)
            continue;
        workers_run(w->k, (int)n_pieces(w->f), piece_task, &j);
        workers_run(w->k, (int)j.n, sum_task, &j);
    }
    out->kl = sum[KL] / (double)T;
    out->ntp = sum[NTP] / (double)(T - 1);
    out->teacher_ntp = sum[TEACHER_NTP] / (double)(T - 1);
    out->n_answers = (uint32_t)answers;
    out->answer_kl = sum[ANSWER_KL] * share;
    out->answer = sum[ANSWER] * share;
    out->teacher_answer = sum[TEACHER_ANSWER] * share;
}

struct alive_job {
    struct loss_work *w;
    const float *lambda;
    size_t n_tokens;
};

/* Living entries of one layer at every step. */
static void alive_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct alive_job *j = ctx;
    size_t T = j->n_tokens, H = j->w->f->shape.n_kv_heads;
    double *alive = j->w->alive + (size_t)task * T;
    const float *lambda = j->lambda + (size_t)task * H * T;
    memset(alive, 0, T * sizeof(double));
    for (size_t h = 0; h < H; h++)
        for (size_t i = 0; i < T; i++) {
            double beta = exp((double)lambda[h * T + i]), left = 1.0;
            for (size_t t = i; t < T && left > LOSS_ALIVE_MIN; t++) {
                alive[t] += left;
                left *= beta;
            }
        }
}

void loss_capacity(struct loss_work *w, const struct loss_capacity *c,
                   struct loss_values *out, float *d_soft)
{
    const struct frozen_shape *s = &w->f->shape;
    double lists = (double)s->n_layers * s->n_kv_heads;
    double room = c->entries_per_head * lists, sum = 0.0, last = 0.0;
    uint32_t n_over = 0;
    struct alive_job j = {w, c->lambda, c->n_tokens};
    workers_run(w->k, (int)s->n_layers, alive_task, &j);
    for (uint32_t t = 0; t < c->n_tokens; t++) {
        double alive = 0.0, most = ((double)t + 1.0) * lists;
        for (uint32_t l = 0; l < s->n_layers; l++)
            alive += w->alive[(size_t)l * c->n_tokens + t];
        double scale = most - room > 1.0 ? most - room : 1.0;
        d_soft[t] = 0.0f;
        if (alive > room) {
            sum += (alive - room) / scale;
            d_soft[t] = (float)(c->weight / scale);
            n_over++;
        }
        last = alive;
    }
    for (uint32_t t = 0; t < c->n_tokens && n_over > 0; t++)
        d_soft[t] /= (float)n_over;
    out->cap = n_over == 0 ? 0.0 : sum / n_over;
    out->alive = last / lists;
    out->n_over = n_over;
}
