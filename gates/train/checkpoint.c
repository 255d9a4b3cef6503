#include "gates/train/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { META = 7, PARTS = 3 };

static const char kind[] = "ebb checkpoint";
static const char *const part_name[PARTS] = {"gates", "m1", "m2"};

/* Settings that change nothing, and that a file may not name. */
static const char *const silent[] = {"answer-weight=0", "answer-divergence=0",
                                     "loss-positions=1"};

enum err checkpoint_write(const char *path, const struct checkpoint *c,
                          struct errmsg *m)
{
    char step[32], log_bytes[32];
    snprintf(step, sizeof(step), "%" PRIu64, c->step);
    snprintf(log_bytes, sizeof(log_bytes), "%" PRId64, c->log_bytes);
    const struct safetensors_string meta[META] = {
        {"kind", kind},
        {"step", step},
        {"settings", c->settings},
        {"log", c->log == NULL ? "" : c->log},
        {"log_bytes", log_bytes},
        {"train_texts", c->texts == NULL ? "" : c->texts},
        {"train_init_steps", c->init_steps == NULL ? "" : c->init_steps}};
    const float *const part[PARTS] = {c->gates, c->m1, c->m2};
    struct safetensors_tensor t[PARTS];
    for (int i = 0; i < PARTS; i++)
        t[i] = (struct safetensors_tensor){.name = part_name[i],
                                           .type = DTYPE_F32,
                                           .n_dims = 1,
                                           .dims = {c->n, 1, 1, 1},
                                           .data = (const uint8_t *)part[i],
                                           .bytes = c->n * sizeof(float)};
    return safetensors_write(path, meta, META, t, PARTS, m);
}

/* The word at s, without spaces before it; n: its length. */
static const char *word_at(const char *s, size_t *n)
{
    s += strspn(s, " ");
    *n = strcspn(s, " ");
    return s;
}

static bool is_silent(const char *word, size_t n)
{
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]); i++)
        if (strlen(silent[i]) == n && memcmp(word, silent[i], n) == 0)
            return true;
    return false;
}

/* The first word from s on that says something. */
static const char *next_word(const char *s, size_t *n)
{
    s = word_at(s, n);
    while (*n > 0 && is_silent(s, *n))
        s = word_at(s + *n, n);
    return s;
}

/* What a side without the word is said to be made with. */
static void show_word(char out[64], const char *word, size_t n)
{
    snprintf(out, 64, "%.*s", n == 0 ? 7 : (int)(n < 63 ? n : 63),
             n == 0 ? "nothing" : word);
}

static enum err check_settings(const char *path, const char *found,
                               const char *now, struct errmsg *m)
{
    size_t n, k;
    found = next_word(found, &n);
    now = next_word(now, &k);
    while (n > 0 && n == k && memcmp(found, now, n) == 0) {
        found = next_word(found + n, &n);
        now = next_word(now + k, &k);
    }
    if (n == 0 && k == 0)
        return OK;
    char was[64], is[64];
    show_word(was, found, n);
    show_word(is, now, k);
    return err_set(m, ERR_CONFLICT,
                   "the checkpoint %s was made with %s, now it is %s; remove "
                   "it to start anew",
                   path, was, is);
}

static enum err read_part(float *to, size_t n, const struct safetensors *f,
                          const char *name, struct errmsg *m)
{
    const struct safetensors_tensor *t = safetensors_find(f, name);
    if (t == NULL || t->type != DTYPE_F32 || t->bytes != n * sizeof(float))
        return err_set(m, ERR_INVAL, "the checkpoint has no whole '%s'", name);
    memcpy(to, t->data, (size_t)t->bytes);
    return OK;
}

static enum err no_checkpoint(const char *path, struct errmsg *m)
{
    return err_set(m, ERR_INVAL, "%s is no checkpoint of training", path);
}

