#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/gguf/gguf_internal.h"

/* What the tensor list says, before the place of the data is known. */
struct entry {
    struct gguf_str name;
    uint64_t offset; /* from the start of the data part */
};

static enum err past_end(const struct gguf_cursor *c,
                         const struct gguf_str *name, const char *what,
                         struct errmsg *m)
{
    return err_set(m, ERR_INVAL,
                   "tensor '%.*s': its %s at offset %zu passes the end of "
                   "the file at %zu",
                   GGUF_SHOW(*name), what, c->at, c->n);
}

static enum err read_name(struct gguf_cursor *c, struct gguf_str *name,
                          size_t i, struct errmsg *m)
{
    size_t at = c->at;
    if (!gguf_take_str(c, name))
        return err_set(m, ERR_INVAL,
                       "tensor %zu: its name (offset %zu, length %zu) passes "
                       "the end of the file at %zu",
                       i, at, name->n, c->n);
    if (name->n == 0 || name->n > GGUF_NAME_MAX)
        return err_set(m, ERR_INVAL,
                       "tensor %zu: a name of %zu bytes is not allowed (1 to "
                       "%d)",
                       i, name->n, GGUF_NAME_MAX);
    if (memchr(name->s, 0, name->n) != NULL)
        return err_set(m, ERR_INVAL,
                       "tensor %zu '%.*s': the name has a zero byte", i,
                       GGUF_SHOW(*name));
    return OK;
}

static enum err read_dims(struct gguf_cursor *c, const struct gguf_str *name,
                          struct gguf_tensor *t, struct errmsg *m)
{
    if (!gguf_take_u32(c, &t->n_dims))
        return past_end(c, name, "dimension count", m);
    if (t->n_dims == 0 || t->n_dims > GGUF_DIMS_MAX)
        return err_set(m, ERR_INVAL,
                       "tensor '%.*s': %u dimensions are not allowed (1 to "
                       "%d)",
                       GGUF_SHOW(*name), t->n_dims, GGUF_DIMS_MAX);
    for (uint32_t d = 0; d < GGUF_DIMS_MAX; d++) {
        t->dims[d] = 1;
        if (d >= t->n_dims)
            continue;
        if (!gguf_take_u64(c, &t->dims[d]))
            return past_end(c, name, "dimensions", m);
        if (t->dims[d] == 0)
            return err_set(m, ERR_INVAL, "tensor '%.*s': dimension %u is 0",
                           GGUF_SHOW(*name), d);
    }
    return OK;
}

static enum err too_large(const struct gguf_str *name,
                          const struct gguf_tensor *t, struct errmsg *m)
{
    return err_set(m, ERR_INVAL,
                   "tensor '%.*s': the size of %llu x %llu x %llu x %llu "
                   "elements overflows 64 bits",
                   GGUF_SHOW(*name), (unsigned long long)t->dims[0],
                   (unsigned long long)t->dims[1],
                   (unsigned long long)t->dims[2],
                   (unsigned long long)t->dims[3]);
}

/* Checks the type and computes t->bytes. */
static enum err read_type(struct gguf_cursor *c, const struct gguf_str *name,
                          struct gguf_tensor *t, struct errmsg *m)
{
    uint32_t type = 0;
    if (!gguf_take_u32(c, &type))
        return past_end(c, name, "type", m);
    const struct dtype_info *info = dtype_info(type);
    if (info == NULL)
        return err_set(m, ERR_UNSUPPORTED,
                       "tensor '%.*s': type %s (%u) is not supported",
                       GGUF_SHOW(*name), dtype_name(type), type);
    t->type = (enum dtype)type;
    if (t->dims[0] % info->block_elems != 0)
        return err_set(m, ERR_INVAL,
                       "tensor '%.*s': a row of %llu elements is not a "
                       "multiple of %u, the block of %s",
                       GGUF_SHOW(*name), (unsigned long long)t->dims[0],
                       info->block_elems, info->name);
    t->bytes = t->dims[0] / info->block_elems;
    if (__builtin_mul_overflow(t->bytes, info->block_bytes, &t->bytes))
        return too_large(name, t, m);
    for (uint32_t d = 1; d < GGUF_DIMS_MAX; d++) {
        if (__builtin_mul_overflow(t->bytes, t->dims[d], &t->bytes))
            return too_large(name, t, m);
    }
    return OK;
}

