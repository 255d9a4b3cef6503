/* Loading: what is accepted, and that everything else is an error that names
 * the key or tensor. The files are put together here, with one change each. */
#include "tests/unit/runtime/model/model_check.h"

#include "tests/unit/runtime/gguf/gguf_writer.h"

enum { E = 64, F = 32, V = 8, LAYERS = 2, KEYS_MAX = 24, TENSORS_MAX = 48 };

struct key {
    char name[96];
    enum gguf_type type; /* GGUF_ARRAY: an array of two u32 */
    uint64_t number;     /* or the bits of a float */
    const char *text;
};

struct tensor {
    char name[64];
    uint32_t type;
    uint64_t dims[3];
    uint32_t n_dims;
};

struct plan {
    struct key key[KEYS_MAX];
    struct tensor tensor[TENSORS_MAX];
    int n_keys, n_tensors;
};

static void set_key(struct plan *p, const char *name, enum gguf_type type,
                    uint64_t number, const char *text)
{
    int i = 0;
    while (i < p->n_keys && strcmp(p->key[i].name, name) != 0)
        i++;
    assert_true(i < KEYS_MAX);
    p->n_keys += i == p->n_keys;
    snprintf(p->key[i].name, sizeof(p->key[i].name), "%s", name);
    p->key[i].type = type;
    p->key[i].number = number;
    p->key[i].text = text;
}

static void set_u32(struct plan *p, const char *name, uint32_t x)
{
    set_key(p, name, GGUF_U32, x, NULL);
}

static void set_f32(struct plan *p, const char *name, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    set_key(p, name, GGUF_F32, bits, NULL);
}

static void drop_key(struct plan *p, const char *name)
{
    for (int i = 0; i < p->n_keys; i++)
        if (strcmp(p->key[i].name, name) == 0) {
            p->key[i] = p->key[--p->n_keys];
            return;
        }
    fail_msg("no key %s", name);
}

static struct tensor *add_tensor(struct plan *p, const char *name,
                                 uint32_t type, uint64_t cols, uint64_t rows)
{
    struct tensor *t = &p->tensor[p->n_tensors++];
    assert_true(p->n_tensors <= TENSORS_MAX);
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->type = type;
    t->dims[0] = cols;
    t->dims[1] = rows;
    t->n_dims = rows > 1 ? 2 : 1;
    return t;
}

static struct tensor *find_tensor(struct plan *p, const char *name)
{
    for (int i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensor[i].name, name) == 0)
            return &p->tensor[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void add_layer(struct plan *p, int i, int with_bias)
{
    static const struct {
        const char *name;
        uint32_t type;
        uint64_t cols, rows;
    } all[] = {
        {"attn_norm.weight", DTYPE_F32, E, 1},
        {"attn_q.weight", DTYPE_Q8_0, E, E},
        {"attn_k.weight", DTYPE_Q8_0, E, E},
        {"attn_v.weight", DTYPE_Q8_0, E, E},
        {"attn_output.weight", DTYPE_Q8_0, E, E},
        {"ffn_norm.weight", DTYPE_F32, E, 1},
        {"ffn_gate.weight", DTYPE_Q4_0, E, F},
        {"ffn_up.weight", DTYPE_Q4_1, E, F},
        {"ffn_down.weight", DTYPE_Q5_0, F, E},
        {"attn_q.bias", DTYPE_F32, E, 1},
        {"attn_k.bias", DTYPE_F32, E, 1},
        {"attn_v.bias", DTYPE_F32, E, 1},
    };
    int n = with_bias ? 12 : 9;
    for (int k = 0; k < n; k++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%d.%s", i, all[k].name);
        add_tensor(p, name, all[k].type, all[k].cols, all[k].rows);
    }
}

/* A model that loads. */
static struct plan plain(const char *arch)
{
    static const char *const counts[] = {
        "block_count",          "context_length",
        "embedding_length",     "feed_forward_length",
        "attention.head_count", "attention.head_count_kv"};
    static const uint32_t values[] = {LAYERS, 128, E, F, 1, 1};
    struct plan p = {.n_keys = 0};
    char name[96];
    set_key(&p, "general.architecture", GGUF_STRING, 0, arch);
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof(name), "%s.%s", arch, counts[i]);
        set_u32(&p, name, values[i]);
    }
    snprintf(name, sizeof(name), "%s.attention.layer_norm_rms_epsilon", arch);
    set_f32(&p, name, 1e-5f);
    add_tensor(&p, "token_embd.weight", DTYPE_Q8_0, E, V);
    add_tensor(&p, "output_norm.weight", DTYPE_F32, E, 1);
    for (int i = 0; i < LAYERS; i++)
        add_layer(&p, i, strcmp(arch, "qwen2") == 0);
    return p;
}

