#include "bench/eval/fork.h"

#include "cache/entry.h"

static void copy_list(struct table *t, struct kv_list *to,
                      const struct kv_list *from)
{
    for (uint32_t u = 0; u < from->n_units; u++) {
        to->unit[u] =
            pool_take(t->pool, u > 0 ? to->unit[u - 1] : POOL_NO_UNIT);
        entry_copy_unit(t->pool, to->unit[u], from->unit[u]);
    }
    to->n_units = from->n_units;
    to->len = from->len;
    to->in_order = from->in_order;
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

/* Asked for all positions table_fork() shares all units, and takes none. */
enum err fork_shared(struct table **out, const struct table *src,
                     uint32_t max_tokens)
{
    return table_fork(out, src, UINT32_MAX, max_tokens);
}
