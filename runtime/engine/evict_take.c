/* What a pass has chosen is merged, where it can be, and taken out. */
#include <math.h>

#include "base/clock.h"
#include "cache/score.h"
#include "runtime/engine/evict_internal.h"

enum {
    JOBS_A_TASK = 16,
    /* What a list costs beside the entries that move in it, in these: units
     * and counts to be looked up, and a look at each of its masks. */
    LIST_COST = 4,
    LENGTH_COST = 2048, /* entries of a list, for one */
    FREED_COST = 64     /* entries that go, for one */
};

/* Highest effective score of the entries of a list that go. */
static double highest(const struct evict *e, const struct job *j)
{
    const struct select_session *in = &e->session[j->i];
    const struct kv_list *l = &in->table->list[j->i_list];
    const uint16_t *gone = select_gone(e->select);
    double most = -INFINITY;
    for (uint32_t u = 0; u < l->n_units; u++) {
        const struct kv_meta *m = pool_meta(e->in.pool, l->unit[u]);
        for (uint32_t mask = gone[l->unit[u]]; mask != 0; mask &= mask - 1) {
            int k = __builtin_ctz(mask);
            double age = (double)in->n_seen + 1 - m->pos[k];
            most = fmax(most, score_effective(score_of(age, m->log_beta[k], 1),
                                              in->offset));
        }
    }
    return most;
}

static bool may_merge(const struct evict *e, const struct session *s,
                      enum engine_cause cause)
{
    return cause == ENGINE_ADMISSION && e->o.watches &&
           watch_can_merge(e->o.watches, s);
}

static bool merges(const struct evict *e, const struct job *j)
{
    return may_merge(e, e->of[j->i], e->cause[j->i]);
}

static uint32_t layer_of(const struct evict *e, const struct job *j)
{
    return j->i_list / e->o.sessions->n_kv_heads;
}

/* Where lists of a layer are merged together, their first job does it. */
static void merge_job(struct evict *e, uint32_t i, int thread)
{
    struct job *j = &e->job[i];
    const struct job *before = i > e->next_job ? j - 1 : NULL;
    const struct session *s = e->of[j->i];
    const uint16_t *gone = select_gone(e->select);
    if (!watch_is_by_layer(e->o.watches, s))
        watch_merge(e->o.watches, s, j->i_list, gone, thread, &j->merged);
    else if (!before || before->i != j->i ||
             layer_of(e, before) != layer_of(e, j))
        watch_merge_layer(e->o.watches, s, layer_of(e, j), gone, thread,
                          &j->merged);
}

static void merge_jobs(void *ctx, int task, int thread)
{
    struct evict *e = ctx;
    uint32_t i = e->next_job + (uint32_t)task * JOBS_A_TASK;
    uint32_t end = i + JOBS_A_TASK;
    for (; i < end && i < e->end_job; i++) {
        if (merges(e, &e->job[i]))
            merge_job(e, i, thread);
    }
}

static void run_jobs(void *ctx, int task, int thread)
{
    struct evict *e = ctx;
    (void)thread;
    uint32_t i = e->next_job + (uint32_t)task * JOBS_A_TASK;
    uint32_t end = i + JOBS_A_TASK;
    for (; i < end && i < e->end_job; i++) {
        struct job *j = &e->job[i];
        if (e->cause[j->i] == ENGINE_PRESSURE &&
            e->of[j->i]->rules.policy == FORGET_DBTRIMKV)
            j->below = highest(e, j);
        j->gone = watch_compact(e->of[j->i], j->i_list, select_gone(e->select));
    }
}

void evict_find_jobs(struct evict *e)
{
    e->n_jobs = e->next_job = 0;
    for (uint32_t i = 0; i < e->in.n_sessions; i++) {
        if (select_session_gone(e->select, i) == 0)
            continue;
        for (uint32_t k = 0; k < e->n_lists; k++) {
            uint32_t n = select_list_gone(e->select, i, k);
            if (n > 0)
                e->job[e->n_jobs++] = (struct job){
                    .i = i, .i_list = k, .gone = n, .below = -INFINITY};
        }
    }
}

/* Lists that grow take units from the pool before the last job is done. */
static void note_freed(struct evict *e, const struct kv_list *l)
{
    for (uint32_t u = table_units_of(l->len); u < l->n_units; u++)
        select_unit_freed(e->select, l->unit[u]);
}

