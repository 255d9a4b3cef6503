#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "bench/eval/cells.h"

enum { FILE_MAX = 1 << 28 };

/* Calls fn for every line; `line` is its object and s[0..n) its text. */
typedef enum err (*line_fn)(void *ctx, const cJSON *line, const char *s,
                            size_t n);

static enum err each_line(const char *path, line_fn fn, void *ctx,
                          struct errmsg *m)
{
    struct buf text = {0};
    struct errmsg why = {""};
    enum err rc = file_read_all(&text, path, FILE_MAX, &why);
    size_t number = 1;
    if (rc == ERR_NOTFOUND)
        return OK;
    if (rc != OK)
        return err_set(m, rc, "%s", why.text);
    for (size_t at = 0; at < text.len && rc == OK; number++) {
        const char *s = text.data + at;
        size_t n = strcspn(s, "\n");
        cJSON *line = NULL;
        rc = json_parse(&line, s, n, &why);
        if (rc == OK && !cJSON_IsObject(line))
            rc = err_set(&why, ERR_INVAL, "it is no object");
        if (rc == OK)
            rc = fn(ctx, line, s, n);
        cJSON_Delete(line);
        at += n + 1;
    }
    buf_fini(&text);
    return rc == OK ? OK
                    : err_set(m, rc, "%s, line %zu: %s", path, number - 1,
                              why.text[0] != '\0' ? why.text : err_name(rc));
}

static enum err look(void *ctx, const cJSON *line, const char *s, size_t n)
{
    (void)ctx;
    (void)line;
    (void)s;
    (void)n;
    return OK;
}

enum err cells_check_file(const char *path, struct errmsg *m)
{
    return each_line(path, look, NULL, m);
}

static bool has_text(const cJSON *line, const char *key, const char *text)
{
    const char *s = cJSON_GetStringValue(json_get(line, key));
    return s != NULL && strcmp(s, text) == 0;
}

static bool has_number(const cJSON *line, const char *key, double value)
{
    const cJSON *item = json_get(line, key);
    return cJSON_IsNumber(item) && item->valuedouble == value;
}

/* Whether a line of the file is of one of our cells. One that does not say its
 * settings, as older ones don't, is somebody else's. */
static bool is_ours(const struct cells *c, const cJSON *line)
{
    const struct cells_input *in = c->in;
    if (!has_text(line, "settings", in->settings) ||
        !has_text(line, "model", in->model) ||
        !has_text(line, "gates", in->gates) ||
        !has_text(line, "split", in->split) ||
        !has_text(line, "mode", lab_mode_name(in->mode)) ||
        !has_number(line, "context", in->context) ||
        !has_number(line, "seed", (double)in->seed) ||
        (has_text(line, "task", CELLS_ALL) &&
         !has_text(line, "tasks", c->tasks)))
        return false;
    for (size_t i = 0; i < c->n; i++)
        if (has_text(line, "task", c->row[i].task) &&
            has_text(line, "policy", c->row[i].choice->name) &&
            has_number(line, "budget", c->row[i].choice->budget))
            return true;
    return false;
}

struct merging {
    const struct cells *cells;
    struct buf *out;
};

static enum err keep_line(void *ctx, const cJSON *line, const char *s, size_t n)
{
    const struct merging *x = ctx;
    if (is_ours(x->cells, line))
        return OK;
    enum err rc = buf_append(x->out, s, n);
    return rc == OK ? buf_putc(x->out, '\n') : rc;
}

static enum err put_text(struct buf *b, const char *key, const char *text)
{
    enum err rc = json_put_key(b, key);
    if (rc == OK)
        rc = json_put_text(b, text);
    return rc == OK ? buf_putc(b, ',') : rc;
}

static enum err put_number(struct buf *b, const char *key, double value)
{
    enum err rc = json_put_key(b, key);
    if (rc == OK)
        rc = json_put_double(b, value);
    return rc == OK ? buf_putc(b, ',') : rc;
}

static enum err put_merges(struct buf *b, const struct cells_row *row)
{
    enum err rc = put_number(b, "routed", row->routed);
    if (rc == OK)
        rc = put_number(b, "mean_gate", row->gate);
    return rc == OK ? put_number(b, "log_ratio", row->log_ratio) : rc;
}

static enum err put_row(struct buf *b, const struct cells *c,
                        const struct cells_row *row)
{
    const struct cells_input *in = c->in;
    const struct {
        const char *key, *text;
    } text[] = {{"task", row->task},
                {"policy", row->choice->name},
                {"metric", row->metric}};
    const struct {
        const char *key;
        double value;
    } number[] = {{"budget", row->choice->budget},
                  {"mean", row->value.mean},
                  {"lo", row->value.lo},
                  {"hi", row->value.hi},
                  {"n", row->n},
                  {"bytes", row->bytes},
                  {"seed", (double)in->seed}};
    enum err rc = buf_putc(b, '{');
    if (rc == OK)
        rc = put_text(b, "model", in->model);
    if (rc == OK)
        rc = put_number(b, "context", in->context);
    if (rc == OK)
        rc = put_text(b, "mode", lab_mode_name(in->mode));
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]) && rc == OK; i++)
        rc = put_text(b, text[i].key, text[i].text);
    for (size_t i = 0; i < sizeof(number) / sizeof(number[0]) && rc == OK; i++)
        rc = put_number(b, number[i].key, number[i].value);
    if (rc == OK && strcmp(row->task, CELLS_ALL) == 0)
        rc = put_text(b, "tasks", c->tasks);
    if (rc == OK && row->choice->fate != NULL)
        rc = put_merges(b, row);
    if (rc == OK && row->against != NULL)
        rc = put_text(b, "against", row->against);
    if (rc == OK && row->is_weak)
        rc = put_text(b, "note", "model too weak");
    if (rc == OK)
        rc = put_text(b, "split", in->split);
    if (rc == OK)
        rc = put_text(b, "gates", in->gates);
    if (rc == OK)
        rc = json_put_key(b, "settings");
    if (rc == OK)
        rc = json_put_text(b, in->settings);
    return rc == OK ? buf_puts(b, "}\n") : rc;
}

enum err cells_save(const struct cells *c, const char *path, struct errmsg *m)
{
    struct buf text = {0};
    struct merging merging = {c, &text};
    enum err rc = each_line(path, keep_line, &merging, m);
    if (rc == OK) {
        for (size_t i = 0; i < c->n && rc == OK; i++)
            rc = put_row(&text, c, &c->row[i]);
        if (rc != OK)
            err_set(m, rc, "no memory for the rows of %s", path);
    }
    if (rc == OK)
        rc = file_replace_shared(path, text.data, text.len, m);
    buf_fini(&text);
    return rc;
}
