#include "gates/train/loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gates/train/rows.h"

enum {
    /* Logits of as many positions exist at a time as fit in these bytes, for
     * the teacher and for the student. */
    LOGITS_BYTES = 64 << 20,
    POSITIONS_MIN = 16,
    /* Tokens of one piece of the vocabulary in backward: its pieces are
     * summed afterwards, in order. */
    VOCAB_PIECE = 4096,
    TASK_FLOATS = 4096
};

struct loss_work {
    const struct frozen *f;
    const struct mat *mat;
    struct workers *k;
    const struct rows *rows;
    size_t block;  /* positions at a time */
    float *p, *q;  /* [block][n_vocab] logits of teacher and student */
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
    size_t alive = (size_t)s->n_layers * t_max;
    struct loss_work *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the loss");
    *w = (struct loss_work){.f = f,
                            .mat = t,
                            .k = mat_workers(t),
                            .rows = rows_best(),
                            .block = block,
                            .p = calloc(block * v, sizeof(float)),
                            .q = calloc(block * v, sizeof(float)),
                            .pieces = calloc(pieces, sizeof(float)),
                            .row = calloc(block * 3, sizeof(double)),
                            .alive = calloc(alive, sizeof(double))};
    w->bytes = (2 * block * v + pieces) * sizeof(float) +
               (block * 3 + alive) * sizeof(double);
    if (w->p == NULL || w->q == NULL || w->pieces == NULL || w->row == NULL ||
        w->alive == NULL) {
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
    free(w->p);
    free(w->q);
    free(w->pieces);
    free(w->row);
    free(w->alive);
    free(w);
}

size_t loss_work_bytes(const struct loss_work *w)
{
    return w->bytes;
}

struct vocab_job {
    struct loss_work *w;
    const struct loss_input *in;
    size_t first, n;   /* position of row 0, rows */
    float *d_student;  /* of row 0; NULL: no gradient */
    float ntp_share;   /* d loss / d ntp of a position */
    float answer_more; /* added to it where the next token is of an answer */
};

static bool is_answer(const struct loss_input *in, size_t t)
{
    return in->is_answer != NULL && in->is_answer[t] != 0;
}

/* One position; the student's logits become their gradient. */
static void vocab_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct vocab_job *j = ctx;
    const struct rows *f = j->w->rows;
    size_t v = j->w->f->shape.n_vocab, t = j->first + (size_t)task;
    const float *p = j->w->p + (size_t)task * v;
    float *q = j->w->q + (size_t)task * v;
    double *row = j->w->row + (size_t)task * 3;
    double lp = f->log_sum_exp(p, v), lq = f->log_sum_exp(q, v);
    const int32_t *tokens = j->in->tokens;
    int has_next = t + 1 < j->in->n_tokens;
    struct rows_pair x = {.p = p,
                          .q = q,
                          .n = v,
                          .log_p = (float)lp,
                          .log_q = (float)lq,
                          .kl_share = 1.0f / (float)j->in->n_tokens,
                          .is_gradient = j->d_student != NULL};
    row[1] = row[2] = 0.0;
    if (has_next) {
        x.ntp_share = j->ntp_share;
        if (is_answer(j->in, t + 1))
            x.ntp_share += j->answer_more;
        row[1] = lq - (double)q[tokens[t + 1]];
        row[2] = lp - (double)p[tokens[t + 1]];
    }
    row[0] = f->kl(&x);
    if (j->d_student != NULL && has_next)
        q[tokens[t + 1]] -= x.ntp_share;
}

/* The gradient of the hidden state through one piece of the vocabulary. */
static void piece_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct vocab_job *j = ctx;
    const struct loss_work *w = j->w;
    size_t v = w->f->shape.n_vocab, D = w->f->shape.n_embd;
    size_t from = (size_t)task * VOCAB_PIECE;
    size_t n = v - from < VOCAB_PIECE ? v - from : VOCAB_PIECE;
    struct mat_view c = {w->pieces + (size_t)task * w->block * D, j->n, D, D};
    struct mat_view a = {w->q + from, j->n, n, v};
    struct mat_view b = {w->f->out + from * D, n, D, D};
    mat_ab(w->mat, &c, &a, &b, 1.0f, 0.0f);
}

static void sum_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct vocab_job *j = ctx;
    const struct loss_work *w = j->w;
    size_t D = w->f->shape.n_embd, all = j->n * D, pieces = n_pieces(w->f);
    size_t i = (size_t)task * TASK_FLOATS;
    size_t end = i + TASK_FLOATS < all ? i + TASK_FLOATS : all;
    for (; i < end; i++) {
        float sum = 0.0f;
        for (size_t k = 0; k < pieces; k++)
            sum += w->pieces[k * w->block * D + i];
        j->d_student[i] = sum;
    }
}

/* Tokens of answers that something stands before. */
static size_t n_answers(const struct loss_input *in)
{
    size_t n = 0;
    for (size_t t = 1; t < in->n_tokens; t++)
        n += is_answer(in, t);
    return n;
}

/* kl, ntp, teacher's ntp; the last two once more over answers alone. */
enum { KL, NTP, TEACHER_NTP, ANSWER, TEACHER_ANSWER, SUMS };

static void add_rows(const struct vocab_job *j, double sum[SUMS])
{
    for (size_t r = 0; r < j->n; r++) {
        const double *row = j->w->row + r * 3;
        size_t next = j->first + r + 1;
        for (size_t i = 0; i < 3; i++)
            sum[i] += row[i];
        if (next < j->in->n_tokens && is_answer(j->in, next)) {
            sum[ANSWER] += row[NTP];
            sum[TEACHER_ANSWER] += row[TEACHER_NTP];
        }
    }
}

void loss_vocab(struct loss_work *w, const struct loss_input *in,
                struct loss_values *out, float *d_student)
{
    size_t D = w->f->shape.n_embd, v = w->f->shape.n_vocab;
    size_t answers = n_answers(in);
    double sum[SUMS] = {0.0};
    struct vocab_job j = {
        .w = w,
        .in = in,
        .ntp_share = (float)in->ntp_weight / (float)(in->n_tokens - 1),
        .answer_more =
            answers == 0 ? 0.0f : (float)in->answer_weight / (float)answers};
    for (size_t t = 0; t < in->n_tokens; t += w->block) {
        size_t n = in->n_tokens - t < w->block ? in->n_tokens - t : w->block;
        j.first = t;
        j.n = n;
        j.d_student = d_student == NULL ? NULL : d_student + t * D;
        mat_xwt(w->mat, w->p, in->teacher + t * D, w->f->out,
                (struct mat_size){n, v, D}, 0);
        mat_xwt(w->mat, w->q, in->student + t * D, w->f->out,
                (struct mat_size){n, v, D}, 0);
        workers_run(w->k, (int)n, vocab_task, &j);
        add_rows(&j, sum);
        if (d_student == NULL)
            continue;
        workers_run(w->k, (int)n_pieces(w->f), piece_task, &j);
        workers_run(w->k, (int)((n * D + TASK_FLOATS - 1) / TASK_FLOATS),
                    sum_task, &j);
    }
    out->kl = sum[KL] / in->n_tokens;
    out->ntp = sum[NTP] / (in->n_tokens - 1);
    out->teacher_ntp = sum[TEACHER_NTP] / (in->n_tokens - 1);
    out->n_answers = (uint32_t)answers;
    out->answer = answers == 0 ? 0.0 : sum[ANSWER] / (double)answers;
    out->teacher_answer =
        answers == 0 ? 0.0 : sum[TEACHER_ANSWER] / (double)answers;
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
