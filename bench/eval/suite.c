#include "bench/eval/suite.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "bench/eval/answers.h"

enum {
    PROGRESS_US = 5 * 1000 * 1000, /* between two lines of a log */
    PROGRESS_TTY_US = 500 * 1000   /* and on a terminal */
};

struct run {
    const struct suite *s;
    struct records *records;
    struct records_keys keys;
    struct lab *lab;
    struct answers *answers; /* NULL: nobody wants them */
    uint64_t n_done, n_left; /* cells of one document */
    int64_t started, shown;
};

static const struct record *find(const struct run *r, enum task task,
                                 uint32_t doc, const struct choice *c)
{
    return records_find(r->records, task, doc, c);
}

static void show_progress(struct run *r, enum task task, uint32_t doc)
{
    FILE *to = r->s->progress;
    int64_t now = clock_us();
    bool is_tty = to != NULL && isatty(fileno(to));
    bool is_last = r->n_left == 0;
    if (to == NULL ||
        (now - r->shown < (is_tty ? PROGRESS_TTY_US : PROGRESS_US) && !is_last))
        return;
    double each = (double)(now - r->started) / 1e6 / (double)r->n_done;
    double left = each * (double)r->n_left;
    fprintf(to,
            "%stask %s, document %u of %u; %.1f%%, %.2f s a cell, "
            "%d:%02d:%02d left%s",
            is_tty ? "\r" : "", task_info(task)->name, doc + 1,
            r->s->cells.n_docs,
            100.0 * (double)r->n_done / (double)(r->n_done + r->n_left), each,
            (int)(left / 3600), (int)(left / 60) % 60, (int)left % 60,
            is_tty && !is_last ? "  " : "\n");
    fflush(to);
    r->shown = now;
}

static enum err add(struct run *r, enum task task, uint32_t doc,
                    const struct choice *c, const struct figures *figures,
                    struct errmsg *m)
{
    struct record record = {.task = task,
                            .doc = doc,
                            .budget = c->budget,
                            .has_gates = choice_needs_gates(c),
                            .figures = *figures};
    memcpy(record.policy, c->name, sizeof(record.policy));
    r->n_done++;
    r->n_left--;
    enum err rc = records_add(r->records, &record, m);
    if (rc == OK)
        show_progress(r, task, doc);
    return rc;
}

static enum err note_answers(struct run *r, const struct document *d,
                             enum task task, uint32_t doc,
                             const struct choice *c, struct errmsg *m)
{
    const struct model_info *i = model_info(r->s->lab.model);
    const struct record *x = find(r, task, doc, c);
    const struct answers_cell cell = {
        .task = task,
        .doc = doc,
        .choice = c,
        .n_entries = x->figures.n_entries / (i->n_layers * i->n_kv_heads),
        .scored = lab_scored(r->lab)};
    return answers_add(r->answers, d, &cell, m);
}

static bool is_stopped(const struct run *r)
{
    return r->s->stop != NULL && atomic_load(r->s->stop);
}

static enum err ask(struct run *r, const struct document *d, enum task task,
                    uint32_t doc, const struct choice *c,
                    const struct figures *full, struct errmsg *m)
{
    struct figures figures = *full;
    enum err rc = OK;
    if (is_stopped(r))
        return err_set(m, ERR_CANCELLED, "stopped");
    if (c->kind != CHOICE_FULL || r->answers != NULL)
        rc = lab_ask(r->lab, c, &figures, m);
    if (rc == OK)
        rc = add(r, task, doc, c, &figures, m);
    if (rc == OK && r->answers != NULL)
        rc = note_answers(r, d, task, doc, c, m);
    return rc;
}

/* Asks the open document under all choices that are missing; those of one
 * policy one after the other, as the lab then looks at its caches once. */
static enum err ask_all(struct run *r, const struct document *d, enum task task,
                        uint32_t doc, const struct figures *full,
                        struct errmsg *m)
{
    const struct cells_input *in = &r->s->cells;
    const struct choice *c = in->choice;
    enum err rc = OK;
    for (uint32_t i = 0; i < in->n_choices; i++)
        for (uint32_t j = i; j < in->n_choices && rc == OK; j++)
            if (c[j].policy == c[i].policy && find(r, task, doc, &c[j]) == NULL)
                rc = ask(r, d, task, doc, &c[j], full, m);
    return rc;
}

static bool is_complete(const struct run *r, enum task task, uint32_t doc)
{
    const struct cells_input *in = &r->s->cells;
    for (uint32_t i = 0; i < in->n_choices; i++)
        if (find(r, task, doc, &in->choice[i]) == NULL)
            return false;
    return true;
}

static enum err ask_document(struct run *r, enum task task, uint32_t doc,
                             struct errmsg *m)
{
    struct document d = {0};
    struct figures full;
    if (is_complete(r, task, doc))
        return OK;
    if (is_stopped(r))
        return err_set(m, ERR_CANCELLED, "stopped");
    enum err rc = document_make(&d, &r->s->document, task, doc, m);
    if (rc == OK && r->answers != NULL)
        rc = answers_document(r->answers, task, doc, &d, m);
    if (rc == OK)
        rc = lab_open(r->lab, &d, &full, m);
    if (rc == OK)
        rc = ask_all(r, &d, task, doc, &full, m);
    lab_close(r->lab);
    document_fini(&d);
    return rc;
}

