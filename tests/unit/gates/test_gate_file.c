/* Gate files: round trips, other programs' layouts, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "gates/gate_file.h"

enum { LAYERS = 3, EMBD = 10, HEADS = 2, WIDTH = 4, TENSORS_MAX = 32 };

static const struct gate_shape SHAPE = {LAYERS, EMBD, HEADS, WIDTH, GATE_RG10};

/* A file put together by hand, tensor by tensor. */
struct parts {
    struct safetensors_tensor t[TENSORS_MAX];
    char name[TENSORS_MAX][96];
    float data[TENSORS_MAX][WIDTH * EMBD];
    size_t n;
    const char *kind; /* of the metadata; NULL: none */
};

static void put(struct parts *p, int layer, const char *suffix, uint64_t rows,
                uint64_t cols)
{
    size_t i = p->n++;
    uint64_t n = rows * (cols == 0 ? 1 : cols);
    snprintf(p->name[i], sizeof(p->name[i]),
             "model.layers.%d.self_attn.retention_gate.%s", layer, suffix);
    for (uint64_t k = 0; k < n; k++)
        p->data[i][k] = (float)i + 0.01f * (float)k;
    p->t[i] =
        (struct safetensors_tensor){.name = p->name[i],
                                    .type = DTYPE_F32,
                                    .n_dims = cols == 0 ? 1 : 2,
                                    .dims = {rows, cols == 0 ? 1 : cols, 1, 1},
                                    .data = (const uint8_t *)p->data[i],
                                    .bytes = n * sizeof(float)};
}

/* shared: layers that hold linear3 and bias. */
static void put_rg10(struct parts *p, int shared)
{
    memset(p, 0, sizeof(*p));
    p->kind = "rg10";
    for (int l = 0; l < LAYERS; l++) {
        put(p, l, "linear1.weight", WIDTH, EMBD);
        put(p, l, "linear1.bias", WIDTH, 0);
        put(p, l, "linear2.weight", WIDTH, WIDTH);
        put(p, l, "linear2.bias", WIDTH, 0);
        if (l >= shared)
            continue;
        put(p, l, "linear3.weight", HEADS, WIDTH);
        put(p, l, "bias", HEADS, 0);
    }
}

static const float *data_of(const struct parts *p, int layer,
                            const char *suffix)
{
    char name[96];
    snprintf(name, sizeof(name), "model.layers.%d.self_attn.retention_gate.%s",
             layer, suffix);
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->name[i], name) == 0)
            return p->data[i];
    fail_msg("no %s", name);
    return NULL;
}

static struct safetensors_tensor *tensor_of(struct parts *p, int layer,
                                            const char *suffix)
{
    const float *data = data_of(p, layer, suffix);
    for (size_t i = 0; i < p->n; i++)
        if (p->data[i] == data)
            return &p->t[i];
    return NULL;
}

static void new_path(char path[32])
{
    memcpy(path, "/tmp/ebb-gates-XXXXXX", sizeof("/tmp/ebb-gates-XXXXXX"));
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
}

static enum err load_parts(struct gate **out, const struct parts *p,
                           const struct gate_shape *s, struct errmsg *m)
{
    char path[32];
    new_path(path);
    const struct safetensors_string meta = {"gate", p->kind};
    assert_int_equal(
        safetensors_write(path, &meta, p->kind == NULL ? 0 : 1, p->t, p->n, m),
        OK);
    enum err rc = gate_load(out, path, s, m);
    unlink(path);
    return rc;
}

static void check_refused(const struct parts *p, const struct gate_shape *s,
                          enum err want, const char *part)
{
    struct gate *g = NULL;
    struct errmsg m = {""};
    enum err rc = load_parts(&g, p, s, &m);
    if (rc != want || strstr(m.text, part) == NULL ||
        strstr(m.text, "/tmp/ebb-gates-") == NULL)
        fail_msg("%d: %s", (int)rc, m.text);
    assert_null(g);
}

static void check_part(const struct gate *g, uint32_t layer, size_t at,
                       const float *want, size_t n)
{
    assert_memory_equal(gate_layer(g, layer) + at, want, n * sizeof(float));
}

