#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cache/compact.h"

enum {
    LAYERS = 2,
    HEADS = 2,
    LISTS = LAYERS * HEADS,
    TOKENS = 120,
    UNITS = 64,
    DIM = 16,
    ROUNDS = 4000
};

/* All that is stored of one entry, as the test sees it: which bytes they are
 * is computed from the description in base/kv_layout.h alone. */
struct entry {
    uint8_t key[DIM * 4], value[DIM * 4];
    float k_scale, v_scale, bias, log_beta;
    int32_t pos, rope_pos;
};

static uint32_t width(enum kv_type type)
{
    return type == KV_F16 ? 2 : type == KV_F32 ? 4 : 1;
}

/* Copies between the pool and *e. */
static void transfer(const struct table *t, uint32_t list, uint32_t i,
                     struct entry *e, bool store)
{
    const struct kv_layout *y = pool_layout(t->pool);
    unit_id u = t->list[list].unit[i / 16];
    uint8_t *d = pool_data(t->pool, u);
    struct kv_meta *m = pool_meta(t->pool, u);
    uint32_t slot = i % 16, w = width(y->type);
    struct {
        void *pool, *mine;
        size_t n;
    } part[2 * DIM + 6];
    size_t n = 0;
    for (uint32_t k = 0; k < DIM; k++) {
        uint8_t *key = d + y->k + ((slot / 8 * DIM + k) * 8 + slot % 8) * w;
        uint8_t *value = d + y->v + (slot * DIM + k) * w;
        part[n].pool = key, part[n].mine = e->key + k * w, part[n++].n = w;
        part[n].pool = value, part[n].mine = e->value + k * w, part[n++].n = w;
    }
    if (y->type == KV_Q8_0) {
        part[n].pool = d + y->k_scale + slot * 4;
        part[n].mine = &e->k_scale, part[n++].n = 4;
        part[n].pool = d + y->v_scale + slot * 4;
        part[n].mine = &e->v_scale, part[n++].n = 4;
    }
    part[n].pool = d + y->bias + slot * 4;
    part[n].mine = &e->bias, part[n++].n = 4;
    part[n].pool = &m->log_beta[slot];
    part[n].mine = &e->log_beta, part[n++].n = 4;
    part[n].pool = &m->pos[slot], part[n].mine = &e->pos, part[n++].n = 4;
    part[n].pool = &m->rope_pos[slot];
    part[n].mine = &e->rope_pos, part[n++].n = 4;
    for (size_t k = 0; k < n; k++)
        if (store)
            memcpy(part[k].pool, part[k].mine, part[k].n);
        else
            memcpy(part[k].mine, part[k].pool, part[k].n);
}

static void draw_entry(struct entry *e, struct rng *r, int32_t pos)
{
    memset(e, 0, sizeof(*e));
    for (size_t i = 0; i < sizeof(e->key); i++) {
        e->key[i] = (uint8_t)rng_next(r);
        e->value[i] = (uint8_t)rng_next(r);
    }
    e->k_scale = rng_float(r);
    e->v_scale = rng_float(r);
    e->bias = rng_float(r);
    e->log_beta = -rng_float(r);
    e->pos = pos;
    e->rope_pos = pos + 7;
}

/* Equal in what the type stores. */
static void same(const struct entry *a, const struct entry *b,
                 enum kv_type type)
{
    assert_memory_equal(a->key, b->key, DIM * width(type));
    assert_memory_equal(a->value, b->value, DIM * width(type));
    if (type == KV_Q8_0) {
        assert_true(a->k_scale == b->k_scale);
        assert_true(a->v_scale == b->v_scale);
    }
    assert_true(a->bias == b->bias && a->log_beta == b->log_beta);
    assert_int_equal(a->pos, b->pos);
    assert_int_equal(a->rope_pos, b->rope_pos);
}

/* The rule on a plain array: holes below the new length and kept entries at
 * or above it, paired in order. Returns the new length. */
static uint32_t plain_compact(struct entry *e, const bool *gone, uint32_t n)
{
    uint32_t hole[TOKENS], source[TOKENS], len = 0, n_holes = 0, n_sources = 0;
    for (uint32_t i = 0; i < n; i++)
        len += !gone[i];
    for (uint32_t i = 0; i < n; i++) {
        if (i < len && gone[i])
            hole[n_holes++] = i;
        if (i >= len && !gone[i])
            source[n_sources++] = i;
    }
    assert_int_equal(n_holes, n_sources);
    for (uint32_t i = 0; i < n_holes; i++)
        e[hole[i]] = e[source[i]];
    return len;
}

static struct pool *new_pool(enum kv_type type)
{
    struct kv_layout l;
    struct pool *p = NULL;
    kv_layout_init(&l, type, DIM);
    assert_int_equal(pool_new(&p, &l, pool_unit_bytes(&l) * UNITS, NULL), OK);
    return p;
}

