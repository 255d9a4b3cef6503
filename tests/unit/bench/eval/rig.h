/* rig.h - a tiny model, a tokenizer of single bytes and a text, for the tests
 * of the evaluation.
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_EVAL_RIG_H
#define TESTS_EVAL_RIG_H

#include "tests/unit/gates/train/tiny.h"

#include "bench/eval/document.h"
#include "bench/eval/lab.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kernels/ops.h"
#include "runtime/model/model.h"

enum { RIG_TOKENS = 1100, RIG_TEXT_BYTES = 40000 };

/* All that policies can ask for. */
static const uint32_t RIG_NEEDS =
    POLICY_KEYS | POLICY_KEY_NORMS | POLICY_VALUE_NORMS | POLICY_WINDOW |
    POLICY_PEAK | POLICY_COLUMNS | POLICY_FUTURE | POLICY_LOG_BETA;

static const uint32_t RIG_FATES =
    FATE_VALUES | FATE_KEYS | FATE_MASS | FATE_BAND | FATE_COLUMN;

struct rig {
    struct gguf *gguf;
    struct workers *workers;
    struct model *model;
    struct tokenizer *tokenizer;
    struct corpus *corpus;
    struct document_options document;
    struct lab_options lab;
};

/* Sentences of random words; free() them. */
static inline char *rig_text(size_t n, uint64_t seed)
{
    char *text = tiny_text(n, seed);
    struct rng r;
    rng_seed(&r, seed);
    for (size_t i = 1; i + 1 < n; i++)
        if (text[i] == ' ' && text[i - 1] != '.' && rng_below(&r, 8) == 0)
            text[i - 1] = '.';
    return text;
}

static inline struct corpus *rig_corpus(const struct tokenizer *t,
                                        uint64_t seed)
{
    struct corpus *c = NULL;
    char *text = rig_text(RIG_TEXT_BYTES, seed);
    assert_int_equal(corpus_from_text(&c, t, text, RIG_TEXT_BYTES, NULL), OK);
    free(text);
    return c;
}

static inline void rig_open_model(struct rig *r, int n_threads,
                                  const char *file)
{
    struct errmsg m = {""};
    memset(r, 0, sizeof(*r));
    if (gguf_open(&r->gguf, file, &m) != OK ||
        workers_new(&r->workers, n_threads, &m) != OK)
        fail_msg("%s", m.text);
    struct model_options o = {.ops = ops_best(), .workers = r->workers};
    lab_model_options(&o, RIG_TOKENS);
    if (model_load(&r->model, r->gguf, &o, &m) != OK)
        fail_msg("%s", m.text);
    r->tokenizer = tiny_tokenizer(true);
    r->corpus = rig_corpus(r->tokenizer, 3);
    r->document = (struct document_options){.tokenizer = r->tokenizer,
                                            .corpus = r->corpus,
                                            .n_tokens = RIG_TOKENS,
                                            .seed = 1};
    r->lab = (struct lab_options){.model = r->model,
                                  .workers = r->workers,
                                  .kv_type = KV_F16,
                                  .n_tokens = RIG_TOKENS,
                                  .needs = {.view = RIG_NEEDS,
                                            .fate = RIG_FATES,
                                            .answers = true,
                                            .n_window = 32}};
}

static inline void rig_open(struct rig *r, int n_threads)
{
    rig_open_model(r, n_threads, "tests/golden/model/tiny/llama-gqa3-64.gguf");
}

static inline void rig_close(struct rig *r)
{
    corpus_free(r->corpus);
    tokenizer_free(r->tokenizer);
    model_free(r->model);
    workers_free(r->workers);
    gguf_close(r->gguf);
}

/* Document i of a task. */
static inline struct document rig_document(const struct rig *r, enum task task,
                                           uint32_t i)
{
    struct document d = {.n_probes = 0};
    struct errmsg m = {""};
    size_t n = 0;
    assert_int_equal(document_deal(&r->document, task, &n), OK);
    assert_true(i < n);
    if (document_make(&d, &r->document, task, i, &m) != OK)
        fail_msg("%s", m.text);
    return d;
}

static inline struct choice rig_choice(const char *name, double budget)
{
    struct errmsg m = {""};
    struct choice c = {.n_sinks = 4, .n_recent = 16, .min_head = 20, .seed = 1};
    if (choice_find(&c, name, RIG_NEEDS, &m) != OK)
        fail_msg("%s", m.text);
    c.budget = budget;
    return c;
}

#endif