/* Of the gate rg10, each layer with its own tensors. */
static void check_places(const struct gate *g, const struct parts *p)
{
    for (int l = 0; l < LAYERS; l++) {
        uint32_t u = (uint32_t)l;
        check_part(g, u, g->parts.w1, data_of(p, l, "linear1.weight"),
                   WIDTH * EMBD);
        check_part(g, u, g->parts.c1, data_of(p, l, "linear1.bias"), WIDTH);
        check_part(g, u, g->parts.w2, data_of(p, l, "linear2.weight"),
                   WIDTH * WIDTH);
        check_part(g, u, g->parts.c2, data_of(p, l, "linear2.bias"), WIDTH);
        check_part(g, u, g->parts.w3, data_of(p, l, "linear3.weight"),
                   HEADS * WIDTH);
        check_part(g, u, g->parts.c3, data_of(p, l, "bias"), HEADS);
    }
}

static void every_tensor_goes_to_its_place(void **state)
{
    (void)state;
    struct parts p;
    struct gate *g = NULL;
    struct errmsg m = {""};
    put_rg10(&p, LAYERS);
    assert_int_equal(load_parts(&g, &p, &SHAPE, &m), OK);
    assert_int_equal(g->shape.width, WIDTH);
    assert_int_equal(g->shape.kind, GATE_RG10);
    check_places(g, &p);
    gate_free(g);
}

/* To 8 significant bits, ties to even: bfloat16. */
static float rounded(float x)
{
    int exponent;
    float m = frexpf(x, &exponent);
    return ldexpf(rintf(ldexpf(m, 8)), exponent - 8);
}

static void bfloat16_tensors_are_read(void **state)
{
    (void)state;
    static uint16_t half[TENSORS_MAX][WIDTH * EMBD];
    struct parts p;
    struct gate *g = NULL;
    struct errmsg m = {""};
    put_rg10(&p, LAYERS);
    for (size_t i = 0; i < p.n; i++) {
        size_t n = p.t[i].bytes / sizeof(float);
        for (size_t k = 0; k < n; k++) {
            float want = rounded(-p.data[i][k]);
            uint32_t bits;
            memcpy(&bits, &want, sizeof(bits));
            assert_int_equal(bits & 0xffff, 0);
            half[i][k] = (uint16_t)(bits >> 16);
            p.data[i][k] = want;
        }
        p.t[i].type = DTYPE_BF16;
        p.t[i].data = (const uint8_t *)half[i];
        p.t[i].bytes = n * sizeof(half[i][0]);
    }
    assert_int_equal(load_parts(&g, &p, &SHAPE, &m), OK);
    check_places(g, &p);
    gate_free(g);
}

static void a_last_projection_under_layer_0_serves_all(void **state)
{
    (void)state;
    struct parts p;
    struct gate *g = NULL;
    struct errmsg m = {""};
    put_rg10(&p, 1);
    p.kind = NULL; /* told from the tensors */
    assert_int_equal(load_parts(&g, &p, NULL, &m), OK);
    assert_int_equal(g->shape.n_layers, LAYERS);
    assert_int_equal(g->shape.n_embd, EMBD);
    assert_int_equal(g->shape.n_kv_heads, HEADS);
    for (uint32_t l = 0; l < LAYERS; l++) {
        check_part(g, l, g->parts.w3, data_of(&p, 0, "linear3.weight"),
                   HEADS * WIDTH);
        check_part(g, l, g->parts.c3, data_of(&p, 0, "bias"), HEADS);
    }
    gate_free(g);
}

static void the_simple_gate_is_read(void **state)
{
    (void)state;
    struct parts p;
    struct gate *g = NULL;
    struct errmsg m = {""};
    for (int named = 0; named < 2; named++) {
        memset(&p, 0, sizeof(p));
        p.kind = named ? "rg" : NULL;
        for (int l = 0; l < LAYERS; l++) {
            put(&p, l, "linear1.weight", WIDTH, EMBD);
            put(&p, l, "linear1.bias", WIDTH, 0);
            put(&p, l, "linear2.weight", HEADS, WIDTH);
            put(&p, l, "bias", HEADS, 0);
        }
        assert_int_equal(load_parts(&g, &p, &SHAPE, &m), OK);
        assert_int_equal(g->shape.kind, GATE_RG);
        for (int l = 0; l < LAYERS; l++) {
            check_part(g, (uint32_t)l, g->parts.w3,
                       data_of(&p, l, "linear2.weight"), HEADS * WIDTH);
            check_part(g, (uint32_t)l, g->parts.c3, data_of(&p, l, "bias"),
                       HEADS);
        }
        gate_free(g);
    }
    p.n--; /* its bias is not shared */
    check_refused(&p, &SHAPE, ERR_INVAL, "layers.2.self_attn.retention_gate.b");
}

