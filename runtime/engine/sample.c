#include "runtime/engine/sample.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/engine/sample_internal.h"

enum err sample_scratch_new(struct sample_scratch **out, uint32_t n_vocab)
{
    struct sample_scratch *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->n_vocab = n_vocab;
    size_t n_blocks = (size_t)n_vocab / SAMPLE_BLOCK + 1;
    s->candidate = calloc((size_t)n_vocab + 1, sizeof(*s->candidate));
    s->block_max = calloc(n_blocks, sizeof(*s->block_max));
    s->block_sum = calloc(n_blocks, sizeof(*s->block_sum));
    if (!s->candidate || !s->block_max || !s->block_sum) {
        sample_scratch_free(s);
        return ERR_NOMEM;
    }
    *out = s;
    return OK;
}

uint64_t sample_scratch_bytes(uint32_t n_vocab)
{
    const struct sample_scratch *s = NULL;
    uint64_t n_blocks = (uint64_t)n_vocab / SAMPLE_BLOCK + 1;
    return sizeof(*s) + ((uint64_t)n_vocab + 1) * sizeof(*s->candidate) +
           n_blocks * (sizeof(*s->block_max) + sizeof(*s->block_sum));
}

void sample_scratch_free(struct sample_scratch *s)
{
    if (!s)
        return;
    free(s->candidate);
    free(s->block_max);
    free(s->block_sum);
    free(s);
}

/* The slot of a token, or the empty one where it belongs. */
static struct sample_count *slot_of(const struct sampler *s, int32_t token)
{
    /* Knuth's multiplicative hash: neighbouring ids spread out. */
    uint32_t i = (uint32_t)token * 2654435761u & s->mask;
    while (s->count[i].token != -1 && s->count[i].token != token)
        i = (i + 1) & s->mask;
    return &s->count[i];
}

static bool counts_prompt(const struct gen_params *p)
{
    return p->repetition_penalty != 1.0f;
}

static bool counts_answer(const struct gen_params *p)
{
    return counts_prompt(p) || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

/* The table is at most half full: distinct tokens are no more than there are
 * tokens, nor than the vocabulary has. */
static enum err count_new(struct sampler *s, const struct sample_start *start)
{
    uint64_t n = start->max_tokens;
    if (counts_prompt(&s->params))
        n += start->n_prompt;
    if (n > start->n_vocab)
        n = start->n_vocab;
    uint64_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    s->count = malloc(slots * sizeof(*s->count));
    if (!s->count)
        return ERR_NOMEM;
    s->mask = (uint32_t)(slots - 1);
    for (uint64_t i = 0; i < slots; i++) {
        s->count[i].token = -1;
        s->count[i].n = 0;
    }
    if (counts_prompt(&s->params)) {
        for (uint32_t i = 0; i < start->n_prompt; i++)
            slot_of(s, start->prompt[i])->token = start->prompt[i];
    }
    return OK;
}

enum err sampler_init(struct sampler *s, const struct sample_start *start)
{
    memset(s, 0, sizeof(*s));
    s->params = *start->params;
    s->bias = start->bias;
    s->n_bias = start->n_bias;
    rng_seed(&s->rng,
             s->params.has_seed ? (uint64_t)s->params.seed : start->seed);
    return counts_answer(&s->params) ? count_new(s, start) : OK;
}

void sampler_fini(struct sampler *s)
{
    free(s->count);
    memset(s, 0, sizeof(*s));
}

static void add_bias(const struct sampler *s, float *logits, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < s->n_bias; i++) {
        assert((uint32_t)s->bias[i].token < n_vocab);
        logits[s->bias[i].token] += s->bias[i].bias;
    }
}

static void add_penalties(const struct sampler *s, float *logits)
{
    const struct gen_params *p = &s->params;
    for (uint32_t i = 0; i <= s->mask; i++) {
        const struct sample_count *c = &s->count[i];
        if (c->token < 0)
            continue;
        float l = logits[c->token];
        l = l > 0.0f ? l / p->repetition_penalty : l * p->repetition_penalty;
        if (c->n > 0) {
            l -= p->frequency_penalty * (float)c->n;
            l -= p->presence_penalty;
        }
        logits[c->token] = l;
    }
}

static bool is_greedy(const struct gen_params *p)
{
    return p->temperature <= 0.0f || p->top_p <= 0.0f || p->top_k == 1;
}

int32_t sampler_next(struct sampler *s, float *logits, uint32_t n_vocab,
                     struct sample_scratch *scratch, int32_t fallback,
                     bool *is_bad)
{
    assert(scratch->n_vocab >= n_vocab);
    if (s->n_bias > 0)
        add_bias(s, logits, n_vocab);
    if (s->count)
        add_penalties(s, logits);

    struct sample_row row = {logits, n_vocab, 0.0f};
    int32_t token = sample_find_highest(&row, scratch);
    if (is_bad)
        *is_bad = token < 0;
    if (token < 0)
        token = fallback;
    else if (!is_greedy(&s->params))
        token = sample_choose(&row, &s->params, &s->rng, scratch);

    if (s->count) {
        struct sample_count *c = slot_of(s, token);
        c->token = token;
        c->n++;
    }
    return token;
}
