#include "cache/pool.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { GROUP = 4, HUGE_PAGE_BYTES = 2 << 20 };

/* Four neighbouring units. A group with free units is on one of two lists:
 * that of the wholly free groups, or that of the partly free ones. */
struct group {
    uint32_t next, prev; /* NO_GROUP at the ends */
    uint32_t mask;       /* bit i: unit i of the group is free */
    uint32_t list;       /* enum which_list */
};

enum { NO_GROUP = UINT32_MAX };

enum which_list { LIST_NONE, LIST_WHOLE, LIST_PARTLY, N_LISTS };

struct pool {
    struct kv_layout layout;
    struct pool_stats stats;
    uint32_t n_groups;
    uint32_t head[N_LISTS];
    struct group *group; /* [n_groups] */
    uint32_t *refs;      /* [n_units] */
    struct kv_meta *meta;
    uint8_t *data;
    void *map; /* one mapping: data, meta, refs, group */
    size_t map_bytes;
};

uint64_t pool_unit_bytes(const struct kv_layout *layout)
{
    return layout->data_bytes + sizeof(struct kv_meta) + sizeof(uint32_t) +
           sizeof(struct group) / GROUP;
}

static enum which_list list_of(uint32_t mask)
{
    if (mask == 0)
        return LIST_NONE;
    return mask == (1u << GROUP) - 1 ? LIST_WHOLE : LIST_PARTLY;
}

static void unlink_group(struct pool *p, uint32_t i)
{
    struct group *g = &p->group[i];
    if (g->list == LIST_NONE)
        return;
    if (g->prev != NO_GROUP)
        p->group[g->prev].next = g->next;
    else
        p->head[g->list] = g->next;
    if (g->next != NO_GROUP)
        p->group[g->next].prev = g->prev;
    g->list = LIST_NONE;
}

static void set_mask(struct pool *p, uint32_t i, uint32_t mask)
{
    struct group *g = &p->group[i];
    enum which_list to = list_of(mask);
    g->mask = mask;
    if (g->list == to)
        return;
    unlink_group(p, i);
    if (to == LIST_NONE)
        return;
    g->list = to;
    g->prev = NO_GROUP;
    g->next = p->head[to];
    if (g->next != NO_GROUP)
        p->group[g->next].prev = i;
    p->head[to] = i;
}

/* Sizes stay below 2^48: the number of units fits 32 bits and a unit 16. */
static enum err map_arena(struct pool *p, struct errmsg *m)
{
    uint64_t n = p->stats.n_units;
    uint64_t bytes =
        n * (p->layout.data_bytes + sizeof(struct kv_meta) + sizeof(uint32_t)) +
        p->n_groups * sizeof(struct group) + KV_ALIGN + HUGE_PAGE_BYTES;

    p->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p->map == MAP_FAILED) {
        p->map = NULL;
        return err_set(m, ERR_NOMEM,
                       "cannot map %llu bytes of address space for the KV pool",
                       (unsigned long long)bytes);
    }
    p->map_bytes = bytes;
    uint8_t *at = p->map;
    at += -(uintptr_t)at & (HUGE_PAGE_BYTES - 1);
    p->data = at;
    p->meta = (struct kv_meta *)(at + n * p->layout.data_bytes);
    p->refs = (uint32_t *)(p->meta + n);
    p->group = (struct group *)(p->refs + n);
    /* Attention and ranking walk through scattered units: with small pages
     * each one costs a TLB miss. Where huge pages are refused nothing is
     * lost. */
    (void)madvise(at, n * (p->layout.data_bytes + sizeof(struct kv_meta)),
                  MADV_HUGEPAGE);
    return OK;
}

