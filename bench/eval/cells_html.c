#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "bench/eval/cells.h"

/* One page without any other file: for every task and metric a chart of the
 * metric against the bytes that are kept, a curve for each policy, and the
 * figures as a table. */

enum {
    CHART_WIDTH = 520,
    CHART_HEIGHT = 300,
    LEFT = 60,
    RIGHT = 10,
    TOP = 12,
    BOTTOM = 36,
    TICKS = 5,
    HUE_STEP = 137 /* degrees: neighbours in the list look different */
};

struct chart {
    const struct cells *c;
    const char *task;
    enum metric metric;
    double x0, x1; /* log2 of bytes */
    double y0, y1;
    struct buf *out;
};

static const struct cells_row *row_of(const struct chart *h, uint32_t i)
{
    return cells_find(h->c, h->task, &h->c->in->choice[i],
                      metric_name(h->metric));
}

static double x_of(const struct chart *h, double bytes)
{
    double share = (log2(bytes) - h->x0) / (h->x1 - h->x0);
    return LEFT + share * (CHART_WIDTH - LEFT - RIGHT);
}

static double y_of(const struct chart *h, double value)
{
    double share = (value - h->y0) / (h->y1 - h->y0);
    return CHART_HEIGHT - BOTTOM - share * (CHART_HEIGHT - TOP - BOTTOM);
}

static int hue_of(const struct chart *h, uint32_t i)
{
    const struct choice *choice = h->c->in->choice;
    int n = 0;
    for (uint32_t j = 0; j < i; j++)
        n += j == 0 || strcmp(choice[j].name, choice[j - 1].name) != 0;
    return n * HUE_STEP % 360;
}

/* Sets the ranges to what is shown; false where there is nothing. */
static bool measure(struct chart *h)
{
    h->x0 = h->y0 = INFINITY;
    h->x1 = h->y1 = -INFINITY;
    for (uint32_t i = 0; i < h->c->in->n_choices; i++) {
        const struct cells_row *row = row_of(h, i);
        if (row == NULL)
            continue;
        h->y0 = fmin(h->y0, row->value.lo);
        h->y1 = fmax(h->y1, row->value.hi);
        if (row->choice->policy == NULL)
            continue;
        h->x0 = fmin(h->x0, log2(row->bytes));
        h->x1 = fmax(h->x1, log2(row->bytes));
    }
    h->x0 -= 0.25;
    h->x1 += 0.25;
    if (h->y1 - h->y0 < 1e-9)
        h->y1 = h->y0 + 1;
    return isfinite(h->x0) && isfinite(h->y0);
}

static enum err put_axes(const struct chart *h)
{
    enum err rc = buf_printf(
        h->out,
        "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">"
        "<text x=\"4\" y=\"10\">%s</text>"
        "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">KiB kept of a "
        "prompt</text>\n",
        CHART_WIDTH, CHART_HEIGHT, CHART_WIDTH, CHART_HEIGHT,
        metric_name(h->metric), CHART_WIDTH - RIGHT, CHART_HEIGHT - 2);
    for (int i = 0; i < TICKS && rc == OK; i++) {
        double v = h->y0 + (h->y1 - h->y0) * i / (TICKS - 1);
        rc = buf_printf(h->out,
                        "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" "
                        "y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
                        "text-anchor=\"end\">%.3g</text>\n",
                        LEFT, CHART_WIDTH - RIGHT, y_of(h, v), y_of(h, v),
                        LEFT - 4, y_of(h, v) + 4, v);
    }
    for (double x = ceil(h->x0); x <= h->x1 && rc == OK; x++)
        rc = buf_printf(h->out,
                        "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">"
                        "%.0f</text>\n",
                        x_of(h, exp2(x)), CHART_HEIGHT - BOTTOM + 16,
                        exp2(x) / 1024);
    return rc;
}

/* Full and no-context have no curve: they are lines across. */
static enum err put_level(const struct chart *h, const struct cells_row *row)
{
    double y = y_of(h, row->value.mean);
    return buf_printf(h->out,
                      "<line class=\"level\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" "
                      "y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\">%s</text>\n",
                      LEFT, CHART_WIDTH - RIGHT, y, y, LEFT + 4, y - 3,
                      row->choice->name);
}

/* A point with its interval, and the line from the point before it. */
static enum err put_point(const struct chart *h, const struct cells_row *row,
                          const struct cells_row *before, int hue)
{
    double x = x_of(h, row->bytes), y = y_of(h, row->value.mean);
    enum err rc =
        buf_printf(h->out,
                   "<g stroke=\"hsl(%d,70%%,40%%)\" fill=\"hsl(%d,70%%,40%%)\">"
                   "<title>%s, %g%%: %.4f [%.4f, %.4f]</title>"
                   "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>"
                   "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                   hue, hue, row->choice->name, 100 * row->choice->budget,
                   row->value.mean, row->value.lo, row->value.hi, x, y, x, x,
                   y_of(h, row->value.lo), y_of(h, row->value.hi));
    if (rc == OK && before != NULL)
        rc = buf_printf(h->out,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                        "y2=\"%.1f\"/>",
                        x_of(h, before->bytes), y_of(h, before->value.mean), x,
                        y);
    return rc == OK ? buf_puts(h->out, "</g>\n") : rc;
}

