/* The door: what other threads may do to an engine. */
#include <assert.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "runtime/engine/engine_internal.h"

void engine_wake(struct engine *e)
{
    pthread_mutex_lock(&e->mu);
    e->is_woken = true;
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->mu);
}

static enum err check_ids(const struct engine *e, const struct gen_request *r,
                          struct errmsg *m)
{
    if (r->n_tokens == 0)
        return err_set(m, ERR_INVAL, "the prompt has no tokens");
    for (uint32_t i = 0; i < r->n_tokens; i++) {
        if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= e->lm.n_vocab)
            return err_set(m, ERR_INVAL,
                           "token %d of the prompt is not in the vocabulary "
                           "of %u tokens",
                           (int)r->tokens[i], e->lm.n_vocab);
    }
    for (uint32_t i = 0; i < r->n_bias; i++) {
        if (r->bias[i].token < 0 || (uint32_t)r->bias[i].token >= e->lm.n_vocab)
            return err_set(m, ERR_INVAL,
                           "token %d of the logit bias is not in the "
                           "vocabulary of %u tokens",
                           (int)r->bias[i].token, e->lm.n_vocab);
    }
    for (uint32_t i = 0; i < r->n_pins; i++) {
        const struct forget_span *pin = &r->pin[i];
        if (pin->from >= pin->to || pin->to > r->n_tokens ||
            (i > 0 && pin->from < r->pin[i - 1].to))
            return err_set(m, ERR_INVAL,
                           "pinned span %u is not in order and inside the "
                           "prompt",
                           i);
    }
    for (uint32_t i = 0; i < r->n_stops; i++) {
        if (r->stop_len[i] == 0 || r->stop_len[i] > GEN_STOP_BYTES_MAX)
            return err_set(m, ERR_INVAL,
                           "a stop string has %zu bytes: 1 to %d are possible",
                           r->stop_len[i], GEN_STOP_BYTES_MAX);
    }
    return OK;
}

/* The longest answer that context and request allow; the number of tokens
 * that are stored then. The last token of an answer is never stored: nothing
 * follows from it. */
static uint64_t stored_tokens(uint32_t prompt, uint32_t answer)
{
    return (uint64_t)prompt + (answer > 0 ? answer - 1 : 0);
}

static enum err refuse_kv(enum gen_refusal *why)
{
    *why = GEN_REFUSED_KV;
    return ERR_INVAL;
}

/* An exact request needs room for everything; the answer is clamped where
 * nobody asked for one so long. Sets *needs and *answer. */
static enum err size_exact(const struct engine *e, const struct gen_request *r,
                           uint64_t *needs, uint32_t *answer,
                           enum gen_refusal *why, struct errmsg *m)
{
    uint32_t prompt = r->n_tokens, cap = r->forget.session_tokens;
    uint64_t most = e->pool_tokens;
    bool is_capped = cap > 0 && cap < most;
    if (is_capped)
        most = cap;
    if (*needs > most && !r->params.has_max_tokens && prompt <= most) {
        *answer = (uint32_t)(most - prompt + 1);
        *needs = most;
    }
    if (*needs <= most)
        return OK;
    if (is_capped)
        (void)err_set(m, ERR_INVAL,
                      "an exact session of %llu tokens is above its cap of %u",
                      (unsigned long long)*needs, cap);
    else if (prompt > most)
        (void)err_set(m, ERR_INVAL,
                      "the prompt has %u tokens, and the whole KV budget of "
                      "%llu bytes holds %llu",
                      prompt, (unsigned long long)e->o.kv_bytes,
                      (unsigned long long)most);
    else
        (void)err_set(
            m, ERR_INVAL,
            "a prompt of %u tokens and an answer of up to %u need KV memory "
            "for %llu tokens, and the whole budget of %llu bytes holds %llu",
            prompt, *answer, (unsigned long long)*needs,
            (unsigned long long)e->o.kv_bytes, (unsigned long long)most);
    return refuse_kv(why);
}

uint64_t engine_floor(const struct engine *e, const struct forget_span *pin,
                      uint32_t n_pins)
{
    const struct forget_options *o = &e->o.forget;
    uint64_t n = (uint64_t)o->n_sinks + o->n_recent;
    for (uint32_t i = 0; i < n_pins; i++)
        n += pin[i].to - pin[i].from;
    return n > o->min_head ? n : o->min_head;
}

/* One that forgets is promised what it can never lose, and a unit a list to go
 * on with; a prompt that is never cut, all of it as well. */
