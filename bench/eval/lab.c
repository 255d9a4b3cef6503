#include "bench/eval/lab.h"

#include <stdlib.h>

#include "bench/eval/fork.h"
#include "bench/eval/merging.h"
#include "bench/eval/oracle.h"

struct lab {
    struct lab_options o;
    struct pool *pool;
    struct scoring *scoring;
    struct chooser *chooser;
    struct oracle *oracle; /* NULL: nobody asks it */
    bool is_foreseen;      /* it has seen the open document */
    struct scored *scored; /* [DOCUMENT_SCORED_MAX] */
    /* The open document. */
    const struct document *d;
    /* Full caches to compress: one for all probes or, in aware mode, one for
     * each question. */
    struct table *state[DOCUMENT_QUESTIONS_MAX];
    /* What watched each; all NULL when no policy needs it. In agnostic mode
     * the chooser has looked at the one state, for all policies. */
    struct probe *probe[DOCUMENT_QUESTIONS_MAX];
    uint32_t n_states;
    uint64_t probe_bytes;
};

enum {
    /* A fork copies a shared tail, and grows by parts of units at both ends. */
    SPARE_UNITS = 2,
    SKIPPED_QUERIES = 4,
    PROBE_TOKENS = DOCUMENT_GIVEN_MAX + DOCUMENT_SCORED_MAX
};

const char *lab_mode_name(enum lab_mode mode)
{
    return mode == LAB_AWARE ? "aware" : "agnostic";
}

void lab_model_options(struct model_options *o, uint32_t n_tokens)
{
    o->max_rows = SCORING_ROWS;
    o->max_runs = SCORING_ROWS;
    o->max_context = n_tokens + PROBE_TOKENS;
}

static uint32_t units_of(uint32_t n_tokens)
{
    return n_tokens / KV_UNIT + SPARE_UNITS;
}

/* Units of one list: the prompt, a deep copy of it, and what the probes add; in
 * aware mode the copies are of every question's prompt. */
static uint32_t units_of_list(const struct lab_options *o)
{
    uint32_t prompt = units_of(o->n_tokens);
    uint32_t probes =
        units_of(DOCUMENT_FED_MAX) + DOCUMENT_PROBES_MAX * SPARE_UNITS;
    uint32_t question = units_of(DOCUMENT_GIVEN_MAX);
    if (o->mode == LAB_AGNOSTIC)
        return 2 * prompt + probes;
    return prompt + DOCUMENT_QUESTIONS_MAX * (prompt + 2 * question) + probes;
}

/* Caches that are compressed: the document's, or every question's. */
static uint32_t n_states_max(const struct lab_options *o)
{
    return o->mode == LAB_AWARE ? DOCUMENT_QUESTIONS_MAX : 1;
}

/* Tokens of a prompt that is compressed: in aware mode with its question. */
static uint32_t max_prompt(const struct lab_options *o)
{
    return o->n_tokens + DOCUMENT_GIVEN_MAX;
}

static enum err open_pool(struct lab *l, struct errmsg *m)
{
    const struct model_info *i = model_info(l->o.model);
    struct kv_layout layout;
    uint64_t n = (uint64_t)i->n_layers * i->n_kv_heads * units_of_list(&l->o);
    kv_layout_init(&layout, l->o.kv_type, i->head_dim);
    return pool_new(&l->pool, &layout, n * pool_unit_bytes(&layout), m);
}

/* One for each state. Queries of the first tokens, the sinks, are left out of
 * what queries to come are expected to be. */
static enum err new_probes(struct lab *l, struct errmsg *m)
{
    const uint32_t watched =
        POLICY_WINDOW | POLICY_PEAK | POLICY_COLUMNS | POLICY_FUTURE;
    const struct choices_needs *needs = &l->o.needs;
    bool is_watched = (needs->view & watched) || needs->fate;
    uint32_t n = n_states_max(&l->o);
    struct probe_options o = {
        .n_window = needs->n_window > 0 ? needs->n_window : 1,
        .parts = (needs->view & POLICY_COLUMNS ? PROBE_COLUMNS : 0) |
                 (needs->view & POLICY_FUTURE ? PROBE_FUTURE : 0) |
                 merging_parts(needs->fate),
        .max_tokens = max_prompt(&l->o),
        .n_skip = SKIPPED_QUERIES};
    enum err rc = OK;
    for (uint32_t i = 0; i < n && is_watched && rc == OK; i++)
        rc = probe_new(&l->probe[i], l->o.model, &o, m);
    l->probe_bytes = is_watched ? n * probe_bytes(l->o.model, &o) : 0;
    return rc;
}

