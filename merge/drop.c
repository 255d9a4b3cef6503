/* What leaves is forgotten: eviction without merging. */
#include "merge/fate_internal.h"

static size_t scratch_bytes(uint32_t n, uint32_t head_dim)
{
    (void)n;
    (void)head_dim;
    return 0;
}

static void run(const struct fate_list *l, const struct merge_options *o,
                struct fate_result *out, void *scratch)
{
    (void)o;
    (void)scratch;
    fate_count_leaving(l, &out->counts);
}

const struct fate fate_drop = {.name = "drop",
                               .by_bucket = true,
                               .scratch_bytes = scratch_bytes,
                               .run = run};
