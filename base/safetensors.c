#include "base/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"

enum { LENGTH_BYTES = 8, DATA_ALIGN = 8 };

static const char META[] = "__metadata__";

struct safetensors {
    struct file_map map; /* empty when the bytes are the caller's */
    cJSON *header;       /* owns names and metadata */
    struct safetensors_tensor *tensor; /* sorted by name */
    size_t n;
};

static const struct {
    const char *name;
    enum dtype type;
} types[] = {{"F32", DTYPE_F32}, {"F16", DTYPE_F16}, {"BF16", DTYPE_BF16}};

static enum err read_type(enum dtype *out, const cJSON *item, const char *name,
                          struct errmsg *m)
{
    const cJSON *type = json_get(item, "dtype");
    if (!cJSON_IsString(type))
        return err_set(m, ERR_INVAL, "tensor '%s': dtype is not a string",
                       name);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(type->valuestring, types[i].name) == 0) {
            *out = types[i].type;
            return OK;
        }
    return err_set(m, ERR_UNSUPPORTED,
                   "tensor '%s' has type %.32s; F32, F16 and BF16 are read",
                   name, type->valuestring);
}

static enum err read_shape(struct safetensors_tensor *t, const cJSON *item,
                           uint64_t *n_elems, struct errmsg *m)
{
    const cJSON *shape = json_get(item, "shape"), *dim;
    if (!cJSON_IsArray(shape))
        return err_set(m, ERR_INVAL, "tensor '%s': shape is not an array",
                       t->name);
    for (int i = 0; i < SAFETENSORS_DIMS_MAX; i++)
        t->dims[i] = 1;
    *n_elems = 1;
    cJSON_ArrayForEach(dim, shape)
    {
        int64_t v;
        if (t->n_dims == SAFETENSORS_DIMS_MAX)
            return err_set(m, ERR_UNSUPPORTED,
                           "tensor '%s' has more than %d dimensions", t->name,
                           SAFETENSORS_DIMS_MAX);
        if (json_int64(dim, &v) != OK || v < 0)
            return err_set(m, ERR_INVAL,
                           "tensor '%s': dimension %u is not a size", t->name,
                           t->n_dims);
        if (v != 0 && *n_elems > INT64_MAX / 4 / (uint64_t)v)
            return err_set(m, ERR_INVAL, "tensor '%s': its shape overflows",
                           t->name);
        *n_elems *= (uint64_t)v;
        t->dims[t->n_dims++] = (uint64_t)v;
    }
    return OK;
}

static enum err read_tensor(struct safetensors_tensor *t, const cJSON *item,
                            const uint8_t *data, size_t n, struct errmsg *m)
{
    uint64_t n_elems = 0;
    *t = (struct safetensors_tensor){.name = item->string};
    enum err rc = read_type(&t->type, item, t->name, m);
    if (rc == OK)
        rc = read_shape(t, item, &n_elems, m);
    if (rc != OK)
        return rc;
    const cJSON *at = json_get(item, "data_offsets");
    int64_t from, to;
    if (cJSON_GetArraySize(at) != 2 ||
        json_int64(cJSON_GetArrayItem(at, 0), &from) != OK ||
        json_int64(cJSON_GetArrayItem(at, 1), &to) != OK)
        return err_set(m, ERR_INVAL,
                       "tensor '%s': data_offsets are not two numbers",
                       t->name);
    if (from < 0 || to < from || (uint64_t)to > n)
        return err_set(m, ERR_INVAL,
                       "tensor '%s': its data, bytes %lld to %lld, is not "
                       "within the %zu bytes there are",
                       t->name, (long long)from, (long long)to, n);
    t->bytes = n_elems * dtype_info(t->type)->block_bytes;
    if (t->bytes != (uint64_t)(to - from))
        return err_set(m, ERR_INVAL,
                       "tensor '%s': its shape needs %llu bytes, its offsets "
                       "give %lld",
                       t->name, (unsigned long long)t->bytes,
                       (long long)(to - from));
    t->data = data + from;
    return OK;
}

