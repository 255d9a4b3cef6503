#include "cache/select_internal.h"

#include <string.h>

void select_add_chunks(struct select *s)
{
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        struct chunk *c = &s->chunk[i];
        struct session_node *n = &s->session[c->session];
        if (n->node.done)
            continue;
        n->gone += c->gone;
        n->held -= c->gone;
        n->tenant->held -= c->gone;
        s->counts.gone += c->gone;
        n->node.left += c->left;
        n->node.min = c->min < n->node.min ? c->min : n->node.min;
        n->node.max = c->max > n->node.max ? c->max : n->node.max;
    }
}

/* Of a limit that is reached with `taken` entries at the end of bucket b. */
static struct cut cut_in(uint32_t b, uint64_t taken, uint64_t allow)
{
    if (taken == allow)
        return (struct cut){b + 1, true};
    return (struct cut){b, false};
}

/* taken[b] is how many would go if all up to bucket b that may went. */
static struct cut cut_of(const uint64_t *taken, uint64_t allow)
{
    if (allow == 0)
        return (struct cut){0, true};
    for (uint32_t b = 0; b < N_BUCKETS; b++)
        if (taken[b] >= allow)
            return cut_in(b, taken[b], allow);
    return (struct cut){N_BUCKETS, true};
}

static void add_seen(struct node *to, const struct node *from)
{
    to->left += from->left;
    to->min = from->min < to->min ? from->min : to->min;
    to->max = from->max > to->max ? from->max : to->max;
}

/* Sums up the histogram of a session and adds what it can give to `to`. */
static void sum_session(struct session_node *n)
{
    uint64_t *to = n->tenant->taken, allow = n->node.allow;
    uint32_t sum = 0, b = 0;
    while (b < N_BUCKETS && sum < allow)
        n->hist[b] = sum += n->hist[b], b++;
    if (sum < allow)
        n->node.cut = (struct cut){N_BUCKETS, true};
    else
        n->node.cut = b > 0 ? cut_in(b - 1, sum, allow) : (struct cut){0, true};
    for (; b < N_BUCKETS; b++)
        n->hist[b] = sum; /* all that matters: the limit is reached */
    if (n->node.closed)
        return;
    for (b = 0; b < N_BUCKETS; b++)
        to[b] += n->hist[b] < allow ? n->hist[b] : allow;
    add_seen(&n->tenant->node, &n->node);
}

static void sum_tenant(struct select *s, struct tenant_node *t)
{
    t->node.cut = cut_of(t->taken, t->node.allow);
    if (t->node.closed)
        return;
    uint64_t allow = t->node.allow;
    for (uint32_t b = 0; b < N_BUCKETS; b++)
        s->root_taken[b] += t->taken[b] < allow ? t->taken[b] : allow;
    add_seen(&s->root, &t->node);
}

void select_cut_range(const struct cut *c, uint32_t shift, uint64_t *lo,
                      uint64_t *hi)
{
    uint64_t end = *hi + 1;
    *lo += (uint64_t)c->bucket << shift;
    /* Where a limit is not reached in a range that ends at a guess, buckets
     * may reach past it; what lies there is not settled by this cut. */
    if (*lo > end)
        *lo = end;
    if (c->empty)
        *hi = *lo - 1; /* wraps at 0, which hi + 1 takes back */
    else if ((*hi - *lo) >> shift > 0)
        *hi = *lo + ((uint64_t)1 << shift) - 1;
}

/* The range of a cut, narrowed to what was seen in it. */
static void set_range(struct node *n)
{
    select_cut_range(&n->cut, n->shift, &n->lo, &n->hi);
    n->shift = 0;
    if (n->cut.empty)
        return;
    n->lo = n->lo < n->min ? n->min : n->lo;
    n->hi = n->hi > n->max ? n->max : n->hi;
    n->shift = select_shift(n->hi - n->lo);
}

/* A node that reaches its limit below its parent's cut is on its own from
 * here; the others share the parent's range. */
static void settle_node(struct node *n, const struct node *parent)
{
    if (n->cut.bucket < parent->cut.bucket)
        n->closed = true;
    if (!n->closed)
        n->cut = parent->cut;
}

/* And then: `below` entries lie under its cut, and are settled. */
static void settle_range(struct node *n, const struct node *parent,
                         uint64_t below)
{
    n->allow -= below < n->allow ? below : n->allow;
    if (n->closed) {
        set_range(n);
        return;
    }
    n->lo = parent->lo;
    n->hi = parent->hi;
    n->shift = parent->shift;
}

static void settle_session(struct session_node *n)
{
    struct node *me = &n->node, *up = &n->tenant->node;
    n->old_lo = me->lo;
    n->old_hi = me->hi;
    n->old_shift = me->shift;
    settle_node(me, up);
    uint32_t b = me->cut.bucket;
    settle_range(me, up, b > 0 ? n->hist[b - 1] : 0);
}

static void settle_tenant(struct select *s, struct tenant_node *t)
{
    struct node *me = &t->node;
    settle_node(me, &s->root);
    uint32_t b = me->cut.bucket;
    settle_range(me, &s->root, b > 0 ? t->taken[b - 1] : 0);
}

static void settle_root(struct select *s)
{
    struct node *me = &s->root;
    me->cut = cut_of(s->root_taken, me->allow);
    uint32_t b = me->cut.bucket;
    uint64_t below = b > 0 ? s->root_taken[b - 1] : 0;
    me->allow -= below < me->allow ? below : me->allow;
    set_range(me);
}

static void forget_seen(struct node *n)
{
    n->left = 0;
    n->min = UINT64_MAX;
    n->max = 0;
}

bool select_cut_all(struct select *s)
{
    bool ties = true;
    select_add_chunks(s);
    memset(s->root_taken, 0, N_BUCKETS * sizeof(*s->root_taken));
    for (uint32_t i = 0; i < s->in->n_tenants; i++)
        memset(s->tenant[i].taken, 0, N_BUCKETS * sizeof(*s->taken));
    for (uint32_t i = 0; i < s->in->n_sessions; i++) {
        struct session_node *n = &s->session[i];
        if (n->node.left == 0)
            n->node.done = true;
        if (!n->node.done)
            sum_session(n);
    }
    for (uint32_t i = 0; i < s->in->n_tenants; i++)
        sum_tenant(s, &s->tenant[i]);
    settle_root(s);
    for (uint32_t i = 0; i < s->in->n_tenants; i++)
        settle_tenant(s, &s->tenant[i]);
    for (uint32_t i = 0; i < s->in->n_sessions; i++) {
        struct session_node *n = &s->session[i];
        if (!n->node.done) {
            settle_session(n);
            memset(n->hist, 0, N_BUCKETS * sizeof(*n->hist));
            ties = ties && (n->node.cut.empty || n->node.lo == n->node.hi);
        }
        forget_seen(&n->node);
    }
    for (uint32_t i = 0; i < s->in->n_tenants; i++)
        forget_seen(&s->tenant[i].node);
    forget_seen(&s->root);
    return ties;
}