/* Of the same policy with the next smaller budget. */
static const struct cells_row *point_before(const struct chart *h,
                                            const struct cells_row *row)
{
    const struct cells_row *best = NULL;
    for (uint32_t i = 0; i < h->c->in->n_choices; i++) {
        const struct cells_row *other = row_of(h, i);
        if (other == NULL || strcmp(other->choice->name, row->choice->name) ||
            other->choice->budget >= row->choice->budget)
            continue;
        if (best == NULL || other->choice->budget > best->choice->budget)
            best = other;
    }
    return best;
}

static enum err put_chart(struct chart *h)
{
    if (!measure(h))
        return OK;
    enum err rc = put_axes(h);
    for (uint32_t i = 0; i < h->c->in->n_choices && rc == OK; i++) {
        const struct cells_row *row = row_of(h, i);
        if (row == NULL)
            continue;
        rc = row->choice->policy != NULL
                 ? put_point(h, row, point_before(h, row), hue_of(h, i))
                 : put_level(h, row);
    }
    return rc == OK ? buf_puts(h->out, "</svg>\n") : rc;
}

static enum err put_cell(struct buf *out, const struct cells *c,
                         const struct cells_row *of, enum metric metric)
{
    const struct cells_row *row =
        cells_find(c, of->task, of->choice, metric_name(metric));
    const struct cells_row *best = cells_find_minus(c, of, metric, "best");
    if (row == NULL)
        return buf_puts(out, "<td>-</td>");
    enum err rc =
        buf_printf(out, "<td title=\"%s%s\">%.3f <small>[%.3f, %.3f]</small>",
                   best != NULL ? "minus the best other, " : "",
                   best != NULL ? best->against : "", row->value.mean,
                   row->value.lo, row->value.hi);
    if (rc == OK && best != NULL)
        rc = buf_printf(out, "<br><small>&Delta; %+.3f [%+.3f, %+.3f]</small>",
                        best->value.mean, best->value.lo, best->value.hi);
    return rc == OK ? buf_puts(out, row->is_weak ? " too weak</td>" : "</td>")
                    : rc;
}

static enum err put_table(struct buf *out, const struct chart *h)
{
    enum err rc = buf_puts(out, "<table><tr><th>policy</th><th>budget</th>"
                                "<th>KiB</th>");
    for (int i = 0; i < METRIC_COUNT && rc == OK; i++)
        rc = buf_printf(out, "<th>%s</th>", metric_name((enum metric)i));
    for (size_t r = 0; r < h->c->n && rc == OK; r++) {
        const struct cells_row *row = &h->c->row[r];
        if (strcmp(row->task, h->task) != 0 ||
            strcmp(row->metric, metric_name(METRIC_NLL)) != 0)
            continue;
        uint32_t i = (uint32_t)(row->choice - h->c->in->choice);
        rc = buf_printf(out,
                        "</tr>\n<tr><td style=\"color:hsl(%d,70%%,40%%)\">"
                        "%s</td><td>%g%%</td><td>%.0f</td>",
                        row->choice->policy != NULL ? hue_of(h, i) : 0,
                        row->choice->name, 100 * row->choice->budget,
                        row->bytes / 1024);
        for (int k = 0; k < METRIC_COUNT && rc == OK; k++)
            rc = put_cell(out, h->c, row, (enum metric)k);
    }
    return rc == OK ? buf_puts(out, "</tr></table>\n") : rc;
}

static enum err put_difference(struct buf *out, const struct cells *c,
                               const struct cells_row *of, enum metric metric,
                               const char *other)
{
    const struct cells_row *row = cells_find_minus(c, of, metric, other);
    if (row == NULL || row->is_weak)
        return buf_printf(out, "<td>%s</td>", row == NULL ? "-" : "too weak");
    return buf_printf(out, "<td>%+.4f <small>[%+.4f, %+.4f]</small></td>",
                      row->value.mean, row->value.lo, row->value.hi);
}

/* A line of a table, not ended: a cell's metrics minus those of the other. */
static enum err put_minus(struct buf *out, const struct cells *c,
                          const struct cells_row *row, const char *other)
{
    static const enum metric shown[] = {METRIC_NLL, METRIC_KL, METRIC_EM};
    enum err rc = buf_printf(out, "</tr>\n<tr><td>%s</td><td>%g%%</td>",
                             row->choice->name, 100 * row->choice->budget);
    for (int k = 0; k < 3 && rc == OK; k++)
        rc = put_difference(out, c, row, shown[k], other);
    return rc;
}

