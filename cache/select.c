#include "cache/select.h"

#include <stdlib.h>
#include <string.h>

#include "cache/select_internal.h"

enum {
    CUT_COST = N_BUCKETS / 4, /* of a session between sweeps, in entries */
    /* A prime, or else lists of 32 units would show the same one each time. */
    SAMPLE_RATE = 61,
    SAMPLED_UNITS = 16 /* entries of a sample, times the rate, at least */
};

static uint32_t n_lists_of(const struct select_session *s)
{
    return s->table->n_layers * s->table->n_kv_heads;
}

static uint64_t above(uint64_t held, uint64_t least)
{
    return held > least ? held - least : 0;
}

enum err select_new(struct select **out, const struct select_size *size)
{
    struct select *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->size = *size;
    if (s->size.sample_rate == 0)
        s->size.sample_rate = SAMPLE_RATE;
    size_t sessions = size->max_sessions, tenants = size->max_tenants,
           lists = size->max_lists;
    s->session = calloc(sessions + 1, sizeof(*s->session));
    s->tenant = calloc(tenants + 1, sizeof(*s->tenant));
    s->list = calloc(lists + 1, sizeof(*s->list));
    s->chunk = calloc(lists + 1, sizeof(*s->chunk));
    s->item = calloc((size_t)size->max_undecided + 1, sizeof(*s->item));
    s->scratch = calloc((size_t)size->n_threads, sizeof(*s->scratch));
    s->gone = calloc((size_t)size->n_units + 1, sizeof(*s->gone));
    s->own = calloc((size_t)size->n_units / 64 + 1, sizeof(*s->own));
    s->session_hist =
        calloc(sessions + 1, N_BUCKETS * sizeof(*s->session_hist));
    s->taken = calloc(tenants + 1, N_BUCKETS * sizeof(*s->taken));
    if (!s->session || !s->tenant || !s->list || !s->chunk || !s->item ||
        !s->scratch || !s->gone || !s->own || !s->session_hist || !s->taken) {
        select_free(s);
        return ERR_NOMEM;
    }
    s->root_taken = s->taken + tenants * N_BUCKETS;
    *out = s;
    return OK;
}

uint64_t select_bytes(const struct select_size *size)
{
    const struct select *s = NULL;
    uint64_t sessions = size->max_sessions + 1ull,
             tenants = size->max_tenants + 1ull, lists = size->max_lists + 1ull;
    uint64_t bytes = sizeof(*s) + sessions * sizeof(*s->session) +
                     tenants * sizeof(*s->tenant) +
                     lists * (sizeof(*s->list) + sizeof(*s->chunk)) +
                     (size->max_undecided + 1ull) * sizeof(*s->item) +
                     (uint64_t)size->n_threads * sizeof(*s->scratch);
    bytes += (size->n_units + 1ull) * sizeof(*s->gone) +
             (size->n_units / 64 + 1ull) * sizeof(*s->own);
    return bytes + N_BUCKETS * (sessions * sizeof(*s->session_hist) +
                                tenants * sizeof(*s->taken));
}

void select_free(struct select *s)
{
    if (!s)
        return;
    free(s->taken);
    free(s->session_hist);
    free(s->own);
    free(s->gone);
    free(s->scratch);
    free(s->item);
    free(s->chunk);
    free(s->list);
    free(s->tenant);
    free(s->session);
    free(s);
}

/* ------------------------------------------------------------- the start */

static enum err check(const struct select *s, const struct select_input *in,
                      struct errmsg *m)
{
    uint64_t lists = 0;
    if (in->n_sessions > s->size.max_sessions)
        return err_set(m, ERR_INVAL, "%u sessions, at most %u", in->n_sessions,
                       s->size.max_sessions);
    if (in->n_tenants > s->size.max_tenants)
        return err_set(m, ERR_INVAL, "%u tenants, at most %u", in->n_tenants,
                       s->size.max_tenants);
    if (pool_stats(in->pool).n_units > s->size.n_units)
        return err_set(m, ERR_INVAL, "a pool of %u units, at most %u",
                       pool_stats(in->pool).n_units, s->size.n_units);
    for (uint32_t i = 0; i < in->n_sessions; i++) {
        const struct select_session *n = &in->session[i];
        if (n->tenant >= in->n_tenants)
            return err_set(m, ERR_INVAL, "session %u names tenant %u of %u", i,
                           n->tenant, in->n_tenants);
        if (n->n_seen > INT32_MAX - 1)
            return err_set(m, ERR_INVAL, "session %u has seen %u tokens", i,
                           n->n_seen);
        lists += n_lists_of(n);
    }
    if (lists > s->size.max_lists)
        return err_set(m, ERR_INVAL, "%llu lists, at most %u",
                       (unsigned long long)lists, s->size.max_lists);
    return OK;
}

