/* Names on the command line: policies, fates and their settings. */
#include "tests/unit/bench/eval/rig.h"

#include <stdio.h>

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

/* What knows the answers needs them, and nothing else of a sequence. */
static void the_oracle_is_a_control(void **state)
{
    (void)state;
    struct choices all = {.n = 2};
    all.choice[0] = find("oracle");
    all.choice[1] = find("keydiff");
    assert_int_equal(all.choice[0].kind, CHOICE_ORACLE);
    assert_false(choice_competes(&all.choice[0]));
    assert_true(choice_competes(&all.choice[1]));
    assert_false(choice_needs_gates(&all.choice[0]));
    assert_true(choices_needs(&all).answers);
    all.choice[0] = find("full");
    assert_false(choice_competes(&all.choice[0]));
    assert_false(choices_needs(&all).answers);
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
         "expected-attention+merge:min-mass=0:max-ratio=0"},
        {"h2o+merge:mean-ratio", "h2o+merge:mean-ratio=on"},
        {"h2o+kvmerger:min-cosine=.9", "h2o+kvmerger:min-cosine=0.9"},
        /* What is the server's setting anyway is not told. */
        {"h2o+selkv:mean-ratio=false", "h2o+merge"},
        {"h2o+merge:alpha=0.5:max-ratio=4", "h2o+merge"},
        /* Zero has one form, and settings have one order. */
        {"h2o+merge:alpha=-0", "h2o+merge:alpha=0"},
        {"h2o+merge:alpha=1e-400", "h2o+merge:alpha=0"},
        {"h2o+merge:max-ratio=2:alpha=1", "h2o+merge:alpha=1:max-ratio=2"},
        /* Two floats are two settings. */
        {"h2o+merge:alpha=0.50000006", "h2o+merge:alpha=0.50000006"},
        {"h2o+merge:alpha=0.5000000001", "h2o+merge"},
        {"oracle+merge", "oracle+merge"},
        /* A policy has settings, too. */
        {"keydiff:reposition", "keydiff:reposition=on"},
        {"keydiff:reposition=off", "keydiff"},
        {"selkv:reposition:per-head-sets+merge:alpha=1",
         "selkv-window:per-head-sets=on:reposition=on+merge:alpha=1"},
        {"selkv-window:per-head-sets+drop", "selkv-window:per-head-sets=on"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct choice c = find(names[i][0]);
        assert_string_equal(c.name, names[i][1]);
        assert_int_equal(c.fate != NULL, strchr(names[i][1], '+') != NULL);
        assert_string_equal(c.policy->name,
                            find(strtok(c.name, ":+")).policy->name);
    }
    assert_ptr_equal(find("keydiff+merge").fate, fate_find("selkv"));
    assert_int_equal(find("retention+cam").kind, CHOICE_PASS);
    /* The server's words for a session that forgets nothing. */
    assert_string_equal(find("exact").name, "full");
    assert_string_equal(find("none").name, "full");
    assert_int_equal(find("none").kind, CHOICE_FULL);
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
    assert_true(find("keydiff+merge:mean-ratio").merge.mean_ratio);
    assert_false(find("keydiff+merge:mean-ratio=off").merge.mean_ratio);
    assert_true(find("keydiff+kvmerger:min-cosine=1").merge.min_cosine == 1);
    /* The others keep their defaults. */
    c = find("keydiff+merge:mean-ratio:alpha=1");
    server.mean_ratio = true;
    server.alpha = 1;
    assert_memory_equal(&c.merge, &server, sizeof(server));
}

static void policies_have_settings(void **state)
{
    (void)state;
    struct choice plain = find("selkv-window"),
                  moved = find("selkv-window:reposition"),
                  ragged = find("selkv-window:per-head-sets");
    assert_false(plain.reposition || plain.per_head_sets);
    assert_true(moved.reposition && !moved.per_head_sets);
    assert_true(ragged.per_head_sets && !ragged.reposition);
    assert_true(choice_same_kept(&plain, &moved));
    assert_false(choice_same_kept(&plain, &ragged));
}

