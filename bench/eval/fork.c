#include "bench/eval/fork.h"

#include <string.h>

static void copy_list(struct table *t, struct kv_list *to,
                      const struct kv_list *from)
{
    struct pool *pool = t->pool;
    for (uint32_t u = 0; u < from->n_units; u++) {
        unit_id unit = pool_take(pool, u > 0 ? to->unit[u - 1] : POOL_NO_UNIT);
        memcpy(pool_data(pool, unit), pool_data(pool, from->unit[u]),
               pool_layout(pool)->data_bytes);
        *pool_meta(pool, unit) = *pool_meta(pool, from->unit[u]);
        to->unit[u] = unit;
    }
    to->n_units = from->n_units;
    to->len = from->len;
}

enum err fork_deep(struct table **out, const struct table *src,
                   uint32_t max_tokens)
{
    struct table *t = NULL;
    uint64_t need = table_n_units(src);
    enum err rc =
        table_new(&t, src->pool, src->n_layers, src->n_kv_heads, max_tokens);
    if (rc != OK)
        return rc;
    if (need > UINT32_MAX || pool_reserve(src->pool, (uint32_t)need) != OK) {
        table_free(t);
        return ERR_BUDGET;
    }
    for (uint32_t i = 0; i < src->n_layers * src->n_kv_heads; i++)
        copy_list(t, &t->list[i], &src->list[i]);
    *out = t;
    return OK;
}

/* table_fork() takes entries by their number in a list that nothing was
 * evicted from; asked for all, it shares all of any list. */
enum err fork_shared(struct table **out, const struct table *src,
                     uint32_t max_tokens)
{
    return table_fork(out, src, max_tokens, max_tokens);
}
