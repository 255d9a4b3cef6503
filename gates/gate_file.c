#include "gates/gate_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/kernels/quant.h"

enum { PARTS_MAX = 6, NAME_BYTES = 96 };

/* One tensor of a layer. */
struct part {
    const char *suffix;
    uint32_t n_dims;
    uint64_t dims[2];
    size_t at; /* floats from the start of the layer */
    bool is_shared;
};

/* Returns how many there are. */
static int list_parts(struct part out[PARTS_MAX], const struct gate_shape *s)
{
    struct gate_parts p = gate_parts(s);
    uint64_t m = s->width, d = s->n_embd, h = s->n_kv_heads;
    const struct part rg10[] = {
        {"linear1.weight", 2, {m, d}, p.w1, false},
        {"linear1.bias", 1, {m, 1}, p.c1, false},
        {"linear2.weight", 2, {m, m}, p.w2, false},
        {"linear2.bias", 1, {m, 1}, p.c2, false},
        {"linear3.weight", 2, {h, m}, p.w3, true},
        {"bias", 1, {h, 1}, p.c3, true},
    };
    const struct part rg[] = {
        {"linear1.weight", 2, {m, d}, p.w1, false},
        {"linear1.bias", 1, {m, 1}, p.c1, false},
        {"linear2.weight", 2, {h, m}, p.w3, false},
        {"bias", 1, {h, 1}, p.c3, false},
    };
    if (s->kind == GATE_RG) {
        memcpy(out, rg, sizeof(rg));
        return sizeof(rg) / sizeof(rg[0]);
    }
    memcpy(out, rg10, sizeof(rg10));
    return sizeof(rg10) / sizeof(rg10[0]);
}

static void part_name(char out[NAME_BYTES], uint32_t layer, const char *suffix)
{
    snprintf(out, NAME_BYTES, "model.layers.%u.self_attn.retention_gate.%s",
             layer, suffix);
}

static const struct safetensors_tensor *
find_part(const struct safetensors *f, uint32_t layer, const char *suffix)
{
    char name[NAME_BYTES];
    part_name(name, layer, suffix);
    return safetensors_find(f, name);
}

static enum err check_part(const struct safetensors *f, uint32_t layer,
                           const struct part *p, struct errmsg *m)
{
    const struct safetensors_tensor *t = find_part(f, layer, p->suffix);
    if (t == NULL && p->is_shared && layer > 0)
        return OK; /* that of layer 0 serves */
    if (t == NULL) {
        char name[NAME_BYTES];
        part_name(name, layer, p->suffix);
        return err_set(m, ERR_INVAL, "there is no tensor %s", name);
    }
    if (t->n_dims == p->n_dims && t->dims[0] == p->dims[0] &&
        t->dims[1] == p->dims[1])
        return OK;
    return err_set(m, ERR_INVAL,
                   "tensor %s is %" PRIu64 " x %" PRIu64
                   ", but the first layer's shapes ask for %" PRIu64
                   " x %" PRIu64,
                   t->name, t->dims[0], t->dims[1], p->dims[0], p->dims[1]);
}

static enum err read_part(struct gate *g, const struct safetensors *f,
                          uint32_t layer, const struct part *p,
                          struct errmsg *m)
{
    const struct safetensors_tensor *t = find_part(f, layer, p->suffix);
    if (t == NULL)
        t = find_part(f, 0, p->suffix);
    size_t n = (size_t)(p->dims[0] * p->dims[1]);
    float *to = gate_layer(g, layer) + p->at;
    quant_dequantize(t->type, t->data, to, n);
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(to[i]) <= (float)GATE_PARAM_MAX))
            return err_set(
                m, ERR_INVAL, "tensor %s holds %.9g; -%d to %d can be used",
                t->name, (double)to[i], GATE_PARAM_MAX, GATE_PARAM_MAX);
    return OK;
}

static enum err read_kind(enum gate_kind *out, const struct safetensors *f,
                          struct errmsg *m)
{
    const char *kind = safetensors_meta(f, "gate");
    if (kind == NULL)
        *out = find_part(f, 0, "linear3.weight") == NULL ? GATE_RG : GATE_RG10;
    else if (strcmp(kind, "rg10") == 0)
        *out = GATE_RG10;
    else if (strcmp(kind, "rg") == 0)
        *out = GATE_RG;
    else
        return err_set(m, ERR_UNSUPPORTED,
                       "its gates are of type '%.32s'; rg10 and rg are read",
                       kind);
    return OK;
}

/* From the first layer's tensors, and how many layers there are. */
static enum err read_shape(struct gate_shape *s, const struct safetensors *f,
                           struct errmsg *m)
{
    const struct safetensors_tensor *w1 = find_part(f, 0, "linear1.weight");
    const struct safetensors_tensor *c3 = find_part(f, 0, "bias");
    *s = (struct gate_shape){.n_layers = 1};
    if (w1 == NULL || c3 == NULL) {
        char name[NAME_BYTES];
        part_name(name, 0, w1 == NULL ? "linear1.weight" : "bias");
        return err_set(m, ERR_INVAL,
                       "it holds no retention gates: no tensor "
                       "%s",
                       name);
    }
    if (w1->n_dims != 2 || w1->dims[0] == 0 || w1->dims[0] > GATE_WIDTH_MAX ||
        w1->dims[1] == 0 || w1->dims[1] > UINT32_MAX)
        return err_set(m, ERR_INVAL,
                       "tensor %s is %" PRIu64 " x %" PRIu64
                       "; 1 to %d rows can be used",
                       w1->name, w1->dims[0], w1->dims[1], GATE_WIDTH_MAX);
    if (c3->dims[0] == 0 || c3->dims[0] > GATE_HEADS_MAX)
        return err_set(m, ERR_INVAL,
                       "tensor %s is for %" PRIu64
                       " heads; 1 to %d can be used",
                       c3->name, c3->dims[0], GATE_HEADS_MAX);
    s->width = (uint32_t)w1->dims[0];
    s->n_embd = (uint32_t)w1->dims[1];
    s->n_kv_heads = (uint32_t)c3->dims[0];
    while (find_part(f, s->n_layers, "linear1.weight") != NULL)
        s->n_layers++;
    return read_kind(&s->kind, f, m);
}

