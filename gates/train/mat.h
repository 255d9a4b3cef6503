/* mat.h - matrix products of the trainer.
 *
 * Products are OpenBLAS's single-threaded sgemm on blocks whose borders
 * depend on the shapes alone, handed to the compute pool: results are the
 * same for any number of threads. All matrices are row-major float32 without
 * gaps between rows.
 *
 * The library is opened at run time, by the trainer alone: it starts threads
 * as soon as it is loaded, which the server must not have (signals meant for
 * its own loop would reach them).
 *
 * Threads: one caller at a time; not from inside a task.
 */
#ifndef GATES_TRAIN_MAT_H
#define GATES_TRAIN_MAT_H

#include <stddef.h>

#include "base/workers.h"

struct mat; /* the library and the pool */

/* Loads OpenBLAS, capped at one thread of its own. ERR_NOTFOUND with the
 * name of the package when it is not installed. Borrows the pool. On OK the
 * caller ends *out with mat_free(). */
MUST_CHECK enum err mat_new(struct mat **out, struct workers *k,
                            struct errmsg *m);
void mat_free(struct mat *t); /* NULL is allowed */
struct workers *mat_workers(const struct mat *t);

struct mat_size {
    size_t n, rows, cols;
};

/* y[n][rows] = x[n][cols] . w[rows][cols]^T, plus y when add. */
void mat_xwt(const struct mat *t, float *y, const float *x, const float *w,
             struct mat_size s, int add);

/* dx[n][cols] = dy[n][rows] . w[rows][cols], plus dx when add. */
void mat_yw(const struct mat *t, float *dx, const float *dy, const float *w,
            struct mat_size s, int add);

/* dw[rows][cols] += dy[n][rows]^T . x[n][cols]. */
void mat_ytx(const struct mat *t, float *dw, const float *dy, const float *x,
             struct mat_size s);

/* The same three products on one thread, for use inside a task. ld_* are the
 * floats between rows; alpha scales the product. */
struct mat_view {
    float *p;
    size_t rows, cols, ld;
};
/* c = alpha * a . b^T + beta * c */
void mat_abt(const struct mat *t, const struct mat_view *c,
             const struct mat_view *a, const struct mat_view *b, float alpha,
             float beta);
/* c = alpha * a . b + beta * c */
void mat_ab(const struct mat *t, const struct mat_view *c,
            const struct mat_view *a, const struct mat_view *b, float alpha,
            float beta);
/* c = alpha * a^T . b + beta * c */
void mat_atb(const struct mat *t, const struct mat_view *c,
             const struct mat_view *a, const struct mat_view *b, float alpha,
             float beta);

#endif
