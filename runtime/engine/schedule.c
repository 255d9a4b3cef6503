#include "runtime/engine/schedule.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    LEARNING_STEPS = 8, /* whose times are believed as they are */
    FIRST_ROWS = 32
};

/* Where the fit starts, and what a deterministic plan uses: a model of about
 * 0.2 billion weights on two cores. Wrong by a factor of ten it only costs a
 * few steps of a poor size. */
static const double START_FIXED_US = 5000.0;
static const double START_ROW_US = 1000.0;
static const double START_CONTEXT_US = 0.5;

/* Weight of the past after each step: about the last hundred count. */
static const double DECAY = 0.99;
/* Weight of the start values beside a step that took as long as they say:
 * keeps the equations solvable when all steps look alike. */
static const double PRIOR = 0.01;

void schedule_init(struct schedule *s, uint32_t max_rows, uint32_t target_us,
                   bool deterministic)
{
    memset(s, 0, sizeof(*s));
    s->max_rows = max_rows;
    s->target_us = target_us;
    s->deterministic = deterministic;
    s->cost.fixed_us = START_FIXED_US;
    s->cost.row_us = START_ROW_US;
    s->cost.context_us = START_CONTEXT_US;
}

double schedule_predict_us(const struct schedule *s, uint64_t rows,
                           uint64_t context)
{
    const struct schedule_cost *c = &s->cost;
    return c->fixed_us + c->row_us * (double)rows +
           c->context_us * (double)context;
}

uint64_t schedule_context(uint32_t pos, uint32_t n)
{
    return (uint64_t)n * pos + (uint64_t)n * (n + 1ull) / 2;
}

/* Gauss elimination with pivots; false when the system is singular. */
static bool solve3(double a[3][4], double x[3])
{
    for (int k = 0; k < 3; k++) {
        int pivot = k;
        for (int i = k + 1; i < 3; i++) {
            if (fabs(a[i][k]) > fabs(a[pivot][k]))
                pivot = i;
        }
        if (!(fabs(a[pivot][k]) > 1e-12))
            return false;
        for (int j = 0; j < 4; j++) {
            double t = a[k][j];
            a[k][j] = a[pivot][j];
            a[pivot][j] = t;
        }
        for (int i = k + 1; i < 3; i++) {
            double f = a[i][k] / a[k][k];
            for (int j = k; j < 4; j++)
                a[i][j] -= f * a[k][j];
        }
    }
    for (int k = 2; k >= 0; k--) {
        double t = a[k][3];
        for (int j = k + 1; j < 3; j++)
            t -= a[k][j] * x[j];
        x[k] = t / a[k][k];
    }
    return true;
}

/* The unknowns are factors on the start values, so that they are of one
 * size whatever the machine is like. */
static void fit(struct schedule_cost *c)
{
    double a[3][4], x[3];
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++)
            a[i][j] = c->xx[i][j];
        a[i][3] = c->xy[i] + PRIOR;
        a[i][i] += PRIOR;
    }
    if (!solve3(a, x))
        return;
    /* Noise can make a term negative; no work is free, and a plan must never
     * be without bound. */
    c->fixed_us = START_FIXED_US * fmax(x[0], 0.0);
    c->row_us = START_ROW_US * fmax(x[1], 1e-3);
    c->context_us = START_CONTEXT_US * fmax(x[2], 1e-4);
}

void schedule_observe(struct schedule *s, uint64_t rows, uint64_t context,
                      double us)
{
    struct schedule_cost *c = &s->cost;
    if (s->deterministic || !isfinite(us) || us < 1.0)
        return;
    /* A neighbour that took the cores for a while says nothing about the
     * model. The first steps are believed: the start values are a guess. */
    double most = 4.0 * schedule_predict_us(s, rows, context);
    if (c->n_observed >= LEARNING_STEPS && us > most)
        us = most;
    /* Divided by the time: relative errors count, not absolute ones. Else the
     * long steps alone would decide what a short one is thought to take. */
    const double x[3] = {START_FIXED_US / us, START_ROW_US * (double)rows / us,
                         START_CONTEXT_US * (double)context / us};
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++)
            c->xx[i][j] = DECAY * c->xx[i][j] + x[i] * x[j];
        c->xy[i] = DECAY * c->xy[i] + x[i];
    }
    c->n_observed++;
    fit(c);
}

/* The most rows from position pos on that fit into `us`: the positive root of
 * context/2 n^2 + (row + context (pos + 1/2)) n = us. */
static uint32_t rows_within(const struct schedule_cost *c, double us,
                            uint32_t pos)
{
    if (us <= 0.0)
        return 0;
    double a = c->context_us / 2;
    double b = c->row_us + c->context_us * ((double)pos + 0.5);
    double n = 2 * us / (b + sqrt(b * b + 4 * a * us));
    return n < 1e9 ? (uint32_t)n : 1000000000u;
}

static uint64_t urgency(const struct schedule_prefill *p)
{
    return p->left > p->passed ? p->left - p->passed : 0;
}

static bool goes_before(const struct schedule_prefill *a,
                        const struct schedule_prefill *b)
{
    if (urgency(a) != urgency(b))
        return urgency(a) < urgency(b);
    return a->order < b->order;
}

static void sort(struct schedule_prefill **p, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        struct schedule_prefill *x = p[i];
        uint32_t k = i;
        for (; k > 0 && goes_before(x, p[k - 1]); k--)
            p[k] = p[k - 1];
        p[k] = x;
    }
}

/* How much of `left` to take when `most` rows are in reach: all, or whole
 * units. */
static uint32_t chunk_of(uint32_t left, uint32_t most)
{
    if (left <= most)
        return left;
    return most - most % SCHEDULE_LEAST;
}

void schedule_plan(struct schedule *s, uint32_t n_decode,
                   uint64_t decode_context, struct schedule_prefill **p,
                   uint32_t n)
{
    assert(n_decode <= s->max_rows);
    uint32_t room = s->max_rows - n_decode, taken = 0;
    double target = (double)s->target_us;
    if (n_decode == 0 && target < SCHEDULE_ALONE_US)
        target = SCHEDULE_ALONE_US;
    double us = target - schedule_predict_us(s, n_decode, decode_context);

    /* Before anything is known a large model would take seconds for what a
     * small one does in the target time. */
    if (!s->deterministic && s->cost.n_observed < 2 && room > FIRST_ROWS)
        room = FIRST_ROWS;
    sort(p, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t most = rows_within(&s->cost, us, p[i]->pos);
        if (taken == 0 && most < SCHEDULE_LEAST)
            most = SCHEDULE_LEAST;
        if (most > room)
            most = room;
        p[i]->passed += taken;
        p[i]->take = chunk_of(p[i]->left, most);
        /* Less than a unit of room is left in the batch: better a short
         * chunk than none. */
        if (taken == 0 && p[i]->take == 0)
            p[i]->take = most;
        taken += p[i]->take;
        room -= p[i]->take;
        us -= s->cost.row_us * p[i]->take +
              s->cost.context_us *
                  (double)schedule_context(p[i]->pos, p[i]->take);
    }
}
