#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BLOCK = 64 * 1024 };

static enum err open_for_reading(int *fd, struct stat *st, const char *path,
                                 struct errmsg *m)
{
    /* O_NONBLOCK: opening a pipe without a writer would wait for one. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0) {
        enum err rc = errno == ENOENT ? ERR_NOTFOUND : ERR_IO;
        return err_set(m, rc, "cannot open %s: %s", path, strerror(errno));
    }
    enum err rc = OK;
    if (fstat(*fd, st) != 0)
        rc = err_set(m, ERR_IO, "cannot look at %s: %s", path, strerror(errno));
    else if (!S_ISREG(st->st_mode))
        rc = err_set(m, ERR_INVAL, "%s is not a regular file", path);
    if (rc != OK)
        close(*fd);
    return rc;
}

enum err file_map_open(struct file_map *out, const char *path, struct errmsg *m)
{
    static const uint8_t nothing[1];
    int fd;
    struct stat st;
    enum err rc = open_for_reading(&fd, &st, path, m);
    if (rc != OK)
        return rc;
    struct file_map map = {nothing, (size_t)st.st_size};
    if (map.size > 0) {
        void *p = mmap(NULL, map.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            rc = err_set(m, ERR_IO, "cannot map %s (%zu bytes): %s", path,
                         map.size, strerror(errno));
        map.data = p;
    }
    close(fd); /* the mapping stays */
    if (rc == OK)
        *out = map;
    return rc;
}

void file_map_close(struct file_map *map)
{
    if (map->size > 0)
        munmap((void *)(uintptr_t)map->data, map->size);
    map->data = NULL;
    map->size = 0;
}

/* Reads to the end of the file, not to its stated size: files of /proc say 0.
 */
static enum err read_to_end(struct buf *out, int fd, const char *path,
                            size_t max, struct errmsg *m)
{
    size_t got = 0;
    for (;;) {
        enum err rc = buf_reserve(out, READ_BLOCK);
        if (rc != OK)
            return err_set(m, rc, "no memory to read %s", path);
        ssize_t n = read(fd, out->data + out->len, READ_BLOCK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(m, ERR_IO, "cannot read %s: %s", path,
                           strerror(errno));
        if (n == 0)
            return OK;
        got += (size_t)n;
        if (got > max)
            return err_set(m, ERR_INVAL, "%s is larger than %zu bytes", path,
                           max);
        out->len += (size_t)n;
    }
}

enum err file_read_all(struct buf *out, const char *path, size_t max,
                       struct errmsg *m)
{
    int fd;
    struct stat st;
    enum err rc = open_for_reading(&fd, &st, path, m);
    if (rc != OK)
        return rc;
    size_t before = out->len;
    rc = read_to_end(out, fd, path, max, m);
    close(fd);
    if (rc != OK)
        out->len = before;
    if (out->data != NULL)
        out->data[out->len] = '\0';
    return rc;
}

static enum err write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ERR_IO;
        p += n;
        len -= (size_t)n;
    }
    return OK;
}

static void folder_of(char dir[PATH_MAX], const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        snprintf(dir, PATH_MAX, ".");
    else
        snprintf(dir, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path),
                 path);
}

/* The rename itself is only safe once the folder is on disk too. A failure
 * is not reported: the content is whole, and there is nothing to undo. */
static void sync_folder_of(const char *path)
{
    char dir[PATH_MAX];
    folder_of(dir, path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

enum err file_follow(char out[PATH_MAX], const char *path, struct errmsg *m)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        if (realpath(path, out) != NULL)
            return OK;
        /* A link to a pipe, as /dev/stdout may be, leads to no name. */
        int fault = errno;
        if (stat(path, &st) != 0)
            return err_set(m, ERR_INVAL, "cannot follow the link %s: %s", path,
                           strerror(fault));
    }
    size_t n = strlen(path);
    if (n >= PATH_MAX)
        return err_set(m, ERR_INVAL, "path of %zu bytes is too long", n);
    memcpy(out, path, n + 1);
    return OK;
}

static bool is_same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool file_is_same(const char *a, const char *b)
{
    char dir_a[PATH_MAX], dir_b[PATH_MAX];
    struct stat st_a, st_b;
    bool has_a = stat(a, &st_a) == 0, has_b = stat(b, &st_b) == 0;
    if (has_a || has_b)
        return has_a && has_b && is_same_inode(&st_a, &st_b);
    const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
    folder_of(dir_a, a);
    folder_of(dir_b, b);
    return strcmp(slash_a != NULL ? slash_a + 1 : a,
                  slash_b != NULL ? slash_b + 1 : b) == 0 &&
           stat(dir_a, &st_a) == 0 && stat(dir_b, &st_b) == 0 &&
           is_same_inode(&st_a, &st_b);
}

