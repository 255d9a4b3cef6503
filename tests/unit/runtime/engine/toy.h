/* toy.h - a language model for tests whose answers show what it was given.
 *
 * It writes each token's id into the keys (and another number into the values
 * and nothing else anywhere), and computes the logits of a row from what it
 * reads back through the tables: a hash over the tokens and positions of all
 * entries of all lists up to that row. So an entry too many, too few, of
 * another request or of an older text changes the answer. toy_answer() tells
 * from the tokens alone what the answer must be.
 */
#ifndef TESTS_ENGINE_TOY_H
#define TESTS_ENGINE_TOY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/text/tokenizer.h"

enum {
    TOY_LAYERS = 2,
    TOY_HEADS = 2,
    TOY_LISTS = TOY_LAYERS * TOY_HEADS,
    TOY_DIM = 8,
    TOY_VOCAB = 30,
    TOY_END = 26, /* <|end|>; 0 to 25 are the letters */
    TOY_NAN = 27, /* after this token all logits are NaN */
    /* The two bytes of an e with an acute accent; never chosen by itself. */
    TOY_C3 = 28,
    TOY_A9 = 29,
    /* What a test waits for comes at once or never: so long even where a
     * machine stalls or runs everything tenfold slower. */
    TOY_PATIENCE_US = 60 * 1000 * 1000,
};

struct toy {
    struct tokenizer *tokenizer;
    struct workers *workers;
    atomic_int n_steps;
    atomic_int n_repositions;
    uint32_t max_context; /* no position may reach it; 0: any */
    atomic_int n_faults;  /* entries that are not where they belong */
    atomic_uint delay_us; /* of each step, and per row */
    atomic_uint row_us;
    atomic_uint rows_max; /* largest step */
    atomic_bool is_held;  /* steps wait, from number held_from on */
    atomic_int held_from; /* 0 is the first step */
    atomic_bool is_stuck; /* one waits */
    /* When set, each step checks the books of this engine. */
    struct engine *_Atomic watched;
};

static inline uint64_t toy_mix(uint64_t h, uint64_t x)
{
    uint64_t s = h ^ (x + 1) * 0x9e3779b97f4a7c15u;
    return rng_splitmix(&s);
}

/* The logits after a history with this hash. */
static inline void toy_logits(float *out, uint64_t h, int32_t last)
{
    for (int i = 0; i < TOY_VOCAB; i++) {
        uint64_t s = toy_mix(h, (uint64_t)i);
        out[i] = (float)(s % 10000) / 1000.0f;
        if (i > TOY_END)
            out[i] = -100.0f;
        if (last == TOY_NAN)
            out[i] = NAN;
    }
}

static inline uint64_t toy_seed(void)
{
    return 7;
}

static inline float *toy_key(const struct pool *p, const struct kv_list *l,
                             uint32_t entry)
{
    unit_id u = l->unit[entry / KV_UNIT];
    const struct kv_layout *lay = pool_layout(p);
    return (float *)(void *)(pool_data(p, u) + lay->k) +
           kv_key_index(lay, entry % KV_UNIT, 0);
}

/* Retention that differs by list, token and position; a tenth fade never. */
static inline float toy_lambda(uint32_t i_list, int32_t token, uint32_t pos)
{
    uint64_t h = toy_mix(toy_mix(i_list, (uint64_t)token), pos) % 1000;
    return h < 100 ? 0.0f : -(float)h * 1e-3f;
}

static inline void toy_write(const struct model_run *run, const int32_t *token)
{
    struct pool *p = run->table->pool;
    for (uint32_t i = 0; i < TOY_LISTS; i++) {
        const struct kv_list *l = &run->table->list[i];
        for (uint32_t r = 0; r < run->n_rows; r++) {
            uint32_t at = l->len - run->n_rows + r;
            struct kv_meta *m = pool_meta(p, l->unit[at / KV_UNIT]);
            *toy_key(p, l, at) = (float)(token[r] * 16 + (int32_t)i);
            m->log_beta[at % KV_UNIT] =
                toy_lambda(i, token[r], (uint32_t)m->pos[at % KV_UNIT]);
        }
    }
}

