#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "cache/policy/policy.h"
#include "runtime/engine/forget.h"

static void names_and_policies_are_each_others_inverse(void **state)
{
    (void)state;
    uint32_t n_methods = 0;
    enum forget_policy found;
    for (int p = FORGET_EXACT; p < FORGET_H2O; p++) {
        const char *name = forget_policy_name((enum forget_policy)p);
        found = FORGET_N_POLICIES;
        assert_int_equal(forget_policy_find(&found, name, NULL), OK);
        assert_int_equal(found, p);
    }
    assert_int_equal(forget_policy_find(&found, "none", NULL), OK);
    assert_int_equal(found, FORGET_EXACT);
    assert_null(forget_policy_method(FORGET_EXACT));
    /* Every policy that there is, under its own name. */
    for (int p = FORGET_EXACT + 1; p < FORGET_N_POLICIES; p++) {
        const struct policy *method =
            forget_policy_method((enum forget_policy)p);
        assert_non_null(method);
        assert_string_equal(method->name,
                            forget_policy_name((enum forget_policy)p));
        assert_int_equal(method->at_decode, p < FORGET_H2O);
        n_methods++;
    }
    assert_non_null(policy_at(n_methods - 1));
    assert_null(policy_at(n_methods));
}

/* What needs more than the metadata of an entry is asked before it is ranked.
 */
static void what_needs_a_look_ranks_by_standings(void **state)
{
    (void)state;
    assert_false(forget_ranks_by_standing(FORGET_EXACT));
    for (int p = FORGET_EXACT + 1; p < FORGET_N_POLICIES; p++) {
        const struct policy *m = forget_policy_method((enum forget_policy)p);
        bool looks =
            (m->needs & ~(uint32_t)POLICY_LOG_BETA) != 0 || p == FORGET_RANDOM;
        assert_int_equal(forget_ranks_by_standing((enum forget_policy)p),
                         looks);
    }
}

static void what_ranks_prompts_only_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const prompts[] = {"h2o", "expected-attention", "fastv"};
    struct errmsg m;
    enum forget_policy p = FORGET_TRIMKV;
    for (size_t i = 0; i < 3; i++) {
        struct forget_admission a;
        char text[64];
        assert_int_equal(forget_policy_find(&p, prompts[i], &m),
                         ERR_UNSUPPORTED);
        assert_non_null(strstr(m.text, prompts[i]));
        assert_non_null(strstr(m.text, "snapkv"));
        /* What the sentence proposes is possible. */
        snprintf(text, sizeof(text), "%s+drop", prompts[i]);
        assert_non_null(strstr(m.text, text));
        assert_int_equal(forget_admission_find(&a, text, FORGET_SNAPKV, NULL),
                         OK);
        assert_string_equal(forget_policy_name(a.ranking), prompts[i]);
    }
    assert_int_equal(forget_policy_find(&p, "snapkw", &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "snapkw"));
    assert_non_null(strstr(m.text, "selkv-window"));
    assert_int_equal(forget_policy_find(&p, "", &m), ERR_INVAL);
    assert_int_equal(forget_policy_find(&p, "EXACT", &m), ERR_INVAL);
    assert_int_equal(forget_policy_find(&p, "selkv", &m), ERR_INVAL);
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
        enum forget_policy ranking;
        enum forget_fate fate;
    } good[] = {
        {"none", FORGET_DBTRIMKV, true, FORGET_RANK_POLICY, FORGET_DROP},
        {"retention+drop", FORGET_STREAMINGLLM, false, FORGET_RANK_RETENTION,
         FORGET_DROP},
        {"dbtrimkv+drop", FORGET_STREAMINGLLM, false, FORGET_RANK_RETENTION,
         FORGET_DROP},
        {"trimkv+drop", FORGET_TRIMKV, false, FORGET_TRIMKV, FORGET_DROP},
        {"trimkv+drop", FORGET_SNAPKV, false, FORGET_TRIMKV, FORGET_DROP},
        {"streamingllm+drop", FORGET_STREAMINGLLM, false, FORGET_STREAMINGLLM,
         FORGET_DROP},
        {"selkv+merge", FORGET_DBTRIMKV, false, FORGET_SELKV_WINDOW,
         FORGET_MERGE},
        {"selkv-window+drop", FORGET_DBTRIMKV, false, FORGET_SELKV_WINDOW,
         FORGET_DROP},
        {"h2o+merge", FORGET_TOVA, false, FORGET_H2O, FORGET_MERGE},
        {"expected-attention+drop", FORGET_STREAMINGLLM, false,
         FORGET_EXPECTED_ATTENTION, FORGET_DROP},
        {"retention+merge", FORGET_DBTRIMKV, false, FORGET_RANK_RETENTION,
         FORGET_MERGE},
        {"streamingllm+selkv", FORGET_STREAMINGLLM, false, FORGET_STREAMINGLLM,
         FORGET_MERGE},
        {"retention+lookm", FORGET_DBTRIMKV, false, FORGET_RANK_RETENTION,
         FORGET_LOOKM},
        {"trimkv+kvmerger", FORGET_TRIMKV, false, FORGET_TRIMKV,
         FORGET_KVMERGER},
        {"expected-attention+weightedkv", FORGET_DBTRIMKV, false,
         FORGET_EXPECTED_ATTENTION, FORGET_WEIGHTEDKV},
        {"streamingllm+cam", FORGET_STREAMINGLLM, false, FORGET_STREAMINGLLM,
         FORGET_CAM},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(admission(good[i].text, good[i].policy, &a), OK);
        assert_int_equal(a.off, good[i].off);
        assert_int_equal(a.ranking, good[i].ranking);
        assert_int_equal(a.fate, good[i].fate);
    }
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
        "exact+drop",
        "none+drop",
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
    static const char *const good[] = {
        "none",           "exact+drop",       "trimkv+merge",
        "retention+drop", "streamingllm+cam", "h2o+drop"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char name[FORGET_ADMISSION_MAX];
        assert_int_equal(admission(good[i], FORGET_EXACT, &r.admission), OK);
        forget_admission_name(name, &r);
        assert_string_equal(name, "none");
        assert_false(forget_needs_gates(&r));
        assert_false(forget_studies_prompt(&r));
    }
    assert_int_equal(admission("what+drop", FORGET_EXACT, &r.admission),
                     ERR_INVAL);
}

