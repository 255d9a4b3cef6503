#include "runtime/model/model_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The lengths that tensors are made of. */
enum dim { DIM_1, DIM_E, DIM_Q, DIM_KV, DIM_F, DIM_HEAD };

enum when { ALWAYS, WITH_QKV_BIAS, WITH_QK_NORM };

/* One tensor of a layer: where it goes, and what shape it must have. rows is
 * DIM_1 for a vector of float32; everything else is a matrix. */
struct spec {
    const char *name; /* after "blk.<layer>." */
    size_t offset;    /* in struct layer: of a const float * or a weight */
    enum dim cols, rows;
    enum when when;
};

static const struct spec layer_specs[] = {
    {"attn_norm.weight", offsetof(struct layer, attn_norm), DIM_E, DIM_1, 0},
    {"attn_q.weight", offsetof(struct layer, q), DIM_E, DIM_Q, 0},
    {"attn_k.weight", offsetof(struct layer, k), DIM_E, DIM_KV, 0},
    {"attn_v.weight", offsetof(struct layer, v), DIM_E, DIM_KV, 0},
    {"attn_output.weight", offsetof(struct layer, o), DIM_Q, DIM_E, 0},
    {"ffn_norm.weight", offsetof(struct layer, ffn_norm), DIM_E, DIM_1, 0},
    {"ffn_gate.weight", offsetof(struct layer, gate), DIM_E, DIM_F, 0},
    {"ffn_up.weight", offsetof(struct layer, up), DIM_E, DIM_F, 0},
    {"ffn_down.weight", offsetof(struct layer, down), DIM_F, DIM_E, 0},
    {"attn_q.bias", offsetof(struct layer, q_bias), DIM_Q, DIM_1,
     WITH_QKV_BIAS},
    {"attn_k.bias", offsetof(struct layer, k_bias), DIM_KV, DIM_1,
     WITH_QKV_BIAS},
    {"attn_v.bias", offsetof(struct layer, v_bias), DIM_KV, DIM_1,
     WITH_QKV_BIAS},
    {"attn_q_norm.weight", offsetof(struct layer, q_norm), DIM_HEAD, DIM_1,
     WITH_QK_NORM},
    {"attn_k_norm.weight", offsetof(struct layer, k_norm), DIM_HEAD, DIM_1,
     WITH_QK_NORM},
};

/* A load in progress. */
struct loader {
    struct model *m;
    const struct gguf *g;
    struct errmsg *e;
};

enum { N_LAYER_SPECS = sizeof(layer_specs) / sizeof(layer_specs[0]) };

static uint64_t dim_of(const struct config *c, enum dim d)
{
    switch (d) {
    case DIM_E:
        return c->n_embd;
    case DIM_Q:
        return (uint64_t)c->n_heads * c->head_dim;
    case DIM_KV:
        return (uint64_t)c->n_kv_heads * c->head_dim;
    case DIM_F:
        return c->n_ff;
    case DIM_HEAD:
        return c->head_dim;
    case DIM_1:
        break;
    }
    return 1;
}

static bool is_used(const struct config *c, enum when when)
{
    switch (when) {
    case WITH_QKV_BIAS:
        return c->family->qkv_bias;
    case WITH_QK_NORM:
        return c->family->qk_norm;
    case ALWAYS:
        break;
    }
    return true;
}

/* "64x32" into buf, without trailing ones. */
static const char *show_shape(char buf[96], const struct gguf_tensor *t)
{
    int at = 0;
    for (uint32_t i = 0; i < t->n_dims && i < GGUF_DIMS_MAX; i++)
        at += snprintf(buf + at, 96 - (size_t)at, "%s%llu", i ? "x" : "",
                       (unsigned long long)t->dims[i]);
    return buf;
}

/* Finds a tensor and checks that it is [rows][cols]. */
static enum err find(const struct gguf_tensor **out, const struct loader *l,
                     const char *name, uint64_t cols, uint64_t rows)
{
    char shape[96];
    const struct gguf_tensor *t = gguf_tensor_find(l->g, name);
    if (!t)
        return err_set(l->e, ERR_INVAL, "the model file has no tensor %s",
                       name);
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != 1 ||
        t->dims[3] != 1)
        return err_set(l->e, ERR_INVAL,
                       "tensor %s is %s; the model's settings say %llux%llu",
                       name, show_shape(shape, t), (unsigned long long)cols,
                       (unsigned long long)rows);
    *out = t;
    return OK;
}

static void count_tensor(struct model *m, const struct gguf_tensor *t)
{
    m->info.n_params += t->dims[0] * t->dims[1];
    m->info.file_bytes += t->bytes;
}