enum err pool_new(struct pool **out, const struct kv_layout *layout,
                  uint64_t budget_bytes, struct errmsg *m)
{
    uint64_t unit = pool_unit_bytes(layout), n = budget_bytes / unit;
    if (n == 0)
        return err_set(m, ERR_INVAL,
                       "a KV budget of %llu bytes does not hold one unit of "
                       "%llu bytes (%d entries)",
                       (unsigned long long)budget_bytes,
                       (unsigned long long)unit, KV_UNIT);
    if (n > UINT32_MAX - 1)
        return err_set(m, ERR_INVAL,
                       "a KV budget of %llu bytes is more than %u units of "
                       "%llu bytes",
                       (unsigned long long)budget_bytes, UINT32_MAX - 1,
                       (unsigned long long)unit);

    struct pool *p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(m, ERR_NOMEM, "no memory for the KV pool");
    p->layout = *layout;
    p->stats.budget_bytes = budget_bytes;
    p->stats.unit_bytes = unit;
    p->stats.n_units = (uint32_t)n;
    p->n_groups = (uint32_t)((n + GROUP - 1) / GROUP);
    enum err rc = map_arena(p, m);
    if (rc != OK) {
        free(p);
        return rc;
    }
    for (int i = 0; i < N_LISTS; i++)
        p->head[i] = NO_GROUP;
    /* From the end, so that the low addresses are handed out first and the
     * arena is touched no further than it is used. */
    for (uint32_t i = p->n_groups; i-- > 0;) {
        uint32_t left = p->stats.n_units - i * GROUP;
        uint32_t in_group = left < GROUP ? left : GROUP;
        set_mask(p, i, (1u << in_group) - 1);
    }
    *out = p;
    return OK;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    assert(p->stats.used == 0);
    munmap(p->map, p->map_bytes);
    free(p);
}

const struct kv_layout *pool_layout(const struct pool *p)
{
    return &p->layout;
}

enum err pool_reserve(struct pool *p, uint32_t n)
{
    if (n > p->stats.n_units - p->stats.used - p->stats.reserved)
        return ERR_BUDGET;
    p->stats.reserved += n;
    return OK;
}

void pool_unreserve(struct pool *p, uint32_t n)
{
    assert(n <= p->stats.reserved);
    p->stats.reserved -= n;
}

static bool is_free(const struct pool *p, unit_id u)
{
    return p->group[u / GROUP].mask >> (u % GROUP) & 1;
}

/* The neighbour of `after`, if it is free and no start of a group that other
 * lists may be growing in. */
static unit_id neighbour(const struct pool *p, unit_id after)
{
    if (after == POOL_NO_UNIT || after + 1 >= p->stats.n_units)
        return POOL_NO_UNIT;
    unit_id u = after + 1;
    if (!is_free(p, u))
        return POOL_NO_UNIT;
    if (u % GROUP == 0 && p->group[u / GROUP].list != LIST_WHOLE)
        return POOL_NO_UNIT;
    return u;
}

unit_id pool_take(struct pool *p, unit_id after)
{
    assert(p->stats.reserved > 0);
    unit_id u = neighbour(p, after);
    if (u == POOL_NO_UNIT) {
        uint32_t g = p->head[LIST_WHOLE];
        if (g == NO_GROUP)
            g = p->head[LIST_PARTLY];
        assert(g != NO_GROUP);
        u = g * GROUP + (uint32_t)__builtin_ctz(p->group[g].mask);
    }
    uint32_t g = u / GROUP;
    set_mask(p, g, p->group[g].mask & ~(1u << (u % GROUP)));
    assert(p->refs[u] == 0);
    p->refs[u] = 1;
    p->stats.reserved--;
    p->stats.used++;
    if (p->stats.used > p->stats.used_max)
        p->stats.used_max = p->stats.used;
    return u;
}

void pool_ref(struct pool *p, unit_id u)
{
    assert(u < p->stats.n_units && p->refs[u] > 0 && p->refs[u] < UINT32_MAX);
    p->refs[u]++;
}

void pool_unref(struct pool *p, unit_id u)
{
    assert(u < p->stats.n_units && p->refs[u] > 0);
    if (--p->refs[u] > 0)
        return;
    p->stats.used--;
    uint32_t g = u / GROUP;
    set_mask(p, g, p->group[g].mask | 1u << (u % GROUP));
}

uint32_t pool_refs(const struct pool *p, unit_id u)
{
    assert(u < p->stats.n_units);
    return p->refs[u];
}

void pool_private_units(const struct pool *p, uint64_t *bits)
{
    uint32_t n = p->stats.n_units;
    for (uint32_t from = 0; from < n; from += 64) {
        uint32_t end = n - from < 64 ? n : from + 64;
        uint64_t mask = 0;
        for (uint32_t u = from; u < end; u++)
            mask |= (uint64_t)(p->refs[u] == 1) << (u - from);
        bits[from / 64] = mask;
    }
}

uint8_t *pool_data(const struct pool *p, unit_id u)
{
    return p->data + (size_t)u * p->layout.data_bytes;
}

struct kv_meta *pool_meta(const struct pool *p, unit_id u)
{
    return &p->meta[u];
}

struct pool_stats pool_stats(const struct pool *p)
{
    return p->stats;
}