static enum err read_entry(struct gguf *g, struct gguf_cursor *c, size_t i,
                           struct entry *e, struct errmsg *m)
{
    struct gguf_tensor *t = &g->tensor[i];
    enum err rc = read_name(c, &e->name, i, m);
    if (rc == OK)
        rc = read_dims(c, &e->name, t, m);
    if (rc == OK)
        rc = read_type(c, &e->name, t, m);
    if (rc != OK)
        return rc;
    if (!gguf_take_u64(c, &e->offset))
        return past_end(c, &e->name, "data offset", m);
    if (e->offset % g->alignment != 0)
        return err_set(m, ERR_INVAL,
                       "tensor '%.*s': its data offset %llu is not a multiple "
                       "of the alignment %llu",
                       GGUF_SHOW(e->name), (unsigned long long)e->offset,
                       (unsigned long long)g->alignment);
    return OK;
}

/* Turns offsets into pointers. data_at may lie behind the end of the file:
 * then no tensor fits. */
static enum err place_data(struct gguf *g, const struct entry *e,
                           uint64_t data_at, struct errmsg *m)
{
    uint64_t room = data_at < g->n ? g->n - data_at : 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        if (e[i].offset > room || t->bytes > room - e[i].offset)
            return err_set(m, ERR_INVAL,
                           "tensor '%.*s': offset %llu + %llu bytes, from %llu "
                           "on, passes the end of the file at %zu",
                           GGUF_SHOW(e[i].name),
                           (unsigned long long)e[i].offset,
                           (unsigned long long)t->bytes,
                           (unsigned long long)data_at, g->n);
        t->data = g->data + data_at + e[i].offset;
    }
    return OK;
}

static int compare_places(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x > y) - (x < y);
}

/* Tensors may not share bytes: else a small file could describe any amount of
 * weights, which we would then copy into a faster layout. */
static enum err check_overlap(const struct gguf *g,
                              const struct gguf_tensor **order,
                              struct errmsg *m)
{
    for (size_t i = 0; i < g->n_tensors; i++)
        order[i] = &g->tensor[i];
    qsort(order, g->n_tensors, sizeof(*order), compare_places);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = order[i - 1], *b = order[i];
        if ((uint64_t)(b->data - a->data) < a->bytes)
            return err_set(m, ERR_INVAL,
                           "tensor '%s': its data overlaps that of tensor "
                           "'%.100s'",
                           b->name, a->name);
    }
    return OK;
}

static enum err copy_names(struct gguf *g, const struct entry *e,
                           struct errmsg *m)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        g->tensor[i].name = arena_strndup(&g->index, e[i].name.s, e[i].name.n);
        if (g->tensor[i].name == NULL)
            return err_set(m, ERR_NOMEM, "no memory for %zu tensor names",
                           g->n_tensors);
        g->tensor_slot[i] = (struct gguf_slot){e[i].name, (uint32_t)i};
    }
    size_t twice = gguf_sort_slots(g->tensor_slot, g->n_tensors);
    if (twice != g->n_tensors)
        return err_set(m, ERR_INVAL, "tensor '%s' is there twice",
                       g->tensor[twice].name);
    return OK;
}

static enum err read_entries(struct gguf *g, struct gguf_cursor *c,
                             struct entry *e, const struct gguf_tensor **order,
                             struct errmsg *m)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        enum err rc = read_entry(g, c, i, &e[i], m);
        if (rc != OK)
            return rc;
    }
    uint64_t mask = g->alignment - 1;
    enum err rc = copy_names(g, e, m);
    if (rc == OK)
        rc = place_data(g, e, ((uint64_t)c->at + mask) & ~mask, m);
    if (rc == OK)
        rc = check_overlap(g, order, m);
    return rc;
}

enum err gguf_read_tensors(struct gguf *g, struct gguf_cursor *c,
                           struct errmsg *m)
{
    enum err rc = OK;
    if (g->n_tensors == 0)
        return OK;
    struct arena scratch;
    arena_init(&scratch, GGUF_SCRATCH_BYTES_MAX);
    struct entry *e = arena_array(&scratch, g->n_tensors, sizeof(*e));
    const struct gguf_tensor **order =
        arena_array(&scratch, g->n_tensors, sizeof(*order));
    g->tensor = arena_array(&g->index, g->n_tensors, sizeof(*g->tensor));
    g->tensor_slot =
        arena_array(&g->index, g->n_tensors, sizeof(*g->tensor_slot));
    if (e == NULL || order == NULL || g->tensor == NULL ||
        g->tensor_slot == NULL)
        rc = err_set(m, ERR_NOMEM, "no memory for %zu tensors", g->n_tensors);
    else
        rc = read_entries(g, c, e, order, m);
    arena_fini(&scratch);
    return rc;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    assert(i < g->n_tensors);
    return &g->tensor[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g,
                                           const char *name)
{
    const struct gguf_slot *s =
        gguf_find_slot(g->tensor_slot, g->n_tensors, name);
    return s != NULL ? &g->tensor[s->i] : NULL;
}