/* Opens the new file beside the one of this name, or beside what a link of this
 * name leads to: that is *target. */
static enum err open_beside(int *fd, char target[PATH_MAX], char tmp[PATH_MAX],
                            const char *path, mode_t mode, struct errmsg *m)
{
    struct stat st;

    /* Renaming over a device would take it from the whole machine: as root,
     * an output file "/dev/null" must not become a file. */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(m, ERR_INVAL, "%s is not a regular file", path);

    enum err rc = file_follow(target, path, m);
    if (rc != OK)
        return rc;
    int n = snprintf(tmp, PATH_MAX, "%s.tmp", target);
    if (n < 0 || n >= PATH_MAX)
        return err_set(m, ERR_INVAL, "path of %zu bytes is too long",
                       strlen(path));

    /* What a crash left would keep its old permissions. */
    unlink(tmp);
    *fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    return *fd >= 0 ? OK
                    : err_set(m, ERR_IO, "cannot create %s: %s", tmp,
                              strerror(errno));
}

enum err file_check_replace(const char *path, struct errmsg *m)
{
    int fd;
    char target[PATH_MAX], tmp[PATH_MAX];
    enum err rc = open_beside(&fd, target, tmp, path, 0600, m);
    if (rc != OK)
        return rc;
    close(fd);
    unlink(tmp);
    return OK;
}

static enum err replace(const char *path, const void *data, size_t len,
                        mode_t mode, struct errmsg *m)
{
    int fd;
    char target[PATH_MAX], tmp[PATH_MAX];
    enum err rc = open_beside(&fd, target, tmp, path, mode, m);
    if (rc != OK)
        return rc;
    rc = ERR_IO;
    if (write_all(fd, data, len) != OK || fsync(fd) != 0) {
        err_set(m, rc, "cannot write %s: %s", tmp, strerror(errno));
        goto out;
    }
    /* fsync comes before rename: the other order can leave an empty file
     * under the final name after a power cut. */
    if (rename(tmp, target) != 0) {
        err_set(m, rc, "cannot rename %s: %s", tmp, strerror(errno));
        goto out;
    }
    sync_folder_of(target);
    rc = OK;
out:
    close(fd);
    if (rc != OK)
        unlink(tmp);
    return rc;
}

enum err file_replace(const char *path, const void *data, size_t len,
                      struct errmsg *m)
{
    return replace(path, data, len, 0600, m);
}

enum err file_replace_shared(const char *path, const void *data, size_t len,
                             struct errmsg *m)
{
    return replace(path, data, len, 0666, m);
}

enum err file_lock_open(int fd, const char *path, struct errmsg *m)
{
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return err_set(m, ERR_BUSY, "another process writes to %s", path);
        if (errno != EINTR)
            return err_set(m, ERR_IO, "cannot lock %s: %s", path,
                           strerror(errno));
    }
    return OK;
}

/* Whether the name still stands for the open file. */
static bool is_file_of(const char *path, int fd)
{
    struct stat named, opened;
    return stat(path, &named) == 0 && fstat(fd, &opened) == 0 &&
           is_same_inode(&named, &opened);
}

/* What holds something is no lock file, and must not be removed as one. */
static enum err check_empty(int fd, const char *path, struct errmsg *m)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0)
        return OK;
    return err_set(m, ERR_INVAL, "%s is not an empty file", path);
}

enum err file_lock(int *fd, const char *path, struct errmsg *m)
{
    for (;;) {
        int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
        if (f < 0)
            return err_set(m, ERR_IO, "cannot create %s: %s", path,
                           strerror(errno));
        enum err rc = check_empty(f, path, m);
        if (rc == OK)
            rc = file_lock_open(f, path, m);
        /* Its last owner may have removed it after it was opened here. */
        if (rc == OK && is_file_of(path, f)) {
            *fd = f;
            return OK;
        }
        close(f);
        if (rc != OK)
            return rc;
    }
}

void file_unlock(int fd, const char *path)
{
    if (fd < 0)
        return;
    /* Before the lock is gone: the name is still this process's. */
    unlink(path);
    close(fd);
}