static void write_key(struct file *f, const struct key *k)
{
    if (k->type == GGUF_STRING) {
        put_kv_string(f, k->name, k->text);
    } else if (k->type == GGUF_ARRAY) {
        put_array_head(f, k->name, GGUF_U32, 2);
        put_u32(f, 1);
        put_u32(f, 1);
    } else {
        put_kv_number(f, k->name, k->type, k->number,
                      k->type == GGUF_BOOL ? 1 : 4);
    }
}

static uint64_t tensor_bytes(const struct tensor *t)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < t->n_dims; d++)
        n *= t->dims[d];
    const struct dtype_info *i = dtype_info(t->type);
    return n / i->block_elems * i->block_bytes;
}

static void write_file(struct file *f, const struct plan *p)
{
    uint64_t offset = 0;
    f->n = 0;
    put_header(f, 3, (uint64_t)p->n_tensors, (uint64_t)p->n_keys);
    for (int i = 0; i < p->n_keys; i++)
        write_key(f, &p->key[i]);
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensor[i];
        put_tensor(f, t->name, t->n_dims, t->dims, t->type, offset);
        offset += (tensor_bytes(t) + 31) / 32 * 32;
    }
    while (f->n % 32 != 0)
        put_bytes(f, "", 1);
    /* Zeros: a finite number in every type. */
    assert_true(offset <= sizeof(f->b) - f->n);
    memset(f->b + f->n, 0, offset);
    f->n += offset;
}

static struct workers *workers;
static struct file file;

static enum err try_load(const struct plan *p, struct errmsg *m)
{
    struct gguf *g = NULL;
    struct model *model = NULL;
    struct model_options o = {.ops = &ops_reference,
                              .workers = workers,
                              .max_rows = 8,
                              .max_runs = 2};
    write_file(&file, p);
    m->text[0] = 0;
    if (gguf_parse(&g, file.b, file.n, m) != OK)
        fail_msg("%s", m->text);
    enum err rc = model_load(&model, g, &o, m);
    if (rc == OK)
        assert_non_null(model);
    else
        assert_null(model);
    model_free(model);
    gguf_close(g);
    return rc;
}

static void refused(const struct plan *p, enum err want, const char *words)
{
    struct errmsg m;
    enum err rc = try_load(p, &m);
    if (rc != want || !strstr(m.text, words))
        fail_msg("wanted %s with \"%s\", got %s: %s", err_name(want), words,
                 err_name(rc), m.text);
}

static void accepted(const struct plan *p)
{
    struct errmsg m;
    if (try_load(p, &m) != OK)
        fail_msg("%s", m.text);
}

static void plain_models_load(void **state)
{
    (void)state;
    struct plan p = plain("llama");
    accepted(&p);
    p = plain("qwen2");
    accepted(&p);
}

static void unknown_architectures_are_refused_by_name(void **state)
{
    (void)state;
    struct plan p = plain("gemma3");
    refused(&p, ERR_UNSUPPORTED, "\"gemma3\"");
    set_key(&p, "general.architecture", GGUF_STRING, 0,
            "a-very-long-name-of-an-architecture-that-nobody-has");
    refused(&p, ERR_UNSUPPORTED, "a-very-long-name");
    drop_key(&p, "general.architecture");
    refused(&p, ERR_INVAL, "general.architecture");
}

static void every_missing_tensor_is_named(void **state)
{
    (void)state;
    struct plan good = plain("qwen2");
    for (int i = 0; i < good.n_tensors; i++) {
        struct plan p = good;
        p.tensor[i] = p.tensor[--p.n_tensors];
        refused(&p, ERR_INVAL, good.tensor[i].name);
    }
}

static void every_misshapen_tensor_is_named(void **state)
{
    (void)state;
    struct plan good = plain("qwen2");
    for (int i = 0; i < good.n_tensors; i++) {
        struct plan p = good;
        struct tensor *t = &p.tensor[i];
        /* The vocabulary may have any size. */
        if (strcmp(t->name, "token_embd.weight") != 0) {
            t->dims[1] = t->n_dims == 1 ? 2 : t->dims[1] + 1;
            t->n_dims = 2;
            refused(&p, ERR_INVAL, t->name);
        }
        p = good;
        t->dims[0] *= 2;
        refused(&p, ERR_INVAL, t->name);
        p = good;
        t->dims[1] = t->n_dims == 1 ? 1 : t->dims[1];
        t->dims[2] = 2;
        t->n_dims = 3;
        refused(&p, ERR_INVAL, t->name);
    }
}