/* A copy, since the file promises no alignment for floats. */
static enum err load_vector(const struct loader *l, const float **out,
                            const char *name, uint64_t n)
{
    const struct gguf_tensor *t = NULL;
    enum err rc = find(&t, l, name, n, 1);
    if (rc != OK)
        return rc;
    if (t->type != DTYPE_F32)
        return err_set(l->e, ERR_UNSUPPORTED, "tensor %s is %s; it must be F32",
                       name, dtype_name(t->type));
    float *v = arena_alloc(&l->m->vectors, t->bytes);
    if (!v)
        return err_set(l->e, ERR_NOMEM, "no memory for tensor %s", name);
    memcpy(v, t->data, t->bytes);
    count_tensor(l->m, t);
    *out = v;
    return OK;
}

static enum err load_matrix(const struct loader *l, struct weight *out,
                            const char *name, uint64_t cols, uint64_t rows)
{
    const struct gguf_tensor *t = NULL;
    enum err rc = find(&t, l, name, cols, rows);
    if (rc != OK)
        return rc;
    count_tensor(l->m, t);
    *out = (struct weight){.type = t->type,
                           .rows = (int64_t)rows,
                           .cols = (int64_t)cols,
                           .raw = t->data};
    return OK;
}

static enum err load_layer(const struct loader *l, uint32_t i)
{
    const struct config *c = &l->m->cfg;
    enum err rc = OK;
    for (int k = 0; k < N_LAYER_SPECS && rc == OK; k++) {
        const struct spec *s = &layer_specs[k];
        char name[64];
        void *field = (char *)&l->m->layer[i] + s->offset;
        if (!is_used(c, s->when))
            continue;
        snprintf(name, sizeof(name), "blk.%u.%s", i, s->name);
        if (s->rows == DIM_1)
            rc = load_vector(l, field, name, dim_of(c, s->cols));
        else
            rc = load_matrix(l, field, name, dim_of(c, s->cols),
                             dim_of(c, s->rows));
    }
    return rc;
}

/* Frequencies are divided by them. */
static enum err load_rope_factors(const struct loader *l)
{
    struct model *m = l->m;
    uint32_t n = m->cfg.head_dim / 2;
    enum err rc = load_vector(l, &m->rope_factors, "rope_freqs.weight", n);
    for (uint32_t i = 0; rc == OK && i < n; i++)
        if (!(m->rope_factors[i] >= 1e-6f && m->rope_factors[i] <= 1e6f))
            rc = err_set(l->e, ERR_INVAL, "rope_freqs.weight holds %g",
                         (double)m->rope_factors[i]);
    return rc;
}

/* What is not in a layer. The vocabulary is as large as the embedding. */
static enum err load_globals(const struct loader *l)
{
    struct model *m = l->m;
    const struct gguf_tensor *t = gguf_tensor_find(l->g, "token_embd.weight");
    uint64_t n_vocab = t ? t->dims[1] : 0, E = m->cfg.n_embd;
    size_t n_tokens = 0;
    if (n_vocab > INT32_MAX)
        return err_set(l->e, ERR_INVAL, "token_embd.weight has %llu rows",
                       (unsigned long long)n_vocab);
    enum err rc =
        gguf_array_info(l->g, "tokenizer.ggml.tokens", NULL, &n_tokens, NULL);
    if (rc == OK && t && n_tokens > n_vocab)
        return err_set(l->e, ERR_INVAL,
                       "the vocabulary has %zu tokens, but token_embd.weight "
                       "only %llu rows",
                       n_tokens, (unsigned long long)n_vocab);
    rc = load_matrix(l, &m->embd, "token_embd.weight", E, n_vocab);
    if (rc == OK)
        rc = load_vector(l, &m->out_norm, "output_norm.weight", E);
    if (rc != OK)
        return rc;
    m->info.n_vocab = (uint32_t)n_vocab;
    m->head = m->embd;
    if (gguf_tensor_find(l->g, "output.weight"))
        rc = load_matrix(l, &m->head, "output.weight", E, n_vocab);
    if (rc == OK && gguf_tensor_find(l->g, "rope_freqs.weight"))
        rc = load_rope_factors(l);
    return rc;
}

static bool is_layer_tensor(const struct config *c, const char *name)
{
    char *end = NULL;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9')
        return false;
    unsigned long i = strtoul(name + 4, &end, 10);
    if (i >= c->n_layers || *end != '.')
        return false;
    for (int k = 0; k < N_LAYER_SPECS; k++) {
        char loaded[64]; /* "blk.01.x" is not it */
        snprintf(loaded, sizeof(loaded), "blk.%lu.%s", i, layer_specs[k].name);
        if (is_used(c, layer_specs[k].when) && strcmp(name, loaded) == 0)
            return true;
    }
    return false;
}