enum err gate_read(struct gate **out, const struct safetensors *f,
                   const struct gate_shape *model, struct errmsg *m)
{
    struct gate_shape s;
    struct part part[PARTS_MAX];
    struct gate *g = NULL;
    enum err rc = read_shape(&s, f, m);
    if (rc != OK)
        return rc;
    int n = list_parts(part, &s);
    for (uint32_t l = 0; l < s.n_layers; l++)
        for (int i = 0; i < n && rc == OK; i++)
            rc = check_part(f, l, &part[i], m);
    if (rc == OK && model != NULL)
        rc = gate_check_fit(&s, model, m);
    if (rc == OK)
        rc = gate_new(&g, &s, m);
    for (uint32_t l = 0; l < s.n_layers; l++)
        for (int i = 0; i < n && rc == OK; i++)
            rc = read_part(g, f, l, &part[i], m);
    if (rc != OK) {
        gate_free(g);
        return rc;
    }
    *out = g;
    return OK;
}

enum err gate_load(struct gate **out, const char *path,
                   const struct gate_shape *model, struct errmsg *m)
{
    struct safetensors *f = NULL;
    enum err rc = safetensors_open(&f, path, m);
    if (rc != OK)
        return rc;
    struct errmsg why;
    rc = gate_read(out, f, model, &why);
    if (rc != OK)
        err_set(m, rc, "%s: %s", path, why.text);
    safetensors_close(f);
    return rc;
}

static bool is_equal_in_all(const struct gate *g, const struct part *p)
{
    size_t bytes = (size_t)(p->dims[0] * p->dims[1]) * sizeof(float);
    for (uint32_t l = 1; l < g->shape.n_layers; l++)
        if (memcmp(gate_layer(g, 0) + p->at, gate_layer(g, l) + p->at, bytes) !=
            0)
            return false;
    return true;
}

/* A gate that large is saturated anyway. */
static float clamped(float x)
{
    const float most = (float)GATE_PARAM_MAX;
    return x > most ? most : x < -most ? -most : x;
}

/* What gate_save() hands to safetensors_write(). */
struct list {
    struct safetensors_tensor *tensor;
    char (*name)[NAME_BYTES];
    float *all;     /* parameters, clamped */
    uint16_t *half; /* the same, or NULL for float32 */
    size_t n;
};

static void put_part(struct list *to, const struct gate *g, uint32_t layer,
                     const struct part *p)
{
    size_t at = (size_t)layer * g->parts.n + p->at;
    struct safetensors_tensor *t = &to->tensor[to->n];
    part_name(to->name[to->n], layer, p->suffix);
    *t = (struct safetensors_tensor){.name = to->name[to->n],
                                     .type = DTYPE_F32,
                                     .n_dims = p->n_dims,
                                     .dims = {p->dims[0], p->dims[1], 1, 1},
                                     .data = (const uint8_t *)(to->all + at),
                                     .bytes = p->dims[0] * p->dims[1] *
                                              sizeof(float)};
    if (to->half != NULL) {
        t->type = DTYPE_F16;
        t->data = (const uint8_t *)(to->half + at);
        t->bytes /= sizeof(float) / sizeof(uint16_t);
    }
    to->n++;
}

static void put_parts(struct list *to, const struct gate *g)
{
    struct part part[PARTS_MAX];
    int n = list_parts(part, &g->shape);
    for (int i = 0; i < n; i++) {
        bool once = part[i].is_shared && is_equal_in_all(g, &part[i]);
        uint32_t copies = once ? 1 : g->shape.n_layers;
        for (uint32_t l = 0; l < copies; l++)
            put_part(to, g, l, &part[i]);
    }
}

static bool list_new(struct list *list, const struct gate *g, bool as_f16)
{
    size_t most = (size_t)g->shape.n_layers * PARTS_MAX, n = gate_n_params(g);
    *list = (struct list){.tensor = calloc(most, sizeof(*list->tensor)),
                          .name = calloc(most, sizeof(*list->name)),
                          .all = calloc(n, sizeof(*list->all))};
    if (as_f16)
        list->half = calloc(n, sizeof(*list->half));
    return list->tensor != NULL && list->name != NULL && list->all != NULL &&
           (!as_f16 || list->half != NULL);
}

static void list_free(struct list *list)
{
    free(list->half);
    free(list->all);
    free(list->name);
    free(list->tensor);
}

enum err gate_save(const struct gate *g, const char *path, bool as_f16,
                   const struct safetensors_string *meta, size_t n_meta,
                   struct errmsg *m)
{
    struct list list;
    enum err rc = ERR_NOMEM;
    if (!list_new(&list, g, as_f16)) {
        err_set(m, rc, "no memory to write %s", path);
        goto out;
    }
    for (size_t i = 0; i < gate_n_params(g); i++)
        list.all[i] = clamped(g->p[i]);
    for (size_t i = 0; as_f16 && i < gate_n_params(g); i++)
        list.half[i] = quant_f32_to_f16(list.all[i]);
    put_parts(&list, g);
    rc = safetensors_write(path, meta, n_meta, list.tensor, list.n, m);
out:
    list_free(&list);
    return rc;
}
