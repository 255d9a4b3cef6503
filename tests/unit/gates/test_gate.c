/* The layout of gate parameters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gates/gate.h"

static void parts_follow_each_other_without_gaps(void **state)
{
    (void)state;
    struct gate_shape s = {3, 10, 2, 4, GATE_RG10};
    struct gate_parts p = gate_parts(&s);
    assert_int_equal(p.w1, 0);
    assert_int_equal(p.c1, 40);
    assert_int_equal(p.w2, 44);
    assert_int_equal(p.c2, 60);
    assert_int_equal(p.w3, 64);
    assert_int_equal(p.c3, 72);
    assert_int_equal(p.n, 74);
    s.kind = GATE_RG;
    p = gate_parts(&s);
    assert_int_equal(p.w3, 44);
    assert_int_equal(p.c3, 52);
    assert_int_equal(p.n, 54);
}

static void gates_begin_as_zeros(void **state)
{
    (void)state;
    struct gate_shape s = {3, 10, 2, 4, GATE_RG10};
    struct gate *g = NULL;
    assert_int_equal(gate_new(&g, &s, NULL), OK);
    assert_int_equal(gate_n_params(g), 3 * 74);
    for (size_t i = 0; i < gate_n_params(g); i++)
        assert_true(g->p[i] == 0.0f);
    assert_ptr_equal(gate_layer(g, 2), g->p + 148);
    assert_string_equal(gate_kind_name(g->shape.kind), "rg10");
    assert_string_equal(gate_kind_name(GATE_RG), "rg");
    gate_free(g);
    gate_free(NULL);
}

static void shapes_without_sense_are_refused(void **state)
{
    (void)state;
    const struct gate_shape bad[] = {{0, 10, 2, 4, GATE_RG10},
                                     {3, 0, 2, 4, GATE_RG10},
                                     {3, 10, 0, 4, GATE_RG10},
                                     {3, 10, 2, 0, GATE_RG10},
                                     {3, 10, GATE_HEADS_MAX + 1, 4, GATE_RG10},
                                     {3, 10, 2, GATE_WIDTH_MAX + 1, GATE_RG10}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct gate *g = NULL;
        struct errmsg m = {""};
        assert_int_equal(gate_new(&g, &bad[i], &m), ERR_INVAL);
        assert_null(g);
        assert_non_null(strstr(m.text, "layers"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_follow_each_other_without_gaps),
        cmocka_unit_test(gates_begin_as_zeros),
        cmocka_unit_test(shapes_without_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
