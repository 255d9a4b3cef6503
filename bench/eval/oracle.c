#include "bench/eval/oracle.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "bench/eval/document.h"
#include "runtime/model/probe.h"

/* Floor under every head: that of dbtrimkv, with the same spread. */
enum { MIN_HEAD = 20 };

struct oracle {
    struct oracle_size size;
    uint32_t n_lists;
    struct probe *probe;
    float *mass;            /* [n_states][n_lists][max_tokens] */
    uint8_t *scratch;       /* one part for each thread */
    uint64_t scratch_bytes; /* of a thread */
    /* What is being read. */
    const struct table *table;
    float *state; /* the masses it goes to */
};

const struct policy *oracle_policy(void)
{
    static const struct policy policy = {
        .name = "oracle",
        .defaults = {.min_head = MIN_HEAD, .spread = POLICY_OVER_SEQUENCE}};
    return &policy;
}

static struct probe_options probe_options(void)
{
    return (struct probe_options){.n_window =
                                      DOCUMENT_GIVEN_MAX + DOCUMENT_SCORED_MAX};
}

static size_t state_floats(const struct oracle_size *size)
{
    const struct model_info *i = model_info(size->model);
    return (size_t)i->n_layers * i->n_kv_heads * size->max_tokens;
}

uint64_t oracle_bytes(const struct oracle_size *size)
{
    struct probe_options o = probe_options();
    return probe_bytes(size->model, &o) +
           sizeof(float) * size->n_states * (uint64_t)state_floats(size);
}

enum err oracle_new(struct oracle **out, const struct oracle_size *size,
                    struct errmsg *m)
{
    const struct model_info *i = model_info(size->model);
    struct probe_options options = probe_options();
    struct oracle *o = calloc(1, sizeof(*o));
    if (o == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the oracle");
    o->size = *size;
    o->n_lists = i->n_layers * i->n_kv_heads;
    enum err rc = probe_new(&o->probe, size->model, &options, m);
    if (rc == OK) {
        size_t n_threads = (size_t)workers_count(size->workers);
        o->scratch_bytes = probe_scratch_bytes(o->probe, KV_UNIT);
        o->scratch_bytes += KV_ALIGN - o->scratch_bytes % KV_ALIGN;
        o->scratch = malloc(n_threads * o->scratch_bytes);
        o->mass = calloc(size->n_states * state_floats(size), sizeof(float));
    }
    if (rc == OK && (o->scratch == NULL || o->mass == NULL))
        rc = err_set(m, ERR_NOMEM, "no memory for the oracle");
    if (rc != OK) {
        oracle_free(o);
        return rc;
    }
    *out = o;
    return OK;
}

void oracle_free(struct oracle *o)
{
    if (o == NULL)
        return;
    probe_free(o->probe);
    free(o->mass);
    free(o->scratch);
    free(o);
}

void oracle_reset(struct oracle *o)
{
    memset(o->mass, 0,
           o->size.n_states * state_floats(&o->size) * sizeof(*o->mass));
}

static void add_list(void *ctx, int task, int thread)
{
    const struct oracle *o = ctx;
    const struct table *t = o->table;
    const struct kv_list *l = &t->list[task];
    float *mass = o->state + (size_t)task * o->size.max_tokens;
    void *scratch = o->scratch + (size_t)thread * o->scratch_bytes;
    float part[KV_UNIT];
    for (uint32_t u = 0; u < l->n_units; u++) {
        const struct kv_meta *meta = pool_meta(t->pool, l->unit[u]);
        probe_masses(o->probe, t, (uint32_t)task, u, part, scratch);
        for (uint32_t e = 0; e < KV_UNIT && u * KV_UNIT + e < l->len; e++)
            if ((uint32_t)meta->pos[e] < o->size.max_tokens)
                mass[meta->pos[e]] += part[e];
    }
}

enum err oracle_watch(struct oracle *o, uint32_t i_state, struct scoring *s,
                      const struct scoring_run *run)
{
    struct scoring_run seen = *run;
    assert(i_state < o->size.n_states);
    probe_reset(o->probe);
    seen.probe = o->probe;
    seen.n--; /* nothing is predicted from the last one */
    enum err rc = scoring_feed(s, &seen);
    o->table = run->table;
    o->state = o->mass + i_state * state_floats(&o->size);
    if (rc == OK)
        workers_run(o->size.workers, (int)o->n_lists, add_list, o);
    return rc;
}

const float *oracle_masses(const struct oracle *o, uint32_t i_state)
{
    return o->mass + i_state * state_floats(&o->size);
}
