#include "base/host.h"

#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"

enum { PROC_FILE_MAX = 256 * 1024 };

static const char CGROUP[] = "/sys/fs/cgroup";

/* The content of root + dir + "/" + name in *b; false where it cannot be
 * read. */
static bool read_text(struct buf *b, const char *root, const char *dir,
                      const char *name)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s%s/%s", root, dir, name);
    buf_clear(b);
    return n > 0 && (size_t)n < sizeof(path) &&
           file_read_all(b, path, PROC_FILE_MAX, NULL) == OK && b->len > 0;
}

/* One group of a hierarchy: where its files are, walked up to the root,
 * because a limit of a parent holds for the child too. Inside a container the
 * path of /proc/self/cgroup may not exist; the walk then ends at the mount,
 * which is the container's own group. */
struct group {
    const char *root;
    char dir[PATH_MAX];
    size_t mount_len;
};

static bool group_find(struct group *g, const char *root, const char *v1)
{
    struct buf b = {0};
    bool is_there = read_text(&b, root, "/proc/self", "cgroup");
    char *next = b.data;
    char path[PATH_MAX] = "";
    while (is_there && next != NULL && *next != '\0') {
        char *line = strsep(&next, "\n");
        strsep(&line, ":");
        char *names = strsep(&line, ":");
        if (line == NULL)
            continue;
        char list[256];
        snprintf(list, sizeof(list), ",%s,", names);
        bool match = v1 == NULL ? *names == '\0' : strstr(list, v1) != NULL;
        if (match)
            snprintf(path, sizeof(path), "%s", line);
    }
    buf_fini(&b);
    /* ",cpu," and ",memory," name their mounts by what is inside. */
    int mount = v1 == NULL ? snprintf(g->dir, sizeof(g->dir), "%s", CGROUP)
                           : snprintf(g->dir, sizeof(g->dir), "%s/%.*s", CGROUP,
                                      (int)strlen(v1) - 2, v1 + 1);
    g->root = root;
    g->mount_len = (size_t)mount;
    size_t len = strlen(path);
    if (len > 1 && len < sizeof(g->dir) - g->mount_len)
        memcpy(g->dir + mount, path, len + 1);
    return is_there;
}

static bool group_up(struct group *g)
{
    if (strlen(g->dir) <= g->mount_len)
        return false;
    *strrchr(g->dir, '/') = '\0';
    return true;
}

static bool read_number(struct buf *b, const struct group *g, const char *name,
                        int64_t *out)
{
    if (!read_text(b, g->root, g->dir, name))
        return false;
    char *end;
    long long v = strtoll(b->data, &end, 10);
    *out = v;
    return end != b->data;
}

/* Whole CPUs of the tightest quota; INT_MAX where there is none. */
static int quota_v2(const char *root)
{
    struct group g;
    struct buf b = {0};
    int cpus = INT_MAX;
    if (group_find(&g, root, NULL))
        do {
            long long quota = 0, period = 0;
            /* "max 100000" means no quota. */
            if (read_text(&b, root, g.dir, "cpu.max") &&
                sscanf(b.data, "%lld %lld", &quota, &period) == 2 &&
                period > 0 && quota / period < cpus)
                cpus = (int)(quota / period);
        } while (group_up(&g));
    buf_fini(&b);
    return cpus;
}

static int quota_v1(const char *root)
{
    struct group g;
    struct buf b = {0};
    int cpus = INT_MAX;
    if (group_find(&g, root, ",cpu,"))
        do {
            int64_t quota, period;
            if (read_number(&b, &g, "cpu.cfs_quota_us", &quota) && quota > 0 &&
                read_number(&b, &g, "cpu.cfs_period_us", &period) &&
                period > 0 && quota / period < cpus)
                cpus = (int)(quota / period);
        } while (group_up(&g));
    buf_fini(&b);
    return cpus;
}

int host_cpus_at(const char *root, int n_cpus)
{
    int v2 = quota_v2(root), v1 = quota_v1(root);
    if (v2 < n_cpus)
        n_cpus = v2;
    if (v1 < n_cpus)
        n_cpus = v1;
    return n_cpus < 1 ? 1 : n_cpus;
}

int host_cpus(void)
{
    /* A mask for more CPUs than cpu_set_t holds makes the plain call fail. */
    enum { CPUS_MAX = 8192 };
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    int n = 1;
    if (set != NULL && sched_getaffinity(0, CPU_ALLOC_SIZE(CPUS_MAX), set) == 0)
        n = CPU_COUNT_S(CPU_ALLOC_SIZE(CPUS_MAX), set);
    CPU_FREE(set);
    return host_cpus_at("", n);
}

/* A line "name:   123 kB" of /proc/meminfo, in bytes; 0 where absent. */
static uint64_t meminfo(const char *root, const char *name)
{
    struct buf b = {0};
    uint64_t kib = 0;
    const char *p = NULL;
    if (read_text(&b, root, "/proc", "meminfo"))
        p = strstr(b.data, name);
    if (p != NULL && sscanf(p + strlen(name), ": %" SCNu64, &kib) != 1)
        kib = 0;
    buf_fini(&b);
    return kib * 1024;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

struct memory_files {
    const char *v1; /* hierarchy, NULL for version 2 */
    const char *limit, *usage, *stat, *reclaimable;
};

static const struct memory_files memory_v2 = {
    NULL, "memory.max", "memory.current", "memory.stat", "\ninactive_file "};
static const struct memory_files memory_v1 = {
    ",memory,", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat",
    "\ntotal_inactive_file "};

/* Bytes the group may still take. The page cache counts as used, but its
 * inactive part is given up before anything else. */
static uint64_t group_room(struct buf *b, const struct group *g,
                           const struct memory_files *f, int64_t limit)
{
    int64_t used = 0;
    uint64_t cached = 0;
    if (!read_number(b, g, f->usage, &used))
        return (uint64_t)limit;
    const char *p = NULL;
    if (read_text(b, g->root, g->dir, f->stat))
        p = strstr(b->data, f->reclaimable);
    if (p != NULL)
        cached = strtoull(p + strlen(f->reclaimable), NULL, 10);
    used -= cached < (uint64_t)used ? (int64_t)cached : used;
    return used < limit ? (uint64_t)(limit - used) : 0;
}

static uint64_t group_memory(const char *root, const struct memory_files *f,
                             bool free_only)
{
    struct group g;
    struct buf b = {0};
    uint64_t bytes = UINT64_MAX;
    if (group_find(&g, root, f->v1))
        do {
            int64_t limit;
            /* "max" is no number, version 1 says about 2^63. */
            if (!read_number(&b, &g, f->limit, &limit) || limit < 0 ||
                limit > INT64_MAX / 2)
                continue;
            bytes = least(bytes, free_only ? group_room(&b, &g, f, limit)
                                           : (uint64_t)limit);
        } while (group_up(&g));
    buf_fini(&b);
    return bytes;
}

static uint64_t memory_at(const char *root, const char *line, bool free_only)
{
    uint64_t host = meminfo(root, line);
    uint64_t group = least(group_memory(root, &memory_v2, free_only),
                           group_memory(root, &memory_v1, free_only));
    if (host == 0)
        return group == UINT64_MAX ? 0 : group;
    return least(host, group);
}

uint64_t host_memory_available_at(const char *root)
{
    return memory_at(root, "MemAvailable", true);
}

uint64_t host_memory_total_at(const char *root)
{
    return memory_at(root, "MemTotal", false);
}

uint64_t host_memory_available(void)
{
    return host_memory_available_at("");
}

uint64_t host_memory_total(void)
{
    return host_memory_total_at("");
}
