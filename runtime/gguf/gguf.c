#include "runtime/gguf/gguf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/gguf/gguf_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "numbers are copied out of the file as they are");

enum {
    VERSION_MIN = 2,
    VERSION_MAX = 3,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_UNIT = 8,
    /* The fewest bytes that a pair and a tensor take in the file: lengths,
     * one byte of name, type numbers, one dimension, offset. */
    KV_BYTES_MIN = 8 + 1 + 4 + 1,
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8
};

const uint8_t *gguf_take(struct gguf_cursor *c, uint64_t bytes)
{
    if (bytes > c->n - c->at)
        return NULL;
    const uint8_t *p = c->data + c->at;
    c->at += (size_t)bytes;
    return p;
}

bool gguf_take_u32(struct gguf_cursor *c, uint32_t *out)
{
    const uint8_t *p = gguf_take(c, sizeof(*out));
    if (p != NULL)
        memcpy(out, p, sizeof(*out));
    return p != NULL;
}

bool gguf_take_u64(struct gguf_cursor *c, uint64_t *out)
{
    const uint8_t *p = gguf_take(c, sizeof(*out));
    if (p != NULL)
        memcpy(out, p, sizeof(*out));
    return p != NULL;
}

bool gguf_take_str(struct gguf_cursor *c, struct gguf_str *out)
{
    size_t start = c->at;
    uint64_t n = 0;
    *out = (struct gguf_str){"", 0};
    if (!gguf_take_u64(c, &n))
        return false;
    out->n = (size_t)n;
    const uint8_t *p = gguf_take(c, n);
    if (p == NULL) {
        c->at = start;
        return false;
    }
    out->s = (const char *)p;
    return true;
}

static int compare_str(const struct gguf_str *a, const struct gguf_str *b)
{
    int d = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    if (d != 0)
        return d;
    return (a->n > b->n) - (a->n < b->n);
}

static int compare_slots(const void *a, const void *b)
{
    const struct gguf_slot *x = a, *y = b;
    int d = compare_str(&x->name, &y->name);
    return d != 0 ? d : (x->i > y->i) - (x->i < y->i);
}

size_t gguf_sort_slots(struct gguf_slot *slot, size_t n)
{
    qsort(slot, n, sizeof(*slot), compare_slots);
    for (size_t k = 1; k < n; k++) {
        if (compare_str(&slot[k - 1].name, &slot[k].name) == 0)
            return slot[k].i;
    }
    return n;
}

