/* The shared side of a request: callbacks, reading from another thread, and
 * letting go at any moment. */
#include "toy.h"

struct listener {
    atomic_int n_calls;
    atomic_bool is_gone; /* the request was released: no call may come */
    atomic_int n_late;
};

static void note(void *user)
{
    struct listener *l = user;
    if (atomic_load(&l->is_gone))
        atomic_fetch_add(&l->n_late, 1);
    atomic_fetch_add(&l->n_calls, 1);
}

static void listen_to(struct gen_request *r, struct listener *l)
{
    r->notify = note;
    r->user = l;
}

static void every_change_is_announced(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[20];
    toy_set_up(&b, 1024, NULL);
    toy_prompt(p, 20, 1);
    struct listener l = {0};
    struct gen_request r = toy_request(p, 20, 30);
    r.params.ignore_eos = true;
    listen_to(&r, &l);
    struct gen *g = toy_submit(b.e, &r);
    toy_wait(g, GEN_DONE);
    /* Started, thirty tokens. */
    toy_wait_count(&l.n_calls, 31);
    gen_release(g);
    toy_tear_down(&b);
}

static void long_queue(struct engine_options *o)
{
    o->max_queue = 1000;
}

static void nobody_is_called_after_letting_go(void **state)
{
    (void)state;
    struct toy_bench b;
    enum { N = 300 };
    static struct listener l[N];
    int32_t p[20];
    struct rng rng;
    rng_seed(&rng, 1);
    memset(l, 0, sizeof(l));
    toy_set_up(&b, 1024, long_queue);
    for (int i = 0; i < N; i++) {
        toy_prompt(p, 20, (uint64_t)i);
        struct gen_request r = toy_request(p, 20, 400);
        r.params.ignore_eos = true;
        listen_to(&r, &l[i]);
        struct gen *g = toy_submit(b.e, &r);
        toy_sleep((unsigned)rng_below(&rng, 1500));
        gen_release(g);
        atomic_store(&l[i].is_gone, true);
    }
    toy_wait_idle(b.e);
    for (int i = 0; i < N; i++)
        assert_int_equal(atomic_load(&l[i].n_late), 0);
    toy_tear_down(&b);
}

/* The reader takes what is there now and then; pieces join to the answer, and
 * after GEN_DONE there is no more. */
static void a_slow_reader_gets_all_of_it(void **state)
{
    (void)state;
    enum { TOKENS = 300, READS = 4 };
    struct toy_bench b;
    int32_t p[20];
    toy_set_up(&b, 1024, NULL);
    toy_prompt(p, 20, 1);
    struct gen_request r = toy_request(p, 20, TOKENS);
    r.params.ignore_eos = true;
    atomic_store(&b.toy.is_held, true);
    struct gen *g = toy_submit(b.e, &r);
    struct toy_answer a;
    toy_answer(&a, p, 20, TOKENS, true);
    struct buf text = {0};
    struct gen_status s;
    for (int i = 0; i < READS; i++) {
        size_t len = text.len;
        toy_hold_after(&b.toy, TOKENS / (READS + 1));
        assert_int_equal(gen_read(g, &text, &s), OK);
        assert_int_equal(s.state, GEN_DECODE);
        assert_true(text.len > len);
    }
    atomic_store(&b.toy.is_held, false);
    s = toy_finish(g, &text);
    assert_int_equal(s.state, GEN_DONE);
    assert_string_equal(text.data, a.text);
    size_t len = text.len;
    assert_int_equal(gen_read(g, &text, &s), OK);
    assert_int_equal(text.len, len);
    gen_release(g);
    buf_fini(&text);
    toy_tear_down(&b);
}

/* A text buffer with a limit stands for a host without memory. */
static void text_that_finds_no_room_is_not_lost(void **state)
{
    (void)state;
    struct toy_bench b;
    int32_t p[20];
    toy_set_up(&b, 1024, NULL);
    toy_prompt(p, 20, 1);
    struct gen_request r = toy_request(p, 20, 30);
    r.params.ignore_eos = true;
    struct gen *g = toy_submit(b.e, &r);
    struct toy_answer a;
    toy_answer(&a, p, 20, 30, true);
    toy_wait(g, GEN_DONE);
    struct buf text = {.max = 3};
    struct gen_status s;
    assert_int_not_equal(gen_read(g, &text, &s), OK);
    assert_int_equal(text.len, 0);
    text.max = 0;
    assert_int_equal(gen_read(g, &text, &s), OK);
    assert_string_equal(text.data, a.text);
    assert_int_equal(s.state, GEN_DONE);
    gen_release(g);
    buf_fini(&text);
    toy_tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_change_is_announced),
        cmocka_unit_test(nobody_is_called_after_letting_go),
        cmocka_unit_test(a_slow_reader_gets_all_of_it),
        cmocka_unit_test(text_that_finds_no_room_is_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