static enum err new_oracle(struct lab *l, struct errmsg *m)
{
    const struct oracle_size size = {.model = l->o.model,
                                     .workers = l->o.workers,
                                     .max_tokens = max_prompt(&l->o),
                                     .n_states = n_states_max(&l->o)};
    if (!l->o.needs.answers)
        return OK;
    l->probe_bytes += oracle_bytes(&size);
    return oracle_new(&l->oracle, &size, m);
}

enum err lab_new(struct lab **out, const struct lab_options *o,
                 struct errmsg *m)
{
    struct lab *l = calloc(1, sizeof(*l));
    if (l != NULL)
        l->scored = calloc(DOCUMENT_SCORED_MAX, sizeof(*l->scored));
    if (l == NULL || l->scored == NULL) {
        lab_free(l);
        return err_set(m, ERR_NOMEM, "no memory to open a document");
    }
    l->o = *o;
    enum err rc = open_pool(l, m);
    if (rc == OK)
        rc = scoring_new(&l->scoring, o->model, o->workers, DOCUMENT_SCORED_MAX,
                         m);
    struct chooser_size size = {.pool = l->pool,
                                .workers = o->workers,
                                .model = o->model,
                                .max_tokens = max_prompt(o),
                                .n_looks = n_states_max(o)};
    if (rc == OK)
        rc = chooser_new(&l->chooser, &size, m);
    if (rc == OK)
        rc = new_probes(l, m);
    if (rc == OK)
        rc = new_oracle(l, m);
    if (rc == OK)
        *out = l;
    else
        lab_free(l);
    return rc;
}

void lab_free(struct lab *l)
{
    if (l == NULL)
        return;
    lab_close(l);
    for (uint32_t i = 0; i < DOCUMENT_QUESTIONS_MAX; i++)
        probe_free(l->probe[i]);
    chooser_free(l->chooser);
    oracle_free(l->oracle);
    scoring_free(l->scoring);
    pool_free(l->pool);
    free(l->scored);
    free(l);
}

uint64_t lab_cache_bytes(const struct lab *l)
{
    return pool_stats(l->pool).budget_bytes;
}

uint64_t lab_logits_bytes(const struct lab *l)
{
    return scoring_bytes(model_info(l->o.model), DOCUMENT_SCORED_MAX);
}

uint64_t lab_probe_bytes(const struct lab *l)
{
    return l->probe_bytes;
}

static struct table *new_table(struct lab *l)
{
    const struct model_info *i = model_info(l->o.model);
    struct table *t = NULL;
    if (table_new(&t, l->pool, i->n_layers, i->n_kv_heads,
                  l->o.n_tokens + PROBE_TOKENS) != OK)
        return NULL;
    return t;
}

static void free_tables(struct table **t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        table_free(t[i]);
        t[i] = NULL;
    }
}

void lab_close(struct lab *l)
{
    free_tables(l->state, DOCUMENT_QUESTIONS_MAX);
    if (l->chooser != NULL)
        chooser_forget(l->chooser);
    l->d = NULL;
    l->n_states = 0;
    l->is_foreseen = false;
}

static uint32_t capacity(const struct lab *l)
{
    return l->o.n_tokens + PROBE_TOKENS;
}

/* Tokens of probe i that belong to the compressed prompt. */
static uint32_t n_given(const struct lab *l, uint32_t i)
{
    return l->o.mode == LAB_AWARE ? l->d->probe[i].first - 1 : 0;
}

/* Probe i from where the compressed prompt ends: behind its last entry, where
 * it was moved together, and else where its tokens end. */
static struct scoring_run run_of(const struct lab *l, uint32_t i,
                                 struct table *t, bool is_moved)
{
    const struct document_probe *p = &l->d->probe[i];
    uint32_t given = n_given(l, i), pos = (uint32_t)l->d->prompt.n + given;
    return (struct scoring_run){.table = t,
                                .ids = p->ids.id + given,
                                .n = (uint32_t)p->ids.n - given,
                                .first = p->first - given,
                                .pos = pos,
                                .back = is_moved ? pos - table_max_len(t) : 0};
}

/* What one right answer adds to the figures. */
static void add_answer(struct figures *out, const struct scored *s, uint32_t n,
                       double weight)
{
    double *sum = out->metric, each = weight / n;
    uint32_t right = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum[METRIC_NLL] += s[i].nll * each;
        sum[METRIC_KL] += s[i].kl * each;
        sum[METRIC_AGREE] += s[i].agree * each;
        sum[METRIC_TOP1] += s[i].top1 * each;
        right += s[i].top1;
    }
    sum[METRIC_EM] += right == n ? weight : 0;
}