static void gates_of_another_model_are_refused_with_both_shapes(void **state)
{
    (void)state;
    struct parts p;
    put_rg10(&p, LAYERS);
    struct gate_shape s = SHAPE;
    s.n_layers = 4;
    check_refused(&p, &s, ERR_CONFLICT,
                  "for 3 layers, inputs of 10 and 2 KV heads; the model has 4");
    s = SHAPE;
    s.n_embd = 11;
    check_refused(&p, &s, ERR_CONFLICT, "inputs of 11");
    s = SHAPE;
    s.n_kv_heads = 1;
    check_refused(&p, &s, ERR_CONFLICT, "1 KV heads");
}

static void a_tensor_of_another_shape_is_named(void **state)
{
    (void)state;
    struct parts p;
    put_rg10(&p, LAYERS);
    struct safetensors_tensor *t = tensor_of(&p, 1, "linear2.weight");
    t->dims[1] = WIDTH - 1;
    t->bytes = WIDTH * (WIDTH - 1) * sizeof(float);
    check_refused(&p, &SHAPE, ERR_INVAL,
                  "layers.1.self_attn.retention_gate.linear2.weight is 4 x 3, "
                  "but");
    put_rg10(&p, LAYERS);
    t = tensor_of(&p, 2, "bias");
    t->n_dims = 2; /* [heads][1] is not [heads] */
    check_refused(&p, &SHAPE, ERR_INVAL, "layers.2");
}

static void a_missing_tensor_is_named(void **state)
{
    (void)state;
    struct parts p;
    put_rg10(&p, LAYERS);
    memcpy(p.name[1], "something", sizeof("something"));
    check_refused(&p, &SHAPE, ERR_INVAL,
                  "no tensor model.layers.0.self_attn.retention_gate.linear1."
                  "bias");
    put_rg10(&p, 0);
    check_refused(&p, &SHAPE, ERR_INVAL, "no retention gates");
}

static void numbers_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    struct parts p;
    put_rg10(&p, LAYERS);
    p.data[3][2] = NAN;
    check_refused(&p, &SHAPE, ERR_INVAL, "linear2.bias holds nan");
    put_rg10(&p, LAYERS);
    p.data[0][0] = -INFINITY;
    check_refused(&p, &SHAPE, ERR_INVAL, "linear1.weight holds -inf");
}

/* One number of a tensor of 16 bits, whose others are zero. */
static void put_half(struct parts *p, size_t i, enum dtype type, uint16_t half)
{
    static uint16_t data[WIDTH * EMBD];
    size_t n = p->t[i].bytes / sizeof(float);
    memset(data, 0, sizeof(data));
    data[n - 1] = half;
    p->t[i].type = type;
    p->t[i].data = (const uint8_t *)data;
    p->t[i].bytes = n * sizeof(data[0]);
}

static void check_loads(const struct parts *p)
{
    struct gate *g = NULL;
    struct errmsg m = {""};
    if (load_parts(&g, p, &SHAPE, &m) != OK)
        fail_msg("%s", m.text);
    gate_free(g);
}

/* 65504 is the largest number of F16; the next one of F32 is 2^-8 more, the
 * last of BF16 below it is 65280. */
static void numbers_beyond_those_of_16_bits_are_refused(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        uint16_t last, next;
        const char *sentence;
    } half[] = {{DTYPE_BF16, 0x477F, 0x4780, "bias holds 65536; -65504 to"},
                {DTYPE_BF16, 0xC77F, 0xFF7F, "bias holds -3.38953139e+38;"},
                {DTYPE_F16, 0x7BFF, 0x7C00, "bias holds inf;"},
                {DTYPE_F16, 0xFBFF, 0xFC00, "bias holds -inf;"},
                {DTYPE_F16, 0xFBFF, 0x7E00, "bias holds nan;"}};
    struct parts p;
    for (int i = 0; i < 6; i++) {
        put_rg10(&p, LAYERS);
        float *last = &p.data[i][p.t[i].bytes / sizeof(float) - 1];
        *last = i % 2 == 0 ? 65504.0f : -65504.0f;
        check_loads(&p);
        *last = nextafterf(*last, *last * 2.0f);
        check_refused(&p, &SHAPE, ERR_INVAL,
                      i % 2 == 0 ? "holds 65504.0039;" : "holds -65504.0039;");
        check_refused(&p, &SHAPE, ERR_INVAL, p.name[i]);
        *last = 3e38f;
        check_refused(&p, &SHAPE, ERR_INVAL,
                      "holds 3.00000001e+38; -65504 to 65504");
    }
    for (size_t k = 0; k < sizeof(half) / sizeof(half[0]); k++)
        for (size_t i = 1; i < 6; i += 4) { /* two of the biases */
            put_rg10(&p, LAYERS);
            put_half(&p, i, half[k].type, half[k].last);
            check_loads(&p);
            put_rg10(&p, LAYERS);
            put_half(&p, i, half[k].type, half[k].next);
            check_refused(&p, &SHAPE, ERR_INVAL, half[k].sentence);
            check_refused(&p, &SHAPE, ERR_INVAL, p.name[i]);
        }
}