static enum err size_guarantee(const struct engine *e,
                               const struct gen_request *r, struct gen *g,
                               enum gen_refusal *why, struct errmsg *m)
{
    uint64_t least = engine_floor(e, r->pin, r->n_pins), tokens = least;
    if (r->forget.admission.off && r->n_tokens > tokens)
        tokens = r->n_tokens;
    uint64_t units =
        (tokens / KV_UNIT + (tokens % KV_UNIT != 0) + 1) * e->n_lists;
    uint64_t needs = units + e->sessions.chunk_units;
    uint64_t needs_tokens = needs / e->n_lists * KV_UNIT;
    if (needs > e->n_units) {
        (void)err_set(m, ERR_INVAL,
                      "%llu tokens of the request can never be forgotten; "
                      "with room to go on they need KV memory for %llu "
                      "tokens, and the whole budget of %llu bytes holds %llu",
                      (unsigned long long)tokens,
                      (unsigned long long)needs_tokens,
                      (unsigned long long)e->o.kv_bytes,
                      (unsigned long long)e->pool_tokens);
        return refuse_kv(why);
    }
    g->floor = (uint32_t)least;
    g->guarantee = (uint32_t)units;
    return OK;
}

/* Sessions may go on beyond the context when they are re-positioned; what they
 * hold must stay below it, by a cap or because the pool is small. */
static bool may_pass_context(const struct engine *e,
                             const struct gen_request *r)
{
    uint64_t context = e->o.max_context, cap = r->forget.session_tokens;
    uint64_t least = engine_floor(e, r->pin, r->n_pins);
    return e->o.forget.unbounded_context && r->forget.policy != FORGET_EXACT &&
           !r->forget.admission.off &&
           (r->n_tokens <= context || !forget_studies_prompt(&r->forget)) &&
           ((cap > 0 && cap < context) || e->pool_tokens < context) &&
           least + 2ull * engine_context_margin(e) <= context &&
           r->n_tokens < INT32_MAX - 2 * ENGINE_ANSWER_MAX;
}

/* Why a request of a server with unbounded context may not pass it; the order
 * is that of may_pass_context(). */
static const char *bound_reason(const struct engine *e,
                                const struct gen_request *r)
{
    uint64_t context = e->o.max_context, cap = r->forget.session_tokens;
    if (!e->o.forget.unbounded_context)
        return "";
    if (r->forget.policy == FORGET_EXACT)
        return "; with the policy exact no session goes on beyond that";
    if (r->forget.admission.off)
        return "; with the admission none no session goes on beyond that";
    if (forget_studies_prompt(&r->forget))
        return "; with an admission that looks at all queries of a prompt no "
               "prompt goes on beyond that";
    if ((cap == 0 || cap >= context) && e->pool_tokens >= context)
        return "; a session goes on beyond that when its session_tokens are "
               "below it";
    return "; what the session can never forget leaves no room to go on "
           "beyond that";
}

static enum err refuse_context(const struct engine *e,
                               const struct gen_request *r,
                               enum gen_refusal *why, struct errmsg *m)
{
    *why = GEN_REFUSED_CONTEXT;
    return err_set(m, ERR_INVAL,
                   "This model's maximum context length is %u tokens%s. "
                   "However, your prompt has %u tokens, which leaves no room "
                   "for an answer. Please shorten it.",
                   e->o.max_context, bound_reason(e, r), r->n_tokens);
}

static enum err size_answer(const struct engine *e, const struct gen_request *r,
                            struct gen *g, enum gen_refusal *why,
                            struct errmsg *m)
{
    const struct gen_params *p = &r->params;
    uint32_t prompt = r->n_tokens, context = e->o.max_context, answer;
    bool only_prompt = p->has_max_tokens && p->max_tokens == 0;
    if (may_pass_context(e, r)) {
        answer = context < ENGINE_ANSWER_MAX ? context : ENGINE_ANSWER_MAX;
        if (p->has_max_tokens)
            answer = p->max_tokens < ENGINE_ANSWER_MAX ? p->max_tokens
                                                       : ENGINE_ANSWER_MAX;
    } else if (prompt > context || (prompt == context && !only_prompt)) {
        return refuse_context(e, r, why, m);
    } else {
        answer = context - prompt;
        if (p->has_max_tokens && p->max_tokens < answer)
            answer = p->max_tokens;
    }
    uint64_t needs = stored_tokens(prompt, answer);
    enum err rc = r->forget.policy == FORGET_EXACT
                      ? size_exact(e, r, &needs, &answer, why, m)
                      : size_guarantee(e, r, g, why, m);
    if (rc != OK)
        return rc;
    g->max_tokens = answer;
    g->cap = (uint32_t)needs;
    return OK;
}