/* A tensor that we do not use would have changed the result. */
static enum err refuse_other_tensors(const struct model *m,
                                     const struct gguf *g, struct errmsg *e)
{
    static const char *const globals[] = {"token_embd.weight",
                                          "output_norm.weight", "output.weight",
                                          "rope_freqs.weight"};
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const char *name = gguf_tensor_at(g, i)->name;
        bool known = is_layer_tensor(&m->cfg, name);
        for (size_t k = 0; k < sizeof(globals) / sizeof(globals[0]); k++)
            known = known || strcmp(name, globals[k]) == 0;
        if (!known)
            return err_set(e, ERR_UNSUPPORTED,
                           "the model has the tensor %s, which %s models of "
                           "the supported kind do not have",
                           name, m->info.arch);
    }
    return OK;
}

static enum err load_tensors(struct model *m, const struct gguf *g,
                             struct errmsg *e)
{
    /* Every layer has at least one tensor, so that a count from a hostile
     * file is bounded by the file before anything is allocated for it. */
    if (m->cfg.n_layers > gguf_n_tensors(g))
        return err_set(e, ERR_INVAL,
                       "%s.block_count is %u, but the file has only %zu "
                       "tensors",
                       m->info.arch, m->cfg.n_layers, gguf_n_tensors(g));
    arena_init(&m->vectors, SIZE_MAX);
    m->layer = arena_array(&m->vectors, m->cfg.n_layers, sizeof(*m->layer));
    if (!m->layer)
        return err_set(e, ERR_NOMEM, "no memory for %u layers",
                       m->cfg.n_layers);
    struct loader l = {.m = m, .g = g, .e = e};
    enum err rc = load_globals(&l);
    for (uint32_t i = 0; i < m->cfg.n_layers && rc == OK; i++)
        rc = load_layer(&l, i);
    return rc == OK ? refuse_other_tensors(m, g, e) : rc;
}

void model_each_weight(struct model *m, void (*fn)(struct weight *w, void *ctx),
                       void *ctx)
{
    for (uint32_t i = 0; i < m->cfg.n_layers; i++) {
        struct layer *l = &m->layer[i];
        struct weight *all[] = {&l->q,    &l->k,  &l->v,   &l->o,
                                &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
            fn(all[k], ctx);
    }
    fn(&m->head, ctx);
}

static void fill_info(struct model *m)
{
    const struct config *c = &m->cfg;
    m->info.n_layers = c->n_layers;
    m->info.n_heads = c->n_heads;
    m->info.n_kv_heads = c->n_kv_heads;
    m->info.head_dim = c->head_dim;
    m->info.n_embd = c->n_embd;
    m->info.n_ff = c->n_ff;
    m->info.context_length = c->context_length;
}

static enum err check_options(const struct model_options *o, struct errmsg *m)
{
    if (o->max_rows == 0 || o->max_rows > 1 << 20)
        return err_set(m, ERR_INVAL, "%u tokens a step is out of range",
                       o->max_rows);
    if (o->max_runs == 0 || o->max_runs > o->max_rows)
        return err_set(m, ERR_INVAL,
                       "%u sequences do not fit a step of %u tokens",
                       o->max_runs, o->max_rows);
    if (o->max_context > 1 << 28)
        return err_set(m, ERR_INVAL, "a context of %u tokens is out of range",
                       o->max_context);
    return OK;
}

enum err model_load(struct model **out, const struct gguf *g,
                    const struct model_options *options, struct errmsg *e)
{
    enum err rc = check_options(options, e);
    if (rc != OK)
        return rc;
    struct model *m = calloc(1, sizeof(*m));
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the model");
    m->opt = *options;
    m->ops = options->ops;
    rc = model_read_config(&m->cfg, &m->info, g, e);
    if (rc == OK)
        fill_info(m);
    if (rc == OK && m->opt.max_context == 0)
        m->opt.max_context = m->cfg.context_length;
    if (rc == OK)
        rc = load_tensors(m, g, e);
    if (rc == OK)
        rc = model_make_scratch(m, e);
    if (rc == OK)
        rc = model_pack_weights(m, g, e);
    if (rc != OK) {
        model_free(m);
        return rc;
    }
    *out = m;
    return OK;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    model_gates_drop(m);
    model_unmap(m->packed_map, m->packed_map_bytes);
    model_unmap(m->scratch_map, m->scratch_map_bytes);
    arena_fini(&m->vectors);
    free(m);
}

const struct model_info *model_info(const struct model *m)
{
    return &m->info;
}