static int by_name(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_place(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The format wants every byte of the data to belong to one tensor: bytes that
 * several share could ask for more memory than the file has. */
static enum err check_cover(struct safetensors *s, const uint8_t *data,
                            size_t n, struct errmsg *m)
{
    const uint8_t *at = data;
    if (s->n > 1)
        qsort(s->tensor, s->n, sizeof(*s->tensor), by_place);
    for (size_t i = 0; i < s->n; i++) {
        if (s->tensor[i].data != at)
            return err_set(m, ERR_INVAL,
                           "tensor '%s': its data begins at byte %td, the "
                           "data before it ends at %td",
                           s->tensor[i].name, s->tensor[i].data - data,
                           at - data);
        at += s->tensor[i].bytes;
    }
    if (at != data + n)
        return err_set(m, ERR_INVAL,
                       "%zu bytes after the last tensor belong to none",
                       n - (size_t)(at - data));
    return OK;
}

static enum err check_meta(const cJSON *meta, struct errmsg *m)
{
    const cJSON *item;
    if (!cJSON_IsObject(meta))
        return err_set(m, ERR_INVAL, "%s is not an object", META);
    cJSON_ArrayForEach(item, meta)
    {
        if (!cJSON_IsString(item))
            return err_set(m, ERR_INVAL, "%s: '%s' is not a string", META,
                           item->string);
    }
    return OK;
}

static enum err read_header(struct safetensors *s, const uint8_t *data,
                            size_t n, struct errmsg *m)
{
    if (!cJSON_IsObject(s->header))
        return err_set(m, ERR_INVAL, "the header is not an object");
    int count = cJSON_GetArraySize(s->header);
    s->tensor = calloc((size_t)count + 1, sizeof(*s->tensor));
    if (s->tensor == NULL)
        return err_set(m, ERR_NOMEM, "no memory for %d tensors", count);
    const cJSON *item;
    cJSON_ArrayForEach(item, s->header)
    {
        enum err rc = strcmp(item->string, META) == 0
                          ? check_meta(item, m)
                          : read_tensor(&s->tensor[s->n++], item, data, n, m);
        if (rc != OK)
            return rc;
    }
    enum err rc = check_cover(s, data, n, m);
    if (rc == OK && s->n > 1)
        qsort(s->tensor, s->n, sizeof(*s->tensor), by_name);
    return rc;
}

static uint64_t read_length(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

enum err safetensors_parse(struct safetensors **out, const uint8_t *data,
                           size_t n, struct errmsg *m)
{
    if (n < LENGTH_BYTES)
        return err_set(m, ERR_INVAL, "%zu bytes are no safetensors file", n);
    uint64_t header = read_length(data);
    if (header > n - LENGTH_BYTES || header > SAFETENSORS_HEADER_MAX)
        return err_set(m, ERR_INVAL,
                       "not a safetensors file, or cut: a header of %llu "
                       "bytes in a file of %zu",
                       (unsigned long long)header, n);
    struct safetensors *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return err_set(m, ERR_NOMEM, "no memory for a tensor file");
    size_t start = LENGTH_BYTES + (size_t)header;
    enum err rc = json_parse(&s->header, (const char *)data + LENGTH_BYTES,
                             (size_t)header, m);
    if (rc == OK)
        rc = read_header(s, data + start, n - start, m);
    if (rc != OK) {
        safetensors_close(s);
        return rc;
    }
    *out = s;
    return OK;
}

enum err safetensors_open(struct safetensors **out, const char *path,
                          struct errmsg *m)
{
    struct file_map map;
    enum err rc = file_map_open(&map, path, m);
    if (rc != OK)
        return rc;
    struct errmsg why;
    rc = safetensors_parse(out, map.data, map.size, &why);
    if (rc != OK) {
        file_map_close(&map);
        return err_set(m, rc, "%s: %s", path, why.text);
    }
    (*out)->map = map;
    return OK;
}

void safetensors_close(struct safetensors *s)
{
    if (s == NULL)
        return;
    cJSON_Delete(s->header);
    free(s->tensor);
    file_map_close(&s->map);
    free(s);
}

size_t safetensors_count(const struct safetensors *s)
{
    return s->n;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *s,
                                                size_t i)
{
    return &s->tensor[i];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s,
                                                  const char *name)
{
    struct safetensors_tensor key = {.name = name};
    return s->n == 0 ? NULL
                     : bsearch(&key, s->tensor, s->n, sizeof(key), by_name);
}

const char *safetensors_meta(const struct safetensors *s, const char *key)
{
    const cJSON *item = json_get(json_get(s->header, META), key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static enum err put_meta(struct buf *b, const struct safetensors_string *meta,
                         size_t n)
{
    enum err rc = json_put_key(b, META);
    if (rc == OK)
        rc = buf_putc(b, '{');
    for (size_t i = 0; rc == OK && i < n; i++) {
        if (i > 0)
            rc = buf_putc(b, ',');
        if (rc == OK)
            rc = json_put_key(b, meta[i].key);
        if (rc == OK)
            rc = json_put_text(b, meta[i].value);
    }
    return rc == OK ? buf_putc(b, '}') : rc;
}

static enum err put_tensor(struct buf *b, const struct safetensors_tensor *t,
                           uint64_t at)
{
    enum err rc = buf_putc(b, ',');
    if (rc == OK)
        rc = json_put_key(b, t->name);
    if (rc == OK)
        rc = buf_printf(b, "{\"dtype\":\"%s\",\"shape\":[",
                        dtype_info(t->type)->name);
    for (uint32_t i = 0; rc == OK && i < t->n_dims; i++)
        rc = buf_printf(b, "%s%llu", i > 0 ? "," : "",
                        (unsigned long long)t->dims[i]);
    if (rc == OK)
        rc = buf_printf(b, "],\"data_offsets\":[%llu,%llu]}",
                        (unsigned long long)at,
                        (unsigned long long)at + t->bytes);
    return rc;
}

/* Length, JSON and the spaces that bring the data to a multiple of 8. */
static enum err put_header(struct buf *b, const struct safetensors_string *meta,
                           size_t n_meta,
                           const struct safetensors_tensor *tensors, size_t n)
{
    uint64_t at = 0;
    enum err rc = buf_append(b, "\0\0\0\0\0\0\0\0{", LENGTH_BYTES + 1);
    if (rc == OK)
        rc = put_meta(b, meta, n_meta);
    for (size_t i = 0; rc == OK && i < n; i++) {
        rc = put_tensor(b, &tensors[i], at);
        at += tensors[i].bytes;
    }
    if (rc == OK)
        rc = buf_putc(b, '}');
    while (rc == OK && b->len % DATA_ALIGN != 0)
        rc = buf_putc(b, ' ');
    for (int i = 0; rc == OK && i < LENGTH_BYTES; i++)
        b->data[i] = (char)((b->len - LENGTH_BYTES) >> (8 * i) & 0xFF);
    return rc;
}

enum err safetensors_write(const char *path,
                           const struct safetensors_string *meta, size_t n_meta,
                           const struct safetensors_tensor *tensors,
                           size_t n_tensors, struct errmsg *m)
{
    struct buf b = {0};
    enum err rc = put_header(&b, meta, n_meta, tensors, n_tensors);
    for (size_t i = 0; rc == OK && i < n_tensors; i++)
        rc = buf_append(&b, tensors[i].data, (size_t)tensors[i].bytes);
    if (rc != OK)
        err_set(m, rc, "no memory to write %s", path);
    else
        rc = file_replace_shared(path, b.data, b.len, m);
    buf_fini(&b);
    return rc;
}
