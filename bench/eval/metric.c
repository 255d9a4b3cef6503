#include "bench/eval/metric.h"

const char *metric_name(enum metric m)
{
    static const char *const names[METRIC_COUNT] = {"nll",  "kl", "agree",
                                                    "top1", "em", "choice"};
    return names[m];
}

bool metric_is_less_better(enum metric m)
{
    return m == METRIC_NLL || m == METRIC_KL;
}
