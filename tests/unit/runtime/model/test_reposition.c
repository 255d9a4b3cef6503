/* Other RoPE positions for stored keys. A sequence of one token attends to
 * itself alone, so its keys are those of the token at that RoPE position in
 * every layer, and its values don't depend on it: what a key should be at
 * another position is what the model computes there. */
#include "tests/unit/runtime/model/tiny_models.h"

#include "base/rng.h"

enum {
    TOKENS = 40,
    CONTEXT = 4096,
    GAP_MAX = CONTEXT / TOKENS,
    /* With a sanitizer, memory and races are looked at, not all models. */
    STRIDE = CHECK_IS_SANITIZED ? 3 : 1
};

static void open_tiny(struct rig *r, const char *name, const struct ops *ops,
                      int n_threads)
{
    const struct rig_options o = {.ops = ops,
                                  .n_threads = n_threads,
                                  .kv_type = KV_F32,
                                  .max_rows = 64,
                                  .max_runs = 1,
                                  .max_context = CONTEXT,
                                  .kv_bytes = 16 << 20};
    tiny_open(r, name, &o);
}

static uint32_t n_lists(const struct rig *r)
{
    return model_info(r->model)->n_layers * model_info(r->model)->n_kv_heads;
}

/* One step of n tokens; the logits of the last one, if wanted. */
static void step(const struct rig *r, struct table *t, const int32_t *tokens,
                 uint32_t n, uint32_t pos, uint32_t rope_pos, float *logits)
{
    uint32_t last = n - 1;
    struct model_run run = {.table = t, .n_rows = n, .pos = rope_pos};
    struct model_batch b = {.n_rows = n,
                            .tokens = tokens,
                            .n_runs = 1,
                            .runs = &run,
                            .n_logits = logits != NULL,
                            .logit_rows = &last,
                            .logits = logits};
    uint64_t need = table_units_needed(t, n);
    assert_int_equal(pool_reserve(t->pool, (uint32_t)need), OK);
    assert_int_equal(table_append(t, n, (int32_t)pos, (int32_t)rope_pos), need);
    model_step(r->model, &b);
}

/* The key and value of one token at a RoPE position, in list i. */
static void truth(const struct rig *r, int32_t token, int32_t rope_pos,
                  uint32_t i, float *k, float *v)
{
    struct table *t = rig_table(r);
    step(r, t, &token, 1, 0, (uint32_t)rope_pos, NULL);
    ops_best()->kv_load(pool_layout(r->pool),
                        pool_data(r->pool, t->list[i].unit[0]), 0, k, v);
    table_free(t);
}

/* What the lists of the table under test hold. */
struct world {
    struct rig r;
    struct pool *pool; /* of the type under test */
    struct table *t;
    int32_t token[TOKENS], old[TOKENS]; /* by logical position */
};

/* Lists with some of the tokens each, in any order but that of list 0. */
static void fill(struct world *w, struct rng *rng)
{
    const struct kv_layout *y = pool_layout(w->pool);
    uint32_t need = (uint32_t)table_units_needed(w->t, TOKENS);
    assert_int_equal(pool_reserve(w->pool, need), OK);
    assert_int_equal(table_append(w->t, TOKENS, 0, 0), need);
    for (uint32_t l = 0; l < n_lists(&w->r); l++) {
        struct kv_list *kv = &w->t->list[l];
        uint32_t order[TOKENS], n = TOKENS - l % 3 * 15;
        for (uint32_t i = 0; i < TOKENS; i++)
            order[i] = i;
        for (uint32_t i = 0; l > 0 && i < n; i++) {
            uint32_t k = i + (uint32_t)rng_below(rng, TOKENS - i), p = order[k];
            order[k] = order[i];
            order[i] = p;
        }
        kv->in_order = l == 0;
        kv->len = n;
        while (kv->n_units > table_units_of(n))
            pool_unref(w->pool, kv->unit[--kv->n_units]);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t p = order[i];
            float k[OPS_HEAD_DIM_MAX], v[OPS_HEAD_DIM_MAX];
            struct kv_meta *m = pool_meta(w->pool, kv->unit[i / 16]);
            truth(&w->r, w->token[p], w->old[p], l, k, v);
            ops_best()->kv_store(y, pool_data(w->pool, kv->unit[i / 16]),
                                 i % 16, k, v, rng_float(rng));
            m->pos[i % 16] = (int32_t)p;
            m->rope_pos[i % 16] = w->old[p];
            m->log_beta[i % 16] = -rng_float(rng);
        }
    }
}

