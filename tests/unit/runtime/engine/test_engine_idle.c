/* What conversations at rest pay, in an engine: the work of others since. How
 * a pass ranks by it is tested with test_evict.c. */
#include "toy.h"

static void dear(struct engine_options *o)
{
    toy_forgetful(o);
    o->forget.idle_decay = 1000; /* a token of others takes 1 off a score */
}

static struct gen_status chat(struct engine *e, uint64_t seed, uint32_t n,
                              uint32_t max_tokens)
{
    int32_t p[300];
    toy_prompt(p, n, seed);
    struct gen_request q = toy_request(p, n, max_tokens);
    q.params.ignore_eos = true;
    q.forget = toy_rules(FORGET_DBTRIMKV);
    return toy_complete(e, &q);
}

/* The last token of an answer is never processed. */
static void the_clock_counts_the_tokens_of_steps(void **state)
{
    (void)state;
    struct toy_bench b;
    uint64_t want = 0;
    toy_set_up(&b, 1024, toy_forgetful);
    for (uint32_t i = 0; i < 6; i++) {
        /* Each text is there twice: the second time all but its end. */
        struct gen_status s = chat(b.e, i / 2, 100 + 50 * (i / 2), 10 + i);
        assert_true(i % 2 == 0 || s.cached_tokens > 90);
        want += s.prompt_tokens - s.cached_tokens + s.completion_tokens - 1;
        assert_int_equal(b.e->sessions.clock, want);
    }
    toy_tear_down(&b);
}

/* Scores of the second chat are above -300, as it is no longer than that; all
 * those of the first are below, as it has been at rest for so much longer. Were
 * both equally long at rest the second would lose entries, as the older. */
static void who_rests_for_longer_work_loses_first(void **state)
{
    (void)state;
    enum { FIRST = 200, SECOND = 300, THIRD = 60 };
    struct toy_bench b;
    toy_set_up(&b, FIRST + SECOND + THIRD, dear);
    (void)chat(b.e, 1, FIRST, 0);
    (void)chat(b.e, 2, SECOND, 0);
    struct gen_status s = chat(b.e, 3, THIRD, 40);
    assert_int_equal(s.evicted_entries, 0);
    const struct session *first = b.e->sessions.oldest, *second = first->newer;
    assert_int_equal(first->n_stored, FIRST);
    assert_true(first->n_lost > 0);
    assert_int_equal(second->n_stored, SECOND);
    assert_int_equal(second->n_lost, 0);
    toy_tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_clock_counts_the_tokens_of_steps),
        cmocka_unit_test(who_rests_for_longer_work_loses_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
