/* The options --merge-* as the engine takes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "server/merge_config.h"

static struct merge_options options_of(int argc, char **argv)
{
    char model[] = __FILE__, *all[8] = {"--model", model};
    const struct config_sources s = {
        .argc = argc + 2, .argv = all, .memory_available = 1 << 30};
    struct config c;
    struct errmsg m = {""};
    for (int i = 0; i < argc; i++)
        all[2 + i] = argv[i];
    if (config_load_from(&c, &s, &m) != OK)
        fail_msg("%s", m.text);
    struct merge_options o = merge_config_options(&c);
    config_fini(&c);
    return o;
}

/* The table's are those of merge.h. */
static void defaults_are_the_same(void **state)
{
    (void)state;
    struct merge_options o = options_of(0, NULL), d = merge_options_default();
    assert_memory_equal(&o, &d, sizeof(o));
}

static void every_option_is_passed_on(void **state)
{
    (void)state;
    char *argv[] = {"--merge-alpha=0.25", "--merge-min-mass=2",
                    "--merge-max-ratio=8", "--merge-mean-ratio",
                    "--merge-min-cosine=0.5"};
    struct merge_options o = options_of(5, argv), d = merge_options_default();
    d.alpha = 0.25f;
    d.min_mass = 2;
    d.max_ratio = 8;
    d.mean_ratio = true;
    d.min_cosine = 0.5f;
    assert_memory_equal(&o, &d, sizeof(o));
    char *off[] = {"--merge-max-ratio=0"};
    assert_true(isinf(options_of(1, off).max_ratio));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_same),
        cmocka_unit_test(every_option_is_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
