/* golden.h - reads golden files: arrays that another implementation made.
 * tests/tools/golden_file.py says how they are built.
 *
 * Threads: one test at a time.
 */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"

/* One array of a golden file. */
struct golden_array {
    char name[32], type[8];
    int64_t dim[4]; /* unused ones are 1 */
    int64_t n;
    const void *data;
};

enum { GOLDEN_ARRAYS_MAX = 16 };

struct golden {
    struct buf bytes;
    int n_arrays;
    struct golden_array array[GOLDEN_ARRAYS_MAX];
};

static inline int64_t golden_type_bytes(const char *type)
{
    return strcmp(type, "f64") == 0 ? 8 : 4;
}

static inline void golden_open(struct golden *g, const char *path)
{
    struct errmsg m;
    memset(g, 0, sizeof(*g));
    if (file_read_all(&g->bytes, path, 64 << 20, &m) != OK)
        fail_msg("%s", m.text);
    char *line = g->bytes.data;
    const char *end = strstr(line, "\n\n");
    assert_non_null(end);
    assert_memory_equal(line, "ebb golden 1\n", 13);
    const char *data = end + 2;
    for (line = strchr(line, '\n') + 1; line < end;
         line = strchr(line, '\n') + 1) {
        struct golden_array *a = &g->array[g->n_arrays++];
        long long d[4] = {1, 1, 1, 1};
        assert_true(g->n_arrays <= GOLDEN_ARRAYS_MAX);
        int n = sscanf(line, "%31s %7s %lld %lld %lld %lld", a->name, a->type,
                       &d[0], &d[1], &d[2], &d[3]);
        assert_true(n >= 3);
        a->n = 1;
        for (int i = 0; i < n - 2; i++)
            a->n *= d[i];
        for (int i = 0; i < 4; i++)
            a->dim[i] = i < n - 2 ? d[i] : 1;
        a->data = data;
        data += a->n * golden_type_bytes(a->type);
    }
    assert_ptr_equal(data, g->bytes.data + g->bytes.len);
}

static inline void golden_close(struct golden *g)
{
    buf_fini(&g->bytes);
}

static inline const struct golden_array *
golden_find(const struct golden *g, const char *name, const char *type)
{
    for (int i = 0; i < g->n_arrays; i++)
        if (strcmp(g->array[i].name, name) == 0) {
            assert_string_equal(g->array[i].type, type);
            return &g->array[i];
        }
    fail_msg("no golden array %s", name);
    return NULL;
}

/* The values of an array, copied so that they are aligned; free() them. */
static inline void *golden_copy(const struct golden *g, const char *name,
                                const char *type)
{
    const struct golden_array *a = golden_find(g, name, type);
    size_t bytes = (size_t)(a->n * golden_type_bytes(type));
    void *p = malloc(bytes);
    assert_non_null(p);
    memcpy(p, a->data, bytes);
    return p;
}

#endif