/* Whether entry e of list i is the one of that token and position, moved or
 * not. */
static inline bool toy_is_entry(const struct table *tb, uint32_t i, uint32_t e,
                                const int32_t *token)
{
    const struct kv_list *l = &tb->list[i];
    const struct kv_meta *m = pool_meta(tb->pool, l->unit[e / KV_UNIT]);
    int32_t pos = m->pos[e % KV_UNIT];
    return (int32_t)*toy_key(tb->pool, l, e) == token[pos] * 16 + (int32_t)i &&
           m->log_beta[e % KV_UNIT] == toy_lambda(i, token[pos], (uint32_t)pos);
}

/* Faults of a session: entries that are not its own or there twice, and
 * missing ones that are protected. What was shared, before position `from`,
 * may have been lost before it was. */
static inline int toy_check_session(const struct session *s, uint32_t from,
                                    const struct forget_options *o)
{
    uint8_t *seen = calloc(s->n_stored + 1, 1);
    int32_t *rope = calloc(s->n_stored + 1, sizeof(*rope));
    uint64_t held = 0;
    int faults = 0;
    for (uint32_t i = 0; i < TOY_LISTS; i++) {
        const struct kv_list *l = &s->table->list[i];
        memset(seen, 0, s->n_stored);
        held += l->len;
        for (uint32_t e = 0; e < l->len; e++) {
            const struct kv_meta *m =
                pool_meta(s->table->pool, l->unit[e / KV_UNIT]);
            int32_t pos = m->pos[e % KV_UNIT];
            if (pos < 0 || (uint32_t)pos >= s->n_stored || seen[pos]++ ||
                !toy_is_entry(s->table, i, e, s->token))
                faults++;
            else
                rope[pos] = m->rope_pos[e % KV_UNIT];
        }
        /* RoPE positions ascend with the logical ones, and are these as long
         * as the session was never re-positioned. */
        int32_t last = -1;
        for (uint32_t p = 0; p < s->n_stored; p++) {
            if (!seen[p])
                continue;
            faults += rope[p] <= last || rope[p] >= (int32_t)s->rope;
            faults += s->rope == s->n_stored && rope[p] != (int32_t)p;
            last = rope[p];
        }
        for (uint32_t p = 0; p < s->n_stored; p++) {
            bool must = p + o->n_recent >= s->n_stored;
            for (uint32_t k = 0; k < s->n_pins; k++)
                must |=
                    (int32_t)p >= s->pin[k].from && (int32_t)p < s->pin[k].to;
            must = p < o->n_sinks || (must && p >= from) || !session_forgets(s);
            faults += must && !seen[p];
        }
        faults += from == 0 && l->len < s->n_stored && l->len < o->min_head;
    }
    faults += held + s->n_lost != (uint64_t)s->n_stored * TOY_LISTS;
    free(seen);
    free(rope);
    return faults;
}

/* A lossy session: whatever is there, in the order in which it is there. */
static inline uint64_t toy_read_lossy(const struct model_run *run,
                                      int32_t *last)
{
    uint64_t h = toy_seed();
    const struct table *tb = run->table;
    for (uint32_t i = 0; i < TOY_LISTS; i++) {
        const struct kv_list *l = &tb->list[i];
        for (uint32_t e = 0; e < l->len; e++) {
            const struct kv_meta *m = pool_meta(tb->pool, l->unit[e / KV_UNIT]);
            int32_t v = (int32_t)*toy_key(tb->pool, l, e);
            h = toy_mix(h, (uint64_t)m->pos[e % KV_UNIT]);
            h = toy_mix(h, (uint64_t)(v / 16));
            *last = v / 16;
        }
    }
    return h;
}