static void new_world(struct world *w, const char *name, enum kv_type type,
                      int n_threads)
{
    struct rng rng;
    struct kv_layout y;
    rng_seed(&rng, 4);
    memset(w, 0, sizeof(*w));
    open_tiny(&w->r, name, ops_best(), n_threads);
    const struct model_info *i = model_info(w->r.model);
    kv_layout_init(&y, type, i->head_dim);
    assert_int_equal(
        pool_new(&w->pool, &y, pool_unit_bytes(&y) * 4 * n_lists(&w->r), NULL),
        OK);
    assert_int_equal(
        table_new(&w->t, w->pool, i->n_layers, i->n_kv_heads, TOKENS), OK);
    int32_t at = 0;
    for (uint32_t p = 0; p < TOKENS; p++) {
        w->token[p] = (int32_t)rng_below(&rng, i->n_vocab);
        w->old[p] = at;
        at += 1 + (int32_t)rng_below(&rng, GAP_MAX);
    }
    fill(w, &rng);
}

static void end_world(struct world *w)
{
    table_free(w->t);
    pool_free(w->pool);
    rig_close(&w->r);
}

/* Entries of the list at higher logical positions. */
static uint32_t n_newer(const struct world *w, const struct kv_list *l,
                        int32_t pos)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->len; i++)
        n += pool_meta(w->pool, l->unit[i / 16])->pos[i % 16] > pos;
    return n;
}

/* Error of all keys against the model's own at their positions; values,
 * biases, positions and retention must be what they were. */
static double error_of(const char *name, enum kv_type type)
{
    struct world w;
    struct nmse e = {0, 0};
    new_world(&w, name, type, 2);
    const struct kv_layout *y = pool_layout(w.pool);
    uint32_t n_units = pool_stats(w.pool).n_units, dim = y->head_dim;
    size_t k_bytes = (size_t)KV_UNIT * dim * y->elem_bytes;
    uint8_t *before = malloc((size_t)n_units * y->data_bytes);
    struct kv_meta *meta = malloc(n_units * sizeof(*meta));
    assert_true(before && meta);
    memcpy(before, pool_data(w.pool, 0), (size_t)n_units * y->data_bytes);
    memcpy(meta, pool_meta(w.pool, 0), n_units * sizeof(*meta));

    assert_int_equal(model_reposition(w.r.model, w.t), TOKENS);
    for (uint32_t l = 0; l < n_lists(&w.r); l++) {
        const struct kv_list *kv = &w.t->list[l];
        for (uint32_t i = 0; i < kv->len; i++) {
            unit_id u = kv->unit[i / 16];
            const struct kv_meta *m = pool_meta(w.pool, u);
            int32_t p = m->pos[i % 16], at = m->rope_pos[i % 16];
            float got[OPS_HEAD_DIM_MAX], want[OPS_HEAD_DIM_MAX];
            assert_int_equal(p, meta[u].pos[i % 16]);
            assert_true(m->log_beta[i % 16] == meta[u].log_beta[i % 16]);
            assert_int_equal(at, TOKENS - 1 - n_newer(&w, kv, p));
            ops_best()->kv_load(y, pool_data(w.pool, u), i % 16, got, NULL);
            truth(&w.r, w.token[p], at, l, want, NULL);
            for (uint32_t k = 0; k < dim; k++)
                nmse_add(&e, (double)got[k], (double)want[k]);
        }
        for (uint32_t u = 0; u < kv->n_units; u++) {
            const uint8_t *was = before + (size_t)kv->unit[u] * y->data_bytes;
            const uint8_t *is = pool_data(w.pool, kv->unit[u]);
            assert_memory_equal(is + y->v, was + y->v, k_bytes);
            assert_memory_equal(is + y->bias, was + y->bias, KV_UNIT * 4);
            if (type == KV_Q8_0)
                assert_memory_equal(is + y->v_scale, was + y->v_scale,
                                    KV_UNIT * 4);
        }
    }
    free(before);
    free(meta);
    end_world(&w);
    return e.error / e.size;
}

