#include <stdio.h>
#include <string.h>

#include "runtime/gguf/gguf_internal.h"

enum { ARCHITECTURE_MAX = 64 };

struct base {
    char architecture[ARCHITECTURE_MAX + 1];
    uint32_t layers, kv_heads, width;
    uint64_t vocabulary;
};

static enum err read_architecture(const struct gguf *g, struct base *b,
                                  struct errmsg *m)
{
    struct gguf_str s;
    enum err rc = gguf_string(g, "general.architecture", &s, m);
    if (rc != OK)
        return rc;
    if (s.n > ARCHITECTURE_MAX || memchr(s.s, 0, s.n) != NULL)
        return err_set(m, ERR_INVAL,
                       "key 'general.architecture': '%.*s' is not a name",
                       GGUF_SHOW(s));
    memcpy(b->architecture, s.s, s.n);
    b->architecture[s.n] = '\0';
    return OK;
}

static enum err read_u32(const struct gguf *g, const struct base *b,
                         const char *what, uint32_t *out, struct errmsg *m)
{
    char key[2 * ARCHITECTURE_MAX];
    snprintf(key, sizeof(key), "%s.%s", b->architecture, what);
    return gguf_u32(g, key, out, m);
}

static enum err read_base(const struct gguf *g, struct base *b,
                          struct errmsg *m)
{
    enum err rc = read_architecture(g, b, m);
    if (rc == OK)
        rc = read_u32(g, b, "block_count", &b->layers, m);
    if (rc == OK)
        rc = read_u32(g, b, "embedding_length", &b->width, m);
    if (rc != OK)
        return rc;
    rc = read_u32(g, b, "attention.head_count_kv", &b->kv_heads, m);
    if (rc == ERR_NOTFOUND)
        rc = read_u32(g, b, "attention.head_count", &b->kv_heads, m);
    if (rc != OK)
        return rc;
    const struct gguf_tensor *embd = gguf_tensor_find(g, "token_embd.weight");
    if (embd == NULL)
        return err_set(m, ERR_NOTFOUND,
                       "the file has no tensor 'token_embd.weight'");
    b->vocabulary = embd->dims[1];
    return OK;
}

static enum err hash_norms(const struct gguf *g, struct hash *h)
{
    enum err rc = OK;
    for (size_t i = 0; i < g->n_tensors && rc == OK; i++) {
        const struct gguf_tensor *t = &g->tensor[g->tensor_slot[i].i];
        char line[GGUF_NAME_MAX + 32];
        if (t->type != DTYPE_F32 || strstr(t->name, "norm") == NULL)
            continue;
        int n = snprintf(line, sizeof(line), "%s %llu\n", t->name,
                         (unsigned long long)t->bytes);
        rc = hash_update(h, line, (size_t)n);
        if (rc == OK)
            rc = hash_update(h, t->data, (size_t)t->bytes);
    }
    return rc;
}

enum err gguf_fingerprint(const struct gguf *g, uint8_t out[HASH_BYTES],
                          struct errmsg *m)
{
    struct base b;
    struct hash h = {0};
    char line[256];
    enum err rc = read_base(g, &b, m);
    if (rc != OK)
        return rc;
    int n = snprintf(line, sizeof(line),
                     "ebb base %s layers %u kv_heads %u width %u vocabulary "
                     "%llu\n",
                     b.architecture, b.layers, b.kv_heads, b.width,
                     (unsigned long long)b.vocabulary);
    rc = hash_init(&h);
    if (rc == OK)
        rc = hash_update(&h, line, (size_t)n);
    if (rc == OK)
        rc = hash_norms(g, &h);
    if (rc == OK)
        rc = hash_final(&h, out);
    hash_fini(&h);
    if (rc != OK)
        return err_set(m, rc, "cannot compute the model's fingerprint: %s",
                       err_name(rc));
    return OK;
}
