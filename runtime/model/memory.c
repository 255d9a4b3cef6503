#include "runtime/model/model_internal.h"

#include <math.h>
#include <sys/mman.h>

#include "base/layout.h"

enum {
    HUGE_PAGE_BYTES = 2 << 20,
    /* Rows that one packing task takes: enough to make tasks rare, few enough
     * that the last one does not keep the others waiting. */
    PACK_ROWS = 256,
    /* Segments of split lists that can wait for their join, at least: the
     * decode rows of a busy step are enough tasks without splitting, so this
     * need not grow with the batch. */
    STATES_MIN = 512
};

void *model_map(uint64_t bytes)
{
    uint64_t all = bytes + HUGE_PAGE_BYTES;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    uint8_t *at = mmap(NULL, all, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    /* Cut off what lies before the first boundary and after the last page. */
    uint64_t before = -(uintptr_t)at & (HUGE_PAGE_BYTES - 1);
    if (before > 0)
        munmap(at, before);
    if (before < HUGE_PAGE_BYTES)
        munmap(at + before + bytes, HUGE_PAGE_BYTES - before);
    (void)madvise(at + before, bytes, MADV_HUGEPAGE);
    return at + before;
}

void model_unmap(void *at, uint64_t bytes)
{
    if (at)
        munmap(at, bytes);
}

static uint64_t align_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Walks over the matrices: first adds up, then gives each its place. */
struct packing {
    const struct ops *ops;
    struct layout room;
    struct workers *workers;
    const struct gguf *g;
    struct weight *w; /* in work */
};

static void place(struct weight *w, void *ctx)
{
    struct packing *p = ctx;
    uint64_t bytes = p->ops->weight_bytes(w);
    void *at = layout_cut(&p->room, bytes, 1);
    if (at && bytes > 0)
        w->packed = at;
}

static void pack_rows(void *ctx, int task, int thread)
{
    const struct packing *p = ctx;
    int64_t row0 = (int64_t)task * PACK_ROWS, row1 = row0 + PACK_ROWS;
    (void)thread;
    p->ops->weight_pack(p->w, row0, row1 < p->w->rows ? row1 : p->w->rows);
}

static void pack(struct weight *w, void *ctx)
{
    struct packing *p = ctx;
    if (!w->packed)
        return;
    p->w = w;
    workers_run(p->workers, (int)((w->rows + PACK_ROWS - 1) / PACK_ROWS),
                pack_rows, p);
    const struct dtype_info *t = dtype_info(w->type);
    gguf_drop_pages(p->g, w->raw,
                    (uint64_t)(w->rows * w->cols) / t->block_elems *
                        t->block_bytes);
}

enum err model_pack_weights(struct model *m, const struct gguf *g,
                            struct errmsg *e)
{
    struct packing p = {.ops = m->ops, .workers = m->opt.workers, .g = g};
    model_each_weight(m, place, &p);
    uint64_t bytes = p.room.bytes;
    m->info.packed_bytes = bytes;
    if (bytes == 0)
        return OK;
    m->packed_map_bytes = align_up(bytes, HUGE_PAGE_BYTES);
    m->packed_map = model_map(m->packed_map_bytes);
    if (!m->packed_map)
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of weights",
                       (unsigned long long)bytes);
    p.room = (struct layout){.base = m->packed_map};
    model_each_weight(m, place, &p);
    model_each_weight(m, pack, &p);
    return OK;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The kernels' scratch for the largest call, whatever the KV type. */
static uint64_t attend_scratch_max(const struct model *m)
{
    uint64_t most = 0;
    const struct config *c = &m->cfg;
    for (int type = KV_F16; type <= KV_F32; type++) {
        struct kv_layout l;
        kv_layout_init(&l, (enum kv_type)type, c->head_dim);
        struct attend_args a = {.layout = &l,
                                .n_visible = m->opt.max_context,
                                .n_query = OPS_QUERY_MAX,
                                .group = (int)(c->n_heads / c->n_kv_heads),
                                .q_stride = c->n_heads * c->head_dim,
                                .out_stride = c->n_heads * c->head_dim};
        most = max_u64(most, m->ops->attend_scratch_bytes(&a));
    }
    return most;
}

static void lay_out(struct model *m, struct layout *l)
{
    const struct config *c = &m->cfg;
    struct scratch *s = &m->s;
    uint64_t R = m->opt.max_rows, E = c->n_embd, F = c->n_ff;
    uint64_t Q = (uint64_t)c->n_heads * c->head_dim;
    uint64_t KV = (uint64_t)c->n_kv_heads * c->head_dim;
    uint64_t f = sizeof(float);
    uint64_t group = c->n_heads / c->n_kv_heads;
    uint64_t packed = m->ops->act_bytes((int64_t)R, (int64_t)E);
    packed = max_u64(packed, m->ops->act_bytes((int64_t)R, (int64_t)Q));
    packed = max_u64(packed, m->ops->act_bytes((int64_t)R, (int64_t)F));

    s->x = layout_cut(l, R * E, f);
    s->h = layout_cut(l, R * E, f);
    s->y = layout_cut(l, R * E, f);
    s->qkv = layout_cut(l, R * (Q + 2 * KV), f);
    s->att = layout_cut(l, R * Q, f);
    s->norm = layout_cut(l, R * c->n_heads * 2, f);
    s->gate = layout_cut(l, R * F, f);
    s->up = layout_cut(l, R * F, f);
    s->rope = layout_cut(l, R * c->head_dim, f);
    s->packed = layout_cut(l, packed, 1);
    s->row = layout_cut(l, R, sizeof(*s->row));
    s->task = layout_cut(l, m->max_tasks, sizeof(*s->task));
    s->split = layout_cut(l, m->max_splits, sizeof(*s->split));
    s->state = layout_cut(l, m->max_states * group, f * m->state_floats);
    s->turn =
        layout_cut(l, MODEL_TURNS * (uint64_t)c->head_dim, sizeof(*s->turn));
    uint64_t per_thread =
        max_u64(attend_scratch_max(m), model_reposition_bytes(m->max_units));
    uint64_t n_threads = (uint64_t)workers_count(m->opt.workers);
    struct layout thread = {0};
    (void)layout_cut(&thread, m->max_units, sizeof(uint8_t *));
    s->units_bytes = thread.bytes;
    (void)layout_cut(&thread, per_thread, 1);
    s->thread_bytes = thread.bytes;
    s->thread = layout_cut(l, n_threads, s->thread_bytes);
}

static enum err make_rope_freq(struct model *m, struct errmsg *e)
{
    const struct config *c = &m->cfg;
    uint32_t half = c->head_dim / 2;
    m->rope_freq = arena_array(&m->vectors, half, sizeof(*m->rope_freq));
    if (!m->rope_freq)
        return err_set(e, ERR_NOMEM, "no memory for %u RoPE frequencies", half);
    for (uint32_t i = 0; i < half; i++) {
        double f = pow(c->rope_base, -2.0 * (double)i / (double)c->head_dim);
        if (m->rope_factors)
            f /= (double)m->rope_factors[i];
        m->rope_freq[i] = f / c->rope_scale;
    }
    for (int64_t i = 0; i < MODEL_TURNS; i++)
        model_turn(m, i, m->s.turn + (size_t)i * c->head_dim);
    return OK;
}

enum err model_make_scratch(struct model *m, struct errmsg *e)
{
    const struct config *c = &m->cfg;
    const struct model_options *o = &m->opt;
    struct layout l = {0};
    uint32_t segments = (o->max_context + KV_SEGMENT - 1) / KV_SEGMENT;
    m->attn_scale = 1.0f / sqrtf((float)c->head_dim);
    m->state_floats = (size_t)m->ops->attend_state_floats(c->head_dim);
    m->max_units = (o->max_context + KV_UNIT - 1) / KV_UNIT;
    m->max_states = max_u64(STATES_MIN, (uint64_t)c->n_kv_heads * segments);
    m->max_splits = (uint64_t)o->max_runs * c->n_kv_heads;
    m->max_tasks = (uint64_t)o->max_rows * c->n_kv_heads + m->max_states;
    lay_out(m, &l);
    m->info.scratch_bytes = l.bytes;
    m->scratch_map_bytes = align_up(l.bytes, HUGE_PAGE_BYTES);
    m->scratch_map = model_map(m->scratch_map_bytes);
    if (!m->scratch_map)
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of step scratch",
                       (unsigned long long)l.bytes);
    l = (struct layout){.base = m->scratch_map};
    lay_out(m, &l);
    return make_rope_freq(m, e);
}
