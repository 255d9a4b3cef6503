#include "base/outputs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"

static const struct output *find(const struct outputs *o, const char *path)
{
    for (size_t i = 0; i < o->n; i++)
        if (file_is_same(o->output[i].path, path))
            return &o->output[i];
    return NULL;
}

static enum err append(char out[PATH_MAX], const char *path, const char *suffix,
                       struct errmsg *m)
{
    int n = snprintf(out, PATH_MAX, "%s%s", path, suffix);
    return n >= 0 && n < PATH_MAX
               ? OK
               : err_set(m, ERR_INVAL, "path of %zu bytes is too long",
                         strlen(path));
}

static enum err add(struct outputs *o, const char *option, const char *named,
                    const char *path, struct errmsg *m)
{
    const struct output *other = find(o, path);
    assert(o->n < OUTPUTS_MAX);
    if (other != NULL)
        return err_set(m, ERR_INVAL,
                       "%s %s would overwrite what is written for %s %s",
                       option, named, other->option, other->named);
    struct output *x = &o->output[o->n];
    enum err rc = append(x->path, path, "", m);
    x->option = option;
    x->named = named;
    o->n += rc == OK;
    return rc;
}

enum err outputs_add(struct outputs *o, const char *option, const char *named,
                     struct errmsg *m)
{
    char path[PATH_MAX];
    enum err rc = file_follow(path, named, m);
    return rc == OK ? add(o, option, named, path, m) : rc;
}

enum err outputs_add_beside(struct outputs *o, const char *option,
                            const char *named, const char *suffix,
                            struct errmsg *m)
{
    char name[PATH_MAX], path[PATH_MAX];
    enum err rc = append(name, named, suffix, m);
    if (rc == OK)
        rc = file_follow(path, name, m);
    return rc == OK ? add(o, option, named, path, m) : rc;
}

/* Beside what a link leads to, as a rename does not cross file systems. */
enum err outputs_add_tmp(struct outputs *o, const char *option,
                         const char *named, struct errmsg *m)
{
    char name[PATH_MAX], path[PATH_MAX];
    enum err rc = file_follow(name, named, m);
    if (rc == OK)
        rc = append(path, name, ".tmp", m);
    return rc == OK ? add(o, option, named, path, m) : rc;
}

enum err outputs_check(const struct outputs *o, const char *option,
                       const char *path, struct errmsg *m)
{
    const struct output *x = find(o, path);
    return x == NULL ? OK
                     : err_set(m, ERR_INVAL,
                               "%s %s would overwrite what is read for %s %s",
                               x->option, x->named, option, path);
}