static double total_nll(const struct scored *s, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += s[i].nll;
    return sum;
}

/* An answer of many tokens weighs as much as one of few. */
static void average_answers(const struct lab *l, struct figures *out)
{
    const struct scored *s = l->scored;
    for (uint32_t i = 0; i < l->d->n_probes; i++) {
        const struct document_probe *p = &l->d->probe[i];
        uint32_t n = (uint32_t)p->ids.n - p->first;
        if (!p->is_wrong)
            add_answer(out, s, n, 1.0 / l->d->n_questions);
        s += n;
    }
}

/* The share of questions, of those that have wrong answers, whose right answer
 * is more probable than each of them. */
static double choice(const struct lab *l)
{
    const struct scored *s = l->scored;
    double right = 0;
    uint32_t n_asked = 0, n_missed = 0;
    bool is_missed = false;
    for (uint32_t i = 0; i < l->d->n_probes; i++) {
        const struct document_probe *p = &l->d->probe[i];
        uint32_t n = (uint32_t)p->ids.n - p->first;
        double nll = total_nll(s, n);
        if (!p->is_wrong) {
            right = nll;
            is_missed = false;
        } else {
            n_asked += !l->d->probe[i - 1].is_wrong;
            n_missed += nll <= right && !is_missed;
            is_missed = is_missed || nll <= right;
        }
        s += n;
    }
    return n_asked > 0 ? 1 - n_missed / (double)n_asked : 0;
}

static void average(const struct lab *l, struct figures *out)
{
    *out = (struct figures){0};
    average_answers(l, out);
    out->metric[METRIC_CHOICE] = choice(l);
}

static void count_entries(const struct lab *l, struct figures *a,
                          struct table *const *t, uint32_t n)
{
    double entry_bytes =
        (double)pool_unit_bytes(pool_layout(l->pool)) / KV_UNIT;
    for (uint32_t i = 0; i < n; i++)
        a->n_entries += (double)table_n_entries(t[i]) / n;
    a->bytes = a->n_entries * entry_bytes;
}

/* Tables of prompts: one for all questions, or one for each. */
struct prompts {
    struct table *const *table;
    uint32_t n;
    bool are_moved; /* by model_reposition() */
};

/* Scores the probes on forks of the prompts, and says what these hold. */
static enum err score(struct lab *l, const struct prompts *of,
                      bool is_reference, struct figures *out)
{
    struct table *fork[DOCUMENT_PROBES_MAX] = {NULL};
    struct scoring_run run[DOCUMENT_PROBES_MAX];
    enum err rc = OK;
    uint32_t n_questions = 0;
    for (uint32_t i = 0; i < l->d->n_probes && rc == OK; i++) {
        n_questions += !l->d->probe[i].is_wrong;
        rc = fork_shared(&fork[i], of->table[of->n == 1 ? 0 : n_questions - 1],
                         capacity(l));
        if (rc == OK)
            run[i] = run_of(l, i, fork[i], of->are_moved);
    }
    if (rc == OK)
        rc = scoring_score(l->scoring, run, l->d->n_probes, is_reference,
                           l->scored);
    if (rc == OK) {
        average(l, out);
        count_entries(l, out, of->table, of->n);
    }
    free_tables(fork, DOCUMENT_PROBES_MAX);
    return rc;
}

static enum err score_full(struct lab *l, bool is_reference,
                           struct figures *out)
{
    const struct prompts full = {l->state, l->n_states, false};
    return score(l, &full, is_reference, out);
}

/* The probe that asks question i. */
static uint32_t probe_of(const struct document *d, uint32_t i_question)
{
    uint32_t i = 0;
    while (d->probe[i].is_wrong || i_question > 0)
        i_question -= !d->probe[i++].is_wrong;
    return i;
}

/* In aware mode every question becomes part of a prompt of its own. */
static enum err read_questions(struct lab *l)
{
    struct scoring_run run[DOCUMENT_QUESTIONS_MAX];
    struct table *prompt = l->state[0];
    enum err rc = OK;
    l->state[0] = NULL;
    l->n_states = l->d->n_questions;
    for (uint32_t i = 0; i < l->n_states && rc == OK; i++) {
        const struct document_probe *p = &l->d->probe[probe_of(l->d, i)];
        rc = fork_shared(&l->state[i], prompt, capacity(l));
        if (i > 0 && l->probe[i] != NULL)
            probe_copy(l->probe[i], l->probe[0]);
        run[i] = (struct scoring_run){.table = l->state[i],
                                      .probe = l->probe[i],
                                      .ids = p->ids.id,
                                      .n = (uint32_t)p->ids.n,
                                      .first = p->first,
                                      .pos = (uint32_t)l->d->prompt.n};
    }
    if (rc == OK)
        rc = scoring_feed_given(l->scoring, run, l->n_states);
    table_free(prompt);
    return rc;
}