/* Every merge beside the same kept entries without it. */
static enum err put_merges(struct buf *out, const struct chart *h)
{
    bool any = false;
    enum err rc = OK;
    for (size_t r = 0; r < h->c->n && rc == OK; r++) {
        const struct cells_row *row = &h->c->row[r];
        if (row->choice->fate == NULL || strcmp(row->task, h->task) != 0 ||
            strcmp(row->metric, metric_name(METRIC_NLL)) != 0)
            continue;
        if (!any)
            rc = buf_puts(out, "<p>Merging minus dropping the same entries:"
                               "</p><table><tr><th>policy</th><th>budget</th>"
                               "<th>nll</th><th>kl</th><th>em</th><th>routed"
                               "</th><th>gate</th><th>log R</th>");
        any = true;
        if (rc == OK)
            rc = put_minus(out, h->c, row, "drop");
        if (rc == OK)
            rc = buf_printf(out, "<td>%.1f%%</td><td>%.2f</td><td>%.2f</td>",
                            100 * row->routed, row->gate, row->log_ratio);
    }
    return rc == OK && any ? buf_puts(out, "</tr></table>\n") : rc;
}

/* Every cell beside the one that --against names. */
static enum err put_against(struct buf *out, const struct chart *h)
{
    const char *other = h->c->in->against;
    bool any = false;
    enum err rc = OK;
    for (size_t r = 0; other != NULL && r < h->c->n && rc == OK; r++) {
        const struct cells_row *row = &h->c->row[r];
        if (strcmp(row->task, h->task) != 0 ||
            strcmp(row->metric, metric_name(METRIC_NLL)) != 0 ||
            cells_find_minus(h->c, row, METRIC_NLL, other) == NULL)
            continue;
        if (!any)
            rc = buf_printf(out,
                            "<p>Minus %s:</p><table><tr><th>policy</th>"
                            "<th>budget</th><th>nll</th><th>kl</th><th>em</th>",
                            other);
        any = true;
        if (rc == OK)
            rc = put_minus(out, h->c, row, other);
    }
    return rc == OK && any ? buf_puts(out, "</tr></table>\n") : rc;
}

static enum err put_task(struct buf *out, const struct cells *c,
                         const char *task)
{
    static const enum metric shown[] = {METRIC_KL, METRIC_NLL, METRIC_EM,
                                        METRIC_CHOICE};
    struct chart h = {.c = c, .task = task, .out = out};
    enum task t;
    const char *about = task_find(&t, task, strlen(task)) == OK
                            ? task_info(t)->about
                            : "all tasks together";
    enum err rc = buf_printf(out, "<h2>%s: %s</h2>\n", task, about);
    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]) && rc == OK; i++) {
        h.metric = shown[i];
        rc = put_chart(&h);
    }
    if (rc == OK)
        rc = put_table(out, &h);
    if (rc == OK)
        rc = put_merges(out, &h);
    return rc == OK ? put_against(out, &h) : rc;
}

/* The name of the model comes from a file's name: its marks are escaped. */
static enum err put_escaped(struct buf *out, const char *s)
{
    enum err rc = OK;
    for (; *s != '\0' && rc == OK; s++)
        rc = *s == '<'   ? buf_puts(out, "&lt;")
             : *s == '&' ? buf_puts(out, "&amp;")
                         : buf_putc(out, *s);
    return rc;
}

static enum err put_head(struct buf *out, const struct cells_input *in)
{
    enum err rc = buf_puts(
        out, "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\">"
             "<title>ebb eval</title><style>"
             "body{font:14px sans-serif;margin:2em}"
             "svg{font:11px sans-serif;margin-right:1em}"
             ".grid{stroke:#ddd}.level{stroke:#888;stroke-dasharray:4}"
             "td,th{padding:2px 8px;text-align:left;vertical-align:top}"
             "small{color:#666}</style>\n<h1>");
    if (rc == OK)
        rc = put_escaped(out, in->model);
    return rc == OK
               ? buf_printf(out,
                            "</h1><p>%u documents a task of %u tokens, "
                            "%s; texts: %s; gates: %s; seed %llu. 95%% "
                            "intervals over documents; &Delta;: minus the "
                            "best policy of the same budget that keeps other "
                            "entries, document by document.</p>\n",
                            in->n_docs, in->context, lab_mode_name(in->mode),
                            in->split, in->gates, (unsigned long long)in->seed)
               : rc;
}

enum err cells_save_html(const struct cells *c, const char *path,
                         struct errmsg *m)
{
    struct buf out = {0};
    const char *task = "";
    enum err rc = put_head(&out, c->in);
    for (size_t i = 0; i < c->n && rc == OK; i++) {
        if (strcmp(c->row[i].task, task) != 0)
            rc = put_task(&out, c, c->row[i].task);
        task = c->row[i].task;
    }
    if (rc == OK)
        rc = file_replace_shared(path, out.data, out.len, m);
    else
        err_set(m, rc, "no memory for the page %s", path);
    buf_fini(&out);
    return rc;
}
