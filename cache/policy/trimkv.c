/* Learned retention: TrimKV (arXiv 2512.03324) keeps the best of each head,
 * DBTrimKV (arXiv 2605.09649) the best of all layers and heads together. The
 * score is cache/score.h's. The server ranks many sessions at once and does
 * that with cache/select.h, in the same order. */
#include "cache/policy/policy_internal.h"
#include "cache/score.h"

/* Floor under every head, --min-tokens-per-head. */
enum { MIN_HEAD = 20 };

static enum err score(const struct policy_view *v,
                      const struct policy_params *p, uint32_t layer,
                      struct arena *a, float *out)
{
    (void)a;
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        for (uint32_t i = 0; i < l->n; i++) {
            double age = (double)v->n_seen + 1 - l->pos[i];
            out[l->first + i] =
                score_effective(score_of(age, l->log_beta[i], p->n_ahead), 0);
        }
    }
    return OK;
}

const struct policy policy_trimkv = {.name = "trimkv",
                                     .needs = POLICY_LOG_BETA,
                                     .at_decode = true,
                                     .defaults = {.n_sinks = POLICY_SINKS,
                                                  .n_recent = POLICY_RECENT,
                                                  .n_ahead = 1},
                                     .score = score};

const struct policy policy_dbtrimkv = {
    .name = "dbtrimkv",
    .needs = POLICY_LOG_BETA,
    .at_decode = true,
    .defaults = {.n_sinks = POLICY_SINKS,
                 .n_recent = POLICY_RECENT,
                 .min_head = MIN_HEAD,
                 .spread = POLICY_OVER_SEQUENCE,
                 .n_ahead = 1},
    .score = score};
