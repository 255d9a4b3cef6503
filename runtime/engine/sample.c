#include "runtime/engine/sample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A token that may still be drawn. */
struct candidate {
    float x; /* (logit - highest logit) / temperature: 0 or less */
    float w; /* exp(x) */
    int32_t id;
};

struct sample_scratch {
    uint32_t n_vocab;
    struct candidate *candidate; /* [n_vocab] */
};

/* exp(-40) is 4e-18: a whole vocabulary of such tokens together is far below
 * the resolution of the random number. */
static const float LEAST_X = -40.0f;

enum err sample_scratch_new(struct sample_scratch **out, uint32_t n_vocab)
{
    struct sample_scratch *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->n_vocab = n_vocab;
    s->candidate = calloc((size_t)n_vocab + 1, sizeof(*s->candidate));
    if (!s->candidate) {
        free(s);
        return ERR_NOMEM;
    }
    *out = s;
    return OK;
}

void sample_scratch_free(struct sample_scratch *s)
{
    if (!s)
        return;
    free(s->candidate);
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

/* The highest logit and the lowest id that has it; -1 when none is finite.
 * Cleans the row on the way: no NaN is left, and no plus infinity. */
static int32_t find_highest(float *logits, uint32_t n_vocab)
{
    int32_t best = -1;
    float highest = -HUGE_VALF;
    for (uint32_t i = 0; i < n_vocab; i++) {
        float l = logits[i];
        /* Both are false for a NaN. */
        if (!(l > -HUGE_VALF))
            logits[i] = -HUGE_VALF;
        else if (!(l < HUGE_VALF))
            logits[i] = l = __FLT_MAX__;
        if (l > highest) {
            highest = l;
            best = (int32_t)i;
        }
    }
    return best;
}

/* Bits that grow as x falls; x is 0 or less. The subtraction makes minus
 * zero plus zero. */
static uint32_t rank_of(const struct candidate *c)
{
    float a = 0.0f - c->x;
    uint32_t bits;
    memcpy(&bits, &a, sizeof(bits));
    return bits;
}

enum measure { BY_COUNT, BY_WEIGHT };

static double amount_of(const struct candidate *c, enum measure by)
{
    return by == BY_COUNT ? 1.0 : (double)c->w;
}

/* Of n candidates in order of id, keeps the shortest sequence of best ones
 * whose amounts add up to at least `wanted`, in order of id, and returns how
 * many. Ranks are looked at in three digits, from the highest: the digit in
 * which the sum passes `wanted` is found, everything behind it goes, and what
 * lies before it stays for sure. */
static uint32_t keep_best(struct candidate *c, uint32_t n, double wanted,
                          enum measure by)
{
    enum { DIGIT_BITS = 11, DIGITS = 3, VALUES = 1 << DIGIT_BITS };
    static const uint32_t shift[DIGITS] = {21, 10, 0};
    double sum[VALUES];
    uint32_t border = 0; /* the digits found so far */
    double before = 0.0; /* amount of ranks below the border's digits */

    for (uint32_t d = 0; d < DIGITS; d++) {
        uint32_t above = d == 0 ? 32 : shift[d - 1];
        uint32_t values = 1u << (above - shift[d]);
        memset(sum, 0, sizeof(sum));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t r = rank_of(&c[i]);
            if (d == 0 || r >> above == border)
                sum[r >> shift[d] & (values - 1)] += amount_of(&c[i], by);
        }
        uint32_t last = 0, v = 0;
        for (; v < values; v++) {
            if (sum[v] > 0.0)
                last = v;
            if (before + sum[v] >= wanted)
                break;
            before += sum[v];
        }
        /* Rounding can leave the sum of all just below `wanted`: then the
         * border is the last rank there is. */
        if (v == values) {
            before -= sum[last];
            v = last;
        }
        border = border << (above - shift[d]) | v;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (rank_of(&c[i]) >> shift[d] <= border)
                c[kept++] = c[i];
        }
        n = kept;
    }

    /* All that is left of the last rank is equal: the lowest ids stay. */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (rank_of(&c[i]) == border) {
            if (before >= wanted)
                continue;
            before += amount_of(&c[i], by);
        }
        c[kept++] = c[i];
    }
    return kept;
}

static uint32_t gather(const struct sampler *s, const float *logits,
                       uint32_t n_vocab, float highest, struct candidate *c)
{
    const struct gen_params *p = &s->params;
    float least = LEAST_X;
    if (p->min_p > 0.0f && logf(p->min_p) > least)
        least = logf(p->min_p);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        float x = (logits[i] - highest) / p->temperature;
        c[n].x = x;
        c[n].id = (int32_t)i;
        n += x >= least;
    }
    return n;
}

static double weigh(struct candidate *c, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        c[i].w = expf(c[i].x);
        sum += (double)c[i].w;
    }
    return sum;
}

static int32_t draw(struct sampler *s, const struct candidate *c, uint32_t n,
                    double total)
{
    double u = rng_double(&s->rng) * total, sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)c[i].w;
        if (u < sum)
            return c[i].id;
    }
    return c[n - 1].id; /* rounding: u was total itself */
}

static int32_t choose(struct sampler *s, const float *logits, uint32_t n_vocab,
                      float highest, struct candidate *c)
{
    const struct gen_params *p = &s->params;
    uint32_t n = gather(s, logits, n_vocab, highest, c);
    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        n = keep_best(c, n, (double)p->top_k, BY_COUNT);
    double total = weigh(c, n);
    if (p->top_p < 1.0f) {
        n = keep_best(c, n, (double)p->top_p * total, BY_WEIGHT);
        total = 0.0;
        for (uint32_t i = 0; i < n; i++)
            total += (double)c[i].w;
    }
    return draw(s, c, n, total);
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

    int32_t token = find_highest(logits, n_vocab);
    if (is_bad)
        *is_bad = token < 0;
    if (token < 0)
        token = fallback;
    else if (!is_greedy(&s->params))
        token = choose(s, logits, n_vocab, logits[token], scratch->candidate);

    if (s->count) {
        struct sample_count *c = slot_of(s, token);
        c->token = token;
        c->n++;
    }
    return token;
}
