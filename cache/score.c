#include "cache/score.h"

#include <math.h>

/* From here on 1 - beta^n cannot be told from -n * log_beta. */
static const double NEAR_ZERO = -1e-12;
static const double MINUS_LN2 = -0.69314718055994530942;

double score_log1mexp(double x)
{
    return x > MINUS_LN2 ? log(-expm1(x)) : log1p(-exp(x));
}

double score_of(double age, float log_beta, uint32_t n_ahead)
{
    double l = log_beta, n = n_ahead;
    if (n_ahead <= 1)
        return age * l;
    if (l > NEAR_ZERO)
        return age * l + log(n);
    return age * l + (score_log1mexp(n * l) - score_log1mexp(l));
}

double score_offset(double weight, double idle_decay, uint64_t idle_tokens)
{
    return log(weight) - idle_decay * (double)idle_tokens / 1000.0;
}