/* The jobs of this portion. */
static void on_all_threads(struct evict *e, workers_fn fn)
{
    uint32_t n_jobs = e->end_job - e->next_job;
    uint32_t n_tasks = (n_jobs + JOBS_A_TASK - 1) / JOBS_A_TASK;
    if (e->o.workers && n_tasks > 1)
        workers_run(e->o.workers, (int)n_tasks, fn, e);
    else
        for (uint32_t i = 0; i < n_tasks; i++)
            fn(e, (int)i, 0);
}

/* Scratch for all jobs that merge. False: no memory, or there are none. */
static bool make_scratch(struct evict *e)
{
    bool any = false;
    for (uint32_t i = e->next_job; i < e->end_job; i++) {
        const struct job *j = &e->job[i];
        const struct session *s = e->of[j->i];
        if (!merges(e, j))
            continue;
        any = true;
        if (!watches_make_scratch(e->o.watches, s, table_max_len(s->table)))
            return false;
    }
    return any;
}

/* The time of a merge falls to its sessions by what leaves them; the parts add
 * up to it. */
static void share_time(struct evict *e, int64_t us)
{
    int64_t all = 0, done = 0;
    for (uint32_t i = e->next_job; i < e->end_job; i++)
        all += merges(e, &e->job[i]) ? e->job[i].gone : 0;
    for (uint32_t i = e->next_job; i < e->end_job; i++) {
        const struct job *j = &e->job[i];
        if (!merges(e, j))
            continue;
        int64_t before = us * done / all;
        done += j->gone;
        e->of[j->i]->merge_us += us * done / all - before;
    }
}

/* Merges what leaves by admission, while it is still there. Without memory for
 * it everything is dropped. */
static void merge_leavers(struct evict *e, struct evict_result *r)
{
    if (!make_scratch(e))
        return;
    int64_t start = clock_us();
    on_all_threads(e, merge_jobs);
    r->merge_us = clock_us() - start + 1;
    share_time(e, r->merge_us);
}

static void count_merges(struct session *s, const struct merge_counts *c)
{
    s->n_routed += c->routed;
    if (c->log_ratio > s->merge_log_ratio)
        s->merge_log_ratio = c->log_ratio;
    if (c->merged == 0)
        return;
    s->n_merged += c->merged;
    s->merged_below = s->n_stored;
}

/* Of taking out what was chosen of a list, in entries that move: these are no
 * more than go, and no more than stay. */
static uint64_t cost_of(const struct evict *e, const struct job *j)
{
    uint32_t len = e->of[j->i]->table->list[j->i_list].len;
    uint32_t stay = len - j->gone;
    return LIST_COST + len / LENGTH_COST + j->gone / FREED_COST +
           (j->gone < stay ? j->gone : stay);
}

/* Moving the bytes is most of the work and is done by all threads; units return
 * to the pool by this one, in a fixed order. */
void evict_take_some(struct evict *e, uint64_t most, struct evict_result *r)
{
    uint64_t n = 0;
    for (e->end_job = e->next_job; e->end_job < e->n_jobs; e->end_job++) {
        n += cost_of(e, &e->job[e->end_job]);
        if (n > most && e->end_job > e->next_job)
            break;
    }
    merge_leavers(e, r);
    e->is_taking = true;
    on_all_threads(e, run_jobs);
    for (uint32_t i = e->next_job; i < e->end_job; i++) {
        const struct job *j = &e->job[i];
        merge_counts_add(&r->merged, &j->merged);
        count_merges(e->of[j->i], &j->merged);
        note_freed(e, &e->of[j->i]->table->list[j->i_list]);
        session_shrink(e->o.sessions, e->of[j->i], j->i_list, j->gone);
        r->gone[e->cause[j->i]] += j->gone;
        r->below = fmax(r->below, j->below);
        if (i + 1 == e->end_job || e->job[i + 1].i != j->i)
            session_settle(e->o.sessions, e->of[j->i]);
    }
    e->is_taking = false;
    e->next_job = e->end_job;
}

void evict_merge_list(struct evict *e, struct session *s, uint32_t i_list,
                      enum engine_cause cause, struct evict_result *r)
{
    struct merge_counts c = {0};
    if (!may_merge(e, s, cause) ||
        !watches_make_scratch(e->o.watches, s, s->table->list[i_list].len))
        return;
    int64_t start = clock_us();
    watch_merge(e->o.watches, s, i_list, select_gone(e->select), 0, &c);
    int64_t us = clock_us() - start;
    r->merge_us += us;
    s->merge_us += us;
    merge_counts_add(&r->merged, &c);
    count_merges(s, &c);
}
