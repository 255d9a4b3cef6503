#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"

static char root[] = "/tmp/ebb_host_XXXXXX";

/* Writes a file below the made-up root, with the folders on its way. */
static void put(const char *path, const char *text)
{
    char full[512];
    int n = snprintf(full, sizeof(full), "%s%s", root, path);
    assert_in_range(n, 1, sizeof(full) - 1);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void wipe(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'/*", root);
    assert_int_equal(system(command), 0);
}

static void without_a_cgroup_the_affinity_decides(void **state)
{
    (void)state;
    wipe();
    assert_int_equal(host_cpus_at(root, 5), 5);
    assert_true(host_memory_available_at(root) == 0);
    put("/proc/meminfo", "MemTotal:       4000 kB\nMemAvailable:   1000 kB\n");
    assert_true(host_memory_available_at(root) == 1000 * 1024);
    assert_true(host_memory_total_at(root) == 4000 * 1024);
}

static void a_version_2_quota_of_any_parent_counts(void **state)
{
    (void)state;
    wipe();
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(host_cpus_at(root, 8), 8);
    put("/sys/fs/cgroup/a/cpu.max", "350000 100000\n");
    assert_int_equal(host_cpus_at(root, 8), 3);
    put("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    assert_int_equal(host_cpus_at(root, 8), 1);
}

static void a_container_sees_its_group_at_the_mount(void **state)
{
    (void)state;
    wipe();
    put("/proc/self/cgroup", "0::/outside/of/here\n");
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    put("/sys/fs/cgroup/memory.max", "1000000\n");
    assert_int_equal(host_cpus_at(root, 8), 2);
    assert_true(host_memory_total_at(root) == 1000000);
}

static void a_version_1_quota_counts(void **state)
{
    (void)state;
    wipe();
    put("/proc/self/cgroup", "12:cpuset:/\n4:cpu,cpuacct:/j\n3:memory:/j\n");
    put("/sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/j/cpu.cfs_period_us", "100000\n");
    assert_int_equal(host_cpus_at(root, 8), 8);
    put("/sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(host_cpus_at(root, 8), 4);
    assert_int_equal(host_cpus_at(root, 2), 2);
}

static void memory_is_what_the_tightest_limit_leaves(void **state)
{
    (void)state;
    wipe();
    put("/proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n");
    put("/proc/self/cgroup", "0::/a\n");
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    put("/sys/fs/cgroup/a/memory.current", "500000000\n");
    assert_true(host_memory_available_at(root) == 3000000ull * 1024);
    put("/sys/fs/cgroup/a/memory.max", "800000000\n");
    assert_true(host_memory_available_at(root) == 300000000);
    put("/sys/fs/cgroup/a/memory.stat",
        "anon 1\ninactive_file 100000000\nactive_file 7\n");
    assert_true(host_memory_available_at(root) == 400000000);
    assert_true(host_memory_total_at(root) == 800000000);
    put("/sys/fs/cgroup/a/memory.current", "900000000\n");
    put("/sys/fs/cgroup/a/memory.stat", "inactive_file 0\n");
    assert_true(host_memory_available_at(root) == 0);
}

static void a_version_1_memory_limit_counts(void **state)
{
    (void)state;
    wipe();
    put("/proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n");
    put("/proc/self/cgroup", "3:memory:/j\n");
    put("/sys/fs/cgroup/memory/j/memory.limit_in_bytes",
        "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/j/memory.usage_in_bytes", "100\n");
    assert_true(host_memory_available_at(root) == 3000000ull * 1024);
    put("/sys/fs/cgroup/memory/j/memory.limit_in_bytes", "1000\n");
    assert_true(host_memory_available_at(root) == 900);
}

static void garbage_in_these_files_means_no_limit(void **state)
{
    (void)state;
    wipe();
    put("/proc/self/cgroup", "nonsense\n\n::\n0:\n");
    put("/proc/meminfo", "MemAvailable: many\n");
    put("/sys/fs/cgroup/cpu.max", "x\n");
    put("/sys/fs/cgroup/memory.max", "-5\n");
    assert_int_equal(host_cpus_at(root, 3), 3);
    assert_true(host_memory_available_at(root) == 0);
}

static void this_machine_has_cpus_and_memory(void **state)
{
    (void)state;
    assert_in_range(host_cpus(), 1, sysconf(_SC_NPROCESSORS_CONF));
    assert_true(host_memory_available() > 0);
    assert_true(host_memory_total() >= host_memory_available());
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(root) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    wipe();
    return rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_cgroup_the_affinity_decides),
        cmocka_unit_test(a_version_2_quota_of_any_parent_counts),
        cmocka_unit_test(a_container_sees_its_group_at_the_mount),
        cmocka_unit_test(a_version_1_quota_counts),
        cmocka_unit_test(memory_is_what_the_tightest_limit_leaves),
        cmocka_unit_test(a_version_1_memory_limit_counts),
        cmocka_unit_test(garbage_in_these_files_means_no_limit),
        cmocka_unit_test(this_machine_has_cpus_and_memory),
    };
    return cmocka_run_group_tests_name("base/host", tests, set_up, tear_down);
}
