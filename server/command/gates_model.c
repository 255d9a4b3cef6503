#include <string.h>

#include "runtime/kernels/ops.h"
#include "server/command/gates_internal.h"

/* Loaded with the kernels that need no packed weights: only its checks and
 * its tensors are used. */
static enum err load_model(struct gates_model *g, struct errmsg *m)
{
    struct model_options o = {.ops = &ops_reference,
                              .workers = g->file.workers,
                              .max_rows = 1,
                              .max_runs = 1};
    enum err rc = model_load(&g->model, g->file.gguf, &o, m);
    if (rc == OK)
        g->info = *model_info(g->model);
    return rc;
}

enum err gates_model_load(struct gates_model *g, struct errmsg *m)
{
    enum err rc = mat_new(&g->mat, g->file.workers, m);
    if (rc == OK)
        rc = frozen_from_model(&g->frozen, g->model, g->file.workers, m);
    if (rc == OK) {
        model_free(g->model);
        g->model = NULL;
    }
    return rc;
}

static enum err read_fingerprint(struct gates_model *g, struct errmsg *m)
{
    uint8_t digest[HASH_BYTES];
    enum err rc = gguf_fingerprint(g->file.gguf, digest, m);
    if (rc == OK)
        hash_hex(g->fingerprint, digest, sizeof(digest));
    return rc;
}

enum err gates_model_open(struct gates_model *out, const char *path,
                          int64_t n_threads, struct errmsg *m)
{
    struct gates_model g = {0};
    enum err rc = model_file_open(&g.file, path, n_threads, m);
    if (rc == OK)
        rc = read_fingerprint(&g, m);
    if (rc == OK)
        rc = load_model(&g, m);
    if (rc != OK) {
        gates_model_close(&g);
        return rc;
    }
    *out = g;
    return OK;
}

void gates_model_close(struct gates_model *g)
{
    frozen_free(g->frozen);
    mat_free(g->mat);
    model_free(g->model);
    model_file_close(&g->file);
    *g = (struct gates_model){0};
}

struct gate_shape gates_model_shape(const struct gates_model *g)
{
    return (struct gate_shape){.n_layers = g->info.n_layers,
                               .n_embd = g->info.n_embd,
                               .n_kv_heads = g->info.n_kv_heads};
}
