#include "config/option.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    double factor;
};

static const struct unit sizes[] = {
    {"", 1},         {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
    {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},     {"MB", 1e6},
    {"GB", 1e9},     {"TB", 1e12},    {NULL, 0},
};
static const struct unit times[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {NULL, 0}};

static const struct unit *unit_find(const struct unit *u, const char *name)
{
    for (; u->name != NULL; u++)
        if (strcasecmp(u->name, name) == 0)
            return u;
    return NULL;
}

/* "12", "1.5": digits only, so that strtod's "0x", "inf" and "1e9" are no
 * sizes. *end is what follows. */
static bool plain_number(const char *text, double *out, const char **end)
{
    size_t n = strspn(text, "0123456789");
    if (n == 0)
        return false;
    if (text[n] == '.' && strspn(text + n + 1, "0123456789") > 0)
        n += 1 + strspn(text + n + 1, "0123456789");
    char digits[64];
    if (n >= sizeof(digits))
        return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    *out = strtod(digits, NULL);
    *end = text + n;
    return true;
}

static enum err bad(const char *where, const char *text, const char *want,
                    struct errmsg *m)
{
    return err_set(m, ERR_INVAL, "%s: '%.60s' is not %s", where, text, want);
}

static enum err parse_int(int64_t *out, const char *text, const char *where,
                          struct errmsg *m)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 ||
        strspn(text, "-0123456789") != strlen(text))
        return bad(where, text, "a whole number", m);
    *out = v;
    return OK;
}

static enum err parse_bytes(uint64_t *out, const char *text, uint64_t memory,
                            const char *where, struct errmsg *m)
{
    static const char want[] = "a size like 64MiB, 2GiB, 1048576 or 40%";
    double v;
    const char *rest;
    if (!plain_number(text, &v, &rest))
        return bad(where, text, want, m);
    if (strcmp(rest, "%") == 0) {
        if (v > 100)
            return bad(where, text, "a percentage up to 100%", m);
        if (memory == 0)
            return err_set(m, ERR_INVAL,
                           "%s: '%s' of the available memory cannot be "
                           "computed, because the system does not say how "
                           "much there is; give a size like 2GiB",
                           where, text);
        *out = (uint64_t)((double)memory * v / 100);
        return OK;
    }
    const struct unit *u = unit_find(sizes, rest);
    v = u == NULL ? -1 : v * u->factor;
    if (v < 0 || v >= 0x1p63)
        return bad(where, text, want, m);
    *out = (uint64_t)v;
    return OK;
}

static enum err parse_time(int64_t *out, const char *text, const char *where,
                           struct errmsg *m)
{
    double v;
    const char *rest;
    const struct unit *u = NULL;
    if (plain_number(text, &v, &rest))
        u = unit_find(times, rest);
    if (u == NULL || v * u->factor >= 0x1p62)
        return bad(where, text, "a time like 500ms, 30s or 5m", m);
    *out = (int64_t)(v * u->factor);
    return OK;
}

static enum err parse_bool(bool *out, const char *text, const char *where,
                           struct errmsg *m)
{
    static const char *const yes[] = {"true", "1", "yes", "on"};
    static const char *const no[] = {"false", "0", "no", "off"};
    for (int i = 0; i < 4; i++) {
        bool is_yes = strcasecmp(text, yes[i]) == 0;
        if (!is_yes && strcasecmp(text, no[i]) != 0)
            continue;
        *out = is_yes;
        return OK;
    }
    return bad(where, text, "true or false", m);
}

static enum err parse_choice(int64_t *out, const struct option *o,
                             const char *text, const char *where,
                             struct errmsg *m)
{
    char all[128] = "";
    int best = 0;
    for (int i = 0; o->choices[i] != NULL; i++) {
        const char *c = o->choices[i];
        if (strcmp(c, text) == 0) {
            *out = i;
            return OK;
        }
        if (option_distance(text, c) < option_distance(text, o->choices[best]))
            best = i;
        size_t n = strlen(all);
        snprintf(all + n, sizeof(all) - n, "%s%s", i > 0 ? ", " : "", c);
    }
    return err_set(m, ERR_INVAL,
                   "%s: unknown value '%.60s'; the nearest known one is '%s' "
                   "(of %s)",
                   where, text, o->choices[best], all);
}

static enum err list_append(struct config_list *l, const char *text, size_t n)
{
    char **item = realloc(l->item, (l->n + 1) * sizeof(char *));
    if (item == NULL)
        return ERR_NOMEM;
    l->item = item;
    item[l->n] = strndup(text, n);
    if (item[l->n] == NULL)
        return ERR_NOMEM;
    l->n++;
    return OK;
}

/* Commas separate; an empty text is an empty list, as in the file for what it
 * leaves open. */
