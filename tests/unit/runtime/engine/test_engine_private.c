/* Merges change what a session has for itself, and nothing that others see: an
 * exact answer goes on while a prompt that shares its beginning is cut, and
 * every byte of its entries is looked at before each of its steps. */
#include "small.h"

enum {
    SHARED = 48, /* ends in a bucket, so what is behind has hosts in it */
    OWN = 16,
    KEPT = SHARED + OWN, /* tokens of the prompt that must stay as it is */
    KEPT_UNITS = KEPT / KV_UNIT,
    SHARED_UNITS = SHARED / KV_UNIT,
    LONG_ANSWER = 64, /* more steps than the other needs */
    OTHER_PROMPT = 224,
    DATA_BYTES = 4160 /* of a unit of the model */
};

/* What attention and rankings read of one unit: keys, values, bias, metadata.
 */
struct copy {
    uint8_t data[DATA_BYTES];
    struct kv_meta meta;
};

/* The engine, and the exact session in it as it was once. The thread of the
 * engine writes it; the test reads it when nothing runs. */
struct witness {
    struct small s; /* the first, so that a step can find the rest */
    const struct table *table;
    atomic_int n_copies; /* 1: it waits */
    struct copy copy[SMALL_LISTS][KEPT_UNITS];
    int n_looks, n_changed;
    /* Lists of the other, of all its runs after its prompt, that begin with the
     * exact session's units; those of them that lost what was behind these. */
    int n_shared, n_cut;
};

static void copy_unit(struct copy *to, const struct table *t, unit_id u)
{
    memcpy(to->data, pool_data(t->pool, u), sizeof(to->data));
    to->meta = *pool_meta(t->pool, u);
}

static void copy_entries(struct witness *w)
{
    for (uint32_t i = 0; i < SMALL_LISTS; i++)
        for (uint32_t u = 0; u < KEPT_UNITS; u++)
            copy_unit(&w->copy[i][u], w->table, w->table->list[i].unit[u]);
}

static void compare_entries(struct witness *w)
{
    struct copy now;
    for (uint32_t i = 0; i < SMALL_LISTS; i++)
        for (uint32_t u = 0; u < KEPT_UNITS; u++) {
            copy_unit(&now, w->table, w->table->list[i].unit[u]);
            w->n_changed += memcmp(&now, &w->copy[i][u], sizeof(now)) != 0;
        }
    w->n_looks++;
}

static void look_at_other(struct witness *w, const struct model_run *run)
{
    for (uint32_t i = 0; i < SMALL_LISTS; i++) {
        const struct kv_list *l = &run->table->list[i];
        bool is_shared = memcmp(l->unit, w->table->list[i].unit,
                                SHARED_UNITS * sizeof(*l->unit)) == 0;
        w->n_shared += is_shared;
        w->n_cut += is_shared && l->len < OTHER_PROMPT;
    }
}

/* The exact session comes first in every batch that it is in. It waits after
 * its first token until the other was asked. */
static void step(void *self, const struct model_batch *batch)
{
    struct witness *w = self;
    const struct model_run *run = batch->runs;
    bool is_copied = atomic_load(&w->n_copies) > 0;
    if (!w->table)
        w->table = run[0].table;
    bool is_there = run[0].table == w->table;
    if (is_there && is_copied)
        compare_entries(w);
    small_step(&w->s, batch);
    for (uint32_t r = 1; is_there && r < batch->n_runs; r++)
        if (run[r].n_rows == 1)
            look_at_other(w, &run[r]);
    if (is_there && !is_copied && run[0].n_rows == 1) {
        copy_entries(w);
        atomic_store(&w->s.toy.is_held, true);
        atomic_fetch_add(&w->n_copies, 1);
    }
}

/* A way to a merge beside it. */
struct way {
    uint32_t tokens, cap;
    enum forget_fate fate;
    bool mean_ratio;
};

static void cut_beside_an_exact_answer(const struct way *way)
{
    struct witness *w = calloc(1, sizeof(*w));
    struct merge_options o = merge_options_default();
    const struct small_setting set = {.tokens = way->tokens,
                                      .n_threads = 1,
                                      .watch_columns = true,
                                      .step = step,
                                      .merge = &o};
    const struct forget_rules exact = {.policy = FORGET_EXACT};
    const struct forget_rules merge = {
        .policy = FORGET_DBTRIMKV,
        .admission = {.ranking = FORGET_RANK_RETENTION, .fate = way->fate},
        .session_tokens = way->cap};
    struct buf text = {0};
    int32_t p[SMALL_PROMPT];
    /* Keys of a drawn model are not alike. */
    o.min_cosine = 0;
    o.mean_ratio = way->mean_ratio;
    assert_non_null(w);
    small_set_up_as(&w->s, "llama-mha-64", &set);
    assert_int_equal(pool_layout(w->s.e->pool)->data_bytes, DATA_BYTES);
    small_text(p, SMALL_PROMPT, 0);
    struct gen *first = small_ask_for(&w->s, p, KEPT, LONG_ANSWER, exact);
    toy_wait_count(&w->n_copies, 1);
    struct gen *other = small_ask_other(&w->s, OTHER_PROMPT, SHARED, 6, merge);
    atomic_store(&w->s.toy.is_held, false);
    struct gen_status got = small_finish(other, &text);
    struct gen_status still = toy_finish(first, &text);
    assert_int_equal(still.completion_tokens, LONG_ANSWER);
    assert_int_equal(still.evicted_entries + still.merged_entries, 0);
    gen_release(first);
    assert_int_equal(got.cached_tokens, SHARED);
    assert_true(got.merged_entries > 50);
    assert_true(w->n_looks > SMALL_ANSWER);
    assert_int_equal(w->n_shared, (SMALL_ANSWER - 1) * SMALL_LISTS);
    assert_true(w->n_cut > SMALL_LISTS);
    assert_int_equal(w->n_changed, 0);
    buf_fini(&text);
    small_tear_down(&w->s);
    free(w);
}

/* The exact answer holds half of the pool, and the prompt, which does not fit
 * beside it, is cut between chunks. Fates that are not here have no hosts in
 * front of what leaves, so none in a beginning. */
static void a_merge_under_pressure_changes_nothing_that_is_shared(void **state)
{
    (void)state;
    static const enum forget_fate fates[] = {FORGET_MERGE, FORGET_LOOKM,
                                             FORGET_KVMERGER};
    for (int i = 0; i < 3; i++) {
        const struct way way = {.tokens = 240, .fate = fates[i]};
        cut_beside_an_exact_answer(&way);
    }
}

static void one_ratio_for_a_layer_changes_nothing_that_is_shared(void **state)
{
    (void)state;
    const struct way way = {
        .tokens = 240, .fate = FORGET_MERGE, .mean_ratio = true};
    cut_beside_an_exact_answer(&way);
}

/* Prompts that are cut to a cap are read from their first token on where they
 * must be watched. This fate has no need of that. */
static void a_cut_to_a_cap_changes_nothing_that_is_shared(void **state)
{
    (void)state;
    const struct way way = {.tokens = 2048, .cap = 100, .fate = FORGET_LOOKM};
    cut_beside_an_exact_answer(&way);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_merge_under_pressure_changes_nothing_that_is_shared),
        cmocka_unit_test(one_ratio_for_a_layer_changes_nothing_that_is_shared),
        cmocka_unit_test(a_cut_to_a_cap_changes_nothing_that_is_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
