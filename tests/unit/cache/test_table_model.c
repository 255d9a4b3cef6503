/* Random calls of everything that changes tables, against plain arrays: every
 * list of every table holds the entries that were put into it through that
 * table and did not leave, whatever others do; and every number of units that
 * was announced is the number taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cache/compact.h"
#include "cache/table.h"

/* A sanitizer makes a step many times dearer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SHARE = 4 };
#else
enum { SHARE = 1 };
#endif

enum {
    LAYERS = 1,
    HEADS = 3,
    LISTS = LAYERS * HEADS,
    CAP = 150, /* entries of a list */
    TABLES = 6,
    UNITS = 70,
    DIM = 8,
    STEPS = 60000 / SHARE
};

struct entry {
    int32_t pos, rope;
    float value;
};

struct plain {
    struct table *t;
    int32_t seen; /* the next position */
    uint32_t len[LISTS];
    struct entry e[LISTS][CAP]; /* by position */
};

struct world {
    struct pool *pool;
    struct rng r;
    struct plain x[TABLES];
    /* How often each happened: a run that never got there proves nothing. */
    uint32_t n_refused, n_copied, n_whole, n_owned, n_shared_freed,
        n_ragged_tails;
};

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)rng_below(&w->r, n);
}

static uint32_t units_of(uint32_t n)
{
    return (n + 15) / 16;
}

/* Tables that refer to a unit, counted by looking. */
static uint32_t n_users(const struct world *w, uint32_t list, unit_id u)
{
    uint32_t n = 0;
    for (int i = 0; i < TABLES; i++)
        for (uint32_t k = 0; w->x[i].t && k < w->x[i].t->list[list].n_units;
             k++)
            n += w->x[i].t->list[list].unit[k] == u;
    return n;
}

static float *value_of(const struct pool *p, unit_id u, uint32_t slot)
{
    const struct kv_layout *y = pool_layout(p);
    return (float *)(void *)(pool_data(p, u) + y->v) + (size_t)slot * DIM;
}

static float *bias_of(const struct pool *p, unit_id u, uint32_t slot)
{
    return (float *)(void *)(pool_data(p, u) + pool_layout(p)->bias) + slot;
}

static int by_pos(const void *pa, const void *pb)
{
    const struct entry *a = pa, *b = pb;
    return (a->pos > b->pos) - (a->pos < b->pos);
}

static void check_list(const struct world *w, const struct plain *x, uint32_t i)
{
    const struct kv_list *l = &x->t->list[i];
    struct entry e[CAP];
    assert_int_equal(l->len, x->len[i]);
    assert_int_equal(l->n_units, units_of(l->len));
    for (uint32_t k = 0; k < l->len; k++) {
        unit_id u = l->unit[k / 16];
        const struct kv_meta *m = pool_meta(w->pool, u);
        e[k] = (struct entry){m->pos[k % 16], m->rope_pos[k % 16],
                              *value_of(w->pool, u, k % 16)};
        assert_true(*bias_of(w->pool, u, k % 16) == e[k].value + 1);
        assert_true(m->log_beta[k % 16] == -e[k].value);
        if (l->in_order && k > 0)
            assert_true(e[k - 1].pos < e[k].pos);
    }
    qsort(e, l->len, sizeof(*e), by_pos);
    for (uint32_t k = 0; k < l->len; k++) {
        assert_int_equal(e[k].pos, x->e[i][k].pos);
        assert_int_equal(e[k].rope, x->e[i][k].rope);
        assert_true(e[k].value == x->e[i][k].value);
    }
}

