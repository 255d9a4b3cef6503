/* small.h - an engine over a tiny model, whose retention is drawn, so that
 * what stays is scattered over the prompt. For tests of what the engine makes
 * of keys, values and queries; the toy (toy.h) has none.
 */
#ifndef TESTS_ENGINE_SMALL_H
#define TESTS_ENGINE_SMALL_H

#include "tests/unit/runtime/model/tiny_models.h"
#include "toy.h"

enum {
    SMALL_PROMPT = 400,
    SMALL_ANSWER = 30,
    SMALL_ROWS = 64,
    SMALL_CONTEXT = 1024,
    SMALL_LAYERS = 2,
    SMALL_HEADS = 2,
    SMALL_LISTS = SMALL_LAYERS * SMALL_HEADS,
    SMALL_SINKS = 4,
    SMALL_RECENT = 16,
    SMALL_LEAST = 20 /* of a head */
};

/* The tiny model with few tokens, and the toy's tokenizer. */
struct small {
    struct rig rig;
    struct toy toy;
    struct engine *e;
    float *logits; /* [max_running][n_vocab of the model] */
    /* Of the entries, before the merges that follow a step, over all steps:
     * with a bias; with what no attention can hold; the largest bias in
     * millionths. */
    atomic_int n_biased, n_bad, bias_max;
    /* Pairs of heads of a layer that keep one position and have a bias for it,
     * and those of them in which it differs. */
    atomic_int n_pairs, n_unlike;
    atomic_int n_apart;    /* entries of a position that another head lacks */
    atomic_int decode_pos; /* RoPE position of the last answer's token */
};

/* What differs from one test to the next. */
struct small_setting {
    uint32_t tokens; /* the budget, in those of an f16 pool */
    int n_threads;   /* 0: 2 */
    bool watch_columns, reposition, per_head_sets, unbounded_context;
    /* NULL: small_step(), and nothing is left to later. */
    void (*step)(void *self, const struct model_batch *batch);
    void (*finish_gates)(void *self);
    const struct merge_options *merge; /* NULL: the default */
};

static inline void small_draw_retention(const struct table *t)
{
    for (uint32_t i = 0; i < SMALL_LISTS; i++)
        for (uint32_t e = 0; e < t->list[i].len; e++) {
            struct kv_meta *m =
                pool_meta(t->pool, t->list[i].unit[e / KV_UNIT]);
            uint64_t h = toy_mix(i, (uint64_t)m->pos[e % KV_UNIT]) % 1000;
            m->log_beta[e % KV_UNIT] = -(float)h * 1e-3f;
        }
}

static inline float small_bias_of(const struct table *t,
                                  const struct kv_list *l, uint32_t e)
{
    float bias;
    memcpy(&bias,
           pool_data(t->pool, l->unit[e / KV_UNIT]) +
               pool_layout(t->pool)->bias + sizeof(bias) * (e % KV_UNIT),
           sizeof(bias));
    return bias;
}

static inline bool small_is_sound(const struct table *t,
                                  const struct kv_list *l, uint32_t e)
{
    float k[256], v[256];
    const struct kv_layout *y = pool_layout(t->pool);
    ops_reference.kv_load(y, pool_data(t->pool, l->unit[e / KV_UNIT]),
                          e % KV_UNIT, k, v);
    for (uint32_t d = 0; d < y->head_dim; d++)
        if (!(fabsf(k[d]) < 1e4f) || !(fabsf(v[d]) < 1e4f))
            return false;
    float bias = small_bias_of(t, l, e);
    return bias >= 0 && bias < 100;
}

/* The bias of a position in a list; below 0: it is not there. */
static inline float small_bias_at(const struct table *t,
                                  const struct kv_list *l, int32_t pos)
{
    for (uint32_t e = 0; e < l->len; e++)
        if (pool_meta(t->pool, l->unit[e / KV_UNIT])->pos[e % KV_UNIT] == pos)
            return small_bias_of(t, l, e);
    return -1;
}

static inline void small_compare_heads(struct small *s, const struct table *t)
{
    for (uint32_t i = 0; i < SMALL_LISTS; i += SMALL_HEADS) {
        const struct kv_list *l = &t->list[i];
        for (uint32_t e = 0; e < l->len; e++) {
            const struct kv_meta *m = pool_meta(t->pool, l->unit[e / KV_UNIT]);
            float a = small_bias_of(t, l, e);
            float b = small_bias_at(t, &t->list[i + 1], m->pos[e % KV_UNIT]);
            atomic_fetch_add(&s->n_apart, b < 0);
            if (b < 0 || !(a > 0 || b > 0))
                continue;
            atomic_fetch_add(&s->n_pairs, 1);
            atomic_fetch_add(&s->n_unlike, a != b);
        }
    }
}

static inline void small_look_at(struct small *s, const struct model_run *run)
{
    const struct table *t = run->table;
    for (uint32_t i = 0; i < SMALL_LISTS; i++) {
        const struct kv_list *l = &t->list[i];
        for (uint32_t e = 0; e < l->len; e++) {
            float bias = small_bias_of(t, l, e);
            atomic_fetch_add(&s->n_biased, bias > 0);
            atomic_fetch_add(&s->n_bad, !small_is_sound(t, l, e));
            if ((int)(bias * 1e6f) > atomic_load(&s->bias_max))
                atomic_store(&s->bias_max, (int)(bias * 1e6f));
        }
    }
    small_compare_heads(s, t);
    if (run->n_rows == 1)
        atomic_store(&s->decode_pos, (int)run->pos);
}