static void the_name_of_an_admission_is_read_back(void **state)
{
    (void)state;
    for (int p = FORGET_DBTRIMKV; p < FORGET_H2O; p++)
        for (int ranking = 0; ranking < FORGET_N_POLICIES; ranking++)
            for (int i = 0; i <= FORGET_N_FATES; i++) {
                struct forget_rules r = {
                    .policy = (enum forget_policy)p,
                    .admission = {.off = i == FORGET_N_FATES,
                                  .fate =
                                      (enum forget_fate)(i % FORGET_N_FATES),
                                  .ranking = (enum forget_policy)ranking}};
                struct forget_rules back = {.policy = r.policy};
                char text[FORGET_ADMISSION_MAX];
                forget_admission_name(text, &r);
                assert_int_equal(admission(text, r.policy, &back.admission),
                                 OK);
                if (r.admission.off)
                    assert_string_equal(text, "none");
                else
                    assert_true(forget_rules_equal(&r, &back));
                assert_int_equal(back.admission.off, r.admission.off);
                assert_int_equal(forget_ranking(&back), forget_ranking(&r));
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
    char text[FORGET_ADMISSION_MAX];
    assert_false(forget_needs_gates(&r));
    assert_int_equal(r.policy, FORGET_SELKV_WINDOW);
    forget_admission_name(text, &r);
    assert_string_equal(text, "selkv+drop");
    r.admission.ranking = FORGET_TRIMKV;
    assert_true(forget_needs_gates(&r));
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

static void some_rankings_study_the_whole_prompt(void **state)
{
    (void)state;
    struct forget_rules r = {.policy = FORGET_SNAPKV};
    for (int p = 0; p < FORGET_N_POLICIES; p++) {
        r.admission.off = false;
        r.admission.ranking = (enum forget_policy)p;
        assert_int_equal(forget_studies_prompt(&r),
                         p == FORGET_H2O || p == FORGET_EXPECTED_ATTENTION);
        r.admission.off = true;
        assert_false(forget_studies_prompt(&r));
    }
}

/* The attention of all tokens is watched where a server is told to only. */
static void a_fate_that_cannot_be_done_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool needs;
    } fates[FORGET_N_FATES] = {{"drop", false},      {"merge", false},
                               {"lookm", false},     {"kvmerger", true},
                               {"weightedkv", true}, {"cam", true}};
    for (int f = 0; f < FORGET_N_FATES; f++) {
        struct forget_options o = {.watch_columns = false};
        struct forget_rules r = {.policy = FORGET_TRIMKV,
                                 .admission.fate = (enum forget_fate)f};
        struct errmsg m = {""};
        enum err want = fates[f].needs ? ERR_UNSUPPORTED : OK;
        assert_int_equal(forget_fate_needs_columns(r.admission.fate),
                         fates[f].needs);
        assert_int_equal(forget_check_fate(&o, &r, &m), want);
        if (fates[f].needs) {
            assert_non_null(strstr(m.text, fates[f].name));
            assert_non_null(strstr(m.text, "--watch-columns"));
        }
        o.watch_columns = true;
        assert_int_equal(forget_check_fate(&o, &r, NULL), OK);
        o.watch_columns = false;
        r.admission.off = true;
        assert_int_equal(forget_check_fate(&o, &r, NULL), OK);
        r = (struct forget_rules){.policy = FORGET_EXACT,
                                  .admission.fate = (enum forget_fate)f};
        assert_int_equal(forget_check_fate(&o, &r, NULL), OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_policies_are_each_others_inverse),
        cmocka_unit_test(what_needs_a_look_ranks_by_standings),
        cmocka_unit_test(what_ranks_prompts_only_is_refused_by_name),
        cmocka_unit_test(admissions_are_a_ranking_and_a_fate),
        cmocka_unit_test(under_exact_every_admission_means_none),
        cmocka_unit_test(the_name_of_an_admission_is_read_back),
        cmocka_unit_test(a_fate_that_cannot_be_done_is_named),
        cmocka_unit_test(gates_are_needed_by_what_ranks_with_them),
        cmocka_unit_test(some_rankings_study_the_whole_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
