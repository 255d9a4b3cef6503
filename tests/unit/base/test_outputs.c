/* Files of one run that would be one file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/outputs.h"

struct setup {
    char dir[64], json[128], path[128];
    struct outputs o;
    struct errmsg m;
};

/* The run writes out.json, with what stands beside it. */
static void setup_init(struct setup *s)
{
    memset(s, 0, sizeof(*s));
    snprintf(s->dir, sizeof(s->dir), "/tmp/ebb-outputs-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->json, sizeof(s->json), "%s/out.json", s->dir);
    assert_int_equal(outputs_add(&s->o, "--json", s->json, &s->m), OK);
    assert_int_equal(
        outputs_add_beside(&s->o, "--json", s->json, ".part", &s->m), OK);
    assert_int_equal(outputs_add_tmp(&s->o, "--json", s->json, &s->m), OK);
}

static void setup_fini(struct setup *s)
{
    assert_int_equal(rmdir(s->dir), 0); /* nothing was written */
}

static const char *in_dir(struct setup *s, const char *name)
{
    snprintf(s->path, sizeof(s->path), "%s/%s", s->dir, name);
    return s->path;
}

static void check_says(const struct setup *s, const char *path)
{
    assert_non_null(strstr(s->m.text, "--html"));
    assert_non_null(strstr(s->m.text, path));
    assert_non_null(strstr(s->m.text, "--json"));
    assert_non_null(strstr(s->m.text, s->json));
}

static void one_file_is_written_once(void **state)
{
    (void)state;
    static const char *const names[] = {"out.json", "./out.json",
                                        "out.json.part", "out.json.tmp"};
    struct setup s;
    setup_init(&s);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *path = in_dir(&s, names[i]);
        assert_int_equal(outputs_add(&s.o, "--html", path, &s.m), ERR_INVAL);
        check_says(&s, path);
    }
    const char *path = in_dir(&s, "out.html");
    assert_int_equal(outputs_add(&s.o, "--html", path, &s.m), OK);
    assert_int_equal(outputs_add_tmp(&s.o, "--html", path, &s.m), OK);
    setup_fini(&s);
}

static void nothing_that_is_read_is_written(void **state)
{
    (void)state;
    struct setup s;
    setup_init(&s);
    assert_int_equal(
        outputs_check(&s.o, "--text", in_dir(&s, "sub/../text"), &s.m), OK);
    assert_int_equal(outputs_check(&s.o, "--html", s.json, &s.m), ERR_INVAL);
    check_says(&s, s.json);
    const char *path = in_dir(&s, ".//out.json.part");
    assert_int_equal(outputs_check(&s.o, "--html", path, &s.m), ERR_INVAL);
    check_says(&s, path);
    setup_fini(&s);
}

/* Whether what a link leads to is there or not. */
static void links_are_followed(void **state)
{
    (void)state;
    struct setup s;
    char link[128];
    setup_init(&s);
    snprintf(link, sizeof(link), "%s/link", s.dir);
    assert_int_equal(symlink("out.json", link), 0);
    assert_int_equal(outputs_add(&s.o, "--html", link, &s.m), ERR_INVAL);
    assert_non_null(strstr(s.m.text, "link"));
    assert_int_equal(file_replace(s.json, "x", 1, &s.m), OK);
    assert_int_equal(outputs_add(&s.o, "--html", link, &s.m), ERR_INVAL);
    check_says(&s, link);
    assert_int_equal(outputs_check(&s.o, "--html", link, &s.m), ERR_INVAL);
    check_says(&s, link);
    /* The other way round: what stands beside what the link leads to. */
    struct outputs o = {.n = 0};
    assert_int_equal(outputs_add(&o, "--json", link, &s.m), OK);
    assert_int_equal(outputs_add_beside(&o, "--json", link, ".part", &s.m), OK);
    assert_int_equal(outputs_add_tmp(&o, "--json", link, &s.m), OK);
    assert_int_equal(
        outputs_check(&o, "--text", in_dir(&s, "out.json.tmp"), &s.m),
        ERR_INVAL);
    assert_int_equal(outputs_check(&o, "--text", in_dir(&s, "link.part"), &s.m),
                     ERR_INVAL);
    assert_int_equal(
        outputs_check(&o, "--text", in_dir(&s, "out.json.part"), &s.m), OK);
    unlink(link);
    unlink(s.json);
    setup_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file_is_written_once),
        cmocka_unit_test(nothing_that_is_read_is_written),
        cmocka_unit_test(links_are_followed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
