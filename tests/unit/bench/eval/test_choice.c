/* Names on the command line: policies, fates and their settings. */
#include "tests/unit/bench/eval/rig.h"

#include "bench/eval/choice.h"

static struct choice find(const char *name)
{
    return rig_choice(name, 0.25);
}

static void policies_are_checked(void **state)
{
    (void)state;
    struct choice c;
    struct errmsg m = {""};
    assert_int_equal(choice_find(&c, "keydif", POLICY_KEYS, &m), ERR_NOTFOUND);
    assert_non_null(strstr(m.text, "keydiff"));
    assert_int_equal(choice_find(&c, "dbtrimkv", POLICY_KEYS, &m),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(m.text, "gates"));
    assert_int_equal(choice_find(&c, "full", 0, &m), OK);
    assert_int_equal(c.kind, CHOICE_FULL);
    assert_int_equal(choice_entries(0.25, 1024), 256);
    assert_int_equal(choice_entries(1, 1000), 1000);
    assert_int_equal(choice_entries(0.0001, 100), 1);
}

static void a_fate_has_one_name(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"keydiff", "keydiff"},
        {"keydiff+drop", "keydiff"},
        {"keydiff+merge", "keydiff+merge"},
        {"keydiff+selkv", "keydiff+merge"},
        {"retention+merge", "dbtrimkv+merge"},
        {"selkv+drop", "selkv-window"},
        {"selkv+selkv", "selkv-window+merge"},
        {"snapkv+lookm", "snapkv+lookm"},
        {"snapkv+merge:alpha=0.0", "snapkv+merge:alpha=0"},
        {"expected-attention+merge:min-mass=0:max-ratio=0",
         "expected-attention+merge:min-mass=0:max-ratio=0"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct choice c = find(names[i][0]);
        assert_string_equal(c.name, names[i][1]);
        assert_int_equal(c.fate != NULL, strchr(names[i][1], '+') != NULL);
        assert_string_equal(c.policy->name,
                            find(strtok(c.name, "+")).policy->name);
    }
    assert_ptr_equal(find("keydiff+merge").fate, fate_find("selkv"));
    assert_int_equal(find("retention+cam").kind, CHOICE_PASS);
}

static void settings_are_the_servers(void **state)
{
    (void)state;
    struct merge_options server = merge_options_default();
    struct choice c = find("keydiff+merge");
    assert_memory_equal(&c.merge, &server, sizeof(server));
    c = find("keydiff+merge:alpha=0.25:min-mass=2:max-ratio=8");
    assert_true(c.merge.alpha == 0.25f && c.merge.min_mass == 2.0f &&
                c.merge.max_ratio == 8.0f);
    assert_true(isinf(find("keydiff+merge:max-ratio=0").merge.max_ratio));
}

static void wrong_fates_are_told(void **state)
{
    (void)state;
    static const struct {
        const char *name, *word;
        enum err rc;
    } wrong[] = {{"keydiff+merg", "merge", ERR_NOTFOUND},
                 {"keydiff+", "fate", ERR_NOTFOUND},
                 {"full+merge", "policy", ERR_NOTFOUND},
                 {"keydiff+drop:alpha=1", "drop", ERR_INVAL},
                 {"keydiff+merge:beta=1", "alpha", ERR_INVAL},
                 {"keydiff+merge:alpha", "alpha=X", ERR_INVAL},
                 {"keydiff+merge:alpha=", "alpha=X", ERR_INVAL},
                 {"keydiff+merge:alpha=1x", "alpha=X", ERR_INVAL},
                 {"keydiff+merge:alpha=-1", "alpha=X", ERR_INVAL},
                 {"keydiff+merge:alpha=nan", "alpha=X", ERR_INVAL}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct choice c;
        struct errmsg m = {""};
        assert_int_equal(choice_find(&c, wrong[i].name, RIG_NEEDS, &m),
                         wrong[i].rc);
        assert_non_null(strstr(m.text, wrong[i].word));
    }
}

static struct config_list list_of(char **item, size_t n)
{
    return (struct config_list){.item = item, .n = n};
}

static enum err read(struct choices *out, char **policy, size_t n,
                     const char *against, struct errmsg *m)
{
    char *shares[] = {"0.25", "0.5"};
    struct config_list names = list_of(policy, n), budgets = list_of(shares, 2);
    const struct choices_input in = {.policy = &names,
                                     .budget = &budgets,
                                     .against = against,
                                     .has = RIG_NEEDS};
    return choices_read(out, &in, m);
}

/* full, the merge at two budgets, and what it is compared with. */
static void a_merge_brings_the_policy_alone(void **state)
{
    (void)state;
    struct choices c;
    struct errmsg m = {""};
    char *names[] = {"full", "h2o+cam", "keydiff", "keydiff+merge"};
    assert_int_equal(read(&c, names, 2, NULL, &m), OK);
    assert_int_equal(c.n, 5);
    for (uint32_t i = 1; i < 3; i++) {
        assert_string_equal(c.choice[i].name, "h2o+cam");
        assert_string_equal(c.choice[i + 2].name, "h2o");
        assert_null(c.choice[i + 2].fate);
        assert_true(choice_same_kept(&c.choice[i], &c.choice[i + 2]));
    }
    assert_false(choice_same_kept(&c.choice[1], &c.choice[4]));
    struct choices_needs needs = choices_needs(&c);
    assert_int_equal(needs.view, POLICY_COLUMNS);
    assert_int_equal(needs.fate, fate_find("cam")->needs);
    assert_int_equal(needs.n_window, 32);
    /* Named already: not twice. */
    assert_int_equal(read(&c, names, 4, "keydiff+merge", &m), OK);
    assert_int_equal(c.n, 9);
    assert_int_equal(read(&c, names, 4, "snapkv", &m), ERR_INVAL);
    names[1] = "keydiff+drop";
    assert_int_equal(read(&c, names, 3, NULL, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "twice"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_are_checked),
        cmocka_unit_test(a_fate_has_one_name),
        cmocka_unit_test(settings_are_the_servers),
        cmocka_unit_test(wrong_fates_are_told),
        cmocka_unit_test(a_merge_brings_the_policy_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
