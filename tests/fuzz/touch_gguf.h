/* touch_gguf.h - parses bytes as GGUF and uses everything the reader offers.
 *
 * Shared by the fuzz target and by the unit test that replays its corpus and
 * mutates small files. Fails by assert: an error must come with a sentence, a
 * success must hold what gguf.h promises, and all of it must be readable (the
 * sanitizers see to that).
 */
#ifndef TESTS_FUZZ_TOUCH_GGUF_H
#define TESTS_FUZZ_TOUCH_GGUF_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "runtime/gguf/gguf.h"

static inline unsigned touch_bytes(const void *p, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((const volatile unsigned char *)p)[i];
    return sum;
}

static inline void touch_array(const struct gguf *g, const char *key,
                               size_t count)
{
    struct errmsg m = {""};
    /* One more than needed, so that an empty array has memory as well. */
    struct gguf_str *strings = malloc((count + 1) * sizeof(*strings));
    int32_t *ints = malloc((count + 1) * sizeof(*ints));
    float *floats = malloc((count + 1) * sizeof(*floats));
    assert(strings != NULL && ints != NULL && floats != NULL);
    if (gguf_array_strings(g, key, strings, count, &m) == OK) {
        for (size_t i = 0; i < count; i++)
            touch_bytes(strings[i].s, strings[i].n);
    }
    if (gguf_array_i32(g, key, ints, count, &m) == OK)
        touch_bytes(ints, count * sizeof(*ints));
    if (gguf_array_f32(g, key, floats, count, &m) == OK)
        touch_bytes(floats, count * sizeof(*floats));
    assert(gguf_array_i32(g, key, ints, count + 1, &m) == ERR_INVAL);
    free(strings);
    free(ints);
    free(floats);
}

static inline void touch_key(const struct gguf *g, const struct gguf_kv *kv)
{
    struct errmsg m = {""};
    struct gguf_str s;
    uint32_t u32;
    uint64_t u64;
    float f32;
    bool flag;
    size_t count = 0;
    char *key = malloc(kv->key.n + 1);
    assert(key != NULL && kv->key.n >= 1);
    memcpy(key, kv->key.s, kv->key.n);
    key[kv->key.n] = '\0';
    int n_ok = gguf_bool(g, key, &flag, &m) == OK;
    n_ok += gguf_f32(g, key, &f32, &m) == OK;
    n_ok += gguf_u32(g, key, &u32, &m) == OK;
    enum err rc = gguf_u64(g, key, &u64, &m);
    if (rc == OK && u64 > UINT32_MAX)
        n_ok++;
    if (gguf_string(g, key, &s, &m) == OK) {
        n_ok++;
        touch_bytes(s.s, s.n);
    }
    rc = gguf_array_info(g, key, NULL, &count, &m);
    assert(rc != ERR_NOTFOUND && (rc == OK) == (kv->type == GGUF_ARRAY));
    if (rc == OK) {
        n_ok++;
        assert(count == kv->count);
        touch_array(g, key, count);
    }
    /* A value is of one type; a negative or infinite one is of none. */
    assert(n_ok <= 1);
    free(key);
}

static inline void touch_tensor(const struct gguf *g, size_t i,
                                const uint8_t *data, size_t n)
{
    const struct gguf_tensor *t = gguf_tensor_at(g, i);
    const struct dtype_info *info = dtype_info(t->type);
    assert(info != NULL && gguf_tensor_find(g, t->name) == t);
    assert(t->n_dims >= 1 && t->n_dims <= GGUF_DIMS_MAX);
    unsigned __int128 bytes = info->block_bytes;
    for (int d = 0; d < GGUF_DIMS_MAX; d++) {
        assert(t->dims[d] >= 1);
        assert((uint32_t)d < t->n_dims || t->dims[d] == 1);
        bytes *= t->dims[d];
    }
    assert(t->dims[0] % info->block_elems == 0);
    assert(bytes / info->block_elems == t->bytes && t->bytes >= 1);
    assert(t->data >= data && t->data <= data + n);
    assert(t->bytes <= (uint64_t)(data + n - t->data));
    touch_bytes(t->data, 1);
    touch_bytes(t->data + t->bytes - 1, 1);
}

/* The code that gguf_parse gave; everything is closed again. */
static inline enum err touch_gguf(const uint8_t *data, size_t n,
                                  struct errmsg *m)
{
    struct gguf *g = NULL;
    memset(m, 0, sizeof(*m));
    enum err rc = gguf_parse(&g, data, n, m);
    if (rc != OK) {
        assert(g == NULL && m->text[0] != '\0');
        assert(utf8_is_valid(m->text, strlen(m->text)));
        return rc;
    }
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        struct gguf_kv kv = gguf_kv_at(g, i);
        touch_key(g, &kv);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        touch_tensor(g, i, data, n);
    uint8_t print[HASH_BYTES];
    struct errmsg why = {""};
    assert(gguf_fingerprint(g, print, &why) == OK || why.text[0] != '\0');
    gguf_close(g);
    return OK;
}

#endif
