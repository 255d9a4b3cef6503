#include <assert.h>
#include <math.h>
#include <string.h>

#include "runtime/gguf/gguf_internal.h"

static const struct {
    const char *name;
    size_t bytes; /* 0: of no fixed size */
} types[] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},
    [GGUF_U16] = {"u16", 2},       [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},       [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0},
    [GGUF_U64] = {"u64", 8},       [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

const char *gguf_type_name(uint32_t type)
{
    return type < N_TYPES ? types[type].name : "unknown";
}

static enum err past_end(const struct gguf_cursor *c,
                         const struct gguf_value *v, const char *what,
                         uint64_t bytes, struct errmsg *m)
{
    return err_set(m, ERR_INVAL,
                   "key '%.*s': %s (offset %zu + %llu bytes) passes the end "
                   "of the file at %zu",
                   GGUF_SHOW(v->kv.key), what, c->at, (unsigned long long)bytes,
                   c->n);
}

static enum err read_key(struct gguf_cursor *c, struct gguf_value *v, size_t i,
                         struct errmsg *m)
{
    struct gguf_str *key = &v->kv.key;
    size_t at = c->at;
    if (!gguf_take_str(c, key))
        return err_set(m, ERR_INVAL,
                       "key %zu: its name (offset %zu, length %zu) passes "
                       "the end of the file at %zu",
                       i, at, key->n, c->n);
    if (key->n == 0 || key->n > GGUF_KEY_MAX)
        return err_set(m, ERR_INVAL,
                       "key %zu: a name of %zu bytes is not allowed (1 to %d)",
                       i, key->n, GGUF_KEY_MAX);
    if (memchr(key->s, 0, key->n) != NULL)
        return err_set(m, ERR_INVAL, "key %zu '%.*s': the name has a zero byte",
                       i, GGUF_SHOW(*key));
    return OK;
}

static enum err read_type(struct gguf_cursor *c, struct gguf_value *v,
                          const char *what, enum gguf_type *out,
                          struct errmsg *m)
{
    uint32_t type = 0;
    if (!gguf_take_u32(c, &type))
        return past_end(c, v, what, sizeof(type), m);
    if (type >= N_TYPES)
        return err_set(m, ERR_INVAL, "key '%.*s': %s %u is not known",
                       GGUF_SHOW(v->kv.key), what, type);
    *out = (enum gguf_type)type;
    return OK;
}

static enum err check_bools(const struct gguf_value *v, struct errmsg *m)
{
    for (size_t i = 0; i < v->bytes; i++) {
        if (v->at[i] > 1)
            return err_set(m, ERR_INVAL, "key '%.*s': a bool is %u, not 0 or 1",
                           GGUF_SHOW(v->kv.key), v->at[i]);
    }
    return OK;
}

static enum err read_string_array(struct gguf_cursor *c, struct gguf_value *v,
                                  uint64_t count, struct errmsg *m)
{
    size_t start = c->at;
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_str s;
        size_t at = c->at;
        if (!gguf_take_str(c, &s))
            return err_set(m, ERR_INVAL,
                           "key '%.*s': string %llu (offset %zu, length %zu) "
                           "passes the end of the file at %zu",
                           GGUF_SHOW(v->kv.key), (unsigned long long)i, at, s.n,
                           c->n);
    }
    v->at = c->data + start;
    v->bytes = c->at - start;
    return OK;
}

static enum err read_array(struct gguf_cursor *c, struct gguf_value *v,
                           struct errmsg *m)
{
    uint64_t count = 0;
    enum err rc = read_type(c, v, "its element type", &v->kv.elem, m);
    if (rc != OK)
        return rc;
    if (v->kv.elem == GGUF_ARRAY)
        return err_set(m, ERR_UNSUPPORTED,
                       "key '%.*s': an array of arrays is not supported",
                       GGUF_SHOW(v->kv.key));
    if (!gguf_take_u64(c, &count))
        return past_end(c, v, "its array length", sizeof(count), m);
    size_t elem_bytes = types[v->kv.elem].bytes;
    size_t bytes_min = elem_bytes != 0 ? elem_bytes : sizeof(uint64_t);
    if (count > (c->n - c->at) / bytes_min)
        return err_set(m, ERR_INVAL,
                       "key '%.*s': its array of %llu elements at offset %zu "
                       "passes the end of the file at %zu",
                       GGUF_SHOW(v->kv.key), (unsigned long long)count, c->at,
                       c->n);
    v->kv.count = (size_t)count;
    if (elem_bytes == 0)
        return read_string_array(c, v, count, m);
    v->bytes = (size_t)count * elem_bytes;
    v->at = gguf_take(c, v->bytes);
    assert(v->at != NULL);
    return v->kv.elem == GGUF_BOOL ? check_bools(v, m) : OK;
}

