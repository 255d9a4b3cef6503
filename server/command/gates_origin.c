#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gates/train/checkpoint.h"
#include "server/command/gates_internal.h"

enum { RUN_BYTES = 4096 }; /* of a run's description */

static const char *const keys[GATES_SAYS] = {
    [GATES_STEPS] = "train_steps",
    [GATES_MEMORY] = "train_memory",
    [GATES_CONTEXT] = "train_context",
    [GATES_MIX] = "train_mix",
    [GATES_TEXTS] = "train_texts",
    [GATES_INIT_STEPS] = "train_init_steps",
    [GATES_INIT_RUN] = "train_init_run",
    [GATES_INIT_SHA256] = "train_init_sha256",
};

const char *gates_says_key(enum gates_says what)
{
    return keys[what];
}

/* Of nothing there is no copy. */
static enum err copy_text(char **to, const char *text, size_t n,
                          struct errmsg *m)
{
    if (n == 0)
        return OK;
    *to = strndup(text, n);
    return *to != NULL ? OK
                       : err_set(m, ERR_NOMEM, "no memory for what gates say");
}

static enum err copy_meta(char **says, const struct safetensors *f,
                          enum gates_says what, struct errmsg *m)
{
    const char *value = safetensors_meta(f, keys[what]);
    return value == NULL ? OK : copy_text(&says[what], value, strlen(value), m);
}

/* The texts, where it is these that the run learned from. */
static enum err read_texts(struct gates_origin *o, char **says, const char *run,
                           const struct gates_texts *texts, struct errmsg *m)
{
    size_t n;
    const char *hash = checkpoint_setting(run, "texts", &n);
    if (hash == NULL || n != strlen(texts->sha256) ||
        memcmp(hash, texts->sha256, n) != 0)
        return OK;
    o->knows_texts = true;
    if (says[GATES_TEXTS] != NULL)
        return OK;
    return copy_text(&says[GATES_TEXTS], texts->list.data, texts->list.len, m);
}

/* What the description of a run says. */
static enum err read_run(struct gates_origin *o, char **says, const char *run,
                         const struct gates_texts *texts, struct errmsg *m)
{
    static const struct {
        enum gates_says what;
        const char *setting;
    } same[] = {
        {GATES_STEPS, "step"}, {GATES_CONTEXT, "tokens"}, {GATES_MIX, "mix"}};
    char memory[32];
    size_t n;
    const char *value;
    enum err rc = OK;
    for (size_t i = 0; rc == OK && i < sizeof(same) / sizeof(same[0]); i++) {
        value = checkpoint_setting(run, same[i].setting, &n);
        if (value != NULL)
            rc = copy_text(&says[same[i].what], value, n, m);
    }
    value = checkpoint_setting(run, "memory", &n);
    if (rc == OK && value != NULL) {
        /* A run says all digits, gates say it as it is given. */
        snprintf(memory, sizeof(memory), "%g", strtod(value, NULL));
        rc = copy_text(&says[GATES_MEMORY], memory, strlen(memory), m);
    }
    return rc == OK ? read_texts(o, says, run, texts, m) : rc;
}

static enum err read_checkpoint(struct gates_origin *o, char **says,
                                const struct safetensors *f,
                                const struct gates_texts *texts,
                                struct errmsg *m)
{
    char run[RUN_BYTES];
    checkpoint_describe(run, sizeof(run), f);
    enum err rc = copy_text(&says[GATES_INIT_RUN], run, strlen(run), m);
    if (rc == OK)
        rc = copy_meta(says, f, GATES_TEXTS, m);
    if (rc == OK)
        rc = copy_meta(says, f, GATES_INIT_STEPS, m);
    return rc == OK ? read_run(o, says, run, texts, m) : rc;
}

/* Of one run, not of several: "step=" is the last word of each. */
static bool is_one_run(const char *run)
{
    const char *step = strstr(run, " step=");
    return step != NULL && strchr(step + 1, ' ') == NULL;
}

/* A copy from before copies said more has no steps of its own, and only the
 * run that it was taken from. */
