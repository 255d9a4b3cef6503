/* Many clients at once hold random conversations over a pool that is far too
 * small for all of them, fork, edit, resend and cancel them. The model's
 * answers show everything it was given, so each answer must be the one that
 * the tokens of its own request alone determine, however it was shared,
 * waited, chunked, dropped or recomputed on the way. */
#include "toy.h"

enum { CLIENTS = 4, TURNS = 150, HISTORY_MAX = 200, ROOTS = 4 };

struct client {
    pthread_t thread;
    struct engine *e;
    struct rng rng;
    int32_t history[HISTORY_MAX + 64];
    uint32_t n;
    int n_wrong, n_cached, n_cancelled, n_stopped;
};

/* Conversations begin alike, and some go on alike for long. */
static void begin(struct client *c)
{
    struct rng r;
    rng_seed(&r, rng_below(&c->rng, ROOTS));
    c->n = 1 + (uint32_t)rng_below(&c->rng, 70);
    for (uint32_t i = 0; i < c->n; i++)
        c->history[i] = (int32_t)rng_below(&r, TOY_END);
}

static void add_some(struct client *c)
{
    uint32_t n = 1 + (uint32_t)rng_below(&c->rng, 30);
    for (uint32_t i = 0; i < n; i++)
        c->history[c->n++] = (int32_t)rng_below(&c->rng, TOY_END);
}

static void next_prompt(struct client *c)
{
    if (c->n == 0 || c->n > HISTORY_MAX - 64) {
        begin(c);
        return;
    }
    switch (rng_below(&c->rng, 6)) {
    case 0:
        begin(c);
        break;
    case 1: /* an edit somewhere */
        c->n = 1 + (uint32_t)rng_below(&c->rng, c->n);
        c->history[c->n - 1] = (int32_t)rng_below(&c->rng, TOY_END);
        add_some(c);
        break;
    case 2: /* the same once more */
        break;
    default:
        add_some(c);
    }
}

/* Cuts the true answer at its first `stop`, if it has one. */
static bool cut_at(struct toy_answer *a, const char *stop)
{
    char *at = strstr(a->text, stop);
    if (!at)
        return false;
    *at = 0;
    a->finish = GEN_FINISH_STOP;
    return true;
}

static void check(struct client *c, struct gen *g, struct toy_answer *a,
                  bool must_end)
{
    struct buf text = {0};
    struct gen_status s;
    int64_t until = clock_us() + TOY_PATIENCE_US;
    do {
        if (gen_read(g, &text, &s) != OK || clock_us() > until) {
            c->n_wrong += 1000;
            break;
        }
        toy_sleep(50);
    } while (s.state != GEN_DONE);
    const char *said = text.data ? text.data : "";
    if (s.finish == GEN_FINISH_CANCELLED && !must_end) {
        /* What came before the cancel is the beginning of the answer. */
        c->n_cancelled++;
        c->n_wrong += strncmp(said, a->text, text.len) != 0;
    } else {
        c->n_wrong += strcmp(said, a->text) != 0 || s.finish != a->finish;
    }
    c->n_wrong += s.state == GEN_DONE && s.cached_tokens >= s.prompt_tokens;
    c->n_cached += s.cached_tokens > 0;
    buf_fini(&text);
    gen_release(g);
}

static void one_turn(struct client *c, struct toy_answer *a)
{
    struct gen *g = NULL;
    enum gen_refusal why;
    uint32_t max_tokens = (uint32_t)rng_below(&c->rng, 50);
    next_prompt(c);
    toy_answer(a, c->history, c->n, max_tokens, false);
    struct gen_request r = toy_request(c->history, c->n, max_tokens);
    if (rng_below(&c->rng, 4) == 0) {
        char stop[3] = {(char)('a' + rng_below(&c->rng, 26)), 0, 0};
        toy_add_stop(&r, stop);
        c->n_stopped += cut_at(a, stop);
    }
    if (engine_submit(c->e, &r, &g, &why, NULL) != OK) {
        gen_request_fini(&r);
        c->n_wrong++;
        return;
    }
    if (rng_below(&c->rng, 8) == 0) {
        gen_release(g); /* gone without waiting */
    } else if (rng_below(&c->rng, 6) == 0) {
        toy_sleep((unsigned)rng_below(&c->rng, 1000));
        gen_cancel(g);
        check(c, g, a, false);
    } else {
        check(c, g, a, true);
        memcpy(c->history + c->n, a->token, a->n * sizeof(*a->token));
        c->n += a->n;
    }
}

static void *run_client(void *user)
{
    struct client *c = user;
    struct toy_answer *a = malloc(sizeof(*a));
    for (int i = 0; a && i < TURNS; i++)
        one_turn(c, a);
    free(a);
    return NULL;
}

static void hold_conversations(uint32_t pool_tokens, uint32_t max_running,
                               uint32_t max_step_rows, uint64_t seed)
{
    struct toy toy;
    struct client *c = calloc(CLIENTS, sizeof(*c));
    int wrong = 0, cached = 0, cancelled = 0, stopped = 0;
    toy_init(&toy);
    struct engine_options o = toy_options(&toy, pool_tokens);
    o.max_running = max_running;
    o.max_step_rows = max_step_rows;
    struct engine *e = toy_engine(&toy, &o);
    atomic_store(&toy.delay_us, 50);
    for (uint64_t i = 0; i < CLIENTS; i++) {
        c[i].e = e;
        rng_seed(&c[i].rng, seed * 100 + i);
        assert_int_equal(pthread_create(&c[i].thread, NULL, run_client, &c[i]),
                         0);
    }
    for (int i = 0; i < 50; i++) {
        toy_check_stats(e);
        toy_sleep(2000);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(c[i].thread, NULL);
        wrong += c[i].n_wrong;
        cached += c[i].n_cached;
        cancelled += c[i].n_cancelled;
        stopped += c[i].n_stopped;
    }
    assert_int_equal(wrong, 0);
    assert_true(cached > CLIENTS * TURNS / 5);
    assert_true(cancelled > 0);
    assert_true(stopped > 20);
    toy_wait_idle(e);
    struct engine_stats s;
    engine_stats(e, &s);
    assert_int_equal(s.live_bytes, 0);
    assert_int_equal(s.reserved_bytes, 0);
    assert_int_equal(s.running + s.waiting, 0);
    toy_end(&toy, e);
    toy_fini(&toy);
    free(c);
}

static void nobody_sees_another_in_a_pool_for_one(void **state)
{
    (void)state;
    hold_conversations(320, 4, 32, 1);
}

static void nobody_sees_another_in_a_pool_for_three(void **state)
{
    (void)state;
    hold_conversations(640, 4, 48, 2);
}

static void nobody_sees_another_in_a_large_pool(void **state)
{
    (void)state;
    hold_conversations(8192, 2, 16, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_sees_another_in_a_pool_for_one),
        cmocka_unit_test(nobody_sees_another_in_a_pool_for_three),
        cmocka_unit_test(nobody_sees_another_in_a_large_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