/* What is looked at for every right answer, in the cache of its question. Once
 * a document, and only where the oracle is asked about it: this is another run
 * of all its questions. */
static enum err foresee(struct lab *l)
{
    enum err rc = OK;
    if (l->is_foreseen)
        return OK;
    oracle_reset(l->oracle);
    for (uint32_t i = 0; i < l->d->n_questions && rc == OK; i++) {
        uint32_t i_state = l->o.mode == LAB_AWARE ? i : 0;
        struct table *fork = NULL;
        rc = fork_shared(&fork, l->state[i_state], capacity(l));
        if (rc != OK)
            return rc;
        struct scoring_run run = run_of(l, probe_of(l->d, i), fork, false);
        rc = oracle_watch(l->oracle, i_state, l->scoring, &run);
        table_free(fork);
    }
    l->is_foreseen = rc == OK;
    return rc;
}

/* NULL where nobody asks. */
static const float *foreseen(const struct lab *l, uint32_t i_state)
{
    return l->oracle != NULL ? oracle_masses(l->oracle, i_state) : NULL;
}

/* Tokens that a state has seen. */
static uint32_t n_seen(const struct lab *l, uint32_t i_state)
{
    return (uint32_t)l->d->prompt.n + n_given(l, probe_of(l->d, i_state));
}

static enum err look(struct lab *l, uint32_t i_state, uint32_t needs)
{
    const struct chooser_subject of = {l->state[i_state], l->probe[i_state],
                                       n_seen(l, i_state),
                                       foreseen(l, i_state)};
    return chooser_look(l->chooser, i_state, &of, needs);
}

/* Tokens [from, to) of the prompt. */
static enum err feed(struct lab *l, struct table *t, struct probe *p,
                     uint32_t from, uint32_t to)
{
    struct scoring_run run = {.table = t,
                              .probe = p,
                              .ids = l->d->prompt.id + from,
                              .n = to - from,
                              .pos = from};
    return scoring_feed(l->scoring, &run);
}

enum err lab_open(struct lab *l, const struct document *d, struct figures *full,
                  struct errmsg *m)
{
    enum err rc = ERR_NOMEM;
    l->d = d;
    l->n_states = 1;
    if (l->probe[0] != NULL)
        probe_reset(l->probe[0]);
    l->state[0] = new_table(l);
    if (l->state[0] != NULL)
        rc = feed(l, l->state[0], l->probe[0], 0, (uint32_t)d->prompt.n);
    if (rc == OK && l->o.mode == LAB_AWARE)
        rc = read_questions(l);
    if (rc == OK && l->o.mode == LAB_AGNOSTIC)
        rc = look(l, 0, l->o.needs.view);
    if (rc == OK)
        rc = score_full(l, true, full);
    if (rc != OK) {
        lab_close(l);
        return err_set(m, rc, "no memory for a document of %zu tokens",
                       d->prompt.n);
    }
    return OK;
}

/* Probes after the prompt's head alone. The question is given whatever the
 * mode: nothing is compressed here. */
static enum err ask_without_context(struct lab *l, struct figures *out)
{
    struct table *head[1] = {new_table(l)};
    struct table *fork[DOCUMENT_PROBES_MAX] = {NULL};
    struct scoring_run run[DOCUMENT_PROBES_MAX];
    uint32_t n_head = l->d->n_head;
    enum err rc = head[0] == NULL ? ERR_NOMEM : OK;
    if (rc == OK)
        rc = feed(l, head[0], NULL, 0, n_head);
    for (uint32_t i = 0; i < l->d->n_probes && rc == OK; i++) {
        const struct document_probe *p = &l->d->probe[i];
        rc = fork_shared(&fork[i], head[0], capacity(l));
        run[i] = (struct scoring_run){.table = fork[i],
                                      .ids = p->ids.id,
                                      .n = (uint32_t)p->ids.n,
                                      .first = p->first,
                                      .pos = n_head};
    }
    if (rc == OK)
        rc = scoring_score(l->scoring, run, l->d->n_probes, false, l->scored);
    if (rc == OK) {
        average(l, out);
        count_entries(l, out, head, 1);
    }
    free_tables(fork, DOCUMENT_PROBES_MAX);
    table_free(head[0]);
    return rc;
}