/* The ends of the server's ranges, which are options --merge-* of `ebb serve`,
 * and what is just beyond: neither takes what the other refuses. */
static void settings_have_the_servers_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *name, *fate, *first, *last, *below, *above;
    } range[] = {{"alpha", "merge", "0", "1", "-0.001", "1.001"},
                 {"min-mass", "merge", "0", "1000000", "-1", "1000001"},
                 {"max-ratio", "merge", "1", "1e6", "0.99", "1e7"},
                 {"max-ratio", "merge", "0", "1", "-1", "1000001"},
                 {"min-cosine", "kvmerger", "0", "1", "-0.5", "2"}};
    for (size_t i = 0; i < sizeof(range) / sizeof(range[0]); i++)
        for (int k = 0; k < 4; k++) {
            const char *value = k == 0   ? range[i].first
                                : k == 1 ? range[i].last
                                : k == 2 ? range[i].below
                                         : range[i].above;
            char name[CHOICE_NAME_MAX], flag[64], model[] = __FILE__;
            char *argv[] = {flag, "--model", model};
            const struct config_sources s = {
                .argc = 3, .argv = argv, .memory_available = 1 << 30};
            struct choice c;
            struct config config;
            struct errmsg m = {""};
            enum err want = k < 2 ? OK : ERR_INVAL;
            snprintf(name, sizeof(name), "keydiff+%s:%s=%s", range[i].fate,
                     range[i].name, value);
            snprintf(flag, sizeof(flag), "--merge-%s=%s", range[i].name, value);
            assert_int_equal(choice_find(&c, name, RIG_NEEDS, &m), want);
            assert_true(k < 2 ||
                        strstr(m.text, "is out of range; it must be "));
            assert_int_equal(config_load_from(&config, &s, &m), want);
            if (k < 2)
                config_fini(&config);
        }
}

