/* killed.h - a child process that ends as by kill -9, once it has written so
 * many lines.
 */
#ifndef TESTS_KILLED_H
#define TESTS_KILLED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"

/* Of a file that need not be there. */
static inline size_t lines_of(const char *path)
{
    struct buf b = {0};
    size_t n = 0;
    if (file_read_all(&b, path, 1 << 24, NULL) == OK)
        for (size_t i = 0; i < b.len; i++)
            n += b.data[i] == '\n';
    buf_fini(&b);
    return n;
}

/* How far the child has come by then nobody can say: it may have ended by
 * itself. */
static inline void kill_after_lines(pid_t child, const char *path, size_t n)
{
    int64_t until = clock_us() + 120 * (int64_t)1000000;
    siginfo_t ended = {0};
    while (lines_of(path) < n && ended.si_pid == 0 && clock_us() < until) {
        usleep(500);
        /* Not reaped yet: its number must stay its own until the kill. */
        waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT);
    }
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(lines_of(path) >= n);
}

#endif
