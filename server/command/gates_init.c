#include "gates/gate_file.h"
#include "gates/train/checkpoint.h"
#include "server/command/gates_internal.h"

/* Gates of one file of --init, which must be of this model and of the kind that
 * we train. On OK the caller owns *out. */
static enum err read_gates(struct gate **out, const struct gates_model *model,
                           const struct safetensors *f, uint32_t width,
                           struct errmsg *why)
{
    struct gate_shape shape = gates_model_shape(model);
    struct gate *g = NULL;
    enum err rc = gate_check_base(f, model->fingerprint, why);
    if (rc == OK)
        rc = checkpoint_is(f) ? checkpoint_gates(&g, f, &shape, why)
                              : gate_read(&g, f, &shape, why);
    if (rc == OK && g->shape.kind != GATE_RG10)
        rc = err_set(why, ERR_UNSUPPORTED,
                     "its gates are of type %s; rg10 can be trained",
                     gate_kind_name(g->shape.kind));
    if (rc == OK && width != 0 && width != g->shape.width)
        rc =
            err_set(why, ERR_CONFLICT, "its gates are %u wide, --width says %u",
                    g->shape.width, width);
    *out = rc == OK ? g : NULL;
    if (rc != OK)
        gate_free(g);
    return rc;
}

/* Adds g, which it takes, to what *sum holds. */
static enum err add_gates(struct gate **sum, struct gate *g, struct errmsg *why)
{
    enum err rc = OK;
    if (*sum == NULL) {
        *sum = g;
        return OK;
    }
    if (g->shape.width != (*sum)->shape.width)
        rc = err_set(why, ERR_CONFLICT,
                     "its gates are %u wide, those before it %u",
                     g->shape.width, (*sum)->shape.width);
    for (size_t i = 0; rc == OK && i < gate_n_params(g); i++)
        (*sum)->p[i] += g->p[i];
    gate_free(g);
    return rc;
}

static enum err add_file(struct gate **sum, struct gates_origin *o,
                         const struct gates_model *model,
                         const struct gates_init_input *in, const char *path,
                         struct errmsg *m)
{
    char sha256[HASH_HEX];
    struct safetensors *f = NULL;
    struct gate *g = NULL;
    struct errmsg why = {""};
    enum err rc = safetensors_open(&f, path, m);
    if (rc != OK)
        return rc;
    rc = read_gates(&g, model, f, in->width, &why);
    if (rc == OK)
        rc = add_gates(sum, g, &why);
    if (rc != OK)
        err_set(m, rc, "%s: %s", path, why.text);
    if (rc == OK)
        rc = hash_file(sha256, path, m);
    if (rc == OK)
        rc = gates_origin_add(o, f, sha256, in->texts, m);
    safetensors_close(f);
    return rc;
}

enum err gates_read_init(struct gate **out, struct gates_origin *o,
                         const struct gates_model *model,
                         const struct gates_init_input *in, struct errmsg *m)
{
    struct gate *g = NULL;
    enum err rc = OK;
    for (size_t i = 0; rc == OK && i < in->files->n; i++)
        rc = add_file(&g, o, model, in, in->files->item[i], m);
    if (rc != OK) {
        gate_free(g);
        return rc;
    }
    for (size_t i = 0; i < gate_n_params(g); i++)
        g->p[i] /= (float)in->files->n;
    *out = g;
    return OK;
}