static void another_type_of_gate_is_refused(void **state)
{
    (void)state;
    struct parts p;
    put_rg10(&p, LAYERS);
    p.kind = "rg3";
    check_refused(&p, &SHAPE, ERR_UNSUPPORTED, "rg3");
}

static void fill(struct gate *g, bool tied)
{
    struct rng r;
    rng_seed(&r, 11);
    for (size_t i = 0; i < gate_n_params(g); i++)
        g->p[i] = (float)rng_double(&r) - 0.5f;
    for (uint32_t l = 1; l < g->shape.n_layers && tied; l++)
        memcpy(gate_layer(g, l) + g->parts.w3, gate_layer(g, 0) + g->parts.w3,
               (g->parts.n - g->parts.w3) * sizeof(float));
}

/* Saves, loads, compares; *n_tensors is how many the file has. */
static void check_round_trip(enum gate_kind kind, bool tied, bool as_f16,
                             size_t *n_tensors)
{
    struct gate_shape s = SHAPE;
    struct gate *g = NULL, *back = NULL;
    struct safetensors *f = NULL;
    struct errmsg m = {""};
    char path[32];
    s.kind = kind;
    new_path(path);
    assert_int_equal(gate_new(&g, &s, &m), OK);
    fill(g, tied);
    g->p[5] = 1e9f; /* beyond what gates may hold */
    const struct safetensors_string meta[] = {{"gate", gate_kind_name(kind)},
                                              {"base_model", "tiny"}};
    assert_int_equal(gate_save(g, path, as_f16, meta, 2, &m), OK);
    assert_int_equal(gate_load(&back, path, &s, &m), OK);
    for (size_t i = 0; i < gate_n_params(g); i++) {
        float want = i == 5 ? 65504.0f : g->p[i];
        float most = as_f16 ? fabsf(want) * 0x1p-11f : 0.0f;
        assert_true(fabsf(back->p[i] - want) <= most);
    }
    assert_int_equal(safetensors_open(&f, path, &m), OK);
    assert_string_equal(safetensors_meta(f, "base_model"), "tiny");
    assert_int_equal(safetensors_at(f, 0)->type,
                     as_f16 ? DTYPE_F16 : DTYPE_F32);
    *n_tensors = safetensors_count(f);
    safetensors_close(f);
    gate_free(back);
    gate_free(g);
    unlink(path);
}

static void what_is_saved_loads_again(void **state)
{
    (void)state;
    size_t n;
    for (int as_f16 = 0; as_f16 < 2; as_f16++) {
        check_round_trip(GATE_RG10, true, as_f16, &n);
        assert_int_equal(n, 4 * LAYERS + 2);
        check_round_trip(GATE_RG10, false, as_f16, &n);
        assert_int_equal(n, 6 * LAYERS);
        check_round_trip(GATE_RG, true, as_f16, &n);
        assert_int_equal(n, 4 * LAYERS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_goes_to_its_place),
        cmocka_unit_test(bfloat16_tensors_are_read),
        cmocka_unit_test(a_last_projection_under_layer_0_serves_all),
        cmocka_unit_test(the_simple_gate_is_read),
        cmocka_unit_test(gates_of_another_model_are_refused_with_both_shapes),
        cmocka_unit_test(a_tensor_of_another_shape_is_named),
        cmocka_unit_test(a_missing_tensor_is_named),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(numbers_beyond_those_of_16_bits_are_refused),
        cmocka_unit_test(another_type_of_gate_is_refused),
        cmocka_unit_test(what_is_saved_loads_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
