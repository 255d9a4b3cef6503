#include <string.h>

#include "bench/eval/cells.h"

enum { VALUE_MAX = 40 };

/* "1.234 [1.200, 1.270]", and a star where the policy is better than the best
 * other one beyond doubt. */
static void format_value(char out[VALUE_MAX], const struct cells *c,
                         const struct cells_row *of, enum metric metric)
{
    char name[CELLS_METRIC_MAX];
    const struct cells_row *row =
        cells_find(c, of->task, of->choice, metric_name(metric));
    snprintf(name, sizeof(name), "%s_minus_best", metric_name(metric));
    const struct cells_row *best = cells_find(c, of->task, of->choice, name);
    bool is_best = best != NULL && best->n > 1 &&
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

static void print_row(const struct cells *c, const struct cells_row *row,
                      FILE *to)
{
    fprintf(to, "%-20s %6.2f%% %9.0f", row->choice->name,
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
    fprintf(to, "%-20s %7s %9s", "policy", "budget", "KiB");
    for (int i = 0; i < METRIC_COUNT; i++)
        fprintf(to, "  %-*s", width_of((enum metric)i),
                metric_name((enum metric)i));
    fputc('\n', to);
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
            fprintf(to, "%-20s model too weak: em says nothing here\n", "");
        task = row->task;
    }
    fputs("\n*: better than the best other policy of that budget; the 95% "
          "interval of the difference,\n   document by document, excludes 0\n",
          to);
}