/* Cuts a session's lists into tasks. */
static void add_chunks(struct select *s, uint32_t i_session)
{
    const struct session_node *n = &s->session[i_session];
    struct chunk *c = NULL;
    for (uint32_t i = 0; i < n->n_lists; i++) {
        uint32_t len = s->list[n->first_list + i].len;
        if (!c || c->n_entries + len > CHUNK_ENTRIES) {
            c = &s->chunk[s->n_chunks++];
            *c = (struct chunk){.session = i_session, .from = i};
        }
        c->to = i + 1;
        c->n_entries += len;
    }
}

/* Shared units that may lose entries for all their users. */
static void note_own(struct select *s, const struct kv_list *l,
                     const struct select_session *in)
{
    for (uint32_t u = 0; u < l->n_units; u++) {
        unit_id id = l->unit[u];
        if (select_has_users(s->in, in, id))
            s->own[id / 64] |= (uint64_t)1 << (id % 64);
    }
}

static void add_session(struct select *s, uint32_t i, uint32_t first_list)
{
    const struct select_session *in = &s->in->session[i];
    struct session_node *n = &s->session[i];
    *n = (struct session_node){.tenant = &s->tenant[in->tenant],
                               .first_list = first_list,
                               .n_lists = n_lists_of(in),
                               .hist = s->session_hist + (size_t)i * N_BUCKETS};
    for (uint32_t k = 0; k < n->n_lists; k++) {
        uint32_t len = in->table->list[k].len;
        s->list[first_list + k] = (struct list_state){.len = len};
        n->held += len;
        if (!in->keep && in->n_users > 1)
            note_own(s, &in->table->list[k], in);
    }
    n->tenant->held += n->held;
    if (!in->keep)
        add_chunks(s, i);
}

static void start_node(const struct select *s, struct node *n, uint64_t allow)
{
    *n = (struct node){.allow = allow,
                       .hi = s->bound,
                       .shift = select_shift(s->bound),
                       .min = UINT64_MAX};
}

/* Sets the limits of a stage, or of a further round of it: what every node may
 * give. */
static void start_stage(struct select *s, enum stage stage, enum sweep sweep,
                        uint64_t bound)
{
    const struct select_input *in = s->in;
    s->stage = stage;
    s->sweep = sweep;
    s->bound = bound;
    s->next_chunk = 0;
    s->gathered = s->dropped = false;
    s->n_items = s->overflow = 0;
    uint64_t root =
        stage == STAGE_POOL ? above(in->k, s->counts.gone) : UINT64_MAX;
    start_node(s, &s->root, root);
    for (uint32_t i = 0; i < in->n_tenants; i++) {
        uint64_t least = in->tenant[i].floor, cap = in->tenant[i].cap;
        if (stage == STAGE_TENANT_CAPS && cap > least)
            least = cap;
        start_node(s, &s->tenant[i].node, above(s->tenant[i].held, least));
    }
    for (uint32_t i = 0; i < in->n_sessions; i++) {
        struct session_node *n = &s->session[i];
        uint64_t least = in->session[i].floor, cap = in->session[i].cap;
        if (stage == STAGE_SESSION_CAPS && cap > least)
            least = cap;
        start_node(s, &n->node, above(n->held, least));
        n->node.done = in->session[i].keep || n->node.allow == 0 ||
                       n->tenant->node.allow == 0 || root == 0;
        if (!n->node.done)
            memset(n->hist, 0, N_BUCKETS * sizeof(*n->hist));
    }
}

static bool has_work(const struct select *s)
{
    for (uint32_t i = 0; i < s->in->n_sessions; i++)
        if (!s->session[i].node.done)
            return true;
    return false;
}

/* Guessing pays where the first sweep would cost much. */
static bool is_large(const struct select *s)
{
    uint64_t held = 0, rate = s->size.sample_rate;
    for (uint32_t i = 0; i < s->in->n_sessions; i++)
        held += s->session[i].node.done ? 0 : s->session[i].held;
    return held / rate >= SAMPLED_UNITS * rate;
}

static void start_whole_stage(struct select *s, enum stage stage)
{
    start_stage(s, stage, SWEEP_FIRST, s->c_max);
    if (stage == STAGE_POOL && is_large(s))
        s->sweep = SWEEP_SAMPLE;
}

