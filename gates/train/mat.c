#include "gates/train/mat.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

/* Rows and columns of the result of one task, widest first: sgemm brings both
 * operands into its own order anew for every call, which costs less the larger
 * a block is. The first that leaves enough tasks to share out is taken. */
static const struct block {
    size_t rows, cols;
} block_sizes[] = {{512, 192}, {256, 192}, {256, 96}};

enum {
    BLOCK_SIZES = sizeof(block_sizes) / sizeof(block_sizes[0]),
    ENOUGH_TASKS = 8
};

static const char library_name[] = "libopenblas.so.0";

struct mat {
    void *library;
    __typeof__(cblas_sgemm) *gemm;
    struct workers *k;
};

/* ISO C has no cast from an object pointer to a function; POSIX promises that
 * both have the same form. */
static int find_function(void *library, const char *name, void *out)
{
    void *p = dlsym(library, name);
    memcpy(out, &p, sizeof(p));
    return p != NULL;
}

enum err mat_new(struct mat **out, struct workers *k, struct errmsg *m)
{
    __typeof__(openblas_set_num_threads) *set_threads = NULL;
    struct mat *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return err_set(m, ERR_NOMEM, "no memory for matrix products");
    t->k = k;
    t->library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (t->library == NULL ||
        !find_function(t->library, "cblas_sgemm", &t->gemm) ||
        !find_function(t->library, "openblas_set_num_threads", &set_threads)) {
        mat_free(t);
        return err_set(m, ERR_NOTFOUND,
                       "training needs OpenBLAS (%s): install the package "
                       "libopenblas0",
                       library_name);
    }
    set_threads(1);
    *out = t;
    return OK;
}

void mat_free(struct mat *t)
{
    /* The library stays loaded: its threads may still be running. */
    free(t);
}

struct workers *mat_workers(const struct mat *t)
{
    return t->k;
}

void mat_abt(const struct mat *t, const struct mat_view *c,
             const struct mat_view *a, const struct mat_view *b, float alpha,
             float beta)
{
    t->gemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)c->rows, (int)c->cols,
            (int)a->cols, alpha, a->p, (int)a->ld, b->p, (int)b->ld, beta, c->p,
            (int)c->ld);
}

void mat_ab(const struct mat *t, const struct mat_view *c,
            const struct mat_view *a, const struct mat_view *b, float alpha,
            float beta)
{
    t->gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)c->rows,
            (int)c->cols, (int)a->cols, alpha, a->p, (int)a->ld, b->p,
            (int)b->ld, beta, c->p, (int)c->ld);
}

void mat_atb(const struct mat *t, const struct mat_view *c,
             const struct mat_view *a, const struct mat_view *b, float alpha,
             float beta)
{
    t->gemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)c->rows, (int)c->cols,
            (int)a->rows, alpha, a->p, (int)a->ld, b->p, (int)b->ld, beta, c->p,
            (int)c->ld);
}

/* One product, cut into blocks of the result. */
struct product {
    const struct mat *t;
    enum { XWT, YW, YTX } kind;
    float *out;
    const float *a, *b;
    size_t out_rows, out_cols; /* of the result */
    size_t inner;
    struct block block;
    int add;
};

static struct mat_view view(const float *p, size_t rows, size_t cols, size_t ld)
{
    return (struct mat_view){(float *)(uintptr_t)p, rows, cols, ld};
}

static size_t blocks(size_t n, size_t block)
{
    return (n + block - 1) / block;
}

static void product_task(void *ctx, int task, int thread)
{
    (void)thread;
    const struct product *m = ctx;
    size_t rows = m->block.rows, cols = m->block.cols;
    size_t across = blocks(m->out_cols, cols);
    size_t r = (size_t)task / across * rows;
    size_t q = (size_t)task % across * cols;
    size_t nr = m->out_rows - r < rows ? m->out_rows - r : rows;
    size_t nc = m->out_cols - q < cols ? m->out_cols - q : cols;
    struct mat_view c = view(m->out + r * m->out_cols + q, nr, nc, m->out_cols);
    float beta = m->add ? 1.0f : 0.0f;
    struct mat_view a, b;
    switch (m->kind) {
    case XWT: /* a[rows][inner], b[cols][inner] */
        a = view(m->a + r * m->inner, nr, m->inner, m->inner);
        b = view(m->b + q * m->inner, nc, m->inner, m->inner);
        mat_abt(m->t, &c, &a, &b, 1.0f, beta);
        return;
    case YW: /* a[rows][inner], b[inner][cols] */
        a = view(m->a + r * m->inner, nr, m->inner, m->inner);
        b = view(m->b + q, m->inner, nc, m->out_cols);
        mat_ab(m->t, &c, &a, &b, 1.0f, beta);
        return;
    case YTX: /* a[inner][rows], b[inner][cols] */
        a = view(m->a + r, m->inner, nr, m->out_rows);
        b = view(m->b + q, m->inner, nc, m->out_cols);
        mat_atb(m->t, &c, &a, &b, 1.0f, beta);
        return;
    }
}

static size_t n_tasks(const struct product *m, const struct block *b)
{
    return blocks(m->out_rows, b->rows) * blocks(m->out_cols, b->cols);
}

static void run(struct product *m)
{
    size_t i = 0;
    while (i + 1 < BLOCK_SIZES && n_tasks(m, &block_sizes[i]) < ENOUGH_TASKS)
        i++;
    m->block = block_sizes[i];
    workers_run(m->t->k, (int)n_tasks(m, &m->block), product_task, m);
}

void mat_xwt(const struct mat *t, float *y, const float *x, const float *w,
             struct mat_size s, int add)
{
    struct product m = {t, XWT, y, x, w, s.n, s.rows, s.cols, {0}, add};
    run(&m);
}

void mat_yw(const struct mat *t, float *dx, const float *dy, const float *w,
            struct mat_size s, int add)
{
    struct product m = {t, YW, dx, dy, w, s.n, s.cols, s.rows, {0}, add};
    run(&m);
}

void mat_ytx(const struct mat *t, float *dw, const float *dy, const float *x,
             struct mat_size s)
{
    struct product m = {t, YTX, dw, dy, x, s.rows, s.cols, s.n, {0}, 1};
    run(&m);
}
