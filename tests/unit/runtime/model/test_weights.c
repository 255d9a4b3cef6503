#include "tests/unit/runtime/model/tiny_models.h"

#include <math.h>

#include "runtime/model/weights.h"

static void open_tiny(struct rig *r, const char *name)
{
    const struct rig_options o = {.ops = &ops_reference,
                                  .n_threads = 1,
                                  .kv_type = KV_F32,
                                  .max_rows = 4,
                                  .max_runs = 1,
                                  .max_context = 64,
                                  .kv_bytes = 1 << 20};
    tiny_open(r, name, &o);
}

static void is_tensor(const struct rig *r, const struct weight *w,
                      const char *name)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->gguf, name);
    assert_non_null(t);
    assert_ptr_equal(w->raw, t->data);
    assert_int_equal(w->type, t->type);
    assert_int_equal(w->cols, t->dims[0]);
    assert_int_equal(w->rows, t->dims[1]);
}

static void is_vector(const struct rig *r, const float *v, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->gguf, name);
    assert_non_null(t);
    assert_memory_equal(v, t->data, t->bytes);
}

static void each_tensor_is_where_its_name_says(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "qwen2-mha-128");
    struct model_weights w = model_weights(r.model);
    const struct layer *l = &w.layer[1];
    is_tensor(&r, &l->q, "blk.1.attn_q.weight");
    is_tensor(&r, &l->k, "blk.1.attn_k.weight");
    is_tensor(&r, &l->v, "blk.1.attn_v.weight");
    is_tensor(&r, &l->o, "blk.1.attn_output.weight");
    is_tensor(&r, &l->gate, "blk.1.ffn_gate.weight");
    is_tensor(&r, &l->up, "blk.1.ffn_up.weight");
    is_tensor(&r, &l->down, "blk.1.ffn_down.weight");
    is_tensor(&r, w.embd, "token_embd.weight");
    is_tensor(&r, w.head, "output.weight");
    is_vector(&r, l->attn_norm, "blk.1.attn_norm.weight");
    is_vector(&r, l->ffn_norm, "blk.1.ffn_norm.weight");
    is_vector(&r, l->q_bias, "blk.1.attn_q.bias");
    is_vector(&r, l->k_bias, "blk.1.attn_k.bias");
    is_vector(&r, l->v_bias, "blk.1.attn_v.bias");
    is_vector(&r, w.out_norm, "output_norm.weight");
    assert_null(l->q_norm);
    assert_false(w.is_tied);
    assert_false(w.family->rope_interleaved);
    rig_close(&r);
}

static void a_tied_head_is_the_embedding(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "qwen3-gqa2-128");
    struct model_weights w = model_weights(r.model);
    assert_true(w.is_tied);
    is_tensor(&r, w.head, "token_embd.weight");
    is_vector(&r, w.layer[0].q_norm, "blk.0.attn_q_norm.weight");
    is_vector(&r, w.layer[0].k_norm, "blk.0.attn_k_norm.weight");
    assert_null(w.layer[0].q_bias);
    rig_close(&r);
}

static void frequencies_fall_from_one(void **state)
{
    (void)state;
    struct rig r;
    open_tiny(&r, "llama-gqa2-96-linear");
    struct model_weights w = model_weights(r.model);
    /* Linear scaling by 2.5; the base is 50000. */
    for (int i = 0; i < 48; i++)
        assert_true(fabs(w.rope_freq[i] * 2.5 * exp(log(50000.0) * i / 48) -
                         1) < 1e-12);
    assert_true(w.family->rope_interleaved);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tensor_is_where_its_name_says),
        cmocka_unit_test(a_tied_head_is_the_embedding),
        cmocka_unit_test(frequencies_fall_from_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