/* Only rows that are the last of their run are read in lossy sessions. */
static inline uint64_t toy_read(struct toy *t, const struct model_run *run,
                                uint32_t row, int32_t *last)
{
    uint64_t h = toy_seed();
    const struct table *tb = run->table;
    uint32_t newest = tb->list[0].len - 1;
    int32_t n_seen = 1 + pool_meta(tb->pool, tb->list[0].unit[newest / KV_UNIT])
                             ->pos[newest % KV_UNIT];
    if (table_n_entries(tb) != (uint64_t)n_seen * TOY_LISTS)
        return toy_read_lossy(run, last);
    uint32_t n = tb->list[0].len - run->n_rows + row + 1;
    for (uint32_t e = 0; e < n; e++) {
        for (uint32_t i = 0; i < TOY_LISTS; i++) {
            const struct kv_list *l = &tb->list[i];
            const struct kv_meta *m = pool_meta(tb->pool, l->unit[e / KV_UNIT]);
            int32_t v = (int32_t)*toy_key(tb->pool, l, e);
            if (m->pos[e % KV_UNIT] != (int32_t)e || v % 16 != (int32_t)i ||
                l->len != tb->list[0].len || run->pos + row + 1 != n)
                atomic_fetch_add(&t->n_faults, 1);
            h = toy_mix(h, (uint64_t)(v / 16));
            *last = v / 16;
        }
    }
    return h;
}

static inline void toy_sleep(unsigned us)
{
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    if (us > 0)
        nanosleep(&t, NULL);
}

/* Counts from the sessions' tables what pool and sessions say of themselves.
 * On the engine thread. Each false statement is a fault. */
static inline void toy_check_books(struct toy *t, const struct engine *e)
{
    const struct sessions *ss = &e->sessions;
    struct pool_stats p = pool_stats(ss->pool);
    uint32_t *refs = calloc(p.n_units, sizeof(*refs));
    uint32_t *live = calloc(p.n_units, sizeof(*live));
    uint32_t *exact = calloc(p.n_units, sizeof(*exact));
    uint32_t *slots = calloc(p.n_units, sizeof(*slots));
    uint64_t held = 0, used = 0, prefix = 0, reserved = 0, entries = 0,
             n_exact = 0, n_reserved = 0, guaranteed = 0, lost = 0;
    uint32_t n = 0;
    int faults = 0;

    for (int k = 0; k < 2; k++) {
        const struct session *s = k == 0 ? ss->running.first : ss->rest.first;
        for (; s; s = s->next, n++) {
            bool is_exact = !session_forgets(s);
            faults += s->is_running != (k == 0);
            faults += s->n_stored > s->n_known || s->n_known > s->cap;
            faults += s->goal < s->n_stored && k == 0;
            faults += k == 1 && (s->n_stored != s->n_known || s->reserved > 0 ||
                                 s->guarantee > 0);
            reserved += s->reserved;
            n_reserved += is_exact ? s->reserved : 0;
            guaranteed += s->guarantee;
            lost += s->n_lost;
            entries += table_n_entries(s->table);
            if (s->is_running)
                faults += session_missing(s, is_exact ? s->cap : s->goal) > 0;
            faults += is_exact && s->n_lost > 0;
            for (int i = 0; i < TOY_LISTS; i++) {
                const struct kv_list *l = &s->table->list[i];
                faults += is_exact && l->len != s->n_stored;
                faults += l->n_units != (l->len + KV_UNIT - 1) / KV_UNIT;
                for (uint32_t u = 0; u < l->n_units; u++) {
                    refs[l->unit[u]]++;
                    for (uint32_t at = u * KV_UNIT;
                         at < (u + 1) * KV_UNIT && at < l->len; at++)
                        slots[l->unit[u]] |= 1u << at % KV_UNIT;
                    live[l->unit[u]] += k == 0;
                    exact[l->unit[u]] += k == 0 && is_exact;
                }
            }
        }
    }
    for (const struct session *s = ss->oldest; s; s = s->newer) {
        n--;
        faults += s->newer ? s->newer->older != s : s != ss->newest;
    }
    for (uint32_t u = 0; u < p.n_units; u++) {
        faults += pool_refs(ss->pool, u) != refs[u];
        faults += ss->live_refs[u] != live[u];
        faults += ss->exact_refs[u] != exact[u];
        used += refs[u] > 0;
        prefix += refs[u] > 0 && live[u] == 0;
        n_exact += exact[u] > 0;
        held += (uint32_t)__builtin_popcount(slots[u]);
    }
    faults += n != 0;
    faults += used != p.used;
    faults += prefix != ss->n_prefix;
    faults += n_exact != ss->n_exact;
    faults += reserved != p.reserved;
    faults += n_reserved != ss->n_reserved;
    faults += guaranteed != ss->n_guaranteed;
    faults += entries != ss->n_entries;
    faults += lost != ss->n_lost;
    faults += held != ss->n_held;
    faults += used + reserved > p.n_units;
    faults += sessions_promised(ss) > p.n_units;
    atomic_fetch_add(&t->n_faults, faults);
    free(refs);
    free(live);
    free(exact);
    free(slots);
}

