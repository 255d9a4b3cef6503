/* sessions.c - what thousands of conversations at rest cost a new request: how
 * long it takes to find which of them it can go on from.
 *
 * Prints microseconds, the best and the median of some. `make bench-sessions`.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "runtime/engine/session.h"

enum { LAYERS = 30, HEADS = 3, LISTS = LAYERS * HEADS, ROUNDS = 9 };

/* `common` first tokens are the same in all; of each list `kept` entries are
 * left, sinks and newest ones. */
struct world {
    uint32_t n, tokens, kept, common;
    struct pool *pool;
    struct sessions ss;
};

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "bench: %s\n", what);
    exit(EXIT_FAILURE);
}

static void make_tokens(int32_t *out, const struct world *w, uint64_t seed)
{
    struct rng r;
    rng_seed(&r, seed);
    for (uint32_t i = 0; i < w->tokens; i++)
        out[i] = i < w->common ? (int32_t)i : (int32_t)rng_below(&r, 1 << 20);
}

/* As compaction would leave them, without moving any bytes. */
static void forget(struct world *w, struct session *s)
{
    uint32_t gone = w->tokens - w->kept;
    for (uint32_t i = 0; gone > 0 && i < LISTS; i++) {
        struct kv_list *l = &s->table->list[i];
        for (uint32_t e = 4; e < w->kept; e++)
            pool_meta(w->pool, l->unit[e / KV_UNIT])->pos[e % KV_UNIT] +=
                (int32_t)gone;
        l->in_order = false;
        l->len = w->kept;
        session_shrink(&w->ss, s, i, gone);
    }
}

static void add(struct world *w, int32_t *token, uint64_t seed)
{
    struct session *s = NULL;
    make_tokens(token, w, seed);
    const struct session_start st = {.token = token,
                                     .n = w->tokens,
                                     .cap = w->tokens,
                                     .rules = {.policy = FORGET_DBTRIMKV}};
    must(session_new(&w->ss, &s, &st) == OK, "no memory");
    must(session_reserve(&w->ss, s, w->tokens) == OK, "no room");
    session_append(&w->ss, s, w->tokens);
    forget(w, s);
    session_rest(&w->ss, s);
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void find(const struct world *w, int32_t *token, uint32_t n_pinned)
{
    static const struct forget_rules rules = {.policy = FORGET_DBTRIMKV};
    const struct forget_options o = {
        .min_head = 20, .n_sinks = 4, .n_recent = 16};
    const struct forget_span pin = {0, n_pinned};
    const struct session_wish wish = {.token = token,
                                      .n = w->tokens,
                                      .rules = &rules,
                                      .options = &o,
                                      .pin = &pin,
                                      .n_pins = n_pinned > 0};
    int64_t us[ROUNDS];
    uint32_t n = 0;
    make_tokens(token, w, UINT64_MAX);
    for (int i = 0; i < ROUNDS; i++) {
        int64_t start = clock_us();
        n = sessions_match(&w->ss, &wish).n_tokens;
        us[i] = clock_us() - start;
    }
    qsort(us, ROUNDS, sizeof(*us), ascending);
    printf("%6u %8u %6u %8u %7u %9u %8lld %8lld\n", w->n, w->tokens, w->kept,
           w->common, n_pinned, n, (long long)us[0], (long long)us[ROUNDS / 2]);
}

static void try(uint32_t n, uint32_t tokens, uint32_t kept, uint32_t common)
{
    struct world w = {.n = n, .tokens = tokens, .kept = kept, .common = common};
    struct kv_layout l;
    struct errmsg m = {""};
    kv_layout_init(&l, KV_F16, 64);
    uint64_t units =
        (uint64_t)n * table_units_of(kept) + table_units_of(tokens);
    int32_t *token = calloc(tokens, sizeof(*token));
    must(token != NULL, "no memory");
    must(pool_new(&w.pool, &l, units * LISTS * pool_unit_bytes(&l), &m) == OK,
         m.text);
    must(sessions_init(&w.ss, w.pool, LAYERS, HEADS) == OK, "no memory");
    for (uint32_t i = 0; i < n; i++)
        add(&w, token, i);
    find(&w, token, 0);
    if (common > 0)
        find(&w, token, common / 4);
    sessions_fini(&w.ss);
    pool_free(w.pool);
    free(token);
}

int main(void)
{
    puts(
        "at rest   tokens   kept   common  pinned   matched  best us   median");
    try(1000, 300, 300, 0);
    try(1000, 300, 300, 200);
    try(1000, 300, 150, 200);
    try(2000, 300, 24, 200);
    try(4000, 300, 24, 0);
    return EXIT_SUCCESS;
}
