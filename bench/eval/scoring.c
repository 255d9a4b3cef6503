#include "bench/eval/scoring.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Of one predicted token with the full cache. */
struct reference {
    double entropy; /* -sum p log p */
    uint32_t best;  /* argmax p */
};

struct scoring {
    struct model *model;
    struct workers *workers;
    uint32_t n_vocab, max_scored;
    float *logits;               /* [SCORING_LOGITS][n_vocab] */
    float *p;                    /* [max_scored][n_vocab] */
    struct reference *reference; /* [max_scored] */
    int32_t token[SCORING_ROWS]; /* of the step */
    struct model_run run[SCORING_ROWS];
    uint32_t row[SCORING_LOGITS];    /* rows with logits */
    int32_t wanted[SCORING_LOGITS];  /* the token that each predicts */
    uint32_t scored[SCORING_LOGITS]; /* and its number in the call */
    uint32_t n_rows, n_runs, n_logits;
    bool is_reference;
    struct scored *out;
};

uint64_t scoring_bytes(const struct model_info *info, uint32_t max_scored)
{
    return (uint64_t)info->n_vocab * sizeof(float) *
           (SCORING_LOGITS + (uint64_t)max_scored);
}

enum err scoring_new(struct scoring **out, struct model *model,
                     struct workers *w, uint32_t max_scored, struct errmsg *m)
{
    struct scoring *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return err_set(m, ERR_NOMEM, "no memory for scoring");
    s->model = model;
    s->workers = w;
    s->n_vocab = model_info(model)->n_vocab;
    s->max_scored = max_scored;
    s->logits = malloc(sizeof(float) * SCORING_LOGITS * s->n_vocab);
    s->p = malloc(sizeof(float) * max_scored * s->n_vocab);
    s->reference = calloc(max_scored, sizeof(*s->reference));
    if (s->logits == NULL || s->p == NULL || s->reference == NULL) {
        scoring_free(s);
        return err_set(
            m, ERR_NOMEM, "no memory for %llu bytes of logits",
            (unsigned long long)scoring_bytes(model_info(model), max_scored));
    }
    *out = s;
    return OK;
}

