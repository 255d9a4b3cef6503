/* safetensors.h - reading and writing tensor files in the safetensors format.
 *
 * A file is an 8-byte little-endian length, that many bytes of JSON (an object
 * of tensors by name, and "__metadata__", an object of strings), then the
 * data, which the tensors cover without overlaps or gaps. Everything a file
 * says is checked when it is opened: after OK every pointer handed out lies
 * inside the file. Types other than F32, F16 and BF16 are refused.
 *
 * Source of the format: the README of the safetensors project.
 * Threads: an open file is constant; any thread may read.
 */
#ifndef BASE_SAFETENSORS_H
#define BASE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

enum {
    SAFETENSORS_DIMS_MAX = 4,
    SAFETENSORS_HEADER_MAX = 16 << 20 /* bytes of JSON */
};

struct safetensors; /* opaque */

struct safetensors_tensor {
    const char *name; /* terminated */
    enum dtype type;  /* DTYPE_F32, DTYPE_F16 or DTYPE_BF16 */
    uint32_t n_dims;
    uint64_t dims[SAFETENSORS_DIMS_MAX]; /* slowest first; unused are 1 */
    const uint8_t *data;                 /* not aligned */
    uint64_t bytes;
};

/* On OK the caller ends *out with safetensors_close(). ERR_NOTFOUND, ERR_IO;
 * ERR_INVAL for a file that is damaged or not of this format; ERR_UNSUPPORTED
 * for a tensor type or number of dimensions we do not read. The sentence names
 * the path and the tensor. */
MUST_CHECK enum err safetensors_open(struct safetensors **out, const char *path,
                                     struct errmsg *m);
/* The same for bytes that the caller keeps until the close. */
MUST_CHECK enum err safetensors_parse(struct safetensors **out,
                                      const uint8_t *data, size_t n,
                                      struct errmsg *m);
void safetensors_close(struct safetensors *s); /* NULL is allowed */

size_t safetensors_count(const struct safetensors *s);
const struct safetensors_tensor *safetensors_at(const struct safetensors *s,
                                                size_t i);
/* NULL when there is none. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *s,
                                                  const char *name);
/* A string of the metadata, or NULL. Borrowed. */
const char *safetensors_meta(const struct safetensors *s, const char *key);

struct safetensors_string {
    const char *key, *value;
};

/* Writes a whole file, atomically (file_replace_shared). */
MUST_CHECK enum err safetensors_write(const char *path,
                                      const struct safetensors_string *meta,
                                      size_t n_meta,
                                      const struct safetensors_tensor *tensors,
                                      size_t n_tensors, struct errmsg *m);

#endif
