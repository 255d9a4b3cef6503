/* The pure form of dbtrimkv keeps what the server's eviction pass keeps. */
#include "tests/unit/cache/policy/view_check.h"

#include "base/workers.h"
#include "cache/select.h"

enum { LAYERS = 3, HEADS = 2, LISTS = LAYERS * HEADS, MAX_LEN = 100 };

struct cache {
    struct pool *pool;
    struct table *table;
    struct made made; /* the same entries as a view */
};

/* Lists of different lengths, log_beta of few values: many ties, also across
 * lists. */
static void cache_open(struct cache *c, uint64_t seed)
{
    struct kv_layout y;
    struct made *m = &c->made;
    kv_layout_init(&y, KV_F16, 8);
    assert_int_equal(
        pool_new(&c->pool, &y, 100 * LISTS * pool_unit_bytes(&y), NULL), OK);
    assert_int_equal(table_new(&c->table, c->pool, LAYERS, HEADS, MAX_LEN), OK);
    assert_int_equal(
        pool_reserve(c->pool, (uint32_t)table_units_needed(c->table, MAX_LEN)),
        OK);
    table_append(c->table, MAX_LEN, 0, 0);
    made_init(m, LAYERS, HEADS, MAX_LEN, seed);
    m->view.n_entries = 0;
    for (uint32_t i = 0; i < LISTS; i++) {
        float *log_beta = made_array(m, MAX_LEN, sizeof(*log_beta));
        for (uint32_t e = 0; e < MAX_LEN; e++) {
            log_beta[e] = -0.01f * (float)rng_below(&m->rng, 4 + 3 * seed);
            pool_meta(c->pool, c->table->list[i].unit[e / KV_UNIT])
                ->log_beta[e % KV_UNIT] = log_beta[e];
        }
        m->list[i].log_beta = log_beta;
        m->list[i].n = MAX_LEN - (uint32_t)rng_below(&m->rng, 60);
        m->list[i].first = m->view.n_entries;
        m->view.n_entries += m->list[i].n;
        c->table->list[i].len = m->list[i].n;
    }
}

static void cache_close(struct cache *c)
{
    for (uint32_t i = 0; i < LISTS; i++)
        c->table->list[i].len = MAX_LEN;
    table_free(c->table);
    pool_free(c->pool);
    made_fini(&c->made);
}

static const uint16_t *run_pass(const struct cache *c, struct select *s,
                                struct workers *w, uint32_t B,
                                uint32_t min_head)
{
    const struct select_session session = {
        .table = c->table, .n_seen = MAX_LEN, .cap = UINT64_MAX};
    const struct select_tenant tenant = {.cap = UINT64_MAX};
    uint64_t all = c->made.view.n_entries, want = (uint64_t)LISTS * B;
    const struct select_input in = {.pool = c->pool,
                                    .session = &session,
                                    .tenant = &tenant,
                                    .n_sessions = 1,
                                    .n_tenants = 1,
                                    .k = all > want ? all - want : 0,
                                    .min_head = min_head,
                                    .n_sinks = 4,
                                    .n_recent = 16,
                                    .n_ahead = 1};
    assert_int_equal(select_begin(s, &in, NULL), OK);
    assert_int_equal(select_step(s, w, UINT64_MAX), SELECT_DONE);
    return select_gone(s);
}

static void the_pure_form_keeps_what_the_pass_keeps(void **state)
{
    (void)state;
    const struct policy *policy = policy_find("dbtrimkv");
    const struct select_size size = {.n_units = 100 * LISTS,
                                     .max_sessions = 1,
                                     .max_tenants = 1,
                                     .max_lists = LISTS,
                                     .max_undecided = 1000,
                                     .n_threads = 1};
    struct select *s = NULL;
    struct workers *w = NULL;
    assert_int_equal(select_new(&s, &size), OK);
    assert_int_equal(workers_new(&w, 1, NULL), OK);
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct cache c;
        uint8_t keep[LISTS * MAX_LEN];
        cache_open(&c, seed);
        struct policy_params p = policy->defaults;
        p.n_entries = 24 + (uint32_t)seed;
        const uint16_t *gone = run_pass(&c, s, w, p.n_entries, p.min_head);
        assert_int_equal(policy_keep(policy, &c.made.view, &p, NULL, keep), OK);
        for (uint32_t i = 0; i < LISTS; i++)
            for (uint32_t e = 0; e < c.made.list[i].n; e++) {
                unit_id u = c.table->list[i].unit[e / KV_UNIT];
                bool leaves = gone[u] >> e % KV_UNIT & 1;
                if (keep[c.made.list[i].first + e] == leaves)
                    fail_msg("seed %lu list %u entry %u of %u", seed, i, e,
                             c.made.list[i].n);
            }
        cache_close(&c);
    }
    select_free(s);
    workers_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pure_form_keeps_what_the_pass_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