void scoring_free(struct scoring *s)
{
    if (s == NULL)
        return;
    free(s->logits);
    free(s->p);
    free(s->reference);
    free(s);
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* Sums over a vocabulary run in so many chains, which do not wait for one
 * another. */
enum { CHAINS = 8 };

static double sum_of(const double chain[CHAINS])
{
    double sum = 0;
    for (int j = 0; j < CHAINS; j++)
        sum += chain[j];
    return sum;
}

/* log of the sum of exp(x - max). */
static double log_sum(const float *x, uint32_t n, float max)
{
    double chain[CHAINS] = {0};
    uint32_t i = 0;
    for (; i + CHAINS <= n; i += CHAINS)
        for (uint32_t j = 0; j < CHAINS; j++)
            chain[j] += expf(x[i + j] - max);
    for (; i < n; i++)
        chain[0] += expf(x[i] - max);
    return log(sum_of(chain));
}

/* p and its entropy from logits: -sum p log p = lse - sum p (x - max). */
static void keep_reference(struct scoring *s, const float *x, uint32_t i,
                           uint32_t best, double lse)
{
    float *p = s->p + (size_t)i * s->n_vocab, max = x[best];
    double dot = 0;
    for (uint32_t v = 0; v < s->n_vocab; v++) {
        double z = (double)x[v] - max;
        p[v] = (float)exp(z - lse);
        dot += p[v] * z;
    }
    s->reference[i] = (struct reference){lse - dot, best};
}

/* sum p (log p - log q) = -entropy + lse - sum p (x - max): one pass over the
 * vocabulary and no logarithm in it. */
static double divergence(const struct scoring *s, const float *x, uint32_t i,
                         float max, double lse)
{
    const float *p = s->p + (size_t)i * s->n_vocab;
    double chain[CHAINS] = {0};
    uint32_t v = 0;
    for (; v + CHAINS <= s->n_vocab; v += CHAINS)
        for (uint32_t j = 0; j < CHAINS; j++)
            chain[j] += p[v + j] * ((double)x[v + j] - max);
    for (; v < s->n_vocab; v++)
        chain[0] += p[v] * ((double)x[v] - max);
    return lse - sum_of(chain) - s->reference[i].entropy;
}

static void score_row(void *ctx, int task, int thread)
{
    struct scoring *s = ctx;
    (void)thread;
    const float *x = s->logits + (size_t)task * s->n_vocab;
    uint32_t i = s->scored[task], best = argmax(x, s->n_vocab);
    double lse = log_sum(x, s->n_vocab, x[best]);
    int32_t token = s->wanted[task];
    if (s->is_reference)
        keep_reference(s, x, i, best, lse);
    s->out[i] = (struct scored){
        .nll = lse - ((double)x[token] - x[best]),
        .kl = s->is_reference ? 0 : divergence(s, x, i, x[best], lse),
        .best = (int32_t)best,
        .agree = best == s->reference[i].best,
        .top1 = best == (uint32_t)token};
}

static void flush(struct scoring *s)
{
    struct model_batch b = {.n_rows = s->n_rows,
                            .tokens = s->token,
                            .n_runs = s->n_runs,
                            .runs = s->run,
                            .n_logits = s->n_logits,
                            .logit_rows = s->row,
                            .logits = s->logits};
    model_step(s->model, &b);
    workers_run(s->workers, (int)s->n_logits, score_row, s);
    s->n_rows = s->n_runs = s->n_logits = 0;
}

static enum err grow(struct table *t, uint32_t n, uint32_t pos, uint32_t rope)
{
    uint64_t need = table_units_needed(t, n);
    if (need > UINT32_MAX || pool_reserve(t->pool, (uint32_t)need) != OK)
        return ERR_BUDGET;
    uint64_t took = table_append(t, n, (int32_t)pos, (int32_t)rope);
    pool_unreserve(t->pool, (uint32_t)(need - took));
    return OK;
}

/* Adds rows of a run to the step, from its row `at` on: as many as there is
 * room for. Returns how many in *n. */
static enum err add_rows(struct scoring *s, const struct scoring_run *r,
                         uint32_t at, uint32_t i_scored, uint32_t *n)
{
    uint32_t left = r->n - 1 - at, plain = 0;
    uint32_t rows = SCORING_ROWS - s->n_rows;
    if (at + 1 < r->first) /* rows before the first that predicts */
        plain = r->first - 1 - at;
    uint32_t room = plain + SCORING_LOGITS - s->n_logits;
    rows = rows < left ? rows : left;
    rows = rows < room ? rows : room;
    *n = rows;
    if (rows == 0)
        return OK;
    enum err rc = grow(r->table, rows, r->pos + at, r->pos - r->back + at);
    if (rc != OK)
        return rc;
    for (uint32_t i = 0; i < rows; i++) {
        s->token[s->n_rows + i] = r->ids[at + i];
        if (at + i + 1 < r->first)
            continue;
        s->row[s->n_logits] = s->n_rows + i;
        s->wanted[s->n_logits] = r->ids[at + i + 1];
        s->scored[s->n_logits++] = i_scored + at + i + 1 - r->first;
    }
    s->run[s->n_runs++] = (struct model_run){.table = r->table,
                                             .n_rows = rows,
                                             .pos = r->pos - r->back + at,
                                             .probe = r->probe};
    s->n_rows += rows;
    return OK;
}

static enum err feed(struct scoring *s, const struct scoring_run *r,
                     uint32_t i_scored)
{
    uint32_t at = 0, n = 0;
    while (at + 1 < r->n) {
        enum err rc = add_rows(s, r, at, i_scored, &n);
        if (rc != OK)
            return rc;
        at += n;
        if (at + 1 < r->n)
            flush(s); /* the step is full */
    }
    return OK;
}

/* An error drops what was gathered: the rows of its tables are then there and
 * hold nothing, and the caller ends those tables. */
static enum err feed_all(struct scoring *s, const struct scoring_run *run,
                         uint32_t n_runs)
{
    enum err rc = OK;
    uint32_t i_scored = 0;
    s->n_rows = s->n_runs = s->n_logits = 0;
    for (uint32_t i = 0; i < n_runs && rc == OK; i++) {
        assert(run[i].first >= 1);
        rc = feed(s, &run[i], i_scored);
        if (run[i].n > run[i].first)
            i_scored += run[i].n - run[i].first;
        assert(i_scored <= s->max_scored);
    }
    if (rc == OK && s->n_rows > 0)
        flush(s);
    return rc;
}

enum err scoring_score(struct scoring *s, const struct scoring_run *run,
                       uint32_t n_runs, bool is_reference, struct scored *out)
{
    s->is_reference = is_reference;
    s->out = out;
    return feed_all(s, run, n_runs);
}

enum err scoring_feed(struct scoring *s, const struct scoring_run *run)
{
    /* No row of it predicts: `first` is behind them all. The last id of a run
     * is not fed, so the run is one longer; its last id is not read. */
    struct scoring_run all = *run;
    all.n = all.first = run->n + 1;
    return feed_all(s, &all, 1);
}

enum err scoring_feed_given(struct scoring *s, const struct scoring_run *run,
                            uint32_t n_runs)
{
    enum err rc = OK;
    s->n_rows = s->n_runs = s->n_logits = 0;
    for (uint32_t i = 0; i < n_runs && rc == OK; i++) {
        struct scoring_run given = run[i];
        given.n = run[i].first; /* rows 0 .. first - 2 */
        rc = feed(s, &given, 0);
    }
    if (rc == OK && s->n_rows > 0)
        flush(s);
    return rc;
}
