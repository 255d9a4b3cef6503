#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host.h"
#include "base/json.h"
#include "config/config.h"
#include "config/option.h"

enum { CONFIG_FILE_MAX = 1024 * 1024 };

static const char DEFAULT_MODEL[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
static const char DEFAULT_ALIAS[] = "default";

enum { OPTIONS_MAX = 64 };

struct loader {
    struct config *c;
    const struct config_sources *s;
    struct errmsg *m;
    bool is_given[OPTIONS_MAX]; /* by number in the table, anywhere */
};

static bool *is_given(struct loader *l, const struct option *o)
{
    size_t n;
    size_t i = (size_t)(o - option_table(&n));
    assert(i < n && n <= OPTIONS_MAX);
    return &l->is_given[i];
}

static enum err set(struct loader *l, const struct option *o, const char *text,
                    const char *where)
{
    return option_set(l->c, o, text, l->s->memory_available, where, l->m);
}

/* The environment is an array, not getenv(), so that a test can bring its
 * own. */
static const char *variable(const struct loader *l, const char *name)
{
    size_t n = strlen(name);
    for (char *const *e = l->s->env; e != NULL && *e != NULL; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=' && (*e)[n + 1] != '\0')
            return *e + n + 1;
    return NULL;
}

static enum err load_defaults(struct loader *l)
{
    size_t n;
    const struct option *o = option_table(&n);
    enum err rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        /* A percentage waits until it is known to be needed: on a machine
         * that does not tell its memory, a given size must still work. */
        bool later = o[i].type == OPT_BYTES && strchr(o[i].dflt, '%') != NULL;
        if (!later)
            rc = set(l, &o[i], o[i].dflt, o[i].name);
    }
    return rc;
}

/* Blanks take the place of a comment, so offsets in errors stay right. */
static void blank_comments(char *text, size_t n)
{
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && text[i] == '/' && text[i + 1] == '/')
            while (i < n && text[i] != '\n')
                text[i++] = ' ';
    }
}

/* One scalar of the file as the text that a flag would have. */
static enum err set_scalar(struct loader *l, const struct option *o,
                           const cJSON *v, const char *where)
{
    char number[64];
    int64_t whole;
    if (cJSON_IsString(v))
        return set(l, o, v->valuestring, where);
    if (cJSON_IsBool(v) && o->type == OPT_BOOL)
        return set(l, o, cJSON_IsTrue(v) ? "true" : "false", where);
    if (cJSON_IsNumber(v) &&
        (o->type == OPT_INT || o->type == OPT_BYTES || o->type == OPT_REAL)) {
        if (json_int64(v, &whole) == OK)
            snprintf(number, sizeof(number), "%" PRId64, whole);
        else
            snprintf(number, sizeof(number), "%.17g", v->valuedouble);
        return set(l, o, number, where);
    }
    bool number_only = o->type == OPT_INT || o->type == OPT_REAL;
    const char *want = o->type == OPT_BOOL   ? "true or false"
                       : o->type == OPT_LIST ? "a list of strings"
                       : number_only         ? "a number"
                                             : "a string";
    return err_set(l->m, ERR_INVAL, "%s must be %s", where, want);
}

static enum err set_member(struct loader *l, const cJSON *v, const char *file)
{
    char where[PATH_MAX + 80];
    snprintf(where, sizeof(where), "%s: \"%.60s\"", file, v->string);
    const struct option *o = option_find(v->string);
    if (o != NULL && o->is_flag_only)
        return err_set(l->m, ERR_INVAL,
                       "%s: \"%.60s\" can only be a flag or a variable, not a "
                       "key of the file",
                       file, v->string);
    if (o == NULL) {
        const char *near = option_nearest(v->string)->name;
        return err_set(l->m, ERR_INVAL,
                       "%s: unknown key \"%.60s\"; the nearest known one is "
                       "\"%s\"",
                       file, v->string, near);
    }
    option_clear_list(l->c, o);
    *is_given(l, o) = true;
    if (o->type != OPT_LIST || !cJSON_IsArray(v))
        return set_scalar(l, o, v, where);
    enum err rc = OK;
    for (const cJSON *e = v->child; e != NULL && rc == OK; e = e->next)
        rc = set_scalar(l, o, e, where);
    return rc;
}

static enum err load_file(struct loader *l, const char *path)
{
    struct buf text = {0};
    struct errmsg why;
    cJSON *root = NULL;
    enum err rc = file_read_all(&text, path, CONFIG_FILE_MAX, l->m);
    if (rc != OK)
        goto out;
    blank_comments(text.data, text.len);
    rc = json_parse(&root, text.data, text.len, &why);
    if (rc != OK) {
        err_set(l->m, rc, "%s: %s", path, why.text);
        goto out;
    }
    if (!cJSON_IsObject(root))
        rc = err_set(l->m, ERR_INVAL, "%s must hold one JSON object", path);
    for (const cJSON *v = root->child; v != NULL && rc == OK; v = v->next)
        rc = set_member(l, v, path);
out:
    cJSON_Delete(root);
    buf_fini(&text);
    return rc;
}