/* After a step: what every session holds is its own. */
static inline void toy_check_entries(struct toy *t, const struct engine *e)
{
    for (const struct session *s = e->sessions.oldest; s; s = s->newer) {
        uint32_t from = s->n_stored;
        for (uint32_t i = 0; i < e->n_running; i++)
            if (e->running[i]->session == s)
                from = e->running[i]->now.cached_tokens;
        atomic_fetch_add(&t->n_faults,
                         toy_check_session(s, from, &e->o.forget));
    }
}

/* As model_reposition(), by sorting: of each list the newest comes last, at
 * R - 1. */
static inline uint32_t toy_reposition(void *self, struct table *tb)
{
    struct toy *t = self;
    uint32_t longest = table_max_len(tb);
    for (uint32_t i = 0; i < TOY_LISTS; i++) {
        const struct kv_list *l = &tb->list[i];
        for (uint32_t e = 0; e < l->len; e++) {
            struct kv_meta *m = pool_meta(tb->pool, l->unit[e / KV_UNIT]);
            uint32_t newer = 0;
            if (pool_refs(tb->pool, l->unit[e / KV_UNIT]) != 1)
                atomic_fetch_add(&t->n_faults, 1);
            for (uint32_t k = 0; k < l->len; k++)
                newer += pool_meta(tb->pool, l->unit[k / KV_UNIT])
                             ->pos[k % KV_UNIT] > m->pos[e % KV_UNIT];
            m->rope_pos[e % KV_UNIT] = (int32_t)(longest - 1 - newer);
        }
    }
    atomic_fetch_add(&t->n_repositions, 1);
    return longest;
}

/* What a step begins with. */
static inline void toy_wait_while_held(struct toy *t)
{
    while (atomic_load(&t->is_held) &&
           atomic_load(&t->n_steps) >= atomic_load(&t->held_from)) {
        atomic_store(&t->is_stuck, true);
        toy_sleep(200);
    }
    atomic_store(&t->is_stuck, false);
}

static inline void toy_step(void *self, const struct model_batch *b)
{
    struct toy *t = self;
    uint32_t row = 0, k = 0;
    if (atomic_load(&t->watched))
        toy_check_books(t, atomic_load(&t->watched));
    toy_wait_while_held(t);
    toy_sleep(atomic_load(&t->delay_us) + b->n_rows * atomic_load(&t->row_us));
    if (b->n_rows > atomic_load(&t->rows_max))
        atomic_store(&t->rows_max, b->n_rows);
    for (uint32_t r = 0; r < b->n_runs; r++) {
        if (t->max_context > 0 &&
            b->runs[r].pos + b->runs[r].n_rows > t->max_context)
            atomic_fetch_add(&t->n_faults, 1);
        toy_write(&b->runs[r], b->tokens + row);
        row += b->runs[r].n_rows;
    }
    row = 0;
    for (uint32_t r = 0; r < b->n_runs; r++) {
        for (uint32_t i = 0; i < b->runs[r].n_rows; i++, row++) {
            if (k == b->n_logits || b->logit_rows[k] != row)
                continue;
            int32_t last = 0;
            uint64_t h = toy_read(t, &b->runs[r], i, &last);
            toy_logits(b->logits + (size_t)k++ * TOY_VOCAB, h, last);
        }
    }
    if (atomic_load(&t->watched))
        toy_check_entries(t, atomic_load(&t->watched));
    if (k != b->n_logits || row != b->n_rows)
        atomic_fetch_add(&t->n_faults, 1);
    atomic_fetch_add(&t->n_steps, 1);
}

