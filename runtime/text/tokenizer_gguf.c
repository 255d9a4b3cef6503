#include <stdlib.h>
#include <string.h>

#include "runtime/text/tokenizer_internal.h"

#define KEY(name) "tokenizer.ggml." name

/* NOTFOUND means the default; another error is one. */
static enum err optional(enum err rc)
{
    return rc == ERR_NOTFOUND ? OK : rc;
}

static enum err read_strings(const struct gguf *g, const char *key,
                             struct gguf_str **out, size_t *n, struct errmsg *m)
{
    enum err rc = gguf_array_info(g, key, NULL, n, m);
    if (rc != OK)
        return rc;
    *out = calloc(*n + 1, sizeof(**out));
    if (*out == NULL)
        return err_set(m, ERR_NOMEM, "no memory for the %zu strings of %s", *n,
                       key);
    return gguf_array_strings(g, key, *out, *n, m);
}

static enum err read_types(const struct gguf *g, int32_t **out, size_t n_tokens,
                           struct errmsg *m)
{
    const char *key = KEY("token_type");
    size_t n = 0;
    enum err rc = gguf_array_info(g, key, NULL, &n, m);
    if (rc != OK)
        return optional(rc);
    if (n != n_tokens)
        return err_set(m, ERR_INVAL, "%s has %zu elements for %zu tokens", key,
                       n, n_tokens);
    *out = calloc(n + 1, sizeof(**out));
    if (*out == NULL)
        return err_set(m, ERR_NOMEM, "no memory for %zu token types", n);
    return gguf_array_i32(g, key, *out, n, m);
}

static enum err read_id(const struct gguf *g, const char *key, int32_t *out,
                        struct errmsg *m)
{
    uint32_t id = 0;
    *out = -1;
    enum err rc = gguf_u32(g, key, &id, m);
    if (rc == OK && id > INT32_MAX)
        return err_set(m, ERR_INVAL, "%s is %u: there is no such token", key,
                       id);
    if (rc == OK)
        *out = (int32_t)id;
    return optional(rc);
}

static enum err check_model(const struct gguf *g, struct errmsg *m)
{
    struct gguf_str model;
    enum err rc = gguf_string(g, KEY("model"), &model, m);
    if (rc != OK)
        return rc;
    if (model.n == 4 && memcmp(model.s, "gpt2", 4) == 0)
        return OK;
    return err_set(m, ERR_UNSUPPORTED,
                   "tokenizer.ggml.model is \"%.*s\": this program knows gpt2 "
                   "(byte-level BPE) only",
                   (int)(model.n < 64 ? model.n : 64), model.s);
}

static enum err read_ids(const struct gguf *g, struct tokenizer_spec *spec,
                         struct errmsg *m)
{
    enum err rc = read_id(g, KEY("bos_token_id"), &spec->bos, m);
    if (rc == OK)
        rc = read_id(g, KEY("eos_token_id"), &spec->eos, m);
    if (rc == OK)
        rc = read_id(g, KEY("eot_token_id"), &spec->eot, m);
    if (rc == OK)
        rc = read_id(g, KEY("eom_token_id"), &spec->eom, m);
    /* Files of the Llama 3 family may lack the key and mean yes. */
    spec->add_bos = spec->pre.n == strlen("llama-bpe") &&
                    memcmp(spec->pre.s, "llama-bpe", spec->pre.n) == 0;
    if (rc == OK)
        rc = optional(gguf_bool(g, KEY("add_bos_token"), &spec->add_bos, m));
    return rc;
}

enum err tokenizer_from_gguf(struct tokenizer **out, const struct gguf *g,
                             struct errmsg *m)
{
    struct tokenizer_spec spec = {0};
    struct gguf_str *token = NULL, *merge = NULL;
    int32_t *type = NULL;
    *out = NULL;
    enum err rc = check_model(g, m);
    if (rc == OK)
        rc = gguf_string(g, KEY("pre"), &spec.pre, m);
    if (rc == OK)
        rc = read_strings(g, KEY("tokens"), &token, &spec.n_tokens, m);
    if (rc == OK)
        rc = read_types(g, &type, spec.n_tokens, m);
    if (rc == OK)
        rc = read_strings(g, KEY("merges"), &merge, &spec.n_merges, m);
    if (rc == OK)
        rc = read_ids(g, &spec, m);
    spec.token = token;
    spec.type = type;
    spec.merge = merge;
    if (rc == OK)
        rc = tokenizer_new(out, &spec, m);
    free(token);
    free(merge);
    free(type);
    return rc;
}
