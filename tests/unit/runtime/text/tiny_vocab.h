/* tiny_vocab.h - small vocabularies for tests, made by hand.
 *
 * Ids 0 to 255 are the bytes. Then comes one token for each merge, in order
 * (so merge k makes token 256 + k), then whatever is added.
 */
#ifndef TESTS_TINY_VOCAB_H
#define TESTS_TINY_VOCAB_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "runtime/text/tokenizer.h"

enum { TINY_MAX = 2048, TINY_TEXT = 64 };

struct tiny {
    char text[TINY_MAX][TINY_TEXT];
    char merge_text[TINY_MAX][TINY_TEXT];
    struct gguf_str token[TINY_MAX], merge[TINY_MAX];
    int32_t type[TINY_MAX];
    struct tokenizer_spec spec;
};

/* GPT-2's rule, forwards: bytes that print are themselves, the others get the
 * next free code point from 256 on. */
static inline void tiny_alphabet(uint32_t cp[256])
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) ||
                      (b >= 0xAE && b <= 0xFF);
        cp[b] = prints ? b : next++;
    }
}

static inline void tiny_encode(const char *bytes, size_t n, char out[TINY_TEXT])
{
    uint32_t cp[256];
    size_t len = 0;
    tiny_alphabet(cp);
    for (size_t i = 0; i < n; i++) {
        assert(len + UTF8_MAX_BYTES < TINY_TEXT);
        len += (size_t)utf8_encode(cp[(unsigned char)bytes[i]], out + len);
    }
    out[len] = '\0';
}

/* A token with this text as it stands in a file; returns its id. */
static inline int32_t tiny_add(struct tiny *v, const char *text, int32_t type)
{
    size_t i = v->spec.n_tokens++;
    assert(i < TINY_MAX && strlen(text) < TINY_TEXT);
    memcpy(v->text[i], text, strlen(text) + 1);
    v->token[i] = (struct gguf_str){v->text[i], strlen(text)};
    v->type[i] = type;
    return (int32_t)i;
}

/* A merge of two byte strings, and the token it makes; returns its id. */
static inline int32_t tiny_merge(struct tiny *v, const char *left,
                                 const char *right)
{
    char l[TINY_TEXT], r[TINY_TEXT], both[2 * TINY_TEXT];
    size_t k = v->spec.n_merges++;
    assert(k < TINY_MAX);
    tiny_encode(left, strlen(left), l);
    tiny_encode(right, strlen(right), r);
    assert(strlen(l) + strlen(r) + 1 < TINY_TEXT);
    snprintf(v->merge_text[k], TINY_TEXT, "%.30s %.30s", l, r);
    v->merge[k] = (struct gguf_str){v->merge_text[k], strlen(v->merge_text[k])};
    snprintf(both, sizeof(both), "%s%s", l, r);
    return tiny_add(v, both, TOKEN_NORMAL);
}

static inline struct tiny *tiny_new(const char *rule)
{
    struct tiny *v = calloc(1, sizeof(*v));
    assert(v != NULL);
    v->spec = (struct tokenizer_spec){.pre = {rule, strlen(rule)},
                                      .token = v->token,
                                      .type = v->type,
                                      .merge = v->merge,
                                      .bos = -1,
                                      .eos = -1,
                                      .eot = -1,
                                      .eom = -1};
    for (int b = 0; b < 256; b++) {
        char c = (char)b, text[TINY_TEXT];
        tiny_encode(&c, 1, text);
        (void)tiny_add(v, text, TOKEN_NORMAL);
    }
    return v;
}

/* The tokenizer of it; *v is freed. */
static inline struct tokenizer *tiny_take(struct tiny *v)
{
    struct tokenizer *t = NULL;
    enum err rc = tokenizer_new(&t, &v->spec, NULL);
    assert(rc == OK);
    (void)rc;
    free(v);
    return t;
}

#endif
