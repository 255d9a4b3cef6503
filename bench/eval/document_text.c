#include "bench/eval/document_internal.h"

enum {
    SPANS = 4,
    SPAN = 32,    /* tokens of a passage that comes again */
    SPAN_CUE = 8, /* those of them that are given */
    SPAN_STEP = DOCUMENT_TAIL / SPANS
};

/* The first token after the prompt is given: the logits that predict it came
 * from the prefill, before anything was forgotten. */
enum err maker_next_text(struct document *d, struct maker *k)
{
    enum err rc = maker_start_text(d, k);
    size_t n = k->o->n_tokens - d->prompt.n;
    if (rc == OK)
        rc = maker_append(&d->prompt, k->window, n);
    if (rc == OK)
        rc = maker_append(&d->probe[0].ids, k->window + n, DOCUMENT_NEXT + 1);
    d->probe[0].first = 1;
    d->n_probes = 1;
    return rc;
}

/* Passages from further on in the book stand in the text, one in each quarter
 * of it; the probe begins one of them again. */
enum err maker_copies(struct document *d, struct maker *k)
{
    enum err rc = maker_start_text(d, k);
    uint32_t n = k->o->n_tokens - (uint32_t)d->prompt.n - SPANS * SPAN;
    const int32_t *text = k->window, *spans = text + k->o->n_tokens;
    uint32_t quarter = n / SPANS;
    for (uint32_t i = 0; i < SPANS && rc == OK; i++) {
        const int32_t *span = spans + (size_t)i * SPAN_STEP;
        uint32_t all = i + 1 < SPANS ? quarter : n - i * quarter;
        uint32_t before = (uint32_t)rng_below(&k->rng, quarter);
        rc = maker_append(&d->prompt, text, before);
        if (rc == OK)
            rc = maker_append(&d->prompt, span, SPAN);
        if (rc == OK)
            rc = maker_append(&d->prompt, text + before, all - before);
        if (rc == OK)
            rc = maker_append(&d->probe[i].ids, span, SPAN);
        d->probe[i].first = SPAN_CUE;
        text += all;
    }
    d->n_probes = SPANS;
    return rc;
}
