#include "gates/gate_find.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static const char ENDING[] = ".safetensors";

enum err gate_check_base(const struct safetensors *f, const char *fingerprint,
                         struct errmsg *m)
{
    const char *base = safetensors_meta(f, "base_fingerprint");
    if (base == NULL || strcmp(base, fingerprint) == 0)
        return OK;
    return err_set(m, ERR_CONFLICT,
                   "its gates were trained for another model: base_fingerprint "
                   "is %.64s, this model's is %s",
                   base, fingerprint);
}

static enum err load(struct gate **out, const char *path,
                     const struct gate_base *base, struct errmsg *m)
{
    struct safetensors *f = NULL;
    struct errmsg why = {""};
    enum err rc = safetensors_open(&f, path, m);
    if (rc != OK)
        return rc;
    rc = gate_check_base(f, base->fingerprint, &why);
    if (rc == OK)
        rc = gate_read(out, f, &base->shape, &why);
    if (rc != OK)
        err_set(m, rc, "%s: %s", path, why.text);
    safetensors_close(f);
    return rc;
}

/* Whether the file says that it is for this model. One that cannot be read
 * does not. */
static bool is_for(const char *path, const struct gate_base *base)
{
    struct safetensors *f = NULL;
    struct errmsg m = {""};
    if (safetensors_open(&f, path, &m) != OK) {
        log_msg(LOG_LEVEL_WARN, "looking for gates: %s", m.text);
        return false;
    }
    const char *found = safetensors_meta(f, "base_fingerprint");
    bool is = found != NULL && strcmp(found, base->fingerprint) == 0;
    safetensors_close(f);
    return is;
}

static int is_candidate(const struct dirent *e)
{
    size_t n = strlen(e->d_name), end = strlen(ENDING);
    return n > end && strcmp(e->d_name + n - end, ENDING) == 0;
}

/* Not alphasort(): its order is that of the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Takes the file if it is for this model. ERR_NOMEM is the only error. */
static enum err try_file(struct gate **out, const char *path,
                         const struct gate_base *base, struct errmsg *m)
{
    if (!is_for(path, base))
        return OK;
    enum err rc = load(out, path, base, m);
    if (rc == OK || rc == ERR_NOMEM)
        return rc;
    log_msg(LOG_LEVEL_WARN, "looking for gates: %s", m->text);
    return OK;
}

enum err gate_find_in(struct gate **out, char path[GATE_PATH_MAX],
                      const char *folder, const struct gate_base *base,
                      struct errmsg *m)
{
    struct dirent **file = NULL;
    struct errmsg why = {""};
    enum err rc = OK;
    *out = NULL;
    int n = scandir(folder, &file, is_candidate, by_name);
    for (int i = 0; i < n; i++) {
        if (*out == NULL && rc == OK &&
            snprintf(path, GATE_PATH_MAX, "%s/%s", folder, file[i]->d_name) <
                GATE_PATH_MAX)
            rc = try_file(out, path, base, &why);
        free(file[i]);
    }
    free(file);
    if (*out == NULL)
        path[0] = '\0';
    return rc == OK ? OK : err_set(m, rc, "%s", why.text);
}

/* The folder of the program that runs, or "" where the system does not say. */
static void program_folder(char out[GATE_PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, GATE_PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash != NULL)
        *slash = '\0';
}

static enum err find_anywhere(struct gate **out, char path[GATE_PATH_MAX],
                              const struct gate_base *base, struct errmsg *m)
{
    static const char *const places[] = {"/../gates/pretrained",
                                         "/../share/ebb/gates/pretrained"};
    char program[GATE_PATH_MAX], folder[GATE_PATH_MAX];
    program_folder(program);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int n = snprintf(folder, sizeof(folder), "%s%s", program, places[i]);
        if (program[0] == '\0' || n >= (int)sizeof(folder))
            continue;
        enum err rc = gate_find_in(out, path, folder, base, m);
        if (rc != OK || *out != NULL)
            return rc;
    }
    return gate_find_in(out, path, "gates/pretrained", base, m);
}

enum err gate_find(struct gate **out, char path[GATE_PATH_MAX],
                   const char *which, const struct gate_base *base,
                   struct errmsg *m)
{
    *out = NULL;
    path[0] = '\0';
    if (strcmp(which, "none") == 0)
        return OK;
    if (strcmp(which, "auto") == 0)
        return find_anywhere(out, path, base, m);
    if (strlen(which) >= GATE_PATH_MAX)
        return err_set(m, ERR_INVAL, "the name of the gates' file is too long");
    enum err rc = load(out, which, base, m);
    if (rc == OK)
        memcpy(path, which, strlen(which) + 1);
    return rc;
}
