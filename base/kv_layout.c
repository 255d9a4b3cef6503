#include "base/kv_layout.h"

#include <assert.h>

void kv_layout_init(struct kv_layout *l, enum kv_type type, uint32_t head_dim)
{
    assert(head_dim > 0 && head_dim % 8 == 0);
    static const uint32_t elem[] = {[KV_F16] = 2, [KV_Q8_0] = 1, [KV_F32] = 4};
    *l = (struct kv_layout){
        .type = type, .head_dim = head_dim, .elem_bytes = elem[type]};
    uint32_t side = KV_UNIT * head_dim * l->elem_bytes;
    uint32_t column = KV_UNIT * (uint32_t)sizeof(float);
    uint32_t at = 2 * side;
    l->v = side;
    if (type == KV_Q8_0) {
        l->k_scale = at;
        l->v_scale = at + column;
        at += 2 * column;
    }
    l->bias = at;
    at += column;
    l->data_bytes = (at + KV_ALIGN - 1) / KV_ALIGN * KV_ALIGN;
}

const char *kv_type_name(enum kv_type type)
{
    static const char *const names[] = {
        [KV_F16] = "f16", [KV_Q8_0] = "q8_0", [KV_F32] = "f32"};
    return names[type];
}
