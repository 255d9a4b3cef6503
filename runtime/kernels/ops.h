/* ops.h - the operations a model step is made of, as one table.
 *
 * Every implementation (plain C reference, AVX2, AVX-512) fills the same table;
 * which one runs is chosen once, at start. The plain C one works on float32
 * activations and is the oracle of the others' tests.
 *
 * Promises every implementation keeps (docs/design: determinism):
 *  - An output value depends only on its own inputs: never on how many rows
 *    are in the batch, on the row range of the call, on threads, or on where
 *    units lie in memory. Sums run in one fixed order.
 *  - No libm in kernels: exp and 1/sqrt are our own or exactly rounded, so
 *    that hosts agree.
 *  - Nothing is allocated; scratch is the caller's.
 *
 * All functions run on one thread; the model splits work over the compute
 * pool by data. Pointers to floats need no alignment. Shapes: "rows" of a
 * weight are outputs, "cols" inputs; activations are [n][cols], row-major.
 *
 * Threads: tables are constant; functions may run on any threads at once on
 * disjoint outputs.
 */
#ifndef RUNTIME_KERNELS_OPS_H
#define RUNTIME_KERNELS_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/kv_layout.h"

enum {
    OPS_ROW_TILE = 16, /* weight row ranges start at multiples of this */
    OPS_ACT_TILE = 4,  /* activation row ranges start at multiples of this */
    OPS_HEAD_DIM_MAX = 256,
    OPS_GROUP_MAX = 32, /* query heads per KV head */
    OPS_QUERY_MAX = 16  /* query rows of one attend call */
};

/* One matrix. cols is a multiple of the type's block size. */
struct weight {
    enum dtype type;
    int64_t rows, cols;
    const void *raw; /* row-major blocks as in the file; borrowed */
    void *packed;    /* ops->weight_bytes() bytes, 64-byte aligned, owned by
                        the model; NULL when weight_bytes() is 0 */
};

/* Activations of a batch: the float rows, and beside them the form that
 * matmul reads. */
struct acts {
    const float *x; /* [n][cols] */
    void *packed;   /* act_bytes(n, cols) bytes, 64-byte aligned */
    int64_t n, cols;
};

/* Attention of one KV head over one list, for up to OPS_QUERY_MAX consecutive
 * query rows of one sequence. Query row i sees the first n_visible + i
 * entries of the list (its own entry included; n_visible >= 1). */
struct attend_args {
    const struct kv_layout *layout;
    const uint8_t *const *unit; /* data block of each unit, in list order */
    int64_t n_visible;
    int n_query;
    int group;        /* query heads that share this KV head */
    const float *q;   /* q[i * q_stride + g * head_dim + d], not scaled */
    int64_t q_stride; /* floats between query rows */
    float *out;       /* same shape as q */
    int64_t out_stride;
    float scale; /* 1 / sqrt(head_dim), or what the model says */
    /* NULL, or where attend and attend_join say what they divided by:
     * norm[i * norm_stride + 2 * g] is the largest logit of the row, and
     * behind it stands the sum of exp(logit - largest). */
    float *norm;
    int64_t norm_stride;
};

struct ops {
    const char *name; /* "reference", "avx2", "avx512" */

    /* Bytes of the packed form of w (rows padded to OPS_ROW_TILE); 0 when
     * matmul reads w->raw. Weights of floating point (F32, F16, BF16) have
     * none in any table, and are multiplied with a->x as it is: a->packed may
     * then be NULL. */
    uint64_t (*weight_bytes)(const struct weight *w);
    /* Packs rows [row0, row1) of w->raw into w->packed. row0 is a multiple of
     * OPS_ROW_TILE; row1 too, or the end. */
    void (*weight_pack)(const struct weight *w, int64_t row0, int64_t row1);

    uint64_t (*act_bytes)(int64_t n, int64_t cols);
    /* Fills a->packed from a->x for activation rows [row0, row1); row0 is a
     * multiple of OPS_ACT_TILE; row1 too, or the end. */
    void (*act_pack)(const struct acts *a, int64_t row0, int64_t row1);