static void check_errors(enum kv_type type, double limit)
{
    for (int i = 0; i < N_TINY_MODELS; i += STRIDE) {
        double e = error_of(tiny_models[i], type);
        print_message("%s, %s KV: NMSE %.2g\n", tiny_models[i],
                      kv_type_name(type), e);
        assert_true(e <= limit);
    }
}

static void a_turned_key_is_that_of_its_new_position(void **state)
{
    (void)state;
    check_errors(KV_F32, 1e-12);
    check_errors(KV_F16, 1e-6);
    check_errors(KV_Q8_0, 3e-4);
}

/* RoPE is relative: a sequence at positions from 700 on answers as the same
 * one from 0 on. */
static double shifted(const char *name, const struct ops *ops,
                      enum kv_type type)
{
    struct rig r;
    struct kv_layout y;
    struct pool *pool = NULL;
    struct table *t = NULL;
    struct rng rng;
    int32_t tokens[49];
    open_tiny(&r, name, ops, 2);
    const struct model_info *i = model_info(r.model);
    rng_seed(&rng, 6);
    for (uint32_t k = 0; k < 49; k++)
        tokens[k] = (int32_t)rng_below(&rng, i->n_vocab);
    kv_layout_init(&y, type, i->head_dim);
    assert_int_equal(pool_new(&pool, &y, 8 << 20, NULL), OK);
    assert_int_equal(table_new(&t, pool, i->n_layers, i->n_kv_heads, 64), OK);
    float *want = malloc(sizeof(*want) * i->n_vocab);
    float *got = malloc(sizeof(*got) * i->n_vocab);
    assert_true(want && got);
    step(&r, t, tokens, 48, 0, 700, NULL);
    step(&r, t, tokens + 48, 1, 48, 748, want);
    (void)table_truncate(t, 48);
    uint32_t next = model_reposition(r.model, t);
    assert_int_equal(next, 48);
    step(&r, t, tokens + 48, 1, 48, next, got);
    struct nmse e = {0, 0};
    for (uint32_t k = 0; k < i->n_vocab; k++)
        nmse_add(&e, (double)got[k], (double)want[k]);
    free(want);
    free(got);
    table_free(t);
    pool_free(pool);
    rig_close(&r);
    return e.error / e.size;
}

static void a_shift_of_all_positions_changes_no_answer(void **state)
{
    (void)state;
    for (int i = 0; i < N_TINY_MODELS; i += STRIDE) {
        /* Kernels that round activations to int8 turn a last bit into more. */
        double f32 = shifted(tiny_models[i], &ops_reference, KV_F32);
        double f16 = shifted(tiny_models[i], ops_best(), KV_F16);
        print_message("%s: NMSE %.2g with f32 KV, %.2g with f16\n",
                      tiny_models[i], f32, f16);
        assert_true(f32 <= 1e-9);
        assert_true(f16 <= 1e-5);
    }
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    (void)state;
    struct world one, three;
    new_world(&one, "llama-gqa3-64", KV_F16, 1);
    new_world(&three, "llama-gqa3-64", KV_F16, 3);
    (void)model_reposition(one.r.model, one.t);
    (void)model_reposition(three.r.model, three.t);
    size_t n = pool_stats(one.pool).n_units;
    assert_memory_equal(pool_data(one.pool, 0), pool_data(three.pool, 0),
                        n * pool_layout(one.pool)->data_bytes);
    assert_memory_equal(pool_meta(one.pool, 0), pool_meta(three.pool, 0),
                        n * sizeof(struct kv_meta));
    /* Done once more it finds nothing to do. */
    (void)model_reposition(one.r.model, one.t);
    assert_memory_equal(pool_data(one.pool, 0), pool_data(three.pool, 0),
                        n * pool_layout(one.pool)->data_bytes);
    end_world(&one);
    end_world(&three);
}

static void an_empty_table_starts_at_zero(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "qwen2-gqa7-64", ops_best(), 1);
    struct table *t = rig_table(&r);
    assert_int_equal(model_reposition(r.model, t), 0);
    table_free(t);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turned_key_is_that_of_its_new_position),
        cmocka_unit_test(a_shift_of_all_positions_changes_no_answer),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes),
        cmocka_unit_test(an_empty_table_starts_at_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
