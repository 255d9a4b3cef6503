#include "runtime/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "runtime/text/nfc.h"
#include "runtime/text/tokenizer_internal.h"

void tokens_fini(struct tokens *v)
{
    free(v->id);
    v->id = NULL;
    v->n = v->cap = 0;
}

void token_ranges_fini(struct token_ranges *r)
{
    free(r->v);
    *r = (struct token_ranges){0};
}

enum err tokens_push(struct tokens *v, int32_t id)
{
    if (v->max != 0 && v->n >= v->max)
        return ERR_BUDGET;
    void *p = grow_array(v->id, &v->cap, v->n + 1, sizeof(*v->id));
    if (p == NULL)
        return ERR_NOMEM;
    v->id = p;
    v->id[v->n++] = id;
    return OK;
}

enum err tokens_check_stop(const struct tokens *v)
{
    bool stop =
        v->stop != NULL && atomic_load_explicit(v->stop, memory_order_relaxed);
    return stop ? ERR_CANCELLED : OK;
}

enum err tokenizer_new(struct tokenizer **out,
                       const struct tokenizer_spec *spec, struct errmsg *m)
{
    *out = NULL;
    struct tokenizer *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the tokenizer");
    enum err rc = pretok_new(&t->pretok, spec->pre.s, spec->pre.n, m);
    if (rc == OK)
        rc = tokenizer_build(t, spec, m);
    if (rc != OK) {
        tokenizer_free(t);
        return rc;
    }
    *out = t;
    return OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL)
        return;
    pretok_free(t->pretok);
    free(t->blob);
    free(t->token);
    free(t->by_text);
    free(t->merge);
    free(t->by_pair);
    free(t->special);
    free(t->eog);
    free(t);
}

size_t tokenizer_least_tokens(const struct tokenizer *t, size_t n)
{
    if (!t->has_all_bytes || t->longest == 0)
        return 0;
    if (pretok_wants_nfc(t->pretok))
        n /= NFC_SHRINK_MAX;
    return n / t->longest;
}

size_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->n_tokens;
}

static const struct token *token_at(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n_tokens ? &t->token[id] : NULL;
}

const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id,
                                  size_t *n)
{
    const struct token *k = token_at(t, id);
    *n = k != NULL ? k->n : 0;
    return k != NULL ? t->blob + k->at : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    const struct token *k = token_at(t, id);
    return k != NULL && (k->type == TOKEN_CONTROL || k->type == TOKEN_UNKNOWN ||
                         k->type == TOKEN_USER_DEFINED);
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    const struct token *k = token_at(t, id);
    return k == NULL || k->type == TOKEN_CONTROL || k->type == TOKEN_UNKNOWN ||
           k->type == TOKEN_UNUSED;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

const int32_t *tokenizer_eog(const struct tokenizer *t, size_t *n)
{
    *n = t->n_eog;
    return t->eog;
}

bool tokenizer_is_eog(const struct tokenizer *t, int32_t id)
{
    for (size_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == id)
            return true;
    return false;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n)
{
    if (n == 0)
        return -1;
    size_t len = 0;
    int32_t id = tokenizer_match_special(t, text, n, &len);
    if (id >= 0 && len == n)
        return id;
    return tokenizer_lookup(t, text, n);
}