/* Returns when n more steps are done and the next has begun and waits to be let
 * go on. To be called while a step waits or none can begin. */
static inline void toy_hold_after(struct toy *t, int n)
{
    int64_t until = clock_us() + TOY_PATIENCE_US;
    int from = atomic_load(&t->n_steps) + n;
    atomic_store(&t->held_from, from);
    atomic_store(&t->is_held, true);
    while (!atomic_load(&t->is_stuck) || atomic_load(&t->n_steps) < from) {
        if (clock_us() > until)
            fail_msg("no step begins");
        toy_sleep(100);
    }
}

/* The same with the next step that begins, or with the one that waits. */
static inline void toy_hold(struct toy *t)
{
    toy_hold_after(t, 0);
}

/* Until a callback has counted so far. */
static inline void toy_wait_count(atomic_int *count, int n)
{
    int64_t until = clock_us() + TOY_PATIENCE_US;
    while (atomic_load(count) < n) {
        if (clock_us() > until)
            fail_msg("only %d of %d calls came", atomic_load(count), n);
        toy_sleep(100);
    }
}

/* Until nothing waits or runs. */
static inline void toy_wait_idle(struct engine *e)
{
    int64_t until = clock_us() + TOY_PATIENCE_US;
    while (!engine_is_idle(e)) {
        if (clock_us() > until)
            fail_msg("the engine does not come to rest");
        toy_sleep(100);
    }
}

static inline struct tokenizer *toy_tokenizer(void)
{
    static const char *const names[TOY_VOCAB] = {
        "a", "b", "c", "d", "e", "f", "g",       "h",       "i",      "j",
        "k", "l", "m", "n", "o", "p", "q",       "r",       "s",      "t",
        "u", "v", "w", "x", "y", "z", "<|end|>", "<|nan|>", "\u00c3", "\u00a9"};
    struct gguf_str text[TOY_VOCAB];
    int32_t type[TOY_VOCAB];
    for (int i = 0; i < TOY_VOCAB; i++) {
        text[i] = (struct gguf_str){names[i], strlen(names[i])};
        type[i] = i < TOY_END || i > TOY_NAN ? TOKEN_NORMAL : TOKEN_CONTROL;
    }
    const struct tokenizer_spec spec = {
        .pre = {"gpt-2", 5},
        .token = text,
        .type = type,
        .n_tokens = TOY_VOCAB,
        .bos = -1,
        .eos = TOY_END,
        .eot = -1,
        .eom = -1,
    };
    struct tokenizer *t = NULL;
    struct errmsg m;
    if (tokenizer_new(&t, &spec, &m) != OK)
        fail_msg("%s", m.text);
    return t;
}

static inline void toy_init(struct toy *t)
{
    memset(t, 0, sizeof(*t));
    t->tokenizer = toy_tokenizer();
    assert_int_equal(workers_new(&t->workers, 3, NULL), OK);
}

static inline void toy_fini(struct toy *t)
{
    tokenizer_free(t->tokenizer);
    workers_free(t->workers);
}

static inline uint64_t toy_unit_bytes(void)
{
    struct kv_layout l;
    kv_layout_init(&l, KV_F32, TOY_DIM);
    return pool_unit_bytes(&l);
}

static inline struct engine_options toy_options(const struct toy *t,
                                                uint32_t pool_tokens)
{
    return (struct engine_options){
        .tokenizer = t->tokenizer,
        .workers = t->workers,
        .kv_bytes = toy_unit_bytes() * TOY_LISTS * (pool_tokens / KV_UNIT),
        .kv_type = KV_F32,
        .max_context = 512,
        .max_running = 8,
        .max_queue = 64,
        .max_step_rows = 64,
        .step_target_us = 1000,
    };
}

