#include "runtime/kernels/ops.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

#include "runtime/kernels/avx2.h"
#include "runtime/kernels/avx512.h"

/* The state components that the OS saves and restores (XCR0). */
static uint32_t os_saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    (void)high;
    return low;
}

static bool has_avx2_fma_f16c(void)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28;
    const uint32_t f16c = 1u << 29, all = fma | osxsave | avx | f16c;
    const uint32_t avx2 = 1u << 5, xmm_and_ymm = 6;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & all) != all)
        return false;
    if ((os_saved_state() & xmm_and_ymm) != xmm_and_ymm)
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & avx2) != 0;
}

static bool has_avx512_vnni(void)
{
    const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    const uint32_t all = f | dq | bw | vl, vnni = 1u << 11;
    const uint32_t masks_and_zmm = 0xe0;
    uint32_t a, b, c, d;
    return has_avx2_fma_f16c() &&
           (os_saved_state() & masks_and_zmm) == masks_and_zmm &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & all) == all &&
           (c & vnni) != 0;
}

const struct ops *ops_avx2(void)
{
    return has_avx2_fma_f16c() ? &avx2_ops : NULL;
}

const struct ops *ops_avx512(void)
{
    return has_avx512_vnni() ? &avx512_ops : NULL;
}
#else
const struct ops *ops_avx2(void)
{
    return NULL;
}

const struct ops *ops_avx512(void)
{
    return NULL;
}
#endif

/* Slowest first. */
enum { TABLES = 3 };
static void tables(const struct ops *t[TABLES])
{
    t[0] = &ops_reference;
    t[1] = ops_avx2();
    t[2] = ops_avx512();
}

const struct ops *ops_best(void)
{
    const struct ops *t[TABLES];
    tables(t);
    int i = TABLES - 1;
    while (t[i] == NULL)
        i--;
    return t[i];
}

const struct ops *ops_find(const char *name)
{
    const struct ops *t[TABLES];
    tables(t);
    for (int i = 0; i < TABLES; i++)
        if (t[i] != NULL && strcmp(name, t[i]->name) == 0)
            return t[i];
    return NULL;
}