static void check(const struct world *w)
{
    uint8_t seen[UNITS] = {0};
    uint32_t used = 0;
    for (int i = 0; i < TABLES; i++) {
        const struct plain *x = &w->x[i];
        uint64_t n = 0, n_below = 0;
        uint32_t most = 0;
        for (uint32_t l = 0; x->t && l < LISTS; l++) {
            check_list(w, x, l);
            n += x->len[l];
            most = x->len[l] > most ? x->len[l] : most;
            for (uint32_t k = 0; k < x->len[l]; k++)
                n_below += x->e[l][k].pos < x->seen / 2;
            for (uint32_t u = 0; u < x->t->list[l].n_units; u++) {
                unit_id id = x->t->list[l].unit[u];
                used += !seen[id];
                seen[id] = 1;
                assert_int_equal(pool_refs(w->pool, id), n_users(w, l, id));
            }
        }
        if (!x->t)
            continue;
        assert_int_equal(table_n_entries(x->t), n);
        assert_int_equal(table_n_entries_below(x->t, (uint32_t)x->seen / 2),
                         n_below);
        assert_int_equal(table_max_len(x->t), most);
    }
    assert_int_equal(pool_stats(w->pool).used, used);
    assert_int_equal(pool_stats(w->pool).reserved, 0);
}

/* True if there was room for what was announced. */
static bool reserve(struct world *w, uint64_t n)
{
    struct pool_stats s = pool_stats(w->pool);
    bool fits = n <= s.n_units - s.used;
    assert_int_equal(pool_reserve(w->pool, (uint32_t)n),
                     fits ? OK : ERR_BUDGET);
    w->n_refused += !fits;
    return fits;
}

static void grow(struct world *w, struct plain *x)
{
    uint32_t n = below(w, 24), need = 0;
    for (uint32_t l = 0; l < LISTS; l++)
        n = n < CAP - x->len[l] ? n : CAP - x->len[l];
    for (uint32_t l = 0; n > 0 && l < LISTS; l++) {
        const struct kv_list *kv = &x->t->list[l];
        need += units_of(x->len[l] + n) - units_of(x->len[l]);
        if (x->len[l] % 16 != 0 &&
            n_users(w, l, kv->unit[x->len[l] / 16]) > 1) {
            need++;
            w->n_ragged_tails += !kv->in_order;
        }
    }
    assert_int_equal(table_units_needed(x->t, n), need);
    if (!reserve(w, need))
        return;
    int32_t rope = (int32_t)below(w, 1000);
    assert_int_equal(table_append(x->t, n, x->seen, rope), need);
    for (uint32_t l = 0; l < LISTS; l++)
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = x->len[l]++;
            unit_id u = x->t->list[l].unit[at / 16];
            struct entry e = {x->seen + (int32_t)i, rope + (int32_t)i,
                              (float)below(w, 1u << 20)};
            x->e[l][at] = e;
            *value_of(w->pool, u, at % 16) = e.value;
            *bias_of(w->pool, u, at % 16) = e.value + 1;
            assert_true(pool_meta(w->pool, u)->log_beta[at % 16] == 0);
            pool_meta(w->pool, u)->log_beta[at % 16] = -e.value;
        }
    x->seen += (int32_t)n;
}

static void drop_from(struct plain *x, int32_t pos)
{
    for (uint32_t l = 0; l < LISTS; l++)
        while (x->len[l] > 0 && x->e[l][x->len[l] - 1].pos >= pos)
            x->len[l]--;
    x->seen = x->seen < pos ? x->seen : pos;
}

/* What a fork takes, by the rule of the header: a copy of what is
 * wanted in units that are not wanted whole; nothing where only one unit is
 * that, and it is wanted from its start. */
static uint32_t fork_units(const struct world *w, const struct plain *x,
                           int32_t pos)
{
    uint32_t sum = 0;
    for (uint32_t l = 0; l < LISTS; l++) {
        const struct kv_list *kv = &x->t->list[l];
        uint32_t rest = 0, parts = 0;
        bool from_start = true;
        for (uint32_t u = 0; u < kv->n_units; u++) {
            uint32_t n = 0, end = 0;
            for (uint32_t s = 0; s < 16 && u * 16 + s < kv->len; s++)
                if (pool_meta(w->pool, kv->unit[u])->pos[s] < pos) {
                    n++;
                    end = s + 1;
                }
            if (n == 0 || n == 16)
                continue;
            rest += n;
            parts++;
            from_start = n == end;
        }
        if (parts > 1 || !from_start)
            sum += units_of(rest);
    }
    return sum;
}

