/* Loss and gradient of random gates on a small model, for
 * check_gate_gradients.py.
 *
 *     dump_gate_gradient MODEL.gguf OUT.safetensors WIDTH N_TOKENS MEMORY SEED
 *
 * Tensors: gates and grad (laid out as in gates/gate.h), tokens (as floats).
 * Metadata: n_layers, n_embd, n_kv_heads, width, memory, kl, ntp, cap, alive.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/safetensors.h"
#include "gates/train/trainer.h"
#include "runtime/gguf/gguf.h"
#include "runtime/model/model.h"

enum { META = 9, NUMBER_BYTES = 32 };

struct dump {
    struct gguf *gguf;
    struct workers *workers;
    struct mat *mat;
    struct model *model;
    struct frozen *frozen;
    struct gate *gate;
    struct trainer *trainer;
};

static float normal(struct rng *r)
{
    double u = rng_double(r) + 1e-12, v = rng_double(r);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static enum err load(struct dump *d, const char *path, uint32_t width,
                     struct errmsg *m)
{
    enum err rc = workers_new(&d->workers, 2, m);
    if (rc == OK)
        rc = mat_new(&d->mat, d->workers, m);
    if (rc == OK)
        rc = gguf_open(&d->gguf, path, m);
    struct model_options o = {.ops = &ops_reference,
                              .workers = d->workers,
                              .max_rows = 1,
                              .max_runs = 1};
    if (rc == OK)
        rc = model_load(&d->model, d->gguf, &o, m);
    if (rc == OK)
        rc = frozen_from_model(&d->frozen, d->model, d->workers, m);
    if (rc != OK)
        return rc;
    const struct model_info *i = model_info(d->model);
    struct gate_shape s = {i->n_layers, i->n_embd, i->n_kv_heads, width,
                           GATE_RG10};
    return gate_new(&d->gate, &s, m);
}

static void put(struct safetensors_string *meta, char text[NUMBER_BYTES],
                const char *key, double value)
{
    snprintf(text, NUMBER_BYTES, "%.17g", value);
    *meta = (struct safetensors_string){key, text};
}

static struct safetensors_tensor tensor(const char *name, const float *p,
                                        size_t n)
{
    return (struct safetensors_tensor){.name = name,
                                       .type = DTYPE_F32,
                                       .n_dims = 1,
                                       .dims = {n, 1, 1, 1},
                                       .data = (const uint8_t *)p,
                                       .bytes = n * sizeof(float)};
}

static enum err write_all(struct dump *d, const char *path, double memory,
                          uint32_t n, uint64_t seed)
{
    struct gate *g = d->gate;
    const struct gate_shape *s = &g->shape;
    size_t n_params = gate_n_params(g);
    struct trainer_options o = {.max_tokens = n,
                                .entries_per_head = memory,
                                .capacity_weight = 1.0,
                                .ntp_weight = 1.0,
                                .keep_bytes = 1 << 24};
    struct loss_values v;
    struct rng r;
    struct errmsg m;
    int32_t *tokens = calloc(n, sizeof(*tokens));
    float *shown = calloc(n, sizeof(*shown));
    float *grad = calloc(n_params, sizeof(*grad));
    if (!tokens || !shown || !grad)
        return ERR_NOMEM;
    rng_seed(&r, seed);
    for (size_t i = 0; i < n_params; i++)
        g->p[i] = 0.2f * normal(&r);
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (uint32_t h = 0; h < s->n_kv_heads; h++)
            gate_layer(g, l)[g->parts.c3 + h] = 2.0f + 0.3f * normal(&r);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)rng_below(&r, model_info(d->model)->n_vocab);
        shown[i] = (float)tokens[i];
    }
    enum err rc = trainer_new(&d->trainer, d->frozen, g, &o, d->mat, &m);
    if (rc != OK)
        return rc;
    struct trainer_sequence x = {.tokens = tokens, .n_tokens = n};
    trainer_gradient(d->trainer, &x, grad, &v);
    struct safetensors_string meta[META];
    char text[META][NUMBER_BYTES];
    const struct {
        const char *key;
        double value;
    } all[META] = {{"n_layers", s->n_layers},
                   {"n_embd", s->n_embd},
                   {"n_kv_heads", s->n_kv_heads},
                   {"width", s->width},
                   {"memory", memory},
                   {"kl", v.kl},
                   {"ntp", v.ntp},
                   {"cap", v.cap},
                   {"alive", v.alive}};
    for (int i = 0; i < META; i++)
        put(&meta[i], text[i], all[i].key, all[i].value);
    const struct safetensors_tensor t[] = {tensor("gates", g->p, n_params),
                                           tensor("grad", grad, n_params),
                                           tensor("tokens", shown, n)};
    rc = safetensors_write(path, meta, META, t, 3, &m);
    free(tokens);
    free(shown);
    free(grad);
    return rc;
}

int main(int argc, char **argv)
{
    struct dump d = {0};
    struct errmsg m = {"out of memory"};
    if (argc != 7) {
        fprintf(stderr, "usage: %s MODEL OUT WIDTH N_TOKENS MEMORY SEED\n",
                argv[0]);
        return 2;
    }
    enum err rc = load(&d, argv[1], (uint32_t)atoi(argv[3]), &m);
    if (rc == OK)
        rc = write_all(&d, argv[2], atof(argv[5]), (uint32_t)atoi(argv[4]),
                       (uint64_t)atoi(argv[6]));
    if (rc != OK)
        fprintf(stderr, "%s\n", m.text);
    trainer_free(d.trainer);
    gate_free(d.gate);
    frozen_free(d.frozen);
    model_free(d.model);
    gguf_close(d.gguf);
    mat_free(d.mat);
    workers_free(d.workers);
    return rc == OK ? 0 : 1;
}
