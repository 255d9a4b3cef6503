/* Histories that are edited in the middle: what that costs others when the
 * pool is full. */
#include "toy.h"

enum { POOL = 512, LONG = 400, OTHER = 260, EDIT = 320 };

static struct gen_status ask(struct engine *e, const int32_t *p, uint32_t n)
{
    struct gen_request q = toy_request(p, n, 0);
    q.forget = toy_rules(FORGET_DBTRIMKV);
    return toy_complete(e, &q);
}

/* The session at rest that begins with this token; at most one does. */
static const struct session *find(const struct engine *e, int32_t first)
{
    const struct session *found = NULL;
    for (const struct session *s = e->sessions.rest.first; s; s = s->next)
        if (s->token[0] == first) {
            assert_null(found);
            found = s;
        }
    assert_non_null(found);
    return found;
}

static void fill(struct toy_bench *b, int32_t *chat, int32_t *other)
{
    toy_prompt(chat, LONG, 1);
    toy_prompt(other, OTHER, 2);
    chat[0] = 1;
    other[0] = 2;
    (void)ask(b->e, other, OTHER);
    (void)ask(b->e, chat, LONG);
    assert_true(find(b->e, 1)->n_lost > 0);
    assert_true(find(b->e, 2)->n_lost > 0);
}

/* The room for what is kept of the edited chat is the room that it had. */
static void an_edit_takes_nothing_from_others(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t chat[LONG], other[OTHER];
    toy_set_up(&b, POOL, toy_forgetful);
    fill(&b, chat, other);
    uint64_t had = table_n_entries(find(b.e, 2)->table);
    uint64_t below = table_n_entries_below(find(b.e, 1)->table, EDIT);
    chat[EDIT] = (chat[EDIT] + 1) % TOY_END;
    struct gen_status s = ask(b.e, chat, EDIT + 8);
    assert_int_equal(s.cached_tokens, EDIT);
    assert_int_equal(s.retained_entries, below + 8 * TOY_LISTS);
    assert_int_equal(table_n_entries(find(b.e, 2)->table), had);
    toy_check_stats(b.e);
    toy_tear_down(&b);
}

/* With room for both, the old branch can be returned to. */
static void both_branches_stay_where_there_is_room(void **state)
{
    (void)state;
    enum { LATE = LONG - 3 };
    struct toy_bench b;
    int32_t chat[LONG];
    struct gen_request q;
    toy_set_up(&b, 2048, toy_forgetful);
    toy_prompt(chat, LONG, 1);
    q = toy_request(chat, LONG, 0);
    q.forget = toy_rules(FORGET_DBTRIMKV);
    /* A cap, so that something is lost. */
    q.forget.session_tokens = 300;
    struct gen *g = toy_submit(b.e, &q);
    (void)toy_wait(g, GEN_DONE);
    gen_release(g);
    for (int turn = 0; turn < 2; turn++) {
        chat[LATE] = (chat[LATE] + 1) % TOY_END;
        q = toy_request(chat, LATE + 1, 0);
        q.forget = toy_rules(FORGET_DBTRIMKV);
        q.forget.session_tokens = 300;
        g = toy_submit(b.e, &q);
        struct gen_status s = toy_wait(g, GEN_DONE);
        gen_release(g);
        assert_int_equal(s.cached_tokens, LATE);
        toy_wait_idle(b.e);
        assert_int_equal(b.e->sessions.rest.n, 2 + turn);
    }
    toy_tear_down(&b);
}

/* Another chat with the same first words does not end the one it shares them
 * with. */
static void a_short_beginning_ends_no_long_chat(void **state)
{
    (void)state;
    enum { COMMON = 150 };
    struct toy_bench b;
    int32_t chat[LONG], other[OTHER];
    toy_set_up(&b, POOL, toy_forgetful);
    fill(&b, chat, other);
    int32_t third[COMMON + 20];
    memcpy(third, chat, sizeof(third));
    third[COMMON] = (third[COMMON] + 1) % TOY_END;
    (void)ask(b.e, third, COMMON + 20);
    uint32_t n = 0;
    for (const struct session *s = b.e->sessions.rest.first; s; s = s->next)
        n += s->n_stored == LONG;
    assert_int_equal(n, 1);
    toy_tear_down(&b);
}

/* Going back, again and again, in sessions that share units with others. */
static void books_are_right_after_random_edits(void **state)
{
    (void)state;
    struct rng r;
    uint32_t n_back = 0;
    rng_seed(&r, 6);
    for (int round = 0; round < 12; round++) {
        struct toy_bench b;
        int32_t chat[LONG];
        toy_set_up(&b, 160 + 32 * (uint32_t)rng_below(&r, 10), toy_forgetful);
        toy_prompt(chat, LONG, (uint64_t)round);
        for (int turn = 0; turn < 40; turn++) {
            uint32_t n = 60 + (uint32_t)rng_below(&r, LONG - 60);
            if (rng_below(&r, 2))
                chat[n - 1 - rng_below(&r, 30)] = (int32_t)rng_below(&r, 26);
            struct gen_status s = ask(b.e, chat, n);
            n_back += s.cached_tokens > 0 && s.evicted_entries > 0;
            assert_int_equal(s.retained_entries + s.evicted_entries,
                             s.full_entries);
        }
        toy_check_stats(b.e);
        toy_tear_down(&b);
    }
    assert_true(n_back > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_edit_takes_nothing_from_others),
        cmocka_unit_test(both_branches_stay_where_there_is_room),
        cmocka_unit_test(a_short_beginning_ends_no_long_chat),
        cmocka_unit_test(books_are_right_after_random_edits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
