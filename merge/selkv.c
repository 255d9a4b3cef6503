/* SelKV stages 3 to 5 as a fate: routing, blend, compensation. */
#include <math.h>
#include <string.h>

#include "merge/blend.h"
#include "merge/compensation.h"
#include "merge/fate_internal.h"
#include "merge/routing.h"

struct pass {
    const struct fate_list *l;
    const struct merge_options *o;
    uint32_t *host;   /* [n] */
    float *weight;    /* [n] of a guest: g_j a_j */
    float *guest_sum; /* [n] of a host: sum of its guests' weights */
};

static size_t scratch_bytes(uint32_t n, uint32_t head_dim)
{
    (void)head_dim;
    return n * (sizeof(uint32_t) + 2 * sizeof(float));
}

static void wants(const struct fate_list *l, uint8_t *want, void *scratch)
{
    uint32_t *host = scratch;
    routing_of(l, host);
    for (uint32_t j = 0; j < l->n; j++)
        if (host[j] != ROUTING_NONE)
            want[j] = want[host[j]] = 1;
}

static void weigh(struct pass *p, struct merge_counts *c)
{
    const struct fate_list *l = p->l;
    for (uint32_t j = 0; j < l->n; j++) {
        uint32_t i = p->host[j];
        if (i == ROUTING_NONE)
            continue;
        const struct blend_pair pair = {
            .host_mass = blend_guest_mass(l->mass[i]),
            .guest_mass = blend_guest_mass(l->mass[j]),
            .min_mass = p->o->min_mass};
        float g =
            blend_gate(fate_value(l, i), fate_value(l, j), l->head_dim, &pair);
        p->weight[j] = g * pair.guest_mass;
        p->guest_sum[i] += p->weight[j];
        c->routed++;
        c->merged += p->weight[j] > 0.0f;
        c->gate_sum += (double)g;
    }
}

static void blend(const struct pass *p, struct fate_result *out)
{
    const struct fate_list *l = p->l;
    for (uint32_t j = 0; j < l->n; j++) {
        uint32_t i = p->host[j];
        if (i == ROUTING_NONE || !(p->weight[j] > 0.0f))
            continue;
        float *value = out->value + (size_t)i * l->head_dim;
        if (!out->changed[i])
            memcpy(value, fate_value(l, i), l->head_dim * sizeof(*value));
        out->changed[i] = FATE_NEW_VALUE;
        float total = blend_host_mass(l->mass[i]) + p->guest_sum[i];
        blend_add(value, fate_value(l, i), fate_value(l, j),
                  p->weight[j] / total, l->head_dim);
    }
}

static void compensate(const struct pass *p, struct fate_result *out)
{
    const struct fate_list *l = p->l;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!out->changed[i])
            continue;
        float ratio =
            compensation_ratio(blend_host_mass(l->mass[i]), p->guest_sum[i]);
        float log_ratio = (float)log((double)ratio);
        out->ratio[i] = ratio;
        out->counts.hosts++;
        if (log_ratio > out->counts.log_ratio)
            out->counts.log_ratio = log_ratio;
    }
}

static void run(const struct fate_list *l, const struct merge_options *o,
                struct fate_result *out, void *scratch)
{
    struct pass p = {.l = l, .o = o, .host = scratch};
    p.weight = (float *)(p.host + l->n);
    p.guest_sum = p.weight + l->n;
    memset(p.weight, 0, 2 * l->n * sizeof(float));
    routing_of(l, p.host);
    fate_count_leaving(l, &out->counts);
    weigh(&p, &out->counts);
    blend(&p, out);
    compensate(&p, out);
}

const struct fate fate_selkv = {.name = "selkv",
                                .needs = FATE_VALUES | FATE_MASS | FATE_BAND,
                                .by_bucket = true,
                                .has_ratio = true,
                                .wants = wants,
                                .scratch_bytes = scratch_bytes,
                                .run = run};