static enum err parse_list(struct config_list *l, const char *text,
                           const char *where, struct errmsg *m)
{
    const char *rest = text;
    for (bool more = *text != '\0'; more;) {
        rest += strspn(rest, " ");
        size_t n = strcspn(rest, ",");
        if (n == 0)
            return err_set(m, ERR_INVAL,
                           "%s: '%.60s' names nothing at one place; commas "
                           "stand between two names",
                           where, text);
        if (list_append(l, rest, n) != OK)
            return err_set(m, ERR_NOMEM, "no memory for a list");
        more = rest[n] == ',';
        rest += n + more;
    }
    return OK;
}

static enum err parse_string(char **out, const char *text, struct errmsg *m)
{
    char *copy = strdup(text);
    if (copy == NULL)
        return err_set(m, ERR_NOMEM, "no memory for '%.60s'", text);
    free(*out);
    *out = copy;
    return OK;
}

static enum err parse_real(double *out, const struct option *o,
                           const char *text, const char *where,
                           struct errmsg *m)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end != '\0' ||
        strspn(text, "-+.0123456789eE") != strlen(text))
        return bad(where, text, "a number", m);
    bool fits = v >= (double)o->min && v <= (double)o->max;
    if (!fits && !(o->or_zero && v == 0))
        return err_set(m, ERR_INVAL,
                       "%s: '%.60s' is out of range; it must be %sfrom %" PRIu64
                       " to %" PRIu64,
                       where, text, o->or_zero ? "0 or " : "", o->min, o->max);
    *out = v;
    return OK;
}

static enum err append_word(struct config_list *l, const char *text,
                            struct errmsg *m)
{
    enum err rc = list_append(l, text, strlen(text));
    return rc == OK ? OK : err_set(m, rc, "no memory for a list");
}

static enum err check_range(const struct option *o, uint64_t v, bool negative,
                            const char *text, const char *where,
                            struct errmsg *m)
{
    if (!negative && v >= o->min && v <= o->max)
        return OK;
    const char *unit = o->type == OPT_BYTES  ? " bytes"
                       : o->type == OPT_TIME ? " milliseconds"
                                             : "";
    /* A percentage says nothing without the number it came to. */
    if (strchr(text, '%') != NULL)
        return err_set(m, ERR_INVAL,
                       "%s: %s is %" PRIu64 " bytes; it must be from %" PRIu64
                       " to %" PRIu64,
                       where, text, v, o->min, o->max);
    return err_set(m, ERR_INVAL,
                   "%s: '%.60s' is out of range; it must be from %" PRIu64
                   " to %" PRIu64 "%s",
                   where, text, o->min, o->max, unit);
}

enum err option_set(void *c, const struct option *o, const char *text,
                    uint64_t memory, const char *where, struct errmsg *m)
{
    void *field = (char *)c + o->field;
    enum err rc = OK;
    int64_t v = 0;
    uint64_t bytes = 0;
    switch (o->type) {
    case OPT_STRING:
        return parse_string(field, text, m);
    case OPT_LIST:
        return parse_list(field, text, where, m);
    case OPT_WORDS:
        return append_word(field, text, m);
    case OPT_REAL:
        return parse_real(field, o, text, where, m);
    case OPT_BOOL:
        return parse_bool(field, text, where, m);
    case OPT_CHOICE:
        return parse_choice(field, o, text, where, m);
    case OPT_BYTES:
        rc = parse_bytes(&bytes, text, memory, where, m);
        if (rc == OK)
            rc = check_range(o, bytes, false, text, where, m);
        if (rc == OK)
            *(uint64_t *)field = bytes;
        return rc;
    case OPT_INT:
        rc = parse_int(&v, text, where, m);
        break;
    case OPT_TIME:
        rc = parse_time(&v, text, where, m);
        break;
    }
    if (rc == OK)
        rc = check_range(o, (uint64_t)v, v < 0, text, where, m);
    if (rc == OK)
        *(int64_t *)field = v;
    return rc;
}

enum err option_set_flag(void *c, const struct option *o, const char *text,
                         uint64_t memory, const char *where, struct errmsg *m)
{
    bool is_name =
        o->type == OPT_STRING || o->type == OPT_LIST || o->type == OPT_WORDS;
    if (is_name && text[0] == '\0')
        return err_set(m, ERR_INVAL, "%s: the value is empty", where);
    return option_set(c, o, text, memory, where, m);
}

void option_clear_list(void *c, const struct option *o)
{
    if (o->type != OPT_LIST && o->type != OPT_WORDS)
        return;
    struct config_list *l =
        (struct config_list *)(void *)((char *)c + o->field);
    for (size_t i = 0; i < l->n; i++)
        free(l->item[i]);
    free(l->item);
    *l = (struct config_list){NULL, 0};
}
