/* tiny_models.h - the tiny random models, one or more of every family, that
 * tests/tools/make_tiny_models.py wrote with their golden logits (an
 * implementation that shares nothing with ours, in float64).
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_TINY_MODELS_H
#define TESTS_TINY_MODELS_H

#include "tests/unit/runtime/model/model_check.h"

static const char *const tiny_models[] = {
    "llama-mha-64",    "llama-gqa3-64",  "llama-gqa4-80-llama3",
    "qwen2-gqa7-64",   "qwen2-mha-128",  "llama-gqa2-96-linear",
    "qwen3-gqa3-96",   "qwen3-gqa2-128", "qwen3-gqa4-80-k",
    "llama-gqa2-128-k"};

enum { N_TINY_MODELS = sizeof(tiny_models) / sizeof(tiny_models[0]) };

/* As rig_open(), by the model's name; o->path is not looked at. */
static inline void tiny_open(struct rig *r, const char *name,
                             const struct rig_options *o)
{
    char path[256];
    struct rig_options named = *o;
    snprintf(path, sizeof(path), "tests/golden/model/tiny/%s.gguf", name);
    named.path = path;
    rig_open(r, &named);
}

/* Its tokens, the positions of rows among them, and their logits. */
static inline void tiny_open_golden(struct golden *g, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "tests/golden/model/tiny/%s.golden", name);
    golden_open(g, path);
}

#endif
