#include "bench/eval/cells.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

/* The tasks that rows are made for: one, or all of them. */
struct group {
    const char *name;
    const enum task *task;
    uint32_t n;
    bool is_weak;
};

struct work {
    struct cells *out;
    const struct cells_input *in;
    double *x, *y, *z; /* [n_tasks * n_docs] */
};

void cells_fini(struct cells *c)
{
    free(c->row);
    *c = (struct cells){0};
}

/* Tasks without answers have no exact match, and not all have wrong ones. */
static bool has_metric(enum task task, enum metric m)
{
    return m == METRIC_EM       ? task_info(task)->has_answers
           : m == METRIC_CHOICE ? task_info(task)->has_choices
                                : true;
}

/* The metric of a choice, document by document; returns how many. */
static uint32_t collect(const struct work *w, const struct group *g,
                        const struct choice *c, enum metric metric, double *x)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t < g->n; t++) {
        if (!has_metric(g->task[t], metric))
            continue;
        for (uint32_t d = 0; d < w->in->n_docs; d++)
            x[n++] = records_find(w->in->records, g->task[t], d, c)
                         ->figures.metric[metric];
    }
    return n;
}

/* What is beside the metrics, over the documents. */
static void summarise(const struct work *w, const struct group *g,
                      const struct choice *c, struct cells_row *out)
{
    double n = (double)g->n * w->in->n_docs;
    for (uint32_t t = 0; t < g->n; t++)
        for (uint32_t d = 0; d < w->in->n_docs; d++) {
            const struct figures *f =
                &records_find(w->in->records, g->task[t], d, c)->figures;
            out->bytes += f->bytes;
            out->routed += f->routed;
            out->gate += f->gate;
            if (f->log_ratio > out->log_ratio)
                out->log_ratio = f->log_ratio;
        }
    out->bytes /= n;
    out->routed /= n;
    out->gate /= n;
}

