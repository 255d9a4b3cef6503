#include "bench/eval/answers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "runtime/text/detok.h"

struct answers {
    FILE *to;
    const char *path;
    const struct tokenizer *tokenizer;
};

enum err answers_open(struct answers **out, const char *path,
                      const struct tokenizer *t, struct errmsg *m)
{
    struct answers *a = calloc(1, sizeof(*a));
    if (a == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the answers");
    a->path = path;
    a->tokenizer = t;
    a->to = fopen(path, "we");
    if (a->to == NULL) {
        free(a);
        return err_set(m, ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    *out = a;
    return OK;
}

void answers_close(struct answers *a)
{
    if (a == NULL)
        return;
    fclose(a->to); /* each line was flushed */
    free(a);
}

static enum err put_text(struct buf *b, const struct answers *a,
                         const int32_t *id, size_t n)
{
    struct buf text = {0};
    struct detok d;
    enum err rc = OK;
    detok_init(&d, a->tokenizer);
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = detok_push(&d, id[i], &text);
    if (rc == OK)
        rc = detok_flush(&d, &text);
    if (rc == OK)
        rc = json_put_string(b, text.data, text.len);
    buf_fini(&text);
    return rc;
}

/* "name":{"ids":[1,2],"text":"..."} */
static enum err put_tokens(struct buf *b, const struct answers *a,
                           const char *name, const int32_t *id, size_t n)
{
    enum err rc = buf_printf(b, "\"%s\":{\"ids\":[", name);
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = buf_printf(b, "%s%" PRId32, i > 0 ? "," : "", id[i]);
    if (rc == OK)
        rc = buf_puts(b, "],\"text\":");
    if (rc == OK)
        rc = put_text(b, a, id, n);
    return rc == OK ? buf_putc(b, '}') : rc;
}

static enum err finish(const struct answers *a, struct buf *b, enum err rc,
                       struct errmsg *m)
{
    if (rc != OK)
        err_set(m, rc, "no memory for the answers");
    else if (fwrite(b->data, 1, b->len, a->to) != b->len || fflush(a->to) != 0)
        rc =
            err_set(m, ERR_IO, "cannot write %s: %s", a->path, strerror(errno));
    buf_fini(b);
    return rc;
}

static enum err put_question(struct buf *b, const struct answers *a,
                             const struct document_probe *p)
{
    const int32_t *id = p->ids.id;
    enum err rc = buf_putc(b, '{');
    if (rc == OK)
        rc = put_tokens(b, a, "given", id, p->first);
    if (rc == OK)
        rc = buf_putc(b, ',');
    if (rc == OK)
        rc = put_tokens(b, a, "right", id + p->first, p->ids.n - p->first);
    return rc == OK ? buf_putc(b, '}') : rc;
}

enum err answers_document(struct answers *a, enum task task, uint32_t doc,
                          const struct document *d, struct errmsg *m)
{
    struct buf b = {0};
    bool is_first = true;
    enum err rc = buf_printf(&b, "{\"task\":\"%s\",\"doc\":%" PRIu32 ",",
                             task_info(task)->name, doc);
    if (rc == OK)
        rc = put_tokens(&b, a, "prompt", d->prompt.id, d->prompt.n);
    if (rc == OK)
        rc = buf_puts(&b, ",\"questions\":[");
    for (uint32_t i = 0; i < d->n_probes && rc == OK; i++) {
        if (d->probe[i].is_wrong)
            continue;
        if (!is_first)
            rc = buf_putc(&b, ',');
        if (rc == OK)
            rc = put_question(&b, a, &d->probe[i]);
        is_first = false;
    }
    if (rc == OK)
        rc = buf_puts(&b, "]}\n");
    return finish(a, &b, rc, m);
}

static enum err put_answer(struct buf *b, const struct answers *a,
                           const struct scored *s, uint32_t n)
{
    int32_t said[DOCUMENT_SCORED_MAX];
    for (uint32_t i = 0; i < n; i++)
        said[i] = s[i].best;
    enum err rc = buf_putc(b, '{');
    if (rc == OK)
        rc = put_tokens(b, a, "said", said, n);
    if (rc == OK)
        rc = buf_puts(b, ",\"nll\":[");
    for (uint32_t i = 0; i < n && rc == OK; i++) {
        if (i > 0)
            rc = buf_putc(b, ',');
        if (rc == OK)
            rc = json_put_double(b, s[i].nll);
    }
    return rc == OK ? buf_puts(b, "]}") : rc;
}

enum err answers_add(struct answers *a, const struct document *d,
                     const struct answers_cell *cell, struct errmsg *m)
{
    const struct scored *s = cell->scored;
    struct buf b = {0};
    bool is_first = true;
    enum err rc = buf_printf(
        &b,
        "{\"task\":\"%s\",\"doc\":%" PRIu32 ",\"policy\":\"%s\",\"budget\":",
        task_info(cell->task)->name, cell->doc, cell->choice->name);
    if (rc == OK)
        rc = json_put_double(&b, cell->choice->budget);
    if (rc == OK)
        rc = buf_puts(&b, ",\"entries\":");
    if (rc == OK)
        rc = json_put_double(&b, cell->n_entries);
    if (rc == OK)
        rc = buf_puts(&b, ",\"answers\":[");
    for (uint32_t i = 0; i < d->n_probes && rc == OK; i++) {
        const struct document_probe *p = &d->probe[i];
        uint32_t n = (uint32_t)p->ids.n - p->first;
        if (!p->is_wrong && !is_first)
            rc = buf_putc(&b, ',');
        if (!p->is_wrong && rc == OK)
            rc = put_answer(&b, a, s, n);
        is_first = is_first && p->is_wrong;
        s += n;
    }
    if (rc == OK)
        rc = buf_puts(&b, "]}\n");
    return finish(a, &b, rc, m);
}