/* Under mu. A request counts as waiting when it cannot be expected to start
 * at the next look: only those are limited by the queue. */
static enum err enter(struct engine *e, struct gen *g, enum gen_refusal *why,
                      struct errmsg *m)
{
    uint64_t units =
        g->guarantee > 0 ? g->guarantee : table_units_for(e->n_lists, g->cap);
    if (e->is_draining || e->is_stopping) {
        *why = GEN_REFUSED_DRAINING;
        return err_set(m, ERR_BUDGET,
                       "the server is shutting down and takes no new requests");
    }
    bool starts = e->n_queued == 0 && e->pending.n_waits == 0 &&
                  e->pending.n_starts < e->open_slots &&
                  e->pending.units + units <= e->open_units;
    if (!starts && e->n_queued + e->pending.n_waits >= e->o.max_queue) {
        *why = GEN_REFUSED_QUEUE;
        return err_set(m, ERR_BUSY,
                       "%u requests are waiting already, which is the limit",
                       e->n_queued + e->pending.n_waits);
    }
    if (starts) {
        e->pending.n_starts++;
        e->pending.units += units;
    } else {
        e->pending.n_waits++;
    }
    g->next_pending = NULL;
    if (e->pending_last)
        e->pending_last->next_pending = g;
    else
        e->pending_first = g;
    e->pending_last = g;
    atomic_fetch_add(&e->n_active, 1);
    pthread_cond_signal(&e->cond);
    return OK;
}

static void count_refusal(struct engine *e, enum gen_refusal why)
{
    e->refused_context += why == GEN_REFUSED_CONTEXT;
    e->refused_kv += why == GEN_REFUSED_KV;
    e->refused_queue += why == GEN_REFUSED_QUEUE;
    e->refused_draining += why == GEN_REFUSED_DRAINING;
}

enum err engine_submit(struct engine *e, struct gen_request *r,
                       struct gen **out, enum gen_refusal *why,
                       struct errmsg *m)
{
    struct gen *g = NULL;
    *why = GEN_REFUSED_NOT;
    enum err rc = check_ids(e, r, m);
    if (rc != OK)
        return rc;
    rc = gen_new(&g, r);
    if (rc != OK)
        return err_set(m, rc, "no memory for a request");
    g->engine = e;
    g->submitted_us = clock_us();
    rc = size_answer(e, r, g, why, m);

    pthread_mutex_lock(&e->mu);
    if (rc == OK)
        rc = enter(e, g, why, m);
    count_refusal(e, *why);
    pthread_mutex_unlock(&e->mu);

    if (rc != OK) {
        /* The request's memory stays the caller's. */
        g->request = (struct gen_request){0};
        gen_unref(g);
        gen_unref(g);
        return rc;
    }
    *r = (struct gen_request){0};
    *out = g;
    return OK;
}

void engine_drain(struct engine *e)
{
    pthread_mutex_lock(&e->mu);
    e->is_draining = true;
    pthread_mutex_unlock(&e->mu);
}

bool engine_is_idle(const struct engine *e)
{
    return atomic_load(&e->n_active) == 0;
}

/* Sleeps until something is submitted, cancelled or stopped. With requests
 * in the queue and none running, or with text that could not be delivered,
 * the host was short of memory: try again soon. */
static void wait_for_work(struct engine *e)
{
    while (!e->pending_first && !e->is_woken && !e->is_stopping) {
        if (e->queue.n == 0 && !e->changed) {
            pthread_cond_wait(&e->cond, &e->mu);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 50 * 1000 * 1000;
        if (until.tv_nsec >= 1000 * 1000 * 1000) {
            until.tv_nsec -= 1000 * 1000 * 1000;
            until.tv_sec++;
        }
        (void)pthread_cond_timedwait(&e->cond, &e->mu, &until);
        e->look = true;
        return;
    }
}

bool engine_take_in(struct engine *e)
{
    pthread_mutex_lock(&e->mu);
    if (e->n_running == 0)
        wait_for_work(e);
    struct gen *g = e->pending_first;
    e->pending_first = e->pending_last = NULL;
    /* They stay counted at the door until it is published what became of
     * them. */
    e->taken = e->pending;
    e->flushing = e->flushes;
    e->flushes = NULL;
    e->is_woken = false;
    bool goes_on = !e->is_stopping;
    pthread_mutex_unlock(&e->mu);

    while (g) {
        struct gen *next = g->next_pending;
        g->next_pending = NULL;
        g->seed = rng_next(&e->rng);
        queue_push(&e->queue, &g->node);
        e->look = true;
        g = next;
    }
    return goes_on;
}
