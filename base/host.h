/* host.h - what the machine, and the container we may run in, give us.
 *
 * Reads affinity, /proc and the cgroup files (version 2 and 1). Whatever
 * cannot be read is taken as "no limit".
 *
 * Threads: any; nothing is kept.
 */
#ifndef BASE_HOST_H
#define BASE_HOST_H

#include <stdint.h>

/* CPUs that may run us: those of the affinity mask, and not more than the
 * cgroup's quota gives in whole CPUs (a pool of more threads would be stopped
 * in the middle of its work). At least 1. */
int host_cpus(void);

/* Bytes that can be had now: MemAvailable, and not more than what the
 * cgroup's limit leaves. 0 where nothing is known. */
uint64_t host_memory_available(void);

/* Bytes the process could ever have: MemTotal and the cgroup's limit. 0 where
 * nothing is known. */
uint64_t host_memory_total(void);

/* The same from files under `root` instead of "/", with an affinity of n_cpus:
 * for tests. */
int host_cpus_at(const char *root, int n_cpus);
uint64_t host_memory_available_at(const char *root);
uint64_t host_memory_total_at(const char *root);

#endif
