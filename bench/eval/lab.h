/* lab.h - one document in the cache, compressed by one policy after the other
 * and asked about.
 *
 * The prompt runs once, with the full cache. For every cell (a policy with a
 * budget) that cache is copied, the entries that the policy would not keep
 * are merged or dropped by the server's own code (choose.h), and the probes of
 * the document are scored on what is left. Positions go on from
 * the prompt's length, however few entries are left.
 *
 * Two modes (docs/design, evaluation 3.1). agnostic: compressed before the
 * question is known, as when a chat goes on or a prefix is reused. aware: the
 * question is part of the prompt that is compressed, for each probe anew.
 *
 * Owns a pool, sized for one document. Threads: one at a time; the work runs
 * on the pool of threads.
 */
#ifndef BENCH_EVAL_LAB_H
#define BENCH_EVAL_LAB_H

#include <stdint.h>

#include "base/err.h"
#include "base/workers.h"
#include "bench/eval/choose.h"
#include "bench/eval/document.h"
#include "bench/eval/metric.h"
#include "bench/eval/scoring.h"
#include "runtime/model/model.h"

enum lab_mode { LAB_AGNOSTIC, LAB_AWARE };

/* "agnostic", "aware" */
const char *lab_mode_name(enum lab_mode mode);

struct lab;

struct lab_options {
    struct model *model; /* loaded with lab_model_options() */
    struct workers *workers;
    enum kv_type kv_type;
    enum lab_mode mode;
    uint32_t n_tokens;          /* of a prompt, at most */
    struct choices_needs needs; /* of all that will be asked for */
};

/* Rows, runs and context that a model must be loaded for. */
void lab_model_options(struct model_options *o, uint32_t n_tokens);

/* On OK the caller owns *out; model and workers are borrowed. ERR_NOMEM. */
MUST_CHECK enum err lab_new(struct lab **out, const struct lab_options *o,
                            struct errmsg *m);
void lab_free(struct lab *l); /* NULL is allowed */
/* Memory for caches, which is used as far as a document needs it, for logits,
 * and for what is seen of attention. */
uint64_t lab_cache_bytes(const struct lab *l);
uint64_t lab_logits_bytes(const struct lab *l);
uint64_t lab_probe_bytes(const struct lab *l);

/* Runs the document, which must outlive lab_close(), with the full cache: the
 * reference of all cells, and the figures of CHOICE_FULL. */
MUST_CHECK enum err lab_open(struct lab *l, const struct document *d,
                             struct figures *full, struct errmsg *m);
void lab_close(struct lab *l);

/* The figures of one cell for the open document. */
MUST_CHECK enum err lab_ask(struct lab *l, const struct choice *c,
                            struct figures *out, struct errmsg *m);

/* What lab_open() or lab_ask() scored last: the predicted tokens of all
 * probes. Valid until the next of these calls. */
const struct scored *lab_scored(const struct lab *l);

#endif