static enum err read_place(struct checkpoint *c, const char *path,
                           const struct safetensors *f, struct errmsg *m)
{
    const char *step = safetensors_meta(f, "step");
    const char *log = safetensors_meta(f, "log");
    const char *log_bytes = safetensors_meta(f, "log_bytes");
    if (step == NULL || log == NULL || log_bytes == NULL)
        return no_checkpoint(path, m);
    c->step = strtoull(step, NULL, 10);
    /* Only the log that was written then has that length. */
    bool is_same = c->log != NULL && strcmp(log, c->log) == 0;
    c->log_bytes = is_same ? strtoll(log_bytes, NULL, 10) : -1;
    return OK;
}

enum err checkpoint_read(struct checkpoint *c, const char *path,
                         struct errmsg *m)
{
    struct safetensors *f = NULL;
    float *const part[PARTS] = {c->gates, c->m1, c->m2};
    enum err rc = safetensors_open(&f, path, m);
    if (rc != OK)
        return rc;
    const char *settings = safetensors_meta(f, "settings");
    rc = settings == NULL ? no_checkpoint(path, m)
                          : check_settings(path, settings, c->settings, m);
    for (int i = 0; rc == OK && i < PARTS; i++)
        rc = read_part(part[i], c->n, f, part_name[i], m);
    if (rc == OK)
        rc = read_place(c, path, f, m);
    safetensors_close(f);
    return rc;
}

bool checkpoint_is(const struct safetensors *f)
{
    const char *found = safetensors_meta(f, "kind");
    return found != NULL && strcmp(found, kind) == 0;
}

void checkpoint_describe(char *out, size_t size, const struct safetensors *f)
{
    const char *settings = safetensors_meta(f, "settings");
    const char *step = safetensors_meta(f, "step");
    snprintf(out, size, "%s step=%s", settings == NULL ? "" : settings,
             step == NULL ? "?" : step);
}

const char *checkpoint_setting(const char *settings, const char *name,
                               size_t *n)
{
    size_t len = strlen(name);
    for (const char *w = word_at(settings, n); *n > 0; w = word_at(w + *n, n))
        if (*n > len + 1 && memcmp(w, name, len) == 0 && w[len] == '=') {
            *n -= len + 1;
            return w + len + 1;
        }
    return NULL;
}

/* The number of the setting `name`, 0 without one. */
static uint32_t number_of(const char *settings, const char *name)
{
    size_t n;
    const char *value = checkpoint_setting(settings, name, &n);
    return value == NULL ? 0 : (uint32_t)strtoul(value, NULL, 10);
}

enum err checkpoint_gates(struct gate **out, const struct safetensors *f,
                          const struct gate_shape *model, struct errmsg *m)
{
    const char *s = safetensors_meta(f, "settings");
    const struct safetensors_tensor *t = safetensors_find(f, part_name[0]);
    if (s == NULL || t == NULL)
        return err_set(m, ERR_INVAL, "it is no whole checkpoint of training");
    struct gate_shape shape = {.n_layers = number_of(s, "layers"),
                               .n_embd = number_of(s, "embd"),
                               .n_kv_heads = number_of(s, "heads"),
                               .width = number_of(s, "width"),
                               .kind = GATE_RG10};
    struct gate *g = NULL;
    enum err rc = gate_check_fit(&shape, model, m);
    /* Before anything of that size is allocated. */
    if (rc == OK &&
        (shape.width > GATE_WIDTH_MAX ||
         t->bytes != gate_parts(&shape).n * shape.n_layers * sizeof(float)))
        rc = err_set(m, ERR_INVAL, "the checkpoint has no whole 'gates'");
    if (rc == OK)
        rc = gate_new(&g, &shape, m);
    if (rc == OK)
        rc = read_part(g->p, gate_n_params(g), f, part_name[0], m);
    for (size_t i = 0; rc == OK && i < gate_n_params(g); i++)
        if (!isfinite(g->p[i]))
            rc = err_set(m, ERR_INVAL, "its gates are not finite");
    if (rc == OK)
        *out = g;
    else
        gate_free(g);
    return rc;
}