static void wrong_fates_are_told(void **state)
{
    (void)state;
    static const struct {
        const char *name, *word;
        enum err rc;
    } wrong[] = {
        {"keydiff+merg", "merge", ERR_NOTFOUND},
        {"keydiff+", "fate", ERR_NOTFOUND},
        {"keydiff+merge+cam", "no fate \"merge+cam\"", ERR_NOTFOUND},
        {"full+merge", "full has no fate", ERR_INVAL},
        {"full+merge", "nothing to merge", ERR_INVAL},
        {"exact+cam", "full has no fate", ERR_INVAL},
        {"no-context+drop", "no-context has no fate", ERR_INVAL},
        {"keydiff+drop:alpha=1", "no setting of the fate drop", ERR_INVAL},
        {"keydiff+cam:alpha=1", "\"alpha\" is no setting of the fate cam",
         ERR_INVAL},
        {"keydiff+merge:min-cosine=1", "no setting of the fate merge",
         ERR_INVAL},
        {"keydiff+kvmerger:alpha=1", "which has: min-cosine", ERR_INVAL},
        {"keydiff+merge:beta=1",
         "which has: alpha, min-mass, max-ratio, mean-ratio", ERR_INVAL},
        {"keydiff+merge:min_mass=1", "no setting", ERR_INVAL},
        {"keydiff+merge:", "\"\" is no setting", ERR_INVAL},
        {"keydiff+merge::alpha=1", "\"\" is no setting", ERR_INVAL},
        {"keydiff+merge:alpha", "alpha needs a value: alpha=0.5", ERR_INVAL},
        {"keydiff+merge:alpha=", "alpha: '' is not a number", ERR_INVAL},
        {"keydiff+merge:alpha=1x", "alpha: '1x' is not a number", ERR_INVAL},
        {"keydiff+merge:alpha=-1", "alpha: '-1' is out of range", ERR_INVAL},
        {"keydiff+merge:max-ratio=0.5",
         "'0.5' is out of range; it must be 0 or from 1 to 1000000", ERR_INVAL},
        {"keydiff+merge:alpha=nan", "alpha: 'nan' is not a number", ERR_INVAL},
        {"keydiff+merge:mean-ratio=2", "mean-ratio: '2' is not true or false",
         ERR_INVAL},
        {"keydiff+merge:alpha=0:alpha=1", "alpha is there twice", ERR_INVAL},
        {"keydiff+merge:alpha=0:max-ratio=2:alpha=0", "alpha is there twice",
         ERR_INVAL},
        {"keydiff+merge:mean-ratio:mean-ratio=off", "mean-ratio is there twice",
         ERR_INVAL},
        {"keydiff:per-head-sets",
         "\"per-head-sets\" is no setting of the policy keydiff, which has: "
         "reposition",
         ERR_INVAL},
        {"selkv:alpha=1", "which has: per-head-sets, reposition", ERR_INVAL},
        {"keydiff+merge:reposition", "no setting of the fate merge", ERR_INVAL},
        {"keydiff:", "\"\" is no setting", ERR_INVAL},
        {"keydiff:reposition=2", "reposition: '2' is not true or false",
         ERR_INVAL},
        {"keydiff:reposition:reposition", "reposition is there twice",
         ERR_INVAL},
        {"full:reposition", "\"reposition\" is no setting of full", ERR_INVAL},
        {"no-context:x+merge", "\"x\" is no setting of no-context", ERR_INVAL},
        {"keydif:reposition", "no policy \"keydif\"", ERR_NOTFOUND},
        {"keydiff+merge:alpha=0.0000000000000000000000000000000000000000000000"
         "000000000000000000000000000000000000000000000000000000000000000001",
         "less than 128 characters", ERR_INVAL}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct choice c;
        struct errmsg m = {""};
        enum err rc = choice_find(&c, wrong[i].name, RIG_NEEDS, &m);
        if (rc != wrong[i].rc || strstr(m.text, wrong[i].word) == NULL)
            fail_msg("%s: %s", wrong[i].name, m.text);
    }
}

static struct config_list list_of(char **item, size_t n)
{
    return (struct config_list){.item = item, .n = n};
}

static enum err read_with(struct choices *out, char **policy, size_t n,
                          const char *against, char *share[2], struct errmsg *m)
{
    struct config_list names = list_of(policy, n), budgets = list_of(share, 2);
    const struct choices_input in = {.policy = &names,
                                     .budget = &budgets,
                                     .against = against,
                                     .has = RIG_NEEDS};
    return choices_read(out, &in, m);
}

static enum err read(struct choices *out, char **policy, size_t n,
                     const char *against, struct errmsg *m)
{
    char *shares[] = {"0.25", "0.5"};
    return read_with(out, policy, n, against, shares, m);
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
    /* With the settings of the policy. */
    names[0] = "selkv:reposition:per-head-sets+merge";
    assert_int_equal(read(&c, names, 1, NULL, &m), OK);
    assert_int_equal(c.n, 5);
    assert_string_equal(c.choice[3].name,
                        "selkv-window:per-head-sets=on:reposition=on");
    assert_true(c.choice[3].reposition && c.choice[3].per_head_sets);
    assert_null(c.choice[3].fate);
    names[0] = "full";
    names[1] = "keydiff+drop";
    assert_int_equal(read(&c, names, 3, NULL, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "--policy: keydiff is there twice"));
}