static double mean_of(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

/* The row that `like` begins, with the interval of w->x, or of its ratio to
 * y. */
static enum err add_row(struct work *w, const struct cells_row *like,
                        const double *y)
{
    struct cells *c = w->out;
    struct cells_row *grown =
        grow_array(c->row, &c->cap, c->n + 1, sizeof(*grown));
    if (grown == NULL)
        return ERR_NOMEM;
    c->row = grown;
    struct cells_row *row = &c->row[c->n];
    *row = *like;
    const struct interval_sample sample = {
        .n = row->n, .n_tasks = row->n / w->in->n_docs, .seed = w->in->seed};
    enum err rc = y == NULL ? interval_of(&row->value, w->x, &sample)
                            : interval_of_ratio(&row->value, w->x, y, &sample);
    c->n += rc == OK;
    return rc;
}

static struct cells_row start_row(const struct work *w, const struct group *g,
                                  const struct choice *c, uint32_t n)
{
    struct cells_row row = {.task = g->name, .choice = c, .n = n};
    summarise(w, g, c, &row);
    return row;
}

static enum err add_value(struct work *w, const struct group *g,
                          const struct choice *c, enum metric metric)
{
    uint32_t n = collect(w, g, c, metric, w->x);
    if (n == 0)
        return OK;
    struct cells_row row = start_row(w, g, c, n);
    row.is_weak = metric == METRIC_EM && g->is_weak;
    snprintf(row.metric, sizeof(row.metric), "%s", metric_name(metric));
    return add_row(w, &row, NULL);
}

static enum err add_difference(struct work *w, const struct group *g,
                               const struct choice *c,
                               const struct choice *other, enum metric metric,
                               const char *name)
{
    uint32_t n = collect(w, g, c, metric, w->x);
    if (n == 0 || collect(w, g, other, metric, w->y) != n)
        return OK;
    for (uint32_t i = 0; i < n; i++)
        w->x[i] -= w->y[i];
    struct cells_row row = start_row(w, g, c, n);
    row.is_weak = metric == METRIC_EM && g->is_weak;
    row.against = other->name;
    snprintf(row.metric, sizeof(row.metric), "%s_minus_%s", metric_name(metric),
             name);
    return add_row(w, &row, NULL);
}

/* The choice of a kind, of which there is one at most. */
static const struct choice *only(const struct work *w, enum choice_kind kind)
{
    for (uint32_t i = 0; i < w->in->n_choices; i++)
        if (w->in->choice[i].kind == kind)
            return &w->in->choice[i];
    return NULL;
}

/* (policy - no-context) / (full - no-context), each the mean over documents:
 * docs/design, evaluation 3.1. Divergence has no such scale: full has none. */
static enum err add_normalised(struct work *w, const struct group *g,
                               const struct choice *c, enum metric metric)
{
    const struct choice *full = only(w, CHOICE_FULL);
    const struct choice *none = only(w, CHOICE_NO_CONTEXT);
    if (full == NULL || none == NULL || metric == METRIC_KL ||
        metric == METRIC_AGREE)
        return OK;
    uint32_t n = collect(w, g, c, metric, w->x);
    collect(w, g, full, metric, w->y);
    collect(w, g, none, metric, w->z);
    double range = 0;
    for (uint32_t i = 0; i < n; i++) {
        w->x[i] -= w->z[i];
        w->y[i] -= w->z[i];
        range += w->y[i];
    }
    if (n == 0 || range == 0)
        return OK;
    struct cells_row row = start_row(w, g, c, n);
    row.is_weak = metric == METRIC_EM && g->is_weak;
    snprintf(row.metric, sizeof(row.metric), "%s_normalised",
             metric_name(metric));
    return add_row(w, &row, w->y);
}

/* The best policy of the same budget that keeps other entries; NULL: there is
 * none. What merging adds to the same entries is another question. */
static const struct choice *best_other(const struct work *w,
                                       const struct group *g,
                                       const struct choice *c,
                                       enum metric metric)
{
    const struct choice *best = NULL;
    double best_mean = 0;
    for (uint32_t i = 0; i < w->in->n_choices; i++) {
        const struct choice *other = &w->in->choice[i];
        if (!choice_competes(other) || other->budget != c->budget ||
            choice_same_kept(other, c))
            continue;
        uint32_t n = collect(w, g, other, metric, w->y);
        double mean = n > 0 ? mean_of(w->y, n) : 0;
        bool is_better =
            metric_is_less_better(metric) ? mean < best_mean : mean > best_mean;
        if (best == NULL || is_better) {
            best = other;
            best_mean = mean;
        }
    }
    return best;
}

/* The choice that --against names, at c's budget where it has budgets. */
static const struct choice *named_other(const struct work *w,
                                        const struct choice *c)
{
    for (uint32_t i = 0; w->in->against != NULL && i < w->in->n_choices; i++) {
        const struct choice *other = &w->in->choice[i];
        if (other != c && strcmp(other->name, w->in->against) == 0 &&
            (other->policy == NULL || other->budget == c->budget))
            return other;
    }
    return NULL;
}

/* The same entries without merging; NULL where c merges nothing. */
static const struct choice *dropping(const struct work *w,
                                     const struct choice *c)
{
    for (uint32_t i = 0; c->fate != NULL && i < w->in->n_choices; i++) {
        const struct choice *other = &w->in->choice[i];
        if (other->fate == NULL && choice_same_kept(other, c) &&
            other->reposition == c->reposition)
            return other;
    }
    return NULL;
}

/* All metrics minus those of another choice; NULL: there is none. */
static enum err add_differences(struct work *w, const struct group *g,
                                const struct choice *c,
                                const struct choice *other, const char *name)
{
    enum err rc = OK;
    for (int i = 0; i < METRIC_COUNT && rc == OK && other != NULL; i++)
        rc = add_difference(w, g, c, other, (enum metric)i, name);
    return rc;
}

static enum err add_cell(struct work *w, const struct group *g,
                         const struct choice *c)
{
    const struct choice *named = named_other(w, c);
    enum err rc = OK;
    for (int i = 0; i < METRIC_COUNT && rc == OK; i++)
        rc = add_value(w, g, c, (enum metric)i);
    for (int i = 0; i < METRIC_COUNT && rc == OK && choice_competes(c); i++) {
        const struct choice *best = best_other(w, g, c, (enum metric)i);
        if (best != NULL)
            rc = add_difference(w, g, c, best, (enum metric)i, "best");
    }
    for (int i = 0; i < METRIC_COUNT && rc == OK && c->policy != NULL; i++)
        rc = add_normalised(w, g, c, (enum metric)i);
    if (rc == OK)
        rc = add_differences(w, g, c, dropping(w, c), "drop");
    if (rc == OK && named != NULL)
        rc = add_differences(w, g, c, named, named->name);
    return rc;
}

/* Whether the model answers too few questions right with everything in its
 * cache. */
static bool is_weak(const struct work *w, enum task task)
{
    struct group g = {.task = &task, .n = 1};
    const struct choice *full = only(w, CHOICE_FULL);
    if (full == NULL || task_info(task)->gate <= 0)
        return false;
    uint32_t n = collect(w, &g, full, METRIC_EM, w->x);
    return mean_of(w->x, n) < task_info(task)->gate;
}

static enum err add_group(struct work *w, const struct group *g)
{
    enum err rc = OK;
    for (uint32_t i = 0; i < w->in->n_choices && rc == OK; i++)
        rc = add_cell(w, g, &w->in->choice[i]);
    return rc;
}

static void name_tasks(struct cells *c)
{
    size_t n = 0;
    for (int t = 0; t < TASK_COUNT; t++)
        for (uint32_t i = 0; i < c->in->n_tasks; i++)
            if (c->in->task[i] == (enum task)t)
                n += (size_t)snprintf(c->tasks + n, sizeof(c->tasks) - n,
                                      "%s%s", n > 0 ? "," : "",
                                      task_info((enum task)t)->name);
}

enum err cells_compute(struct cells *out, const struct cells_input *in,
                       struct errmsg *m)
{
    struct cells cells = {.in = in};
    struct work w = {.out = &cells, .in = in};
    size_t n = (size_t)in->n_tasks * in->n_docs;
    enum err rc = OK;
    bool any_weak = false;
    name_tasks(&cells);
    w.x = calloc(n + 1, sizeof(*w.x));
    w.y = calloc(n + 1, sizeof(*w.y));
    w.z = calloc(n + 1, sizeof(*w.z));
    if (w.x == NULL || w.y == NULL || w.z == NULL)
        rc = ERR_NOMEM;
    for (uint32_t t = 0; t < in->n_tasks && rc == OK; t++) {
        struct group g = {task_info(in->task[t])->name, &in->task[t], 1,
                          is_weak(&w, in->task[t])};
        any_weak = any_weak || g.is_weak;
        rc = add_group(&w, &g);
    }
    if (rc == OK && in->n_tasks > 1) {
        struct group g = {CELLS_ALL, in->task, in->n_tasks, any_weak};
        rc = add_group(&w, &g);
    }
    free(w.x);
    free(w.y);
    free(w.z);
    if (rc != OK) {
        cells_fini(&cells);
        return err_set(m, rc, "no memory for the table");
    }
    *out = cells;
    return OK;
}

const struct cells_row *cells_find(const struct cells *c, const char *task,
                                   const struct choice *choice,
                                   const char *metric)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->row[i].choice == choice && strcmp(c->row[i].task, task) == 0 &&
            strcmp(c->row[i].metric, metric) == 0)
            return &c->row[i];
    return NULL;
}

const struct cells_row *cells_find_minus(const struct cells *c,
                                         const struct cells_row *of,
                                         enum metric metric, const char *other)
{
    char name[CELLS_METRIC_MAX];
    snprintf(name, sizeof(name), "%s_minus_%s", metric_name(metric), other);
    return cells_find(c, of->task, of->choice, name);
}
