/* metric.h - the figures of one document under one policy.
 *
 * Each is averaged over the predicted tokens of an answer and then over the
 * answers.
 *
 * Threads: any; nothing is kept.
 */
#ifndef BENCH_EVAL_METRIC_H
#define BENCH_EVAL_METRIC_H

#include <stdbool.h>

enum metric {
    METRIC_NLL,    /* -log of the right token's probability */
    METRIC_KL,     /* divergence from the model with the full cache */
    METRIC_AGREE,  /* share of tokens whose argmax is the full cache's */
    METRIC_TOP1,   /* share of tokens that are argmax */
    METRIC_EM,     /* share of answers all of whose tokens are argmax */
    METRIC_CHOICE, /* share of answers more probable than all wrong ones */
    METRIC_COUNT
};

struct figures {
    double metric[METRIC_COUNT];
    double n_entries, bytes; /* kept of the prompt, over layers and heads */
    /* Of what left: the share that found a host, the mean gate of those, and
     * the largest log R of one merge; 0 where all was dropped. */
    double routed, gate, log_ratio;
};

/* "nll" */
const char *metric_name(enum metric m);
bool metric_is_less_better(enum metric m);

#endif
