/* evict.c - what forgetting costs the answers that run meanwhile, on the
 * engine's own way: how long it keeps the model waiting between two steps.
 *
 *     evict [entries in millions]
 *
 * An engine of 30 layers with 3 KV heads of 64 f16 numbers runs a model that
 * computes nothing, so all time between the end of one of its steps and the
 * begin of the next is the engine's. 200 conversations fill the pool and come
 * to rest. Then answers and prompts run until the pool has been passed over
 * several times, and single requests that take much from others, or have much
 * to lose by caps of their own, beside a short answer. Printed are, of the
 * times between steps, the longest (the stall that an answer feels), the sum,
 * and the median, which is what a step costs without forgetting. And the same
 * in processor time of the engine's thread, which busy neighbours of the
 * machine do not stretch; they rather keep the other threads from helping, so
 * on idle cores it is less.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "runtime/engine/engine_internal.h"

enum {
    SESSIONS = 200,
    LAYERS = 30,
    HEADS = 3,
    LISTS = LAYERS * HEADS,
    HEAD_DIM = 64,
    VOCAB = 200,
    ANSWERS = 4, /* at a time */
    TURN = 30,   /* tokens of a turn, and of its answer */
    ANSWER = 20,
    SYSTEM = 25, /* that all conversations share */
    PROMPT = 2000,
    GAPS_MAX = 1 << 20, /* steps that are looked at */
    ROWS = 512          /* of a step */
};

/* A model that computes nothing, and the times between its steps. */
struct idle_model {
    struct engine *engine;
    struct rng rng;
    uint64_t n; /* steps since the last look */
    double *wall, *cpu;
    double wall_end, cpu_end; /* of the last step */
    uint64_t n_decode;        /* tokens of answers */
};

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(enum err rc, const struct errmsg *m)
{
    if (rc != OK) {
        fprintf(stderr, "evict: %s %s\n", err_name(rc), m ? m->text : "");
        exit(1);
    }
}

/* Logits of the gate around 8: most of beta is near 1, some is small. */
static float draw_log_beta(struct rng *r)
{
    double z = 8;
    for (int i = 0; i < 4; i++)
        z += 5 * (rng_double(r) - 0.5);
    return rng_below(r, 10) == 0 ? 0 : (float)-log1p(exp(-z));
}

static void write_run(struct idle_model *m, const struct model_run *run)
{
    const struct table *t = run->table;
    for (uint32_t i = 0; i < LISTS; i++) {
        const struct kv_list *l = &t->list[i];
        for (uint32_t e = l->len - run->n_rows; e < l->len; e++)
            pool_meta(t->pool, l->unit[e / KV_UNIT])->log_beta[e % KV_UNIT] =
                draw_log_beta(&m->rng);
    }
}