static inline struct engine *toy_engine(struct toy *t,
                                        const struct engine_options *o)
{
    const struct lm lm = {
        .self = t,
        .n_vocab = TOY_VOCAB,
        .n_layers = TOY_LAYERS,
        .n_kv_heads = TOY_HEADS,
        .head_dim = TOY_DIM,
        .step = toy_step,
        .reposition = toy_reposition,
    };
    struct engine *e = NULL;
    struct errmsg m;
    t->max_context = o->max_context;
    if (engine_new_lm(&e, o, &lm, &m) != OK)
        fail_msg("%s", m.text);
    atomic_store(&t->watched, e);
    return e;
}

/* Ends the engine; everything that is in the pool must go with it (the pool
 * asserts that). */
static inline void toy_end(struct toy *t, struct engine *e)
{
    engine_free(e);
    assert_int_equal(atomic_load(&t->n_faults), 0);
}

/* A greedy request for n tokens. */
static inline struct gen_request toy_request(const int32_t *token, uint32_t n,
                                             uint32_t max_tokens)
{
    struct gen_request r = {0};
    r.params.top_p = 1.0f;
    r.params.repetition_penalty = 1.0f;
    r.params.has_max_tokens = true;
    r.params.max_tokens = max_tokens;
    r.tokens = malloc(n * sizeof(*token) + 1);
    memcpy(r.tokens, token, n * sizeof(*token));
    r.n_tokens = n;
    return r;
}

static inline void toy_add_stop(struct gen_request *r, const char *s)
{
    r->stop[r->n_stops] = strdup(s);
    r->stop_len[r->n_stops++] = strlen(s);
}

static inline struct gen *toy_submit(struct engine *e, struct gen_request *r)
{
    struct gen *g = NULL;
    struct errmsg m;
    enum gen_refusal why;
    if (engine_submit(e, r, &g, &why, &m) != OK)
        fail_msg("%s", m.text);
    return g;
}

/* Waits until the request is in that state or past it. */
static inline struct gen_status toy_wait(struct gen *g, enum gen_state state)
{
    struct gen_status s;
    int64_t until = clock_us() + TOY_PATIENCE_US;
    for (;;) {
        gen_status(g, &s);
        if (s.state >= state)
            return s;
        if (clock_us() > until)
            fail_msg("a request does not get beyond state %d", (int)s.state);
        toy_sleep(100);
    }
}

/* To the end, and until its conversation is at rest. */
static inline struct gen_status toy_complete(struct engine *e,
                                             struct gen_request *r)
{
    struct gen *g = toy_submit(e, r);
    struct gen_status s = toy_wait(g, GEN_DONE);
    gen_release(g);
    toy_wait_idle(e);
    return s;
}

/* Everything to the end; the text is appended. */
static inline struct gen_status toy_finish(struct gen *g, struct buf *text)
{
    struct gen_status s;
    toy_wait(g, GEN_DONE);
    if (gen_read(g, text, &s) != OK)
        fail();
    return s;
}

/* What the answer must be: letters, and how it ends. */
struct toy_answer {
    char text[4096];
    int32_t token[4096]; /* as chosen, the end token included */
    uint32_t n;
    enum gen_finish finish;
};

static inline uint64_t toy_hash(const int32_t *token, uint32_t n)
{
    uint64_t h = toy_seed();
    for (uint32_t e = 0; e < n; e++)
        for (uint32_t i = 0; i < TOY_LISTS; i++)
            h = toy_mix(h, (uint64_t)token[e]);
    return h;
}

static inline void toy_answer(struct toy_answer *a, const int32_t *prompt,
                              uint32_t n, uint32_t max_tokens, bool ignore_eos)
{
    float l[TOY_VOCAB];
    uint64_t h = toy_hash(prompt, n);
    int32_t last = prompt[n - 1];
    size_t len = 0;
    a->n = 0;
    a->finish = GEN_FINISH_LENGTH;
    while (a->n < max_tokens) {
        int32_t best = 0;
        toy_logits(l, h, last);
        for (int i = 1; i < TOY_VOCAB; i++)
            if (l[i] > l[best])
                best = i;
        if (isnan(l[0]))
            best = TOY_END;
        a->token[a->n++] = last = best;
        if (best == TOY_END && !ignore_eos) {
            a->finish = GEN_FINISH_STOP;
            break;
        }
        if (best < TOY_END)
            a->text[len++] = (char)('a' + best);
        for (uint32_t i = 0; i < TOY_LISTS; i++)
            h = toy_mix(h, (uint64_t)best);
    }
    a->text[len] = 0;
}

