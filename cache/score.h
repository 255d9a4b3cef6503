/* score.h - what a cache entry is worth, and the integer that ranks it.
 *
 * An entry at position p, in a session that has seen T tokens, has the age
 * t - p with t = T + 1 (the newest is 2 old), and
 *
 *     score     = age * log_beta                       docs/design 1.2
 *     effective = score + log(weight) - idle_decay * idle_tokens / 1000   1.3
 *
 * Both are sums in float64, rounded once to float32: the rounded value is what
 * is ranked, so that two machines that round alike rank alike. Higher stays.
 *
 * With look-ahead n > 1 the score is the logarithm of the retention summed
 * over the next n steps, log(beta^age + ... + beta^(age + n - 1)).
 *
 * Threads: any; nothing is kept.
 */
#ifndef CACHE_SCORE_H
#define CACHE_SCORE_H

#include <stdint.h>
#include <string.h>

/* log(1 - exp(x)) for x <= 0 without cancellation; -inf at 0. */
double score_log1mexp(double x);

/* age * log_beta for n_ahead <= 1, else with look-ahead: age * log_beta +
 * log1mexp(n * log_beta) - log1mexp(log_beta), whose limit at log_beta = 0,
 * age * log_beta + log n, is taken above -1e-12. */
double score_of(double age, float log_beta, uint32_t n_ahead);

/* log(weight) - idle_decay * idle_tokens / 1000: the same for all entries of a
 * session, added to their scores. Caps rank with idle_decay 0. */
double score_offset(double weight, double idle_decay, uint64_t idle_tokens);

static inline float score_effective(double score, double offset)
{
    return (float)(score + offset);
}

/* Integers in the order of the floats: a < b gives key(a) < key(b), equal
 * floats give equal keys, -0 and +0 too, and infinities are the ends. A NaN
 * (which no finite log_beta <= 0 gives) ranks below everything: key 0. No
 * float has a key above SCORE_KEY_MAX. */
enum { SCORE_KEY_BITS = 32 };
static const uint32_t SCORE_KEY_MAX = 0xff800000u;

static inline uint32_t score_key(float f)
{
    uint32_t u;
    f += 0.0f; /* -0 becomes +0 */
    memcpy(&u, &f, sizeof(u));
    u ^= (uint32_t)((int32_t)u >> 31) | 0x80000000u;
    return f != f ? 0 : u;
}

#endif