static struct table *new_table(struct pool *p, uint32_t n)
{
    struct table *t = NULL;
    assert_int_equal(table_new(&t, p, LAYERS, HEADS, TOKENS), OK);
    assert_int_equal(pool_reserve(p, (uint32_t)table_units_needed(t, n)), OK);
    (void)table_append(t, n, 0, 0);
    return t;
}

static void one_round(enum kv_type type, struct rng *r)
{
    struct pool *p = new_pool(type);
    uint32_t n = (uint32_t)rng_below(r, TOKENS + 1);
    struct table *t = new_table(p, n);
    static const uint32_t percents[] = {0, 3, 30, 50, 90, 100};
    uint32_t percent = percents[rng_below(r, 6)];
    struct entry e[LISTS][TOKENS];
    bool gone[LISTS][TOKENS];
    uint16_t mask[UNITS];
    uint32_t len[LISTS], units = 0;
    uint64_t went = 0;

    for (uint32_t u = 0; u < UNITS; u++)
        mask[u] = 0;
    for (uint32_t l = 0; l < LISTS; l++) {
        for (uint32_t i = 0; i < n; i++) {
            draw_entry(&e[l][i], r, (int32_t)i);
            transfer(t, l, i, &e[l][i], true);
            gone[l][i] = rng_below(r, 100) < percent;
            mask[t->list[l].unit[i / 16]] |=
                (uint16_t)((uint32_t)gone[l][i] << i % 16);
        }
        /* Bits past the length must not matter. */
        if (n % 16 != 0)
            mask[t->list[l].unit[n / 16]] |= (uint16_t)(0xffffu << n % 16);
        len[l] = plain_compact(e[l], gone[l], n);
        went += n - len[l];
        units += (len[l] + 15) / 16;
    }
    assert_int_equal(compact_table(t, mask), went);
    assert_int_equal(pool_stats(p).used, units);
    for (uint32_t l = 0; l < LISTS; l++) {
        assert_int_equal(t->list[l].len, len[l]);
        assert_int_equal(t->list[l].n_units, (len[l] + 15) / 16);
        for (uint32_t i = 0; i < len[l]; i++) {
            struct entry got = {0};
            transfer(t, l, i, &got, false);
            same(&got, &e[l][i], type);
        }
    }
    table_free(t);
    assert_int_equal(pool_stats(p).used, 0);
    pool_free(p);
}

static void random_gaps_close_as_on_a_plain_array(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 6);
    for (int i = 0; i < ROUNDS; i++)
        one_round(i % 3 == 0 ? KV_F16 : i % 3 == 1 ? KV_Q8_0 : KV_F32, &r);
}

static void follow(void *user, uint32_t to, uint32_t from)
{
    int32_t *pos = user;
    assert_true(to < from);
    pos[to] = pos[from];
}

/* Who keeps something beside the entries and moves it as told has it beside
 * the same entries afterwards. */
static void whoever_is_told_can_follow(void **state)
{
    (void)state;
    struct rng r;
    rng_seed(&r, 7);
    for (int round = 0; round < ROUNDS; round++) {
        struct pool *p = new_pool(KV_F16);
        uint32_t n = (uint32_t)rng_below(&r, TOKENS + 1);
        struct table *t = new_table(p, n);
        uint16_t mask[UNITS];
        int32_t pos[TOKENS];
        for (uint32_t u = 0; u < UNITS; u++)
            mask[u] = (uint16_t)rng_next(&r);
        for (uint32_t i = 0; i < n; i++)
            pos[i] = (int32_t)i;
        uint32_t went = compact_move_told(t, 1, mask, follow, pos);
        assert_int_equal(t->list[1].len, n - went);
        for (uint32_t i = 0; i < n - went; i++)
            assert_int_equal(pool_meta(p, t->list[1].unit[i / 16])->pos[i % 16],
                             pos[i]);
        table_free(t);
        pool_free(p);
    }
}

/* A shared prefix stays as it is for both users, and nothing is moved into
 * it. */
static void shared_units_are_left_alone(void **state)
{
    (void)state;
    struct pool *p = new_pool(KV_F16);
    struct table *a = new_table(p, 64), *b = NULL;
    uint16_t mask[UNITS] = {0};
    assert_int_equal(table_fork(&b, a, 32, TOKENS), OK);
    for (uint32_t l = 0; l < LISTS; l++) {
        mask[a->list[l].unit[1]] = 0xffff; /* shared: means nothing */
        mask[a->list[l].unit[2]] = 0x00ff;
    }
    uint32_t used = pool_stats(p).used;
    assert_int_equal(compact_table(a, mask), LISTS * 8);
    assert_int_equal(pool_stats(p).used, used);
    for (uint32_t l = 0; l < LISTS; l++) {
        assert_int_equal(a->list[l].len, 56);
        assert_int_equal(b->list[l].len, 32);
        for (int32_t i = 0; i < 56; i++) {
            struct entry e;
            transfer(a, l, (uint32_t)i, &e, false);
            /* Holes at 32 to 39; 56 to 63 fill them. */
            assert_int_equal(e.pos, i >= 32 && i < 40 ? i + 24 : i);
        }
    }
    /* Nothing to do a second time: the masks of empty slots are zero. */
    memset(mask, 0, sizeof(mask));
    assert_int_equal(compact_table(a, mask), 0);
    table_free(a);
    table_free(b);
    assert_int_equal(pool_stats(p).used, 0);
    pool_free(p);
}