const struct gguf_slot *gguf_find_slot(const struct gguf_slot *slot, size_t n,
                                       const char *name)
{
    struct gguf_str want = {name, strlen(name)};
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int d = compare_str(&slot[mid].name, &want);
        if (d == 0)
            return &slot[mid];
        if (d < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

static enum err check_magic(struct gguf_cursor *c, struct errmsg *m)
{
    if (c->n == 0)
        return err_set(m, ERR_INVAL, "the file is empty");
    const uint8_t *p = gguf_take(c, 4);
    if (p == NULL)
        return err_set(m, ERR_INVAL,
                       "not a GGUF file: %zu bytes are too few for one", c->n);
    if (memcmp(p, "GGUF", 4) != 0)
        return err_set(m, ERR_INVAL,
                       "not a GGUF file: it starts with the bytes "
                       "%02x %02x %02x %02x, not with 'GGUF'",
                       p[0], p[1], p[2], p[3]);
    return OK;
}

static enum err check_version(struct gguf *g, struct gguf_cursor *c,
                              struct errmsg *m)
{
    if (!gguf_take_u32(c, &g->version))
        return err_set(m, ERR_INVAL,
                       "the version passes the end of the file at %zu", c->n);
    /* A small number in the other byte order has its low half empty. */
    if (g->version != 0 && (g->version & 0xFFFF) == 0)
        return err_set(m, ERR_UNSUPPORTED,
                       "this is a big-endian GGUF file; only little-endian "
                       "ones can be read");
    if (g->version < VERSION_MIN || g->version > VERSION_MAX)
        return err_set(m, ERR_UNSUPPORTED,
                       "GGUF version %u cannot be read, only %d and %d",
                       g->version, VERSION_MIN, VERSION_MAX);
    return OK;
}

static enum err check_count(const struct gguf_cursor *c, const char *what,
                            uint64_t count, uint64_t limit, size_t bytes_min,
                            struct errmsg *m)
{
    if (count > limit)
        return err_set(m, ERR_INVAL, "%s %llu is above the limit of %llu", what,
                       (unsigned long long)count, (unsigned long long)limit);
    if (count > (c->n - c->at) / bytes_min)
        return err_set(m, ERR_INVAL,
                       "%s %llu does not fit into a file of %zu bytes", what,
                       (unsigned long long)count, c->n);
    return OK;
}

static enum err read_header(struct gguf *g, struct gguf_cursor *c,
                            struct errmsg *m)
{
    uint64_t n_tensors = 0, n_kv = 0;
    enum err rc = check_magic(c, m);
    if (rc == OK)
        rc = check_version(g, c, m);
    if (rc != OK)
        return rc;
    if (!gguf_take_u64(c, &n_tensors) || !gguf_take_u64(c, &n_kv))
        return err_set(m, ERR_INVAL,
                       "the header's tensor and key counts pass the end of "
                       "the file at %zu",
                       c->n);
    rc = check_count(c, "the tensor count", n_tensors, GGUF_TENSORS_MAX,
                     TENSOR_BYTES_MIN, m);
    if (rc == OK)
        rc =
            check_count(c, "the key count", n_kv, GGUF_KV_MAX, KV_BYTES_MIN, m);
    if (rc != OK)
        return rc;
    g->n_tensors = (size_t)n_tensors;
    g->n_kv = (size_t)n_kv;
    return OK;
}

static enum err read_alignment(struct gguf *g, struct errmsg *m)
{
    uint32_t a = ALIGNMENT_DEFAULT;
    enum err rc = gguf_u32(g, "general.alignment", &a, m);
    if (rc != OK && rc != ERR_NOTFOUND)
        return rc;
    if (a % ALIGNMENT_UNIT != 0 || a == 0 || (a & (a - 1)) != 0)
        return err_set(m, ERR_INVAL,
                       "key 'general.alignment': %u is not a power of two "
                       "from %d up",
                       a, ALIGNMENT_UNIT);
    g->alignment = a;
    return OK;
}

static enum err read_all(struct gguf *g, struct errmsg *m)
{
    struct gguf_cursor c = {.data = g->data, .n = g->n, .at = 0};
    enum err rc = read_header(g, &c, m);
    if (rc == OK)
        rc = gguf_read_kv(g, &c, m);
    if (rc == OK)
        rc = read_alignment(g, m);
    if (rc == OK)
        rc = gguf_read_tensors(g, &c, m);
    return rc;
}

static enum err gguf_new(struct gguf **out, const uint8_t *data, size_t n,
                         struct errmsg *m)
{
    *out = NULL;
    struct gguf *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return err_set(m, ERR_NOMEM, "no memory to read a GGUF file");
    arena_init(&g->index, GGUF_INDEX_BYTES_MAX);
    g->data = data;
    g->n = n;
    enum err rc = read_all(g, m);
    if (rc != OK) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return OK;
}

enum err gguf_parse(struct gguf **out, const uint8_t *data, size_t n,
                    struct errmsg *m)
{
    return gguf_new(out, data, n, m);
}

enum err gguf_open(struct gguf **out, const char *path, struct errmsg *m)
{
    struct file_map map = {0};
    struct errmsg why = {""};
    *out = NULL;
    enum err rc = file_map_open(&map, path, m);
    if (rc != OK)
        return rc;
    rc = gguf_new(out, map.data, map.size, &why);
    if (rc != OK) {
        file_map_close(&map);
        return err_set(m, rc, "%s: %s", path, why.text);
    }
    (*out)->map = map;
    return OK;
}

void gguf_close(struct gguf *g)
{
    if (g == NULL)
        return;
    arena_fini(&g->index);
    file_map_close(&g->map);
    free(g);
}

void gguf_drop_pages(const struct gguf *g, const void *data, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)data + bytes) / page * page;
    if (g->map.data != NULL && from < to)
        (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}
