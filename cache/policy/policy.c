#include "cache/policy/policy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cache/policy/policy_internal.h"

static const struct policy *const TABLE[] = {
    &policy_dbtrimkv,
    &policy_trimkv,
    &policy_selkv_window,
    &policy_snapkv,
    &policy_adakv,
    &policy_pyramidkv,
    &policy_h2o,
    &policy_tova,
    &policy_rkv,
    &policy_streamingllm,
    &policy_keydiff,
    &policy_knorm,
    &policy_expected_attention,
    &policy_random,
    &policy_fastv,
};

enum { N_POLICIES = sizeof(TABLE) / sizeof(TABLE[0]) };

const struct policy *policy_at(uint32_t i)
{
    return i < N_POLICIES ? TABLE[i] : NULL;
}

const struct policy *policy_find(const char *name)
{
    for (uint32_t i = 0; i < N_POLICIES; i++)
        if (strcmp(TABLE[i]->name, name) == 0)
            return TABLE[i];
    return NULL;
}

const char *policy_names(void)
{
    return "dbtrimkv, trimkv, selkv-window, snapkv, adakv, pyramidkv, h2o, "
           "tova, r-kv, streamingllm, keydiff, knorm, expected-attention, "
           "random, fastv";
}

void policy_set_per_head(struct policy_params *p)
{
    if (p->spread == POLICY_PER_LAYER)
        p->spread = POLICY_PER_HEAD;
}

struct policy_params policy_defaults(const struct policy *policy,
                                     uint32_t group)
{
    struct policy_params p = policy->defaults;
    if (group == 1)
        policy_set_per_head(&p);
    return p;
}

static const char *name_of_need(uint32_t need)
{
    switch (need) {
    case POLICY_LOG_BETA:
        return "retention gates";
    case POLICY_WINDOW:
    case POLICY_PEAK:
        return "the attention of the last queries";
    case POLICY_COLUMNS:
        return "the attention of all queries";
    case POLICY_FUTURE:
        return "the statistics of all queries";
    default:
        return "norms of the keys or values";
    }
}

enum err policy_check(const struct policy *policy, uint32_t has, bool at_decode,
                      struct errmsg *m)
{
    uint32_t missing = policy->needs & ~has;
    if (at_decode && !policy->at_decode)
        return err_set(m, ERR_UNSUPPORTED,
                       "policy %s ranks prompts only, and not an answer that "
                       "is being generated",
                       policy->name);
    if (missing != 0)
        return err_set(m, ERR_UNSUPPORTED,
                       "policy %s needs %s, which are not there", policy->name,
                       name_of_need(missing & -missing));
    return OK;
}

struct scoring {
    const struct policy *policy;
    const struct policy_view *view;
    const struct policy_params *params;
    float *score;
    enum err *rc; /* [n_layers] */
};

enum err policy_score_layer(const struct policy *policy,
                            const struct policy_view *v,
                            const struct policy_params *p, uint32_t layer,
                            float *score)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    enum err rc = policy->score(v, p, layer, &a, score);
    arena_fini(&a);
    return rc;
}

uint32_t policy_looks_at(const struct policy *policy,
                         const struct policy_view *v,
                         const struct policy_params *p, uint32_t layer)
{
    return policy->looks_at ? policy->looks_at(v, p, layer) : layer;
}

static void score_layer(void *ctx, int task, int thread)
{
    const struct scoring *s = ctx;
    (void)thread;
    s->rc[task] = policy_score_layer(s->policy, s->view, s->params,
                                     (uint32_t)task, s->score);
}

enum err policy_score(const struct policy *policy, const struct policy_view *v,
                      const struct policy_params *p, struct workers *w,
                      float *score)
{
    enum err rc = OK;
    struct scoring s = {
        .policy = policy, .view = v, .params = p, .score = score};
    struct arena a;
    arena_init(&a, SIZE_MAX);
    s.rc = arena_array(&a, v->n_layers, sizeof(*s.rc));
    if (!s.rc)
        return ERR_NOMEM;
    if (w)
        workers_run(w, (int)v->n_layers, score_layer, &s);
    else
        for (uint32_t i = 0; i < v->n_layers; i++)
            score_layer(&s, (int)i, 0);
    for (uint32_t i = 0; i < v->n_layers && rc == OK; i++)
        rc = s.rc[i];
    arena_fini(&a);
    return rc;
}

enum err policy_keep(const struct policy *policy, const struct policy_view *v,
                     const struct policy_params *p, struct workers *w,
                     uint8_t *keep)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    float *score = arena_array(&a, v->n_entries, sizeof(*score));
    enum err rc = score ? policy_score(policy, v, p, w, score) : ERR_NOMEM;
    if (rc == OK)
        rc = policy_select(policy, v, p, score, keep);
    arena_fini(&a);
    return rc;
}