static enum err ask_task(struct run *r, enum task task, struct errmsg *m)
{
    const struct suite *s = r->s;
    size_t n = 0;
    enum err rc = document_deal(&s->document, task, &n);
    if (rc != OK)
        return err_set(m, rc, "no memory to cut the texts");
    if (n < s->cells.n_docs)
        return err_set(m, ERR_INVAL,
                       "the texts are good for %zu documents of %u tokens, not "
                       "for %u",
                       n, s->document.n_tokens, s->cells.n_docs);
    for (uint32_t d = 0; d < s->cells.n_docs && rc == OK; d++)
        rc = ask_document(r, task, d, m);
    return rc;
}

static void count_left(struct run *r)
{
    const struct cells_input *in = &r->s->cells;
    for (uint32_t t = 0; t < in->n_tasks; t++)
        for (uint32_t d = 0; d < in->n_docs; d++)
            for (uint32_t i = 0; i < in->n_choices; i++)
                r->n_left += find(r, in->task[t], d, &in->choice[i]) == NULL;
}

static enum err make_key(const struct suite *s, const char *gates,
                         char key[RECORDS_KEY_MAX], struct errmsg *m)
{
    char text[1024], hex[HASH_HEX];
    uint8_t digest[HASH_BYTES];
    int n =
        snprintf(text, sizeof(text),
                 "%s context=%u mode=%s seed=%llu "
                 "gates=%s",
                 s->identity, s->document.n_tokens, lab_mode_name(s->lab.mode),
                 (unsigned long long)s->document.seed, gates);
    if (n < 0 || (size_t)n >= sizeof(text))
        return err_set(m, ERR_INVAL, "the settings are too long");
    if (hash_sha256(digest, text, (size_t)n) != OK)
        return err_set(m, ERR_NOMEM, "cannot hash the settings");
    hash_hex(hex, digest, sizeof(digest));
    memcpy(key, hex, RECORDS_KEY_MAX - 1);
    key[RECORDS_KEY_MAX - 1] = '\0';
    return OK;
}

static enum err open_records(struct run *r, struct errmsg *m)
{
    char path[PATH_MAX];
    enum err rc = make_key(r->s, "any", r->keys.plain, m);
    if (rc == OK)
        rc = make_key(r->s, r->s->gates, r->keys.gates, m);
    if (rc != OK)
        return rc;
    if (r->s->json == NULL)
        return records_open(&r->records, NULL, &r->keys, m);
    rc = cells_check_file(r->s->json, m);
    if (rc != OK)
        return rc;
    int n = snprintf(path, sizeof(path), "%s.part", r->s->json);
    if (n < 0 || (size_t)n >= sizeof(path))
        return err_set(m, ERR_INVAL, "the path of the results is too long");
    return records_open(&r->records, path, &r->keys, m);
}

static enum err measure(struct run *r, struct errmsg *m)
{
    const struct cells_input *in = &r->s->cells;
    count_left(r);
    if (r->n_left == 0)
        return OK;
    enum err rc = lab_new(&r->lab, &r->s->lab, m);
    if (rc == OK && r->s->progress != NULL)
        fprintf(r->s->progress,
                "%llu cells of documents to measure; memory: up to %.0f MiB "
                "for caches, %.0f MiB for logits, %.0f MiB for attention\n",
                (unsigned long long)r->n_left,
                (double)lab_cache_bytes(r->lab) / (1 << 20),
                (double)lab_logits_bytes(r->lab) / (1 << 20),
                (double)lab_probe_bytes(r->lab) / (1 << 20));
    r->started = r->shown = clock_us();
    for (uint32_t t = 0; t < in->n_tasks && rc == OK; t++)
        rc = ask_task(r, in->task[t], m);
    lab_free(r->lab);
    if (rc == OK && r->s->progress != NULL)
        fprintf(r->s->progress, "%llu cells of documents in %.2f hours\n",
                (unsigned long long)r->n_done,
                (double)(clock_us() - r->started) / 3.6e9);
    return rc;
}

/* The files come first: who reads the table may close it early. It is printed
 * in any case. */
static enum err report(const struct suite *s, struct errmsg *m)
{
    struct cells cells;
    enum err rc = cells_compute(&cells, &s->cells, m);
    if (rc != OK)
        return rc;
    if (s->json != NULL)
        rc = cells_save(&cells, s->json, m);
    if (rc == OK && s->html != NULL)
        rc = cells_save_html(&cells, s->html, m);
    if (s->table != NULL)
        cells_print(&cells, s->table);
    cells_fini(&cells);
    return rc;
}

enum err suite_run(struct suite *s, struct errmsg *m)
{
    struct run r = {.s = s};
    enum err rc = s->html != NULL ? file_check_replace(s->html, m) : OK;
    if (rc == OK)
        rc = open_records(&r, m);
    if (rc == OK && s->answers != NULL)
        rc = answers_open(&r.answers, s->answers, s->document.tokenizer, m);
    if (rc == OK)
        rc = measure(&r, m);
    s->cells.records = r.records;
    s->cells.settings = r.keys.plain; /* the rows have a field for gates */
    if (rc == OK)
        rc = report(s, m);
    s->cells.records = NULL;
    s->cells.settings = NULL;
    answers_close(r.answers);
    records_close(r.records);
    return rc;
}
