/* One step of the engine, as planned: every running answer gets its token, and
 * prompts get chunks. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/stats.h"

/* The batch under construction. */
struct batch {
    uint32_t n_rows, n_runs, n_logits;
    uint32_t n_decode;
    uint64_t context; /* entries that all rows attend to */
};

/* Adds the next n known tokens of g's session as one run. */
static void add_run(struct engine *e, struct batch *b, struct gen *g,
                    uint32_t n)
{
    struct session *s = g->session;
    uint32_t pos = s->rope;
    g->was_cut = false;
    memcpy(&e->row_token[b->n_rows], &s->token[s->n_stored],
           n * sizeof(*s->token));
    session_append(&e->sessions, s, n);
    e->run[b->n_runs] = (struct model_run){
        .table = s->table,
        .n_rows = n,
        .pos = pos,
        .probe = s->watch ? watch_probe(s->watch) : NULL,
        .also = ranking_probe(s),
    };
    e->run_gen[b->n_runs++] = g;
    b->n_rows += n;
    b->context += schedule_context(
        (uint32_t)(table_n_entries(s->table) / e->n_lists) - n, n);
    /* Only after the last known token is there something to choose. */
    if (s->n_stored == s->n_known && g->max_tokens > 0) {
        e->logit_row[b->n_logits] = b->n_rows - 1;
        e->logit_gen[b->n_logits++] = g;
    }
}

/* Answers first, then prompts. */
static void add_runs(struct engine *e, struct batch *b)
{
    for (uint32_t i = 0; i < e->n_running; i++) {
        if (e->running[i]->now.state == GEN_DECODE && e->running[i]->take > 0)
            add_run(e, b, e->running[i], 1);
    }
    b->n_decode = b->n_rows;
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct gen *g = e->running[i];
        if (g->now.state != GEN_PREFILL || g->take == 0)
            continue;
        add_run(e, b, g, g->take);
        g->prefill.left -= g->take;
    }
}

static void choose_one(void *ctx, int task, int thread)
{
    struct engine *e = ctx;
    (void)thread;
    /* Each task has its own scratch and every n_scratch-th request. */
    for (uint32_t i = (uint32_t)task; e->logit_gen[i]; i += e->n_scratch) {
        e->chosen[i] = sampler_next(
            &e->logit_gen[i]->sampler, e->logits + (size_t)i * e->lm.n_vocab,
            e->lm.n_vocab, e->scratch[task], e->fallback, &e->is_bad[i]);
    }
}

static void choose_tokens(struct engine *e, uint32_t n)
{
    uint32_t n_tasks = n < e->n_scratch ? n : e->n_scratch;
    /* The tasks stride past the end; one empty place for each of them. */
    for (uint32_t i = 0; i < e->n_scratch; i++)
        e->logit_gen[n + i] = NULL;
    if (n_tasks > 1 && e->o.workers) {
        workers_run(e->o.workers, (int)n_tasks, choose_one, e);
        return;
    }
    for (uint32_t i = 0; i < n_tasks; i++)
        choose_one(e, (int)i, 0);
}

void engine_update_kv(const struct engine *e, struct gen *g)
{
    const struct session *s = g->session;
    g->now.logical_tokens = s->n_stored;
    g->now.full_entries = (uint64_t)s->n_stored * e->n_lists;
    g->now.retained_entries = g->now.full_entries - s->n_lost;
    g->now.evicted_entries = s->n_lost;
    g->now.merged_entries = s->n_merged;
    g->now.routed_entries = s->n_routed;
    g->now.merge_log_ratio = (double)s->merge_log_ratio;
    g->now.merge_us = s->merge_us;
    g->now.kv_bytes = table_n_units(s->table) * pool_stats(e->pool).unit_bytes;
}

/* After the last cut of a prompt it needs no watching. */
static void stop_watching(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_running; i++) {
        if (e->running[i]->prefill.left > 0)
            continue;
        e->running[i]->session->is_read = false;
        watch_end(e->watches, e->running[i]->session);
        ranking_prompt_ends(e->ranker, e->running[i]->session);
    }
}

/* Passes e->piece on to the text that is shown. */
static enum err say(struct engine *e, struct gen *g)
{
    return stop_push(&g->stop, e->piece.data, e->piece.len, &g->staged);
}

/* The answer ends without a stop string: what was held back comes out. That
 * can complete one after all. */
static enum err say_the_rest(struct engine *e, struct gen *g)
{
    buf_clear(&e->piece);
    enum err rc = detok_flush(&g->detok, &e->piece);
    if (rc == OK)
        rc = say(e, g);
    if (rc == OK && !g->stop.matched)
        rc = stop_flush(&g->stop, &g->staged);
    return rc;
}