/* The bytes of the budget by state add up, and entries are whole. */
static inline void toy_check_stats(struct engine *e)
{
    struct engine_stats s;
    engine_stats(e, &s);
    assert_true(s.live_bytes + s.prefix_bytes + s.reserved_bytes +
                    s.free_bytes ==
                s.budget_bytes);
    assert_true(s.free_bytes <= s.budget_bytes);
    assert_true(s.entries_logical >= s.entries_retained);
    assert_true(s.prefill_tokens + s.cached_tokens <= s.prompt_tokens);
}

static inline struct forget_rules toy_rules(enum forget_policy policy)
{
    return (struct forget_rules){.policy = policy,
                                 .admission.ranking = FORGET_RANK_RETENTION};
}

/* An engine that forgets by retention unless a request says otherwise. */
static inline void toy_forgetful(struct engine_options *o)
{
    o->forget = (struct forget_options){.rules = toy_rules(FORGET_DBTRIMKV),
                                        .min_head = 20,
                                        .n_sinks = 4,
                                        .n_recent = 16,
                                        .idle_decay = 0.05};
    o->max_context = 2048;
    o->deterministic = true;
}

/* Every test gets its own toy and engine. */
struct toy_bench {
    struct toy toy;
    struct engine *e;
};

static inline void toy_set_up(struct toy_bench *b, uint32_t pool_tokens,
                              void (*change)(struct engine_options *o))
{
    toy_init(&b->toy);
    struct engine_options o = toy_options(&b->toy, pool_tokens);
    if (change)
        change(&o);
    b->e = toy_engine(&b->toy, &o);
}

static inline void toy_tear_down(struct toy_bench *b)
{
    toy_end(&b->toy, b->e);
    toy_fini(&b->toy);
}

/* n tokens that depend on the seed only. */
static inline void toy_prompt(int32_t *out, uint32_t n, uint64_t seed)
{
    struct rng r;
    rng_seed(&r, seed);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (int32_t)rng_below(&r, TOY_END);
}

static inline struct gen *toy_ask(struct engine *e, const int32_t *prompt,
                                  uint32_t n, uint32_t max_tokens)
{
    struct gen_request r = toy_request(prompt, n, max_tokens);
    return toy_submit(e, &r);
}

/* Reads an answer to its end, compares it, and lets the request go. */
static inline struct gen_status toy_expect(struct gen *g, const int32_t *prompt,
                                           uint32_t n, uint32_t max_tokens)
{
    struct toy_answer a;
    struct buf text = {0};
    struct gen_status s = toy_finish(g, &text);
    toy_answer(&a, prompt, n, max_tokens, false);
    assert_string_equal(text.data ? text.data : "", a.text);
    assert_int_equal(s.finish, a.finish);
    assert_int_equal(s.completion_tokens, a.n);
    assert_int_equal(s.prompt_tokens, n);
    assert_true(s.cached_tokens < n);
    buf_fini(&text);
    gen_release(g);
    return s;
}

static inline void toy_refusal(struct toy_bench *b, struct gen_request r,
                               enum gen_refusal expected, enum err code,
                               const char *part)
{
    struct gen *g = NULL;
    struct errmsg m = {""};
    enum gen_refusal why = GEN_REFUSED_NOT;
    int32_t *tokens = r.tokens;
    assert_int_equal(engine_submit(b->e, &r, &g, &why, &m), code);
    assert_int_equal(why, expected);
    assert_null(g);
    assert_ptr_equal(r.tokens, tokens);
    if (!strstr(m.text, part))
        fail_msg("\"%s\" is not in: %s", part, m.text);
    gen_request_fini(&r);
}

#endif
