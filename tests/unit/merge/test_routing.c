#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "merge/band.h"
#include "merge/routing.h"
#include "runtime/kernels/quant.h"

enum { N_MAX = 150 };

struct world {
    int32_t pos[N_MAX];
    uint8_t state[N_MAX];
    uint16_t band[N_MAX][BAND_CELLS];
    struct fate_list l;
};

static void draw(struct world *w, struct rng *r)
{
    int32_t p = (int32_t)rng_below(r, 70);
    w->l = (struct fate_list){.n = (uint32_t)rng_below(r, N_MAX),
                              .head_dim = 8,
                              .pos = w->pos,
                              .state = w->state,
                              .band = w->band[0]};
    for (uint32_t i = 0; i < w->l.n; i++) {
        w->pos[i] = p;
        p += 1 + (int32_t)(rng_below(r, 3) == 0 ? rng_below(r, 40) : 0);
        w->state[i] = (uint8_t)rng_below(r, 3);
        for (uint32_t c = 0; c < BAND_CELLS; c++)
            w->band[i][c] = quant_f32_to_f16((float)rng_below(r, 5) * 0.25f);
    }
}

/* The definition, over all pairs. */
static uint32_t plain_host(const struct world *w, uint32_t j)
{
    uint32_t best = ROUTING_NONE;
    float top = 0.0f;
    for (uint32_t i = 0; i < w->l.n; i++) {
        if (w->state[i] != FATE_STAYS || w->pos[i] >= w->pos[j] ||
            w->pos[i] / 32 != w->pos[j] / 32)
            continue;
        float a = quant_f16_to_f32(w->band[j][w->pos[i] % 32]);
        if (a > 0.0f && a >= top) {
            best = i;
            top = a;
        }
    }
    return best;
}

static void hosts_are_those_of_the_definition(void **state)
{
    (void)state;
    static struct world w;
    struct rng r;
    uint32_t host[N_MAX], n_routed = 0;
    rng_seed(&r, 1);
    for (int round = 0; round < 500; round++) {
        draw(&w, &r);
        routing_of(&w.l, host);
        for (uint32_t j = 0; j < w.l.n; j++) {
            uint32_t want = w.state[j] == FATE_LEAVES ? plain_host(&w, j)
                                                      : (uint32_t)ROUTING_NONE;
            assert_int_equal(host[j], want);
            n_routed += want != ROUTING_NONE;
        }
    }
    assert_true(n_routed > 1000);
}

/* Whatever stays, a row and its order send every entry to the same host. */
static void the_order_of_a_row_routes_as_the_row(void **state)
{
    (void)state;
    static struct world w;
    static uint16_t again[N_MAX][BAND_CELLS];
    struct rng r;
    uint32_t host[N_MAX], same[N_MAX];
    uint8_t order[BAND_ORDER_BYTES + 1];
    rng_seed(&r, 2);
    for (int round = 0; round < 300; round++) {
        draw(&w, &r);
        for (uint32_t i = 0; i < w.l.n; i++) {
            for (uint32_t c = 0; c < BAND_CELLS && round % 2; c++)
                w.band[i][c] = (uint16_t)rng_next(&r); /* any bits */
            order[BAND_ORDER_BYTES] = 0x5a;
            band_pack(w.band[i], w.pos[i], order);
            assert_int_equal(order[BAND_ORDER_BYTES], 0x5a);
            band_unpack(order, again[i]);
        }
        for (int k = 0; k < 4; k++) {
            for (uint32_t i = 0; i < w.l.n; i++)
                w.state[i] = (uint8_t)rng_below(&r, 3);
            w.l.band = w.band[0];
            routing_of(&w.l, host);
            w.l.band = again[0];
            routing_of(&w.l, same);
            assert_memory_equal(host, same, w.l.n * sizeof(*host));
        }
    }
}

static void attention_that_is_none_routes_nowhere(void **state)
{
    (void)state;
    static const uint16_t none[] = {0x0000, 0x8000, 0xbc00,
                                    0x7c00, 0x7e00, 0xffff};
    static struct world w;
    uint32_t host[2];
    w.l = (struct fate_list){
        .n = 2, .pos = w.pos, .state = w.state, .band = w.band[0]};
    w.pos[0] = 64;
    w.pos[1] = 70;
    w.state[0] = FATE_STAYS;
    w.state[1] = FATE_LEAVES;
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
        w.band[1][0] = none[i];
        routing_of(&w.l, host);
        assert_int_equal(host[1], ROUTING_NONE);
    }
    w.band[1][0] = 1; /* 2^-24, the least that a half can hold */
    routing_of(&w.l, host);
    assert_int_equal(host[1], 0);
}

static void positions_fall_into_buckets_of_thirty_two(void **state)
{
    (void)state;
    assert_int_equal(band_start(0), 0);
    assert_int_equal(band_start(31), 0);
    assert_int_equal(band_start(32), 32);
    assert_int_equal(band_cell(63), 31);
    assert_int_equal(BAND_BYTES, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_those_of_the_definition),
        cmocka_unit_test(the_order_of_a_row_routes_as_the_row),
        cmocka_unit_test(attention_that_is_none_routes_nowhere),
        cmocka_unit_test(positions_fall_into_buckets_of_thirty_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