/* Whether a model can do a task at all is what the full cache says. */
static void full_always_comes(void **state)
{
    (void)state;
    struct choices c;
    struct errmsg m = {""};
    char *names[] = {"keydiff", "h2o+merge", "exact"};
    assert_int_equal(read(&c, names, 2, "full", &m), OK);
    assert_int_equal(c.n, 1 + 2 + 2 + 2);
    assert_int_equal(c.choice[0].kind, CHOICE_FULL);
    assert_true(c.choice[0].budget == 1);
    assert_string_equal(c.choice[1].name, "keydiff");
    assert_string_equal(c.choice[6].name, "h2o");
    /* Where it was named it stays. */
    assert_int_equal(read(&c, names, 3, NULL, &m), OK);
    assert_int_equal(c.n, 7);
    assert_int_equal(c.choice[4].kind, CHOICE_FULL);
}

/* The names that --policy takes. */
static void against_has_the_same_names(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"retention", "dbtrimkv"}, {"selkv", "selkv-window"},
        {"exact", "full"},         {"none", "full"},
        {"full", "full"},          {"h2o+selkv:alpha=0.5", "h2o+merge"},
        {"h2o+drop", "h2o"}};
    char *policies[] = {"retention", "selkv", "h2o+merge"};
    struct choices c;
    struct errmsg m = {""};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (read(&c, policies, 3, names[i][0], &m) != OK)
            fail_msg("%s", m.text);
        assert_string_equal(c.against, names[i][1]);
    }
    assert_int_equal(read(&c, policies, 3, NULL, &m), OK);
    assert_string_equal(c.against, "");
    assert_int_equal(read(&c, policies, 3, "keydif", &m), ERR_NOTFOUND);
    assert_non_null(strstr(m.text, "--against: there is no policy"));
}

/* By what they are, not by how they are written. */
static void nothing_is_there_twice(void **state)
{
    (void)state;
    static const char *const twice[][2] = {
        {"keydiff", "keydiff"},
        {"full", "exact"},
        {"retention", "dbtrimkv"},
        {"h2o+merge", "h2o+selkv"},
        {"h2o+merge:alpha=0.250", "h2o+merge:alpha=.25"},
        {"h2o+merge", "h2o+merge:alpha=0.5"},
        {"h2o+merge:alpha=0", "h2o+merge:alpha=-0"},
        {"h2o+merge:alpha=0:mean-ratio", "h2o+merge:mean-ratio=on:alpha=0"}};
    for (size_t i = 0; i < sizeof(twice) / sizeof(twice[0]); i++) {
        struct choices c;
        struct errmsg m = {""};
        char a[64], b[64], *names[] = {a, b};
        snprintf(a, sizeof(a), "%s", twice[i][0]);
        snprintf(b, sizeof(b), "%s", twice[i][1]);
        assert_int_equal(read(&c, names, 2, NULL, &m), ERR_INVAL);
        assert_non_null(strstr(m.text, "--policy: "));
        assert_non_null(strstr(m.text, "is there twice"));
    }
    struct choices c;
    struct errmsg m = {""};
    char *full[] = {"full"}, *share[] = {"0.50", ".5"};
    assert_int_equal(read_with(&c, full, 1, NULL, share, &m), ERR_INVAL);
    assert_string_equal(m.text, "--budget: 0.5 is there twice");
    share[1] = "0.4";
    assert_int_equal(read_with(&c, full, 1, NULL, share, &m), OK);
    share[1] = "2";
    assert_int_equal(read_with(&c, full, 1, NULL, share, &m), ERR_INVAL);
    assert_non_null(strstr(m.text, "--budget: \"2\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_are_checked),
        cmocka_unit_test(the_oracle_is_a_control),
        cmocka_unit_test(a_fate_has_one_name),
        cmocka_unit_test(settings_are_the_servers),
        cmocka_unit_test(policies_have_settings),
        cmocka_unit_test(settings_have_the_servers_ranges),
        cmocka_unit_test(wrong_fates_are_told),
        cmocka_unit_test(a_merge_brings_the_policy_alone),
        cmocka_unit_test(full_always_comes),
        cmocka_unit_test(against_has_the_same_names),
        cmocka_unit_test(nothing_is_there_twice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