static enum err load_variables(struct loader *l)
{
    size_t n;
    const struct option *o = option_table(&n);
    enum err rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) {
        char name[OPTION_NAME_MAX + 8];
        option_variable(name, &o[i]);
        const char *text = variable(l, name);
        if (text == NULL)
            continue;
        option_clear_list(l->c, &o[i]);
        *is_given(l, &o[i]) = true;
        rc = set(l, &o[i], text, name);
    }
    return rc;
}

/* An unknown EBB_ variable is only worth a warning: orchestrators put some
 * into every process (EBB_SERVICE_HOST for a service that is called ebb). */
static enum err warn_of_variables(struct loader *l)
{
    size_t n;
    const struct option *o = option_table(&n);
    static const struct option warning = {
        .type = OPT_WORDS, .field = offsetof(struct config, warning)};
    for (char *const *e = l->s->env; e != NULL && *e != NULL; e++) {
        bool known = strncmp(*e, "EBB_", 4) != 0;
        size_t len = strcspn(*e, "=");
        for (size_t i = 0; i < n && !known; i++) {
            char name[OPTION_NAME_MAX + 8];
            option_variable(name, &o[i]);
            known = strlen(name) == len && strncmp(name, *e, len) == 0;
        }
        if (known)
            continue;
        char text[128];
        snprintf(text, sizeof(text), "the variable %.*s is not known",
                 len < 60 ? (int)len : 60, *e);
        enum err rc = set(l, &warning, text, "");
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* "--kv-memory=1GiB" gives the option and its value, "--kv-memory" the option
 * and NULL. */
static enum err read_flag(const struct option **o, const char **value,
                          const char *word, struct errmsg *m)
{
    if (strncmp(word, "--", 2) != 0 || word[2] == '\0')
        return err_set(m, ERR_INVAL,
                       "unexpected argument '%.60s': options begin with two "
                       "hyphens, and take one value",
                       word);
    char name[OPTION_NAME_MAX + 1];
    size_t n = strcspn(word + 2, "=");
    bool has_underscore = memchr(word + 2, '_', n) != NULL;
    snprintf(name, sizeof(name), "%.*s", n < sizeof(name) ? (int)n : 32,
             word + 2);
    for (char *p = name; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
    *o = n < sizeof(name) && !has_underscore ? option_find(name) : NULL;
    *value = word[2 + n] == '=' ? word + 2 + n + 1 : NULL;
    if (*o != NULL)
        return OK;
    char near[OPTION_NAME_MAX + 8];
    option_flag(near, option_nearest(name));
    int shown = n < 60 ? (int)n : 60;
    return err_set(m, ERR_INVAL,
                   "unknown option '--%.*s'; the nearest known one is '%s'",
                   shown, word + 2, near);
}

/* Calls set for every flag, or only for --config. */
static enum err load_flags(struct loader *l, bool only_config)
{
    bool cleared[OPTIONS_MAX] = {false};
    size_t n_options;
    const struct option *table = option_table(&n_options);
    for (int i = 0; i < l->s->argc; i++) {
        const struct option *o = NULL;
        const char *value = NULL;
        enum err rc = read_flag(&o, &value, l->s->argv[i], l->m);
        if (rc != OK)
            return rc;
        char flag[OPTION_NAME_MAX + 8];
        option_flag(flag, o);
        if (value == NULL && o->type == OPT_BOOL)
            value = "true";
        if (value == NULL &&
            (i + 1 >= l->s->argc || strncmp(l->s->argv[i + 1], "--", 2) == 0))
            return err_set(l->m, ERR_INVAL, "%s needs a value: %s %s", flag,
                           flag, o->word != NULL ? o->word : "VALUE");
        if (value == NULL)
            value = l->s->argv[++i];
        if (only_config && !o->is_flag_only)
            continue;
        size_t index = (size_t)(o - table);
        if (!cleared[index])
            option_clear_list(l->c, o);
        cleared[index] = true;
        *is_given(l, o) = true;
        rc =
            option_set_flag(l->c, o, value, l->s->memory_available, flag, l->m);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* The file's name comes from flag or variable, before anything else. */
static enum err find_and_load_file(struct loader *l)
{
    const char *path = variable(l, "EBB_CONFIG");
    enum err rc = OK;
    if (path != NULL)
        rc = set(l, option_find("config"), path, "EBB_CONFIG");
    if (rc == OK)
        rc = load_flags(l, true);
    if (rc == OK && l->c->config[0] != '\0')
        rc = load_file(l, l->c->config);
    return rc;
}

/* Where `make setup` puts the default model. */
static enum err default_model_path(struct loader *l)
{
    char path[PATH_MAX];
    const char *cache = variable(l, "XDG_CACHE_HOME");
    const char *home = variable(l, "HOME");
    if (cache == NULL && home == NULL)
        return err_set(l->m, ERR_INVAL,
                       "--model: not given, and neither HOME nor "
                       "XDG_CACHE_HOME is set to look for the default model; "
                       "name a GGUF file with --model PATH");
    if (cache != NULL)
        snprintf(path, sizeof(path), "%s/ebb/models/%s", cache, DEFAULT_MODEL);
    else
        snprintf(path, sizeof(path), "%s/.cache/ebb/models/%s", home,
                 DEFAULT_MODEL);
    if (access(path, R_OK) != 0)
        return err_set(l->m, ERR_INVAL,
                       "--model: not given, and there is no default model at "
                       "%s; name a GGUF file with --model PATH, or let `make "
                       "setup` in the source tree fetch the default",
                       path);
    return set(l, option_find("model"), path, "--model");
}

/* What examples and scripts ask for works whatever else the model is called. */
static enum err keep_default_alias(struct loader *l)
{
    const struct config_list *v = &l->c->alias;
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->item[i], DEFAULT_ALIAS) == 0)
            return OK;
    return set(l, option_find("alias"), DEFAULT_ALIAS, "--alias");
}

/* The default floor holds what is protected, too: who protects more need not
 * know of it. */
static void raise_floor(struct config *c)
{
    int64_t least = c->protect_sinks + c->protect_recent;
    const char *dflt = option_find("min_tokens_per_head")->dflt;
    if (c->min_tokens_per_head == atoll(dflt) && least > atoll(dflt))
        c->min_tokens_per_head = least;
}

/* What was left open or means "as the machine allows". */
static enum err fill_in(struct loader *l)
{
    struct config *c = l->c;
    enum err rc = OK;
    if (c->kv_memory == 0) {
        const struct option *o = option_find("kv_memory");
        rc = set(l, o, o->dflt, "--kv-memory");
    }
    if (c->threads == 0)
        c->threads = l->s->cpus < 1 ? 1 : l->s->cpus;
    raise_floor(c);
    c->watch_columns_is_off =
        !c->watch_columns && *is_given(l, option_find("watch_columns"));
    if (rc == OK)
        rc = keep_default_alias(l);
    if (rc == OK && c->model[0] == '\0')
        rc = default_model_path(l);
    return rc;
}

static bool wants_help(const struct config_sources *s)
{
    for (int i = 0; i < s->argc; i++)
        if (strcmp(s->argv[i], "--help") == 0 || strcmp(s->argv[i], "-h") == 0)
            return true;
    return false;
}

enum err config_load_from(struct config *out, const struct config_sources *s,
                          struct errmsg *m)
{
    struct config c = {0};
    struct loader l = {.c = &c, .s = s, .m = m};
    if (wants_help(s)) {
        c.help = true;
        *out = c;
        return OK;
    }
    enum err rc = load_defaults(&l);
    if (rc == OK)
        rc = find_and_load_file(&l);
    if (rc == OK)
        rc = load_variables(&l);
    if (rc == OK)
        rc = warn_of_variables(&l);
    if (rc == OK)
        rc = load_flags(&l, false);
    if (rc == OK)
        rc = fill_in(&l);
    if (rc == OK)
        rc = config_check(&c, s->memory_total, m);
    if (rc == OK)
        *out = c;
    else
        config_fini(&c);
    return rc;
}

enum err config_load(struct config *out, int argc, char *const *argv,
                     struct errmsg *m)
{
    struct config_sources s = {
        .argc = argc,
        .argv = argv,
        .env = environ,
        .memory_available = host_memory_available(),
        .memory_total = host_memory_total(),
        .cpus = host_cpus(),
    };
    return config_load_from(out, &s, m);
}

enum err config_set_string(char **field, const char *value)
{
    char *copy = strdup(value);
    if (copy == NULL)
        return ERR_NOMEM;
    free(*field);
    *field = copy;
    return OK;
}

void config_fini(struct config *c)
{
    size_t n;
    const struct option *o = option_table(&n);
    static const struct option warning = {
        .type = OPT_WORDS, .field = offsetof(struct config, warning)};
    for (size_t i = 0; i < n; i++) {
        option_clear_list(c, &o[i]);
        if (o[i].type == OPT_STRING)
            free(*(char **)(void *)((char *)c + o[i].field));
    }
    option_clear_list(c, &warning);
    *c = (struct config){0};
}
