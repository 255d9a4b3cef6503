#include "kernels_check.h"

static void every_f16_survives_a_round_trip(void **state)
{
    (void)state;
    struct kv_layout l;
    kv_layout_init(&l, KV_F16, 64);
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        if (o == NULL)
            continue;
        uint8_t *unit = check_alloc(l.data_bytes);
        float k[64], v[64], k2[64], v2[64];
        for (uint32_t h = 0; h < 65536; h += 64) {
            for (uint32_t j = 0; j < 64; j++) {
                k[j] = quant_f16_to_f32((uint16_t)(h + j));
                v[j] = quant_f16_to_f32((uint16_t)(h + 63 - j));
            }
            o->kv_store(&l, unit, h / 64 % KV_UNIT, k, v, 0.0f);
            o->kv_load(&l, unit, h / 64 % KV_UNIT, k2, v2);
            for (uint32_t j = 0; j < 64; j++) {
                if (isfinite(k[j]))
                    assert_int_equal(quant_f32_bits(k[j]),
                                     quant_f32_bits(k2[j]));
                if (isfinite(v[j]))
                    assert_int_equal(quant_f32_bits(v[j]),
                                     quant_f32_bits(v2[j]));
                assert_true(isfinite(k2[j]) && isfinite(v2[j]));
            }
        }
        free(unit);
    }
}

static void f16_is_rounded_to_nearest_even_and_clamped(void **state)
{
    (void)state;
    struct kv_layout l;
    struct rng r;
    rng_seed(&r, 3);
    kv_layout_init(&l, KV_F16, 80);
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        if (o == NULL)
            continue;
        uint8_t *unit = check_alloc(l.data_bytes);
        float k[80], v[80], k2[80], v2[80];
        for (uint32_t round = 0; round < 3000; round++) {
            for (uint32_t j = 0; j < 80; j++) {
                /* Any float, and the middles between two f16. */
                k[j] = quant_f32_from_bits((uint32_t)rng_next(&r));
                float low = quant_f16_to_f32((uint16_t)rng_below(&r, 0x7BFF));
                float high =
                    quant_f16_to_f32((uint16_t)(quant_f32_to_f16(low) + 1));
                v[j] = 0.5f * (low + high);
            }
            o->kv_store(&l, unit, round % KV_UNIT, k, v, 0.0f);
            o->kv_load(&l, unit, round % KV_UNIT, k2, v2);
            for (uint32_t j = 0; j < 80; j++) {
                float want = k[j] > 65504.0f    ? 65504.0f
                             : k[j] < -65504.0f ? -65504.0f
                                                : k[j];
                want = quant_f16_to_f32(quant_f32_to_f16(want));
                if (k[j] == k[j])
                    assert_true(k2[j] == want);
                else
                    assert_true(k2[j] == 0.0f);
                assert_true(v2[j] == quant_f16_to_f32(quant_f32_to_f16(v[j])));
            }
        }
        free(unit);
    }
}

/* Vectors whose scale ranges from none to the largest f16. */
static void q8_0_is_within_half_a_step(void **state)
{
    (void)state;
    static const float magnitude[] = {0.0f, 1e-42f, 1e-20f,
                                      0.3f, 900.0f, 1e30f};
    struct kv_layout l;
    struct rng r;
    rng_seed(&r, 4);
    kv_layout_init(&l, KV_Q8_0, 96);
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        if (o == NULL)
            continue;
        uint8_t *unit = check_alloc(l.data_bytes);
        float k[96], v[96], k2[96], v2[96];
        for (int m = 0; m < 6; m++) {
            check_fill(&r, k, 96);
            check_fill(&r, v, 96);
            float top = 0.0f;
            for (int j = 0; j < 96; j++) {
                k[j] = fminf(fmaxf(k[j] * magnitude[m], -65504.0f), 65504.0f);
                top = fmaxf(top, fabsf(k[j]));
            }
            o->kv_store(&l, unit, (uint32_t)m, k, v, 0.0f);
            o->kv_load(&l, unit, (uint32_t)m, k2, v2);
            double half = (double)top / 254 * 1.0001 + 1e-36;
            for (int j = 0; j < 96; j++)
                assert_true(fabs((double)k2[j] - (double)k[j]) <= half);
        }
        free(unit);
    }
}

