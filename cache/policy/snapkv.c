/* SnapKV (arXiv 2404.14469): what the last W queries attend to, smoothed over
 * neighbours. PyramidKV (arXiv 2406.02069) gives lower layers more of it,
 * AdaKV (arXiv 2407.11550) shares it over the heads of a layer by rank. Window
 * and pooling are those of the authors' LongBench runs; one entry a KV head,
 * so attention is averaged over the group before pooling. */
#include "cache/policy/policy_internal.h"

enum { WINDOW = 32, POOL = 7, SLOPE = 20 };

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    uint32_t W = policy_window(v, p);
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        uint32_t n = policy_prefix(v, l, W);
        float *mean = arena_array(a, n, sizeof(*mean));
        if (!mean)
            return ERR_NOMEM;
        policy_window_sum(v, l, W, n, mean);
        for (uint32_t e = 0; e < n && W > 0; e++)
            mean[e] /= (float)(W * v->group);
        policy_pool(p, mean, n, out + l->first);
        policy_fill_rest(out + l->first, n, l->n);
    }
    return OK;
}

/* The line from `hi` at the first layer to `lo` at the last, beside the
 * window; their mean is B - W. */
struct pyramid {
    uint32_t hi, lo, window;
    uint32_t last; /* index of the last layer; 0: every layer gets B */
};

static struct pyramid pyramid_of(const struct policy_view *v,
                                 const struct policy_params *p)
{
    uint32_t n = 0, W = policy_window(v, p), base = p->n_entries - W;
    struct pyramid y = {.window = W};
    for (uint32_t i = 0; i < v->n_layers * v->n_kv_heads; i++)
        n = v->list[i].n > n ? v->list[i].n : n;
    if (n < p->n_entries || n < 2 * base || v->n_layers < 2)
        return y;
    y.last = v->n_layers - 1;
    y.lo = base / p->slope;
    y.hi = 2 * base - y.lo;
    if (y.hi >= n - W) {
        y.hi = n - W;
        y.lo = 2 * base - y.hi;
    }
    if (y.lo + W == 0)
        y.last = 0; /* no layer may stay empty */
    return y;
}

/* The authors round the step between layers down, so the last layers get more
 * than the line says and all together more than the budget. What is too much
 * is taken from the last layers first, none below the line. */
static uint32_t capacity(const struct policy_view *v,
                         const struct policy_params *p, uint32_t layer)
{
    struct pyramid y = pyramid_of(v, p);
    if (y.last == 0)
        return p->n_entries;
    uint64_t step = (y.hi - y.lo) / y.last, n_layers = (uint64_t)y.last + 1;
    uint64_t excess = n_layers * y.hi - step * n_layers * y.last / 2 -
                      n_layers * ((uint64_t)y.hi + y.lo) / 2;
    uint64_t k = y.last, drop, give;
    for (;; k--) {
        /* The line falls by `drop`, rounded up, from the first layer to k. */
        drop = (k * (y.hi - y.lo) + y.last - 1) / y.last;
        give = drop - k * step < excess ? drop - k * step : excess;
        if (k == layer)
            break;
        excess -= give;
    }
    return (uint32_t)(y.hi - k * step - give) + y.window;
}

/* What the three have in common. */
#define LOOKS_THROUGH_A_WINDOW                                                 \
    .needs = POLICY_WINDOW, .at_decode = true, .score = score,                 \
    .recent = policy_window, .defaults.n_sinks = POLICY_SINKS,                 \
    .defaults.n_recent = POLICY_RECENT, .defaults.n_window = WINDOW,           \
    .defaults.n_pool = POOL

const struct policy policy_snapkv = {.name = "snapkv", LOOKS_THROUGH_A_WINDOW};

const struct policy policy_pyramidkv = {.name = "pyramidkv",
                                        LOOKS_THROUGH_A_WINDOW,
                                        .capacity = capacity,
                                        .defaults.slope = SLOPE};

const struct policy policy_adakv = {.name = "adakv",
                                    LOOKS_THROUGH_A_WINDOW,
                                    .defaults.spread = POLICY_OVER_HEADS,
                                    .defaults.floor_share = 0.2f};
