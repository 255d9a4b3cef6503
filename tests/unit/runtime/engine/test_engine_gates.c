/* An engine that leaves the gates of answers' tokens to later, beside one that
 * does not: whatever comes between, both hold the same in the end, entry by
 * entry, and have said the same. */
#include "small.h"

#include "tests/unit/gates/gate_check.h"

enum {
    WIDTH = 12,
    GENS_MAX = 64,
    EVENTS_MAX = 64,
    ANSWER = 100,
    ROUNDS = CHECK_IS_SANITIZED ? 8 : 30
};

static const char MODEL[] = "qwen3-gqa2-128";

enum event_kind { ASK, FORK, CANCEL, FLUSH };

/* What happens before a step, seen from outside the engine. */
struct event {
    uint32_t step; /* at the earliest */
    enum event_kind kind;
    uint32_t n, answer;
    uint32_t from; /* the prompt is that of all others up to here; */
    uint64_t seed; /* then it is its own */
    uint32_t which;
    struct forget_rules rules;
};

struct script {
    uint32_t pool_tokens, n_events;
    uint64_t slice; /* 0: the default */
    bool reposition, unbounded_context;
    struct event event[EVENTS_MAX];
};

/* The engine, as its model sees it. */
struct gated {
    struct small s; /* first: the model's self */
    const struct script *script;
    bool defers;
    pthread_mutex_t mu; /* of what follows: events are fired one by one */
    uint32_t n_steps, next;
    struct gen *gen[GENS_MAX];
    uint32_t n_gens;
    atomic_uint n_fired, n_flushes, n_flushed;
    atomic_int n_faults;
    atomic_uint n_deferred, most_waiting;
};

/* ------------------------------------------------------------- the events */

static void submit(struct gated *t, struct gen_request *q)
{
    struct errmsg m;
    enum gen_refusal why;
    if (t->n_gens < GENS_MAX &&
        engine_submit(t->s.e, q, &t->gen[t->n_gens], &why, &m) == OK)
        t->n_gens++;
    else
        gen_request_fini(q);
}

static void ask(struct gated *t, const struct event *v)
{
    int32_t p[SMALL_PROMPT];
    small_text(p, v->from, v->seed);
    struct gen_request q = toy_request(p, v->n, v->answer);
    q.params.ignore_eos = true;
    q.forget = v->rules;
    submit(t, &q);
}

/* Goes on from what a running answer has said so far, in other words. */
static void fork_one(struct gated *t, const struct event *v)
{
    const struct engine *e = t->s.e;
    if (e->n_running == 0)
        return;
    const struct session *s = e->running[v->which % e->n_running]->session;
    struct gen_request q = toy_request(s->token, s->n_stored, v->answer);
    q.tokens[s->n_stored - 1] = (int32_t)(v->seed % TOY_END);
    q.params.ignore_eos = true;
    q.forget = s->rules;
    submit(t, &q);
}

static void count_flush(void *user)
{
    struct gated *t = user;
    atomic_fetch_add(&t->n_flushed, 1);
}

/* Under mu. */
static void fire_next(struct gated *t)
{
    const struct event *v = &t->script->event[t->next++];
    switch (v->kind) {
    case ASK:
        ask(t, v);
        break;
    case FORK:
        fork_one(t, v);
        break;
    case CANCEL:
        if (t->n_gens > 0)
            gen_cancel(t->gen[v->which % t->n_gens]);
        break;
    case FLUSH:
        atomic_fetch_add(&t->n_flushes, 1);
        if (engine_flush(t->s.e, count_flush, t) != OK)
            atomic_fetch_add(&t->n_faults, 1);
    }
    atomic_store(&t->n_fired, t->next);
}

static void fire_when_idle(struct gated *t)
{
    pthread_mutex_lock(&t->mu);
    fire_next(t);
    pthread_mutex_unlock(&t->mu);
}

/* -------------------------------------------------------------- the model */

/* Entries whose log_beta is to come are those of the rows that wait, and lie
 * in units with one user. */
static void audit(struct gated *t)
{
    const struct pool *p = t->s.e->pool;
    uint32_t n = 0, waiting = model_n_deferred(t->s.rig.model);
    for (uint32_t u = 0; u < t->s.e->n_units; u++)
        for (uint32_t i = 0; i < KV_UNIT; i++)
            if (kv_is_deferred(pool_meta(p, u), i)) {
                n++;
                atomic_fetch_add(&t->n_faults, pool_refs(p, u) != 1);
            }
    atomic_fetch_add(&t->n_faults, n != waiting * SMALL_LISTS);
    if (waiting > atomic_load(&t->most_waiting))
        atomic_store(&t->most_waiting, waiting);
}