/* What becomes of g after one more token. GEN_FINISH_NONE: it goes on. */
static enum err take_token(struct engine *e, struct gen *g, int32_t token,
                           enum gen_finish *finish)
{
    enum err rc = OK;
    *finish = GEN_FINISH_NONE;
    if (tokenizer_is_eog(e->o.tokenizer, token)) {
        /* Its text is never shown, not even when it does not end anything. */
        if (!g->request.params.ignore_eos)
            *finish = GEN_FINISH_STOP;
    } else {
        buf_clear(&e->piece);
        rc = detok_push(&g->detok, token, &e->piece);
        if (rc == OK)
            rc = say(e, g);
        if (rc == OK && g->stop.matched)
            *finish = GEN_FINISH_STOP;
    }
    if (*finish == GEN_FINISH_NONE && g->now.completion_tokens == g->max_tokens)
        *finish = GEN_FINISH_LENGTH;
    if (rc == OK && *finish != GEN_FINISH_NONE && !g->stop.matched)
        rc = say_the_rest(e, g);
    if (g->stop.matched)
        *finish = GEN_FINISH_STOP;
    return rc;
}

static void count_token(struct engine *e, struct gen *g, int64_t now)
{
    g->now.completion_tokens++;
    e->stats.generation_tokens++;
    if (g->now.completion_tokens == 1) {
        g->now.state = GEN_DECODE;
        g->now.first_token_us = engine_age_us(g, now);
        stats_observe_us(&e->stats.first_token_seconds, now - g->submitted_us);
    } else {
        stats_observe_us(&e->stats.inter_token_seconds, now - g->last_token_us);
    }
    g->last_token_us = now;
}

static void add_token(struct engine *e, struct gen *g, int32_t token,
                      int64_t now)
{
    enum gen_finish finish;
    count_token(e, g, now);
    if (take_token(e, g, token, &finish) != OK) {
        log_msg(LOG_LEVEL_ERROR,
                "no memory for the text of an answer: it ends incomplete");
        finish = GEN_FINISH_SHUTDOWN;
    }
    engine_mark_changed(e, g);
    if (finish != GEN_FINISH_NONE)
        engine_end(e, g, finish);
    else
        session_push(g->session, token);
}

static void complain_once(struct engine *e, uint32_t n)
{
    for (uint32_t i = 0; i < n && !e->said_bad; i++) {
        if (!e->is_bad[i])
            continue;
        e->said_bad = true;
        log_msg(LOG_LEVEL_ERROR,
                "the model gave logits without a finite number; such answers "
                "get token %d instead (said once)",
                (int)e->fallback);
    }
}

static void finish_step(struct engine *e, const struct batch *b, int64_t us)
{
    schedule_observe(&e->schedule, b->n_rows, b->context, (double)us);
    stats_observe_us(&e->stats.step_seconds, us);
    e->stats.steps++;
    e->stats.step_decode_tokens += b->n_decode;
    e->stats.step_prefill_tokens += b->n_rows - b->n_decode;
    e->stats.prefill_tokens += b->n_rows - b->n_decode;
    e->sessions.clock += b->n_rows;
}

void engine_step(struct engine *e)
{
    struct batch b = {0};
    int64_t start = clock_us();
    engine_plan(e);
    add_runs(e, &b);
    /* All wait to be cut, or did until room was made. */
    if (b.n_rows == 0)
        return;
    const struct model_batch batch = {
        .n_rows = b.n_rows,
        .tokens = e->row_token,
        .n_runs = b.n_runs,
        .runs = e->run,
        .n_logits = b.n_logits,
        .logit_rows = e->logit_row,
        .logits = e->logits,
        .defer_gates = e->goes_on && e->lm.finish_gates,
    };
    e->lm.step(e->lm.self, &batch);
    for (uint32_t i = 0; i < b.n_runs; i++)
        watch_take(e->watches, e->run_gen[i]->session, e->run[i].n_rows);
    choose_tokens(e, b.n_logits);
    int64_t now = clock_us();
    finish_step(e, &b, now - start);
    complain_once(e, b.n_logits);
    engine_cut_to_caps(e);
    stop_watching(e);

    for (uint32_t i = 0; i < b.n_runs; i++)
        engine_update_kv(e, e->run_gen[i]);
    engine_end_prompts(e);
    for (uint32_t i = 0; i < b.n_logits; i++)
        add_token(e, e->logit_gen[i], e->chosen[i], now);
}