static void f32_is_stored_as_it_is_but_finite(void **state)
{
    (void)state;
    struct kv_layout l;
    kv_layout_init(&l, KV_F32, 24);
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        if (o == NULL)
            continue;
        uint8_t *unit = check_alloc(l.data_bytes);
        float k[24], v[24], k2[24], v2[24];
        struct rng r;
        rng_seed(&r, 5);
        check_fill(&r, k, 24);
        check_fill(&r, v, 24);
        k[3] = INFINITY;
        v[23] = -INFINITY;
        v[0] = NAN;
        o->kv_store(&l, unit, 9, k, v, 0.0f);
        o->kv_load(&l, unit, 9, k2, v2);
        for (int j = 0; j < 24; j++) {
            if (isfinite(k[j]))
                assert_true(k2[j] == k[j]);
            if (isfinite(v[j]))
                assert_true(v2[j] == v[j]);
            assert_true(isfinite(k2[j]) && isfinite(v2[j]));
        }
        free(unit);
    }
}

/* Every byte of the data block but those of the slot must stay. */
static void a_store_touches_its_own_slot_only(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 3; t++) {
            struct kv_layout l;
            kv_layout_init(&l, (enum kv_type)t, 64);
            uint8_t *unit = check_alloc(l.data_bytes);
            float k[16][64], v[16][64], k2[64], v2[64], k3[64], v3[64];
            struct rng r;
            rng_seed(&r, 6);
            for (uint32_t s = 0; s < KV_UNIT; s++) {
                check_fill(&r, k[s], 64);
                check_fill(&r, v[s], 64);
                o->kv_store(&l, unit, s, k[s], v[s], (float)s);
            }
            for (uint32_t s = 0; s < KV_UNIT; s++) {
                uint8_t *alone = check_alloc(l.data_bytes);
                ops_reference.kv_store(&l, alone, s, k[s], v[s], (float)s);
                ops_reference.kv_load(&l, alone, s, k2, v2);
                o->kv_load(&l, unit, s, k3, v3);
                assert_memory_equal(k2, k3, sizeof(k2));
                assert_memory_equal(v2, v3, sizeof(v2));
                float bias;
                memcpy(&bias, unit + l.bias + 4 * s, 4);
                assert_true(bias == (float)s);
                free(alone);
            }
            free(unit);
        }
    }
}

/* A second store of one half must leave every byte of the other as it was,
 * also where loading and storing it again would round. */
static void half_an_entry_is_replaced_alone(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_TABLES; i++) {
        const struct ops *o = check_table(i);
        for (int t = 0; o != NULL && t < 3; t++) {
            struct kv_layout l;
            kv_layout_init(&l, (enum kv_type)t, 64);
            uint8_t *unit = check_alloc(l.data_bytes);
            uint8_t *want = check_alloc(l.data_bytes);
            float k[2][64], v[2][64], k2[64], v2[64], k3[64], v3[64];
            struct rng r;
            rng_seed(&r, 7);
            for (uint32_t s = 0; s < KV_UNIT; s++) {
                for (int n = 0; n < 2; n++) {
                    check_fill(&r, k[n], 64);
                    check_fill(&r, v[n], 64);
                }
                bool is_key = s % 2 != 0;
                o->kv_store(&l, want, s, k[is_key], v[!is_key], 5.0f);
                o->kv_store(&l, unit, s, k[0], v[0], 1.0f);
                o->kv_store(&l, unit, s, is_key ? k[1] : NULL,
                            is_key ? NULL : v[1], 5.0f);
                o->kv_load(&l, unit, s, k2, v2);
                o->kv_load(&l, unit, s, k3, NULL);
                o->kv_load(&l, unit, s, NULL, v3);
                assert_memory_equal(k2, k3, sizeof(k2));
                assert_memory_equal(v2, v3, sizeof(v2));
            }
            assert_memory_equal(unit, want, l.data_bytes);
            free(unit);
            free(want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_survives_a_round_trip),
        cmocka_unit_test(f16_is_rounded_to_nearest_even_and_clamped),
        cmocka_unit_test(q8_0_is_within_half_a_step),
        cmocka_unit_test(f32_is_stored_as_it_is_but_finite),
        cmocka_unit_test(a_store_touches_its_own_slot_only),
        cmocka_unit_test(half_an_entry_is_replaced_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
