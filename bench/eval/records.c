#include "bench/eval/records.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/grow.h"
#include "base/json.h"

enum { FILE_MAX = 1 << 30 };

struct records {
    int fd; /* -1: no file */
    char *path;
    struct records_keys keys;
    struct record *record; /* [n], in the order of compare() */
    size_t n, cap;
};

static int compare(const struct record *a, const struct record *b)
{
    if (a->task != b->task)
        return a->task < b->task ? -1 : 1;
    if (a->doc != b->doc)
        return a->doc < b->doc ? -1 : 1;
    if (a->budget != b->budget)
        return a->budget < b->budget ? -1 : 1;
    return strcmp(a->policy, b->policy);
}

/* The first record that is not before x. */
static size_t lower_bound(const struct records *r, const struct record *x)
{
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(&r->record[middle], x) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* One that is there already stays: it came from the same settings. */
static enum err insert(struct records *r, const struct record *x)
{
    size_t at = lower_bound(r, x);
    if (at < r->n && compare(&r->record[at], x) == 0)
        return OK;
    struct record *grown =
        grow_array(r->record, &r->cap, r->n + 1, sizeof(*grown));
    if (grown == NULL)
        return ERR_NOMEM;
    r->record = grown;
    memmove(grown + at + 1, grown + at, (r->n - at) * sizeof(*grown));
    grown[at] = *x;
    r->n++;
    return OK;
}

static bool read_number(const cJSON *line, const char *key, double *out)
{
    const cJSON *item = json_get(line, key);
    if (!cJSON_IsNumber(item))
        return false;
    *out = item->valuedouble;
    return true;
}

/* Not there where nothing was merged. */
static void read_merges(const cJSON *line, struct figures *out)
{
    (void)read_number(line, "routed", &out->routed);
    (void)read_number(line, "mean_gate", &out->gate);
    (void)read_number(line, "log_ratio", &out->log_ratio);
}

static bool read_record(const cJSON *line, struct record *out)
{
    const char *task = cJSON_GetStringValue(json_get(line, "task"));
    const char *policy = cJSON_GetStringValue(json_get(line, "policy"));
    double doc = 0;
    if (task == NULL || policy == NULL || strlen(policy) >= CHOICE_NAME_MAX ||
        task_find(&out->task, task, strlen(task)) != OK ||
        !read_number(line, "doc", &doc) || doc < 0 || doc > UINT32_MAX ||
        !read_number(line, "budget", &out->budget) ||
        !read_number(line, "entries", &out->figures.n_entries) ||
        !read_number(line, "bytes", &out->figures.bytes))
        return false;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (!read_number(line, metric_name((enum metric)i),
                         &out->figures.metric[i]))
            return false;
    read_merges(line, &out->figures);
    out->doc = (uint32_t)doc;
    memcpy(out->policy, policy, strlen(policy) + 1);
    return true;
}

static bool is_ours(const struct records *r, const char *key,
                    struct record *out)
{
    out->has_gates = strcmp(key, r->keys.gates) == 0;
    return out->has_gates || strcmp(key, r->keys.plain) == 0;
}

static enum err read_line(struct records *r, const char *s, size_t n,
                          size_t number, struct errmsg *m)
{
    cJSON *line = NULL;
    struct errmsg why = {""};
    struct record record = {.doc = 0};
    enum err rc = json_parse(&line, s, n, &why);
    if (rc != OK)
        return err_set(m, rc, "%s, line %zu: %s", r->path, number, why.text);
    const char *key = cJSON_GetStringValue(json_get(line, "key"));
    if (key == NULL)
        rc = err_set(m, ERR_INVAL, "%s, line %zu is no record of an evaluation",
                     r->path, number);
    else if (!is_ours(r, key, &record))
        rc = OK;
    else if (read_record(line, &record))
        rc = insert(r, &record);
    else
        rc = err_set(m, ERR_INVAL, "%s, line %zu: a field is missing or wrong",
                     r->path, number);
    cJSON_Delete(line);
    return rc;
}

/* What is behind the last line end was being written when a run ended. */
static enum err read_all(struct records *r, struct errmsg *m)
{
    struct buf text = {0};
    size_t at = 0, number = 1;
    enum err rc = file_read_all(&text, r->path, FILE_MAX, m);
    while (rc == OK && at < text.len) {
        const char *end = memchr(text.data + at, '\n', text.len - at);
        if (end == NULL)
            break;
        size_t n = (size_t)(end - text.data) - at;
        rc = read_line(r, text.data + at, n, number++, m);
        at += n + 1;
    }
    if (rc == OK && at < text.len && ftruncate(r->fd, (off_t)at) != 0)
        rc = err_set(m, ERR_IO, "cannot shorten %s: %s", r->path,
                     strerror(errno));
    buf_fini(&text);
    return rc;
}

static enum err open_file(struct records *r, struct errmsg *m)
{
    r->fd = open(r->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (r->fd < 0)
        return err_set(m, ERR_IO, "cannot open %s: %s", r->path,
                       strerror(errno));
    enum err rc = file_lock_open(r->fd, r->path, m);
    if (rc == ERR_BUSY)
        return err_set(m, rc, "another evaluation writes to %s", r->path);
    return rc == OK ? read_all(r, m) : rc;
}

enum err records_open(struct records **out, const char *path,
                      const struct records_keys *keys, struct errmsg *m)
{
    struct records *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the records");
    r->fd = -1;
    r->keys = *keys;
    enum err rc = OK;
    if (path != NULL && (r->path = strdup(path)) == NULL)
        rc = err_set(m, ERR_NOMEM, "no memory for the records");
    if (rc == OK && path != NULL)
        rc = open_file(r, m);
    if (rc == OK)
        *out = r;
    else
        records_close(r);
    return rc;
}

void records_close(struct records *r)
{
    if (r == NULL)
        return;
    if (r->fd >= 0)
        close(r->fd);
    free(r->record);
    free(r->path);
    free(r);
}

const struct record *records_find(const struct records *r, enum task task,
                                  uint32_t doc, const struct choice *c)
{
    struct record x = {.task = task, .doc = doc, .budget = c->budget};
    memcpy(x.policy, c->name, sizeof(x.policy));
    size_t at = lower_bound(r, &x);
    return at < r->n && compare(&r->record[at], &x) == 0 ? &r->record[at]
                                                         : NULL;
}

static enum err put_number(struct buf *b, const char *key, double value)
{
    enum err rc = buf_putc(b, ',');
    if (rc == OK)
        rc = json_put_key(b, key);
    return rc == OK ? json_put_double(b, value) : rc;
}

static enum err put_merges(struct buf *b, const struct figures *f)
{
    enum err rc = put_number(b, "routed", f->routed);
    if (rc == OK)
        rc = put_number(b, "mean_gate", f->gate);
    return rc == OK ? put_number(b, "log_ratio", f->log_ratio) : rc;
}

static enum err put_record(struct buf *b, const struct records *r,
                           const struct record *x)
{
    enum err rc = buf_printf(b,
                             "{\"key\":\"%s\",\"task\":\"%s\",\"doc\":%" PRIu32
                             ",\"policy\":\"%s\"",
                             x->has_gates ? r->keys.gates : r->keys.plain,
                             task_info(x->task)->name, x->doc, x->policy);
    if (rc == OK)
        rc = put_number(b, "budget", x->budget);
    if (rc == OK)
        rc = put_number(b, "entries", x->figures.n_entries);
    if (rc == OK)
        rc = put_number(b, "bytes", x->figures.bytes);
    for (int i = 0; i < METRIC_COUNT && rc == OK; i++)
        rc = put_number(b, metric_name((enum metric)i), x->figures.metric[i]);
    if (rc == OK && x->figures.routed > 0)
        rc = put_merges(b, &x->figures);
    return rc == OK ? buf_puts(b, "}\n") : rc;
}

static enum err write_all(int fd, const char *s, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, s, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return ERR_IO;
        s += done;
        n -= (size_t)done;
    }
    return OK;
}

enum err records_add(struct records *r, const struct record *record,
                     struct errmsg *m)
{
    struct buf line = {0};
    enum err rc = put_record(&line, r, record);
    if (rc == OK && r->fd >= 0)
        rc = write_all(r->fd, line.data, line.len);
    if (rc == ERR_IO)
        err_set(m, rc, "cannot write to %s: %s", r->path, strerror(errno));
    else if (rc != OK)
        err_set(m, rc, "a figure of %s cannot be written: %s", record->policy,
                err_name(rc));
    buf_fini(&line);
    return rc == OK ? insert(r, record) : rc;
}
