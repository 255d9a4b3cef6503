/* metric.h - the figures of one document under one policy.
 *
 * Each is averaged over the predicted tokens of a probe and then over the
 * probes; em: the share of probes whose tokens are all argmax.
 */
#ifndef BENCH_EVAL_METRIC_H
#define BENCH_EVAL_METRIC_H

#include <stdbool.h>

enum metric {
    METRIC_NLL,   /* -log of the right token's probability */
    METRIC_KL,    /* divergence from the model with the full cache */
    METRIC_AGREE, /* share of tokens whose argmax is the full cache's */
    METRIC_TOP1,  /* share of tokens that are argmax */
    METRIC_EM,
    METRIC_COUNT
};

struct figures {
    double metric[METRIC_COUNT];
    double n_entries, bytes; /* kept of the prompt, over layers and heads */
};

/* "nll" */
const char *metric_name(enum metric m);
bool metric_is_less_better(enum metric m);

#endif
