/* model_internal.h - what the files behind model.h share.
 *
 * config.c   hyperparameters from the metadata, and what is refused
 * family.c   what differs between families
 * load.c     tensors into weights; the life of a model
 * memory.c   the two big mappings: packed weights, and scratch
 * step.c     one forward pass; block by block
 * attention.c  keys and values into pages, attention over ragged lists
 * ffn.c      the feed-forward half of a block
 * gates.c    the retention gates beside the blocks
 * gates_later.c  gates of several steps together, after them
 * reposition.c  other RoPE positions for the keys of a table
 * probe_step.c  what the probes of a step's sequences see
 *
 * Names of dimensions: E n_embd, Q n_heads * head_dim, KV n_kv_heads *
 * head_dim, F n_ff, V n_vocab.
 */
#ifndef RUNTIME_MODEL_MODEL_INTERNAL_H
#define RUNTIME_MODEL_MODEL_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "gates/gate_eval.h"
#include "runtime/model/model.h"
#include "runtime/model/weights.h"

/* NULL when we do not know the architecture. */
const struct family *model_family(const char *arch);
/* The names of all we know, "llama, qwen2"; for messages. */
const char *model_family_names(void);

/* Turns by fewer positions than this are kept ready. */
enum { MODEL_TURNS = 64 };

struct config {
    const struct family *family;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t n_embd, n_ff;
    uint32_t context_length;
    float eps;         /* of every RMSNorm */
    double rope_base;  /* angle of pair i: pos * rope_base^(-2 i / head_dim) */
    double rope_scale; /* positions are divided by it (linear scaling) */
};

/* Reads and checks the metadata. info gets arch and name. */
MUST_CHECK enum err model_read_config(struct config *c, struct model_info *info,
                                      const struct gguf *g, struct errmsg *m);

/* Step memory, all inside one mapping. R is max_rows. */
struct scratch {
    float *x;        /* [R][E] the residual stream */
    float *h;        /* [R][E] its norm: what the next matrices read */
    float *y;        /* [R][E] output of a half block, not yet added to x */
    float *qkv;      /* [R][Q + 2 KV] */
    float *att;      /* [R][Q] */
    float *norm;     /* [R][n_heads][2] what attention divided by */
    float *gate;     /* [R][F] */
    float *up;       /* [R][F] */
    float *rope;     /* [R][head_dim] cos, then sin, of the row's position */
    void *packed;    /* the packed form of h, att or gate */
    struct row *row; /* [R] */
    struct attend_task *task; /* [max_tasks] */
    struct split *split;      /* [max_splits] */
    float *state;             /* [max_states][group][state floats] */
    /* [MODEL_TURNS][head_dim]: cos, then sin, of 0, 1, 2 ... positions. */
    double *turn;
    /* [n_threads][thread_bytes]: the unit pointers of one list, and at
     * units_bytes the scratch of the attention kernel. Between steps it is
     * that of re-positioning, see reposition.c. */
    uint8_t *thread;
    uint64_t thread_bytes, units_bytes;
};

enum {
    /* Rows of a step whose gates may wait. With more the weights are read for
     * several rows anyway. */
    MODEL_DEFER_STEP = 4,
    MODEL_DEFER_MAX = 16 /* rows that wait in all */
};

/* Rows whose gates wait, by layer. */
struct model_deferred {
    uint32_t n;
    float *x;   /* [n_layers][MODEL_DEFER_MAX][E] what the gates read */
    float **to; /* [n_layers][MODEL_DEFER_MAX][n_kv_heads] their log_beta */
    /* [n_threads][work_floats]: hidden rows and results of one layer. */
    float *work;
    uint64_t work_floats;
};

/* The gates and what a step writes for them. All zero: there are none. */
struct model_gates {
    struct gate_eval eval;
    float *h1, *h2;  /* [R][width] hidden rows; no h2 in kind rg */
    float *log_beta; /* [R][n_kv_heads] */
    struct model_deferred later;
    void *map; /* weights and scratch */
    uint64_t weight_bytes, scratch_bytes;
};

/* Where a row of the batch belongs. */
struct row {
    uint32_t run; /* index of its run */
    uint32_t i;   /* its number in the run */
    uint32_t pos; /* RoPE position */
};

/* A piece of one layer's attention: consecutive rows of one run against the
 * list of one KV head; or one row against one segment of it. */
struct attend_task {
    uint32_t run, head;
    uint32_t row0, n_rows; /* rows of the batch */
    int32_t segment;       /* -1: the whole list */
    uint32_t state;        /* where the segment's results go */
};

/* A row and head whose list was split: its results wait to be joined. */
struct split {
    uint32_t run, head, row;
    uint32_t state, n_segments;
};