static inline void small_step(void *self, const struct model_batch *batch)
{
    struct small *s = self;
    struct model_batch b = *batch;
    b.logits = s->logits;
    toy_wait_while_held(&s->toy);
    model_step(s->rig.model, &b);
    for (uint32_t r = 0; r < b.n_runs; r++) {
        small_draw_retention(b.runs[r].table);
        small_look_at(s, &b.runs[r]);
    }
    for (uint32_t k = 0; k < b.n_logits; k++)
        memcpy(batch->logits + (size_t)k * TOY_VOCAB,
               b.logits + (size_t)k * s->rig.n_vocab,
               TOY_VOCAB * sizeof(float));
    atomic_fetch_add(&s->toy.n_steps, 1);
}

static inline uint32_t small_reposition(void *self, struct table *table)
{
    struct small *s = self;
    return model_reposition(s->rig.model, table);
}

/* The tiny model of that name. */
static inline void small_open_rig(struct rig *r, const char *name,
                                  int n_threads)
{
    const struct rig_options o = {
        .ops = ops_best(),
        .n_threads = n_threads,
        .kv_type = KV_F16,
        .max_rows = SMALL_ROWS,
        .max_runs = 4,
        .max_context = SMALL_CONTEXT,
        .kv_bytes = 4 << 20,
    };
    tiny_open(r, name, &o);
    const struct model_info *i = model_info(r->model);
    assert_true(i->n_layers == SMALL_LAYERS && i->n_kv_heads == SMALL_HEADS);
}

static inline void small_set_up_as(struct small *s, const char *name,
                                   const struct small_setting *set)
{
    uint32_t tokens = set->tokens;
    struct kv_layout y;
    struct errmsg m = {""};
    memset(s, 0, sizeof(*s));
    toy_init(&s->toy);
    small_open_rig(&s->rig, name, set->n_threads ? set->n_threads : 2);
    const struct model_info *i = model_info(s->rig.model);
    s->logits = malloc(sizeof(float) * 4 * s->rig.n_vocab);
    kv_layout_init(&y, KV_F16, i->head_dim);
    struct engine_options eo = toy_options(&s->toy, tokens);
    eo.kv_type = KV_F16;
    eo.kv_bytes =
        pool_unit_bytes(&y) * SMALL_LISTS * ((uint64_t)tokens / KV_UNIT);
    eo.workers = s->rig.workers;
    eo.max_context = SMALL_CONTEXT;
    eo.max_running = 4;
    eo.max_step_rows = SMALL_ROWS;
    eo.deterministic = true;
    eo.merge = set->merge ? *set->merge : merge_options_default();
    eo.forget = (struct forget_options){
        .rules = {.policy = FORGET_DBTRIMKV,
                  .admission.ranking = FORGET_RANK_RETENTION},
        .min_head = SMALL_LEAST,
        .n_sinks = SMALL_SINKS,
        .n_recent = SMALL_RECENT,
        .watch_columns = set->watch_columns,
        .reposition = set->reposition,
        .unbounded_context = set->unbounded_context,
        .per_head_sets = set->per_head_sets};
    const struct lm lm = {.self = s,
                          .n_vocab = TOY_VOCAB,
                          .n_layers = SMALL_LAYERS,
                          .n_kv_heads = SMALL_HEADS,
                          .head_dim = i->head_dim,
                          .step = set->step ? set->step : small_step,
                          .finish_gates = set->finish_gates,
                          .reposition = small_reposition,
                          .model = s->rig.model};
    if (engine_new_lm(&s->e, &eo, &lm, &m) != OK)
        fail_msg("%s", m.text);
}

/* The budget in tokens of an f16 pool. */
static inline void small_set_up(struct small *s, const char *name,
                                uint32_t tokens)
{
    small_set_up_as(s, name, &(const struct small_setting){.tokens = tokens});
}

static inline void small_tear_down(struct small *s)
{
    struct engine_stats st;
    engine_stats(s->e, &st);
    assert_int_equal(st.live_bytes + st.reserved_bytes, 0);
    toy_check_stats(s->e);
    engine_free(s->e);
    free(s->logits);
    rig_close(&s->rig);
    toy_fini(&s->toy);
}

/* A text; `seed` changes it from token `from` on. */
static inline void small_text(int32_t p[SMALL_PROMPT], uint32_t from,
                              uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, 5);
    for (uint32_t i = 0; i < SMALL_PROMPT; i++) {
        if (i == from)
            rng_seed(&rng, seed);
        p[i] = (int32_t)rng_below(&rng, TOY_END);
    }
}

/* The first n tokens of text p, and an answer of max_tokens. */
static inline struct gen *small_ask_for(struct small *s, const int32_t *p,
                                        uint32_t n, uint32_t max_tokens,
                                        struct forget_rules r)
{
    struct gen_request q = toy_request(p, n, max_tokens);
    q.params.ignore_eos = true;
    q.forget = r;
    return toy_submit(s->e, &q);
}

/* The first n tokens of that text, and an answer of SMALL_ANSWER. */
static inline struct gen *small_ask_other(struct small *s, uint32_t n,
                                          uint32_t from, uint64_t seed,
                                          struct forget_rules r)
{
    int32_t p[SMALL_PROMPT];
    small_text(p, from, seed);
    return small_ask_for(s, p, n, SMALL_ANSWER, r);
}

static inline struct gen *small_ask(struct small *s, uint32_t n,
                                    struct forget_rules r)
{
    return small_ask_other(s, n, SMALL_PROMPT, 0, r);
}

static inline struct gen_status small_finish(struct gen *g, struct buf *text)
{
    struct gen_status s = toy_finish(g, text);
    assert_int_equal(s.retained_entries + s.evicted_entries, s.full_entries);
    assert_true(s.merged_entries <= s.evicted_entries);
    assert_int_equal(s.completion_tokens, SMALL_ANSWER);
    gen_release(g);
    return s;
}

#endif