static void gated_step(void *self, const struct model_batch *batch)
{
    struct gated *t = self;
    struct model_batch b = *batch;
    b.logits = t->s.logits;
    b.defer_gates = batch->defer_gates && t->defers;
    audit(t);
    model_step(t->s.rig.model, &b);
    audit(t);
    atomic_fetch_add(&t->n_deferred, b.defer_gates);
    for (uint32_t k = 0; k < b.n_logits; k++)
        memcpy(batch->logits + (size_t)k * TOY_VOCAB,
               b.logits + (size_t)k * t->s.rig.n_vocab,
               TOY_VOCAB * sizeof(float));
    pthread_mutex_lock(&t->mu);
    t->n_steps++;
    while (t->next < t->script->n_events &&
           t->script->event[t->next].step <= t->n_steps)
        fire_next(t);
    pthread_mutex_unlock(&t->mu);
}

static void gated_finish(void *self)
{
    struct gated *t = self;
    audit(t);
    model_finish_gates(t->s.rig.model);
}

static void set_up(struct gated *t, const struct script *script, bool defers)
{
    memset(t, 0, sizeof(*t));
    pthread_mutex_init(&t->mu, NULL);
    t->script = script;
    t->defers = defers;
    const struct small_setting set = {.tokens = script->pool_tokens,
                                      .reposition = script->reposition,
                                      .unbounded_context =
                                          script->unbounded_context,
                                      .step = gated_step,
                                      .finish_gates = gated_finish};
    small_set_up_as(&t->s, MODEL, &set);
    if (script->slice > 0)
        t->s.e->slice = script->slice;
    const struct model_info *i = model_info(t->s.rig.model);
    const struct gate_shape shape = {
        .n_layers = i->n_layers,
        .n_embd = i->n_embd,
        .n_kv_heads = i->n_kv_heads,
        .width = WIDTH,
    };
    struct gate *g = gate_check_random(&shape, 4.0f, 9);
    assert_int_equal(model_set_gates(t->s.rig.model, g, NULL), OK);
    gate_free(g);
}

/* ------------------------------------------------------------- the outcome */

/* What can be known of an engine that is done. */
struct outcome {
    struct buf text; /* of answers, of their ends, and of sessions */
    struct kv_meta *meta;
    uint32_t n_units, n_deferred, most_waiting;
    uint64_t n_evicted;
};