static enum err read_value(struct gguf_cursor *c, struct gguf_value *v,
                           struct errmsg *m)
{
    enum err rc = read_type(c, v, "its value type", &v->kv.type, m);
    if (rc != OK)
        return rc;
    v->kv.elem = v->kv.type;
    v->kv.count = 1;
    if (v->kv.type == GGUF_ARRAY)
        return read_array(c, v, m);
    if (v->kv.type == GGUF_STRING) {
        struct gguf_str s;
        if (!gguf_take_str(c, &s))
            return past_end(c, v, "its string", s.n, m);
        v->at = (const uint8_t *)s.s;
        v->bytes = s.n;
        return OK;
    }
    v->bytes = types[v->kv.type].bytes;
    v->at = gguf_take(c, v->bytes);
    if (v->at == NULL)
        return past_end(c, v, "its value", v->bytes, m);
    return v->kv.type == GGUF_BOOL ? check_bools(v, m) : OK;
}

enum err gguf_read_kv(struct gguf *g, struct gguf_cursor *c, struct errmsg *m)
{
    if (g->n_kv == 0)
        return OK;
    g->kv = arena_array(&g->index, g->n_kv, sizeof(*g->kv));
    g->kv_slot = arena_array(&g->index, g->n_kv, sizeof(*g->kv_slot));
    if (g->kv == NULL || g->kv_slot == NULL)
        return err_set(m, ERR_NOMEM, "no memory for %zu keys", g->n_kv);
    for (size_t i = 0; i < g->n_kv; i++) {
        struct gguf_value *v = &g->kv[i];
        enum err rc = read_key(c, v, i, m);
        if (rc == OK)
            rc = read_value(c, v, m);
        if (rc != OK)
            return rc;
        g->kv_slot[i] = (struct gguf_slot){v->kv.key, (uint32_t)i};
    }
    size_t twice = gguf_sort_slots(g->kv_slot, g->n_kv);
    if (twice != g->n_kv)
        return err_set(m, ERR_INVAL, "key '%.*s' is there twice",
                       GGUF_SHOW(g->kv[twice].kv.key));
    return OK;
}

static enum err find(const struct gguf *g, const char *key,
                     const struct gguf_value **out, struct errmsg *m)
{
    const struct gguf_slot *s = gguf_find_slot(g->kv_slot, g->n_kv, key);
    if (s == NULL)
        return err_set(m, ERR_NOTFOUND, "the file has no key '%s'", key);
    *out = &g->kv[s->i];
    return OK;
}

static enum err wrong_type(const struct gguf_value *v, const char *wanted,
                           struct errmsg *m)
{
    bool array = v->kv.type == GGUF_ARRAY;
    return err_set(m, ERR_INVAL, "key '%.*s': found %s%s, wanted %s",
                   GGUF_SHOW(v->kv.key), array ? "an array of " : "",
                   gguf_type_name(v->kv.elem), wanted);
}

/* An integer of any width as sign and magnitude, so that all of i64 and u64
 * can be compared with any limit. */
struct integer {
    bool negative;
    uint64_t magnitude;
};

static struct integer from_signed(int64_t x)
{
    struct integer r = {x < 0, (uint64_t)x};
    if (x < 0)
        r.magnitude = 0 - r.magnitude;
    return r;
}

static bool is_integer(enum gguf_type t)
{
    return types[t].bytes != 0 && t != GGUF_F32 && t != GGUF_F64 &&
           t != GGUF_BOOL;
}

/* t must be an integer type. */
static struct integer load_integer(enum gguf_type t, const uint8_t *p)
{
    uint64_t u = 0;
    memcpy(&u, p, types[t].bytes);
    switch (t) {
    case GGUF_I8:
        return from_signed((int8_t)u);
    case GGUF_I16:
        return from_signed((int16_t)u);
    case GGUF_I32:
        return from_signed((int32_t)u);
    case GGUF_I64:
        return from_signed((int64_t)u);
    default:
        return (struct integer){false, u};
    }
}

static enum err out_of_range(const struct gguf_value *v, struct integer x,
                             const char *wanted, struct errmsg *m)
{
    return err_set(m, ERR_INVAL, "key '%.*s': %s%llu does not fit into %s",
                   GGUF_SHOW(v->kv.key), x.negative ? "-" : "",
                   (unsigned long long)x.magnitude, wanted);
}

static enum err get_unsigned(const struct gguf *g, const char *key,
                             uint64_t max, uint64_t *out, struct errmsg *m)
{
    const struct gguf_value *v = NULL;
    enum err rc = find(g, key, &v, m);
    if (rc != OK)
        return rc;
    const char *wanted = max == UINT32_MAX ? "u32" : "u64";
    if (!is_integer(v->kv.type))
        return wrong_type(v, wanted, m);
    struct integer x = load_integer(v->kv.type, v->at);
    if (x.negative || x.magnitude > max)
        return out_of_range(v, x, wanted, m);
    *out = x.magnitude;
    return OK;
}

enum err gguf_u32(const struct gguf *g, const char *key, uint32_t *out,
                  struct errmsg *m)
{
    uint64_t x = 0;
    enum err rc = get_unsigned(g, key, UINT32_MAX, &x, m);
    if (rc == OK)
        *out = (uint32_t)x;
    return rc;
}

enum err gguf_u64(const struct gguf *g, const char *key, uint64_t *out,
                  struct errmsg *m)
{
    return get_unsigned(g, key, UINT64_MAX, out, m);
}