static void tensors_we_do_not_use_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {
        "blk.0.attn_q.bias",        "blk.1.ffn_gate_inp.weight",
        "blk.2.attn_q.weight",      "rope_factors_long.weight",
        "blk.0.attn_q_norm.weight", "blk.00.attn_q.weight",
        "position_embd.weight"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct plan p = plain("llama");
        add_tensor(&p, names[i], DTYPE_F32, E, 1);
        refused(&p, ERR_UNSUPPORTED, names[i]);
    }
}

static void vectors_must_be_f32(void **state)
{
    (void)state;
    struct plan p = plain("llama");
    find_tensor(&p, "blk.1.ffn_norm.weight")->type = DTYPE_F16;
    refused(&p, ERR_UNSUPPORTED, "blk.1.ffn_norm.weight is F16");
}

static void absurd_numbers_are_errors_that_name_the_key(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
    } cases[] = {
        {"llama.block_count", 0},
        {"llama.block_count", 4096},
        {"llama.block_count", UINT32_MAX},
        {"llama.context_length", 0},
        {"llama.context_length", UINT32_MAX},
        {"llama.embedding_length", 0},
        {"llama.embedding_length", UINT32_MAX},
        {"llama.feed_forward_length", 0},
        {"llama.feed_forward_length", UINT32_MAX},
        {"llama.attention.head_count", 0},
        {"llama.attention.head_count", UINT32_MAX},
        {"llama.attention.head_count_kv", 0},
        {"llama.rope.dimension_count", 63},
        {"llama.rope.dimension_count", 0},
        {"llama.rope.dimension_count", 32},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan p = plain("llama");
        struct errmsg m;
        set_u32(&p, cases[i].key, cases[i].value);
        enum err rc = try_load(&p, &m);
        assert_true(rc == ERR_INVAL || rc == ERR_UNSUPPORTED);
        if (!strstr(m.text, cases[i].key))
            fail_msg("%s is not in: %s", cases[i].key, m.text);
    }
}

static void heads_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct plan p = plain("llama");
    set_u32(&p, "llama.attention.head_count", 3);
    set_u32(&p, "llama.attention.head_count_kv", 2);
    refused(&p, ERR_INVAL, "3 attention heads");
    p = plain("llama");
    set_u32(&p, "llama.attention.head_count", 64);
    refused(&p, ERR_UNSUPPORTED, "64 query heads");
    p = plain("llama");
    set_u32(&p, "llama.attention.key_length", 48);
    refused(&p, ERR_UNSUPPORTED, "48 dimensions");
    p = plain("llama");
    set_u32(&p, "llama.attention.value_length", 32);
    refused(&p, ERR_UNSUPPORTED, "values of 32");
    p = plain("llama");
    set_key(&p, "llama.attention.head_count_kv", GGUF_ARRAY, 0, NULL);
    refused(&p, ERR_INVAL, "llama.attention.head_count_kv");
    p = plain("llama");
    set_key(&p, "llama.block_count", GGUF_STRING, 0, "two");
    refused(&p, ERR_INVAL, "llama.block_count");
}

static void keys_that_must_be_there_are_named(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "llama.block_count",          "llama.context_length",
        "llama.embedding_length",     "llama.feed_forward_length",
        "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct plan p = plain("llama");
        drop_key(&p, keys[i]);
        refused(&p, ERR_INVAL, keys[i]);
    }
}

static void features_we_do_not_have_are_refused_by_name(void **state)
{
    (void)state;
    struct plan p = plain("llama");
    set_u32(&p, "llama.expert_count", 8);
    refused(&p, ERR_UNSUPPORTED, "experts");
    p = plain("llama");
    set_u32(&p, "llama.attention.sliding_window", 64);
    refused(&p, ERR_UNSUPPORTED, "sliding windows");
    p = plain("llama");
    set_key(&p, "llama.rope.scaling.type", GGUF_STRING, 0, "yarn");
    refused(&p, ERR_UNSUPPORTED, "\"yarn\"");
    p = plain("llama");
    set_key(&p, "llama.use_parallel_residual", GGUF_BOOL, 1, NULL);
    refused(&p, ERR_UNSUPPORTED, "parallel residual");
    p = plain("llama");
    set_key(&p, "llama.attention.causal", GGUF_BOOL, 0, NULL);
    refused(&p, ERR_UNSUPPORTED, "llama.attention.causal");
    p = plain("llama");
    set_f32(&p, "llama.final_logit_softcapping", 30);
    refused(&p, ERR_UNSUPPORTED, "llama.final_logit_softcapping");
    p = plain("llama");
    set_f32(&p, "llama.attention.scale", 0.5f);
    refused(&p, ERR_UNSUPPORTED, "llama.attention.scale");
}

