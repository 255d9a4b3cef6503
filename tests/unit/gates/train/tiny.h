/* tiny.h - small random models and a tokenizer for the trainer's tests.
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_GATES_TRAIN_TINY_H
#define TESTS_GATES_TRAIN_TINY_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "gates/train/frozen.h"
#include "runtime/text/tokenizer.h"

static const struct frozen_shape TINY_LLAMA = {.n_layers = 2,
                                               .n_heads = 4,
                                               .n_kv_heads = 2,
                                               .head_dim = 8,
                                               .n_embd = 32,
                                               .n_ff = 40,
                                               .n_vocab = 100,
                                               .norm_eps = 1e-5f,
                                               .rope_interleaved = true,
                                               .tied = true};

static inline float tiny_normal(struct rng *r)
{
    double u = rng_double(r) + 1e-12, v = rng_double(r);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static inline void tiny_fill(float *p, size_t n, float scale, struct rng *r)
{
    for (size_t i = 0; i < n; i++)
        p[i] = scale * tiny_normal(r);
}

static inline void tiny_fill_norm(float *p, size_t n, struct rng *r)
{
    for (size_t i = 0; p != NULL && i < n; i++)
        p[i] = 1.0f + 0.2f * tiny_normal(r);
}

static inline struct frozen *tiny_model(const struct frozen_shape *s,
                                        struct rng *r)
{
    struct frozen *f = NULL;
    assert_int_equal(frozen_new(&f, s, NULL), OK);
    tiny_fill(f->weights, f->n_weights, 0.25f, r);
    tiny_fill_norm(f->out_norm, s->n_embd, r);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        tiny_fill_norm(f->layer[l].attn_norm, s->n_embd, r);
        tiny_fill_norm(f->layer[l].ffn_norm, s->n_embd, r);
        tiny_fill_norm(f->layer[l].q_norm, s->head_dim, r);
        tiny_fill_norm(f->layer[l].k_norm, s->head_dim, r);
    }
    for (uint32_t i = 0; i < s->head_dim / 2; i++)
        f->inv_freq[i] = pow(10000.0, -2.0 * i / s->head_dim);
    return f;
}

/* Printable ASCII, space (U+0120), line end (U+010A), and "<s>", which begins
 * a text when adds_bos: 97 tokens, one a byte. */
enum { TINY_VOCAB = 97, TINY_BOS = 96 };

/* eot: the token that ends a turn, or -1. */
static inline struct tokenizer *tiny_tokenizer_with(bool adds_bos, int32_t eot)
{
    char text[94];
    struct gguf_str token[TINY_VOCAB];
    int32_t type[TINY_VOCAB];
    for (int i = 0; i < TINY_VOCAB; i++)
        type[i] = i == TINY_BOS ? TOKEN_CONTROL : TOKEN_NORMAL;
    for (int i = 0; i < 94; i++) {
        text[i] = (char)(i + 33);
        token[i] = (struct gguf_str){text + i, 1};
    }
    token[94] = (struct gguf_str){"\xC4\xA0", 2};
    token[95] = (struct gguf_str){"\xC4\x8A", 2};
    token[TINY_BOS] = (struct gguf_str){"<s>", 3};
    struct tokenizer_spec spec = {.pre = {"gpt-2", 5},
                                  .token = token,
                                  .type = type,
                                  .n_tokens = TINY_VOCAB,
                                  .bos = TINY_BOS,
                                  .eos = -1,
                                  .eot = eot,
                                  .eom = -1,
                                  .add_bos = adds_bos};
    struct tokenizer *t = NULL;
    struct errmsg m = {""};
    if (tokenizer_new(&t, &spec, &m) != OK)
        fail_msg("%s", m.text);
    return t;
}

static inline struct tokenizer *tiny_tokenizer(bool adds_bos)
{
    return tiny_tokenizer_with(adds_bos, -1);
}

/* n bytes of words and lines; free() them. */
static inline char *tiny_text(size_t n, uint64_t seed)
{
    static const char *const words[] = {"the",  "tide", "was",  "slow",
                                        "and",  "grey", "over", "sand",
                                        "dune", "wind", "had",  "risen"};
    char *text = malloc(n + 16);
    struct rng r;
    size_t len = 0;
    assert_non_null(text);
    rng_seed(&r, seed);
    while (len < n) {
        const char *w = words[rng_below(&r, 12)];
        size_t k = strlen(w);
        memcpy(text + len, w, k);
        len += k;
        text[len++] = rng_below(&r, 9) == 0 ? '\n' : ' ';
    }
    text[n] = '\0';
    return text;
}

#endif
