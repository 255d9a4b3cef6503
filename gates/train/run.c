#include "gates/train/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "gates/train/checkpoint.h"
#include "gates/train/trainer.h"

enum { SETTINGS_BYTES = 2048, SECOND_US = 1000000 };

struct run {
    struct gate *g;
    struct mix *mix;
    const struct train_options *o;
    struct trainer *trainer;
    size_t n; /* parameters */
    float *grad, *m1, *m2;
    int32_t *tokens;
    uint64_t step;     /* done */
    int64_t log_bytes; /* of the log, when the checkpoint was written; -1: of
                          another log, or there was none */
    char settings[SETTINGS_BYTES];
    FILE *log;
    /* Since the last progress line. */
    int64_t first_us, shown_us, saved_us;
    uint64_t first_step;
    double sum_kl, sum_cap;
    uint64_t n_sum;
};

static float normal(struct rng *r)
{
    double u = rng_double(r) + 1e-300, v = rng_double(r);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

void train_init_gate(struct gate *g, double memory, uint64_t seed)
{
    const struct gate_parts *at = &g->parts;
    const float scale = 0.02f;
    struct rng r;
    rng_seed(&r, seed);
    memset(g->p, 0, gate_n_params(g) * sizeof(float));
    for (uint32_t l = 0; l < g->shape.n_layers; l++) {
        float *p = gate_layer(g, l);
        for (size_t i = at->w1; i < at->c1; i++)
            p[i] = scale * normal(&r);
        for (size_t i = at->w2; i < at->c2; i++)
            p[i] = scale * normal(&r);
    }
    for (size_t i = at->w3; i < at->n; i++) {
        float v = i < at->c3 ? scale * normal(&r) : (float)log(2.0 * memory);
        for (uint32_t l = 0; l < g->shape.n_layers; l++)
            gate_layer(g, l)[i] = v;
    }
}

/* What must be the same for a continuation to be one. */
static enum err describe(struct run *r, const struct frozen *f,
                         struct errmsg *m)
{
    const struct train_options *o = r->o;
    int n =
        snprintf(r->settings, sizeof(r->settings),
                 "%s layers=%u embd=%u heads=%u width=%u steps=%" PRIu64
                 " warm-up=%" PRIu64
                 " tokens=%u memory=%.17g weight=%.17g ntp-weight=%.17g "
                 "answer-weight=%.17g answer-divergence=%.17g "
                 "loss-positions=%.17g lr=%.9g "
                 "seed=%" PRIu64 " text-tokens=%zu",
                 o->identity == NULL ? "" : o->identity, f->shape.n_layers,
                 f->shape.n_embd, f->shape.n_kv_heads, r->g->shape.width,
                 o->steps, o->warm_up, o->tokens, o->memory, o->weight,
                 o->ntp_weight, o->answer_weight, o->answer_divergence,
                 o->positions, (double)o->lr, o->seed, mix_n_tokens(r->mix));
    return n > 0 && (size_t)n < sizeof(r->settings)
               ? OK
               : err_set(m, ERR_INVAL,
                         "the description of a run has more "
                         "than %d bytes",
                         SETTINGS_BYTES);
}

static int64_t log_size(const struct run *r)
{
    struct stat st;
    return r->log != NULL && fstat(fileno(r->log), &st) == 0 ? st.st_size : 0;
}

/* The run as a checkpoint holds it. */
static struct checkpoint checkpoint_of(const struct run *r)
{
    return (struct checkpoint){.settings = r->settings,
                               .log = r->o->log,
                               .log_bytes = log_size(r),
                               .texts = r->o->texts,
                               .init_steps = r->o->init_steps,
                               .step = r->step,
                               .n = r->n,
                               .gates = r->g->p,
                               .m1 = r->m1,
                               .m2 = r->m2};
}

static enum err save(struct run *r, struct errmsg *m)
{
    if (r->o->checkpoint == NULL)
        return OK;
    struct checkpoint c = checkpoint_of(r);
    r->saved_us = clock_us();
    return checkpoint_write(r->o->checkpoint, &c, m);
}

static enum err restore(struct run *r, struct errmsg *m)
{
    if (r->o->checkpoint == NULL || access(r->o->checkpoint, F_OK) != 0)
        return OK;
    struct checkpoint c = checkpoint_of(r);
    enum err rc = checkpoint_read(&c, r->o->checkpoint, m);
    if (rc == OK && c.step > r->o->steps)
        rc = err_set(m, ERR_INVAL, "the checkpoint %s is of step %" PRIu64,
                     r->o->checkpoint, c.step);
    if (rc != OK)
        return rc;
    r->step = c.step;
    r->log_bytes = c.log_bytes;
    return OK;
}

/* A run that was killed may have logged more than it saved, and half a line:
 * back to where the log was. A log that was moved or begun anew stays. */
static enum err cut_log(const struct run *r, struct errmsg *m)
{
    struct stat st;
    if (r->log_bytes < 0 || stat(r->o->log, &st) != 0 ||
        st.st_size <= r->log_bytes)
        return OK;
    if (truncate(r->o->log, r->log_bytes) != 0)
        return err_set(m, ERR_IO, "cannot shorten the log %s", r->o->log);
    return OK;
}

/* Two runs with one log would cut each other's lines. A device may be shared.
 */
static enum err lock_log(const struct run *r, struct errmsg *m)
{
    struct stat st;
    if (fstat(fileno(r->log), &st) != 0 || !S_ISREG(st.st_mode))
        return OK;
    enum err rc = file_lock_open(fileno(r->log), r->o->log, m);
    return rc == ERR_BUSY
               ? err_set(m, rc, "another training run writes to %s", r->o->log)
               : rc;
}

static enum err open_log(struct run *r, struct errmsg *m)
{
    if (r->o->log == NULL)
        return OK;
    r->log = fopen(r->o->log, "ae");
    if (r->log == NULL)
        return err_set(m, ERR_IO, "cannot write the log %s", r->o->log);
    enum err rc = lock_log(r, m);
    return rc == OK ? cut_log(r, m) : rc;
}

static enum err put_number(struct buf *b, const char *key, double v)
{
    enum err rc = buf_putc(b, ',');
    if (rc == OK)
        rc = json_put_key(b, key);
    return rc == OK ? json_put_double(b, v) : rc;
}

/* What one step gave. */
struct result {
    enum mix_kind kind;
    struct loss_values v;
    double norm, seconds;
    float lr;
};

static enum err write_log(struct run *r, const struct result *s,
                          struct errmsg *m)
{
    if (r->log == NULL)
        return OK;
    struct buf b = {0};
    enum err rc = buf_printf(&b, "{\"step\":%" PRIu64 ",\"kind\":\"%s\"",
                             r->step, mix_kind_name(s->kind));
    const struct {
        const char *key;
        double v;
        bool is_there;
    } field[] = {{"kl", s->v.kl, true},
                 {"ntp", s->v.ntp, true},
                 {"teacher_ntp", s->v.teacher_ntp, true},
                 {"answer_kl", s->v.answer_kl, s->v.n_answers > 0},
                 {"answer", s->v.answer, s->v.n_answers > 0},
                 {"teacher_answer", s->v.teacher_answer, s->v.n_answers > 0},
                 {"cap", s->v.cap, true},
                 {"alive", s->v.alive, true},
                 {"grad_norm", s->norm, true},
                 {"lr", (double)s->lr, true},
                 {"seconds", s->seconds, true}};
    for (size_t i = 0; rc == OK && i < sizeof(field) / sizeof(field[0]); i++)
        if (field[i].is_there)
            rc = put_number(&b, field[i].key, field[i].v);
    if (rc == OK)
        rc = buf_puts(&b, "}\n");
    if (rc == OK &&
        (fwrite(b.data, 1, b.len, r->log) != b.len || fflush(r->log) != 0))
        rc = ERR_IO;
    buf_fini(&b);
    return rc == OK ? OK : err_set(m, rc, "cannot write the training log");
}

static void show_progress(struct run *r, const struct loss_values *v)
{
    int64_t now = clock_us(), every = r->o->progress_every;
    r->sum_kl += v->kl;
    r->sum_cap += v->cap;
    r->n_sum++;
    if (every == 0 ||
        (now - r->shown_us < every * SECOND_US && r->step < r->o->steps))
        return;
    double rate =
        (double)(now - r->first_us) / 1e6 / (double)(r->step - r->first_step);
    double left = rate * (double)(r->o->steps - r->step) / 60.0;
    fprintf(stderr,
            "step %" PRIu64 " of %" PRIu64 ": kl %.4f cap %.4f alive %.1f; "
            "%.2f s a step, %.0f minutes left\n",
            r->step, r->o->steps, r->sum_kl / (double)r->n_sum,
            r->sum_cap / (double)r->n_sum, v->alive, rate, left);
    r->shown_us = now;
    r->sum_kl = r->sum_cap = 0.0;
    r->n_sum = 0;
}

static enum err one_step(struct run *r, struct errmsg *m)
{
    const struct train_options *o = r->o;
    struct result s;
    int64_t start = clock_us();
    enum err rc =
        mix_sequence(r->mix, r->step, o->tokens, r->tokens, &s.kind, m);
    if (rc != OK)
        return rc;
    memset(r->grad, 0, r->n * sizeof(float));
    uint64_t draw = o->seed;
    struct trainer_sequence x = {.tokens = r->tokens,
                                 .is_answer = mix_answers(r->mix),
                                 .n_tokens = o->tokens,
                                 .seed = rng_splitmix(&draw) + r->step};
    trainer_gradient(r->trainer, &x, r->grad, &s.v);
    trainer_tie(r->g, r->grad);
    r->step++;
    s.lr = schedule_lr(o->lr, r->step, o->warm_up, o->steps);
    struct adamw a = {.lr = s.lr,
                      .beta1 = 0.9f,
                      .beta2 = 0.99f,
                      .eps = 1e-12f,
                      .weight_decay = 1e-6f,
                      .clip = 1.0f};
    s.norm = adamw_step(&a, r->g, r->grad, r->m1, r->m2, r->step);
    if (!isfinite(s.norm) || !isfinite(s.v.kl))
        return err_set(m, ERR_INTERNAL,
                       "step %" PRIu64 " gave a loss that is not finite: try "
                       "a smaller learning rate",
                       r->step);
    s.seconds = (double)(clock_us() - start) / 1e6;
    show_progress(r, &s.v);
    return write_log(r, &s, m);
}

static enum err loop(struct run *r, struct errmsg *m)
{
    const struct train_options *o = r->o;
    r->first_step = r->step;
    r->first_us = r->shown_us = clock_us();
    /* Also before the first step: it says where the log was. */
    enum err rc = save(r, m);
    if (rc != OK)
        return rc;
    while (r->step < o->steps) {
        rc = one_step(r, m);
        if (rc != OK)
            return rc;
        bool stop = o->stop != NULL && atomic_load(o->stop);
        int64_t age = clock_us() - r->saved_us;
        if (stop || r->step == o->steps ||
            age >= (int64_t)o->checkpoint_every * SECOND_US)
            rc = save(r, m);
        if (rc != OK)
            return rc;
        if (stop && r->step < o->steps)
            return err_set(m, ERR_CANCELLED,
                           "stopped after step %" PRIu64 " of %" PRIu64,
                           r->step, o->steps);
    }
    return OK;
}

static enum err allocate(struct run *r, const struct frozen *f,
                         const struct mat *mat, struct errmsg *m)
{
    r->grad = calloc(r->n, sizeof(float));
    r->m1 = calloc(r->n, sizeof(float));
    r->m2 = calloc(r->n, sizeof(float));
    r->tokens = calloc(r->o->tokens, sizeof(*r->tokens));
    if (r->grad == NULL || r->m1 == NULL || r->m2 == NULL || r->tokens == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the optimiser");
    struct trainer_options t = {.max_tokens = r->o->tokens,
                                .entries_per_head = r->o->memory,
                                .capacity_weight = r->o->weight,
                                .ntp_weight = r->o->ntp_weight,
                                .answer_weight = r->o->answer_weight,
                                .answer_divergence = r->o->answer_divergence,
                                .positions = r->o->positions,
                                .keep_bytes = r->o->keep_bytes};
    return trainer_new(&r->trainer, f, r->g, &t, mat, m);
}

static void show_start(const struct run *r)
{
    if (r->o->progress_every == 0)
        return;
    size_t optimiser = 3 * r->n * sizeof(float);
    fprintf(stderr,
            "step %" PRIu64 " of %" PRIu64
            ": %zu gate parameters, %.1f M tokens of text, "
            "%zu MiB for training besides the weights\n",
            r->step, r->o->steps, r->n, (double)mix_n_tokens(r->mix) / 1e6,
            (trainer_bytes(r->trainer) + optimiser) >> 20);
}

enum err train_run(struct gate *g, const struct frozen *f, struct mix *x,
                   const struct train_options *o, const struct mat *mat,
                   struct errmsg *m)
{
    struct run r = {
        .g = g, .mix = x, .o = o, .n = gate_n_params(g), .log_bytes = -1};
    trainer_tie_gate(g);
    enum err rc = describe(&r, f, m);
    if (rc == OK)
        rc = allocate(&r, f, mat, m);
    if (rc == OK)
        rc = restore(&r, m);
    if (rc == OK)
        rc = open_log(&r, m);
    if (rc == OK) {
        show_start(&r);
        rc = loop(&r, m);
    }
    if (r.log != NULL)
        fclose(r.log);
    trainer_free(r.trainer);
    free(r.tokens);
    free(r.m2);
    free(r.m1);
    free(r.grad);
    return rc;
}