static void settings_that_change_nothing_are_accepted(void **state)
{
    (void)state;
    struct plan p = plain("llama");
    set_u32(&p, "llama.expert_count", 0);
    set_u32(&p, "llama.vocab_size", V);
    set_u32(&p, "llama.attention.sliding_window", 128);
    set_key(&p, "llama.rope.scaling.type", GGUF_STRING, 0, "none");
    set_key(&p, "llama.use_parallel_residual", GGUF_BOOL, 0, NULL);
    set_key(&p, "llama.attention.causal", GGUF_BOOL, 1, NULL);
    set_u32(&p, "llama2.unknown", 1); /* of no architecture of ours */
    add_tensor(&p, "output.weight", DTYPE_Q8_0, E, V);
    struct tensor *t = add_tensor(&p, "rope_freqs.weight", DTYPE_F32, E / 2, 1);
    struct errmsg m;
    /* Frequencies are divided by them. */
    assert_int_equal(try_load(&p, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "rope_freqs.weight holds 0"));
    assert_string_equal(p.tensor[--p.n_tensors].name, t->name);
    accepted(&p);
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    struct plan p = plain("llama");
    set_f32(&p, "llama.attention.layer_norm_rms_epsilon", -1);
    refused(&p, ERR_INVAL, "layer_norm_rms_epsilon");
    p = plain("llama");
    set_f32(&p, "llama.rope.freq_base", 0);
    refused(&p, ERR_INVAL, "llama.rope.freq_base");
    p = plain("llama");
    set_key(&p, "llama.rope.scaling.type", GGUF_STRING, 0, "linear");
    set_f32(&p, "llama.rope.scaling.factor", 0);
    refused(&p, ERR_INVAL, "llama.rope.scaling.factor");
    p = plain("llama");
    set_key(&p, "tokenizer.ggml.tokens", GGUF_ARRAY, 0, NULL);
    accepted(&p); /* two tokens, eight rows */
    find_tensor(&p, "token_embd.weight")->dims[1] = 1;
    refused(&p, ERR_INVAL, "2 tokens");
}

static void step_sizes_out_of_range_are_refused(void **state)
{
    (void)state;
    static const struct model_options bad[] = {
        {.max_rows = 0, .max_runs = 1},
        {.max_rows = 8, .max_runs = 0},
        {.max_rows = 8, .max_runs = 9},
        {.max_rows = UINT32_MAX, .max_runs = 1},
        {.max_rows = 8, .max_runs = 1, .max_context = UINT32_MAX}};
    struct plan p = plain("llama");
    struct gguf *g = NULL;
    write_file(&file, &p);
    assert_int_equal(gguf_parse(&g, file.b, file.n, NULL), OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct model_options o = bad[i];
        struct model *m = NULL;
        o.ops = &ops_reference;
        o.workers = workers;
        assert_int_equal(model_load(&m, g, &o, NULL), ERR_INVAL);
    }
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_models_load),
        cmocka_unit_test(unknown_architectures_are_refused_by_name),
        cmocka_unit_test(every_missing_tensor_is_named),
        cmocka_unit_test(every_misshapen_tensor_is_named),
        cmocka_unit_test(tensors_we_do_not_use_are_refused),
        cmocka_unit_test(vectors_must_be_f32),
        cmocka_unit_test(absurd_numbers_are_errors_that_name_the_key),
        cmocka_unit_test(heads_that_do_not_fit_are_refused),
        cmocka_unit_test(keys_that_must_be_there_are_named),
        cmocka_unit_test(features_we_do_not_have_are_refused_by_name),
        cmocka_unit_test(settings_that_change_nothing_are_accepted),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(step_sizes_out_of_range_are_refused),
    };
    if (workers_new(&workers, 1, NULL) != OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    workers_free(workers);
    return failed;
}
