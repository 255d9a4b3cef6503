#include <string.h>

#include "bench/eval/cells.h"

enum { VALUE_MAX = 40, NAME_WIDTH = 20 /* at least */ };

/* Whether there are documents enough, of each task, for a star. */
static bool is_sure(const struct cells *c)
{
    return c->in->n_docs >= INTERVAL_SURE;
}

/* "1.234 [1.200, 1.270]", and a star where the policy is better than the best
 * other one beyond doubt. */
static void format_value(char out[VALUE_MAX], const struct cells *c,
                         const struct cells_row *of, enum metric metric)
{
    const struct cells_row *row =
        cells_find(c, of->task, of->choice, metric_name(metric));
    const struct cells_row *best = cells_find_minus(c, of, metric, "best");
    bool is_best = best != NULL && is_sure(c) && !best->is_weak &&
                   (metric_is_less_better(metric) ? best->value.hi < 0
                                                  : best->value.lo > 0);
    if (row == NULL)
        snprintf(out, VALUE_MAX, "-");
    else if (metric == METRIC_AGREE || metric == METRIC_TOP1)
        snprintf(out, VALUE_MAX, "%.3f%s", row->value.mean, is_best ? "*" : "");
    else
        snprintf(out, VALUE_MAX, "%.3f [%.3f, %.3f]%s", row->value.mean,
                 row->value.lo, row->value.hi, is_best ? "*" : " ");
}

/* Shares of tokens are sure enough to go without an interval. */
static int width_of(enum metric metric)
{
    return metric == METRIC_AGREE || metric == METRIC_TOP1 ? 6 : 23;
}

static int name_width(const struct cells *c)
{
    int width = NAME_WIDTH;
    for (uint32_t i = 0; i < c->in->n_choices; i++) {
        int n = (int)strlen(c->in->choice[i].name);
        width = n > width ? n : width;
    }
    return width;
}

static void print_row(const struct cells *c, const struct cells_row *row,
                      FILE *to)
{
    fprintf(to, "%-*s %6.2f%% %9.0f", name_width(c), row->choice->name,
            100 * row->choice->budget, row->bytes / 1024);
    for (int i = 0; i < METRIC_COUNT; i++) {
        char value[VALUE_MAX];
        format_value(value, c, row, (enum metric)i);
        fprintf(to, "  %-*s", width_of((enum metric)i), value);
    }
    fputc('\n', to);
}

static void print_head(const struct cells *c, const struct cells_row *row,
                       FILE *to)
{
    const struct cells_input *in = c->in;
    enum task task;
    const char *about = "all tasks together";
    if (task_find(&task, row->task, strlen(row->task)) == OK)
        about = task_info(task)->about;
    fprintf(to, "\n%s: %s; %u documents of up to %u tokens, %s\n", row->task,
            about, row->n, in->context, lab_mode_name(in->mode));
    fprintf(to, "%-*s %7s %9s", name_width(c), "policy", "budget", "KiB");
    for (int i = 0; i < METRIC_COUNT; i++)
        fprintf(to, "  %-*s", width_of((enum metric)i),
                metric_name((enum metric)i));
    fputc('\n', to);
}

/* "-0.012 [-0.020, -0.004]", and a star where it is sure on which side of zero
 * it is. */
static void format_difference(char out[VALUE_MAX], const struct cells *c,
                              const struct cells_row *of, enum metric metric,
                              const char *other)
{
    const struct cells_row *row = cells_find_minus(c, of, metric, other);
    if (row == NULL || row->is_weak)
        snprintf(out, VALUE_MAX, "%s", row == NULL ? "-" : "model too weak");
    else
        snprintf(out, VALUE_MAX, "%+.4f [%+.4f, %+.4f]%s", row->value.mean,
                 row->value.lo, row->value.hi,
                 is_sure(c) && row->value.lo * row->value.hi > 0 ? "*" : " ");
}

static void print_head_minus(const struct cells *c, const char *title, FILE *to)
{
    fprintf(to, "\n%s\n%-4s %-*s %7s  %-26s %-26s %-26s", title, "task",
            name_width(c), "policy", "budget", "nll", "kl", "em");
}

/* A line, not ended: a cell's metrics minus those of the other. */
static void print_minus(const struct cells *c, const struct cells_row *row,
                        const char *other, FILE *to)
{
    static const enum metric shown[] = {METRIC_NLL, METRIC_KL, METRIC_EM};
    char value[VALUE_MAX];
    fprintf(to, "%-4s %-*s %6.2f%%  ", row->task, name_width(c),
            row->choice->name, 100 * row->choice->budget);
    for (int k = 0; k < 3; k++) {
        format_difference(value, c, row, shown[k], other);
        fprintf(to, "%-26s ", value);
    }
}

static void print_star(FILE *to)
{
    fprintf(to, "\n*: the 95%% interval excludes 0, with %d documents or more.",
            INTERVAL_SURE);
}

/* Every merge beside the same kept entries without it. */
static void print_merges(const struct cells *c, FILE *to)
{
    bool any = false;
    for (size_t i = 0; i < c->n; i++) {
        const struct cells_row *row = &c->row[i];
        if (row->choice->fate == NULL ||
            strcmp(row->metric, metric_name(METRIC_NLL)) != 0)
            continue;
        if (!any) {
            print_head_minus(c, "merging minus dropping the same entries", to);
            fprintf(to, " %6s %5s %6s\n", "routed", "gate", "log R");
        }
        any = true;
        print_minus(c, row, "drop", to);
        fprintf(to, "%5.1f%% %5.2f %6.2f\n", 100 * row->routed, row->gate,
                row->log_ratio);
    }
    if (!any)
        return;
    print_star(to);
    fputs(" routed: share of what left that\n   found a host; gate: its mean "
          "weight there; log R: the largest of one merge, before\n"
          "   --merge-max-ratio\n",
          to);
}

/* Every cell beside the one that --against names. */
static void print_against(const struct cells *c, FILE *to)
{
    const char *other = c->in->against;
    bool any = false;
    for (size_t i = 0; other != NULL && i < c->n; i++) {
        const struct cells_row *row = &c->row[i];
        char title[CHOICE_NAME_MAX + 8];
        if (strcmp(row->metric, metric_name(METRIC_NLL)) != 0 ||
            cells_find_minus(c, row, METRIC_NLL, other) == NULL)
            continue;
        if (!any) {
            snprintf(title, sizeof(title), "minus %s", other);
            print_head_minus(c, title, to);
            fputc('\n', to);
        }
        any = true;
        print_minus(c, row, other, to);
        fputc('\n', to);
    }
    if (any) {
        print_star(to);
        fputc('\n', to);
    }
}

void cells_print(const struct cells *c, FILE *to)
{
    const char *task = "";
    for (size_t i = 0; i < c->n; i++) {
        const struct cells_row *row = &c->row[i];
        if (strcmp(row->metric, metric_name(METRIC_NLL)) != 0)
            continue;
        if (strcmp(row->task, task) != 0)
            print_head(c, row, to);
        print_row(c, row, to);
        const struct cells_row *em =
            cells_find(c, row->task, row->choice, metric_name(METRIC_EM));
        if (row->choice->kind == CHOICE_FULL && em != NULL && em->is_weak)
            fprintf(to, "%-*s model too weak: em says nothing here\n",
                    name_width(c), "");
        task = row->task;
    }
    fprintf(to,
            "\n*: better than the best policy of that budget that keeps other "
            "entries; the 95%% interval of the\n   difference, document by "
            "document, excludes 0, with %d documents or more of a task\n",
            INTERVAL_SURE);
    print_merges(c, to);
    print_against(c, to);
}
