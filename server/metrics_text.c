#include "server/metrics_text.h"

#include <math.h>
#include <stdio.h>

#include "base/json.h"

#define PUT(x)                                                                 \
    do {                                                                       \
        enum err put_rc_ = (x);                                                \
        if (put_rc_ != OK)                                                     \
            return put_rc_;                                                    \
    } while (0)

enum err metrics_text_family(struct metrics_text *t, const char *name,
                             enum metrics_kind kind, const char *help)
{
    static const char *const types[] = {"gauge", "counter", "histogram"};
    const char *tail =
        kind == METRICS_COUNTER && !t->openmetrics ? "_total" : "";
    return buf_printf(t->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, tail,
                      help, name, tail, types[kind]);
}

static enum err put_escaped(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '\n')
            PUT(buf_puts(out, "\\n"));
        else if (*s == '"' || *s == '\\')
            PUT(buf_printf(out, "\\%c", *s));
        else
            PUT(buf_putc(out, *s));
    }
    return OK;
}

enum err metrics_text_labels(struct metrics_text *t, const char *name,
                             const struct metrics_label *labels)
{
    PUT(buf_puts(t->out, name));
    for (size_t i = 0; labels[i].name; i++) {
        PUT(buf_printf(t->out, "%c%s=\"", i == 0 ? '{' : ',', labels[i].name));
        PUT(put_escaped(t->out, labels[i].value ? labels[i].value : ""));
        PUT(buf_putc(t->out, '"'));
    }
    return labels[0].name ? buf_putc(t->out, '}') : OK;
}

enum err metrics_text_uint(struct metrics_text *t, uint64_t v)
{
    return buf_printf(t->out, " %llu\n", (unsigned long long)v);
}

enum err metrics_text_real(struct metrics_text *t, double v)
{
    PUT(buf_putc(t->out, ' '));
    if (isnan(v))
        PUT(buf_puts(t->out, "NaN"));
    else if (isinf(v))
        PUT(buf_puts(t->out, v > 0 ? "+Inf" : "-Inf"));
    else
        PUT(json_put_double(t->out, v));
    return buf_putc(t->out, '\n');
}

enum err metrics_text_histogram(struct metrics_text *t, const char *name,
                                const char *help,
                                const struct engine_histogram *h)
{
    uint64_t sum = 0;
    PUT(metrics_text_family(t, name, METRICS_HISTOGRAM, help));
    for (uint32_t i = 0; i < h->n; i++) {
        sum += h->count[i];
        /* OpenMetrics wants 1.0 and not 1 for the bound of a bucket. */
        PUT(buf_printf(t->out, "%s_bucket{le=\"", name));
        char le[32];
        snprintf(le, sizeof(le), "%.10g", h->le[i]);
        PUT(buf_puts(t->out, le));
        bool whole = true;
        for (const char *p = le; *p; p++)
            if (*p == '.' || *p == 'e')
                whole = false;
        PUT(buf_puts(t->out, whole ? ".0\"}" : "\"}"));
        PUT(metrics_text_uint(t, sum));
    }
    sum += h->count[h->n];
    PUT(buf_printf(t->out, "%s_bucket{le=\"+Inf\"}", name));
    PUT(metrics_text_uint(t, sum));
    PUT(buf_printf(t->out, "%s_sum ", name));
    PUT(json_put_double(t->out, h->sum));
    return buf_printf(t->out, "\n%s_count %llu\n", name,
                      (unsigned long long)sum);
}

enum err metrics_text_end(struct metrics_text *t)
{
    return t->openmetrics ? buf_puts(t->out, "# EOF\n") : OK;
}