/* Asks on what is left of prompts, as --reposition of the server would have
 * it: once all of a prompt was read, before the first token behind it. */
static enum err ask_left(struct lab *l, const struct choice *c,
                         struct table *const *t, uint32_t n,
                         struct figures *out)
{
    const struct prompts left = {t, n, c->reposition};
    for (uint32_t i = 0; i < n && c->reposition; i++)
        (void)model_reposition(l->o.model, t[i]);
    return score(l, &left, false, out);
}

/* What merging did, over all that was compressed. */
static void note_merges(struct figures *out, const struct merge_counts *c)
{
    out->routed = merge_routed_share(c);
    out->gate = merge_mean_gate(c);
    out->log_ratio = (double)c->log_ratio;
}

static enum err ask_compressed(struct lab *l, const struct choice *c,
                               struct figures *out, struct errmsg *m)
{
    struct table *copy[DOCUMENT_QUESTIONS_MAX] = {NULL};
    struct merge_counts merged = {0};
    enum err rc = OK;
    for (uint32_t i = 0; i < l->n_states && rc == OK; i++) {
        if (l->o.mode == LAB_AWARE)
            rc = look(l, i, c->policy->needs);
        if (rc == OK)
            rc = fork_deep(&copy[i], l->state[i], capacity(l));
        if (rc == OK)
            rc = chooser_apply(l->chooser, c,
                               choice_entries(c->budget, n_seen(l, i)), copy[i],
                               &merged, m);
    }
    if (rc == OK)
        rc = ask_left(l, c, copy, l->n_states, out);
    note_merges(out, &merged);
    free_tables(copy, DOCUMENT_QUESTIONS_MAX);
    return rc;
}

/* The prompt comes in stages and is compressed after each, always to what the
 * budget is of the whole: what left is not there when the next stage is read.
 * What the chooser had seen of the document is lost. */
static enum err ask_staged(struct lab *l, const struct choice *c,
                           struct figures *out, struct errmsg *m)
{
    uint32_t n = (uint32_t)l->d->prompt.n, n_stages = l->d->n_stages;
    struct table *t[1] = {new_table(l)};
    struct probe *p = l->probe[0];
    struct merge_counts merged = {0};
    enum err rc = t[0] != NULL ? OK : ERR_NOMEM;
    if (p != NULL)
        probe_reset(p);
    for (uint32_t i = 0, from = 0; i < n_stages && rc == OK; i++) {
        uint32_t to = (uint32_t)((uint64_t)n * (i + 1) / n_stages);
        rc = feed(l, t[0], p, from, to);
        const struct chooser_subject of = {t[0], p, to, foreseen(l, 0)};
        chooser_forget(l->chooser);
        if (rc == OK)
            rc = chooser_look(l->chooser, 0, &of, c->policy->needs);
        if (rc == OK)
            rc = chooser_apply(l->chooser, c, choice_entries(c->budget, n),
                               t[0], &merged, m);
        from = to;
    }
    if (rc == OK)
        rc = ask_left(l, c, t, 1, out);
    note_merges(out, &merged);
    table_free(t[0]);
    return rc;
}

static enum err ask_policy(struct lab *l, const struct choice *c,
                           struct figures *out, struct errmsg *m)
{
    return l->d->n_stages > 1 && l->o.mode == LAB_AGNOSTIC
               ? ask_staged(l, c, out, m)
               : ask_compressed(l, c, out, m);
}

enum err lab_ask(struct lab *l, const struct choice *c, struct figures *out,
                 struct errmsg *m)
{
    struct errmsg why = {""};
    enum err rc = OK;
    switch (c->kind) {
    case CHOICE_FULL:
        rc = score_full(l, false, out);
        break;
    case CHOICE_NO_CONTEXT:
        rc = ask_without_context(l, out);
        break;
    case CHOICE_ORACLE:
        rc = foresee(l);
        if (rc == OK)
            rc = ask_policy(l, c, out, &why);
        break;
    case CHOICE_PASS:
    case CHOICE_POLICY:
        rc = ask_policy(l, c, out, &why);
        break;
    }
    return rc == OK ? OK
                    : err_set(m, rc, "%s on a document of %zu tokens: %s",
                              c->name, l->d->prompt.n,
                              why.text[0] != '\0' ? why.text : err_name(rc));
}

const struct scored *lab_scored(const struct lab *l)
{
    return l->scored;
}
