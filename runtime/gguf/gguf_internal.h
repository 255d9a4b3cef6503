/* gguf_internal.h - what the files behind gguf.h share.
 *
 * gguf.c opens, reads the header and orders the steps; kv.c has the metadata
 * and its getters; tensor.c has the tensor list. Not for other modules.
 */
#ifndef RUNTIME_GGUF_GGUF_INTERNAL_H
#define RUNTIME_GGUF_GGUF_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "runtime/gguf/gguf.h"

/* Room for the index of GGUF_KV_MAX keys and GGUF_TENSORS_MAX tensors with
 * names of GGUF_NAME_MAX bytes, which is 91 MiB; and for what reading a list
 * of so many tensors needs until it is done, 8 MiB. */
enum { GGUF_INDEX_BYTES_MAX = 128 << 20, GGUF_SCRATCH_BYTES_MAX = 16 << 20 };

/* Names in messages are cut after this many bytes; "%.*s" with GGUF_SHOW(). */
enum { GGUF_SHOW_MAX = 100 };
#define GGUF_SHOW(str)                                                         \
    (int)((str).n < GGUF_SHOW_MAX ? (str).n : GGUF_SHOW_MAX), (str).s

struct gguf_value {
    struct gguf_kv kv;
    const uint8_t *at; /* the number's bytes, a string's first byte, or the
                        * first element of an array */
    size_t bytes;      /* of the payload; a string's length */
};

/* A name and the place of what it names: lists of these are sorted by name,
 * so that finding takes log n whatever names a hostile file chooses. */
struct gguf_slot {
    struct gguf_str name;
    uint32_t i;
};

struct gguf {
    const uint8_t *data;
    size_t n;
    struct file_map map; /* what data points into; zeroed when borrowed */
    struct arena index;  /* owns all the lists below */
    uint32_t version;
    uint64_t alignment;
    size_t n_kv;
    struct gguf_value *kv;
    struct gguf_slot *kv_slot; /* n_kv, sorted */
    size_t n_tensors;
    struct gguf_tensor *tensor;
    struct gguf_slot *tensor_slot; /* n_tensors, sorted */
};

/* Reads forward through the bytes; at <= n always. */
struct gguf_cursor {
    const uint8_t *data;
    size_t n;
    size_t at;
};

/* The next `bytes` bytes, or NULL (and no move) when fewer are left. */
const uint8_t *gguf_take(struct gguf_cursor *c, uint64_t bytes);
/* The next number; false (and no move) at the end of the bytes. */
bool gguf_take_u32(struct gguf_cursor *c, uint32_t *out);
bool gguf_take_u64(struct gguf_cursor *c, uint64_t *out);
/* A string: its length as u64, then its bytes. When it does not fit, false,
 * and out->n is the length that was asked for (0 when even that is cut off).
 */
bool gguf_take_str(struct gguf_cursor *c, struct gguf_str *out);

/* Sorts slot[0..n) by name. When two names are equal returns the index of the
 * second of them in the file's order, else n. */
size_t gguf_sort_slots(struct gguf_slot *slot, size_t n);
const struct gguf_slot *gguf_find_slot(const struct gguf_slot *slot, size_t n,
                                       const char *name);

/* Read g->n_kv pairs, and g->n_tensors tensors (which needs g->alignment). The
 * lists come from g->index. */
MUST_CHECK enum err gguf_read_kv(struct gguf *g, struct gguf_cursor *c,
                                 struct errmsg *m);
MUST_CHECK enum err gguf_read_tensors(struct gguf *g, struct gguf_cursor *c,
                                      struct errmsg *m);

#endif
