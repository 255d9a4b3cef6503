/* log.h - one line on stderr for everything worth telling, text or JSON.
 *
 * A record is an event name and fields. Values may come from clients: they
 * are repaired to UTF-8, control characters are escaped, and long ones are
 * cut, so a value can neither start a line of its own nor move the cursor of
 * the reader's terminal.
 *
 *   log_event(LOG_LEVEL_INFO, "request", log_str("id", id),
 *             log_int("prompt", n));
 *   2026-01-31T12:00:00.123Z info request id=req_1 prompt=12
 *   {"time":"2026-01-31T12:00:00.123Z","level":"info","event":"request",...}
 *
 * Level and format are the one static state of the program that may change.
 * Threads: any; a record is one write, lines never mix.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum log_level {
    LOG_LEVEL_DEBUG,
    LOG_LEVEL_INFO,
    LOG_LEVEL_WARN,
    LOG_LEVEL_ERROR,
    LOG_LEVEL_OFF
};

enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

enum { LOG_VALUE_MAX = 1024 }; /* bytes of one value that are shown */

enum log_kind { LOG_KIND_STR, LOG_KIND_INT, LOG_KIND_NUM, LOG_KIND_BOOL };

struct log_field {
    const char *key; /* plain lower-case ASCII of ours */
    enum log_kind kind;
    const char *str; /* borrowed until the call returns */
    int64_t integer;
    double number;
};

static inline struct log_field log_str(const char *key, const char *value)
{
    struct log_field f = {key, LOG_KIND_STR, value, 0, 0};
    return f;
}

static inline struct log_field log_int(const char *key, int64_t value)
{
    struct log_field f = {key, LOG_KIND_INT, NULL, value, 0};
    return f;
}

static inline struct log_field log_num(const char *key, double value)
{
    struct log_field f = {key, LOG_KIND_NUM, NULL, 0, value};
    return f;
}

static inline struct log_field log_bool(const char *key, bool value)
{
    struct log_field f = {key, LOG_KIND_BOOL, NULL, value, 0};
    return f;
}

/* At start, before other threads log; later calls are safe too. */
void log_setup(enum log_level least, enum log_format format);
bool log_is_on(enum log_level level);

/* One record with n fields; nothing when the level is off. */
void log_write(enum log_level level, const char *event,
               const struct log_field *field, size_t n);

/* At least one field after the event. */
#define log_event(level, event, ...)                                           \
    log_write((level), (event), (const struct log_field[]){__VA_ARGS__},       \
              sizeof((const struct log_field[]){__VA_ARGS__}) /                \
                  sizeof(struct log_field))

/* A plain sentence without fields. */
void log_msg(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

struct log_record {
    enum log_level level;
    int64_t time_us; /* since 1970 */
    const char *event;
    const struct log_field *field;
    size_t n;
};

/* What log_write() would print, with the newline; for tests and for records
 * that go elsewhere. */
MUST_CHECK enum err log_render(struct buf *out, enum log_format format,
                               const struct log_record *r);

const char *log_level_name(enum log_level level);

#endif
