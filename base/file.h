/* file.h - reading whole files, mapping them, replacing them safely, and
 * keeping other processes from what one works on.
 *
 * Only regular files are accepted where a file is read or mapped by name
 * given from outside: a directory, a pipe or a device is ERR_INVAL and never
 * blocks. Every sentence names the path.
 *
 * Threads: any; nothing is kept.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct file_map {
    const uint8_t *data; /* size bytes, read-only; never NULL after open */
    size_t size;
};

/* Maps the whole file. On OK the caller ends it with file_map_close(). The
 * file must not shrink while it is mapped: reading beyond its new end would
 * kill the process. ERR_NOTFOUND where there is no such file. */
MUST_CHECK enum err file_map_open(struct file_map *out, const char *path,
                                  struct errmsg *m);
/* A zeroed map is allowed; leaves a zeroed one. */
void file_map_close(struct file_map *map);

/* Appends the content of the file to *out. More than max bytes is ERR_INVAL;
 * on any error *out is as it was. */
MUST_CHECK enum err file_read_all(struct buf *out, const char *path, size_t max,
                                  struct errmsg *m);

/* Puts the bytes under this name, mode 0600, so that after a crash at any
 * moment the name holds either the old content or the new, whole. Goes
 * through a temporary file beside it; two writers of one path must not run at
 * the same time. On error the old file stays; a device, a pipe or a folder of
 * that name is ERR_INVAL and stays too. Of a symbolic link, what it names is
 * replaced, and the link stays; one that names nothing is ERR_INVAL. */
MUST_CHECK enum err file_replace(const char *path, const void *data, size_t len,
                                 struct errmsg *m);
/* The same for what a user asked for by name and may want to share: mode 0666
 * less the umask. */
MUST_CHECK enum err file_replace_shared(const char *path, const void *data,
                                        size_t len, struct errmsg *m);
/* Whether these can begin, with their errors: before long work whose result
 * goes there. Leaves everything as it is. */
MUST_CHECK enum err file_check_replace(const char *path, struct errmsg *m);

/* The name of the file that a symbolic link leads to, as file_replace() takes
 * it; any other name as it is, whether there is such a file or not, and that of
 * a link to what has none. ERR_INVAL: the link names nothing, or the name is
 * too long. */
MUST_CHECK enum err file_follow(char out[PATH_MAX], const char *path,
                                struct errmsg *m);
/* Whether two names are of one file, or would be: where neither exists, they
 * are the same name in the same folder. A link that names nothing is taken for
 * a name. */
bool file_is_same(const char *a, const char *b);

/* Takes the lock file of this name, which is made; whoever else takes it gets
 * ERR_BUSY. The kernel gives the lock back when the process ends, however it
 * ends: a file that was left behind locks nothing. On OK the caller ends *fd
 * with file_unlock(), which removes the file. ERR_INVAL for one that holds
 * something. */
MUST_CHECK enum err file_lock(int *fd, const char *path, struct errmsg *m);
void file_unlock(int fd, const char *path); /* fd -1 is allowed */

/* Takes a lock on an open file for as long as it is open; ERR_BUSY when
 * another process or another opening has it. */
MUST_CHECK enum err file_lock_open(int fd, const char *path, struct errmsg *m);

#endif
