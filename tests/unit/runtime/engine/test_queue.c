#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "runtime/engine/queue.h"

enum { N = 200 };

struct waiting {
    struct queue_node node; /* first, so that the pointers are equal */
    uint32_t size;
    enum queue_verdict held; /* QUEUE_HELD: says no by choice */
    uint32_t passes;         /* later ones that were started before it */
    int is_started;
    uint32_t order;
};

struct world {
    struct queue q;
    struct waiting w[N];
    uint32_t n, room, n_started, n_asked;
};

static enum queue_verdict try(void *user, struct queue_node *node)
{
    struct world *v = user;
    struct waiting *w = (struct waiting *)node;
    v->n_asked++;
    assert_false(w->is_started);
    if (v->room == 0)
        return QUEUE_ALL_BUSY;
    if (w->held == QUEUE_HELD)
        return QUEUE_HELD;
    if (w->size > v->room)
        return QUEUE_NO_ROOM;
    v->room -= w->size;
    w->is_started = 1;
    v->n_started++;
    for (uint32_t i = 0; i < w->order; i++)
        if (!v->w[i].is_started && v->w[i].held != QUEUE_HELD)
            v->w[i].passes++;
    return QUEUE_STARTED;
}

static void add(struct world *v, uint32_t size, enum queue_verdict held)
{
    struct waiting *w = &v->w[v->n];
    w->size = size;
    w->held = held;
    w->order = v->n++;
    queue_push(&v->q, &w->node);
}

static void who_fits_starts_in_order_of_arrival(void **state)
{
    (void)state;
    static struct world v;
    v = (struct world){.room = 10};
    add(&v, 4, 0);
    add(&v, 7, 0);
    add(&v, 5, 0);
    add(&v, 1, 0);
    queue_admit(&v.q, try, &v);
    assert_true(v.w[0].is_started && !v.w[1].is_started);
    assert_true(v.w[2].is_started && v.w[3].is_started);
    assert_int_equal(v.q.n, 1);
    assert_ptr_equal(v.q.first, &v.w[1].node);
    assert_int_equal(v.w[1].node.passed, 2);
    queue_remove(&v.q, &v.w[1].node);
    assert_null(v.q.first);
    assert_null(v.q.last);
}

/* Whatever comes, nobody is passed more often than the limit, and a held one
 * does not use it up. */
static void nobody_is_passed_more_often_than_the_limit(void **state)
{
    (void)state;
    static struct world v;
    struct rng r;
    rng_seed(&r, 7);
    for (int round = 0; round < 500; round++) {
        v = (struct world){0};
        while (v.n < N) {
            add(&v, 1 + (uint32_t)rng_below(&r, 20),
                rng_below(&r, 10) == 0 ? QUEUE_HELD : QUEUE_STARTED);
            v.room = (uint32_t)rng_below(&r, 12);
            v.n_asked = 0;
            queue_admit(&v.q, try, &v);
            assert_true(v.n_asked <= QUEUE_LOOKAHEAD);
            /* Some give up. */
            if (v.q.n > 0 && rng_below(&r, 5) == 0) {
                struct waiting *w = (struct waiting *)v.q.last;
                w->held = QUEUE_HELD;
                queue_remove(&v.q, &w->node);
            }
        }
        for (uint32_t i = 0; i < N; i++)
            assert_true(v.w[i].passes <= QUEUE_PASSES);
        /* With room and without holds everybody gets in. */
        for (uint32_t i = 0; i < N; i++)
            v.w[i].held = QUEUE_STARTED;
        v.room = 100000;
        while (v.q.n > 0)
            queue_admit(&v.q, try, &v);
        assert_null(v.q.first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_fits_starts_in_order_of_arrival),
        cmocka_unit_test(nobody_is_passed_more_often_than_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