static void step(void *self, const struct model_batch *b)
{
    struct idle_model *m = self;
    if (m->n < GAPS_MAX) {
        m->wall[m->n] = seconds_of(CLOCK_MONOTONIC) - m->wall_end;
        m->cpu[m->n] = seconds_of(CLOCK_THREAD_CPUTIME_ID) - m->cpu_end;
        m->n++;
    }
    for (uint32_t i = 0; i < b->n_runs; i++)
        write_run(m, &b->runs[i]);
    memset(b->logits, 0, sizeof(float) * b->n_logits * VOCAB);
    m->n_decode += b->n_logits;
    m->wall_end = seconds_of(CLOCK_MONOTONIC);
    m->cpu_end = seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static struct tokenizer *new_tokenizer(void)
{
    static char names[VOCAB][8];
    struct gguf_str text[VOCAB];
    int32_t type[VOCAB];
    struct tokenizer *t = NULL;
    struct errmsg m = {""};
    for (int i = 0; i < VOCAB; i++) {
        int n = snprintf(names[i], sizeof(names[i]), "t%d", i);
        text[i] = (struct gguf_str){names[i], (size_t)n};
        type[i] = i + 1 < VOCAB ? TOKEN_NORMAL : TOKEN_CONTROL;
    }
    const struct tokenizer_spec spec = {.pre = {"gpt-2", 5},
                                        .token = text,
                                        .type = type,
                                        .n_tokens = VOCAB,
                                        .bos = -1,
                                        .eos = VOCAB - 1,
                                        .eot = -1,
                                        .eom = -1};
    must(tokenizer_new(&t, &spec, &m), &m);
    return t;
}

static struct engine *new_engine(struct idle_model *m, uint64_t n_entries,
                                 const struct tokenizer *tokenizer,
                                 struct workers *workers)
{
    struct kv_layout y;
    struct engine *e = NULL;
    struct errmsg text = {""};
    kv_layout_init(&y, KV_F16, HEAD_DIM);
    const struct engine_options o = {
        .tokenizer = tokenizer,
        .workers = workers,
        .kv_bytes = n_entries / KV_UNIT * pool_unit_bytes(&y),
        .kv_type = KV_F16,
        .max_context = 1 << 20,
        .max_running = 2 * ANSWERS,
        .max_queue = 2 * SESSIONS,
        .max_step_rows = ROWS,
        .step_target_us = 80000,
        .deterministic = true,
        .forget = {.rules = forget_default_rules(true, true),
                   .min_head = 20,
                   .n_sinks = 4,
                   .n_recent = 16,
                   .idle_decay = 0.05},
    };
    const struct lm lm = {.self = m,
                          .n_vocab = VOCAB,
                          .n_layers = LAYERS,
                          .n_kv_heads = HEADS,
                          .head_dim = HEAD_DIM,
                          .step = step};
    must(engine_new_lm(&e, &o, &lm, &text), &text);
    m->engine = e;
    /* Memory that is really there; to get it is not what is measured. */
    for (uint32_t u = 0; u < e->n_units; u++)
        memset(pool_data(e->pool, u), 1, pool_layout(e->pool)->data_bytes);
    return e;
}

/* What has been said in a conversation. */
struct chat {
    int32_t *token;
    uint32_t n;
};

static void say(struct chat *c, uint32_t n, struct rng *r)
{
    for (uint32_t i = 0; i < n; i++)
        c->token[c->n++] = (int32_t)rng_below(r, VOCAB - 1);
}

static struct gen *ask_capped(struct idle_model *m, const int32_t *token,
                              uint32_t n, uint32_t max_tokens, uint32_t cap)
{
    struct gen_request q = {0};
    struct gen *g = NULL;
    struct errmsg text = {""};
    enum gen_refusal why;
    q.params.repetition_penalty = q.params.top_p = 1;
    q.params.has_max_tokens = q.params.ignore_eos = true;
    q.params.max_tokens = max_tokens;
    q.forget = m->engine->o.forget.rules;
    q.forget.session_tokens = cap;
    q.tokens = malloc(n * sizeof(*q.tokens));
    if (!q.tokens)
        must(ERR_NOMEM, NULL);
    memcpy(q.tokens, token, n * sizeof(*q.tokens));
    q.n_tokens = n;
    must(engine_submit(m->engine, &q, &g, &why, &text), &text);
    return g;
}

static struct gen *ask(struct idle_model *m, const int32_t *token, uint32_t n,
                       uint32_t max_tokens)
{
    return ask_capped(m, token, n, max_tokens, 0);
}

/* A prompt unlike all others. */
static struct gen *ask_new(struct idle_model *m, uint32_t n,
                           uint32_t max_tokens, struct rng *r)
{
    static int32_t token[PROMPT];
    struct chat c = {.token = token};
    say(&c, n, r);
    return ask(m, token, n, max_tokens);
}

static void finish(struct gen *g)
{
    struct gen_status s;
    const struct timespec pause = {0, 2000000};
    for (gen_status(g, &s); s.state != GEN_DONE; gen_status(g, &s))
        nanosleep(&pause, NULL);
    gen_release(g);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Milliseconds. */
struct gaps {
    double longest, second, sum, median;
};

static struct gaps gaps_of(double *v, uint64_t n, double scale)
{
    struct gaps g = {0};
    qsort(v, n, sizeof(*v), by_value);
    for (uint64_t i = 0; i < n; i++)
        g.sum += v[i] * scale;
    if (n > 1)
        g.second = v[n - 2] * scale;
    if (n > 0) {
        g.longest = v[n - 1] * scale;
        g.median = v[n / 2] * scale;
    }
    return g;
}

static void look(struct idle_model *m, const char *what, uint64_t gone_before,
                 double seconds)
{
    struct engine_stats s;
    engine_stats(m->engine, &s);
    uint64_t gone =
        s.evicted[ENGINE_PRESSURE] + s.evicted[ENGINE_ADMISSION] - gone_before;
    /* The first gap reaches back to before. */
    uint64_t n = m->n > 0 ? m->n - 1 : 0;
    struct gaps wall = gaps_of(m->wall + 1, n, 1e3);
    struct gaps cpu = gaps_of(m->cpu + 1, n, 1e3);
    printf("%-22s %7llu steps, %5.2fM entries went: stalls of at most "
           "%6.2f ms (next %.2f, median %.3f), %.0f ms in %.0f s\n",
           what, (unsigned long long)n, (double)gone / 1e6, wall.longest,
           wall.second, wall.median, wall.sum, seconds);
    printf("%-22s processor time: at most %6.2f ms (next %.2f, median %.3f), "
           "%.0f ms\n",
           "", cpu.longest, cpu.second, cpu.median, cpu.sum);
    fflush(stdout);
    m->n = 0;
}

static uint64_t gone_now(struct idle_model *m)
{
    struct engine_stats s;
    engine_stats(m->engine, &s);
    return s.evicted[ENGINE_PRESSURE] + s.evicted[ENGINE_ADMISSION];
}

static void fill(struct idle_model *m, struct chat *c, uint32_t mean,
                 struct rng *r)
{
    static struct gen *g[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) {
        /* All begin alike, as with a system prompt. */
        c[i].n = SYSTEM;
        say(&c[i], mean / 2 + (uint32_t)rng_below(r, mean), r);
        g[i] = ask(m, c[i].token, c[i].n, 0);
    }
    for (int i = 0; i < SESSIONS; i++)
        finish(g[i]);
}

/* Each conversation goes on by a turn, a few at a time. */
static void turns(struct idle_model *m, struct chat *c, struct rng *r)
{
    struct gen *g[ANSWERS];
    uint64_t before = gone_now(m);
    double start = seconds_of(CLOCK_MONOTONIC);
    for (int i = 0; i < SESSIONS + ANSWERS; i++) {
        if (i >= ANSWERS)
            finish(g[i % ANSWERS]);
        if (i >= SESSIONS)
            continue;
        say(&c[i], TURN, r);
        g[i % ANSWERS] = ask(m, c[i].token, c[i].n, ANSWER);
        /* The model chooses the first token of all. */
        memset(c[i].token + c[i].n, 0, ANSWER * sizeof(*c[i].token));
        c[i].n += ANSWER;
    }
    look(m, "turns of chats", before, seconds_of(CLOCK_MONOTONIC) - start);
}

/* Answers until they have used up a tenth of the pool, beside them prompts one
 * after the other, if any. */
static void load(struct idle_model *m, const char *what, uint64_t n_entries,
                 bool prompts, struct rng *r)
{
    struct gen *g[ANSWERS];
    uint64_t before = gone_now(m);
    uint32_t n = (uint32_t)(n_entries / 10 / LISTS / ANSWERS);
    double start = seconds_of(CLOCK_MONOTONIC);
    for (int i = 0; i < ANSWERS; i++)
        g[i] = ask_new(m, TURN, n, r);
    for (uint32_t done = 0; prompts && done < n * ANSWERS; done += PROMPT)
        finish(ask_new(m, PROMPT, 1, r));
    for (int i = 0; i < ANSWERS; i++)
        finish(g[i]);
    look(m, what, before, seconds_of(CLOCK_MONOTONIC) - start);
}

/* One request, for which those of the pool make room, and which may be above
 * limits of its own. `times`: the same again, so that it finds itself. */
struct request {
    const char *what;
    uint32_t n, answer, cap, times;
};

static const struct request requests[] = {
    {"a prompt of 32,000", 32000, 0, 0, 1},
    {"an answer to it", 32000, 20, 0, 1},
    {"the same twice", 32000, 20, 0, 2},
    {"cut to a cap of 1,024", 8000, 20, 1024, 1},
    {"12,000 to 4,096", 12000, 20, 4096, 1},
    {"at a cap of 512", 600, 2000, 512, 1},
    {"at a cap of 16,384", 16300, 500, 16384, 1},
};

enum { REQUEST_MAX = 32000 };

/* What it does to a short answer after the other beside it. */
static void beside(struct idle_model *m, const struct request *q, struct rng *r)
{
    static int32_t token[REQUEST_MAX];
    struct chat c = {.token = token};
    uint64_t before = gone_now(m);
    double start = seconds_of(CLOCK_MONOTONIC);
    struct gen *other = ask_new(m, TURN, 1 << 19, r);
    say(&c, q->n, r);
    for (uint32_t i = 0; i < q->times; i++)
        finish(ask_capped(m, token, q->n, q->answer, q->cap));
    gen_release(other);
    while (!engine_is_idle(m->engine))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    look(m, q->what, before, seconds_of(CLOCK_MONOTONIC) - start);
}

int main(int argc, char **argv)
{
    double millions = argc > 1 ? atof(argv[1]) : 10;
    uint64_t n_entries = (uint64_t)(millions * 1e6);
    uint32_t mean = (uint32_t)(n_entries / SESSIONS / LISTS);
    struct idle_model m = {.n = 0};
    static struct chat chat[SESSIONS];
    struct workers *workers = NULL;
    struct rng r;
    if (mean < 40 || mean > 100000) {
        fputs("usage: evict [entries in millions, 1 to 1800]\n", stderr);
        return 2;
    }
    rng_seed(&r, 1);
    rng_seed(&m.rng, 2);
    m.wall = calloc(GAPS_MAX, sizeof(*m.wall));
    m.cpu = calloc(GAPS_MAX, sizeof(*m.cpu));
    if (!m.wall || !m.cpu)
        must(ERR_NOMEM, NULL);
    must(workers_new(&workers, workers_cpus(), NULL), NULL);
    for (int i = 0; i < SESSIONS; i++) {
        chat[i].token = calloc(2 * mean + 1000, sizeof(int32_t));
        if (!chat[i].token)
            must(ERR_NOMEM, NULL);
    }
    struct tokenizer *tokenizer = new_tokenizer();
    struct engine *e = new_engine(&m, n_entries, tokenizer, workers);
    fill(&m, chat, mean, &r);
    look(&m, "filling", 0, 0);
    load(&m, "answers", n_entries, false, &r);
    load(&m, "answers and prompts", n_entries, true, &r);
    turns(&m, chat, &r);
    for (size_t i = 0; i < sizeof(requests) / sizeof(*requests); i++)
        beside(&m, &requests[i], &r);
    engine_free(e);
    tokenizer_free(tokenizer);
    workers_free(workers);
    for (int i = 0; i < SESSIONS; i++)
        free(chat[i].token);
    free(m.wall);
    free(m.cpu);
    return 0;
}