struct model {
    struct config cfg;
    struct model_info info;
    struct model_options opt;
    const struct ops *ops;     /* = opt.ops */
    struct arena vectors;      /* norms and biases, layers */
    struct layer *layer;       /* [n_layers] */
    struct weight embd;        /* [V][E], rows are read from the file */
    struct weight head;        /* [V][E], the same tensor when tied */
    const float *out_norm;     /* [E] */
    const float *rope_factors; /* [head_dim / 2], or NULL */
    double *rope_freq;         /* [head_dim / 2] radians a position */
    float attn_scale;          /* 1 / sqrt(head_dim) */
    size_t state_floats;       /* ops->attend_state_floats(head_dim) */
    struct scratch s;
    struct model_gates gates;
    uint64_t max_tasks, max_states, max_splits;
    uint32_t max_units; /* units of the longest list */
    void *packed_map, *scratch_map;
    uint64_t packed_map_bytes, scratch_map_bytes;
};

/* An anonymous mapping of zeros whose start is 2 MiB aligned and which asks
 * for huge pages; NULL when refused. Returned to the host by model_unmap. */
void *model_map(uint64_t bytes);
void model_unmap(void *at, uint64_t bytes);

/* Packs every matrix on the worker pool and lets go of the file's pages. */
MUST_CHECK enum err model_pack_weights(struct model *m, const struct gguf *g,
                                       struct errmsg *e);
/* Lays out the scratch. */
MUST_CHECK enum err model_make_scratch(struct model *m, struct errmsg *e);

/* Bytes of scratch that a thread needs to re-position lists of max_units. */
uint64_t model_reposition_bytes(uint32_t max_units);
/* out: cos, then sin, of the angles of n positions. [head_dim] */
void model_turn(const struct model *m, int64_t n, double *out);

/* Calls fn for each matrix that a step multiplies with. */
void model_each_weight(struct model *m, void (*fn)(struct weight *w, void *ctx),
                       void *ctx);

/* One piece of a step, as the files of it see it. */
struct step {
    struct model *m;
    const struct model_batch *batch;
    const struct layer *layer;
    uint32_t i_layer, n_rows;
    uint32_t n_tasks, n_splits; /* of this layer's attention */
    bool has_gates;             /* they run in this step */
    bool defers_gates;          /* they run after it */
};

/* Where the keys and values of a row of the batch go. */
struct entry {
    const struct pool *pool;
    unit_id unit;
    uint32_t slot; /* of the unit */
};

/* In this layer, for one KV head. */
static inline struct entry model_entry(const struct step *s, uint32_t row,
                                       uint32_t head)
{
    const struct row *r = &s->m->s.row[row];
    const struct model_run *run = &s->batch->runs[r->run];
    const struct kv_list *l = table_list(run->table, s->i_layer, head);
    uint32_t i = l->len - run->n_rows + r->i;
    return (struct entry){run->table->pool, l->unit[i / KV_UNIT], i % KV_UNIT};
}

/* Runs fn over the batch's rows in tiles of OPS_ACT_TILE, in parallel where
 * there is more than one tile. fn gets the row range. */
typedef void (*tile_fn)(struct step *s, uint32_t row0, uint32_t row1);
void model_each_tile(struct step *s, uint32_t n_rows, tile_fn fn);

/* Activations in scratch, with the shared packed form. */
struct acts model_acts(const struct model *m, const float *x, uint32_t n,
                       uint32_t cols);

/* s->h = rmsnorm(s->x) * norm, and packs it. */
void model_norm_and_pack(struct step *s, const float *norm, uint32_t row0,
                         uint32_t row1);
/* s->x += s->y */
void model_add_residual(struct step *s, uint32_t row0, uint32_t row1);

/* The n matrices w[i] times the same activations, side by side: rows of w[i]
 * go to y[i], whose rows are ldy[i] floats apart. One parallel loop. */
struct product {
    const struct weight *w;
    float *y;
    int64_t ldy;
};
void model_multiply(struct model *m, const struct acts *a,
                    const struct product *p, int n);

/* The gates of this layer, in the order of a step; where they do not run in it
 * (has_gates) all of them do nothing. W1 as one more product of s->h (returns
 * how many products: 1 or 0); the first hidden rows; W2 in tasks that any
 * thread may run; the second hidden rows, W3, and log_beta into the metadata.
 */
int model_gates_product(const struct step *s, struct product *out);
void model_gates_activate(const struct step *s, uint32_t row0, uint32_t row1);
uint32_t model_gates_n_tasks(const struct step *s);
void model_gates_task(const struct step *s, uint32_t task);
void model_gates_store(const struct step *s, uint32_t row0, uint32_t row1);
/* Back to a model without gates. */
void model_gates_drop(struct model *m);

/* Whether and when gates run is decided before a step. Gates that come after
 * it need the rows of each layer, s->h, and get them all by the step's end. */
void model_gates_begin(struct step *s);
void model_gates_keep(const struct step *s);
void model_gates_end(const struct step *s);

/* What the probes see, when there are any: before a step, after the attention
 * of each layer (s->qkv, s->norm, the stored keys), after a step. */
void model_probes_begin(const struct model_batch *batch);
void model_probes_layer(const struct step *s);
void model_probes_end(const struct model_batch *batch);

/* From s->h (packed) to s->y, both inside scratch: attention with its output
 * projection; the feed-forward network. */
void model_attention(struct step *s);
void model_ffn(struct step *s);

#endif
