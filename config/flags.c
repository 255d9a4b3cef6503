#include "config/flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"

static bool is_flag(const char *word)
{
    return word[0] == '-' && word[1] == '-' && word[2] != '\0';
}

static const struct option *find(const struct flags *f, const char *word,
                                 const char **value)
{
    for (size_t i = 0; i < f->n; i++) {
        char flag[OPTION_NAME_MAX + 8];
        option_flag(flag, &f->option[i]);
        size_t n = strlen(flag);
        if (strncmp(word, flag, n) != 0 || (word[n] != '\0' && word[n] != '='))
            continue;
        *value = word[n] == '=' ? word + n + 1 : NULL;
        return &f->option[i];
    }
    return NULL;
}

static enum err unknown(const struct flags *f, const char *word,
                        struct errmsg *m)
{
    char name[OPTION_NAME_MAX + 1], near[OPTION_NAME_MAX + 8];
    size_t n = strcspn(word + 2, "=");
    const struct option *best = &f->option[0];
    snprintf(name, sizeof(name), "%.*s",
             n < sizeof(name) ? (int)n : OPTION_NAME_MAX, word + 2);
    for (char *p = name; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
    for (size_t i = 1; i < f->n; i++)
        if (option_distance(name, f->option[i].name) <
            option_distance(name, best->name))
            best = &f->option[i];
    option_flag(near, best);
    return err_set(m, ERR_INVAL,
                   "unknown option '%.*s'; the nearest known one is '%s'",
                   n < 60 ? (int)n + 2 : 62, word, near);
}

static enum err set_value(void *out, const struct option *o, const char *text,
                          struct errmsg *m)
{
    char flag[OPTION_NAME_MAX + 8];
    option_flag(flag, o);
    return option_set_flag(out, o, text, host_memory_available(), flag, m);
}

/* argv from the flag's value on; *used is how many words it took. */
static enum err set_values(void *out, const struct option *o, int argc,
                           char *const *argv, int *used, struct errmsg *m)
{
    char flag[OPTION_NAME_MAX + 8];
    option_flag(flag, o);
    *used = 0;
    if (o->type == OPT_BOOL)
        return set_value(out, o, "true", m);
    if (argc == 0 || is_flag(argv[0]))
        return err_set(m, ERR_INVAL, "%s needs a value: %s %s", flag, flag,
                       o->word != NULL ? o->word : "VALUE");
    enum err rc = OK;
    do {
        rc = set_value(out, o, argv[*used], m);
        *used += 1;
    } while (rc == OK && o->type == OPT_WORDS && *used < argc &&
             !is_flag(argv[*used]));
    return rc;
}

static enum err set_word(void *out, const struct flags *f, const char *word,
                         struct errmsg *m)
{
    const struct option words = {.type = OPT_WORDS, .field = f->words};
    if (!f->has_words || word[0] == '-' || word[0] == '\0')
        return err_set(m, ERR_INVAL, "unexpected argument '%.60s'", word);
    return option_set(out, &words, word, 0, "", m);
}

static enum err set_defaults(void *out, const struct flags *f, struct errmsg *m)
{
    enum err rc = OK;
    for (size_t i = 0; i < f->n && rc == OK; i++)
        if (f->option[i].dflt != NULL)
            rc = option_set(out, &f->option[i], f->option[i].dflt,
                            host_memory_available(), f->option[i].name, m);
    return rc;
}

/* A list that is given takes the place of its default. */
static void clear_defaults(void *out, const struct flags *f, int argc,
                           char *const *argv)
{
    for (int i = 0; i < argc; i++) {
        const char *value;
        const struct option *o =
            is_flag(argv[i]) ? find(f, argv[i], &value) : NULL;
        if (o != NULL)
            option_clear_list(out, o);
    }
}

enum err flags_parse(void *out, bool *wants_help, const struct flags *f,
                     int argc, char *const *argv, struct errmsg *m)
{
    *wants_help = false;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *wants_help = true;
            return OK;
        }
    enum err rc = set_defaults(out, f, m);
    clear_defaults(out, f, argc, argv);
    for (int i = 0; i < argc && rc == OK; i++) {
        const char *value = NULL;
        int used = 0;
        if (!is_flag(argv[i])) {
            rc = set_word(out, f, argv[i], m);
            continue;
        }
        const struct option *o = find(f, argv[i], &value);
        if (o == NULL)
            rc = unknown(f, argv[i], m);
        else if (value != NULL)
            rc = set_value(out, o, value, m);
        else
            rc = set_values(out, o, argc - i - 1, argv + i + 1, &used, m);
        i += used;
    }
    if (rc != OK)
        flags_fini(out, f);
    return rc;
}

void flags_fini(void *out, const struct flags *f)
{
    for (size_t i = 0; i < f->n; i++) {
        option_clear_list(out, &f->option[i]);
        if (f->option[i].type == OPT_STRING) {
            char **s = (char **)(void *)((char *)out + f->option[i].field);
            free(*s);
            *s = NULL;
        }
    }
    const struct option words = {.type = OPT_WORDS, .field = f->words};
    if (f->has_words)
        option_clear_list(out, &words);
}

enum err flags_put_help(struct buf *out, const struct flags *f)
{
    enum err rc = buf_printf(out, "Usage: %s\n\n", f->usage);
    if (rc == OK)
        rc = option_put_wrapped(out, "", f->about);
    if (rc == OK)
        rc = buf_putc(out, '\n');
    for (size_t i = 0; i < f->n && rc == OK; i++) {
        const struct option *o = &f->option[i];
        char text[160];
        option_usage(text, sizeof(text), o);
        rc = buf_printf(out, "  %s\n", text);
        if (rc == OK)
            rc = option_put_wrapped(out, "      ", o->help);
        if (rc == OK && (o->dflt != NULL || o->shown_dflt != NULL))
            rc = buf_printf(out, "      Default: %s.\n", option_default(o));
    }
    return rc == OK ? buf_puts(out, "  --help\n      This text.\n") : rc;
}

const char *flags_nearest(const char *name, const char *const *names, size_t n)
{
    const char *best = names[0];
    for (size_t i = 1; i < n; i++)
        if (option_distance(name, names[i]) < option_distance(name, best))
            best = names[i];
    return best;
}
