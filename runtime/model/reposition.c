/* Keys are stored after RoPE, which turns each pair of their elements by an
 * angle that is proportional to the position. So a key gets another position
 * by a turn through the difference. The cosines and sines of a difference d
 * come from two tables, by the addition theorems: d = b * MODEL_TURNS + r with
 * a row for every r, and one row for b, which rarely changes along a list. In
 * double, so that what is left is the rounding of the stored key. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "runtime/model/model_internal.h"

struct job {
    struct model *m;
    struct table *t;
    uint32_t next; /* RoPE position of the next token: the longest list */
};

uint64_t model_reposition_bytes(uint32_t max_units)
{
    return 2 * (uint64_t)max_units * KV_UNIT * sizeof(uint64_t);
}

void model_turn(const struct model *m, int64_t n, double *out)
{
    uint32_t half = m->cfg.head_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = (double)n * m->rope_freq[i];
        out[i] = cos(angle);
        out[half + i] = sin(angle);
    }
}

/* The turn by d positions, as ops->rope takes it. */
struct turn {
    const struct model *m;
    int64_t d, block; /* INT64_MAX: none yet */
    double of_block[OPS_HEAD_DIM_MAX];
    float cos_sin[OPS_HEAD_DIM_MAX];
};

static void set_turn(struct turn *t, int64_t d)
{
    uint32_t half = t->m->cfg.head_dim / 2;
    if (d == t->d)
        return;
    int64_t rest = (d % MODEL_TURNS + MODEL_TURNS) % MODEL_TURNS;
    int64_t block = d - rest;
    if (block != t->block)
        model_turn(t->m, block, t->of_block);
    t->block = block;
    t->d = d;
    const double *a = t->of_block, *b = t->m->s.turn + rest * 2 * half;
    for (uint32_t i = 0; i < half; i++) {
        double c = a[i] * b[i] - a[half + i] * b[half + i];
        double s = a[half + i] * b[i] + a[i] * b[half + i];
        t->cos_sin[i] = (float)c;
        t->cos_sin[half + i] = (float)s;
    }
}

/* An entry of a list is one number here: position in the upper half, index in
 * the lower. Sorts by position, a byte at a time; bytes that are all the same
 * are left out. Returns where the result is: in a or in b. */
static uint64_t *sort(uint64_t *a, uint64_t *b, uint32_t n)
{
    for (uint32_t shift = 32; shift < 64; shift += 8) {
        uint32_t at[256] = {0}, sum = 0;
        for (uint32_t i = 0; i < n; i++)
            at[a[i] >> shift & 255]++;
        if (at[a[0] >> shift & 255] == n)
            continue;
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t count = at[i];
            at[i] = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < n; i++)
            b[at[a[i] >> shift & 255]++] = a[i];
        uint64_t *other = a;
        a = b;
        b = other;
    }
    return a;
}

/* The entries of a list from the oldest to the newest. */
static const uint64_t *rank(const struct job *j, const struct kv_list *l,
                            uint64_t *room)
{
    for (uint32_t i = 0; i < l->len; i++) {
        const struct kv_meta *m = pool_meta(j->t->pool, l->unit[i / KV_UNIT]);
        room[i] = (uint64_t)(uint32_t)m->pos[i % KV_UNIT] << 32 | i;
    }
    if (l->in_order)
        return room;
    return sort(room, room + (size_t)j->m->max_units * KV_UNIT, l->len);
}

static void move_key(const struct job *j, struct turn *turn, unit_id u,
                     uint32_t slot, int32_t to)
{
    const struct model *m = j->m;
    const struct kv_layout *y = pool_layout(j->t->pool);
    struct kv_meta *meta = pool_meta(j->t->pool, u);
    uint8_t *data = pool_data(j->t->pool, u);
    int dim = (int)m->cfg.head_dim;
    float k[OPS_HEAD_DIM_MAX];
    if (meta->rope_pos[slot] == to)
        return;
    set_turn(turn, (int64_t)to - meta->rope_pos[slot]);
    m->ops->kv_load(y, data, slot, k, NULL);
    m->ops->rope(k, 1, dim, dim, turn->cos_sin,
                 m->cfg.family->rope_interleaved);
    float bias;
    memcpy(&bias, data + y->bias + slot * sizeof(bias), sizeof(bias));
    m->ops->kv_store(y, data, slot, k, NULL, bias);
    meta->rope_pos[slot] = to;
}

static void move_list(void *ctx, int task, int thread)
{
    const struct job *j = ctx;
    const struct scratch *s = &j->m->s;
    const struct kv_list *l = &j->t->list[task];
    uint64_t *room =
        (uint64_t *)(void *)(s->thread + (size_t)thread * s->thread_bytes +
                             s->units_bytes);
    struct turn turn = {.m = j->m, .d = INT64_MAX, .block = INT64_MAX};
    if (l->len == 0)
        return;
    for (uint32_t u = 0; u < l->n_units; u++)
        assert(pool_refs(j->t->pool, l->unit[u]) == 1);
    const uint64_t *e = rank(j, l, room);
    for (uint32_t i = 0; i < l->len; i++) {
        uint32_t at = (uint32_t)e[i];
        move_key(j, &turn, l->unit[at / KV_UNIT], at % KV_UNIT,
                 (int32_t)(j->next - l->len + i));
    }
}

uint32_t model_reposition(struct model *m, struct table *t)
{
    struct job j = {.m = m, .t = t, .next = table_max_len(t)};
    assert(t->n_layers == m->cfg.n_layers &&
           t->n_kv_heads == m->cfg.n_kv_heads &&
           pool_layout(t->pool)->head_dim == m->cfg.head_dim);
    assert(table_units_of(j.next) <= m->max_units);
    workers_run(m->opt.workers, (int)(t->n_layers * t->n_kv_heads), move_list,
                &j);
    return j.next;
}
