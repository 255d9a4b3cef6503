#include "cache/policy/policy_internal.h"

uint32_t policy_window(const struct policy_view *v,
                       const struct policy_params *p)
{
    uint32_t n = p->n_window < v->n_window ? p->n_window : v->n_window;
    return n < p->n_entries / 2 ? n : p->n_entries / 2;
}

uint32_t policy_prefix(const struct policy_view *v, const struct policy_list *l,
                       uint32_t n_window)
{
    uint32_t n = l->n;
    while (n > 0 && (int64_t)l->pos[n - 1] + n_window >= v->n_seen)
        n--;
    return n;
}

void policy_window_sum(const struct policy_view *v, const struct policy_list *l,
                       uint32_t n_window, uint32_t n, float *out)
{
    for (uint32_t e = 0; e < n; e++) {
        double sum = 0;
        for (uint32_t r = v->n_window - n_window; r < v->n_window; r++)
            sum += (double)l->window[(size_t)r * l->n + e];
        out[e] = (float)sum;
    }
}

void policy_fill_rest(float *score, uint32_t from, uint32_t to)
{
    float best = from > 0 ? score[0] : 0;
    for (uint32_t e = 1; e < from; e++)
        best = score[e] > best ? score[e] : best;
    for (uint32_t e = from; e < to; e++)
        score[e] = best;
}

enum err policy_last_query(const struct policy_view *v, uint32_t from,
                           uint32_t layer, struct arena *a, float *out)
{
    double *mass = arena_array(a, v->n_seen, sizeof(*mass));
    float n_heads = (float)(v->n_kv_heads * v->group);
    if (!mass)
        return ERR_NOMEM;
    /* By position, since after other policies the lists may differ. */
    for (uint32_t h = 0; h < v->n_kv_heads && v->n_window > 0; h++) {
        const struct policy_list *l = policy_list_at(v, from, h);
        const float *last = l->window + (size_t)(v->n_window - 1) * l->n;
        for (uint32_t e = 0; e < l->n; e++)
            mass[l->pos[e]] += (double)last[e];
    }
    for (uint32_t h = 0; h < v->n_kv_heads; h++) {
        const struct policy_list *l = policy_list_at(v, layer, h);
        for (uint32_t e = 0; e < l->n; e++)
            out[l->first + e] = (float)mass[l->pos[e]] / n_heads;
    }
    return OK;
}
