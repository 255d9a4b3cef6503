/* gguf.h - reading model files in the GGUF format, versions 2 and 3.
 *
 * A GGUF file is a header, a list of typed key/value pairs (the metadata), a
 * list of tensor descriptions, and the tensor data, each tensor at a multiple
 * of `general.alignment` (32 when the key is absent) from the start of the
 * data part. All numbers are little-endian.
 *
 * gguf_open and gguf_parse check everything that is in the file before it is
 * used: magic, version, every count, length, type and offset, the sums and
 * products of them, duplicate keys and tensors, overlapping tensors. After
 * they return OK every pointer that this module hands out lies inside the
 * file's bytes, so that callers need no bounds of their own. What the values
 * mean (is the layer count sensible? is the name known?) is for the caller.
 *
 * Memory: the bytes stay where they are (mapped read-only, or borrowed); this
 * module owns only its index, whose size is bounded by the size of the file
 * (about six times the lists in it) and by the limits below. Strings and
 * tensor data point into the bytes and live until gguf_close. A mapped file
 * that somebody shortens while we run gives SIGBUS, as with every mapping:
 * replace model files by rename.
 *
 * Threads: after opening everything is constant; any thread may read.
 *
 * Source of the format: the GGUF specification in the ggml project's docs.
 */
#ifndef RUNTIME_GGUF_GGUF_H
#define RUNTIME_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"
#include "base/hash.h"

enum {
    GGUF_DIMS_MAX = 4,
    GGUF_NAME_MAX = 255,  /* bytes of a tensor's name */
    GGUF_KEY_MAX = 65535, /* bytes of a metadata key */
    GGUF_KV_MAX = 65536,
    GGUF_TENSORS_MAX = 262144
};

/* The type numbers of metadata values, as they stand in the file. */
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12
};

/* "u32", "string", ...; "unknown" for a number that is none of the above. */
const char *gguf_type_name(uint32_t type);

/* Bytes of the file, not terminated, not checked to be UTF-8. */
struct gguf_str {
    const char *s;
    size_t n;
};

struct gguf_kv {
    struct gguf_str key;
    enum gguf_type type;
    enum gguf_type elem; /* GGUF_ARRAY: type of the elements; else = type */
    size_t count;        /* GGUF_ARRAY: how many; else 1 */
};

/* A row of dims[0] values is contiguous; dims[1] rows make a matrix. A weight
 * that maps a vector of n_in to n_out has dims {n_in, n_out}. */
struct gguf_tensor {
    const char *name; /* terminated; 1 to GGUF_NAME_MAX bytes */
    enum dtype type;
    uint32_t n_dims;              /* 1 to GGUF_DIMS_MAX */
    uint64_t dims[GGUF_DIMS_MAX]; /* all >= 1, unused ones are 1; dims[0] is
                                   * a multiple of the type's block */
    const uint8_t *data; /* read-only; aligned to general.alignment relative
                          * to the file's start */
    uint64_t bytes;      /* exactly what dims and type need */
};

struct gguf; /* opaque: fields are in gguf_internal.h */

/* Maps the file and checks it. On OK the caller owns *out and ends it with
 * gguf_close(); on error *out is NULL. ERR_NOTFOUND: no such file; ERR_IO: it
 * cannot be read; ERR_INVAL: it is not GGUF, or damaged; ERR_UNSUPPORTED: a
 * version, byte order, nested array or tensor type that we do not do;
 * ERR_NOMEM. The sentence names the path and the field. */
MUST_CHECK enum err gguf_open(struct gguf **out, const char *path,
                              struct errmsg *m);

/* The same for bytes in memory, which the caller keeps, unchanged, until
 * gguf_close(). */
MUST_CHECK enum err gguf_parse(struct gguf **out, const uint8_t *data, size_t n,
                               struct errmsg *m);

void gguf_close(struct gguf *g); /* NULL is allowed */

/* Says that these bytes of the file, which lie inside it, will hardly be read
 * again: their pages leave this process's memory. Reading them still works,
 * from the page cache or the disk. Nothing for bytes that gguf_parse got. */
void gguf_drop_pages(const struct gguf *g, const void *data, uint64_t bytes);

uint32_t gguf_version(const struct gguf *g); /* 2 or 3 */

/* The getters below. ERR_NOTFOUND: there is no such key (a caller with a
 * default passes m = NULL, or ignores it). ERR_INVAL: it has another type, or
 * does not fit; the sentence has the key, what was found and what was wanted.
 * *out is written on OK only. Cost: a binary search over the keys. */

/* Any integer type is taken as long as the value fits. */
MUST_CHECK enum err gguf_u32(const struct gguf *g, const char *key,
                             uint32_t *out, struct errmsg *m);
MUST_CHECK enum err gguf_u64(const struct gguf *g, const char *key,
                             uint64_t *out, struct errmsg *m);
/* f32, or f64 rounded to it; finite values only. */
MUST_CHECK enum err gguf_f32(const struct gguf *g, const char *key, float *out,
                             struct errmsg *m);
MUST_CHECK enum err gguf_bool(const struct gguf *g, const char *key, bool *out,
                              struct errmsg *m);
MUST_CHECK enum err gguf_string(const struct gguf *g, const char *key,
                                struct gguf_str *out, struct errmsg *m);

/* Element type and length of an array. elem and count may be NULL. An array
 * of n strings takes at least 8 n bytes of the file, one of numbers at least
 * n, so an allocation of count elements is bounded by the file's size. */
MUST_CHECK enum err gguf_array_info(const struct gguf *g, const char *key,
                                    enum gguf_type *elem, size_t *count,
                                    struct errmsg *m);

/* Whole arrays into out[0..n), where n must be the array's count (else
 * ERR_INVAL). One pass each; out may be partly written on ERR_INVAL. */
MUST_CHECK enum err gguf_array_strings(const struct gguf *g, const char *key,
                                       struct gguf_str *out, size_t n,
                                       struct errmsg *m);
/* Any integer type as long as every value fits. */
MUST_CHECK enum err gguf_array_i32(const struct gguf *g, const char *key,
                                   int32_t *out, size_t n, struct errmsg *m);
/* f32, or f64 rounded to it; infinities and NaN are passed on as they are. */
MUST_CHECK enum err gguf_array_f32(const struct gguf *g, const char *key,
                                   float *out, size_t n, struct errmsg *m);

/* All keys, in the order of the file; i < gguf_n_kv(). */
size_t gguf_n_kv(const struct gguf *g);
struct gguf_kv gguf_kv_at(const struct gguf *g, size_t i);

/* All tensors, in the order of the file; i < gguf_n_tensors(). Borrowed:
 * they live until gguf_close(). */
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);

/* NULL when there is none of that name. A binary search. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g,
                                           const char *name);

/* Names the model whatever its quantisation: gate files say with it which
 * model they were trained for (interface.md, --gates). The SHA-256 of the line
 *
 *     ebb base A layers L kv_heads K width W vocabulary V\n
 *
 * with A = general.architecture, L = A.block_count, K =
 * A.attention.head_count_kv (or head_count where that is absent), W =
 * A.embedding_length, V = dims[1] of token_embd.weight; then, for every F32
 * tensor whose name contains "norm", in the byte order of the names, the line
 *
 *     NAME BYTES\n
 *
 * and its data. Converters keep these tensors in F32 in every quantisation.
 * ERR_NOTFOUND or ERR_INVAL, with the key's name, where one of them is
 * missing or not as said. Reads a few hundred kilobytes. */
MUST_CHECK enum err gguf_fingerprint(const struct gguf *g,
                                     uint8_t out[HASH_BYTES], struct errmsg *m);

#endif
