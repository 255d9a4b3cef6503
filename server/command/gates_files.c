#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/outputs.h"
#include "server/command/gates_internal.h"

static const char OUT[] = "--out", CHECKPOINT[] = "--checkpoint",
                  LOG[] = "--log";

static bool can_write_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int n = slash == NULL || slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof(folder), "%.*s", n, slash == NULL ? "." : path);
    return access(folder, W_OK) == 0;
}

static enum err check_folder(const char *option, const char *path,
                             struct errmsg *m)
{
    return can_write_folder_of(path)
               ? OK
               : err_set(m, ERR_INVAL, "%s: the folder of %s cannot be written",
                         option, path);
}

/* The log is no file that is replaced, and may be a device. */
static enum err check_log(const char *path, struct errmsg *m)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return check_folder(LOG, path, m);
    if (S_ISDIR(st.st_mode))
        return err_set(m, ERR_INVAL, "%s: %s is a folder", LOG, path);
    return access(path, W_OK) == 0
               ? OK
               : err_set(m, ERR_INVAL, "%s: %s cannot be written", LOG, path);
}

/* What stands beside a file that is replaced under a lock. */
static enum err add_beside(struct outputs *o, const char *option,
                           const char *path, struct errmsg *m)
{
    enum err rc = outputs_add_tmp(o, option, path, m);
    return rc == OK ? outputs_add_beside(o, option, path, ".lock", m) : rc;
}

/* All that is written but OUT itself. */
static enum err add_outputs(struct outputs *o, const struct gates_files *f,
                            struct errmsg *m)
{
    enum err rc = add_beside(o, OUT, f->out, m);
    if (rc == OK && f->learns)
        rc = outputs_add(o, CHECKPOINT, f->checkpoint, m);
    if (rc == OK && f->learns)
        rc = add_beside(o, CHECKPOINT, f->checkpoint, m);
    if (rc == OK && f->learns && f->log != NULL)
        rc = outputs_add(o, LOG, f->log, m);
    return rc;
}

static enum err check_inputs(const struct outputs *o, const char *option,
                             const struct config_list *file, struct errmsg *m)
{
    enum err rc = OK;
    for (size_t i = 0; i < file->n && rc == OK; i++)
        rc = outputs_check(o, option, file->item[i], m);
    return rc;
}

/* OUT comes after --init: gates may be replaced by what was made from them. */
static enum err check_names(const struct gates_files *f,
                            const struct gates_inputs *in, struct errmsg *m)
{
    struct outputs o = {.n = 0};
    enum err rc = add_outputs(&o, f, m);
    if (rc == OK)
        rc = check_inputs(&o, "--init", in->init, m);
    if (rc == OK)
        rc = outputs_add(&o, OUT, f->out, m);
    if (rc == OK)
        rc = outputs_check(&o, "--model", in->model, m);
    return rc == OK ? check_inputs(&o, "--text", in->text, m) : rc;
}

enum err gates_files_check(struct gates_files *f, const char *checkpoint,
                           const struct gates_inputs *in, struct errmsg *m)
{
    int n = checkpoint != NULL
                ? snprintf(f->checkpoint, PATH_MAX, "%s", checkpoint)
                : snprintf(f->checkpoint, PATH_MAX, "%s.checkpoint", f->out);
    if (n >= PATH_MAX)
        return err_set(m, ERR_INVAL, "%s: the path is too long", CHECKPOINT);
    enum err rc = check_folder(OUT, f->out, m);
    if (rc == OK && f->learns)
        rc = check_folder(CHECKPOINT, f->checkpoint, m);
    if (rc == OK && f->learns && f->log != NULL)
        rc = check_log(f->log, m);
    return rc == OK ? check_names(f, in, m) : rc;
}

/* Two runs that replace the same file would undo each other's work. */
static enum err hold(struct gates_held *h, const char *option, const char *path,
                     struct errmsg *m)
{
    struct errmsg why = {""};
    int n = snprintf(h->lock, PATH_MAX, "%s.lock", path);
    if (n >= PATH_MAX)
        return err_set(m, ERR_INVAL, "the path %s is too long", path);
    enum err rc = file_lock(&h->fd, h->lock, m);
    if (rc == ERR_BUSY)
        return err_set(m, rc, "another training run writes to %s", path);
    if (rc != OK)
        return rc;
    /* Under the lock: it makes and removes the file that becomes this one. */
    rc = file_check_replace(path, &why);
    return rc == OK ? OK : err_set(m, rc, "%s: %s", option, why.text);
}

enum err gates_files_hold(struct gates_files *f, struct errmsg *m)
{
    enum err rc = hold(&f->held_out, OUT, f->out, m);
    return rc == OK && f->learns
               ? hold(&f->held_checkpoint, CHECKPOINT, f->checkpoint, m)
               : rc;
}

void gates_files_release(struct gates_files *f)
{
    file_unlock(f->held_checkpoint.fd, f->held_checkpoint.lock);
    file_unlock(f->held_out.fd, f->held_out.lock);
    f->held_checkpoint.fd = f->held_out.fd = -1;
}