/* Goes to the first stage from `stage` on that has something to do. */
static void enter_stage(struct select *s, enum stage stage)
{
    for (; stage < N_STAGES; stage++) {
        start_whole_stage(s, stage);
        if (has_work(s))
            return;
    }
    s->running = false;
}

enum err select_begin(struct select *s, const struct select_input *in,
                      struct errmsg *m)
{
    enum err rc = check(s, in, m);
    if (rc != OK)
        return rc;
    uint32_t most_seen = 0, lists = 0;
    s->in = in;
    s->counts = (struct select_counts){0};
    s->n_chunks = 0;
    memset(s->gone, 0, s->size.n_units * sizeof(*s->gone));
    /* Which units may lose entries is settled once: later sweeps must see what
     * the first one saw. */
    memset(s->own, 0, (s->size.n_units / 64 + 1) * sizeof(*s->own));
    pool_private_units(in->pool, s->own);
    for (uint32_t i = 0; i < in->n_tenants; i++)
        s->tenant[i] =
            (struct tenant_node){.taken = s->taken + (size_t)i * N_BUCKETS};
    for (uint32_t i = 0; i < in->n_sessions; i++) {
        add_session(s, i, lists);
        lists += s->session[i].n_lists;
        if (in->session[i].n_seen > most_seen)
            most_seen = in->session[i].n_seen;
    }
    /* Bits for ages up to most_seen + 1, so that few sweeps are enough. */
    s->age_bits = 1;
    while ((most_seen + 1) >> s->age_bits > 0)
        s->age_bits++;
    s->c_max = ((uint64_t)1 << (SCORE_KEY_BITS + s->age_bits)) - 1;
    s->running = true;
    enter_stage(s, STAGE_SESSION_CAPS);
    return OK;
}

/* --------------------------------------------------------------- the end */

struct tie {
    struct select *s;
    struct session_node *session;
    struct list_state *list;
};

/* One more may go only if that is so on all levels; but a closed node's
 * parents have counted its share already. */
static void take_tie(void *ctx, const struct item *e)
{
    struct tie *t = ctx;
    struct node *up[] = {&t->session->node, &t->session->tenant->node,
                         &t->s->root};
    int n_up = up[0]->closed ? 1 : up[1]->closed ? 2 : 3;
    if (t->list->allow == 0)
        return;
    for (int i = 0; i < n_up; i++)
        if (up[i]->allow == 0)
            return;
    for (int i = 0; i < n_up; i++)
        up[i]->allow--;
    select_mark(t->s, t->list, e);
    t->session->gone++;
    t->session->held--;
    t->session->tenant->held--;
    t->s->counts.gone++;
}

/* Entries with equal c: those of the session created first go first, then
 * those of the higher layer and head, which are the later lists. */
static void break_ties(struct select *s)
{
    for (uint32_t i = 0; i < s->in->n_sessions; i++) {
        struct session_node *n = &s->session[i];
        if (n->node.done || n->node.cut.empty)
            continue;
        for (uint32_t k = n->n_lists; k-- > 0;) {
            struct list_state *l = &s->list[n->first_list + k];
            struct tie t = {.s = s, .session = n, .list = l};
            struct scan how = {.in = &s->in->session[i],
                               .list = l,
                               .i_list = k,
                               .lo = n->node.lo,
                               .hi = n->node.hi,
                               .take = take_tie,
                               .ctx = &t};
            if (l->done)
                continue;
            if (!s->gathered)
                select_scan(s, &how);
            for (uint32_t e = 0; s->gathered && e < l->n_items; e++)
                take_tie(&t, &s->item[l->first + e]);
        }
    }
}

static void count_capped(struct select *s)
{
    s->counts.capped = s->counts.gone;
    for (uint32_t i = 0; i < s->in->n_sessions; i++)
        s->session[i].capped = s->session[i].gone;
}

static void end_sweep(struct select *s)
{
    s->next_chunk = 0;
    if (s->sweep == SWEEP_SAMPLE) {
        uint64_t c = select_guess(s);
        start_stage(s, STAGE_POOL, c < s->c_max ? SWEEP_LOW : SWEEP_FIRST, c);
        return;
    }
    if (s->sweep != SWEEP_FIRST && !s->gathered) {
        s->gathered = !s->overflow;
        s->n_items = s->overflow = 0;
    }
    if (s->sweep != SWEEP_LAST) {
        s->sweep = select_cut_all(s) ? SWEEP_LAST : SWEEP_NEXT;
        return;
    }
    select_add_chunks(s);
    break_ties(s);
    if (s->stage != STAGE_POOL)
        count_capped(s);
    if (s->dropped && s->stage == STAGE_POOL && s->counts.gone < s->in->k)
        enter_stage(s, STAGE_POOL);
    else if (s->bound < s->c_max && s->counts.gone < s->in->k)
        start_stage(s, s->stage, SWEEP_FIRST, s->c_max);
    else
        enter_stage(s, s->stage + 1);
}

