#include "bench/eval/corpus.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/utf8.h"

enum { TEXT_MAX = 256 << 20 };

struct corpus {
    struct tokens tokens;
    size_t *end; /* of each text, in tokens */
    size_t n_texts;
    size_t *window; /* first token of each, as dealt */
    size_t n_windows;
    char hash[HASH_HEX];
};

void corpus_free(struct corpus *c)
{
    if (c == NULL)
        return;
    tokens_fini(&c->tokens);
    free(c->end);
    free(c->window);
    free(c);
}

static enum err add_text(struct corpus *c, const struct tokenizer *t,
                         const char *text, size_t n, struct errmsg *m)
{
    enum err rc = utf8_check(text, n, m);
    if (rc != OK)
        return rc;
    rc = tokenizer_encode(t, text, n, 0, &c->tokens);
    if (rc != OK)
        return err_set(m, rc, "cannot tokenise a text of %zu bytes", n);
    c->end[c->n_texts++] = c->tokens.n;
    return OK;
}

static enum err corpus_new(struct corpus **out, size_t n_texts,
                           struct errmsg *m)
{
    struct corpus *c = calloc(1, sizeof(*c));
    if (c != NULL)
        c->end = calloc(n_texts + 1, sizeof(*c->end));
    if (c == NULL || c->end == NULL) {
        corpus_free(c);
        return err_set(m, ERR_NOMEM, "no memory for %zu texts", n_texts);
    }
    *out = c;
    return OK;
}

static size_t begin_of(const struct corpus *c, size_t i)
{
    return i > 0 ? c->end[i - 1] : 0;
}

/* Over the tokens of all texts with END between two: no window goes across it.
 */
static enum err set_hash(struct corpus *c, struct errmsg *m)
{
    static const int32_t END = -1;
    uint8_t digest[HASH_BYTES];
    struct hash hash = {NULL};
    enum err rc = hash_init(&hash);
    for (size_t i = 0; i < c->n_texts && rc == OK; i++) {
        size_t at = begin_of(c, i);
        if (i > 0)
            rc = hash_update(&hash, &END, sizeof(END));
        if (rc == OK)
            rc = hash_update(&hash, c->tokens.id + at,
                             (c->end[i] - at) * sizeof(int32_t));
    }
    if (rc == OK)
        rc = hash_final(&hash, digest);
    hash_fini(&hash);
    if (rc != OK)
        return err_set(m, rc, "cannot hash the texts");
    hash_hex(c->hash, digest, sizeof(digest));
    return OK;
}

enum err corpus_from_text(struct corpus **out, const struct tokenizer *t,
                          const char *text, size_t n, struct errmsg *m)
{
    struct corpus *c = NULL;
    enum err rc = corpus_new(&c, 1, m);
    if (rc == OK)
        rc = add_text(c, t, text, n, m);
    if (rc == OK)
        rc = set_hash(c, m);
    if (rc == OK)
        *out = c;
    else
        corpus_free(c);
    return rc;
}

static enum err add_file(struct corpus *c, const struct tokenizer *t,
                         const char *path, struct errmsg *m)
{
    struct buf text = {0};
    struct errmsg why = {""};
    enum err rc = file_read_all(&text, path, TEXT_MAX, m);
    if (rc != OK)
        return rc;
    rc = add_text(c, t, text.data, text.len, &why);
    buf_fini(&text);
    return rc == OK ? OK : err_set(m, rc, "%s: %s", path, why.text);
}

/* Documents of the one would be those of the other. */
static enum err check_other(const struct corpus *c, char *const *path,
                            struct errmsg *m)
{
    const int32_t *id = c->tokens.id;
    for (size_t i = 0; i < c->n_texts; i++)
        for (size_t k = 0; k < i; k++) {
            size_t at = begin_of(c, i), n = c->end[i] - at;
            size_t before = begin_of(c, k);
            if (n > 0 && c->end[k] - before == n &&
                memcmp(id + at, id + before, n * sizeof(*id)) == 0)
                return err_set(m, ERR_INVAL, "%s and %s are the same text",
                               path[k], path[i]);
        }
    return OK;
}

enum err corpus_load(struct corpus **out, const struct tokenizer *t,
                     char *const *path, size_t n, struct errmsg *m)
{
    struct corpus *c = NULL;
    enum err rc = corpus_new(&c, n, m);
    for (size_t i = 0; rc == OK && i < n; i++)
        rc = add_file(c, t, path[i], m);
    if (rc == OK)
        rc = check_other(c, path, m);
    if (rc == OK)
        rc = set_hash(c, m);
    if (rc == OK)
        *out = c;
    else
        corpus_free(c);
    return rc;
}

const char *corpus_hash(const struct corpus *c)
{
    return c->hash;
}

static void shuffle(size_t *x, size_t n, uint64_t seed)
{
    struct rng rng;
    rng_seed(&rng, seed);
    for (size_t i = 0; i + 1 < n; i++) {
        size_t j = i + rng_below(&rng, n - i), swap = x[i];
        x[i] = x[j];
        x[j] = swap;
    }
}

enum err corpus_deal(struct corpus *c, uint32_t n_tokens, uint64_t seed,
                     size_t *n_windows)
{
    size_t most = c->tokens.n / n_tokens;
    size_t *window = malloc((most + 1) * sizeof(*window));
    if (window == NULL)
        return ERR_NOMEM;
    free(c->window);
    c->window = window;
    c->n_windows = 0;
    for (size_t i = 0; i < c->n_texts; i++)
        for (size_t at = begin_of(c, i); c->end[i] - at >= n_tokens;
             at += n_tokens)
            window[c->n_windows++] = at;
    shuffle(window, c->n_windows, seed);
    *n_windows = c->n_windows;
    return OK;
}

const int32_t *corpus_window(const struct corpus *c, size_t i)
{
    assert(i < c->n_windows);
    return c->tokens.id + c->window[i];
}
