#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "runtime/engine/forget.h"

static void names_and_policies_are_each_others_inverse(void **state)
{
    (void)state;
    for (int p = FORGET_EXACT; p <= FORGET_STREAMINGLLM; p++) {
        enum forget_policy found = FORGET_EXACT;
        const char *name = forget_policy_name((enum forget_policy)p);
        assert_int_equal(forget_policy_find(&found, name, NULL), OK);
        assert_int_equal(found, p);
    }
    enum forget_policy found = FORGET_TRIMKV;
    assert_int_equal(forget_policy_find(&found, "none", NULL), OK);
    assert_int_equal(found, FORGET_EXACT);
}

static void what_is_not_built_differs_from_what_nobody_knows(void **state)
{
    (void)state;
    struct errmsg m;
    enum forget_policy p = FORGET_TRIMKV;
    assert_int_equal(forget_policy_find(&p, "snapkv", &m), ERR_UNSUPPORTED);
    assert_non_null(strstr(m.text, "snapkv"));
    assert_non_null(strstr(m.text, "streamingllm"));
    assert_int_equal(forget_policy_find(&p, "snapkw", &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "snapkw"));
    assert_int_equal(forget_policy_find(&p, "", &m), ERR_INVAL);
    assert_int_equal(forget_policy_find(&p, "EXACT", &m), ERR_INVAL);
    assert_int_equal(p, FORGET_TRIMKV);
}

static enum err admission(const char *text, enum forget_policy p,
                          struct forget_admission *out)
{
    struct errmsg m = {""};
    enum err rc = forget_admission_find(out, text, p, &m);
    assert_true((rc == OK) == (m.text[0] == '\0'));
    return rc;
}

static void admissions_are_a_ranking_and_a_fate(void **state)
{
    (void)state;
    struct forget_admission a;
    static const struct {
        const char *text;
        enum forget_policy policy;
        bool off;
        enum forget_ranking ranking;
        enum forget_fate fate;
    } good[] = {
        {"none", FORGET_DBTRIMKV, true, FORGET_RANK_POLICY, FORGET_DROP},
        {"retention+drop", FORGET_STREAMINGLLM, false, FORGET_RANK_RETENTION,
         FORGET_DROP},
        {"dbtrimkv+drop", FORGET_STREAMINGLLM, false, FORGET_RANK_RETENTION,
         FORGET_DROP},
        {"trimkv+drop", FORGET_TRIMKV, false, FORGET_RANK_POLICY, FORGET_DROP},
        {"streamingllm+drop", FORGET_STREAMINGLLM, false, FORGET_RANK_POLICY,
         FORGET_DROP},
        {"retention+merge", FORGET_DBTRIMKV, false, FORGET_RANK_RETENTION,
         FORGET_MERGE},
        {"streamingllm+selkv", FORGET_STREAMINGLLM, false, FORGET_RANK_POLICY,
         FORGET_MERGE},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(admission(good[i].text, good[i].policy, &a), OK);
        assert_int_equal(a.off, good[i].off);
        assert_int_equal(a.ranking, good[i].ranking);
        assert_int_equal(a.fate, good[i].fate);
    }
    static const char *const later[] = {
        "selkv+drop", "snapkv+drop", "selkv+merge",
        "trimkv+drop" /* not the policy's own */, "retention+cam"};
    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++)
        assert_int_equal(admission(later[i], FORGET_STREAMINGLLM, &a),
                         ERR_UNSUPPORTED);
    static const char *const bad[] = {
        "",
        "+",
        "drop",
        "retention",
        "+drop",
        "retention+",
        "retention+glue",
        "selkv+glue",
        "what+drop",
        "retention+drop+drop",
        "exact+drop+",
        "a-ranking-with-a-name-longer-than-any+drop"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(admission(bad[i], FORGET_STREAMINGLLM, &a), ERR_INVAL);
}

/* A client that asks for one admission always may ask for exact as well. */
static void under_exact_every_admission_means_none(void **state)
{
    (void)state;
    struct forget_rules r = {.policy = FORGET_EXACT};
    static const char *const good[] = {"none", "exact+drop", "trimkv+merge",
                                       "retention+drop", "streamingllm+merge"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char name[FORGET_ADMISSION_MAX];
        assert_int_equal(admission(good[i], FORGET_EXACT, &r.admission), OK);
        forget_admission_name(name, &r);
        assert_string_equal(name, "none");
        assert_false(forget_needs_gates(&r));
    }
    assert_int_equal(admission("snapkv+drop", FORGET_EXACT, &r.admission),
                     ERR_UNSUPPORTED);
    assert_int_equal(admission("what+drop", FORGET_EXACT, &r.admission),
                     ERR_INVAL);
    assert_int_equal(admission("exact+drop", FORGET_TRIMKV, &r.admission),
                     ERR_UNSUPPORTED);
}

static void the_name_of_an_admission_is_read_back(void **state)
{
    (void)state;
    for (int p = FORGET_DBTRIMKV; p <= FORGET_STREAMINGLLM; p++) {
        for (int i = 0; i < 4; i++) {
            struct forget_rules r = {
                .policy = (enum forget_policy)p,
                .admission = {.off = i == 2,
                              .fate = i == 3 ? FORGET_MERGE : FORGET_DROP,
                              .ranking = i == 1 ? FORGET_RANK_RETENTION
                                                : FORGET_RANK_POLICY}};
            char text[FORGET_ADMISSION_MAX];
            struct forget_admission a;
            forget_admission_name(text, &r);
            assert_int_equal(admission(text, r.policy, &a), OK);
            assert_int_equal(a.off, r.admission.off);
            assert_int_equal(a.fate, r.admission.fate);
            /* The policy's own ranking is retention where it is dbtrimkv. */
            if (!a.off && p != FORGET_DBTRIMKV)
                assert_int_equal(a.ranking, r.admission.ranking);
        }
    }
    struct forget_rules exact = {.policy = FORGET_EXACT};
    char text[FORGET_ADMISSION_MAX];
    forget_admission_name(text, &exact);
    assert_string_equal(text, "none");
}

static void gates_are_needed_by_what_ranks_with_them(void **state)
{
    (void)state;
    struct forget_rules r = forget_default_rules(false, false);
    assert_false(forget_needs_gates(&r));
    assert_int_equal(r.policy, FORGET_STREAMINGLLM);
    r.admission.ranking = FORGET_RANK_RETENTION;
    assert_true(forget_needs_gates(&r));
    r.admission.off = true;
    assert_false(forget_needs_gates(&r));
    r = forget_default_rules(true, true);
    assert_int_equal(r.policy, FORGET_DBTRIMKV);
    assert_true(forget_needs_gates(&r));
    /* Gates that rank within a head only. */
    r = forget_default_rules(true, false);
    assert_int_equal(r.policy, FORGET_TRIMKV);
    assert_int_equal(r.admission.ranking, FORGET_RANK_POLICY);
    assert_true(forget_needs_gates(&r));
    r.policy = FORGET_EXACT; /* cuts nothing, whatever its admission */
    assert_false(forget_needs_gates(&r));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_policies_are_each_others_inverse),
        cmocka_unit_test(what_is_not_built_differs_from_what_nobody_knows),
        cmocka_unit_test(admissions_are_a_ranking_and_a_fate),
        cmocka_unit_test(under_exact_every_admission_means_none),
        cmocka_unit_test(the_name_of_an_admission_is_read_back),
        cmocka_unit_test(gates_are_needed_by_what_ranks_with_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