__attribute__((format(printf, 2, 3))) static void put(struct buf *b,
                                                      const char *format, ...)
{
    char line[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    assert_true(n > 0 && (size_t)n < sizeof(line));
    assert_int_equal(buf_append(b, line, (size_t)n), OK);
}

static void put_session(struct buf *b, const struct session *s)
{
    put(b, "\n%u stored, %llu lost:", s->n_stored,
        (unsigned long long)s->n_lost);
    for (uint32_t i = 0; i < s->n_stored; i++)
        put(b, " %d", (int)s->token[i]);
    for (uint32_t i = 0; i < SMALL_LISTS; i++) {
        put(b, "\nlist of %u:", s->table->list[i].len);
        for (uint32_t u = 0; u < s->table->list[i].n_units; u++)
            put(b, " %u", s->table->list[i].unit[u]);
    }
}

static void put_answers(struct gated *t, struct outcome *o)
{
    for (uint32_t i = 0; i < t->n_gens; i++) {
        struct gen_status st = toy_finish(t->gen[i], &o->text);
        put(&o->text, "\n%d: %u cached, %u said, %llu held, %llu gone\n",
            (int)st.finish, st.cached_tokens, st.completion_tokens,
            (unsigned long long)st.retained_entries,
            (unsigned long long)st.evicted_entries);
        gen_release(t->gen[i]);
        t->gen[i] = NULL;
    }
}

static bool is_idle(const struct gated *t)
{
    return engine_is_idle(t->s.e) &&
           atomic_load(&t->n_flushed) == atomic_load(&t->n_flushes);
}

/* Whatever is left to fire when the engine has nothing to do comes now. */
static void wait_for_end(struct gated *t)
{
    int64_t until = clock_us() + 120 * 1000000;
    while (atomic_load(&t->n_fired) < t->script->n_events || !is_idle(t)) {
        if (is_idle(t))
            fire_when_idle(t);
        else
            toy_sleep(200);
        assert_true(clock_us() < until);
    }
}

static void play(struct outcome *o, const struct script *script, bool defers)
{
    struct gated t;
    struct engine_stats st;
    memset(o, 0, sizeof(*o));
    set_up(&t, script, defers);
    wait_for_end(&t);
    put_answers(&t, o);
    for (const struct session *s = t.s.e->sessions.oldest; s; s = s->newer)
        put_session(&o->text, s);
    assert_int_equal(model_n_deferred(t.s.rig.model), 0);
    audit(&t);
    engine_stats(t.s.e, &st);
    o->n_evicted = st.evicted[ENGINE_PRESSURE] + st.evicted[ENGINE_CAP] +
                   st.evicted[ENGINE_ADMISSION];
    o->n_units = t.s.e->n_units;
    o->meta = malloc(o->n_units * sizeof(*o->meta));
    assert_non_null(o->meta);
    memcpy(o->meta, pool_meta(t.s.e->pool, 0), o->n_units * sizeof(*o->meta));
    o->n_deferred = atomic_load(&t.n_deferred);
    o->most_waiting = atomic_load(&t.most_waiting);
    small_tear_down(&t.s);
    pthread_mutex_destroy(&t.mu);
    assert_int_equal(atomic_load(&t.n_faults), 0);
}

static void fini(struct outcome *o)
{
    buf_fini(&o->text);
    free(o->meta);
}

/* Returns what the engine that defers did. */
static struct outcome same(const struct script *script)
{
    struct outcome later, at_once;
    play(&later, script, true);
    play(&at_once, script, false);
    assert_int_equal(at_once.n_deferred, 0);
    assert_int_equal(at_once.most_waiting, 0);
    assert_string_equal(later.text.data, at_once.text.data);
    assert_int_equal(later.n_evicted, at_once.n_evicted);
    assert_int_equal(later.n_units, at_once.n_units);
    assert_memory_equal(later.meta, at_once.meta,
                        later.n_units * sizeof(*later.meta));
    fini(&later);
    fini(&at_once);
    return later;
}

/* --------------------------------------------------------------- the tests */

static struct forget_rules by(enum forget_policy p, uint32_t cap)
{
    return (struct forget_rules){.policy = p,
                                 .admission.ranking = FORGET_RANK_RETENTION,
                                 .session_tokens = cap};
}

static void an_answer_alone_defers_nearly_all(void **state)
{
    (void)state;
    const struct script s = {.pool_tokens = 512,
                             .n_events = 1,
                             .event = {{.kind = ASK,
                                        .n = 50,
                                        .answer = ANSWER,
                                        .rules = by(FORGET_DBTRIMKV, 0)}}};
    struct outcome o = same(&s);
    assert_in_range(o.n_deferred, ANSWER - 2, ANSWER);
    assert_int_equal(o.most_waiting, 16);
    assert_int_equal(o.n_evicted, 0);
}

/* One that ends at once, one that is only read, one that is cancelled, and
 * everything at rest is dropped in between. */
static void others_that_come_and_go_change_nothing(void **state)
{
    (void)state;
    const struct forget_rules r = by(FORGET_DBTRIMKV, 0);
    const struct script s = {
        .pool_tokens = 1024,
        .n_events = 9,
        .event = {
            {.kind = ASK, .n = 50, .answer = ANSWER, .rules = r},
            {.step = 10, .kind = ASK, .n = 70, .answer = 1, .rules = r},
            {.step = 21, .kind = ASK, .n = 60, .answer = 0, .rules = r},
            {.step = 30,
             .kind = ASK,
             .n = 90,
             .from = 40,
             .seed = 1,
             .answer = 60,
             .rules = r},
            {.step = 37, .kind = FORK, .answer = 20, .seed = 3, .rules = r},
            {.step = 45, .kind = CANCEL, .which = 3},
            {.step = 55, .kind = FLUSH},
            {.step = 62, .kind = FORK, .which = 1, .seed = 4, .answer = 7},
            {.step = 90, .kind = CANCEL, .which = 0}}};
    struct outcome o = same(&s);
    assert_true(o.n_deferred > 60);
    assert_true(o.most_waiting > 8);
}

/* Passes between steps, whole ones and in slices. */
static void memory_pressure_sees_what_it_would_have_seen(void **state)
{
    (void)state;
    for (uint64_t slice = 0; slice <= 300; slice += 300) {
        struct script s = {.pool_tokens = 192, .slice = slice, .n_events = 6};
        for (uint32_t i = 0; i < s.n_events; i++)
            s.event[i] = (struct event){
                .step = i * 25,
                .kind = ASK,
                .n = 60 + 10 * i,
                .from = i % 2 ? 32 : 0,
                .seed = i,
                .answer = ANSWER,
                .rules = by(i == 4 ? FORGET_STREAMINGLLM : FORGET_DBTRIMKV, 0)};
        struct outcome o = same(&s);
        assert_true(o.n_evicted > 500);
        assert_true(o.n_deferred > 20);
    }
}

/* Until the cap is reached its tokens may wait, afterwards each is ranked. */
static void a_cap_ranks_every_token_from_then_on(void **state)
{
    (void)state;
    const struct script s = {.pool_tokens = 512,
                             .n_events = 1,
                             .event = {{.kind = ASK,
                                        .n = 50,
                                        .answer = ANSWER,
                                        .rules = by(FORGET_DBTRIMKV, 80)}}};
    struct outcome o = same(&s);
    assert_in_range(o.n_evicted, (50 + ANSWER - 81) * SMALL_LISTS,
                    (50 + ANSWER - 80) * SMALL_LISTS);
    assert_in_range(o.n_deferred, 28, 30);
}

/* Over the end of the context, where keys are turned and lists are cut. */
static void a_chat_without_end_goes_on_the_same(void **state)
{
    (void)state;
    const struct script s = {
        .pool_tokens = 2048,
        .unbounded_context = true,
        .n_events = 2,
        .event = {{.kind = ASK,
                   .n = 300,
                   .answer = 900,
                   .rules = by(FORGET_DBTRIMKV, 960)},
                  {.step = 500, .kind = FORK, .answer = 9}}};
    struct outcome o = same(&s);
    assert_true(o.n_evicted > 0);
    assert_true(o.n_deferred > 500);
}

static struct event random_event(struct rng *r, uint32_t step)
{
    static const enum forget_policy policy[] = {
        FORGET_DBTRIMKV, FORGET_DBTRIMKV,     FORGET_TRIMKV,
        FORGET_EXACT,    FORGET_STREAMINGLLM, FORGET_SELKV_WINDOW};
    uint32_t kind = (uint32_t)rng_below(r, 10);
    return (struct event){
        .step = step,
        .kind = kind < 5   ? ASK
                : kind < 8 ? FORK
                : kind < 9 ? CANCEL
                           : FLUSH,
        .n = 5 + (uint32_t)rng_below(r, 120),
        .answer = (uint32_t)rng_below(r, 80),
        .from = (uint32_t)rng_below(r, 2) * 48,
        .seed = rng_below(r, 5),
        .which = (uint32_t)rng_below(r, 30),
        .rules = by(policy[rng_below(r, 6)],
                    rng_below(r, 4) ? 0 : 40 + (uint32_t)rng_below(r, 60))};
}

static void random_events_change_nothing(void **state)
{
    struct rng r;
    uint32_t n_deferred = 0;
    uint64_t n_evicted = 0;
    (void)state;
    rng_seed(&r, 11);
    for (int round = 0; round < ROUNDS; round++) {
        struct script s = {.pool_tokens =
                               160 + 16 * (uint32_t)rng_below(&r, 50),
                           .slice = round % 3 ? 0 : 1 + rng_below(&r, 400),
                           .reposition = round % 4 == 0,
                           .n_events = 20};
        for (uint32_t i = 0, step = 0; i < s.n_events; i++) {
            s.event[i] = random_event(&r, step);
            step += (uint32_t)rng_below(&r, 30);
        }
        struct outcome o = same(&s);
        n_deferred += o.n_deferred;
        n_evicted += o.n_evicted;
    }
    assert_true(n_deferred > 100 * (uint32_t)ROUNDS);
    assert_true(n_evicted > 500 * (uint64_t)ROUNDS);
}

/* In the middle of an answer, with rows waiting. */
static void the_end_of_the_engine_leaves_nothing_to_come(void **state)
{
    const struct script s = {.pool_tokens = 2048,
                             .n_events = 1,
                             .event = {{.kind = ASK,
                                        .n = 20,
                                        .answer = 1000,
                                        .rules = by(FORGET_DBTRIMKV, 0)}}};
    struct gated t;
    (void)state;
    set_up(&t, &s, true);
    fire_when_idle(&t);
    while (atomic_load(&t.most_waiting) < 16)
        toy_sleep(100);
    engine_free(t.s.e);
    assert_int_equal(model_n_deferred(t.s.rig.model), 0);
    assert_int_equal(atomic_load(&t.n_faults), 0);
    gen_release(t.gen[0]);
    pthread_mutex_destroy(&t.mu);
    free(t.s.logits);
    rig_close(&t.s.rig);
    toy_fini(&t.s.toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_alone_defers_nearly_all),
        cmocka_unit_test(others_that_come_and_go_change_nothing),
        cmocka_unit_test(memory_pressure_sees_what_it_would_have_seen),
        cmocka_unit_test(a_cap_ranks_every_token_from_then_on),
        cmocka_unit_test(a_chat_without_end_goes_on_the_same),
        cmocka_unit_test(random_events_change_nothing),
        cmocka_unit_test(the_end_of_the_engine_leaves_nothing_to_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