/* t must be f32 or f64; rounds to nearest. */
static float load_float(enum gguf_type t, const uint8_t *p)
{
    double d = 0;
    float f = 0;
    if (t == GGUF_F64) {
        memcpy(&d, p, sizeof(d));
        return (float)d;
    }
    memcpy(&f, p, sizeof(f));
    return f;
}

enum err gguf_f32(const struct gguf *g, const char *key, float *out,
                  struct errmsg *m)
{
    const struct gguf_value *v = NULL;
    enum err rc = find(g, key, &v, m);
    if (rc != OK)
        return rc;
    if (v->kv.type != GGUF_F32 && v->kv.type != GGUF_F64)
        return wrong_type(v, "f32", m);
    float x = load_float(v->kv.type, v->at);
    if (!isfinite(x))
        return err_set(m, ERR_INVAL, "key '%s': the value is not finite in f32",
                       key);
    *out = x;
    return OK;
}

enum err gguf_bool(const struct gguf *g, const char *key, bool *out,
                   struct errmsg *m)
{
    const struct gguf_value *v = NULL;
    enum err rc = find(g, key, &v, m);
    if (rc != OK)
        return rc;
    if (v->kv.type != GGUF_BOOL)
        return wrong_type(v, "bool", m);
    *out = v->at[0] != 0;
    return OK;
}

enum err gguf_string(const struct gguf *g, const char *key,
                     struct gguf_str *out, struct errmsg *m)
{
    const struct gguf_value *v = NULL;
    enum err rc = find(g, key, &v, m);
    if (rc != OK)
        return rc;
    if (v->kv.type != GGUF_STRING)
        return wrong_type(v, "string", m);
    *out = (struct gguf_str){(const char *)v->at, v->bytes};
    return OK;
}

enum err gguf_array_info(const struct gguf *g, const char *key,
                         enum gguf_type *elem, size_t *count, struct errmsg *m)
{
    const struct gguf_value *v = NULL;
    enum err rc = find(g, key, &v, m);
    if (rc != OK)
        return rc;
    if (v->kv.type != GGUF_ARRAY)
        return wrong_type(v, "an array", m);
    if (elem != NULL)
        *elem = v->kv.elem;
    if (count != NULL)
        *count = v->kv.count;
    return OK;
}

static enum err find_array(const struct gguf *g, const char *key, size_t n,
                           const struct gguf_value **out, struct errmsg *m)
{
    enum err rc = find(g, key, out, m);
    if (rc != OK)
        return rc;
    if ((*out)->kv.type != GGUF_ARRAY)
        return wrong_type(*out, "an array", m);
    if ((*out)->kv.count != n)
        return err_set(m, ERR_INVAL,
                       "key '%s': the array has %zu elements, wanted %zu", key,
                       (*out)->kv.count, n);
    return OK;
}

enum err gguf_array_strings(const struct gguf *g, const char *key,
                            struct gguf_str *out, size_t n, struct errmsg *m)
{
    const struct gguf_value *v = NULL;
    enum err rc = find_array(g, key, n, &v, m);
    if (rc != OK)
        return rc;
    if (v->kv.elem != GGUF_STRING)
        return wrong_type(v, "an array of string", m);
    struct gguf_cursor c = {.data = v->at, .n = v->bytes, .at = 0};
    for (size_t i = 0; i < n; i++) {
        /* All lengths were checked when the file was read. */
        bool inside = gguf_take_str(&c, &out[i]);
        assert(inside);
    }
    return OK;
}

enum err gguf_array_i32(const struct gguf *g, const char *key, int32_t *out,
                        size_t n, struct errmsg *m)
{
    const struct gguf_value *v = NULL;
    enum err rc = find_array(g, key, n, &v, m);
    if (rc != OK)
        return rc;
    if (!is_integer(v->kv.elem))
        return wrong_type(v, "an array of i32", m);
    size_t bytes = types[v->kv.elem].bytes;
    for (size_t i = 0; i < n; i++) {
        struct integer x = load_integer(v->kv.elem, v->at + i * bytes);
        if (x.magnitude > (uint64_t)INT32_MAX + x.negative)
            return out_of_range(v, x, "i32", m);
        int64_t value = (int64_t)x.magnitude;
        out[i] = (int32_t)(x.negative ? -value : value);
    }
    return OK;
}

enum err gguf_array_f32(const struct gguf *g, const char *key, float *out,
                        size_t n, struct errmsg *m)
{
    const struct gguf_value *v = NULL;
    enum err rc = find_array(g, key, n, &v, m);
    if (rc != OK)
        return rc;
    if (v->kv.elem != GGUF_F32 && v->kv.elem != GGUF_F64)
        return wrong_type(v, "an array of f32", m);
    size_t bytes = types[v->kv.elem].bytes;
    for (size_t i = 0; i < n; i++)
        out[i] = load_float(v->kv.elem, v->at + i * bytes);
    return OK;
}

size_t gguf_n_kv(const struct gguf *g)
{
    return g->n_kv;
}

struct gguf_kv gguf_kv_at(const struct gguf *g, size_t i)
{
    assert(i < g->n_kv);
    return g->kv[i].kv;
}
