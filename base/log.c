#include "base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"

static atomic_int least_level = LOG_LEVEL_INFO;
static atomic_int line_format = LOG_FORMAT_TEXT;

void log_setup(enum log_level least, enum log_format format)
{
    atomic_store(&least_level, (int)least);
    atomic_store(&line_format, (int)format);
}

bool log_is_on(enum log_level level)
{
    return (int)level >= atomic_load(&least_level) && level < LOG_LEVEL_OFF;
}

const char *log_level_name(enum log_level level)
{
    static const char *const name[] = {"debug", "info", "warn", "error", "off"};
    return level <= LOG_LEVEL_OFF ? name[level] : "unknown";
}

static enum err put_time(struct buf *out, int64_t time_us)
{
    struct tm tm;
    char text[32];
    time_t s = (time_t)(time_us / 1000000);
    gmtime_r(&s, &tm);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    return buf_printf(out, "%s.%03dZ", text, (int)(time_us / 1000 % 1000));
}

/* Quoted and escaped; a long value is cut and marked. */
static enum err put_quoted(struct buf *out, const char *s)
{
    size_t n = strnlen(s, LOG_VALUE_MAX + 1);
    if (n <= LOG_VALUE_MAX)
        return json_put_string(out, s, n);
    n = LOG_VALUE_MAX;
    while (n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80)
        n--;
    enum err rc = json_put_string(out, s, n);
    if (rc != OK)
        return rc;
    out->len--; /* the closing quote comes after the mark */
    return buf_puts(out, "...\"");
}

/* Text without quotes where it reads the same without them. */
static enum err put_bare(struct buf *out, const char *s, bool is_sentence)
{
    size_t start = out->len;
    enum err rc = put_quoted(out, s);
    if (rc != OK)
        return rc;
    char *q = out->data + start;
    size_t n = out->len - start;
    bool plain = n > 2;
    for (size_t i = 1; i + 1 < n && !is_sentence; i++)
        if (strchr(" =\"\\", q[i]) != NULL)
            plain = false;
    if (!plain)
        return OK;
    memmove(q, q + 1, n - 2);
    out->len -= 2;
    out->data[out->len] = '\0';
    return OK;
}

static enum err put_value(struct buf *out, enum log_format format,
                          const struct log_field *f)
{
    switch (f->kind) {
    case LOG_KIND_STR:
        if (f->str == NULL)
            return buf_puts(out, format == LOG_FORMAT_JSON ? "null" : "-");
        return format == LOG_FORMAT_JSON ? put_quoted(out, f->str)
                                         : put_bare(out, f->str, false);
    case LOG_KIND_INT:
        return json_put_int(out, f->integer);
    case LOG_KIND_BOOL:
        return json_put_bool(out, f->integer != 0);
    case LOG_KIND_NUM:
        break;
    }
    if (isfinite(f->number))
        return buf_printf(out, "%.6g", f->number);
    return buf_puts(out, isnan(f->number) ? "\"nan\"" : "\"inf\"");
}

static enum err render_text(struct buf *out, const struct log_record *r)
{
    enum err rc = put_time(out, r->time_us);
    if (rc == OK)
        rc = buf_printf(out, " %s ", log_level_name(r->level));
    if (rc == OK)
        rc = put_bare(out, r->event, true);
    for (size_t i = 0; i < r->n && rc == OK; i++) {
        rc = buf_printf(out, " %s=", r->field[i].key);
        if (rc == OK)
            rc = put_value(out, LOG_FORMAT_TEXT, &r->field[i]);
    }
    return rc;
}

static enum err render_json(struct buf *out, const struct log_record *r)
{
    enum err rc = buf_puts(out, "{\"time\":\"");
    if (rc == OK)
        rc = put_time(out, r->time_us);
    if (rc == OK)
        rc = buf_printf(
            out, "\",\"level\":\"%s\",\"event\":", log_level_name(r->level));
    if (rc == OK)
        rc = put_quoted(out, r->event);
    for (size_t i = 0; i < r->n && rc == OK; i++) {
        rc = buf_printf(out, ",\"%s\":", r->field[i].key);
        if (rc == OK)
            rc = put_value(out, LOG_FORMAT_JSON, &r->field[i]);
    }
    return rc == OK ? buf_putc(out, '}') : rc;
}

enum err log_render(struct buf *out, enum log_format format,
                    const struct log_record *r)
{
    enum err rc =
        format == LOG_FORMAT_JSON ? render_json(out, r) : render_text(out, r);
    return rc == OK ? buf_putc(out, '\n') : rc;
}

void log_write(enum log_level level, const char *event,
               const struct log_field *field, size_t n)
{
    if (!log_is_on(level))
        return;
    struct buf line = {0};
    struct log_record r = {level, clock_wall_us(), event, field, n};
    /* A record for which there is no memory is lost: the log must not be
     * what brings the server down. */
    if (log_render(&line, (enum log_format)atomic_load(&line_format), &r) ==
        OK) {
        flockfile(stderr);
        fwrite(line.data, 1, line.len, stderr);
        fflush(stderr);
        funlockfile(stderr);
    }
    buf_fini(&line);
}

void log_msg(enum log_level level, const char *fmt, ...)
{
    if (!log_is_on(level))
        return;
    char text[LOG_VALUE_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n >= 0)
        log_write(level, text, NULL, 0);
}