/* -------------------------------------------------- a session that ends */

static bool has_limits(const struct select_tenant *t)
{
    return t->floor > 0 || t->cap != UINT64_MAX;
}

/* What comes to lie in its units is another's. */
static void forget_units(struct select *s, const struct kv_list *l)
{
    for (uint32_t u = 0; u < l->n_units; u++) {
        unit_id id = l->unit[u];
        s->gone[id] = 0;
        s->own[id / 64] &= ~((uint64_t)1 << (id % 64));
    }
}

bool select_drop(struct select *s, uint32_t i_session)
{
    const struct select_session *in = &s->in->session[i_session];
    struct session_node *n = &s->session[i_session];
    for (uint32_t k = 0; k < n->n_lists; k++) {
        forget_units(s, &in->table->list[k]);
        s->list[n->first_list + k] = (struct list_state){.done = true};
    }
    s->counts.gone -= n->gone;
    s->counts.capped -= n->capped;
    n->tenant->held -= n->held;
    n->held = n->gone = n->capped = 0;
    n->node.done = true;
    n->node.left = 0;
    /* What it had taken of k is the others' to give: where the limit lies for
     * them is known when this round has ended. */
    s->dropped = true;
    return !s->running || !has_limits(&s->in->tenant[in->tenant]);
}

/* ------------------------------------------------------------- the slices */

struct slice {
    struct select *s;
    uint32_t first;
};

static void sweep_task(void *ctx, int task, int thread)
{
    const struct slice *sl = ctx;
    select_sweep_chunk(sl->s, sl->first + (uint32_t)task,
                       &sl->s->scratch[thread]);
}

static void run_tasks(struct workers *w, int n, struct slice *sl)
{
    if (w)
        workers_run(w, n, sweep_task, sl);
    for (int i = 0; !w && i < n; i++)
        sweep_task(sl, i, 0);
}

/* Entries that the next sweep of a chunk looks at. */
static uint64_t cost(const struct select *s, const struct chunk *c)
{
    if (s->session[c->session].node.done)
        return 0;
    if (s->sweep == SWEEP_SAMPLE)
        return c->n_entries / s->size.sample_rate;
    return s->gathered ? c->left : c->n_entries;
}

enum select_outcome select_step(struct select *s, struct workers *w,
                                uint64_t max_entries)
{
    uint64_t spent = 0;
    while (s->running && (spent == 0 || spent < max_entries)) {
        struct slice sl = {s, s->next_chunk};
        uint64_t before = spent;
        while (s->next_chunk < s->n_chunks &&
               (spent == 0 || spent < max_entries))
            spent += cost(s, &s->chunk[s->next_chunk++]);
        s->counts.swept += spent - before;
        if (s->next_chunk > sl.first)
            run_tasks(w, (int)(s->next_chunk - sl.first), &sl);
        if (s->next_chunk == s->n_chunks) {
            end_sweep(s);
            spent += (uint64_t)s->in->n_sessions * CUT_COST;
        }
    }
    if (s->running)
        return SELECT_MORE;
    return s->counts.gone >= s->in->k ? SELECT_DONE : SELECT_STUCK;
}

uint64_t select_left(const struct select *s)
{
    bool is_sample = s->sweep == SWEEP_SAMPLE, again = s->sweep == SWEEP_FIRST;
    uint64_t left = 0;
    for (uint32_t i = 0; s->running && i < s->n_chunks; i++) {
        const struct chunk *c = &s->chunk[i];
        if (i >= s->next_chunk)
            left += cost(s, c);
        if ((is_sample || again) && !s->session[c->session].node.done)
            left += c->n_entries;
    }
    return left;
}

struct select_counts select_counts(const struct select *s)
{
    return s->counts;
}

uint64_t select_session_gone(const struct select *s, uint32_t i_session)
{
    return s->session[i_session].gone;
}

uint32_t select_list_gone(const struct select *s, uint32_t i_session,
                          uint32_t i_list)
{
    return s->list[s->session[i_session].first_list + i_list].gone;
}

const uint16_t *select_gone(const struct select *s)
{
    return s->gone;
}

void select_unit_freed(struct select *s, unit_id u)
{
    s->gone[u] = 0;
}