static void fork_into(struct world *w, struct plain *b, const struct plain *a,
                      int32_t pos)
{
    uint32_t need = fork_units(w, a, pos);
    if (pos >= a->seen)
        pos = TABLE_ALL;
    w->n_whole += pos == TABLE_ALL;
    assert_int_equal(table_fork_units(a->t, (uint32_t)pos), need);
    if (!reserve(w, need))
        return;
    w->n_copied += need > 0;
    table_free(b->t);
    *b = *a;
    drop_from(b, pos < a->seen ? pos : a->seen);
    assert_int_equal(table_fork(&b->t, a->t, (uint32_t)pos, CAP), OK);
}

/* A rollback takes no more than one unit for each that others use, and none
 * in a list in order. */
static void roll_back(struct world *w, struct plain *x, int32_t pos)
{
    uint64_t most = 0, need = table_truncate_units(x->t, (uint32_t)pos);
    for (uint32_t l = 0; l < LISTS; l++) {
        const struct kv_list *kv = &x->t->list[l];
        for (uint32_t u = 0; !kv->in_order && u < kv->n_units; u++)
            most += n_users(w, l, kv->unit[u]) > 1;
    }
    assert_true(need <= most);
    if (!reserve(w, need))
        return;
    w->n_owned += need > 0;
    assert_int_equal(table_truncate(x->t, (uint32_t)pos), need);
    drop_from(x, pos);
}

/* Removes from the arrays what is chosen and in `units`. */
static uint32_t forget(struct plain *x, uint32_t l, const bool *goes)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < x->len[l]; k++)
        if (!goes[x->e[l][k].pos])
            x->e[l][n++] = x->e[l][k];
    uint32_t went = x->len[l] - n;
    x->len[l] = n;
    return went;
}

static void compact(struct world *w, struct plain *x)
{
    static const uint32_t percents[] = {1, 5, 30};
    uint32_t percent = percents[below(w, 3)];
    uint16_t gone[UNITS];
    uint64_t want = 0;
    for (uint32_t u = 0; u < UNITS; u++) {
        gone[u] = 0;
        for (uint32_t s = 0; s < 16; s++)
            gone[u] |= (uint16_t)((below(w, 100) < percent) << s);
    }
    for (uint32_t l = 0; l < LISTS; l++) {
        const struct kv_list *kv = &x->t->list[l];
        bool goes[100000] = {false};
        for (uint32_t k = 0; k < kv->len; k++) {
            unit_id u = kv->unit[k / 16];
            if (n_users(w, l, u) == 1 && gone[u] >> k % 16 & 1)
                goes[pool_meta(w->pool, u)->pos[k % 16]] = true;
        }
        want += forget(x, l, goes);
    }
    assert_int_equal(compact_table(x->t, gone), want);
}

/* Positions of the whole units of a list that exactly these users share. */
static uint32_t shared_entries(const struct world *w, struct plain *const *user,
                               uint32_t n, uint32_t l, const uint16_t *gone,
                               int32_t *chosen, uint32_t *n_chosen)
{
    uint32_t units = 0;
    const struct kv_list *kv = &user[0]->t->list[l];
    *n_chosen = 0;
    for (uint32_t k = 0; k < kv->n_units; k++) {
        unit_id u = kv->unit[k];
        bool whole = n_users(w, l, u) == n;
        for (uint32_t i = 0; i < n; i++) {
            const struct kv_list *other = &user[i]->t->list[l];
            uint32_t at = 0;
            while (at < other->len / 16 && other->unit[at] != u)
                at++;
            whole = whole && at < other->len / 16;
        }
        for (uint32_t s = 0; whole && s < 16; s++)
            if (gone[u] >> s & 1)
                chosen[(*n_chosen)++] = pool_meta(w->pool, u)->pos[s];
        units += whole;
    }
    return units;
}

static int by_value(const void *pa, const void *pb)
{
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    return (a > b) - (a < b);
}