    /* y[t * ldy + r] = sum over c of w[r][c] * x[t][c], for every activation
     * row t and weight rows r in [row0, row1). row0 is a multiple of
     * OPS_ROW_TILE; row1 too, or the end. Only those y are written. */
    void (*matmul)(const struct weight *w, const struct acts *a, int64_t row0,
                   int64_t row1, float *y, int64_t ldy);

    /* Row `row` of w as float32 (embedding lookup). */
    void (*get_row)(const struct weight *w, int64_t row, float *out);

    /* out[i] = x[i] / sqrt(mean(x^2) + eps) * w[i]; out may be x. */
    void (*rmsnorm)(float *out, const float *x, const float *w, int64_t n,
                    float eps);
    /* Rotates n_heads heads of head_dim floats in place by one position.
     * cos_sin: cos[n_rot / 2], then sin[n_rot / 2]; the first n_rot of each
     * head are rotated. interleaved: pairs are (2i, 2i+1), else
     * (i, i + n_rot / 2). */
    void (*rope)(float *x, int n_heads, int head_dim, int n_rot,
                 const float *cos_sin, bool interleaved);
    /* out[i] = silu(gate[i]) * up[i]; out may be gate or up. */
    void (*silu_mul)(float *out, const float *gate, const float *up, int64_t n);
    /* x[i] += y[i] */
    void (*add)(float *x, const float *y, int64_t n);

    /* Stores one key and value (head_dim floats each, key already rotated)
     * in slot `slot` of a unit, with bias `bias`. Values beyond the range of
     * f16 are clamped to it. Where k or v is NULL, the key or value that is
     * there stays as it is, bit for bit. */
    void (*kv_store)(const struct kv_layout *l, uint8_t *unit, uint32_t slot,
                     const float *k, const float *v, float bias);
    /* The stored key and value of a slot as float32; either may be NULL. */
    void (*kv_load)(const struct kv_layout *l, const uint8_t *unit,
                    uint32_t slot, float *k, float *v);

    /* Bytes of scratch that attend and attend_segment need. */
    uint64_t (*attend_scratch_bytes)(const struct attend_args *a);
    /* out = softmax(scale * q.k + bias) . v over the visible entries, segment
     * by segment in list order. */
    void (*attend)(const struct attend_args *a, void *scratch);

    /* The same in pieces, for one query row (n_query = 1), so that a long
     * list can be split over threads with the same bits as attend(): segment
     * s (entries s * KV_SEGMENT ...) gives `group` partial results of
     * attend_state_floats(head_dim) floats each, state[g * that]; join
     * folds n_segments of them, laid out [segment][group], in order. */
    int64_t (*attend_state_floats)(uint32_t head_dim);
    void (*attend_segment)(const struct attend_args *a, int64_t segment,
                           float *state, void *scratch);
    void (*attend_join)(const struct attend_args *a, const float *states,
                        int64_t n_segments);

    /* For those who watch attention: logit[(i * group + g) * stride + e] =
     * scale * q.k + bias for the first n_visible entries e, the same for all
     * query rows: whoever wants a row to see less masks it. `stride` is
     * n_visible rounded up to KV_UNIT at least; the logits behind n_visible
     * are anything. Scratch as for attend; out and norm are not used. */
    void (*attend_logits)(const struct attend_args *a, float *logit,
                          int64_t stride, void *scratch);
    /* x[i] = exp(x[i]) / sum of exp(x), where -infinity gives 0; all zeros
     * when there is nothing else. */
    void (*softmax)(float *x, int64_t n);
    /* sum[e] += exp(logit[e] - norm[0]) / norm[1]: what a row, of which attend
     * said this norm, gave to entries with these logits (-infinity: nothing).
     * Nothing is added where norm[1] is 0. */
    void (*add_weights)(const float *logit, const float *norm, int64_t n,
                        float *sum);
};

extern const struct ops ops_reference;

/* The AVX2 + FMA + F16C table, or NULL where CPU or OS lack them. */
const struct ops *ops_avx2(void);

/* The AVX-512 table (F, BW, DQ, VL and VNNI), or NULL likewise. It gives the
 * bits of the AVX2 table. */
const struct ops *ops_avx512(void);

/* The fastest table that runs here. It asks the CPU, which is slow in a virtual
 * machine: once, where something begins, not for every list. */
const struct ops *ops_best(void);

/* By name; NULL when unknown or not runnable here. */
const struct ops *ops_find(const char *name);

#endif