/* Two users of 48 entries, one of them with 8 more. 20 are chosen: 16 go, the
 * 4 newest of them stay to fill the last unit. */
static void a_shared_prefix_shrinks_for_all_its_users(void **state)
{
    (void)state;
    struct pool *p = new_pool(KV_Q8_0);
    struct table *user[2] = {new_table(p, 48), NULL};
    uint16_t mask[UNITS] = {0};
    assert_int_equal(table_fork(&user[1], user[0], 48, TOKENS), OK);
    uint32_t need = (uint32_t)table_units_needed(user[1], 8);
    assert_int_equal(pool_reserve(p, need), OK);
    assert_int_equal(table_append(user[1], 8, 48, 48), need);
    struct kv_list *a = &user[0]->list[2], *b = &user[1]->list[2];
    struct entry e[56];
    struct rng r;
    rng_seed(&r, 9);
    for (uint32_t i = 0; i < 56; i++) {
        draw_entry(&e[i], &r, (int32_t)i);
        transfer(user[1], 2, i, &e[i], true);
    }
    mask[a->unit[0]] = 0x00ff;
    mask[a->unit[2]] = 0x0fff;
    mask[b->unit[3]] = 0xffff; /* not shared: means nothing */
    uint32_t used = pool_stats(p).used;
    struct compact_freed f = compact_shared(user, 2, 2, mask);
    assert_int_equal(f.units, 1);
    assert_int_equal(f.entries, 16);
    assert_int_equal(pool_stats(p).used, used - 1);
    assert_int_equal(a->len, 32);
    assert_int_equal(b->len, 40);
    assert_int_equal(a->n_units, 2);
    assert_int_equal(b->n_units, 3);
    for (uint32_t i = 0; i < 40; i++) {
        /* 8 to 31, then 40 to 47. */
        struct entry got = {0};
        transfer(user[1], 2, i, &got, false);
        same(&got, &e[i < 24 ? i + 8 : i + 16], KV_Q8_0);
        assert_true(i >= 32 || a->unit[i / 16] == b->unit[i / 16]);
    }
    /* Fewer than 16 free no unit. */
    memset(mask, 0, sizeof(mask));
    mask[a->unit[0]] = 0x7fff;
    f = compact_shared(user, 2, 2, mask);
    assert_int_equal(f.units + f.entries, 0);
    assert_int_equal(a->len, 32);
    /* Where all of it goes, the users keep what is their own. */
    mask[a->unit[0]] = mask[a->unit[1]] = 0xffff;
    f = compact_shared(user, 2, 2, mask);
    assert_int_equal(f.units, 2);
    assert_int_equal(a->len, 0);
    assert_int_equal(b->len, 8);
    table_free(user[0]);
    table_free(user[1]);
    assert_int_equal(pool_stats(p).used, 0);
    pool_free(p);
}

/* 56 to 63 move to the places of 8 to 15, and go in turn. */
static void a_list_whose_strays_left_is_in_order_again(void **state)
{
    (void)state;
    struct pool *p = new_pool(KV_F16);
    struct table *user[1] = {new_table(p, 64)};
    struct kv_list *l = &user[0]->list[0];
    uint16_t mask[UNITS] = {0};
    mask[l->unit[0]] = 0xff00;
    mask[l->unit[3]] = 0x00ff;
    assert_int_equal(compact_move(user[0], 0, mask), 16);
    assert_int_equal(compact_release(user[0], 0), 1);
    assert_false(l->in_order);
    memset(mask, 0, sizeof(mask));
    mask[l->unit[0]] = 0xff00;
    mask[l->unit[1]] = 0x00ff;
    struct compact_freed f = compact_shared(user, 1, 0, mask);
    assert_int_equal(f.units, 1);
    assert_true(l->in_order);
    table_free(user[0]);
    pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_gaps_close_as_on_a_plain_array),
        cmocka_unit_test(whoever_is_told_can_follow),
        cmocka_unit_test(shared_units_are_left_alone),
        cmocka_unit_test(a_shared_prefix_shrinks_for_all_its_users),
        cmocka_unit_test(a_list_whose_strays_left_is_in_order_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
