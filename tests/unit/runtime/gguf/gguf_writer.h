/* gguf_writer.h - puts GGUF files together byte by byte, valid or not.
 *
 * For tests only; a struct file is on the stack and too small files are the
 * test's own fault (assert).
 */
#ifndef TESTS_UNIT_RUNTIME_GGUF_GGUF_WRITER_H
#define TESTS_UNIT_RUNTIME_GGUF_GGUF_WRITER_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "runtime/gguf/gguf.h"

struct file {
    size_t n;
    uint8_t b[1 << 17];
};

static inline void put_bytes(struct file *f, const void *p, size_t n)
{
    assert(n <= sizeof(f->b) - f->n);
    memcpy(f->b + f->n, p, n);
    f->n += n;
}

static inline void put_u32(struct file *f, uint32_t x)
{
    put_bytes(f, &x, sizeof(x));
}

static inline void put_u64(struct file *f, uint64_t x)
{
    put_bytes(f, &x, sizeof(x));
}

static inline void put_text(struct file *f, const char *s, size_t n)
{
    put_u64(f, n);
    put_bytes(f, s, n);
}

static inline void put_header(struct file *f, uint32_t version,
                              uint64_t n_tensors, uint64_t n_kv)
{
    put_bytes(f, "GGUF", 4);
    put_u32(f, version);
    put_u64(f, n_tensors);
    put_u64(f, n_kv);
}

/* The low `bytes` bytes of x as the value. */
static inline void put_kv_number(struct file *f, const char *key,
                                 enum gguf_type t, uint64_t x, size_t bytes)
{
    put_text(f, key, strlen(key));
    put_u32(f, t);
    put_bytes(f, &x, bytes);
}

static inline void put_kv_u32(struct file *f, const char *key, uint32_t x)
{
    put_kv_number(f, key, GGUF_U32, x, sizeof(x));
}

static inline void put_kv_string(struct file *f, const char *key, const char *s)
{
    put_text(f, key, strlen(key));
    put_u32(f, GGUF_STRING);
    put_text(f, s, strlen(s));
}

/* The elements follow by other calls. */
static inline void put_array_head(struct file *f, const char *key,
                                  enum gguf_type elem, uint64_t count)
{
    put_text(f, key, strlen(key));
    put_u32(f, GGUF_ARRAY);
    put_u32(f, elem);
    put_u64(f, count);
}

/* Writes no more than 5 dimensions, whatever n_dims says. */
static inline void put_tensor(struct file *f, const char *name, uint32_t n_dims,
                              const uint64_t *dims, uint32_t type,
                              uint64_t offset)
{
    put_text(f, name, strlen(name));
    put_u32(f, n_dims);
    for (uint32_t d = 0; d < n_dims && d < 5; d++)
        put_u64(f, dims[d]);
    put_u32(f, type);
    put_u64(f, offset);
}

/* Fills up to the alignment, then n bytes of data. */
static inline void put_data(struct file *f, size_t alignment, size_t n)
{
    while (f->n % alignment != 0)
        put_bytes(f, "", 1);
    for (size_t i = 0; i < n; i++) {
        uint8_t x = (uint8_t)(i * 7 + 1);
        put_bytes(f, &x, 1);
    }
}

#endif