static void compact_a_prefix(struct world *w, const struct plain *x)
{
    uint32_t l = below(w, LISTS), n = 0, n_chosen = 0;
    if (x->t->list[l].n_units == 0)
        return;
    unit_id u = x->t->list[l].unit[below(w, x->t->list[l].n_units)];
    struct plain *user[TABLES];
    struct table *table[TABLES];
    for (int i = 0; i < TABLES; i++)
        for (uint32_t k = 0; w->x[i].t && k < w->x[i].t->list[l].n_units; k++)
            if (w->x[i].t->list[l].unit[k] == u) {
                user[n] = &w->x[i];
                table[n++] = w->x[i].t;
            }
    /* Now and then not all users of that unit are given, but some of others. */
    struct plain *y = &w->x[below(w, TABLES)];
    bool is_user = y->t == NULL;
    for (uint32_t i = 0; i < n; i++)
        is_user = is_user || user[i] == y;
    if (!is_user && below(w, 3) == 0) {
        uint32_t i = below(w, n);
        user[i] = y;
        table[i] = y->t;
    }
    uint16_t gone[UNITS];
    uint32_t percent = below(w, 101);
    for (uint32_t k = 0; k < UNITS; k++) {
        gone[k] = 0;
        for (uint32_t s = 0; s < 16; s++)
            gone[k] |= (uint16_t)((below(w, 100) < percent) << s);
    }
    int32_t chosen[CAP];
    uint32_t units = shared_entries(w, user, n, l, gone, chosen, &n_chosen);
    /* The oldest go, as many as make whole units free. */
    uint32_t freed = n_chosen / 16;
    assert_true(freed <= units);
    qsort(chosen, n_chosen, sizeof(*chosen), by_value);
    bool goes[100000] = {false};
    for (uint32_t k = 0; k < freed * 16; k++)
        goes[chosen[k]] = true;
    uint32_t used = pool_stats(w->pool).used;
    struct compact_freed f = compact_shared(table, n, l, gone);
    assert_int_equal(f.units, freed);
    assert_int_equal(f.entries, freed * 16);
    assert_int_equal(pool_stats(w->pool).used, used - freed);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(forget(user[i], l, goes), freed * 16);
    w->n_shared_freed += freed > 0 && n > 1;
}

static void random_step(struct world *w)
{
    struct plain *a = &w->x[below(w, TABLES)], *b = &w->x[below(w, TABLES)];
    if (!a->t) {
        a->seen = 0;
        memset(a->len, 0, sizeof(a->len));
        assert_int_equal(table_new(&a->t, w->pool, LAYERS, HEADS, CAP), OK);
    }
    /* Mostly near the end, as edits of a history are. */
    int32_t back = (int32_t)below(w, below(w, 4) ? 40 : 400);
    int32_t pos = a->seen > back ? a->seen - back : 0;
    switch (below(w, 16)) {
    case 0:
    case 1:
        if (a != b)
            fork_into(w, b, a, pos);
        break;
    case 2:
    case 3:
        roll_back(w, a, pos);
        break;
    case 4:
        table_free(a->t);
        a->t = NULL;
        break;
    case 5:
        compact(w, a);
        break;
    case 6:
        compact_a_prefix(w, a);
        break;
    default:
        if (a->seen < 99000)
            grow(w, a);
    }
}

static void random_calls_agree_with_plain_arrays(void **state)
{
    (void)state;
    struct world *w = calloc(1, sizeof(*w));
    struct kv_layout y;
    assert_non_null(w);
    kv_layout_init(&y, KV_F32, DIM);
    rng_seed(&w->r, 5);
    assert_int_equal(pool_new(&w->pool, &y, pool_unit_bytes(&y) * UNITS, NULL),
                     OK);
    for (int step = 0; step < STEPS; step++) {
        random_step(w);
        if (step % 4 == 0)
            check(w);
    }
    assert_true(w->n_refused > 40 / SHARE);
    assert_true(w->n_copied > 40 / SHARE);
    assert_true(w->n_whole > 40 / SHARE);
    assert_true(w->n_owned > 40 / SHARE);
    assert_true(w->n_shared_freed > 40 / SHARE);
    assert_true(w->n_ragged_tails > 40 / SHARE);
    for (int i = 0; i < TABLES; i++) {
        uint32_t before = pool_stats(w->pool).used;
        uint64_t gives = w->x[i].t ? table_n_private_units(w->x[i].t) : 0;
        table_free(w->x[i].t);
        assert_int_equal(pool_stats(w->pool).used, before - gives);
    }
    assert_int_equal(pool_stats(w->pool).used, 0);
    pool_free(w->pool);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_calls_agree_with_plain_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