static enum err read_gates(struct gates_origin *o, char **says,
                           const struct safetensors *f,
                           const struct gates_texts *texts, struct errmsg *m)
{
    const char *steps = safetensors_meta(f, keys[GATES_STEPS]);
    const char *run = safetensors_meta(f, keys[GATES_INIT_RUN]);
    enum err rc = OK;
    if (steps != NULL && strcmp(steps, "0") == 0)
        return run != NULL && is_one_run(run) ? read_run(o, says, run, texts, m)
                                              : OK;
    for (int i = 0; rc == OK && i <= GATES_INIT_STEPS; i++)
        rc = copy_meta(says, f, (enum gates_says)i, m);
    const char *list = says[GATES_TEXTS];
    if (list != NULL && texts->list.len > 0 &&
        strcmp(list, texts->list.data) == 0)
        o->knows_texts = true;
    return rc;
}

enum err gates_origin_add(struct gates_origin *o, const struct safetensors *f,
                          const char sha256[HASH_HEX],
                          const struct gates_texts *texts, struct errmsg *m)
{
    char **says = o->of[o->n++];
    enum err rc = copy_text(&says[GATES_INIT_SHA256], sha256, HASH_HEX - 1, m);
    if (rc != OK)
        return rc;
    return checkpoint_is(f) ? read_checkpoint(o, says, f, texts, m)
                            : read_gates(o, says, f, texts, m);
}

/* Whether an entry of a list of texts, "name sha256", ends before s + n. */
static bool ends_with_hash(const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    return n >= HASH_HEX && s[n - HASH_HEX] == ' ' &&
           strspn(s + n - (HASH_HEX - 1), hex) >= HASH_HEX - 1;
}

/* Length of the first entry of a list; a name may hold ", " itself. */
static size_t entry_at(const char *s)
{
    for (const char *p = strstr(s, ", "); p != NULL; p = strstr(p + 1, ", "))
        if (ends_with_hash(s, (size_t)(p - s)))
            return (size_t)(p - s);
    return strlen(s);
}

/* Whether the list has the text, under any name. */
static bool has_text(const struct buf *list, const char *entry, size_t n)
{
    size_t tail = ends_with_hash(entry, n) ? HASH_HEX : n;
    return list->len > 0 &&
           memmem(list->data, list->len, entry + n - tail, tail) != NULL;
}

static enum err add_entry(struct buf *list, const char *entry, size_t n)
{
    enum err rc = list->len > 0 ? buf_puts(list, ", ") : OK;
    return rc == OK ? buf_append(list, entry, n) : rc;
}

static enum err join_texts(struct buf *out, const struct gates_origin *o)
{
    enum err rc = OK;
    bool is_whole = true;
    for (size_t i = 0; rc == OK && i < o->n; i++) {
        const char *s = o->of[i][GATES_TEXTS];
        is_whole = is_whole && s != NULL;
        while (rc == OK && s != NULL && *s != '\0') {
            size_t n = entry_at(s);
            if (!has_text(out, s, n))
                rc = add_entry(out, s, n);
            s += n;
            s += *s == ',' ? 2 : 0;
        }
    }
    return rc == OK && !is_whole && out->len > 0 ? add_entry(out, "?", 1) : rc;
}

static bool all_agree(const struct gates_origin *o, enum gates_says what)
{
    const char *first = o->of[0][what];
    for (size_t i = 1; i < o->n; i++) {
        const char *s = o->of[i][what];
        if ((s == NULL) != (first == NULL) ||
            (s != NULL && strcmp(s, first) != 0))
            return false;
    }
    return true;
}

/* Each file counts by itself: equal ones are not one. */
static bool is_counted(enum gates_says what)
{
    return what == GATES_STEPS || what == GATES_INIT_SHA256;
}

enum err gates_origin_join(struct buf *out, const struct gates_origin *o,
                           enum gates_says what, struct errmsg *m)
{
    bool agree = all_agree(o, what);
    size_t n = o->n;
    enum err rc = OK;
    if (agree && (n == 0 || o->of[0][what] == NULL))
        return OK;
    if (what == GATES_TEXTS)
        rc = join_texts(out, o);
    else if (agree && !is_counted(what))
        n = 1;
    for (size_t i = 0; rc == OK && i < n && what != GATES_TEXTS; i++) {
        const char *s = o->of[i][what];
        rc = buf_printf(out, "%s%s", i > 0 ? " + " : "", s == NULL ? "?" : s);
    }
    return rc == OK ? OK : err_set(m, rc, "no memory for what gates say");
}

void gates_origin_fini(struct gates_origin *o)
{
    for (size_t i = 0; i < o->n; i++)
        for (int k = 0; k < GATES_SAYS; k++)
            free(o->of[i][k]);
    o->n = 0;
}
