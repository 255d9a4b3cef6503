#include "runtime/kernels/ops.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

#include "runtime/kernels/avx2.h"

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

const struct ops *ops_avx2(void)
{
    return has_avx2_fma_f16c() ? &avx2_ops : NULL;
}
#else
const struct ops *ops_avx2(void)
{
    return NULL;
}
#endif

const struct ops *ops_best(void)
{
    const struct ops *o = ops_avx2();
    return o != NULL ? o : &ops_reference;
}

const struct ops *ops_find(const char *name)
{
    const struct ops *avx2 = ops_avx2();
    if (avx2 != NULL && strcmp(name, avx2->name) == 0)
        return avx2;
    return strcmp(name, ops_reference.name) == 0 ? &ops_reference : NULL;
}
